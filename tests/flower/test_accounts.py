"""Accounts of both sides: restored, lost, shared by two messages, and clients that come back."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

pytest.importorskip("flwr")

from diffsketch.errors import DataError, MismatchError
from diffsketch.flower import ClientAccount, FlowerPlan, SketchStrategy
from diffsketch.flower.accounts import ClientLedger, ClientRegistry
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy import Budget, Claim
from diffsketch.privacy.accounting.account import BudgetExceeded
from diffsketch.wire import WireError
from tests.flower.network import (
    CENTRAL,
    DIM,
    FIRST,
    GAUSSIAN,
    KEY,
    PRIVATE,
    network_of,
    one_round,
    strategy_of,
    towards,
)

LOUDER = FlowerPlan("sketch-gaussian", {**PRIVATE, "noise_multiplier": 0.5})
BUDGET = Budget(6.0, 1e-5)
OWN = b"k" * 32


def claim_of(plan: FlowerPlan) -> Claim:
    return plan.build(DIM).claim_for(1, KEY.seed(0))


CLAIM = claim_of(GAUSSIAN)


def allowed(budget: Budget = BUDGET) -> int:
    """Rounds of `GAUSSIAN` within the budget."""
    count = 0
    while float(CLAIM.epsilon(delta=budget.delta, rounds=count + 1)) <= budget.epsilon:
        count += 1
    return count


def account(rounds: int, claim: Claim = CLAIM) -> ClientAccount:
    return ClientAccount.new(None).after(claim, rounds=rounds)


def epsilon(of: Any) -> float:
    return float(of.epsilon(1e-5))


def test_an_account_comes_back_exactly() -> None:
    paid = account(7)
    again = ClientAccount.of_statement(paid.statement(OWN), OWN, None)
    assert again.serial == 7
    assert again.to_text() == paid.to_text()
    assert again.epsilon(1e-5) == paid.epsilon(1e-5)
    held = ClientAccount.of_statement(paid.statement(OWN), OWN, Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceeded):
        held.after(CLAIM)


def test_a_statement_that_was_changed_or_cut_is_refused() -> None:
    good = account(1).statement(OWN)
    changed = [bytes(b ^ (i == at % len(good)) for i, b in enumerate(good)) for at in (0, 31, 40)]
    for bad in (*changed, *(good[:length] for length in (0, 31, 32, 100))):
        with pytest.raises(WireError, match="not made with its own key"):
            ClientAccount.of_statement(bad, OWN, None)
    with pytest.raises(WireError, match="own key"):
        ClientAccount.of_statement(good, b"o" * 32, None)


def test_copies_of_an_account_count_once_and_other_accounts_add_up() -> None:
    """Two servers, neither of which knew of the other's rounds, have statements apart."""
    old = account(3)
    new = old.after(CLAIM, rounds=2)
    for order in ([old, new], [new, old], [new, new, old]):
        assert ClientAccount.combined(order).to_text() == new.to_text()
    apart = account(4, claim_of(LOUDER))
    both = ClientAccount.combined([new, apart])
    assert both.serial == 9
    expected = account(4, claim_of(LOUDER)).after(CLAIM, rounds=5)
    assert epsilon(both) == pytest.approx(epsilon(expected), rel=1e-9)
    assert epsilon(both) > max(epsilon(new), epsilon(apart))
    # What is combined is known from then on, and is not added a second time.
    again = ClientAccount.combined([both.after(CLAIM), apart, new, old])
    assert again.to_text() == both.after(CLAIM).to_text()
    with pytest.raises(MismatchError, match="accounts of one client"):
        ClientAccount.combined([new, account(1, claim_of(CENTRAL))])


def request(round_index: int = 0, *, statement: bytes = b"", known: bytes = b"") -> Request:
    return Request(
        b"", b"", round_index, "", b"", "arrays", NO_MODEL, 0, 1, [], [], b"", statement, known, 0.0
    )


def ledger(path: Path, *, key: bytes | None = None) -> ClientLedger:
    return ClientLedger("0", None, key, path)


def sent(strategy: SketchStrategy) -> int:
    return sum(len(report.present) for report in strategy.reports)


def test_without_a_statement_a_lost_file_counts_all_earlier_rounds(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    assert ledger(path).charge(CLAIM, request(), remembered=None).serial == 1
    path.unlink()
    assert ledger(path).charge(CLAIM, request(7), remembered=None).serial == 8
    path.unlink()
    known = member_digest("0")  # the server has a statement: it is waited for
    with pytest.raises(Refusal, match="needs its statement first"):
        ledger(path, key=OWN).after(CLAIM, request(7, known=known), remembered=None)
    path.write_text(ClientAccount.new(None).to_text())  # how a new client says that it is new
    assert ledger(path).charge(CLAIM, request(7), remembered=None).serial == 1
    path.unlink()
    assert ledger(path).charge(CLAIM, request(7), remembered=account(3)).serial == 4


def test_file_and_statement_are_combined(tmp_path: Path) -> None:
    path, old = tmp_path / "account.json", account(5)
    for on_disk, stated, serial in ((old, old.after(CLAIM), 7), (old, account(2), 8)):
        ledger(path).write(on_disk)
        asked = request(statement=stated.statement(OWN))
        after = ledger(path, key=OWN).charge(CLAIM, asked, remembered=None)
        assert after.serial == serial
        kept = ledger(path).read()
        assert kept is not None
        assert kept.to_text() == after.to_text()


def at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Messages that the account knows of after two at the same time.

    Each reader waits for the other for a while before it goes on, so that without a lock both have
    read before either writes. Locks are of open files, not of processes: two threads do.
    """
    both = threading.Barrier(2)
    read: Callable[[ClientLedger], ClientAccount | None] = ClientLedger.read

    def lingering(self: ClientLedger) -> ClientAccount | None:
        found = read(self)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(ClientLedger, "read", lingering)
        threads = [
            threading.Thread(target=lambda: ledger(path).charge(CLAIM, request(), remembered=None))
            for _ in range(2)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    found = ledger(path).read()
    assert found is not None
    return found.serial


@pytest.mark.parametrize("lock", [True, False])
def test_two_messages_at_once_are_both_paid(
    lock: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: without the lock, one of them is lost."""
    path = tmp_path / "account.json"
    ledger(path).write(ClientAccount.new(None))
    if not lock:
        monkeypatch.setattr(ClientLedger, "locked", lambda _: nullcontext())
        replaced = threading.Lock()
        write: Callable[[ClientLedger, ClientAccount], None] = ClientLedger.write

        def one_by_one(self: ClientLedger, found: ClientAccount) -> None:
            with replaced:  # both threads have the same temporary name
                write(self, found)

        monkeypatch.setattr(ClientLedger, "write", one_by_one)
    assert at_once(path, monkeypatch) == (2 if lock else 1)


def test_a_lock_that_is_held_or_removed_is_an_error(tmp_path: Path) -> None:
    file = ledger(tmp_path / "account.json")
    held = pytest.raises(DataError, match="another process holds the lock")
    with file.locked(), held, file.locked(wait=0.02):
        pass
    with pytest.raises(DataError, match="was removed meanwhile"), file.locked():
        (tmp_path / ".account.json.lock").unlink()
    with file.locked():
        pass


def test_a_message_that_is_answered_while_another_trains_is_paid(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    options: dict[str, Any] = {"budget": BUDGET, "account_file": path}
    other, second = network_of(GAUSSIAN, 1, **options), strategy_of(GAUSSIAN)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        one_round(second, other, FIRST, server_round)
        return towards(number, weights, server_round)

    first = strategy_of(GAUSSIAN)
    first.start(network_of(GAUSSIAN, 1, train=train, **options), FIRST, allowed())
    assert sent(first) + sent(second) == allowed()
    kept = ledger(path).read()
    assert kept is not None
    assert kept.serial == allowed()


def test_an_account_of_another_trust_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    for plan, void in ((GAUSSIAN, False), (CENTRAL, True), (GAUSSIAN, False)):
        network = network_of(plan, 1, account_file=path)
        strategy = strategy_of(plan)
        strategy.start(network, FIRST, 1)
        (report,) = strategy.reports
        assert bool(report.void) == void
        assert len(network.nodes[1000].seen) == (not void)
        if void:
            (reason,) = report.refused.values()
            assert reason.startswith("account: this client's account is about another kind")
            assert str(tmp_path) not in reason


def charge(registry: ClientRegistry, nodes: Iterable[int]) -> None:
    registry.begin_round(CLAIM, nodes)
    registry.settle_round()


def rounds_of(registry: ClientRegistry, member: str) -> int:
    data = json.loads(registry.to_text())
    return int(data["accounts"]["rounds"][data["places"][f"member {member}"]])


def test_accounts_grow_with_the_clients() -> None:
    registry = ClientRegistry(None, CLAIM)
    for start in range(5):
        charge(registry, range(100 * start, 100 * start + 30))
    charge(registry, [0])
    assert registry.epsilon(1e-5).rounds == 2
    assert epsilon(registry) == pytest.approx(epsilon(account(2)), rel=1e-9)


def test_a_client_that_comes_back_under_another_id_has_one_account() -> None:
    registry = ClientRegistry(None, CLAIM)
    charge(registry, [1, 2])
    registry.update(1, member="a", version=0, statement=b"")
    registry.update(2, member="b", version=0, statement=b"")
    charge(registry, [1, 2])
    charge(registry, [3])  # a restarted "a", which does not answer at first
    assert rounds_of(registry, "a") == 2
    registry.update(3, member="a", version=-1, statement=b"")
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (3, 2)
    charge(registry, [3])
    assert epsilon(registry) == pytest.approx(epsilon(account(4)), rel=1e-9)
    # Two nodes of one client pay twice.
    charge(registry, [1, 3, 2])
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (6, 3)
    again = ClientRegistry(None, CLAIM)
    again.load_text(registry.to_text())
    assert again.to_text() == registry.to_text()


def test_the_registrys_budget_is_never_exceeded() -> None:
    registry, rounds = ClientRegistry(BUDGET, CLAIM), allowed()
    assert rounds >= 1
    for index in range(rounds):
        charge(registry, [index, 50])
    for nodes in ([rounds, 50], [50]):
        with pytest.raises(BudgetExceeded):
            registry.begin_round(CLAIM, nodes)
    registry.check_budget(CLAIM, [rounds])
    assert epsilon(registry) <= BUDGET.epsilon


def test_clients_over_budget_do_not_keep_others_from_being_told_apart() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    charge(registry, [1])
    registry.update(1, member="a", version=0, statement=b"")
    charge(registry, [1])
    charge(registry, [2])  # a restarted "a" that is silent, and paid by its id
    registry.begin_round(CLAIM, [2, 3])
    assert registry.over_budget(CLAIM) == frozenset()
    registry.update(2, member="a", version=0, statement=b"")
    registry.update(3, member="b", version=0, statement=b"")
    assert registry.over_budget(CLAIM) == {2}
    assert rounds_of(registry, "a") == 4  # with the round that was begun
    registry.settle_round(CLAIM)
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (4, 1)
    with pytest.raises(BudgetExceeded):
        registry.begin_round(CLAIM, [3])
    assert rounds_of(registry, "b") == 1


def test_statements_are_handed_back_to_their_client_only() -> None:
    registry = ClientRegistry(None, CLAIM)
    registry.update(1, member="a", version=0, statement=b"of a")
    registry.update(2, member="b", version=0, statement=b"of b")
    assert registry.statement_for(1) == (b"of a", b"")
    statement, known = registry.statement_for(9)
    assert (statement, len(known)) == (b"", 16)

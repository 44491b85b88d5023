"""Accounts of both sides: restored, lost, shared by two messages, and clients that come back."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

pytest.importorskip("flwr")

from diffsketch.errors import MismatchError
from diffsketch.flower import FlowerPlan, SketchStrategy
from diffsketch.flower import accounts as module
from diffsketch.flower.accounts import (
    ClientRegistry,
    open_account,
    refusing,
    sign_statement,
    verify_statement,
)
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy import Budget, Claim
from diffsketch.privacy.accounting.account import Account
from diffsketch.wire import WireError
from tests.flower import network as net
from tests.flower.network import CENTRAL, DIM, FIRST, GAUSSIAN, KEY, PRIVATE

LOUDER = FlowerPlan("sketch-gaussian", {**PRIVATE, "noise_multiplier": 0.5})
BUDGET = Budget(6.0, 1e-5)
OWN = b"k" * 32


def claim_of(plan: FlowerPlan) -> Claim:
    return plan.build(DIM).claim_for(1, KEY.seed(0))


CLAIM = claim_of(GAUSSIAN)


@cache
def allowed(budget: Budget = BUDGET) -> int:
    """Rounds of `GAUSSIAN` within the budget."""
    count = 0
    while float(CLAIM.epsilon(delta=budget.delta, rounds=count + 1)) <= budget.epsilon:
        count += 1
    return count


def account(rounds: int, claim: Claim = CLAIM) -> Account:
    paid = Account()
    paid.charge(claim, rounds=rounds)
    return paid


def epsilon(of: Any) -> float:
    return float(of.epsilon(1e-5))


def test_a_statement_comes_back_exactly_or_is_refused() -> None:
    paid = account(7)
    good = sign_statement(paid, OWN)
    assert verify_statement(good, OWN).spent == paid.spent
    changed = [bytes(b ^ (i == at % len(good)) for i, b in enumerate(good)) for at in (0, 31, 40)]
    for bad in (*changed, *(good[:length] for length in (0, 31, 32, 100))):
        with pytest.raises(WireError, match="not made with its own key"):
            verify_statement(bad, OWN)
    with pytest.raises(WireError, match="own key"):
        verify_statement(good, b"o" * 32)
    older = b"text of another version"
    with pytest.raises(WireError, match="statement of this client's account"):
        verify_statement(module._tag(older, OWN) + older, OWN)
    paid = Account()
    for _ in range(1000):  # restarts: far within what a reply may have
        paid.begin_series()
        paid.charge(CLAIM)
    assert len(sign_statement(paid, OWN)) < 1 << 16


def request(round_index: int = 0, *, statement: bytes = b"", known: bytes = b"") -> Request:
    return Request(
        b"", b"", round_index, "", b"", "arrays", NO_MODEL, 0, 1, [], [], b"", statement, known, 0.0
    )


def charged(
    path: Path | None = None,
    asked: Request | None = None,
    *,
    remembered: Account | None = None,
    key: bytes | None = None,
    budget: Budget | None = None,
) -> Account:
    """A client's account after it has paid a message."""
    paid = open_account(
        CLAIM, asked or request(), member="0", remembered=remembered, key=key, path=path,
        budget=budget,
    )  # fmt: skip
    with refusing():
        paid.charge(CLAIM)
    return paid


def again(paid: Account) -> Account:
    """What the next process of the node remembers."""
    return Account.from_text(paid.to_text())


def sent(strategy: SketchStrategy) -> int:
    return sum(len(report.present) for report in strategy.reports)


def test_without_a_statement_a_lost_file_counts_all_earlier_rounds(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    assert charged(path).rounds == 1
    path.unlink()
    assert charged(path, request(7)).rounds == 8
    path.unlink()
    known = member_digest("0")  # the server has a statement: it is waited for
    with pytest.raises(Refusal, match="needs its statement first"):
        charged(path, request(7, known=known), key=OWN)
    Account.open(path)  # how a new client says that it is new
    assert charged(path, request(7)).rounds == 1
    path.unlink()
    assert charged(path, request(7), remembered=account(3)).rounds == 4


def test_a_file_that_is_made_never_says_that_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash right after it was made, and refused rounds, do not make a new client of an old."""
    path, budget = tmp_path / "account.json", Budget(3.5, 1e-5)  # two rounds
    with pytest.raises(Refusal, match="above the budget"):
        charged(path, request(7), budget=budget)
    assert not path.exists()

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Account, "resume", crash)
        with pytest.raises(KeyboardInterrupt):
            charged(path, request(2), budget=budget)
    assert Account.open(path).rounds == 2
    with pytest.raises(Refusal, match="above the budget"):
        charged(path, request(3), budget=budget)


def test_the_budget_is_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    charged(path, budget=BUDGET)
    with pytest.raises(MismatchError, match="budget must be that of"):
        charged(path, budget=Budget(7.0, 1e-5))
    for _ in range(allowed() - 1):
        charged(path)
    with pytest.raises(Refusal, match="above the budget"):
        charged(path)


def test_file_and_statement_are_combined(tmp_path: Path) -> None:
    path, old = tmp_path / "account.json", account(5)
    newer = again(old)
    newer.charge(CLAIM)
    for stated, rounds in ((newer, 7), (account(2), 8)):
        path.unlink(missing_ok=True)
        Account.open(path, first=old)
        after = charged(path, request(statement=sign_statement(stated, OWN)), key=OWN)
        assert after.rounds == rounds
        assert Account.open(path).rounds == rounds


def test_a_memory_goes_on_with_its_series_unless_somebody_else_has(tmp_path: Path) -> None:
    """A process for each message adds no series; a state that was set back, or a clone, does."""
    path = tmp_path / "account.json"
    first = charged(path)
    second = charged(path, remembered=again(first))
    assert second.series == first.series
    third = charged(path, remembered=again(first))  # of before the second message
    assert third.series != first.series
    assert third.rounds == 3
    assert charged(path).series not in (first.series, third.series)  # without a memory


def test_a_message_that_is_answered_while_another_trains_is_paid(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    options: dict[str, Any] = {"budget": BUDGET, "account_file": path}
    other, second = net.network_of(GAUSSIAN, 1, **options), net.strategy_of(GAUSSIAN)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        net.one_round(second, other, FIRST, server_round)
        return net.towards(number, weights, server_round)

    first = net.strategy_of(GAUSSIAN)
    first.start(net.network_of(GAUSSIAN, 1, train=train, **options), FIRST, allowed())
    assert sent(first) + sent(second) == allowed()
    assert Account.open(path).rounds == allowed()


def test_an_account_of_another_trust_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    for plan, void in ((GAUSSIAN, False), (CENTRAL, True), (GAUSSIAN, False)):
        network = net.network_of(plan, 1, account_file=path)
        strategy = net.strategy_of(plan)
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


def met(registry: ClientRegistry, **nodes: int) -> None:
    """Nodes say which clients they are, with statements."""
    for member, node in nodes.items():
        registry.update(node, member=member, version=0, statement=f"of {member}".encode())


def rounds_of(registry: ClientRegistry, member: str) -> int:
    text: str = json.loads(registry.to_text())["accounts"][f"member {member}"]
    return Account.from_text(text).rounds


def test_a_client_that_comes_back_under_another_id_has_one_account() -> None:
    registry = ClientRegistry(None, CLAIM)
    charge(registry, [1, 2])
    met(registry, a=1, b=2)
    charge(registry, [1, 2])
    charge(registry, [3])  # a restarted "a", which does not answer at first
    assert rounds_of(registry, "a") == 2
    met(registry, a=3)
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (3, 2)
    charge(registry, [3])
    assert epsilon(registry) == pytest.approx(epsilon(account(4)), rel=1e-9)
    # Two nodes of one client pay twice.
    charge(registry, [1, 3, 2])
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (6, 3)
    again = ClientRegistry(None, CLAIM)
    again.load_text(registry.to_text())
    assert (rounds_of(again, "a"), rounds_of(again, "b")) == (6, 3)


def test_a_node_that_changes_its_name_takes_nothing_along() -> None:
    """A hostile node, or two that come back with each other's names."""
    registry = ClientRegistry(None, CLAIM)
    for index in range(6):
        charge(registry, [1, 2])
        registry.update(1, member="a", version=0, statement=b"")
        registry.update(2, member="a" if index % 2 else "b", version=0, statement=b"")
    # Node 2 pays as whoever it was before: twice as an unknown node or "b", then in turns.
    assert rounds_of(registry, "a") + rounds_of(registry, "b") == 12
    assert rounds_of(registry, "a") >= 6


def test_the_registrys_budget_is_never_exceeded() -> None:
    registry, rounds = ClientRegistry(BUDGET, CLAIM), allowed()
    for index in range(rounds):
        charge(registry, [index, 50])
    assert list(registry.unaffordable(CLAIM, [rounds, 50])) == [50]
    assert epsilon(registry) <= BUDGET.epsilon


def test_clients_over_budget_do_not_keep_others_from_being_told_apart() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    charge(registry, [1])
    met(registry, a=1)
    charge(registry, [1])
    charge(registry, [2])  # a restarted "a" that is silent, and paid by its id
    registry.begin_round(CLAIM, [2, 3])
    assert registry.over_budget(CLAIM) == frozenset()
    met(registry, a=2, b=3)
    assert registry.over_budget(CLAIM) == {2}
    assert rounds_of(registry, "a") == 4  # with the round that was begun
    registry.settle_round(CLAIM)
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (4, 1)
    assert epsilon(registry) == pytest.approx(epsilon(account(4)), rel=1e-9)
    reasons = registry.unaffordable(CLAIM, [1, 2, 3])  # whichever of its nodes: not asked again
    assert list(reasons) == [1, 2]
    assert all("above the budget" in reason for reason in reasons.values())
    charge(registry, [3])
    assert (rounds_of(registry, "a"), rounds_of(registry, "b")) == (4, 2)


def test_of_several_nodes_of_a_client_as_many_are_asked_as_it_can_pay() -> None:
    registry = ClientRegistry(Budget(3.5, 1e-5), CLAIM)  # two rounds
    for node in (1, 2, 3):
        met(registry, a=node)
    assert list(registry.unaffordable(CLAIM, [1, 2, 3, 4])) == [3]
    charge(registry, [3])
    assert list(registry.unaffordable(CLAIM, [1, 2, 3, 4])) == [2, 3]


def test_statements_are_handed_back_to_their_client_only() -> None:
    registry = ClientRegistry(None, CLAIM)
    met(registry, a=1, b=2)
    assert registry.statement_for(1) == (b"of a", b"")
    statement, known = registry.statement_for(9)
    assert (statement, len(known)) == (b"", 16)


def test_two_servers_with_one_record_add_up() -> None:
    """Each reads what the other has written: no round is lost, though some may count twice."""
    first, second = (ClientRegistry(None, CLAIM) for _ in range(2))
    record = first.to_text()
    for index in range(6):
        registry = (first, second)[index % 2]
        registry.load_text(record)
        registry.begin_round(CLAIM, [7])
        record = registry.to_text()  # before anything is requested
        registry.settle_round(CLAIM)
        registry.update(7, member="a", version=0, statement=b"")
        registry.load_text(record)
        record = registry.to_text()
    assert rounds_of(second, "a") >= 6
    first.load_text(record)
    assert rounds_of(first, "a") >= 6


@pytest.mark.parametrize("plan", [CENTRAL, GAUSSIAN])
def test_a_client_has_one_message_in_a_sum(plan: FlowerPlan, tmp_path: Path) -> None:
    """Two would move it twice as far as a trusted sum's claim says; a local claim is of each."""
    trusted: dict[str, Any] = {"trusted_server": True} if plan is CENTRAL else {}
    network = net.network_of(plan, 1, **trusted)
    for node_id in (2001, 2002):
        options: Any = {"account_file": tmp_path / "client.json", **trusted}
        network.join(1, plan, node_id=node_id, key=KEY, **options)
    strategy, arrays = net.strategy_of(plan, **trusted), FIRST
    for index in (1, 2):
        arrays = net.one_round(strategy, network, arrays, index)
        refused = dict(strategy.reports[-1].refused)
        assert len(refused) == (1 if plan is CENTRAL else 0)
        assert set(refused.values()) <= {"another node of its client is in the sum"}

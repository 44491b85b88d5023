"""A client's account: files that are lost, shared by two messages at once, or of another kind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.serverapp.strategy import FedAvg

from diffsketch.errors import DataError, MismatchError
from diffsketch.flower import ClientAccount, FlowerPlan, SketchStrategy
from diffsketch.flower.accounts import AccountFile, ClientLedger
from diffsketch.flower.records import NO_MODEL, Refusal, Request, member_digest
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import DIM, World, one_round, record_of, towards

KEY = SketchKey.from_integer(3)
SETTINGS = {"rows": 2, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0}
PLAN = FlowerPlan("sketch-gaussian", SETTINGS)
CENTRAL = FlowerPlan("sketch-gaussian", {**SETTINGS, "trust": "central"})
LOUDER = FlowerPlan("sketch-gaussian", {**SETTINGS, "noise_multiplier": 0.5})
FIRST = record_of(torch.zeros(DIM))
BUDGET = Budget(6.0, 1e-5)
SECRET = "ab" * 32


def claim_of(plan: FlowerPlan) -> Any:
    return plan.build(DIM).claim_for(1, KEY.seed(0))


CLAIM = claim_of(PLAN)


def allowed() -> int:
    count = 0
    while float(CLAIM.epsilon(delta=BUDGET.delta, rounds=count + 1)) <= BUDGET.epsilon:
        count += 1
    return count


def request(round_index: int = 0, *, statement: bytes = b"", known: bytes = b"") -> Request:
    return Request(
        b"", b"", round_index, "", b"", "arrays", NO_MODEL, 0, 1, [], [], b"", statement, known, 0.0
    )


def books(path: Path | None, *, key: bytes | None = None, budget: Budget | None = None) -> ClientLedger:
    return ClientLedger("0", budget, key, None if path is None else AccountFile(path))


def inside() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


def sent(strategy: SketchStrategy) -> int:
    return sum(len(report.present) for report in strategy.reports)


def test_a_file_that_is_lost_does_not_make_the_client_forget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFSKETCH_CLIENT_KEY", SECRET)
    path, record, total = tmp_path / "account.json", tmp_path / "record.json", 0
    for life in range(3):  # the node's disk is new each time, and the server keeps its record
        path.unlink(missing_ok=True)
        world = World()
        world.join(0, PLAN, key=KEY, budget=BUDGET, account_file=path, node_id=5000 + life)
        strategy = SketchStrategy(inside(), PLAN, key=KEY, record_file=record)
        strategy.start(world, FIRST, allowed())
        total += sent(strategy)
    assert total == allowed()


def test_without_a_statement_a_lost_file_counts_all_earlier_rounds(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    assert books(path).charge(CLAIM, request(), remembered=None).serial == 1
    path.unlink()
    assert books(path).charge(CLAIM, request(7), remembered=None).serial == 8
    path.unlink()
    known = member_digest("0")  # the server has a statement: it is waited for
    with pytest.raises(Refusal, match="needs its statement first"):
        books(path, key=b"k" * 32).after(CLAIM, request(7, known=known), remembered=None)
    path.unlink(missing_ok=True)
    path.write_text(ClientAccount.new(None).to_text())  # how a new client says that it is new
    assert books(path).charge(CLAIM, request(7), remembered=None).serial == 1
    path.unlink()
    remembered = ClientAccount.new(None).after(CLAIM, rounds=3)
    assert books(path).charge(CLAIM, request(7), remembered=remembered).serial == 4


def test_the_combined_of_what_is_known_counts(tmp_path: Path) -> None:
    key, path = b"k" * 32, tmp_path / "account.json"
    many, dear = ClientAccount.new(None).after(CLAIM, rounds=5), ClientAccount.new(None)
    dear = dear.after(claim_of(LOUDER), rounds=2)  # fewer messages that cost more
    for on_disk, stated in ((many, dear), (dear, many)):
        AccountFile(path).write(on_disk)
        asked = request(statement=stated.statement(key))
        after = books(path, key=key).charge(CLAIM, asked, remembered=None)
        assert after.serial == 6
        expected = float(dear.after(CLAIM).epsilon(1e-5))
        assert float(after.epsilon(1e-5)) == pytest.approx(expected, rel=1e-9)
        assert expected > float(many.after(CLAIM).epsilon(1e-5))
        kept = AccountFile(path).read(None)
        assert kept is not None
        assert kept.to_text() == after.to_text()


def at_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Messages that the account knows of after two at the same time.

    Each reader waits for the other for a while before it goes on, so that without a lock both have
    read before either writes. Locks are of open files, not of processes: two threads do.
    """
    both = threading.Barrier(2)
    read: Callable[[AccountFile, Budget | None], ClientAccount | None] = AccountFile.read

    def lingering(self: AccountFile, budget: Budget | None) -> ClientAccount | None:
        account = read(self, budget)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return account

    with monkeypatch.context() as patch:
        patch.setattr(AccountFile, "read", lingering)
        threads = [
            threading.Thread(target=lambda: books(path).charge(CLAIM, request(), remembered=None))
            for _ in range(2)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    found = AccountFile(path).read(None)
    assert found is not None
    return found.serial


def test_two_messages_at_once_are_both_paid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert at_once(tmp_path / "account.json", monkeypatch) == 2


def test_without_the_lock_one_of_them_would_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AccountFile, "locked", lambda _: nullcontext())
    path = tmp_path / "account.json"
    AccountFile(path).write(ClientAccount.new(None))
    replaced = threading.Lock()
    write: Callable[[AccountFile, ClientAccount], None] = AccountFile.write

    def one_by_one(self: AccountFile, account: ClientAccount) -> None:
        with replaced:  # both threads have the same temporary name
            write(self, account)

    monkeypatch.setattr(AccountFile, "write", one_by_one)
    assert at_once(path, monkeypatch) == 1


def test_a_lock_that_is_held_or_removed_is_an_error(tmp_path: Path) -> None:
    file = AccountFile(tmp_path / "account.json")
    held = pytest.raises(DataError, match="another process holds the lock")
    with file.locked(), held, file.locked(wait=0.02):
        pass
    with pytest.raises(DataError, match="was removed meanwhile"), file.locked():
        (tmp_path / ".account.json.lock").unlink()
    with file.locked():
        pass


def test_a_message_that_is_answered_while_another_trains_is_paid(tmp_path: Path) -> None:
    path, world, other = tmp_path / "account.json", World(), World()
    other.join(0, PLAN, key=KEY, budget=BUDGET, account_file=path)
    second = SketchStrategy(inside(), PLAN, key=KEY)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        one_round(second, other, FIRST, server_round)
        return towards(number, weights, server_round)

    world.join(0, PLAN, key=KEY, budget=BUDGET, account_file=path, train=train)
    first = SketchStrategy(inside(), PLAN, key=KEY)
    first.start(world, FIRST, allowed())
    assert sent(first) + sent(second) == allowed()
    kept = AccountFile(path).read(None)
    assert kept is not None
    assert kept.serial == allowed()


def test_an_account_of_another_trust_is_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    for plan, void in ((PLAN, False), (CENTRAL, True), (PLAN, False)):
        world = World()
        node = world.join(0, plan, key=KEY, account_file=path)
        strategy = SketchStrategy(inside(), plan, key=KEY)
        strategy.start(world, FIRST, 1)
        (report,) = strategy.reports
        assert bool(report.void) == void
        assert len(node.seen) == (not void)
        if void:
            (reason,) = report.refused.values()
            assert reason.startswith("account: this client's account is about another kind")
            assert str(tmp_path) not in reason
    local, central = (ClientAccount.new(None).after(claim_of(one)) for one in (PLAN, CENTRAL))
    with pytest.raises(MismatchError, match="accounts of one client"):
        ClientAccount.combined([local, central])

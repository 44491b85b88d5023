"""The books of both sides: accounts with a seal, members that come back, models that are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.flower import ClientAccount
from diffsketch.flower.accounts import ClientRegistry
from diffsketch.flower.records import cast_like, flat, length_of, moved
from diffsketch.flower.server import ModelHistory
from diffsketch.methods import SketchGaussian
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import WireError
from tests.flower.flower_world import DIM, record_of

CLAIM = SketchGaussian(DIM, 2, 8, clip=1.0, noise_multiplier=2.0).claim_for(1, HashSeed(bytes(32)))
KEY, OTHER = b"k" * 32, b"o" * 32


def test_an_account_comes_back_exactly() -> None:
    account = ClientAccount.new(None)
    for _ in range(7):
        account = account.after(CLAIM)
    again = ClientAccount.of_statement(account.statement(KEY), KEY, None)
    assert again.serial == 7
    assert again.to_text() == account.to_text()
    assert again.epsilon(1e-5) == account.epsilon(1e-5)


def test_a_restored_account_is_held_to_its_budget() -> None:
    account = ClientAccount.new(None).after(CLAIM, rounds=50)
    again = ClientAccount.of_statement(account.statement(KEY), KEY, Budget(1.0, 1e-5))
    with pytest.raises(BudgetExceeded):
        again.after(CLAIM)


@pytest.mark.parametrize("place", [0, 31, 32, 40, -1])
def test_a_changed_statement_is_refused(place: int) -> None:
    statement = bytearray(ClientAccount.new(None).after(CLAIM).statement(KEY))
    statement[place] ^= 1
    with pytest.raises(WireError, match="not made with its own key"):
        ClientAccount.of_statement(bytes(statement), KEY, None)


@pytest.mark.parametrize("length", [0, 31, 32, 100])
def test_a_cut_statement_is_refused(length: int) -> None:
    statement = ClientAccount.new(None).after(CLAIM).statement(KEY)
    with pytest.raises(WireError):
        ClientAccount.of_statement(statement[:length], KEY, None)


def test_a_statement_of_another_key_is_refused() -> None:
    with pytest.raises(WireError, match="own key"):
        ClientAccount.of_statement(ClientAccount.new(None).statement(OTHER), KEY, None)


def members(budget: Budget | None = None) -> ClientRegistry:
    return ClientRegistry(budget, CLAIM)


def test_accounts_grow_with_the_members() -> None:
    one = members()
    for start in range(5):
        one.charge(CLAIM, range(100 * start, 100 * start + 30))
    one.charge(CLAIM, [0])
    assert one.epsilon(1e-5).rounds == 2
    expected = CLAIM.epsilon(delta=1e-5, rounds=2)
    assert float(one.epsilon(1e-5)) == pytest.approx(float(expected), rel=1e-9)


def test_a_member_that_comes_back_under_another_id_has_one_account() -> None:
    one = members()
    one.charge(CLAIM, [1, 2])
    one.update(1, member="a", version=0, statement=b"")
    one.update(2, member="b", version=0, statement=b"")
    one.charge(CLAIM, [1, 2])
    one.charge(CLAIM, [3])  # a restarted "a", which does not answer at first
    assert one.rounds_of("a") == 2
    one.update(3, member="a", version=-1, statement=b"")
    assert one.rounds_of("a") == 3
    assert one.rounds_of("b") == 2
    one.charge(CLAIM, [3])
    assert float(one.epsilon(1e-5)) == pytest.approx(
        float(CLAIM.epsilon(delta=1e-5, rounds=4)), rel=1e-9
    )


def test_the_members_budget_is_never_exceeded() -> None:
    budget, one, rounds = Budget(6.0, 1e-5), members(Budget(6.0, 1e-5)), 0
    while float(CLAIM.epsilon(delta=1e-5, rounds=rounds + 1)) <= budget.epsilon:
        one.check_budget(CLAIM, [rounds, 50])
        one.charge(CLAIM, [rounds, 50])
        rounds += 1
    assert rounds >= 1
    with pytest.raises(BudgetExceeded):
        one.check_budget(CLAIM, [rounds, 50])
    with pytest.raises(BudgetExceeded):
        one.charge(CLAIM, [50])
    one.check_budget(CLAIM, [rounds])
    assert float(one.epsilon(1e-5)) <= budget.epsilon


def test_statements_are_handed_back_to_their_member_only() -> None:
    one = members()
    one.update(1, member="a", version=0, statement=b"of a")
    one.update(2, member="b", version=0, statement=b"of b")
    assert one.statement_for(1) == (b"of a", b"")
    statement, known = one.statement_for(9)
    assert statement == b""
    assert len(known) == 16


def arrays(value: float) -> ArrayRecord:
    return record_of(torch.full((DIM,), value))


def test_a_history_sends_totals_while_they_are_smaller() -> None:
    history = ModelHistory(arrays(0.0), keyed=True)
    size = sum(len(one.data) for one in arrays(0.0).values())
    total = bytes(size // 3)
    for index in range(5):
        history.add(total, 2 * index, arrays(float(index)))
    assert history.version == 5
    near, far, new = history.download(4), history.download(1), history.download(-1)
    assert (near.arrays, near.totals, [i for i, _ in near.totals], near.first) == (None, [total], [8], 5)
    assert far.base == new.base == 5
    assert far.totals == []


def test_a_history_after_a_leap_sends_the_model() -> None:
    history = ModelHistory(arrays(0.0), keyed=True)
    history.add(b"1", 0, arrays(1.0))
    history.replace(arrays(2.0))
    assert history.version == 2
    assert history.download(1).base == 2
    history.add(b"3", 5, arrays(3.0))
    assert history.download(2).rounds == [5]
    assert history.download(3).totals == []


def test_a_history_without_a_key_keeps_everything() -> None:
    first = arrays(0.0)
    history = ModelHistory(first, keyed=False)
    for index in range(40):
        history.add(bytes(1000), index, None)
    new = history.download(-1)
    assert (new.arrays, new.base, len(new.totals), new.digest) == (first, 0, 40, b"")
    assert history.download(38).rounds == [38, 39]
    with pytest.raises(ArgumentError, match="has no key"):
        history.replace(arrays(1.0))


def test_vectors_keep_types_and_leave_whole_numbers_alone() -> None:
    record = ArrayRecord(
        {
            "half": Array(np.ones((2, 2), np.float16)),
            "count": Array(np.array(5, np.int64)),
            "double": Array(np.zeros(3)),
        }
    )
    assert length_of(record) == 7
    after = moved(record, torch.arange(7.0))
    assert after["half"].numpy().tolist() == [[1, 2], [3, 4]]
    assert (after["half"].dtype, after["double"].dtype) == ("float16", "float64")
    assert int(after["count"].numpy()) == 5
    assert flat(after).tolist() == [1, 2, 3, 4, 4, 5, 6]
    odd = ArrayRecord({"count": Array(np.array(5.0)), **{n: record[n] for n in ("double", "half")}})
    assert list(cast_like(odd, record)) == ["half", "count", "double"]
    assert cast_like(odd, record)["count"].dtype == "int64"
    with pytest.raises(MismatchError, match="same names"):
        cast_like(ArrayRecord({"half": record["half"]}), record)
    with pytest.raises(ArgumentError, match="floating-point"):
        length_of(ArrayRecord({"count": record["count"]}))

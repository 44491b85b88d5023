"""A group of one: accounts in files, whatever checkpoint training goes on from; and scalers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from diffsketch.ddp.group import GroupMean, RankAccount
from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.methods import PlainSketch, SketchGaussian
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting.account import BudgetExceeded
from diffsketch.sketch import SketchKey
from tests.ddp.processes import alone

DIM, KEY, BUDGET = 40, SketchKey.from_integer(3), Budget(8.0, 1e-5)
METHOD = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=2.0)
SKETCH = PlainSketch(DIM, 1, 8)
CLAIM = METHOD.claim_for(1, KEY.seed(0))


@pytest.fixture(scope="module", autouse=True)
def _alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with alone(tmp_path_factory.mktemp("group")):
        yield


def mean_of(path: Path | None = None, **options: Any) -> GroupMean:
    return GroupMean(METHOD, key=KEY, **{"budget": BUDGET, "account_file": path, **options})


def rounds_of(mean: GroupMean, count: int) -> None:
    for _ in range(count):
        mean.mean(torch.ones(DIM))


def test_lives_that_go_back_to_one_checkpoint_are_all_counted(tmp_path: Path) -> None:
    path = tmp_path / "account.json"
    first = mean_of(path)
    rounds_of(first, 1)
    state = first.state_dict()
    for life in range(2):
        mean = mean_of(path)
        mean.load_state_dict(state)
        assert mean.round_index == 1
        rounds_of(mean, 3)
        assert mean.epsilon(1e-5).rounds == 1 + 3 * (life + 1)
    straight = mean_of()
    rounds_of(straight, 7)
    assert float(mean.epsilon(1e-5)) == pytest.approx(float(straight.epsilon(1e-5)), rel=1e-6)
    # Without the file the second life is not counted: what the file is for.
    forgetful = mean_of()
    forgetful.load_state_dict(state)
    rounds_of(forgetful, 3)
    assert forgetful.epsilon(1e-5).rounds == 4


def test_the_file_stops_before_anything_is_sent(tmp_path: Path) -> None:
    path, sent = tmp_path / "account.json", 0
    state, stopped = mean_of(path).state_dict(), False
    while not stopped and sent < 40:  # lives of two rounds
        mean = mean_of(path)
        mean.load_state_dict(state)
        for _ in range(2):
            try:
                rounds_of(mean, 1)
            except BudgetExceeded:
                stopped = True
                break
            sent += 1
    assert stopped
    assert 2 < sent < 40
    found = mean_of(path).epsilon(1e-5)
    assert found.rounds == sent
    assert float(found) <= BUDGET.epsilon


def test_an_object_remembers_what_it_has_sent_itself() -> None:
    mean = mean_of()
    state = mean.state_dict()
    for life in range(3):
        mean.load_state_dict(state)
        rounds_of(mean, 2)
        assert mean.epsilon(1e-5).rounds == 2 * (life + 1)


def test_rounds_of_a_state_that_a_new_file_lacks_are_charged(tmp_path: Path) -> None:
    first = mean_of()
    rounds_of(first, 3)
    later = mean_of(tmp_path / "account.json")
    later.load_state_dict(first.state_dict())
    assert later.epsilon(1e-5).rounds == 3
    later.load_state_dict(first.state_dict())  # not twice
    assert later.epsilon(1e-5).rounds == 3


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    path, own = tmp_path / "account.json", tmp_path / "account-0.json"
    mean_of(path)
    assert own.exists()
    assert not path.exists()
    with pytest.raises(MismatchError, match="budget must be that of"):
        mean_of(path, budget=Budget(9.0, 1e-5))
    with pytest.raises(ArgumentError, match="account_file must not be given where nothing is"):
        GroupMean(PlainSketch(DIM, 1, 8), key=KEY, account_file=tmp_path / "other.json")
    own.write_text("{}")
    with pytest.raises(DataError, match="is not a whole ledger"):
        mean_of(path)


def test_an_account_that_cannot_be_written_sends_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "books"
    folder.mkdir()
    mean = mean_of(folder / "account.json")
    for one in folder.iterdir():
        one.unlink()
    folder.rmdir()
    with pytest.raises(DataError):
        rounds_of(mean, 1)
    assert mean.round_index == 0


def test_an_account_counts_without_a_budget(tmp_path: Path) -> None:
    account = RankAccount(tmp_path / "a.json", CLAIM, None)
    account.charge()
    account.take_over(1, account.name)
    assert account.ledger.epsilon(1e-5).rounds == 1
    account.take_over(4, account.name)
    again = RankAccount(tmp_path / "a.json", CLAIM, None)
    assert (again.name, again.ledger.epsilon(1e-5).rounds) == (account.name, 4)
    again.take_over(3, "another file")
    assert again.ledger.epsilon(1e-5).rounds == 7


@pytest.mark.parametrize("with_file", [True, False])
def test_rounds_of_two_objects_are_never_taken_for_each_other(
    tmp_path: Path, with_file: bool
) -> None:
    """Two that each sent three: a state of the one is not what the other has sent."""
    files = [tmp_path / f"{name}.json" if with_file else None for name in ("a", "b")]
    one, two = (GroupMean(METHOD, key=KEY, account_file=file) for file in files)
    for mean in (one, two):
        rounds_of(mean, 3)
    with pytest.raises(MismatchError, match="before this mean has sent anything, or be its own"):
        two.load_state_dict(one.state_dict())
    assert two.epsilon(1e-5).rounds == two.round_index == 3
    fresh = GroupMean(METHOD, key=KEY, account_file=files[1])
    fresh.load_state_dict(one.state_dict())
    # The second file has the rounds of the second object already.
    assert fresh.epsilon(1e-5).rounds == (6 if with_file else 3)
    early = fresh.state_dict()
    rounds_of(fresh, 2)
    fresh.load_state_dict(early)
    assert fresh.epsilon(1e-5).rounds == (8 if with_file else 5)


class Scale:
    """A scaler without overflows to follow."""

    value = 64.0

    def get_scale(self) -> float:
        return self.value


def test_a_scaler_that_follows_overflows_is_refused_where_none_is_seen() -> None:
    scaler = torch.amp.GradScaler("cpu")
    GroupMean(SKETCH, key=KEY, scaler=scaler)
    with pytest.raises(ArgumentError, match=r"enabled GradScaler\. Use bfloat16"):
        mean_of(scaler=scaler)
    mean_of(scaler=torch.amp.GradScaler("cpu", enabled=False))


def test_a_scale_stays_where_the_claim_is_proven() -> None:
    for method in (METHOD, SKETCH):
        scale = Scale()
        mean = GroupMean(method, key=KEY, scaler=scale)
        rounds_of(mean, 2)
        scale.value = 32.0
        if method is SKETCH:
            rounds_of(mean, 1)
            continue
        with pytest.raises(ArgumentError, match=r"must keep its scale .* got 32 after 64"):
            rounds_of(mean, 1)

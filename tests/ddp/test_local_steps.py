"""Local steps in real processes: the outer steps by hand, machines of several ranks, late ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed import HashStore  # type: ignore[attr-defined]

from diffsketch.ddp import GroupMean, HookState, LocalSteps, StoreGroup, sketch_state
from diffsketch.ddp.store import StoreMean
from diffsketch.ddp.weights import bits_digest
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import PlainSketch, SketchGaussian, Uncompressed
from diffsketch.sketch import SketchKey
from tests.ddp.local_checks import CHECKS, local_of, make_model, moved, pair_checks, weights_of
from tests.ddp.machine_checks import NAMES, four_checks
from tests.ddp.processes import Results, alone, check_outcomes, run_checks
from tests.helpers.refusals import refused

slow = pytest.mark.slow  # processes are started
KEY = SketchKey.from_integer(1)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run_checks(partial(pair_checks, str(tmp_path_factory.mktemp("accounts"))))


@pytest.fixture(scope="module")
def four() -> Results:
    return run_checks(four_checks, world=4)


@slow
@pytest.mark.parametrize("name", [*CHECKS, "private"])
def test_two_ranks(name: str, pair: Results) -> None:
    check_outcomes(pair[name])


@slow
@pytest.mark.parametrize("name", NAMES)
def test_four_ranks(name: str, four: Results) -> None:
    check_outcomes(four[name])


# Ranks of one process, in a store of its own.


def two(**options: Any) -> tuple[StoreMean, StoreMean]:
    store = HashStore()
    options = {"world": 2, "min_ranks": 1, "wait": 0.05, "timeout": 0.5, **options}
    first, second = (
        StoreMean(Uncompressed(3), key=KEY, group=StoreGroup(store, rank=rank, **options))
        for rank in range(2)
    )
    return first, second


ONES = torch.ones(3)


def test_a_late_rank_gets_the_same_mean() -> None:
    first, second = two()
    waits = first.begin(ONES), second.begin(3 * ONES)
    assert [wait().tolist() for wait in waits] == [[2.0] * 3] * 2
    assert first.mean(ONES).tolist() == [1.0] * 3  # alone
    assert second.awaited
    missed = second.missed()
    assert missed is not None
    assert missed.tolist() == [1.0] * 3
    assert not second.present
    assert second.missed() is None
    assert first.round_index == second.round_index == 2


def test_a_message_that_comes_too_late_is_not_in_the_mean() -> None:
    first, second = two()
    alone_mean = first.begin(ONES)
    assert alone_mean().tolist() == [1.0] * 3
    assert second.mean(5 * ONES).tolist() == [1.0] * 3
    assert (first.present, second.present) == (True, False)


def test_a_rank_that_dies_after_it_has_decided_does_not_stop_the_others() -> None:
    first, second = two()
    first.begin(ONES)
    wait = second.begin(3 * ONES)
    assert first.store.decide(0)  # and nothing more
    assert wait().tolist() == [2.0] * 3


def test_a_run_is_over_when_enough_have_finished() -> None:
    first, second = two()
    assert list(first.rest()) == []
    assert second.missed() is None
    assert second.over
    refused(MismatchError, "the run ended before round 0: 1 ranks have called", second.mean, ONES)
    first, second = two(timeout=0.1)
    first.store.min_ranks = 2
    refused(MismatchError, "round 0 must have min_ranks=2 within 0", first.mean, ONES)


def test_no_step_follows_the_end() -> None:
    group = StoreGroup(HashStore(), rank=0, world=1, min_ranks=1)
    local = LocalSteps(make_model(), every=2, seed=1, group=group)
    local.step()
    local.finish()
    refused(ArgumentError, "step must not follow finish with a StoreGroup, got ", local.step)
    assert local.steps == 1


def test_a_second_run_in_a_used_store_is_refused() -> None:
    store = HashStore()
    group = StoreGroup(store, rank=0, world=1, min_ranks=1)
    model = make_model()
    local = LocalSteps(model, every=1, seed=1, group=group)
    moved(model, local, 0, range(3))
    before = weights_of(model)
    local.finish()
    local.finish()
    assert torch.equal(weights_of(model), before)  # nothing was left to exchange
    state, again = local.state_dict(), make_model()
    another = LocalSteps(again, every=1, seed=1, group=group)
    with pytest.raises(MismatchError, match="the store must not have a run that is over, got one "):
        moved(again, another, 0, range(1))
    another.load_state_dict(state)
    with pytest.warns(UserWarning, match="step 4: the run is over, as enough ranks") as caught:
        moved(again, another, 0, range(2))
    assert len(caught) == 1
    another.finish()
    assert torch.equal(weights_of(again), before)


def test_the_state_of_another_rank_does_not_know_what_was_sent() -> None:
    method = SketchGaussian(3, 1, 2, clip=1.0, noise_multiplier=5.0)
    store = HashStore()
    groups = [StoreGroup(store, rank=rank, world=2, min_ranks=1, wait=0.05) for rank in range(2)]
    first, second = (StoreMean(method, key=KEY, group=group) for group in groups)
    first.mean(ONES)
    with pytest.raises(ArgumentError, match="account_file must be given to go on from the state"):
        second.load_state_dict(first.state_dict())
    assert second.round_index == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"min_ranks": 3}, "min_ranks must be in 1..2, got min_ranks=3"),
        ({"wait": 0.0}, "wait must be a number > 0"),
        ({"timeout": 0.01}, "timeout must be >= wait=0.05"),
        ({"keep": 1}, "keep must be >= 2"),
    ],
)
def test_groups_that_make_no_sense(options: dict[str, Any], text: str) -> None:
    refused(ArgumentError, text, two, **options)


def test_a_digest_sees_every_bit() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    found = {bits_digest([values])}
    for index in range(100):
        for bit in (0, 17, 31):
            other = values.clone()
            other.view(torch.int32)[index] ^= 1 << bit if bit < 31 else -(1 << 31)
            found.add(bits_digest([other]))
    both = values.clone()
    both[3], both[4] = -both[3], -both[4]
    found |= {bits_digest([both]), bits_digest([values.flip(0)]), bits_digest([values.double()])}
    assert len(found) == 304
    assert bits_digest([values]) == bits_digest([values.clone()])


@pytest.fixture
def _alone(tmp_path: Any) -> Iterator[None]:
    with alone(tmp_path):
        yield


@pytest.mark.usefixtures("_alone")
def test_nothing_of_a_group_is_pickled() -> None:
    mean = GroupMean(PlainSketch(208, 1, 8), key=KEY)
    model = make_model()
    for one in (mean, HookState(model, mean), local_of(model)):
        for save in (pickle.dumps, copy.deepcopy):
            refused(TypeError, rf"{type(one).__name__} must not be pickled .*state_", save, one)
    state = sketch_state(model, "sketch", compression=4, seed=1)
    assert pickle.loads(pickle.dumps(state.state_dict()))["round_index"] == 0  # noqa: S301


@pytest.mark.usefixtures("_alone")
def test_a_compression_beyond_what_control_takes_is_told() -> None:
    told = "compression=200 leaves too few of 832 bytes for cells beside what 1 ranks send for"
    with pytest.warns(UserWarning, match=f"{told} control: it is 69x") as found:
        sketch_state(make_model(), "sketch", compression=200, seed=1)
    assert found[0].filename == __file__  # the line of the user
    with pytest.warns(UserWarning, match=told) as found:
        LocalSteps(make_model(), every=3, seed=1, compression=200)
    assert found[0].filename == __file__
    local_of(make_model(), compression=50)  # and no warning


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="call init_process_group before"):
        LocalSteps(nn.Linear(2, 2), every=3, seed=1)

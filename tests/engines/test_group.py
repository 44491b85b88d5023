"""A mean over a group of real processes: the simulation's, and no process is left waiting."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from diffsketch.engines.agreement import (
    Report,
    Status,
    check_reports,
    control_cells,
    read_reports,
)
from diffsketch.engines.group import GroupMean
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import (
    DiffSketch,
    Method,
    PlainSketch,
    RawLaplace,
    SketchGaussian,
    SketchSkellam,
    Uncompressed,
    private_mean,
)
from diffsketch.privacy import Budget, NoiseKey, SecureNoise
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from tests.engines.contract import CASES, Case, applied, first_weights, gradient, simulated
from tests.engines.processes import WORLD, Checks, Results, error_of, run_checks

DIM = 40
KEY, NOISE = SketchKey.from_integer(3), NoiseKey.from_integer(4)
SKETCH = PlainSketch(DIM, 1, 8)
LOCAL = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=0.5)
CENTRAL = SketchGaussian(DIM, 1, 8, clip=1.0, noise_multiplier=0.5, trust=Trust.CENTRAL)


def vector_of(rank: int, round_index: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(100 * rank + round_index)
    return torch.randn(DIM, generator=generator)


def mean_of(method: Method = SKETCH, **options: Any) -> GroupMean:
    return GroupMean(method, **{"key": KEY, **options})


def rounds_of(mean: GroupMean, rank: int, count: int) -> Tensor:
    return torch.stack([mean.mean(vector_of(rank, mean.round_index)) for _ in range(count)])


def contract(case: Case, rank: int) -> Tensor:
    mean = GroupMean(case.method, key=case.key, noise=case.noise_key, trusted_group=True)
    weights = first_weights()
    for index in range(4):
        weights = applied(weights, mean.mean(gradient(weights, rank, index)))
    return weights


def starting_apart(rank: int) -> list[str]:
    """Rank 1 has something else; all of them must raise, and name it."""
    second = rank == 1
    tries = (
        lambda: mean_of(key=SketchKey.from_integer(4) if second else KEY),
        lambda: mean_of(PlainSketch(DIM, 1, 9) if second else SKETCH),
        lambda: mean_of(Uncompressed(DIM) if second else SKETCH),
        lambda: mean_of(LOCAL, noise=NoiseKey.from_integer(5) if second else NOISE),
        lambda: mean_of(LOCAL, budget=Budget(1.0 + rank, 1e-5)),
        lambda: mean_of(error_feedback=second),
        lambda: mean_of(CENTRAL if second else SKETCH),
    )
    return [error_of(one) for one in tries]


def refused(rank: int) -> list[str]:
    """What no rank may have."""
    del rank
    other = SketchSkellam(DIM, 1, 8, clip=1.0, noise_multiplier=1.0, cohort=3, trust=Trust.LOCAL)
    tries = (
        lambda: mean_of(CENTRAL),
        lambda: mean_of(SketchSkellam(DIM, 1, 8, clip=1.0, noise_multiplier=1.0, cohort=WORLD)),
        lambda: mean_of(budget=Budget(1.0, 1e-5)),
        lambda: mean_of(CENTRAL, trusted_group=True, noise=SecureNoise()),
        lambda: mean_of(DiffSketch(DIM, 1, 8, per_round=1.0), error_feedback=True),
        lambda: mean_of(Uncompressed(DIM), error_feedback=True),
        lambda: mean_of(PlainSketch(DIM, 3, 8, combine="median"), error_feedback=True),
        lambda: mean_of(other),
        lambda: mean_of(noise=7),
    )
    return [error_of(one) for one in tries]


def rounds_apart(rank: int) -> dict[str, Any]:
    mean = mean_of()
    if rank == 1:
        mean.load_state_dict({**mean.state_dict(), "round_index": 5})
    rounds = error_of(lambda: mean.mean(vector_of(rank)))
    layout = mean_of()
    layouts = error_of(lambda: layout.mean(vector_of(rank), layout=f"rank {rank}"))
    return {"rounds": rounds, "layouts": layouts, "after": layout.mean(vector_of(rank))}


def planted(rank: int) -> dict[str, Any]:
    """Rank 1 fails before it sends; then both go on."""
    mean = mean_of(LOCAL, noise=NOISE, budget=Budget(1000.0, 1e-5))
    vector = vector_of(rank)
    short = error_of(lambda: mean.mean(vector[:5] if rank == 1 else vector))
    index = mean.round_index
    nobody = error_of(lambda: mean.mean(vector[:5]))
    return {
        "short": short,
        "nobody": nobody,
        "rounds": [index, mean.round_index],
        "paid": mean.epsilon(1e-5).rounds,
        "after": mean.mean(vector),
    }


def not_finite(rank: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    vector = vector_of(rank)
    if rank == 1:
        vector[3] = torch.inf
    for name, method in (("sketch", SKETCH), ("proven", LOCAL)):
        mean = mean_of(method, noise=NOISE, error_feedback=True, immediate=1.0)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found[name] = mean.mean(vector)
        found[f"{name} warned"] = [str(one.message) for one in caught]
        found[f"{name} error"] = mean.error_norm
        found[f"{name} next"] = mean.mean(vector_of(rank, 1))
    huge = mean_of(Uncompressed(DIM))
    found["sum"] = huge.mean(torch.full((DIM,), 3e38))
    return found


def budget(rank: int) -> dict[str, Any]:
    mean = mean_of(LOCAL, budget=Budget(12.0, 1e-5))
    error = ""
    for _ in range(50):
        error = error_of(lambda: mean.mean(vector_of(rank)))
        if error:
            break
    epsilon = mean.epsilon(1e-5)
    return {
        "error": error,
        "index": mean.round_index,
        "epsilon": float(epsilon),
        "words": str(epsilon),
        "again": error_of(lambda: mean.mean(vector_of(rank))),
    }


def noises(rank: int) -> dict[str, Any]:
    """Groups of one: the mean of zeros is the rank's own noise."""
    groups = [dist.new_group([one]) for one in range(WORLD)]
    method, zeros = RawLaplace(DIM, per_round=1.0, clip=1.0), torch.zeros(DIM)
    own = mean_of(method, group=groups[rank])
    again = mean_of(method, group=groups[rank])
    given = mean_of(method, group=groups[rank], noise=NOISE)
    return {
        "own": [own.mean(zeros), own.mean(zeros), again.mean(zeros)],
        "given": given.mean(zeros),
    }


def central(rank: int) -> list[Tensor]:
    found = []
    for options in ({"noise": NOISE}, {}, {}):
        mean = mean_of(CENTRAL, trusted_group=True, **options)
        found.append(mean.mean(vector_of(rank)))
    return found


def states(rank: int) -> dict[str, Any]:
    options: dict[str, Any] = {"noise": NOISE, "error_feedback": True}
    options["budget"] = Budget(10_000.0, 1e-5)
    whole = mean_of(LOCAL, **options)
    expected = rounds_of(whole, rank, 6)
    half = mean_of(LOCAL, **options)
    first = rounds_of(half, rank, 3)
    state = half.state_dict()
    loaded = mean_of(LOCAL, **options)
    loaded.load_state_dict(state)
    second = rounds_of(loaded, rank, 3)
    forgetful = mean_of(LOCAL, **options)
    forgetful.load_state_dict({k: v for k, v in state.items() if k != "error"})
    other = mean_of(PlainSketch(DIM, 1, 8), error_feedback=True)
    gathered: list[Any] = [None] * WORLD
    dist.all_gather_object(gathered, state)
    return {
        "expected": expected,
        "found": torch.cat([first, second]),
        "without error": rounds_of(forgetful, rank, 3),
        "epsilon": [float(whole.epsilon(1e-5)), float(loaded.epsilon(1e-5))],
        "norms": [whole.error_norm, loaded.error_norm],
        "other": error_of(lambda: other.load_state_dict(state)),
        "rank": error_of(lambda: loaded.load_state_dict(gathered[1 - rank])),
        "damaged": error_of(lambda: loaded.load_state_dict({**state, "error": torch.zeros(3)})),
    }


class Scale:
    def __init__(self, value: float) -> None:
        self.value = value

    def get_scale(self) -> float:
        return self.value


def scaled(rank: int) -> dict[str, Any]:
    plain = mean_of(LOCAL, noise=NOISE).mean(vector_of(rank))
    same = mean_of(LOCAL, noise=NOISE, scaler=Scale(1024.0)).mean(1024 * vector_of(rank))
    apart = mean_of(LOCAL, noise=NOISE, scaler=Scale(2.0**rank))
    return {
        "plain": plain,
        "scaled": same,
        "apart": error_of(lambda: apart.mean(vector_of(rank))),
        "bytes": apart.payload_bytes,
    }


def checks() -> Checks:
    each = {f"contract {case.name}": partial(contract, case) for case in CASES}
    each |= {f"other noise {case.name}": partial(contract, Case(case.name, 6)) for case in CASES}
    own = (
        starting_apart, refused, rounds_apart, planted, not_finite, budget, noises, central,
        states, scaled,
    )  # fmt: skip
    return {**each, **{one.__name__: one for one in own}}


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_simulation_and_the_group_agree(case: Case, results: Results) -> None:
    expected = simulated(case)
    for weights in results[f"contract {case.name}"]:
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(*results[f"contract {case.name}"])
    # The comparison would see other noise; these two draw none.
    same = torch.allclose(results[f"other noise {case.name}"][0], expected, rtol=1e-3)
    assert same == (case.name in ("none", "sketch"))


def test_ranks_that_start_apart_raise_together(results: Results) -> None:
    names = ("key", "method", "method", "noise", "budget", "error_feedback")
    for own, other in zip(*results["starting_apart"], strict=True):
        assert own
        assert other
    for rank, other in ((0, 1), (1, 0)):
        found = results["starting_apart"][rank]
        for name, text in zip(names, found[:-1], strict=True):
            expected = f"the same {name}, but rank {other} differs from rank {rank}"
            assert text.startswith("MismatchError"), text
            assert expected in text
    assert results["starting_apart"][0][-1] == (
        "MismatchError: rank 1 failed to start, see the error there"
    )
    assert results["starting_apart"][1][-1].startswith("ArgumentError: trusted_group must be True")


def test_what_an_all_reduce_cannot_hold_is_refused(results: Results) -> None:
    expected = (
        "ArgumentError: trusted_group must be True",
        "ArgumentError: trusted_group must be True",
        "ArgumentError: budget must not be given where nothing is proven",
        "ArgumentError: noise must be a key",
        "ArgumentError: error_feedback must be off for method='diffsketch': its claim is about one",
        "ArgumentError: error_feedback must be off for methods other than",
        "ArgumentError: combine must be mean with error_feedback",
        "ArgumentError: cohort must be 2, the number of ranks, got cohort=3",
        "ArgumentError: noise must be a NoiseKey or a Noise, got int",
    )
    for rank in range(WORLD):
        for text, start in zip(results["refused"][rank], expected, strict=True):
            assert text.startswith(start), text


def test_rounds_and_layouts_that_differ_are_found(results: Results) -> None:
    for rank in range(WORLD):
        found = results["rounds_apart"][rank]
        assert found["rounds"].startswith("MismatchError: all ranks must be in the same round")
        assert "rank 0 is in round 0, rank 1 is in round 5" in found["rounds"]
        assert f"rank {1 - rank} differs from rank {rank}" in found["layouts"]
    assert torch.equal(*(one["after"] for one in results["rounds_apart"]))


def test_a_rank_that_fails_does_not_leave_the_others_waiting(results: Results) -> None:
    zero, one = results["planted"]
    assert zero["short"] == "MismatchError: round 0 is void: rank 1 failed, see the error there"
    assert one["short"] == "MismatchError: vector must have the shape (40,), got (5,)"
    # Rank 0 has sent a message: the round is used up for both, and paid for by rank 0 alone.
    assert zero["rounds"] == one["rounds"] == [1, 1]
    assert (zero["paid"], one["paid"]) == (1, 0)
    assert zero["nobody"] == one["nobody"] == one["short"]
    vectors = torch.stack([vector_of(rank) for rank in range(WORLD)])
    expected = private_mean(vectors, LOCAL, key=KEY, noise=NOISE, round_index=1).mean
    for found in (zero, one):
        torch.testing.assert_close(found["after"], expected, rtol=1e-5, atol=1e-6)


def test_vectors_that_are_not_finite(results: Results) -> None:
    zero, one = results["not_finite"]
    assert zero["sketch"].isnan().all()
    assert one["sketch"].isnan().all()
    vectors = torch.stack([vector_of(0), torch.zeros(DIM)])
    expected = private_mean(vectors, LOCAL, key=KEY, noise=NOISE).mean
    torch.testing.assert_close(zero["proven"], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(zero["proven"], one["proven"])
    # Only its own rank is told, and only finite vectors are remembered.
    assert zero["sketch warned"] == zero["proven warned"] == []
    assert "makes the mean NaN on all ranks" in one["sketch warned"][0]
    assert "counts as zeros, with its noise" in one["proven warned"][0]
    assert zero["sketch error"] == one["sketch error"] == one["proven error"] == 0
    assert zero["proven error"] > 0
    for name in ("sketch next", "proven next"):
        assert zero[name].isfinite().all()
    assert zero["sum"].isnan().all()


def test_the_budget_stops_all_ranks_before_they_send(results: Results) -> None:
    zero, one = results["budget"]
    assert zero == one
    assert zero["error"].startswith("BudgetExceeded: 1 more round would bring epsilon to")
    assert zero["again"] == zero["error"]
    assert 1 <= zero["index"] < 50
    assert f"over {zero['index']} round" in zero["words"]
    assert "proven; client unit, replace, local trust" in zero["words"]
    assert zero["epsilon"] <= 12.0


def test_every_rank_has_noise_of_its_own(results: Results) -> None:
    zero, one = results["noises"]
    drawn = torch.stack([*zero["own"], *one["own"]])
    assert len({tuple(row) for row in drawn.tolist()}) == len(drawn) == 6
    # With one key, and alone in their groups, both are worker 0: equality would be seen.
    assert torch.equal(zero["given"], one["given"])


def test_a_trusted_group_adds_the_noise_once(results: Results) -> None:
    zero, one = results["central"]
    vectors = torch.stack([vector_of(rank) for rank in range(WORLD)])
    expected = private_mean(vectors, CENTRAL, key=KEY, noise=NOISE).mean
    for found in (zero, one):
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(torch.stack(zero), torch.stack(one))
    assert not torch.allclose(zero[1], zero[2])


def test_a_state_that_is_loaded_continues_to_the_same_bits(results: Results) -> None:
    for rank, found in enumerate(results["states"]):
        assert torch.equal(found["found"], found["expected"])
        assert not torch.allclose(found["without error"], found["expected"][3:])
        assert found["epsilon"][0] == found["epsilon"][1]
        assert found["norms"][0] == found["norms"][1] > 0
        assert "method is PlainSketch" in found["other"]
        assert f"rank is {rank} here and was {1 - rank}" in found["rank"]
        assert "error must have the shape (40,), got (3,)" in found["damaged"]


def test_a_scaler_changes_neither_clips_nor_noise(results: Results) -> None:
    for found in results["scaled"]:
        torch.testing.assert_close(found["scaled"], 1024 * found["plain"])
        assert found["apart"].startswith("MismatchError: all ranks must have the same seed")
        assert found["bytes"] == 4 * (8 + 2 * WORLD)


@pytest.mark.parametrize("kind", [torch.float32, torch.int64])
@pytest.mark.parametrize("status", list(Status))
def test_control_cells_survive_the_sum(kind: torch.dtype, status: Status) -> None:
    like = torch.zeros(0, dtype=kind)
    reports = [Report((1 << 24) - 1, 0), Report(7, (1 << 24) - 1, status)]
    cells = [
        control_cells(report, rank=rank, world=2, like=like) for rank, report in enumerate(reports)
    ]
    assert read_reports(cells[0] + cells[1]) == reports
    assert read_reports(cells[0]) == [reports[0], None]
    assert read_reports(2 * cells[0])[0] is None


def test_reports_that_differ_are_named() -> None:
    own = Report(3, 9)
    check_reports([own, own], own, rank=0)
    bad: tuple[tuple[Report | None, str], ...] = (
        (None, "rank 1 cannot be understood"),
        (Report(4, 9), "rank 1 is in round 4"),
        (Report(3, 8), "rank 1 differs from rank 0"),
        (Report(3, 9, Status.FAILED), "rank 1 failed"),
    )
    for other, text in bad:
        with pytest.raises(MismatchError, match=text):
            check_reports([own, other], own, rank=0)


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group"):
        mean_of()

"""A mean over a group of real processes: the simulation's, and no process is left waiting."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods import private_mean
from tests.ddp.group_checks import CENTRAL, DIM, KEY, LOCAL, checks, mean_of, vector_of
from tests.ddp.processes import WORLD, Results, run_checks
from tests.helpers.contract import CASES, Case, simulated
from tests.helpers.silent import silence

pytestmark = [  # processes are started, and vectors are longer than the clip
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*and were clipped:UserWarning"),
]


@pytest.fixture(scope="module")
def results() -> Results:
    return run_checks(checks)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_simulation_and_the_group_agree(case: Case, results: Results) -> None:
    """Without noise to the bit, and with noise it is another one."""
    with silence():
        expected = simulated(case)
    for weights in results[f"contract {case.name}"]:
        torch.testing.assert_close(weights, expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(*results[f"contract {case.name}"])
    # The comparison would see noise; these two draw none.
    same = torch.allclose(results[f"noised {case.name}"][0], expected, rtol=1e-3)
    assert same == (case.name in ("none", "sketch"))
    assert torch.equal(*results[f"noised {case.name}"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_means_can_be_written_over_their_vectors(case: Case, results: Results) -> None:
    for found in results[f"written {case.name}"]:
        assert found["same"] == [True, True]
        assert torch.equal(found["found"], found["expected"])
        assert not torch.equal(*found["found"])  # or nothing was compared


def test_ranks_that_start_apart_raise_together(results: Results) -> None:
    names = ("key", "method", "method", "budget", "error_feedback")
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
        "ArgumentError: method='diffsketch-proven' must not be sent: its proof is about real",
        "ArgumentError: error_feedback must be off for method='diffsketch': its claim is about one",
        "ArgumentError: error_feedback must be off for methods other than",
        "ArgumentError: combine must be mean with error_feedback",
        "ArgumentError: cohort must be 2, the number of ranks, got cohort=3",
    )
    for rank in range(WORLD):
        for text, start in zip(results["refused"][rank], expected, strict=True):
            assert text.startswith(start), text


def test_rounds_and_layouts_that_differ_are_found(results: Results) -> None:
    for rank in range(WORLD):
        found = results["rounds_apart"][rank]
        expected = f"all ranks must have the same round_index, but rank {1 - rank} differs"
        assert found["loaded"].startswith(f"MismatchError: {expected}")
        assert found["index"] == 0
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
    with silence():
        expected = private_mean(vectors, LOCAL, key=KEY, round_index=1).mean
    for found in (zero, one):
        torch.testing.assert_close(found["after"], expected, rtol=1e-5, atol=1e-6)


def test_memory_that_does_not_fit_is_found_before_anything_is_sent(results: Results) -> None:
    zero, one = results["nowhere_to_write"]
    for index, text in enumerate(zero["errors"]):
        assert text == f"MismatchError: round {index} is void: rank 1 failed, see the error there"
    assert one["errors"] == [
        "MismatchError: out must have the shape (40,), got (41,)",
        "ArgumentError: out must be a float32 tensor, got torch.float64",
        "ArgumentError: out must be contiguous, got a stride of 2",
    ]
    assert torch.equal(zero["after"], one["after"])


def test_vectors_that_are_not_finite(results: Results) -> None:
    zero, one = results["not_finite"]
    assert zero["sketch"].isnan().all()
    assert one["sketch"].isnan().all()
    vectors = torch.stack([vector_of(0), torch.zeros(DIM)])
    with silence():
        expected = private_mean(vectors, LOCAL, key=KEY).mean
    torch.testing.assert_close(zero["proven"], expected, rtol=1e-5, atol=1e-6)
    assert torch.equal(zero["proven"], one["proven"])
    # Only its own rank is told, and only finite vectors are remembered.
    assert zero["sketch warned"] == zero["proven warned"] == one["proven warned"] == []
    assert zero["sketch logged"] == zero["proven logged"] == one["sketch logged"] == []
    assert "makes the mean NaN on all ranks" in one["sketch warned"][0]
    assert "counts as zeros, with its noise" in one["proven logged"][0]
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
    assert len({tuple(row) for row in drawn.tolist()}) == len(drawn) == 10
    for rows in drawn.T.tolist():  # and no number of one is that of another, but by chance
        assert len(set(rows)) > 5


def test_a_trusted_group_adds_the_noise_once(results: Results) -> None:
    """The same for all ranks, other noise in every round, also after going back."""
    vectors = torch.stack([vector_of(rank) for rank in range(WORLD)])
    with silence():
        expected = private_mean(vectors, CENTRAL, key=KEY).mean
    for found in results["silent central"]:
        torch.testing.assert_close(found[0], expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(found[0], found[3])
    zero, one = results["central"]
    assert torch.equal(zero, one)
    assert len({tuple(row) for row in zero.tolist()}) == 4


def test_a_state_that_is_loaded_continues_to_the_same_bits(results: Results) -> None:
    for rank, found in enumerate(results["states"]):
        assert torch.equal(found["found"], found["expected"])
        assert not torch.allclose(found["without error"], found["expected"][3:])
        assert found["epsilon"][0] == found["epsilon"][1]
        assert found["norms"][0] == found["norms"][1] > 0
        assert "method is PlainSketch" in found["other"]
        assert f"rank is {rank} here and was {1 - rank}" in found["rank"]
        assert "memory must have the shape (40,), got (3,)" in found["damaged"]


def test_a_scaler_changes_neither_clips_nor_noise(results: Results) -> None:
    for found in results["scaled"]:
        torch.testing.assert_close(found["scaled"], 1024 * found["plain"])
        assert found["apart"].startswith("MismatchError: all ranks must have the same seed")
        assert found["bytes"] == 4 * (8 // 2 + 2 * WORLD)  # two cells to a word


def test_without_a_process_group() -> None:
    with pytest.raises(ArgumentError, match="init_process_group"):
        mean_of()


def test_cells_of_few_bits(results: Results) -> None:
    """Their limit is agreed on and moves; states continue to the same bits; words are packed.

    The mean of 200 rounds is near that of the vectors: a coordinate is off by 6 of its standard
    errors with probability below 1e-7, and a sum that is decoded for one rank more is found.
    """
    truth = torch.stack([vector_of(rank) for rank in range(WORLD)]).mean(dim=0)
    allowed = 6 * float(truth.norm()) / (30 * 200) ** 0.5 + 0.02
    for found in results["few_bits"]:
        assert torch.equal(found["expected"], found["found"])
        assert not torch.equal(found["expected"][0], found["expected"][1])
        assert found["bytes"] == 4 * (-(-31 // 6) + 2 * WORLD)  # 31 cells, 5 bits: 6 to a word
        assert 0.3 < found["limit"] < 30
        assert 0 <= found["saturated"] <= 3
        assert found["uneven"] <= 1  # also at the rank whose vector is 100 times larger
        limits = [1e-12 * 2 ** (3.75 * index) for index in range(4)]  # it starts where it was told
        assert found["given"] == pytest.approx(limits)
        (warned,) = found["warned"]
        assert warned.startswith("round 2: more than half of all cells of rank ")
        assert ((found["mean"] - truth).abs() < allowed).all()
        assert not ((found["mean"] * 2 / 3 - truth).abs() < allowed).all()
        assert found["error"].startswith("MismatchError")
        assert found["after"].isfinite().all()
        torch.testing.assert_close(*found["scaled"])  # the limit is of what is encoded
        assert found["lost"][0]  # and an infinite vector has no say in it
        assert 0.2 < found["lost"][1] < 5
    first, second = results["few_bits"]
    assert torch.equal(first["expected"], second["expected"])
    assert torch.equal(first["after"], second["after"])
    assert first["clip"] == second["clip"] != 1e-3  # it moves, whatever the noise

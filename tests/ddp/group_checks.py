"""What holds on each of two ranks of a group."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

from diffsketch.ddp.group import GroupMean
from diffsketch.ddp.transport import FRAMES_AGAIN, FRAMES_EXACT
from diffsketch.logs import RoundSummary
from diffsketch.methods import (
    DiffSketch,
    GaussianMean,
    Method,
    PlainSketch,
    SketchGaussian,
    SketchSkellam,
    Uncompressed,
)
from diffsketch.methods.gate import private_mean, release_noise
from diffsketch.privacy import Budget, SecureNoise
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from paper.methods import ProvenDiffSketch
from tests.ddp.processes import (
    WORLD,
    Checks,
    Scale,
    assert_fails,
    assert_voids,
    error_of,
    everyone,
    logged,
    same,
)
from tests.helpers.contract import CASES, Case, applied, first_weights, gradient, simulated
from tests.helpers.silent import silence

DIM = 40
KEY = SketchKey.from_integer(3)
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


def silent_mean(method: Method, *vectors: Tensor, round_index: int = 0) -> Tensor:
    """The mean of a simulation without noise."""
    with silence():
        return private_mean(torch.stack(vectors), method, key=KEY, round_index=round_index).mean


def assert_near(value: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def rounds_with(case: Case, rank: int) -> Tensor:
    mean = GroupMean(case.method, key=case.key, trusted_group=True)
    weights = first_weights()
    for index in range(4):
        weights = applied(weights, mean.mean(gradient(weights, rank, index)))
    return weights


def contract(case: Case, rank: int) -> tuple[Tensor, Tensor]:
    """The simulation's weights without noise, and others with it."""
    with silence():
        expected, silent = simulated(case), rounds_with(case, rank)
    noised = rounds_with(case, rank)
    assert_near(silent, expected)
    # The comparison would see noise; these two draw none.
    without = case.name in ("none", "sketch")
    assert torch.allclose(noised, expected, rtol=1e-3) == without
    return silent, noised


def written(case: Case, rank: int) -> None:
    """Two rounds with memory of their own, and the same two into the vectors themselves."""
    vectors = [gradient(first_weights(), rank, index) for index in range(2)]
    plain, into = (GroupMean(case.method, key=case.key, trusted_group=True) for _ in range(2))
    with silence():
        expected = [plain.mean(vector) for vector in vectors]
        assert all(into.mean(vector, out=vector) is vector for vector in vectors)
    assert same(vectors, expected)
    assert not torch.equal(*vectors)  # or nothing was compared


def starting_apart(rank: int) -> None:
    """Rank 1 has something else; all of them must raise, and name it."""
    second = rank == 1
    tries: tuple[tuple[Callable[[], Any], str], ...] = (
        (lambda: mean_of(key=SketchKey.from_integer(4) if second else KEY), "key"),
        (lambda: mean_of(PlainSketch(DIM, 1, 9) if second else SKETCH), "method"),
        (lambda: mean_of(Uncompressed(DIM) if second else SKETCH), "method"),
        (lambda: mean_of(LOCAL, budget=Budget(1.0 + rank, 1e-5)), "budget"),
        (lambda: mean_of(error_feedback=second), "error_feedback"),
    )
    for make, name in tries:
        differs = f"the same {name}, but rank {1 - rank} differs from rank {rank}"
        assert_fails(make, f"MismatchError: all ranks must have {differs}")
    failed = "MismatchError: rank 1 failed to start, see the error there"
    text = "ArgumentError: trusted_group must be True" if second else failed
    assert_fails(lambda: mean_of(CENTRAL if second else SKETCH), text)


def refused(rank: int) -> None:
    """What no rank may have."""
    del rank
    skellam = partial(SketchSkellam, DIM, 1, 8, clip=1.0, noise_multiplier=1.0)
    proven = ProvenDiffSketch(DIM, 1, 8, clip=1.0, padding=99, std=1.0)
    median = PlainSketch(DIM, 3, 8, combine="median")
    for method, options, text in (
        (CENTRAL, {}, "trusted_group must be True"),
        (skellam(cohort=WORLD), {}, "trusted_group must be True"),
        (SKETCH, {"budget": Budget(1.0, 1e-5)}, "budget must not be given where nothing is proven"),
        (proven, {}, "method='diffsketch-proven' must not be sent: its proof is about real"),
        (
            DiffSketch(DIM, 1, 8, per_round=1.0), {"error_feedback": True},
            "error_feedback must be off for method='diffsketch': its claim is about one",
        ),
        (
            Uncompressed(DIM), {"error_feedback": True},
            "error_feedback must be off for methods other than",
        ),
        (median, {"error_feedback": True}, "combine must be mean with error_feedback"),
        (
            skellam(cohort=3), {"trusted_group": True},
            "cohort must be 2, the number of ranks, got cohort=3",
        ),
    ):  # fmt: skip
        assert_fails(partial(mean_of, method, **options), f"ArgumentError: {text}")


def rounds_apart(rank: int) -> Tensor:
    mean, other, layout = mean_of(), mean_of(), mean_of()
    state, differs = {**mean.state_dict(), "round_index": 5 * rank}, f"rank {1 - rank} differs"
    text = f"MismatchError: all ranks must have the same round_index, but {differs}"
    assert_fails(lambda: mean.load_state_dict(state), text)
    assert mean.round_index == 0
    other.round_index = 5 * rank  # as no state can bring it about
    text = "all ranks must be in the same round, but rank 0 is in round 0, rank 1 is in round 5"
    assert_fails(lambda: other.mean(vector_of(rank)), text)
    text = f"{differs} from rank {rank}"
    assert_fails(lambda: layout.mean(vector_of(rank), layout=f"rank {rank}"), text)
    return layout.mean(vector_of(rank))


def planted(rank: int) -> None:
    """Rank 1 fails before it sends; then both go on."""
    mean, vector = mean_of(LOCAL, budget=Budget(1000.0, 1e-5)), vector_of(rank)
    short = "MismatchError: vector must have the shape (40,), got (5,)"
    assert_voids(lambda: mean.mean(vector[:5] if rank == 1 else vector), short, rank=rank)
    # Rank 0 has sent a message: the round is used up for both, and paid for by rank 0 alone.
    assert mean.round_index == 1
    assert_fails(lambda: mean.mean(vector[:5]), short)  # by both, and nothing is sent
    assert mean.round_index == 1
    assert mean.epsilon(1e-5).rounds == 1 - rank
    vectors = [vector_of(number) for number in range(WORLD)]
    with silence():
        assert_near(mean.mean(vector), silent_mean(LOCAL, *vectors, round_index=1))


def nowhere_to_write(rank: int) -> Tensor:
    """Rank 1 has no memory that fits, which is found before anything is sent; then both go on."""
    mean, vector = mean_of(), vector_of(rank)
    for index, (bad, text) in enumerate((
        (torch.empty(DIM + 1), "MismatchError: out must have the shape (40,), got (41,)"),
        (torch.empty(DIM).double(), "ArgumentError: out must be a float32 tensor, got torch.float"),
        (torch.empty(2 * DIM)[::2], "ArgumentError: out must be contiguous, got a stride of 2"),
    )):  # fmt: skip
        out = bad if rank == 1 else torch.empty(DIM)
        assert_voids(partial(mean.mean, vector, out=out), text, rank=rank, index=index)
    return mean.mean(vector)


def not_finite(rank: int) -> Any:
    """Rank 1 has infinity: only it is told, and only finite vectors are remembered."""
    vector, means = vector_of(rank), []
    if rank == 1:
        vector[3] = torch.inf
    for method in (SKETCH, LOCAL):
        proven = method is LOCAL
        mean = mean_of(method, error_feedback=True, immediate=1.0)
        with warnings.catch_warnings(record=True) as caught, logged() as texts, silence():
            warnings.simplefilter("always")
            means.append(mean.mean(vector))
        remembered = float(mean.state_dict().get("memory", torch.zeros(1)).norm())
        assert (remembered > 0) == (proven and rank == 0)
        told = [*texts, *(str(warned.message) for warned in caught)]
        assert len(texts) == (proven and rank == 1)
        text = "counts as zeros, with its noise" if proven else "makes the mean NaN on all ranks"
        assert [text in line for line in told] == [True] * rank
        assert mean.mean(vector_of(rank, 1)).isfinite().all()
    assert means[0].isnan().all()
    assert_near(means[1], silent_mean(LOCAL, vector_of(0), torch.zeros(DIM)))
    assert mean_of(Uncompressed(DIM)).mean(torch.full((DIM,), 3e38)).isnan().all()
    return means[1]


def budget(rank: int) -> Any:
    """All ranks stop before they send."""
    mean = mean_of(LOCAL, budget=Budget(12.0, 1e-5))
    errors = [error_of(lambda: mean.mean(vector_of(rank))) for _ in range(50)]
    rounds, epsilon = mean.round_index, mean.epsilon(1e-5)
    assert 1 <= rounds < 50
    assert errors[:rounds] == [""] * rounds
    assert set(errors[rounds:]) == {errors[-1]}
    assert errors[-1].startswith("BudgetExceeded: 1 more round would bring epsilon to")
    assert f"over {rounds} round" in str(epsilon)
    assert "proven; client unit, replace, local trust" in str(epsilon)
    assert float(epsilon) <= 12.0
    return rounds, str(epsilon)


def central(rank: int) -> Tensor:
    """A trusted group adds the noise once, anew in every round, also after going back."""

    def means() -> Tensor:
        mean = mean_of(CENTRAL, trusted_group=True)
        state = mean.state_dict()
        first = [mean.mean(vector_of(rank)) for _ in range(3)]
        mean.load_state_dict(state)
        return torch.stack([*first, mean.mean(vector_of(rank))])

    with silence():
        silent = means()
    assert_near(silent[0], silent_mean(CENTRAL, *(vector_of(number) for number in range(WORLD))))
    assert torch.equal(silent[0], silent[3])
    with pytest.MonkeyPatch.context() as patch:
        draw = Mock(side_effect=release_noise)
        patch.setattr("diffsketch.ddp.group.release_noise", draw)
        noised = means()
    assert draw.call_count == (4 if rank == 0 else 0)
    assert len({tuple(row) for row in noised.tolist()}) == 4
    coarse = GaussianMean(
        dim=3, clip=13.0, noise_multiplier=1.0, granularity=1.0, trust=Trust.CENTRAL
    )
    with pytest.MonkeyPatch.context() as patch:  # noise below all that messages may hold
        low = Mock(side_effect=lambda shape, _: torch.full(shape, -60))
        patch.setattr(SecureNoise, "discrete_gaussian", low)
        found = mean_of(coarse, trusted_group=True).mean(torch.tensor([-13.0, 0.0, 0.0]))
    assert found.tolist() == [-43.0, -30.0, -30.0]
    return noised


def states(rank: int) -> None:
    """A state that is loaded continues to the same bits; others are refused."""
    options: dict[str, Any] = {"error_feedback": True, "budget": Budget(10_000.0, 1e-5)}
    with silence():
        whole, half, loaded, forgetful = (mean_of(LOCAL, **options) for _ in range(4))
        expected = rounds_of(whole, rank, 6)
        first = rounds_of(half, rank, 3)
        state = half.state_dict()
        loaded.load_state_dict(state)
        assert torch.equal(torch.cat([first, rounds_of(loaded, rank, 3)]), expected)
        forgetful.load_state_dict({k: v for k, v in state.items() if k != "memory"})
        assert not torch.allclose(rounds_of(forgetful, rank, 3), expected[3:])
    assert float(whole.epsilon(1e-5)) == float(loaded.epsilon(1e-5))
    norms = [mean.state_dict()["memory"].norm().item() for mean in (whole, loaded)]
    assert norms[0] == norms[1] > 0
    other = mean_of(PlainSketch(DIM, 1, 8), error_feedback=True)
    of_another, damaged = everyone(state)[1 - rank], {**state, "memory": torch.zeros(3)}
    assert_fails(lambda: other.load_state_dict(state), "method is PlainSketch")
    text = f"rank is {rank} here and was {1 - rank}"
    assert_fails(lambda: loaded.load_state_dict(of_another), text)
    text = "memory must have the shape (40,), got (3,)"
    assert_fails(lambda: loaded.load_state_dict(damaged), text)


def few_bits(rank: int) -> Any:
    """Six rounds with cells of few bits, the same in two halves; words are packed."""
    method = PlainSketch(DIM, 1, 30, bits=4)
    whole, half, loaded = (mean_of(method, error_feedback=True) for _ in range(3))
    expected = rounds_of(whole, rank, 6)
    first = rounds_of(half, rank, 3)
    loaded.load_state_dict(half.state_dict())
    assert torch.equal(torch.cat([first, rounds_of(loaded, rank, 3)]), expected)
    assert not torch.equal(expected[0], expected[1])
    # Two parts of 15 cells: with the size, 16 of 4 bits make two words on the way there, and there
    # are two for the report; on the way back there is one for the limit. Each rank keeps a part.
    assert whole.bytes_per_round == (4 * (2 + 2 + 2 + 1) + FRAMES_AGAIN,) * 2
    assert 0.3 < (whole.method.round_clip or 0) < 30
    assert whole.saturated is not None
    assert 0 <= int(whole.saturated) <= 3
    failing = mean_of(method)
    length = 5 if rank == 1 else DIM
    assert_fails(lambda: failing.mean(vector_of(rank)[:length]), "MismatchError")
    after = failing.mean(vector_of(rank))
    assert after.isfinite().all()
    return expected, after


def unbiased(rank: int) -> None:
    """The mean of 200 rounds is near that of the vectors.

    A coordinate is off by 6 of its standard errors with probability below 1e-7, and a sum that is
    decoded for one rank more is found.
    """
    bare, vector = mean_of(PlainSketch(DIM, 1, 30, bits=8)), vector_of(rank)
    mean = torch.stack([bare.mean(vector) for _ in range(200)]).mean(dim=0)
    truth = torch.stack([vector_of(number) for number in range(WORLD)]).mean(dim=0)
    allowed = 6 * float(truth.norm()) / (30 * 200) ** 0.5 + 0.02
    assert ((mean - truth).abs() < allowed).all()
    assert not ((mean * 2 / 3 - truth).abs() < allowed).all()


def limits(rank: int) -> float | None:
    """The limit of cells is agreed on, starts where it is told, and moves."""
    eight, vector = PlainSketch(DIM, 1, 30, bits=8), vector_of(rank)
    plain = mean_of(eight).mean(vector)
    scaled = mean_of(eight, scaler=Scale(65536.0)).mean(65536 * vector)
    torch.testing.assert_close(scaled, 65536 * plain)  # the limit is of what is encoded
    half = mean_of(eight, error_feedback=True, immediate=0.5).mean(vector)
    torch.testing.assert_close(half, plain / 2)  # of a share, with error feedback
    uneven = mean_of(PlainSketch(DIM, 1, DIM, bits=4))
    uneven.mean(vector * (100 if rank else 1))
    assert uneven.saturated is not None
    assert int(uneven.saturated) <= 1  # also at the rank whose vector is 100 times larger
    given = mean_of(PlainSketch(DIM, 1, 30, bits=4, cell_limit=1e-12))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for index in range(4):
            limit = 1e-12 * 2 ** (3.75 * index)
            assert abs((given.method.round_clip or 0) / limit - 1) < 1e-6
            given.mean(vector)
    (warned,) = caught
    assert str(warned.message).startswith("round 2: more than half of all cells of rank ")
    moving = GaussianMean(
        dim=DIM, clip=1e-3, noise_multiplier=0.1, trust=Trust.CENTRAL, clip_quantile=0.5
    )
    adaptive = mean_of(moving, trusted_group=True)
    rounds_of(adaptive, rank, 8)
    assert adaptive.method.round_clip != 1e-3  # it moves, whatever the noise
    return adaptive.method.round_clip


def reported(rank: int) -> None:
    """Each mean is told to `on_round`, with its bytes and its cost so far."""
    seen: list[RoundSummary] = []
    mean = mean_of(LOCAL, budget=Budget(50.0, 1e-6))
    mean.on_round = seen.append
    rounds_of(mean, rank, 2)
    assert [summary.round for summary in seen] == [1, 2]
    sent = mean.bytes_per_round.sent
    assert [summary.bytes_up for summary in seen] == [round(sent), round(2 * sent)]
    assert seen[1].bytes_up > 0
    spent = seen[1].epsilon
    assert spent == mean.epsilon(1e-6)
    assert "proven; client, replace, local" in spent.text("short")
    assert float(seen[0].epsilon or 0) < float(spent)


def scaled(rank: int) -> None:
    """A scaler changes neither clips nor noise."""
    with silence():
        plain = mean_of(LOCAL).mean(vector_of(rank))
        by_scale = mean_of(LOCAL, scaler=Scale(1024.0)).mean(1024 * vector_of(rank))
    torch.testing.assert_close(by_scale, 1024 * plain)
    apart = mean_of(LOCAL, scaler=Scale(2.0**rank))
    # Two cells to a word, two ways.
    assert apart.bytes_per_round.sent == 4 * (8 // 2 + 2 * WORLD) + FRAMES_EXACT
    text = "MismatchError: all ranks must have the same seed"
    assert_fails(lambda: apart.mean(vector_of(rank)), text)


CHECKS: Checks = {
    **{f"contract {case.name}": partial(contract, case) for case in CASES},
    **{f"written {case.name}": partial(written, case) for case in CASES},
    **{
        check.__name__: check
        for check in (
            starting_apart, refused, rounds_apart, planted, nowhere_to_write, not_finite, budget,
            central, states, few_bits, unbiased, limits, scaled, reported,
        )
    },
}  # fmt: skip


def checks() -> Checks:
    return CHECKS

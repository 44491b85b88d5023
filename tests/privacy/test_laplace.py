"""The Laplace mechanism: the argument in its docstring, computed, and noise that fits its claim.

Statistical tests have fixed seeds; over their choice each fails by chance with probability at most
`CHANCE`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.composition import delta_for
from diffsketch.privacy.accounting.events import leaves
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import Bound, CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.additive import LaplaceMechanism
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.noise.secure import SecureNoise

CHANCE = 1e-9
DIM, ROWS, COLS = 500, 5, 20
GRID = 1e-5  # of numerical integration over the plane; see `brute_force_delta`


def encode(vectors: Tensor) -> Tensor:
    sketch = CountSketch(DIM, ROWS, COLS)
    return sketch.encode(vectors, SketchKey.from_integer(0).seed(0))


def integrated_delta(shift: float, epsilon: float) -> float:
    """Of Laplace noise of scale 1 on one number that moves by `shift`, by integration."""

    def excess(x: float) -> float:
        return max(0.0, math.exp(-abs(x)) - math.exp(epsilon - abs(x - shift))) / 2

    kinks = sorted({-40.0, 0.0, shift, (shift - epsilon) / 2, 40.0})
    parts = [integrate.quad(excess, a, b, epsabs=1e-12)[0] for a, b in itertools.pairwise(kinks)]
    return math.fsum(parts)


def formula(shift: float, epsilon: float) -> float:
    """`D(s, e)` of the docstring, for `-s <= e`."""
    return max(0.0, 1 - math.exp((epsilon - shift) / 2))


@pytest.mark.parametrize("shift", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_formula_of_one_number(shift: float, epsilon: float) -> None:
    assert formula(shift, epsilon) == pytest.approx(integrated_delta(shift, epsilon), abs=1e-9)
    claim = LaplaceMechanism(NormBound(1.0, order=1), 1 / shift).claim
    # The accountant rounds losses up, to a grid of 1e-4.
    assert delta_for(claim.event, epsilon) == pytest.approx(formula(shift, epsilon), abs=2e-4)


def brute_force_delta(shifts: tuple[float, float], epsilon: float) -> float:
    """Of two numbers with independent noise of scale 1, by sums over the plane.

    Beyond the square between the two centres the densities have a constant ratio along an axis,
    so each axis needs only the middle part, and one cell for either side.
    """
    axes = []
    for shift in shifts:
        edges = np.linspace(0, shift, 1001)
        p = np.concatenate([[0.5], np.diff(-np.exp(-edges)) / 2, [math.exp(-shift) / 2]])
        axes.append((p, p[::-1]))
    (p1, q1), (p2, q2) = axes
    excess = np.outer(p1, p2) - math.exp(epsilon) * np.outer(q1, q2)
    return float(np.maximum(excess, 0).sum())


@pytest.mark.parametrize("share", [0.5, 0.3, 0.1, 0.01])
@pytest.mark.parametrize("total", [0.2, 1.0, 3.0])
def test_two_numbers_tell_no_more_than_one_that_moves_by_the_sum(
    share: float, total: float
) -> None:
    shifts = (share * total, (1 - share) * total)
    for fraction in (0.0, 0.2, 0.5, 0.8, 0.99, 1.2):
        epsilon = fraction * total
        found = brute_force_delta(shifts, epsilon)
        assert found <= formula(total, epsilon) + GRID
        # and the step of the proof: E[D(c, e - L)] over the loss of the first number
        a, c = shifts

        def later(x: float, a: float = a, c: float = c, epsilon: float = epsilon) -> float:
            rest = epsilon - (a - 2 * x)
            return formula(c, rest) if rest >= -c else 1 - math.exp(rest)

        middle, _ = integrate.quad(lambda x: math.exp(-x) / 2 * later(x), 0, a, epsabs=1e-12)
        expected = later(0) / 2 + math.exp(-a) / 2 * later(a) + middle
        assert found == pytest.approx(expected, abs=GRID)
    # Control: it is not less than one that moves by the larger share alone.
    assert brute_force_delta(shifts, 0.0) > formula(max(shifts), 0.0)


def test_three_numbers_by_sampling() -> None:
    """A frequency of 400,000 pairs, its mean's error below 6.2 standard errors."""
    shifts = np.array([0.5, 0.3, 0.2])
    rng = np.random.default_rng(0)
    x = rng.laplace(size=(400_000, 3))
    loss = (np.abs(x - shifts) - np.abs(x)).sum(1)
    for epsilon in (0.0, 0.4, 0.8):
        terms = np.maximum(0, 1 - np.exp(epsilon - loss))
        bound = terms.mean() - 6.2 * terms.std() / math.sqrt(len(terms))
        assert bound < formula(1.0, epsilon)
        assert bound > formula(0.5, epsilon)  # control: it is more than the largest share's


def numerical_epsilon(shift: float, count: int, delta: float) -> float:
    """Of `count` numbers that move by `shift` each: convolutions of the loss on a fine grid."""
    cells = 400
    edges = np.linspace(0, shift, cells + 1)
    one = np.concatenate([[math.exp(-shift) / 2], np.diff(-np.exp(-edges))[::-1] / 2, [0.5]])
    losses = np.concatenate([[-shift], shift - (edges[:-1] + edges[1:])[::-1], [shift]])
    step = 2 * shift / cells
    # losses are -shift, -shift + step / 2, ..., shift: spread the middle ones over two points
    grid = np.zeros(cells + 1)
    grid[0], grid[-1] = one[0], one[-1]
    grid[:-1] += one[1:-1] / 2
    grid[1:] += one[1:-1] / 2
    assert losses[1] == pytest.approx(-shift + step / 2)
    total = np.ones(1)
    for _ in range(count):
        total = np.convolve(total, grid)
    values = np.linspace(-count * shift, count * shift, len(total))
    low, high = 0.0, count * shift
    for _ in range(60):
        middle = (low + high) / 2
        found = (total * np.maximum(0, 1 - np.exp(middle - values))).sum()
        low, high = (middle, high) if found > delta else (low, middle)
    return high


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("rows", "multiplier", "rounds"), [(1, 2.0, 1), (4, 0.5, 1), (5, 3.0, 8)])
def test_coordinates_compose_over_rows_and_rounds(
    rows: int, multiplier: float, rounds: int, relation: Relation
) -> None:
    claim = LaplaceMechanism(CoordinateBound(0.7, rows), multiplier, relation).claim
    expected = numerical_epsilon(1 / (multiplier * rows), rows * rounds, 1e-5)
    found = float(claim.epsilon(delta=1e-5, rounds=rounds))
    assert found == pytest.approx(expected, rel=2e-3)
    assert found <= rounds / multiplier * (1 + 1e-3)  # never worse than adding up epsilons
    # Control: shares of all of the sensitivity, or of one row fewer, are something else.
    assert found != pytest.approx(
        numerical_epsilon(1 / (multiplier * rows), (rows + 1) * rounds, 1e-5), rel=1e-2
    )


def test_event_of_coordinates() -> None:
    claim = LaplaceMechanism(CoordinateBound(0.7, 5), 3.0).claim
    ((event, count),) = leaves(claim.event)
    assert count == 5
    assert event.noise_multiplier == 15.0


def test_epsilons_of_the_reference_table() -> None:
    """Noise of ten L1 sensitivities over 1, 100 and 1000 rounds, by another accountant."""
    claim = LaplaceMechanism(NormBound(1.0, order=1), 10.0).claim
    found = [float(claim.epsilon(delta=1e-5, rounds=rounds)) for rounds in (1, 100, 1000)]
    assert found == pytest.approx([0.100, 4.22, 17.42], rel=2e-3)
    assert float(claim.epsilon(delta=0.0, rounds=1)) == pytest.approx(0.1, abs=2e-4)


def chance_of(noise: Tensor, scale: float) -> float:
    """Probability of a sum of sizes as far off: it has a gamma distribution, exactly."""
    total, count = float(noise.double().abs().sum()) / scale, noise.numel()
    return 2 * min(float(stats.gamma.cdf(total, count)), float(stats.gamma.sf(total, count)))


class TooLittle(FastNoise):
    """Broken: 20% too small."""

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        return super().laplace(shape, 0.8 * scale, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [CoordinateBound(0.5, ROWS), NormBound(3.0, order=1)])
def test_release_adds_noise_of_the_stated_scale(bound: Bound, dtype: torch.dtype) -> None:
    mechanism = LaplaceMechanism(bound, 2.5)
    assert mechanism.scale == 2.5 * bound.sensitivity(1, Relation.REPLACE)
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(50, DIM, generator=generator, dtype=dtype)
    before, exact = vectors.clone(), bound.apply(vectors, encode)
    released = mechanism.release(vectors, FastNoise(6), encode=encode)
    assert torch.equal(vectors, before)
    assert released.dtype == dtype
    assert released.shape == (50, ROWS, COLS)
    assert chance_of(released - exact, mechanism.scale) > CHANCE
    few = mechanism.release(vectors, TooLittle(6), encode=encode) - exact
    assert chance_of(few, mechanism.scale) < CHANCE


def test_raw_vectors_and_sums() -> None:
    mechanism = LaplaceMechanism(NormBound(1.0, order=1), 4.0, trust=Trust.CENTRAL)
    generator = torch.Generator().manual_seed(8)
    vectors = torch.randn(30, DIM, generator=generator, dtype=torch.float64)
    exact = mechanism.bound.apply(vectors, None)
    each = mechanism.release(vectors, FastNoise(9), batch=True) - exact
    assert each.shape == (30, DIM)
    assert chance_of(each, mechanism.scale) > CHANCE
    once = mechanism.release_sum(vectors, FastNoise(9)) - exact.sum(0)
    assert once.shape == (DIM,)
    assert chance_of(once, mechanism.scale) > CHANCE
    assert chance_of(each.sum(0), mechanism.scale) < CHANCE
    with pytest.raises(ArgumentError, match=r"vectors must be a batch \(units, dim\)"):
        mechanism.release_sum(vectors[0], FastNoise(9))


def test_claim_says_what_it_is_about() -> None:
    mechanism = LaplaceMechanism(CoordinateBound(1.0, 4), 2.0, Relation.ADD_OR_REMOVE)
    assert "Laplace noise of scale 8 " in str(mechanism.claim)
    assert str(mechanism.claim.scope) == "coordinate unit, add-or-remove, local trust"


def test_relation_by_name() -> None:
    """A name must not halve the noise."""
    by_name = LaplaceMechanism(NormBound(1.0, order=1), 2.0, "replace", "local")  # type: ignore[arg-type]
    assert by_name == LaplaceMechanism(NormBound(1.0, order=1), 2.0)
    assert by_name.scale == 4.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LaplaceMechanism(NormBound(1.0), 1.0), "L2 norm gives no L1 sensitivity"),
        (
            lambda: LaplaceMechanism(NormBound(1.0, order=1), 0.0),
            "noise_multiplier must be a number > 0",
        ),
        (lambda: LaplaceMechanism(NormBound(1.0, order=1), math.nan), "noise_multiplier must be"),
        (lambda: LaplaceMechanism(NormBound(1.0, order=1), math.inf), "noise_multiplier must be"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], LaplaceMechanism], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


def test_secure_noise_is_refused() -> None:
    with pytest.raises(ArgumentError, match="whole numbers only"):
        LaplaceMechanism(CoordinateBound(1.0), 1.0).release(torch.ones(3), SecureNoise())

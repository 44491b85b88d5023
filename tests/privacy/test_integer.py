"""Rounding, integer noise and sums modulo a power of two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting.events import GaussianEvent, leaves
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import (
    CoordinateBound,
    CoordinateQuantizer,
    NormBound,
    Quantizer,
    centre,
    stochastic_round,
    wrap,
)
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    IntegerMechanism,
    SkellamMechanism,
)
from diffsketch.privacy.noise import FastNoise, Noise
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import Family, HashSeed, columns_and_signs
from tests.helpers.refusals import each_refused, refused
from tests.privacy.laws import gaussian_law, laplace_law, skellam_law

Vector = npt.NDArray[np.float64]

INT64 = st.integers(-(2**63), 2**63 - 1)


def roundings(exact: Vector) -> Iterator[tuple[Vector, float]]:
    """All outcomes of rounding each entry at random, with their probabilities."""
    low = np.floor(exact)
    up = exact - low
    for bits in itertools.product((0, 1), repeat=len(exact)):
        chosen = np.array(bits)
        yield low + chosen, float(np.prod(np.where(chosen, up, 1 - up)))


def applied(quantizer: Quantizer, values: Tensor, noise: Noise) -> Tensor:
    """Clipped and rounded."""
    return quantizer.rounded(quantizer.bounded(values), noise)


def size_of(values: Vector) -> float:
    return float((values**2).sum())


def clipped_examples(cells: int, limit: float, seed: int) -> list[Vector]:
    """Vectors of norm exactly `limit`: along an axis, along the diagonal, and in between."""
    rng = np.random.default_rng(seed)
    examples = [np.eye(cells)[0], np.ones(cells), *rng.standard_normal((6, cells))]
    return [x * limit / np.linalg.norm(x) for x in examples]


class AlwaysUp(FastNoise):
    """The worst luck: every rounding goes up."""

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        return (probabilities > 0).to(torch.int64)


def test_rounding_is_unbiased() -> None:
    """By Hoeffding, fails by chance with probability 7e-9 (1e-9 for each value)."""
    values = torch.tensor([-2.0, -1.75, -0.5, 0.0, 0.1, 0.999, 7.3], dtype=torch.float64)
    draws = 200_000
    rounded = stochastic_round(values.expand(draws, -1), FastNoise(1))
    tolerance = math.sqrt(math.log(2e9) / (2 * draws))

    def unbiased(outcomes: Tensor) -> bool:
        return bool(((outcomes.double().mean(0) - values).abs() <= tolerance).all())

    assert unbiased(rounded)
    # Controls: rounding to the nearest number, and probabilities that are off by 0.02.
    assert not unbiased(values.round().expand(draws, -1))
    shifted = (values + 0.02).expand(draws, -1)
    assert not unbiased(stochastic_round(shifted, FastNoise(1)))


@given(values=st.lists(INT64, min_size=1, max_size=20), bits=st.integers(1, 62))
def test_modulus(values: list[int], bits: int) -> None:
    modulus = 1 << bits
    wrapped = wrap(torch.tensor(values), bits)
    assert wrapped.tolist() == [value % modulus for value in values]
    centred = centre(torch.tensor(values), bits).tolist()
    assert all(-(modulus // 2) <= value < modulus // 2 for value in centred)
    assert all((a - b) % modulus == 0 for a, b in zip(values, centred, strict=True))
    # A sum of messages may overflow an int64, and is still right modulo 2**bits.
    assert wrap(wrapped.sum(), bits).item() == sum(values) % modulus
    exact = (sum(values) + modulus // 2) % modulus - modulus // 2
    assert centre(wrapped.sum(), bits).item() == exact


@settings(max_examples=150, deadline=None)
@given(
    cells=st.integers(1, 40),
    steps=st.floats(0.01, 1000),
    rejection=st.sampled_from([0.0, 1e-4, 0.6, 0.999]),
    sparse=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_norms_hold(*, cells: int, steps: float, rejection: float, sparse: bool, seed: int) -> None:
    """Whatever is rounded, and even if every rounding goes up, no norm is exceeded."""
    quantizer = Quantizer(NormBound(3.0), 3.0 / steps, cells, rejection)
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((20, cells)) * 10 ** rng.uniform(-3, 3, (20, 1))
    if sparse:
        vectors[:, 1:] = 0
    for noise in (FastNoise(seed), AlwaysUp(seed)):
        whole = applied(quantizer, torch.from_numpy(vectors), noise).numpy().astype(np.float64)
        assert ((whole**2).sum(1) <= quantizer.longest**2 + 1e-6).all()
        assert (np.abs(whole) <= quantizer.peak).all()


@pytest.mark.parametrize("rejection", [0.0, 0.01, 0.05, 0.3, 0.5, math.exp(-0.5)])
def test_bias_of_drawing_again(rejection: float) -> None:
    """Exact: a norm is above the limit as rarely as stated, and drawing again then shifts means by
    less than stated. Without rejection the bound is that of the worst rounding."""
    cells, exceeded, largest_bias = 8, False, 0.0
    for steps in (0.3, 0.5, 1.0, 1.5, 2.0, 2.5, 6.0, 20.0, 50.0):
        quantizer = Quantizer(NormBound(steps), 1.0, cells, rejection)
        for exact in clipped_examples(cells, steps, seed=3):
            outcomes = [(x, p) for x, p in roundings(exact) if p > 0]
            kept = [(x, p) for x, p in outcomes if size_of(x) <= quantizer.largest]
            share = sum(p for _, p in kept)
            assert 1 - share <= rejection + 1e-12
            bias = float(np.abs(sum(x * p for x, p in kept) / share - exact).max())
            assert bias <= rejection / (1 - rejection) + 1e-12
            largest_bias = max(largest_bias, bias)
            exceeded |= any(size_of(x) > steps**2 for x, _ in outcomes)
    assert exceeded  # the norm before rounding is no bound
    assert largest_bias > 1e-3 or rejection < 0.5  # so the bound says something


def test_drawing_again_needs_its_margin() -> None:
    """The control of the test above: without the term for the tail it would be far from rare."""
    cells, steps = 9, 1.5
    exact = np.full(cells, steps / math.sqrt(cells))
    above = sum(p for x, p in roundings(exact) if size_of(x) > steps**2 + cells / 4)
    assert above > 0.3


def test_redrawn_distribution() -> None:
    """What `apply` draws has the conditional distribution, and not that of plain rounding.

    By the normal approximation, fails by chance with probability 2e-9 (6.2 standard deviations).
    """
    quantizer = Quantizer(NormBound(1.5), 1.0, 2, rejection=0.35)
    assert quantizer.largest == 5  # so (2, 2) is drawn again
    exact, draws = torch.full((2,), 1.05, dtype=torch.float64), 40_000
    assert exact.norm() < 1.5
    whole = applied(quantizer, exact.expand(draws, -1), FastNoise(6))
    shares = [float((whole == torch.tensor(x)).all(1).double().mean()) for x in ([1, 1], [1, 2])]
    assert not (whole == 2).all(1).any()

    def agree(probabilities: list[float]) -> bool:
        pairs = zip(shares, probabilities, strict=True)
        return all(abs(a - p) < 6.2 * math.sqrt(p * (1 - p) / draws) for a, p in pairs)

    assert agree([0.9025 / 0.9975, 0.0475 / 0.9975])
    assert not agree([0.9025 / 0.9525, 0.0475 / 0.9525])  # control: if (2, 1) were redrawn too


def test_rounds_towards_zero_at_last() -> None:
    """If no draw is small enough, the result still is; and it is not an error, which would tell."""
    quantizer = Quantizer(NormBound(1.5), 1.0, 2, rejection=0.35)
    values = torch.tensor([[1.05, 1.05], [-1.05, -1.05], [0.0, -1.4]], dtype=torch.float64)
    assert applied(quantizer, values, AlwaysUp(0)).tolist() == [[1, 1], [-1, -1], [0, -1]]


def filling(sketch: CountSketch, seed: HashSeed, place: int) -> tuple[Tensor, Tensor]:
    """Two vectors that differ in the coordinate `place`, and whose sums in float32 part.

    Before it, ones add up to nearly `2**11`. It is 1 or -1, so that one sum crosses that power of
    two, and from there on rounds 0.6 units to 1, where the other, below, rounds them to a half.
    (Every fourth coordinate, as the loops add to four sums in turn.)
    """
    values = torch.full((sketch.dim,), 0.6 * 2.0 ** (11 - 23))
    values[:place] = 1.0
    values[torch.arange(sketch.dim) % 4 != 0] = 0.0
    _, signs = columns_and_signs(np.arange(sketch.dim), seed, layout=sketch)
    vector = values * torch.from_numpy(signs[0]).float()
    other = vector.clone()
    vector[place], other[place] = float(signs[0, place]), -float(signs[0, place])
    return vector, other


@pytest.mark.parametrize("family", ["pairwise", "blocked"])
def test_float_sums_move_more(family: Family) -> None:
    """One coordinate moves a cell by 2 on the grid, and by up to 2.35 in sums of float32."""
    sketch, seed = CountSketch(20_000, 2, 1, family), SketchKey.from_integer(0).seed(0)
    grid = CoordinateQuantizer(CoordinateBound(1.0, 2), 256, 2)
    vectors = filling(sketch, seed, place=4 * (2**11 - 1))
    whole = [sketch.encode(grid.prepared(vector[None], FastNoise(1)), seed) for vector in vectors]
    assert float((whole[0] - whole[1]).abs().max()) * grid.granularity == 2.0
    if family == "pairwise":  # the control: what a claim would have to count without the grid
        floats = [sketch.encode(vector, seed) for vector in vectors]
        assert float((floats[0] - floats[1]).abs().max()) > 2.3


@given(st.integers(1, 2**20), st.floats(2**-20, 2**20, width=32), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_coordinates_stay_within_their_steps(steps: int, limit: float, seed: int) -> None:
    grid = CoordinateQuantizer(CoordinateBound(limit), steps, 9)
    vectors = torch.tensor([[0.0, limit, -limit, 3 * limit, -7 * limit, limit / 3, 1e-30, 1, -2]])
    found = grid.prepared(vectors, FastNoise(seed))
    assert int(found.abs().max()) == steps
    assert found[0, :5].tolist() == [0, steps, -steps, steps, -steps]
    assert grid.l1_sensitivity(Relation.REPLACE) == 2 * steps
    assert grid.l1_sensitivity(Relation.ADD_OR_REMOVE) == steps


Kind: TypeAlias = type[DiscreteGaussianMechanism] | type[SkellamMechanism]

SHARED: list[Kind] = [DiscreteGaussianMechanism, SkellamMechanism]

KINDS: list[type[IntegerMechanism]] = [*SHARED, DiscreteLaplaceMechanism]


ONE = Relation.ADD_OR_REMOVE


def levels(count: int, cells: int = 1) -> CoordinateQuantizer:
    """Coordinates of `count` levels on each side."""
    return CoordinateQuantizer(CoordinateBound(float(count)), count, cells)


def steps(count: int, cells: int = 1) -> Quantizer:
    """Whole numbers of norm at most `count` (for one cell), never drawn again."""
    return Quantizer(NormBound(count - math.sqrt(cells) + 1e-9), 1.0, cells, rejection=0)


def multiplier_of(mechanism: IntegerMechanism, present: int | None = None) -> float:
    """Of the Gaussian noise that the claim is about."""
    event = mechanism.claim_for(present or mechanism.cohort).event
    leaf = next(leaf for leaf, _ in leaves(event))
    assert isinstance(leaf, GaussianEvent)
    return float(leaf.noise_multiplier)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 10.0])
def test_discrete_laplace_is_pure(multiplier: float) -> None:
    """No ratio of probabilities exceeds what is claimed; some do with a quarter of a step less."""
    size = 6
    mechanism = DiscreteLaplaceMechanism(levels(size), multiplier, relation=ONE)
    claimed = float(mechanism.claim.epsilon(delta=0.0, rounds=1))
    assert claimed == pytest.approx(1 / multiplier)

    def largest_ratio(scale: float) -> float:
        k = np.arange(-500, 501)
        return max(float((-abs(k) / scale + abs(k + s) / scale).max()) for s in range(size + 1))

    assert largest_ratio(mechanism.scale) <= claimed
    assert largest_ratio(mechanism.scale - 0.25) > claimed * (1 - 1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_the_relation_counts_once(kind: type[IntegerMechanism]) -> None:
    """The same multiplier of twice the sensitivity: the same event (nearly), twice the noise."""
    laplace = kind is DiscreteLaplaceMechanism
    quantizer = levels(10**4, 10) if laplace else Quantizer(NormBound(1.0), 1e-4, 10)
    one, other = kind(quantizer, 2.0, relation=ONE), kind(quantizer, 2.0)
    assert other.relation is Relation.REPLACE
    assert other.std == pytest.approx(2 * one.std, rel=1e-6)
    values = [float(m.claim.epsilon(delta=1e-5, rounds=1)) for m in (one, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


@pytest.mark.parametrize("kind", SHARED)
def test_dropouts_weaken_the_claim(kind: Kind) -> None:
    quantizer = Quantizer(NormBound(1.0), 1e-3, 100)
    mechanism = kind(quantizer, 2.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=40)
    values = [
        float(mechanism.claim_for(n).epsilon(delta=1e-5, rounds=1)) for n in (40, 39, 20, 10, 1)
    ]
    assert values == sorted(values)
    assert values[1] > values[0]
    assert mechanism.claim_for(40) == mechanism.claim
    # Ten shares of forty are the noise of a cohort of ten with half the multiplier.
    ten = replace(mechanism, cohort=10, noise_multiplier=1.0)
    assert multiplier_of(mechanism, 10) == pytest.approx(multiplier_of(ten), rel=1e-12)
    # The noise of `lost` members more than the others' is not counted.
    spare, fewer = replace(mechanism, lost=4), replace(mechanism, cohort=36)
    assert multiplier_of(spare) == multiplier_of(spare, 36) > multiplier_of(spare, 35)
    assert multiplier_of(spare) == pytest.approx(multiplier_of(fewer), rel=1e-12)
    each_refused(ArgumentError, "present must", mechanism.claim_for, (0, 41, True, 2.0))


def cases() -> list[IntegerMechanism]:
    quantizer = Quantizer(NormBound(2.0), 0.25, 6)
    trusts = (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)
    shared = [kind(quantizer, 0.5, trust=t, cohort=5) for kind in SHARED for t in trusts]
    grid = CoordinateQuantizer(CoordinateBound(2.0), 8, 6)
    central = DiscreteLaplaceMechanism(grid, 0.2, trust=Trust.CENTRAL, cohort=5)
    return [*shared, DiscreteLaplaceMechanism(grid, 0.2, cohort=5), central]


every_case = pytest.mark.parametrize(
    "mechanism", cases(), ids=lambda m: f"{type(m).__name__}-{m.trust}"
)


def noise_of_the_sum(mechanism: IntegerMechanism) -> tuple[int, Vector]:
    """The smallest value of one cell's noise in the sum, and the probabilities from there on."""
    sources = 1 if mechanism.trust is Trust.CENTRAL else mechanism.cohort
    parts = mechanism.cohort if mechanism.trust is Trust.DISTRIBUTED else 1
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        lowest, one = laplace_law(mechanism.scale)
    else:
        sigma = mechanism.noise_multiplier * mechanism.quantizer.sensitivity(mechanism.relation)
        if isinstance(mechanism, SkellamMechanism):
            return skellam_law(sources / parts * sigma**2)
        lowest, one = gaussian_law(sigma / math.sqrt(parts))
    total = one
    for _ in range(sources - 1):
        total = np.convolve(total, one)
    return sources * lowest, total


@every_case
def test_std_and_overflow_bound_against_exact_laws(mechanism: IntegerMechanism) -> None:
    """With every member at its largest value, the probability of a wrap, summed exactly."""
    peak = mechanism.cohort * mechanism.quantizer.peak
    lowest, probabilities = noise_of_the_sum(mechanism)
    values = lowest + np.arange(len(probabilities))
    sources = mechanism.cohort if mechanism.trust is Trust.LOCAL else 1
    std = mechanism.quantizer.granularity * math.sqrt(probabilities @ values**2 / sources)
    assert mechanism.std == pytest.approx(std, rel=1e-3)
    for bits in range(6, 11):
        fitted = replace(mechanism, bits=bits)
        half = 1 << (bits - 1)
        outside = (values + peak >= half) | (values + peak < -half)
        exact = min(1.0, float(probabilities[outside].sum()) * mechanism.quantizer.cells)
        bound = fitted.overflow_bound()
        assert exact <= bound * (1 + 1e-9)
        if 1e-14 < bound < 1:  # and not much above, in terms of its logarithm
            assert math.log(exact) > 1.35 * math.log(bound) - 4


@every_case
def test_fewest_bits(mechanism: IntegerMechanism) -> None:
    fitted = mechanism.with_bits_for(1e-6)
    assert fitted.overflow_bound() <= 1e-6
    assert replace(fitted, bits=fitted.bits - 1).overflow_bound() > 1e-6
    assert fitted.claim == mechanism.claim  # the modulus is no matter of privacy


@pytest.mark.parametrize("kind", SHARED)
def test_finest_step(kind: Kind) -> None:
    mechanism = kind(Quantizer(NormBound(3.0), 1.0, 100), 1.5, cohort=8, bits=16)
    fitted = mechanism.with_granularity_for(1e-5)
    assert fitted.bits == 16
    assert fitted.overflow_bound() <= 1e-5
    step = fitted.quantizer.granularity
    assert isinstance(fitted.quantizer, Quantizer)
    finer = replace(fitted, quantizer=replace(fitted.quantizer, granularity=0.99 * step))
    assert finer.overflow_bound() > 1e-5
    with pytest.raises(ArgumentError, match="bits must be more"):
        replace(mechanism, bits=2).with_granularity_for(1e-5)


NAN, INF = math.nan, math.inf
THREE = Quantizer(NormBound(1.0), 0.1, 3)
NOT_COORDINATES: Any = steps(1)
PLAIN = SkellamMechanism(THREE, 1.0, cohort=2)
SHARES: dict[str, Any] = {"relation": ONE, "trust": Trust.DISTRIBUTED, "cohort": 5}
REFUSED: list[tuple[str, Callable[..., object], list[Any]]] = [
    # the message, what is called, and the arguments for which it has to raise
    (r"bits must be in 1\.\.62", partial(wrap, torch.tensor([1])), [0, 63]),
    ("int64", partial(centre, bits=8), [torch.tensor([1.0])]),
    ("finite", lambda bad: THREE.bounded(torch.tensor([[0, bad, 1]])), [NAN, INF]),
    ("granularity must", partial(Quantizer, NormBound(1.0), cells=3), [0.0, -1.0, NAN, INF, 1e-12]),
    ("rejection must", lambda bad: replace(THREE, rejection=bad), [-0.1, 1.0, NAN]),
    ("cells must", lambda bad: replace(THREE, cells=bad), [0]),
    ("steps must be >= 1", lambda bad: CoordinateQuantizer(CoordinateBound(1.0), bad, 1), [0]),
    ("shares >= 1/2", partial(DiscreteGaussianMechanism, steps(1), **SHARES), [1.0]),
    ("local or central", partial(DiscreteLaplaceMechanism, levels(1), **SHARES), [1.0]),
    ("bound coordinates", lambda bad: DiscreteLaplaceMechanism(NOT_COORDINATES, bad), [1.0]),
    ("noise_multiplier must", partial(SkellamMechanism, THREE), [0.0, -1.0, NAN, INF]),
    ("bits must", lambda bad: replace(PLAIN, bits=bad), [0, 63]),
    ("cohort must", lambda bad: replace(PLAIN, cohort=bad), [0]),
    ("trust must", lambda bad: replace(PLAIN, trust=bad), ["nobody"]),
    ("failure must", PLAIN.with_bits_for, [0.0, 1.0, NAN]),
    ("no modulus", replace(PLAIN, cohort=10**18).with_bits_for, [0.1]),
]


@pytest.mark.parametrize(("message", "call", "every"), REFUSED)
def test_bad_arguments(message: str, call: Callable[..., object], every: list[Any]) -> None:
    each_refused(ArgumentError, message, call, every)
    refused(MismatchError, "3 cells", THREE.bounded, torch.zeros(1, 4))


def test_names_are_as_good_as_members() -> None:
    """Also where a mechanism asks whether its noise is shared."""
    by_name = SkellamMechanism(
        THREE, 1.0, relation="replace", trust="distributed", cohort=5, lost=2
    )
    assert by_name == SkellamMechanism(THREE, 1.0, trust=Trust.DISTRIBUTED, cohort=5, lost=2)
    assert by_name.shared
    assert by_name.claim.scope.trust is Trust.DISTRIBUTED

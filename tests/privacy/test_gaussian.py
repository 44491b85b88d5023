"""The Gaussian mechanism: noise, sensitivity and event fit together, and delta is exact.

Statistical tests have fixed seeds; over their choice each fails by chance with probability at most
`CHANCE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.composition import delta_for
from diffsketch.privacy.claim import Relation, Trust, Unit
from diffsketch.privacy.clipping import Bound, CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.noise.secure import SecureNoise
from diffsketch.sketch.hashing import FAMILIES, Family

CHANCE = 1e-9
DIM, ROWS, COLS = 500, 5, 20


def encoder(family: Family = "blocked", seed: int = 0) -> Callable[[Tensor], Tensor]:
    sketch, hashes = CountSketch(DIM, ROWS, COLS, family), SketchKey.from_integer(seed).seed(0)
    return lambda vectors: sketch.encode(vectors, hashes)


def integrated_delta(shift: float, epsilon: float) -> float:
    """The delta of normal noise of deviation 1 on a value that moves by `shift`, by integration."""

    def density(x: float) -> float:
        return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)

    def excess(x: float) -> float:
        return max(0.0, density(x) - math.exp(epsilon) * density(x + shift))

    start = epsilon / shift - shift / 2  # where the integrand begins; it is 0 below
    value, _ = integrate.quad(excess, start, start + 40, epsabs=1e-14, limit=200)
    return float(value)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.7306, 20.0])
@pytest.mark.parametrize("epsilon", [0.0, 0.1, 1.0, 5.0])
def test_delta_is_the_analytic_one(multiplier: float, epsilon: float) -> None:
    claim = GaussianMechanism(NormBound(2.0), multiplier).claim
    expected = integrated_delta(1 / multiplier, epsilon)
    assert delta_for(claim.event, epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-13)
    # Control: noise that is 20% smaller needs visibly more.
    if expected > 1e-12:
        assert integrated_delta(1.25 / multiplier, epsilon) > 1.05 * expected


def test_epsilons_of_the_reference_table() -> None:
    """Computed with another accountant, over 1, 100 and 1000 rounds at delta = 1e-5."""
    for multiplier, expected in ((3.7306, (1.000, 14.43, 71.27)), (10.0, (0.341, 4.377, 17.86))):
        claim = GaussianMechanism(NormBound(1.0), multiplier).claim
        found = [float(claim.epsilon(delta=1e-5, rounds=rounds)) for rounds in (1, 100, 1000)]
        assert found == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_true_shift_is_what_the_event_says(family: Family, relation: Relation) -> None:
    """From the values to the deviation of the noise, on real tables, at the worst coordinate."""
    bound = CoordinateBound(0.5, ROWS)
    mechanism = GaussianMechanism(bound, 1.7, relation)
    vector = torch.zeros(DIM, dtype=torch.float64)
    one, two = vector.clone(), vector.clone()
    one[7], two[7] = 9.0, 0.0 if relation is Relation.ADD_OR_REMOVE else -9.0
    moved = bound.apply(one, encoder(family)) - bound.apply(two, encoder(family))
    assert float(moved.norm()) / mechanism.std == pytest.approx(1 / 1.7, rel=1e-12)
    assert mechanism.claim.event.noise_multiplier == 1.7


def chance_of(noise: Tensor, std: float) -> float:
    """Probability of a sum of squares as far off: it is chi-square, exactly."""
    total, count = float(noise.double().square().sum()) / std**2, noise.numel()
    return 2 * min(float(stats.chi2.cdf(total, count)), float(stats.chi2.sf(total, count)))


class TooLittle(FastNoise):
    """Broken: 20% too small."""

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        return super().normal(shape, 0.8 * std, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "bound", [CoordinateBound(0.5, ROWS), NormBound(3.0), NormBound(3.0, order=1)]
)
def test_release_adds_noise_of_the_stated_deviation(bound: Bound, dtype: torch.dtype) -> None:
    mechanism = GaussianMechanism(bound, 2.5)
    assert mechanism.std == 2.5 * bound.sensitivity(2, Relation.REPLACE)
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(50, DIM, generator=generator, dtype=dtype)
    before, exact = vectors.clone(), bound.apply(vectors, encoder())
    released = mechanism.release(vectors, FastNoise(6), encode=encoder())
    assert torch.equal(vectors, before)
    assert released.dtype == dtype
    assert released.shape == (50, ROWS, COLS)
    noise = released - exact
    assert chance_of(noise, mechanism.std) > CHANCE
    few = mechanism.release(vectors, TooLittle(6), encode=encoder()) - exact
    assert chance_of(few, mechanism.std) < CHANCE
    # Each table has its own noise: products of two tables' cells have deviation std**2.
    products = (noise[1:].double() * noise[:-1].double()).mean() / mechanism.std**2
    assert abs(float(products)) < 6.2 / math.sqrt(noise[1:].numel())


@pytest.mark.parametrize("shape", [(DIM,), (3, DIM), (2, 3, DIM), (0, DIM)])
def test_raw_vectors_in_any_batch(shape: tuple[int, ...]) -> None:
    mechanism = GaussianMechanism(NormBound(1.0), 1.0)
    batch = len(shape) > 1
    released = mechanism.release(torch.ones(shape), FastNoise(7), batch=batch)
    assert released.shape == shape
    again = mechanism.release(torch.ones(shape), FastNoise(7), batch=batch)
    assert torch.equal(released, again)


def test_a_ready_made_table_is_not_taken_for_vectors() -> None:
    """Its rows would be clipped one by one, and the whole would exceed the limit."""
    mechanism = GaussianMechanism(NormBound(1.0), 1e-6)
    table = 100 * encoder()(torch.ones(DIM))
    with pytest.raises(ArgumentError, match=r"passing encode"):
        mechanism.release(table, FastNoise(1))
    whole = mechanism.release(100 * torch.ones(DIM), FastNoise(1), encode=encoder())
    assert float(whole.double().norm()) < 1 + 1e-3
    each = mechanism.release(table, FastNoise(1), batch=True)
    assert float(each.double().norm()) > 1.5  # the control


def test_trust_belongs_to_the_way_of_release() -> None:
    vectors = torch.ones(5, DIM)
    for unit, trust in (("client", "local"), ("client", "central"), ("example", "local")):
        mechanism = GaussianMechanism(NormBound(1.0, unit=Unit(unit)), 1.0, trust=Trust(trust))
        if (unit, trust) == ("client", "local"):
            with pytest.raises(ArgumentError, match="trust must be central for a sum"):
                mechanism.release_sum(vectors, FastNoise(0))
        else:
            assert mechanism.release_sum(vectors, FastNoise(0)).shape == (DIM,)
    with pytest.raises(ArgumentError, match="trust must be local or central"):
        GaussianMechanism(NormBound(1.0), 1.0, trust=Trust.DISTRIBUTED)


@pytest.mark.parametrize("noise", [None, torch.Generator()])
def test_noise_has_to_be_of_our_kind(noise: Any) -> None:
    with pytest.raises(ArgumentError, match="noise must be a Noise"):
        GaussianMechanism(NormBound(1.0), 1.0).release(torch.ones(3), noise)


def test_noise_that_vanishes_is_refused() -> None:
    with pytest.raises(ArgumentError, match="noise_multiplier must give noise"):
        GaussianMechanism(NormBound(5e-324), 0.2)


def test_a_sum_gets_noise_once() -> None:
    mechanism = GaussianMechanism(NormBound(1.0), 4.0, trust=Trust.CENTRAL)
    generator = torch.Generator().manual_seed(8)
    vectors = torch.randn(30, DIM, generator=generator, dtype=torch.float64)
    exact = mechanism.bound.apply(vectors, None).sum(0)
    noise = mechanism.release_sum(vectors, FastNoise(9)) - exact
    assert noise.shape == (DIM,)
    assert chance_of(noise, mechanism.std) > CHANCE
    each = mechanism.release(vectors, FastNoise(9), batch=True).sum(0) - exact
    assert chance_of(each, mechanism.std) < CHANCE
    tables = mechanism.release_sum(vectors, FastNoise(9), encode=encoder())
    assert tables.shape == (ROWS, COLS)
    with pytest.raises(ArgumentError, match=r"vectors must be a batch \(units, dim\)"):
        mechanism.release_sum(vectors[0], FastNoise(9))


def test_claim_says_what_it_is_about() -> None:
    mechanism = GaussianMechanism(CoordinateBound(1.0, 4), 2.0, Relation.ADD_OR_REMOVE)
    text = str(mechanism.claim)
    assert "standard deviation 4 " in text
    assert "one coordinate" in text
    assert str(mechanism.claim.scope) == "coordinate unit, add-or-remove, local trust"


def test_relation_and_trust_by_name() -> None:
    """A name must not halve the noise."""
    by_name = GaussianMechanism(NormBound(1.0), 2.0, "replace", "central")  # type: ignore[arg-type]
    assert by_name == GaussianMechanism(NormBound(1.0), 2.0, Relation.REPLACE, Trust.CENTRAL)
    assert by_name.std == 4.0
    for relation, trust in (("swap", "local"), ("replace", "nobody")):
        with pytest.raises(ArgumentError, match="must be one of"):
            GaussianMechanism(NormBound(1.0), 2.0, relation, trust)  # type: ignore[arg-type]


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.nan, math.inf])
def test_bad_multipliers_are_refused(multiplier: float) -> None:
    with pytest.raises(ArgumentError, match="noise_multiplier must be a number > 0 and finite"):
        GaussianMechanism(NormBound(1.0), multiplier)


def test_values_and_noise_that_cannot_be_private_are_refused() -> None:
    mechanism = GaussianMechanism(NormBound(1.0), 1.0)
    with pytest.raises(ArgumentError, match="finite"):
        mechanism.release(torch.tensor([1.0, math.nan]), FastNoise(0))
    with pytest.raises(ArgumentError, match="whole numbers only"):
        mechanism.release(torch.ones(3), SecureNoise())
    tiny = GaussianMechanism(NormBound(1e-44), 1.0)
    with pytest.raises(ArgumentError, match="std must be 0 or in"):  # would vanish in float32
        tiny.release(torch.ones(3), FastNoise(0))
    assert np.isfinite(tiny.release(torch.ones(3).double(), FastNoise(0)).numpy()).all()

"""Noise on real numbers: events are exact, and the noise fits them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.events import GaussianEvent
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import Bound, CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.noise import FastNoise, SecureNoise
from diffsketch.sketch.hashing import FAMILIES, Family
from tests.helpers.refusals import each_refused, refused

CHANCE = 1e-9

DIM, ROWS, COLS = 500, 5, 20


def encoder(family: Family = "blocked", seed: int = 0) -> Callable[[Tensor], Tensor]:
    sketch, hashes = CountSketch(DIM, ROWS, COLS, family), SketchKey.from_integer(seed).seed(0)
    return lambda vectors: sketch.encode(vectors, hashes)


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
    assert mechanism.claim.event == GaussianEvent(1.7)


def chance_of(noise: Tensor, std: float) -> float:
    """Probability of a sum of squares as far off: chi-square, exactly."""
    total, law = float((noise.double() / std).square().sum()), stats.chi2(noise.numel())
    return 2 * min(float(law.cdf(total)), float(law.sf(total)))


class TooLittle(FastNoise):
    """Broken: 20% too small."""

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        return super().normal(shape, 0.8 * std, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bound", [CoordinateBound(0.5, ROWS), NormBound(3.0)])
def test_release_adds_noise_of_the_stated_size(bound: Bound, dtype: torch.dtype) -> None:
    mechanism = GaussianMechanism(bound, 2.5)
    std = mechanism.std
    assert std == 2.5 * bound.sensitivity(Relation.REPLACE)
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(50, DIM, generator=generator, dtype=dtype)
    before, exact = vectors.clone(), bound.apply(vectors, encoder())
    released = mechanism.release(vectors, FastNoise(6), encode=encoder())
    assert torch.equal(vectors, before)
    assert released.dtype == dtype
    assert released.shape == (50, ROWS, COLS)
    noise = released - exact
    assert chance_of(noise, std) > CHANCE
    few = mechanism.release(vectors, TooLittle(6), encode=encoder()) - exact
    assert chance_of(few, std) < CHANCE
    # Each table has its own noise: products of two tables' cells are around 0.
    products = (noise[1:].double() * noise[:-1].double()).mean() / std**2
    assert abs(float(products)) < 6.2 / math.sqrt(noise[1:].numel())


def test_a_ready_made_table_is_not_taken_for_vectors() -> None:
    """Its rows would be clipped one by one, and the whole would exceed the limit."""
    mechanism = GaussianMechanism(NormBound(1.0), 1e-6)
    table = 100 * encoder()(torch.ones(DIM))
    refused(ArgumentError, r"passing encode", mechanism.release, table, FastNoise(1))
    whole = mechanism.release(100 * torch.ones(DIM), FastNoise(1), encode=encoder())
    assert float(whole.double().norm()) < 1 + 1e-3
    each = mechanism.release(table, FastNoise(1), batch=True)
    assert float(each.double().norm()) > 1.5  # the control


def test_relation_and_trust_by_name() -> None:
    """A name must not halve the noise."""
    by_name = GaussianMechanism(NormBound(1.0), 2.0, "replace", "central")
    assert by_name == GaussianMechanism(NormBound(1.0), 2.0, Relation.REPLACE, Trust.CENTRAL)
    assert by_name.std == 4.0
    for names in (("swap", "local"), ("replace", "nobody")):
        refused(ArgumentError, "must be one of", GaussianMechanism, NormBound(1.0), 2.0, *names)


def test_values_and_noise_that_cannot_be_private_are_refused() -> None:
    mechanism = GaussianMechanism(NormBound(1.0), 1.0)
    refused(ArgumentError, "finite", mechanism.release, torch.tensor([1.0, math.nan]), FastNoise(0))
    ones = torch.ones(3)
    refused(ArgumentError, "must be of type Noise", mechanism.release, ones, torch.Generator())
    refused(ArgumentError, "whole numbers only", mechanism.release, ones, SecureNoise())
    tiny = GaussianMechanism(NormBound(1e-44), 1.0)  # its noise would vanish in float32
    refused(ArgumentError, "std must be 0 or in", tiny.release, ones, FastNoise(0))
    assert np.isfinite(tiny.release(ones.double(), FastNoise(0)).numpy()).all()


def test_bad_arguments_are_refused() -> None:
    multipliers, text = (0.0, -1.0, math.nan, math.inf), "noise_multiplier must be a number > 0 and"
    each_refused(ArgumentError, text, partial(GaussianMechanism, NormBound(1.0)), multipliers)
    vanishing = NormBound(5e-324)
    refused(ArgumentError, "noise_multiplier must give noise", GaussianMechanism, vanishing, 0.2)

"""cpSGD against exact divergences."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.stats import binom
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting.events import ApproximateEvent
from diffsketch.privacy.claim import NoClaim, ProvenClaim, Relation
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.noise import FastNoise
from tests.helpers.refusals import each_refused, refused

Vector = npt.NDArray[np.float64]


def unit_shift(trials: int, cohort: int = 1, **changes: Any) -> BinomialMechanism:
    """One coordinate on two levels, but for changes: every shift is of one step."""
    usual = {"dim": 1, "clip": 1.0, "limit": 1.0, "levels": 2, "delta": 1e-6}
    return BinomialMechanism(trials=trials, cohort=cohort, **usual | changes)


def proven(mechanism: BinomialMechanism) -> ApproximateEvent:
    claim = mechanism.claim
    assert isinstance(claim, ProvenClaim)
    assert isinstance(claim.event, ApproximateEvent)
    return claim.event


def exact_delta(probabilities: Vector, shifted: Vector, epsilon: float) -> float:
    """By definition, in both directions."""
    scale = math.exp(epsilon)
    one = np.maximum(probabilities - scale * shifted, 0).sum()
    return float(max(one, np.maximum(shifted - scale * probabilities, 0).sum()))


def shifted_binomials(trials: int, p: float, shift: int) -> tuple[Vector, Vector]:
    k = np.arange(-shift, trials + shift + 1)
    return binom.pmf(k, trials, p), binom.pmf(k - shift, trials, p)


# The theorem.


def test_published_values() -> None:
    assert proven(unit_shift(2000)).epsilon == pytest.approx(0.637513, abs=5e-7)
    assert proven(unit_shift(200, cohort=10)).epsilon == pytest.approx(0.637513, abs=5e-7)
    assert proven(unit_shift(2000)).delta == 1e-6
    assert proven(unit_shift(1483)).epsilon < 1
    assert isinstance(unit_shift(1482).claim, NoClaim)


def written_out(shift: tuple[float, float, float], *, v: float, delta: float, d: int) -> float:
    """The theorem's epsilon once more, with its constants as they are stated for any p."""
    (d1, d2, dinf), p = shift, 0.5
    b = 2 / 3 * (p**2 + (1 - p) ** 2) + 1 - 2 * p
    c = math.sqrt(2) * (3 * p**3 + 3 * (1 - p) ** 3 + 2 * p**2 + 2 * (1 - p) ** 2)
    e = 4 / 3 * (p**2 + (1 - p) ** 2)
    return (
        d2 * math.sqrt(2 * math.log(1.25 / delta)) / math.sqrt(v)
        + (d2 * c * math.sqrt(math.log(10 / delta)) + d1 * b) / (v * (1 - delta / 10))
        + 2 / 3 * dinf * math.log(1.25 / delta) / v
        + dinf * e * math.log(20 * d / delta) * math.log(10 / delta) / v
    )


def test_theorem_term_by_term() -> None:
    """More levels, more dimensions, with the shift that is certain."""
    mechanism = unit_shift(30, cohort=500, dim=4, limit=0.5, levels=5, delta=1e-5)
    r = 2 / 0.25
    shift = min(2 * r + 4, 4 * 4), min(r + 2, 2 * 4), 4
    expected = written_out(shift, v=30 * 500 / 4, delta=1e-5, d=4)
    assert proven(mechanism).epsilon == pytest.approx(expected)


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-9])
def test_theorem_bounds_the_exact_divergence(delta: float) -> None:
    """In one dimension, for the least noise that the condition allows and for more."""
    for levels in (2, 4, 11):
        plain = unit_shift(1, levels=levels, delta=delta)
        for factor in (1, 1.5, 10):
            trials = math.ceil(factor * 23 * math.log(10 / delta) * 4)
            event = proven(replace(plain, trials=trials))
            for shift in range(1, levels):
                pair = shifted_binomials(trials, 0.5, shift)
                assert exact_delta(*pair, event.epsilon) <= delta


def test_exact_divergence_tells_too_little_noise() -> None:
    """The control of the two tests above: a quarter of the noise would be found out."""
    event = proven(unit_shift(2000))
    assert exact_delta(*shifted_binomials(2000, 0.5, 1), event.epsilon) <= 1e-6
    assert exact_delta(*shifted_binomials(2000, 0.5, 1), event.epsilon / 4) > 1e-6
    assert exact_delta(*shifted_binomials(100, 0.5, 1), event.epsilon) > 1e-6


# The condition.


def test_condition_on_the_largest_shift() -> None:
    """With very many levels it is twice the largest shift that the variance must reach."""
    mechanism = unit_shift(1, levels=2001)
    assert mechanism.shifts()[0].largest == 2000
    assert isinstance(replace(mechanism, trials=4 * 4000 - 1).claim, NoClaim)
    assert isinstance(replace(mechanism, trials=4 * 4000).claim, ProvenClaim)


def test_dropouts_weaken_the_claim() -> None:
    mechanism = unit_shift(20, cohort=200)
    fewer = mechanism.claim_for(100)
    assert isinstance(fewer, ProvenClaim)
    assert isinstance(fewer.event, ApproximateEvent)
    assert fewer.event.epsilon == pytest.approx(proven(unit_shift(20, cohort=100)).epsilon)
    assert fewer.event.epsilon > proven(mechanism).epsilon
    assert isinstance(mechanism.claim_for(10), NoClaim)
    each_refused(ArgumentError, "present must", mechanism.claim_for, (0, 201, True))


# How far a member moves the sum.


@pytest.mark.parametrize("relation", list(Relation))
@pytest.mark.parametrize("levels", [2, 5, 16, 200])
def test_shift_bounds_hold(levels: int, relation: Relation) -> None:
    """All outcomes of rounding two neighbours with the same random numbers, exactly."""
    dim, clip, limit = 7, 1.0, 0.6
    mechanism = unit_shift(1, dim=dim, limit=limit, levels=levels, delta=0.9, relation=relation)
    certain, likely = mechanism.shifts()
    assert certain.failure == 0
    assert likely.failure == pytest.approx(0.45)
    rng = np.random.default_rng(31)
    exceeded = 0.0
    for _ in range(12):
        one = rng.standard_normal(dim) * rng.integers(0, 2, dim) + 1e-3
        one *= clip / np.linalg.norm(one)
        other = -one if relation is Relation.REPLACE else 0 * one
        gap = np.abs(np.clip(one, -limit, limit) - np.clip(other, -limit, limit)) / mechanism.step
        beyond = 0.0
        for up in itertools.product((0, 1), repeat=dim):
            part = gap - np.floor(gap)
            chance = float(np.prod(np.where(up, part, 1 - part)))
            if chance == 0:
                continue
            shift = np.floor(gap) + up
            norms = (shift.sum(), np.linalg.norm(shift), shift.max())
            assert all(a <= b * (1 + 1e-12) for a, b in zip(norms, certain[:3], strict=True))
            beyond += chance * any(a > b for a, b in zip(norms, likely[:3], strict=True))
            exceeded += chance * (norms[1] > np.linalg.norm(gap))
        assert beyond <= likely.failure
    assert exceeded > 0.3  # control: distances before rounding are no bound


def test_likely_shift_matters_in_high_dimension() -> None:
    """The certain bound grows with the dimension. The other is used, with half of delta."""
    mechanism = unit_shift(100, cohort=100_000, dim=10_000, limit=0.05, levels=8)
    certain, likely = mechanism.shifts()
    assert likely.l2 < 0.7 * certain.l2
    expected = written_out(likely[:3], v=2.5e6, delta=5e-7, d=10_000)
    assert proven(mechanism).epsilon == pytest.approx(expected)
    assert proven(mechanism).delta == 1e-6
    assert expected < written_out(certain[:3], v=2.5e6, delta=1e-6, d=10_000)


@pytest.mark.parametrize("delta", [1e-8, 0.02, 0.5])
def test_likely_shift_where_rounding_is_widest(delta: float) -> None:
    """Every coordinate half a step apart: the L1 norm and the square are Bin(dim, 1/2)."""
    mechanism = unit_shift(1, dim=400, clip=10.0, delta=delta)
    _, likely = mechanism.shifts()
    assert binom.sf(math.floor(likely.l1), 400, 0.5) <= delta / 2
    assert binom.sf(math.floor(likely.l2**2), 400, 0.5) <= delta / 2
    # The control: the mean alone is exceeded half of the time.
    assert binom.sf(200, 400, 0.5) > 0.4


# Messages.


def decoded(mechanism: BinomialMechanism, vectors: Tensor, seed: int) -> Tensor:
    messages = mechanism.release(vectors, FastNoise(seed))
    assert messages.dtype == torch.int64
    assert 0 <= int(messages.min()) <= int(messages.max()) < mechanism.levels + mechanism.trials
    count = vectors.shape[-2]
    return mechanism.centred(messages.sum(-2), count) / count


def test_decoding_is_unbiased() -> None:
    """Means within 6.5 standard deviations: fails by chance with probability 5e-10."""
    mechanism = unit_shift(9, cohort=5, dim=6, clip=3.0, limit=3.0, levels=4)
    repeats = 10_000
    vectors = torch.from_numpy(np.random.default_rng(41).uniform(-1, 1, (5, 6)))
    mean = decoded(mechanism, vectors.expand(repeats, 5, 6), 42).mean(0)
    variance = (mechanism.std**2 + mechanism.step**2 * 5 / 4) / 25
    tolerance = 6.5 * math.sqrt(variance / repeats)

    def right(estimate: Tensor) -> bool:
        return bool(((estimate - vectors.mean(0)).abs() < tolerance).all())

    assert right(mean)
    # Controls: rounding to the nearest level, and noise that is taken to have a mean 3% off.
    nearest = (((vectors + 3) / 2).round() * 2 - 3).mean(0)
    assert not right(nearest)
    assert not right(mean + 0.03 * 9 / 2 * mechanism.step)


def test_stated_variance() -> None:
    """Exact levels, so noise alone: within 6%, some 11 standard deviations."""
    mechanism = unit_shift(20, cohort=4, dim=3, clip=9.0, limit=3.0, levels=4)
    vectors = torch.tensor([[-3.0, -1.0, 1.0], [3.0, 3.0, -3.0], [1.0, 1.0, 1.0], [-1.0, 3.0, 1.0]])
    errors = decoded(mechanism, vectors.expand(25_000, 4, 3), 43) - vectors.double().mean(0)
    for factor, fits in ((1.0, True), (0.8, False)):
        ratio = float((factor * errors).square().mean()) / (mechanism.std**2 / 16)
        assert (abs(ratio - 1) < 0.06) == fits


def test_clipping_comes_first() -> None:
    """A vector far too long counts as its direction; a coordinate off the grid as its end."""
    mechanism = unit_shift(1, dim=2, limit=0.5, levels=3)
    long = torch.tensor([1e30, 0.0], dtype=torch.float64).expand(50, 2)
    sent = mechanism.release(long, FastNoise(0))
    assert sent.amin(dim=0).tolist() == [2, 1]  # the levels, to which a trial adds 0 or 1
    assert sent.amax(dim=0).tolist() == [3, 2]
    for bad in (math.nan, math.inf):
        refused(ArgumentError, "finite", mechanism.release, torch.tensor([bad, 0.0]), FastNoise(0))


def test_bad_arguments() -> None:
    good = unit_shift(10)
    for name, values in {
        "dim": (0,), "clip": (0.0, math.nan, math.inf), "limit": (-1.0, math.nan),
        "levels": (1,), "trials": (0,), "cohort": (0,), "delta": (0.0, 1.0, math.nan),
        "relation": ("both",),
    }.items():  # fmt: skip
        for value in values:
            refused(ArgumentError, f"{name} must", replace, good, **{name: value})
    refused(MismatchError, "vectors of 1", good.release, torch.zeros(2), FastNoise(0))

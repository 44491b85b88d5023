"""Messages with integer noise: what their sums decode to, and when these wrap."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    IntegerMechanism,
    SkellamMechanism,
)
from diffsketch.privacy.mechanisms.rounding import Quantizer
from diffsketch.privacy.noise import FastNoise, Noise
from diffsketch.privacy.noise.secure import SecureNoise

Vector: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = type[DiscreteGaussianMechanism] | type[SkellamMechanism]
SHARED: list[Kind] = [DiscreteGaussianMechanism, SkellamMechanism]
KINDS: list[type[IntegerMechanism]] = [*SHARED, DiscreteLaplaceMechanism]
ONE = Relation.ADD_OR_REMOVE


# From vectors to the decoded mean.


def noise_in_steps(mechanism: IntegerMechanism, count: int, noise: Noise) -> Tensor:
    """Noise of a full sum, `count` times, decoded from sums of zero vectors (steps of 1)."""
    sources = 1 if mechanism.trust is Trust.CENTRAL else mechanism.cohort
    zeros = torch.zeros(count, mechanism.quantizer.cells, dtype=torch.int64)
    total = sum(mechanism.perturb(zeros, noise) for _ in range(sources))
    assert isinstance(total, Tensor)
    return mechanism.decode(total, mechanism.cohort) * mechanism.cohort


def cases() -> list[IntegerMechanism]:
    quantizer = Quantizer(NormBound(2.0), 0.25, 6)
    shared = [
        kind(quantizer, 0.5, trust=trust, cohort=5)
        for kind in SHARED
        for trust in (Trust.LOCAL, Trust.DISTRIBUTED, Trust.CENTRAL)
    ]
    return [
        *shared,
        DiscreteLaplaceMechanism(quantizer, 0.2, cohort=5),
        DiscreteLaplaceMechanism(quantizer, 0.2, trust=Trust.CENTRAL, cohort=5),
    ]


@pytest.mark.parametrize("mechanism", cases(), ids=lambda m: f"{type(m).__name__}-{m.trust}")
def test_noise_has_the_stated_variance(mechanism: IntegerMechanism) -> None:
    """Within 4%: 14 standard deviations, or 8 for Laplace; fails by chance with 1e-15."""
    samples = noise_in_steps(mechanism, 40_000, FastNoise(11))
    sources = mechanism.cohort if mechanism.trust is Trust.LOCAL else 1
    stated = sources * mechanism.std**2

    def right(values: Tensor) -> bool:
        return abs(float(values.square().mean()) / stated - 1) < 0.04

    assert right(samples)
    assert not right(0.8 * samples)  # control: noise 20% too small
    # The stated variance of the mean is that, and at most 1/4 of a step squared from rounding.
    rounding = mechanism.quantizer.granularity**2 / (4 * mechanism.cohort)
    assert mechanism.variance(5) == pytest.approx(stated / 25 + rounding)


@pytest.mark.parametrize("mechanism", cases(), ids=lambda m: f"{type(m).__name__}-{m.trust}")
def test_decoding_is_unbiased(mechanism: IntegerMechanism) -> None:
    """Encode, sum, decode: means within 6.5 standard deviations, chance below 6 * 1e-10."""
    repeats = 20_000
    rng = np.random.default_rng(12)
    vectors = torch.from_numpy(rng.integers(-2, 3, (5, 6)) * 0.25 + 0.1)
    noise = FastNoise(13)
    batch = vectors.expand(repeats, 5, 6)
    if mechanism.trust is Trust.CENTRAL:
        total = mechanism.perturb(mechanism.rounded(batch, noise).sum(1), noise)
    else:
        messages = mechanism.release(batch, noise)
        assert 0 <= int(messages.min()) <= int(messages.max()) < 1 << mechanism.bits
        total = messages.sum(1)
    error = (mechanism.decode(total, 5) - vectors.mean(0)).mean(0)
    tolerance = 6.5 * math.sqrt(mechanism.variance(5) / repeats)
    assert float(error.abs().max()) < tolerance
    # Controls: rounding to the nearest step, and a sum that is not centred.
    nearest = (vectors / 0.25).round().mean(0) * 0.25 - vectors.mean(0)
    assert float(nearest.abs().max()) > tolerance
    uncentred = (total & ((1 << mechanism.bits) - 1)).double().mean(0) * 0.25 / 5
    assert float((uncentred - vectors.mean(0)).abs().max()) > tolerance


def test_release_of_a_table() -> None:
    quantizer = Quantizer(NormBound(50.0), 0.5, 6)
    mechanism = SkellamMechanism(quantizer, 1e-9, trust=Trust.CENTRAL, bits=20)
    vector = torch.tensor([0.5, -1.0, 2.0, 0.0, 3.5, -4.5])
    message = mechanism.release(
        vector, FastNoise(0), encode=lambda x: x.reshape(*x.shape[:-1], 2, 3)
    )
    assert message.tolist() == [[1, 2**20 - 2, 4], [0, 7, 2**20 - 9]]
    assert torch.equal(mechanism.decode(message, 1), vector.double().reshape(2, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_secure_noise(kind: type[IntegerMechanism]) -> None:
    """Only whole-number samplers are used, so the secure source works. No chance in it."""
    mechanism = kind(Quantizer(NormBound(1.0), 0.1, 8), 1.0, cohort=2).with_bits_for(1e-12)
    vectors = torch.linspace(-0.3, 0.3, 8).expand(2, 8)
    messages = mechanism.release(vectors, SecureNoise())
    assert 0 <= int(messages.min()) <= int(messages.max()) < 1 << mechanism.bits
    assert mechanism.decode(messages.sum(0), 2).shape == (8,)


# Sums that wrap.


def noise_of_the_sum(mechanism: IntegerMechanism, reach: int) -> Vector:
    """Probabilities of one cell's noise in the sum being -reach..reach, by convolution."""
    sources = 1 if mechanism.trust is Trust.CENTRAL else mechanism.cohort
    parts = mechanism.cohort if mechanism.trust is Trust.DISTRIBUTED else 1
    values = np.arange(-reach, reach + 1)
    sigma = mechanism.noise_multiplier * mechanism.quantizer.sensitivity(2, mechanism.relation)
    if isinstance(mechanism, SkellamMechanism):
        rate = sources / parts * sigma**2 / 2
        return np.asarray(stats.skellam.pmf(values, rate, rate))
    if isinstance(mechanism, DiscreteLaplaceMechanism):
        one = stats.dlaplace.pmf(values, 1 / mechanism.scale)
    else:
        one = np.exp(-(values**2) * parts / (2 * sigma**2))
    total = one = one / one.sum()
    for _ in range(sources - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    return np.asarray(total[middle - reach : middle + reach + 1])


@pytest.mark.parametrize("mechanism", cases(), ids=lambda m: f"{type(m).__name__}-{m.trust}")
def test_overflow_bound_against_exact_tails(mechanism: IntegerMechanism) -> None:
    """With every member at its largest value, the probability of a wrap, summed exactly."""
    peak = mechanism.cohort * mechanism.quantizer.peak
    reach = 3000
    values = np.arange(-reach, reach + 1)
    probabilities = noise_of_the_sum(mechanism, reach)
    for bits in range(6, 11):
        fitted = replace(mechanism, bits=bits)
        half = 1 << (bits - 1)
        outside = (values + peak >= half) | (values + peak < -half)
        exact = min(1.0, float(probabilities[outside].sum()) * mechanism.quantizer.cells)
        bound = fitted.overflow_bound()
        assert exact <= bound * (1 + 1e-9)
        if 1e-14 < bound < 1:  # and not much above, in terms of its logarithm
            assert math.log(exact) > 1.35 * math.log(bound) - 4


@pytest.mark.parametrize("mechanism", cases(), ids=lambda m: f"{type(m).__name__}-{m.trust}")
def test_fewest_bits(mechanism: IntegerMechanism) -> None:
    fitted = mechanism.with_bits_for(1e-6)
    assert fitted.overflow_bound() <= 1e-6
    assert replace(fitted, bits=fitted.bits - 1).overflow_bound() > 1e-6
    assert fitted.claim == mechanism.claim  # the modulus is no matter of privacy
    known = mechanism.with_bits_for(1e-6, largest=0.5)
    assert known.bits <= fitted.bits


def test_too_few_bits_wrap() -> None:
    """Ten members that all say 8: 8 bits hold the sum of 80 and its noise, fewer wrap it.

    Tolerance of 6.6 standard deviations: fails by chance with probability 1e-10.
    """
    quantizer = Quantizer(NormBound(8.0), 1.0, 1, rejection=0)
    mechanism = SkellamMechanism(
        quantizer, 0.2, relation=ONE, trust=Trust.DISTRIBUTED, cohort=10, bits=8
    )
    vectors = torch.full((10, 1), 8.0)
    for bits, expected in ((8, 8.0), (7, 8.0 - 12.8), (6, 8.0 - 6.4)):
        fitted = replace(mechanism, bits=bits)
        mean = fitted.decode(fitted.release(vectors, FastNoise(21)).sum(0), 10)
        assert abs(float(mean) - expected) < 1.2  # the noise's standard deviation is 0.18
    assert replace(mechanism, bits=8).overflow_bound() < 1e-4
    assert replace(mechanism, bits=7).overflow_bound() == 1.0
    assert mechanism.with_bits_for(1e-6).overflow_bound() <= 1e-6


@pytest.mark.parametrize("kind", KINDS)
def test_finest_step(kind: type[IntegerMechanism]) -> None:
    mechanism = kind(Quantizer(NormBound(3.0), 1.0, 100), 1.5, cohort=8, bits=16)
    fitted = mechanism.with_granularity_for(1e-5)
    assert fitted.bits == 16
    assert fitted.overflow_bound() <= 1e-5
    step = fitted.quantizer.granularity
    assert isinstance(fitted.quantizer, Quantizer)
    finer = replace(fitted, quantizer=replace(fitted.quantizer, granularity=0.99 * step))
    assert finer.overflow_bound() > 1e-5
    assert mechanism.with_granularity_for(1e-5, largest=1.0).quantizer.granularity < step
    with pytest.raises(ArgumentError, match="bits must be more"):
        replace(mechanism, bits=2).with_granularity_for(1e-5)


def test_bad_arguments() -> None:
    quantizer = Quantizer(NormBound(1.0), 0.1, 3)
    for multiplier in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="noise_multiplier must"):
            SkellamMechanism(quantizer, multiplier)
    for bits in (0, 63):
        with pytest.raises(ArgumentError, match="bits must"):
            SkellamMechanism(quantizer, 1.0, bits=bits)
    with pytest.raises(ArgumentError, match="cohort must"):
        SkellamMechanism(quantizer, 1.0, cohort=0)
    with pytest.raises(ArgumentError, match="trust must"):
        SkellamMechanism(quantizer, 1.0, trust="nobody")  # type: ignore[arg-type]
    mechanism = SkellamMechanism(quantizer, 1.0, cohort=2)
    for count in (0, 3):
        with pytest.raises(ArgumentError, match="count must"):
            mechanism.decode(torch.zeros(3, dtype=torch.int64), count)
    for failure in (0.0, 1.0, math.nan):
        with pytest.raises(ArgumentError, match="failure must"):
            mechanism.with_bits_for(failure)
    with pytest.raises(ArgumentError, match="largest must"):
        mechanism.overflow_bound(largest=math.nan)
    with pytest.raises(ArgumentError, match="no modulus"):
        replace(mechanism, cohort=10**18).with_bits_for(0.1)


def test_a_trusted_server_adds_noise_once() -> None:
    quantizer = Quantizer(NormBound(1.0), 0.25, 6)
    vectors = torch.linspace(-1, 1, 18).reshape(3, 6)
    server = SkellamMechanism(quantizer, 2.0, trust=Trust.CENTRAL, cohort=3)
    source = FastNoise(3)
    apart = server.perturb(server.rounded(vectors, source).sum(0), source)
    assert torch.equal(server.release_sum(vectors, FastNoise(3)), apart)
    with pytest.raises(ArgumentError, match="vectors must be at most 3"):
        server.release_sum(torch.ones(4, 6), FastNoise(3))
    alone = SkellamMechanism(quantizer, 2.0, cohort=3)
    with pytest.raises(ArgumentError, match="trust must be central for a sum"):
        alone.release_sum(vectors, FastNoise(3))

"""A mean in one call is the round that it stands for."""

from __future__ import annotations

import math

import pytest
import torch

import diffsketch
from diffsketch import SketchKey, private_mean
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import SketchGaussian, SketchSkellam, Uncompressed
from diffsketch.privacy import CohortNoise, FastNoise, NoiseKey, SecureNoise, Trust

DIM = 60
KEY, NOISE = SketchKey.from_integer(1), NoiseKey.from_integer(1)
VECTORS = torch.randn(50, DIM, generator=torch.Generator().manual_seed(1))


def test_the_mean_of_vectors_as_they_are() -> None:
    found = private_mean(VECTORS, Uncompressed(DIM), key=KEY, noise=NOISE)
    torch.testing.assert_close(found.mean, VECTORS.mean(dim=0))
    assert (found.count, found.message_bytes, found.total_bytes) == (50, 48 + 240, 48 + 240)
    assert found.bytes_up == 50 * 288
    assert found.claim.basis == "none"


def test_it_is_the_round_that_it_stands_for() -> None:
    method = SketchGaussian(DIM, 1, 20, clip=9.0, noise_multiplier=0.5, trust=Trust.CENTRAL)
    found = private_mean(VECTORS, method, key=KEY, noise=NOISE, round_index=4)
    own = CohortNoise(NOISE, range(50), round_index=4)
    server = CohortNoise(NOISE, [1 << 62], round_index=4)
    total = method.publish(method.encode(VECTORS, KEY.seed(4), own).messages.sum(dim=0), server)
    assert torch.equal(found.mean, method.decode(total, KEY.seed(4), count=50))
    again = private_mean(VECTORS, method, key=KEY, noise=NOISE, round_index=5)
    assert not torch.equal(found.mean, again.mean)


def test_fewer_holders_have_a_weaker_claim() -> None:
    method = SketchSkellam(DIM, 1, 20, clip=9.0, noise_multiplier=1.0, cohort=50)
    full, half = (
        private_mean(vectors, method, key=KEY, noise=NOISE).claim.epsilon(delta=1e-5, rounds=1)
        for vectors in (VECTORS, VECTORS[:25])
    )
    assert float(half) > float(full)
    with pytest.raises(ArgumentError, match=r"present must be in 1\.\.50"):
        private_mean(torch.zeros(51, DIM), method, key=KEY, noise=NOISE)


def test_sources_of_ones_own() -> None:
    method = SketchSkellam(DIM, 1, 20, clip=9.0, noise_multiplier=0.01, cohort=50)
    for noise in (SecureNoise(), FastNoise(3)):
        found = private_mean(VECTORS, method, key=KEY, noise=noise)
        assert bool(torch.isfinite(found.mean).all())


def test_bad_input() -> None:
    method = Uncompressed(DIM)
    broken = VECTORS.clone()
    broken[7, 3], broken[31, 0] = math.nan, math.inf
    with pytest.raises(ArgumentError, match=r"in rows 7, 31$"):
        private_mean(broken, method, key=KEY, noise=NOISE)
    with pytest.raises(ArgumentError, match=r"holders, dim"):
        private_mean(VECTORS[0], method, key=KEY, noise=NOISE)
    with pytest.raises(ArgumentError, match="one row or more"):
        private_mean(VECTORS[:0], method, key=KEY, noise=NOISE)
    with pytest.raises(MismatchError, match="dim=60"):
        private_mean(VECTORS[:, :-1], method, key=KEY, noise=NOISE)
    with pytest.raises(ArgumentError, match="method must be a Method"):
        private_mean(VECTORS, "none", key=KEY, noise=NOISE)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="key must be a SketchKey"):
        private_mean(VECTORS, method, key=NOISE, noise=NOISE)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="noise must be a NoiseKey or a Noise"):
        private_mean(VECTORS, method, key=KEY, noise=KEY)  # type: ignore[arg-type]


def test_it_is_public() -> None:
    assert diffsketch.private_mean is private_mean
    assert diffsketch.build_method("none", dim=3, cohort=1, settings={}).dim == 3

"""Noise for simulation: reproducible from a key, and as exact as floating-point numbers are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.noise import discrete_sampling
from diffsketch.privacy.noise.arguments import (
    MAX_SCALE,
    check_scale,
    check_trials,
    checked_probabilities,
    count_cells,
    float_type,
)
from diffsketch.privacy.noise.base import Noise
from diffsketch.privacy.noise.discrete_sampling import IntegerTable

__all__ = ["FastNoise", "NoiseKey", "binomial_law", "integer_law"]


@dataclass(frozen=True)
class NoiseKey:
    """A secret of one simulated world, from which each message's noise is derived.

    >>> key = NoiseKey.from_integer(7)
    >>> one = key.source(worker=0, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> two = key.source(worker=1, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> bool((one == two).any())
    False
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != 32:
            raise ArgumentError("secret must be 32 bytes")

    @classmethod
    def from_integer(cls, number: int) -> NoiseKey:
        """A key for experiments, where a run is named by a number."""
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentError(f"number must be an int, got {type(number).__name__}")
        check(0 <= number < 1 << 256, "number", "be in [0, 2**256)", number)
        text = number.to_bytes(32, "little")
        return cls(hashlib.blake2b(text, digest_size=32, person=b"ds-noise-number").digest())

    def source(self, *, worker: int, round_index: int) -> FastNoise:
        """The noise of one worker's message in one round; the same numbers each time."""
        for name, value in (("worker", worker), ("round_index", round_index)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")
            check(0 <= value < 1 << 64, name, "be in [0, 2**64)", value)
        text = worker.to_bytes(8, "little") + round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=self.secret, digest_size=32, person=b"ds-noise")
        return FastNoise(int.from_bytes(digest.digest(), "little"))

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"


class FastNoise(Noise):
    """For simulation: a seeded generator of its own, and samplers in floating point.

    The same seed and calls give the same numbers. Normal and Laplace noise are as exact as their
    type; whole numbers are drawn as `noise/discrete_sampling.py` says, within 1e-11 of their
    distribution in total variation (`tests/privacy/test_discrete_sampling.py`). A scale of 0
    gives zeros.

    >>> FastNoise(7).discrete_gaussian((2, 3), std=2.0).shape
    torch.Size([2, 3])
    """

    secure = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ArgumentError(f"seed must be an int, got {type(seed).__name__}")
        check(seed >= 0, "seed", "be >= 0", seed)
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation, float32 or float64."""
        kind = float_type("std", std, dtype)
        values = self._rng.standard_normal(count_cells(shape), dtype=kind)
        values *= kind(std)
        return torch.from_numpy(values).reshape(shape)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale, float32 or float64."""
        kind, count = float_type("scale", scale, dtype), count_cells(shape)
        values = self._rng.standard_exponential(count, dtype=kind)
        values -= self._rng.standard_exponential(count, dtype=kind)
        values *= kind(scale)
        return torch.from_numpy(values).reshape(shape)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, to 2**-53, else 0 (int64)."""
        chances = checked_probabilities(probabilities)
        values = (self._rng.random(len(chances)) < chances).astype(np.int64)
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        return self._integers(shape, integer_law("discrete_gaussian", std))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        return self._integers(shape, integer_law("discrete_laplace", scale))

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        return self._integers(shape, integer_law("skellam", variance))

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64)."""
        return self._integers(shape, binomial_law(trials, probability))

    def _integers(self, shape: tuple[int, ...], law: IntegerTable | int) -> Tensor:
        count = count_cells(shape)
        if isinstance(law, int):
            return torch.full(shape, law, dtype=torch.int64)
        return torch.from_numpy(law.draw(self._rng, count)).reshape(shape)


@lru_cache(maxsize=64, typed=True)
def integer_law(
    kind: Literal["discrete_gaussian", "discrete_laplace", "skellam"], scale: float
) -> IntegerTable | int:
    """A table to draw from, kept, or the only number there is: 0 for a scale of 0."""
    name = {"discrete_gaussian": "std", "discrete_laplace": "scale", "skellam": "variance"}[kind]
    check_scale(name, scale, MAX_SCALE**2 if kind == "skellam" else MAX_SCALE)
    table: Callable[[float], IntegerTable] = getattr(discrete_sampling, kind)
    return table(scale) if scale else 0


@lru_cache(maxsize=64, typed=True)
def binomial_law(trials: int, probability: float) -> IntegerTable | int:
    """A table to draw from, kept, or the only number there is."""
    check_trials(trials, probability)
    if probability in (0, 1):
        return trials * int(probability)
    return discrete_sampling.binomial(trials, float(probability))

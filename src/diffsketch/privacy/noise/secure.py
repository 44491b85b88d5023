"""Noise for real releases: randomness of the operating system, and samplers that are exact."""

from __future__ import annotations

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy.noise import secure_sampling
from diffsketch.privacy.noise.arguments import (
    MAX_SCALE,
    check_scale,
    check_trials,
    checked_probabilities,
    count_cells,
)
from diffsketch.privacy.noise.base import Noise
from diffsketch.privacy.noise.secure_sampling import Gaussian, Laplace, Law, Skellam, exact_table

__all__ = ["SecureNoise"]


class SecureNoise(Noise):
    """Whole numbers from the operating system's randomness. Takes no seed and repeats nothing.

    All samplers are exact for the rational number that a float stands for (not for a decimal that
    it was written as: a scale of 0.1 means 3602879701896397 / 2**55), given that the operating
    system's bits are even and independent: their distance from the ideal distributions is 0, and
    nothing is to be added to a delta. `noise/secure_sampling.py` says how.

    Whoever can time the calls is not defended against.

    >>> SecureNoise().discrete_gaussian((2, 3), std=4.0).dtype
    torch.int64
    """

    secure = True

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded normal noise gives values away."""
        raise _not_whole(f"normal noise ({shape=}, {std=}, {dtype=})", "discrete_gaussian")

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded Laplace noise gives values away."""
        raise _not_whole(f"Laplace noise ({shape=}, {scale=}, {dtype=})", "discrete_laplace")

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with exactly the probability that each float stands for, else 0 (int64)."""
        values = secure_sampling.bernoulli(checked_probabilities(probabilities))
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        check_scale("std", std, MAX_SCALE)
        return _draw(Gaussian(float(std)) if std else None, shape)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        check_scale("scale", scale, MAX_SCALE)
        return _draw(Laplace(float(scale)) if scale else None, shape)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        check_scale("variance", variance, MAX_SCALE**2)
        return _draw(Skellam(float(variance)) if variance else None, shape)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64); costs random bits for each trial."""
        check_trials(trials, probability)
        values = secure_sampling.binomial(count_cells(shape), trials, probability)
        return torch.from_numpy(values).reshape(shape)


def _draw(law: Law | None, shape: tuple[int, ...]) -> Tensor:
    """Numbers of a law, or zeros."""
    count = count_cells(shape)
    if law is None:
        return torch.zeros(shape, dtype=torch.int64)
    return torch.from_numpy(exact_table(law).draw(count)).reshape(shape)


def _not_whole(asked: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"noise must be FastNoise for {asked}: SecureNoise gives whole numbers only, since noise "
        f"in floating point can be attacked through its rounding; use {instead} on whole numbers"
    )

"""Noise of half the size that is asked for: a planted error, which tests of noise must find."""

from __future__ import annotations

import torch
from torch import Tensor

from diffsketch.privacy.noise import Noise


class HalfNoise(Noise):
    """Standard deviations are half of what they should be; all means are right."""

    secure = False

    def __init__(self, inner: Noise) -> None:
        self.inner = inner

    def part(self, rows: Tensor) -> HalfNoise:
        return HalfNoise(self.inner.part(rows))

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        return self.inner.normal(shape, std / 2, dtype=dtype)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        return self.inner.laplace(shape, scale / 2, dtype=dtype)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        return self.inner.bernoulli(probabilities)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        return self.inner.discrete_gaussian(shape, std / 2)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        return self.inner.discrete_laplace(shape, scale / 2)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        return self.inner.skellam(shape, variance / 4)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        fewer = trials // 4
        mean = round((trials - fewer) * probability)
        return self.inner.binomial(shape, fewer, probability) + mean

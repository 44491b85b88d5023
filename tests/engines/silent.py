"""Rounds without noise, so that engines can be compared: released noise never repeats."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor

from diffsketch.learning import aggregate
from diffsketch.privacy import Noise

__all__ = ["Silent", "silence"]

SENDERS = (
    "diffsketch.engines.group",
    "diffsketch.engines.flower.client",
    "diffsketch.engines.flower.server",
    "diffsketch.methods.mean",
)
"""Where messages get their noise."""


class Silent(Noise):
    """Noise that is always what it is on average, and rounding to the nearest."""

    secure = True

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        del std
        return torch.zeros(shape, dtype=dtype)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        del scale
        return torch.zeros(shape, dtype=dtype)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        return (probabilities >= 0.5).long()

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        del std
        return torch.zeros(shape, dtype=torch.int64)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        del scale
        return torch.zeros(shape, dtype=torch.int64)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        del variance
        return torch.zeros(shape, dtype=torch.int64)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        return torch.full(shape, round(trials * probability))


@contextmanager
def silence() -> Iterator[None]:
    """No noise in this process, neither in what is sent nor in simulations."""
    with pytest.MonkeyPatch.context() as patch:
        for name in SENDERS:
            if name in sys.modules:
                patch.setattr(f"{name}.release_noise", lambda *_, **__: Silent())
        patch.setattr(aggregate, "_LaterNoise", lambda *_: Silent())
        yield

"""What every source of noise can do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["Noise"]


class Noise(ABC):
    """A stream of random numbers that belongs to one message."""

    secure: ClassVar[bool]

    def part(self, rows: Tensor) -> Noise:  # noqa: ARG002
        """What to draw from for only these rows (indices or a mask) of a batch."""
        return self

    @abstractmethod
    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation."""

    @abstractmethod
    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale; its standard deviation is sqrt(2) times that."""

    @abstractmethod
    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, else 0 (int64)."""

    @abstractmethod
    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""

    @abstractmethod
    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""

    @abstractmethod
    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""

    @abstractmethod
    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64)."""

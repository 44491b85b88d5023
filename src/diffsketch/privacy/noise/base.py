"""The interface of noise sources, and what they share: argument checks, and a search."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_whole

MAX_SCALE = 2.0**50  # of whole numbers, which then stay far within int64


def count_cells(shape: tuple[int, ...]) -> int:
    """The product of a shape, checked."""
    good = all(isinstance(size, int) and size >= 0 for size in shape)
    check(good, "shape", "be a tuple of sizes >= 0", shape)
    return math.prod(shape)


def check_scale(name: str, value: float, largest: float = MAX_SCALE) -> None:
    """Raise unless a scale is in `[0, largest]`."""
    check(0 <= value <= largest, name, f"be in [0, 2**{math.log2(largest):.0f}]", value)


def check_trials(trials: int, probability: float) -> None:
    """Raise unless these are parameters of a binomial distribution."""
    check_whole("trials", trials, least=0)
    check_scale("trials", trials)
    check(0 <= probability <= 1, "probability", "be in [0, 1]", probability)


def checked_probabilities(probabilities: Tensor) -> npt.NDArray[np.float64]:
    """A tensor of probabilities as a flat array; raises unless all are in `[0, 1]`."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        raise ArgumentError("probabilities must be a tensor of a floating type")
    known = probabilities.dtype in (torch.float32, torch.float64)  # NumPy has no bfloat16
    values = (probabilities if known else probabilities.float()).detach().cpu().numpy()
    flat = values.astype(np.float64).ravel()
    if len(flat) and not (flat.min() >= 0 and flat.max() <= 1):
        raise ArgumentError("probabilities must be in [0, 1], got others or NaN among them")
    return flat


@lru_cache(maxsize=64)  # the same scales in each round of a run
def float_type(name: str, scale: float, dtype: torch.dtype) -> type[np.float32 | np.float64]:
    """NumPy's type for a type that can hold the scale: noise must not vanish or overflow in it."""
    check(dtype in (torch.float32, torch.float64), "dtype", "be float32 or float64", dtype)
    info = torch.finfo(dtype)
    good = scale == 0 or info.tiny <= scale <= info.max / 100
    check(good, name, f"be 0 or in [{info.tiny:.2g}, {info.max / 100:.2g}] for {dtype}", scale)
    return np.float32 if dtype == torch.float32 else np.float64


_GUIDE_BITS = 16  # of a random word that tell the block at once, in most cases
_GUIDE_FROM = 1 << 14  # draws that make up for the cost of the guide


@dataclass(frozen=True)
class BlockSearch:
    """Finds the blocks of random words: block `i` ends before the word `limits[i]`."""

    limits: npt.NDArray[np.uint64]

    def find(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """The block of each word. The guide saves most searches and changes no result."""
        if len(words) < _GUIDE_FROM:
            return np.searchsorted(self.limits, words, side="right")
        firsts = (words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
        index: npt.NDArray[np.int64] = self._guide[firsts].astype(np.int64)
        (doubtful,) = np.nonzero(index < 0)
        index[doubtful] = np.searchsorted(self.limits, words[doubtful], side="right")
        return index

    @cached_property
    def _guide(self) -> npt.NDArray[np.int16]:
        """The block for the first bits of a word, or -1 if more bits are needed."""
        rest = np.uint64(64 - _GUIDE_BITS)
        firsts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << rest
        low = np.searchsorted(self.limits, firsts, side="right")
        high = np.searchsorted(self.limits, firsts | np.uint64((1 << int(rest)) - 1), side="right")
        return np.where(low == high, low, -1).astype(np.int16)


class Noise(ABC):
    """A stream of random numbers that belongs to one message."""

    def part(self, rows: Tensor) -> Noise:  # noqa: ARG002
        """The source to draw from for only these rows (indices or a mask) of a batch."""
        return self

    @abstractmethod
    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation, float32 or float64."""

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
        """Successes (int64) among so many independent trials."""

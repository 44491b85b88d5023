"""Noise of messages: the interface of all sources, and exact noise for real releases.

`simulated_noise` has the sources that follow from a seed.
"""

from __future__ import annotations

import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.files import cores
from diffsketch.privacy.integer_table import (
    CoinsLaw,
    ExponentialLaw,
    Floats,
    Integers,
    Law,
    SkellamLaw,
    integer_table,
)

MAX_SCALE = 2.0**50  # of whole numbers, which then stay far within int64
_PIECE = 1 << 16  # numbers that a thread draws at a time


def count_cells(shape: tuple[int, ...]) -> int:
    """The product of a shape, checked."""
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        check(False, "shape", "be a tuple of sizes >= 0", shape)
    return math.prod(shape)


def checked_probabilities(probabilities: Tensor) -> npt.NDArray[np.float64]:
    """A tensor of probabilities as a flat array; raises unless all are in `[0, 1]`."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        raise ArgumentError("probabilities must be a tensor of a floating type")
    in_numpy = probabilities.dtype in (torch.float32, torch.float64)  # NumPy has no bfloat16
    values = (probabilities if in_numpy else probabilities.float()).detach().cpu().numpy()
    flat = values.astype(np.float64).ravel()
    if len(flat) and not (flat.min() >= 0 and flat.max() <= 1):
        raise ArgumentError("probabilities must be in [0, 1], got others or NaN among them")
    return flat


def _is_some(name: str, value: float, most: int) -> bool:
    """Whether a parameter is above 0; raises unless it is in `[0, 2**most]`."""
    if not 0 <= value <= 2.0**most:
        raise ArgumentError(f"{name} must be in [0, 2**{most}], got {name}={value!r}")
    return value > 0


class Noise(ABC):
    """A stream of random numbers that belongs to one message."""

    def part(self, rows: Tensor) -> Self:  # noqa: ARG002
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
    def words(self, shape: tuple[int, ...]) -> Tensor:
        """64 random bits in each place, as int64."""

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        law = ExponentialLaw(float(std), 2) if _is_some("std", std, 50) else None
        return self._of(law, shape)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        law = ExponentialLaw(float(scale), 1) if _is_some("scale", scale, 50) else None
        return self._of(law, shape)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        law = SkellamLaw(float(variance)) if _is_some("variance", variance, 100) else None
        return self._of(law, shape)

    def binomial(self, shape: tuple[int, ...], trials: int) -> Tensor:
        """Heads (int64) among `trials` fair coins."""
        check_whole("trials", trials, least=0)
        check(trials <= MAX_SCALE, "trials", "be in [0, 2**50]", trials)
        # Pairs of coins are symmetric around their mean, as tables need it; an odd coin is a random
        # bit.
        pairs, odd = divmod(trials, 2)
        heads = self._of(CoinsLaw(pairs) if pairs else None, shape) + pairs
        return heads + (self.words(shape) & 1) if odd else heads

    def _of(self, law: Law | None, shape: tuple[int, ...]) -> Tensor:
        """Draw from a law; zeros without one, and without a draw."""
        if law is None:
            self._size(shape)
            return torch.zeros(shape, dtype=torch.int64)
        return self.integers(shape, law)

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows with a stream of their own in such a shape, and the numbers in each."""
        return 1, count_cells(shape)

    @abstractmethod
    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
        """Integers (int64) of a law whose parameters are checked: the source of those above."""


def random_words(count: int, bits: int = 64) -> npt.NDArray[Any]:
    """Draw `count` words of 32 or 64 bits from the operating system."""
    return np.frombuffer(os.urandom(bits // 8 * count), f"u{bits // 8}")


def in_pieces(draw: Callable[[slice], None], count: int) -> None:
    """Call `draw` for slices of `range(count)`, by as many threads as there are cores."""
    # Most of the time goes to the system's generator, which threads may ask side by side.
    pieces = [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]
    if len(pieces) < 2:
        for piece in pieces:
            draw(piece)
    else:
        with ThreadPoolExecutor(cores()) as pool:
            for done in [pool.submit(draw, piece) for piece in pieces]:
                done.result()


def bernoulli(probabilities: Floats) -> Integers:
    """1 with exactly the probability that each float stands for, else 0.

    A random real number is compared with the probability 32 bits at a time; the next 32 are
    needed only if all before are equal. Scaling by 2**32 and splitting off the whole part are
    exact in float64.
    """
    result = np.empty(len(probabilities), np.int64)

    def fill(piece: slice) -> None:
        places, fractions = np.arange(piece.start, piece.stop), probabilities[piece]
        while len(places):
            # The next 32 binary digits of the probability are the whole part.
            scaled = fractions * 2.0**32
            digits = scaled.astype(np.int64)
            words = random_words(len(fractions), 32).astype(np.int64)
            result[places] = words < digits
            # Equal so far, and digits are left: with none left, the number is not below the
            # probability.
            (tied,) = np.nonzero((words == digits) & (scaled > digits))
            places, fractions = places[tied], (scaled - digits)[tied]

    in_pieces(fill, len(probabilities))
    return result


class SecureNoise(Noise):
    """Whole numbers from the operating system's randomness. Takes no seed and repeats nothing.

    All samplers are exact for the rational number that a float stands for (not for a decimal that
    it was written as: a scale of 0.1 means 3602879701896397 / 2**55), given that the operating
    system's bits are even and independent: their distance from the ideal distributions is 0, and
    nothing is to be added to a delta.

    Whoever can time the calls is not defended against.

    >>> SecureNoise().discrete_gaussian((2, 3), std=4.0).dtype
    torch.int64
    """

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded normal noise gives values away."""
        raise _not_whole(f"normal noise ({shape=}, {std=}, {dtype=})", "discrete_gaussian")

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded Laplace noise gives values away."""
        raise _not_whole(f"Laplace noise ({shape=}, {scale=}, {dtype=})", "discrete_laplace")

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with exactly the probability that each float stands for, else 0 (int64)."""
        values = bernoulli(checked_probabilities(probabilities))
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def words(self, shape: tuple[int, ...]) -> Tensor:
        """64 random bits in each place, as int64."""
        values = random_words(count_cells(shape)).astype(np.int64)
        return torch.from_numpy(values).reshape(shape)

    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
        """Integers that have the law exactly."""
        table, values = integer_table(law), np.empty(count_cells(shape), np.int64)

        def fill(piece: slice) -> None:
            values[piece] = table.draw(random_words, piece.stop - piece.start)

        in_pieces(fill, len(values))
        return torch.from_numpy(values).reshape(shape)


def _not_whole(asked: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"noise must be FastNoise for {asked}: SecureNoise gives whole numbers only, since noise "
        f"in floating point can be attacked through its rounding; use {instead} on whole numbers"
    )

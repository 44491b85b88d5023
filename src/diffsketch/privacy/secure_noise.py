"""Noise for real releases: exact integers and roundings from the operating system's randomness."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.files import cores
from diffsketch.privacy.integer_table import Floats, Integers, Law, integer_table
from diffsketch.privacy.simulated_noise import Noise, checked_probabilities, count_cells

_PIECE = 1 << 16  # numbers that a thread draws at a time


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
        places, rest = np.arange(piece.start, piece.stop), probabilities[piece]
        while len(places):
            # The next 32 binary digits of the probability are the whole part.
            scaled = rest * 2.0**32
            digits = scaled.astype(np.int64)
            words = random_words(len(rest), 32).astype(np.int64)
            result[places] = words < digits
            # Equal so far, and digits are left: with none left, the number is not below the
            # probability.
            (tied,) = np.nonzero((words == digits) & (scaled > digits))
            places, rest = places[tied], (scaled - digits)[tied]

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

    def _integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
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

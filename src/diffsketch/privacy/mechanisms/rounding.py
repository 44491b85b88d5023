"""Stochastic rounding to whole numbers for secure sums, and the rotation before it.

A table of real numbers is clipped, divided by a step (the `granularity`) and rounded at random, so
that integer noise can be added and messages summed modulo a power of two. Rounding can enlarge
the norm; the `Quantizer` that rounds also states the norm that it never exceeds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check, check_choice, check_positive, check_whole
from diffsketch.privacy.claim import Relation
from diffsketch.privacy.clipping import (
    CoordinateBound,
    Encode,
    FlaggedBound,
    NormBound,
    clip_coordinates,
)
from diffsketch.privacy.noise import Noise


def power_of_two(dim: int) -> int:
    """The least power of two that is `dim` or more."""
    check_whole("dim", dim, least=1)
    return 1 << (dim - 1).bit_length()


def rotate(vectors: Tensor, seed: int) -> Tensor:
    """`vectors` (`(..., dim)`) under a random rotation that spreads their mass over all entries.

    Padded with zeros to a power of two, multiplied by signs from the seed, then by the orthonormal
    Hadamard matrix: norms are kept, and `rotate_back` undoes it. The rotation is public.
    """
    size = power_of_two(vectors.shape[-1])
    padded = torch.nn.functional.pad(vectors, (0, size - vectors.shape[-1]))
    return _hadamard(padded * _signs(size, seed).to(padded))


def rotate_back(rotated: Tensor, seed: int, *, dim: int) -> Tensor:
    """The first `dim` entries of the vectors that `rotate` turned into `rotated`."""
    size = rotated.shape[-1]
    if size != power_of_two(dim):
        raise MismatchError(f"expected {power_of_two(dim)} entries for dim={dim}, got {size}")
    return (_hadamard(rotated) * _signs(size, seed).to(rotated))[..., :dim]


def _hadamard(values: Tensor) -> Tensor:
    """The orthonormal Hadamard transform of the last dimension, by butterflies."""
    shape, half = values.shape, 1
    while half < shape[-1]:
        pairs = values.reshape(*shape[:-1], -1, 2, half)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        values = torch.stack((first + second, first - second), dim=-2).reshape(shape)
        half *= 2
    return values / math.sqrt(shape[-1])


def _signs(size: int, seed: int) -> Tensor:
    bits = np.random.Generator(np.random.PCG64(seed)).integers(0, 2, size)
    return torch.from_numpy(1 - 2 * bits)


MAX_BITS = 62
"""The widest modulus is 2**62, so that a message and its centred value fit in an int64."""

_MAX_STEPS = 2.0**30  # of the clipped norm: sums of squares then stay below 2**63
_DRAWS = 64  # of one rounding, before it is rounded towards zero


def stochastic_round(values: Tensor, noise: Noise) -> Tensor:
    """Each value rounded down or up to a whole number (int64), at random, right on average.

    A value `n + f` with a whole `n` and `0 <= f < 1` becomes `n + 1` with probability `f`, else
    `n`. The variance is `f (1 - f)`, at most 1/4.
    """
    low = values.floor()
    return low.to(torch.int64) + noise.bernoulli(values - low)


def wrap(values: Tensor, bits: int) -> Tensor:
    """`values` modulo `2**bits`, in `[0, 2**bits)`.

    Sums of wrapped values may overflow an int64 without harm: its own modulus is a multiple.
    """
    check_whole("bits", bits, least=1, most=MAX_BITS)
    check(values.dtype == torch.int64, "values", "be int64", values.dtype)
    return values & ((1 << bits) - 1)


def centre(values: Tensor, bits: int) -> Tensor:
    """The number in `[-2**(bits - 1), 2**(bits - 1))` that is equal modulo `2**bits`."""
    wrapped = wrap(values, bits)
    return torch.where(wrapped >= 1 << (bits - 1), wrapped - (1 << bits), wrapped)


@dataclass(frozen=True)
class Quantizer:
    """Clips, divides by `granularity` and rounds at random; knows how large the result can be.

    With `c = bound.limit / granularity` and `d = cells`, rounded vectors `x` obey

    * for an L2 bound, `sum(x**2) <= min((c + sqrt(d))**2, c**2 + d/4 +
      sqrt(2 ln(1/rejection)) (c + sqrt(d)/2))`;
    * for an L1 bound, `sum(abs(x)) <= min(c + d, c + sqrt(d ln(1/rejection) / 2))`.

    The first of each pair is what rounding can do at worst. The second holds with probability at
    least `1 - rejection`; a rounding that exceeds it is drawn again (and towards zero in the end),
    as in the distributed discrete Gaussian mechanism. Either way the bound is checked on the
    whole numbers themselves, so it does not rest on floating-point arithmetic.

    Guarantees: the norms are never exceeded (`tests/privacy/test_integer.py::test_norms_hold`);
    rounding is unbiased for `rejection=0`, and else off by at most `rejection / (1 - rejection)`
    steps in a cell (`test_rounding_is_unbiased`, `test_bias_of_drawing_again`).

    Args:
        bound: The clipping of what is sent.
        granularity: The step: a whole number `x` stands for `x * granularity`.
        cells: Entries of what is sent: the dimension of a vector, or rows times columns.
        rejection: Largest probability of drawing again; 0 for the worst-case bound alone.

    References:
        Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation, section 4 (conditional randomised rounding).
    """

    bound: NormBound | FlaggedBound
    granularity: float
    cells: int
    rejection: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("granularity", self.granularity)
        check_whole("cells", self.cells, least=1)
        check(0 <= self.rejection < 1, "rejection", "be in [0, 1)", self.rejection)
        least = self.bound.limit / _MAX_STEPS
        check(self.granularity >= least, "granularity", f"be >= {least:g}", self.granularity)

    @property
    def largest(self) -> int:
        """The largest sum of squares (L2 bound) or of absolute values (L1 bound) of a message."""
        steps, cells = self.bound.limit / self.granularity, float(self.cells)
        tail = math.log(1 / self.rejection) if self.rejection else math.inf
        if self.bound.order == 2:
            worst = (steps + math.sqrt(cells)) ** 2
            spread = math.sqrt(2 * tail) * (steps + math.sqrt(cells) / 2)
            likely = steps**2 + cells / 4 + spread
        else:
            worst, likely = steps + cells, steps + math.sqrt(cells * tail / 2)
        return max(1, math.floor(min(worst, likely)))

    def norm(self, order: Literal[1, 2]) -> float:
        """The largest norm of a message, in steps.

        A vector of whole numbers has an L1 norm of at most its sum of squares, and an L2 norm of
        at most its L1 norm.
        """
        check(order in (1, 2), "order", "be 1 or 2", order)
        if self.bound.order == 1:
            return float(self.largest)
        if order == 2:
            return math.sqrt(self.largest)
        return float(min(self.largest, math.isqrt(self.largest * self.cells)))

    @property
    def longest(self) -> float:
        """The largest Euclidean norm of a message, in steps."""
        return self.norm(2)

    @property
    def peak(self) -> int:
        """The largest size of a cell, in steps."""
        return math.floor(self.norm(2))

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """The largest change of a sum of messages, in steps: the norm, or twice for `replace`."""
        return self.norm(order) * check_choice("relation", relation, Relation).values

    def apply(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """Whole numbers (int64) without noise: `(..., dim)` in, `(..., dim)` or tables out.

        Raises:
            ArgumentError: A value is NaN or infinite.
            MismatchError: What is to be sent has not `cells` entries.
        """
        bounded = self.bound.apply(vectors, encode)
        shape, trailing = bounded.shape, 1 + bounded.dim() - vectors.dim()
        if math.prod(shape[-trailing:]) != self.cells:
            found = tuple(shape[-trailing:])
            raise MismatchError(f"expected {self.cells} cells in a message, got shape {found}")
        exact = bounded.detach().to("cpu", torch.float64).reshape(-1, self.cells)
        return self._rounded(exact / self.granularity, noise).reshape(shape).to(bounded.device)

    def _rounded(self, exact: Tensor, noise: Noise) -> Tensor:
        result = stochastic_round(exact, noise)
        for _ in range(_DRAWS):
            again = self._size(result) > self.largest
            if not bool(again.any()):
                return result
            result[again] = stochastic_round(exact[again], noise.part(again))
        # Never an error here: whether there is one would depend on private data.
        again = self._size(result) > self.largest
        return torch.where(again[:, None], exact.trunc().to(torch.int64), result)

    def _size(self, values: Tensor) -> Tensor:
        sizes = values.square() if self.bound.order == 2 else values.abs()
        return sizes.sum(dim=-1)


@dataclass(frozen=True)
class CoordinateQuantizer:
    """Clips every coordinate, rounds it at random to one of `2 steps + 1` levels, then encodes.

    The rounded coordinates are whole numbers of size `steps` at most, and tables are sums of them
    in float64, which is exact below `2**53`: so one coordinate moves the whole numbers of a table
    by just what `sensitivity` says. Sums of the coordinates themselves in float32 would not do:
    their rounding lets one coordinate move a cell by more (2.0226 where 2 is stated was found for
    10**6 coordinates in 100 columns; `tests/privacy/test_integer.py::test_float_sums_move_more`).

    Args:
        bound: The clipping of a coordinate, and in how many rows it is.
        steps: Number of steps in `bound.limit`.
        cells: Entries of a message.
        dim: Coordinates of a vector, where they are encoded; as many as cells, where they are not.
        load: Coordinates of a cell, at most, for the range of a cell: accuracy depends on it, and
            privacy does not.
    """

    bound: CoordinateBound
    steps: int
    cells: int
    dim: int | None = None
    load: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "cells", "load"):
            check_whole(name, getattr(self, name), least=1)
        most = 2**53 // (self.dim or 1)  # or sums in float64 were not exact
        check(self.steps <= most, "steps", f"be <= {most} for dim={self.dim}", self.steps)

    @property
    def granularity(self) -> float:
        """The step: a whole number `x` stands for `x * granularity`."""
        return self.bound.limit / self.steps

    @property
    def longest(self) -> float:
        """The largest Euclidean norm of a message, in steps: all coordinates in one cell of a row.

        Without a table, they are apart.
        """
        if self.dim is None:
            return self.steps * math.sqrt(self.cells)
        return self.steps * self.dim * math.sqrt(self.bound.rows)

    @property
    def peak(self) -> int:
        """The largest size of a cell, in steps."""
        return self.steps * self.load

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """The largest change of a message by one coordinate, in steps."""
        return replace(self.bound, limit=float(self.steps)).sensitivity(order, relation)

    def apply(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """Whole numbers (int64) without noise: `(..., dim)` in, `(..., dim)` or tables out.

        Raises:
            ArgumentError: A value is NaN or infinite.
        """
        clipped = clip_coordinates(vectors, self.bound.limit).detach()
        # A quotient of size 1 at most, in floating point too, so that none exceeds `steps`.
        exact = (clipped.to("cpu", torch.float64) / self.bound.limit).clamp(-1, 1) * self.steps
        rounded = stochastic_round(exact, noise).to(vectors.device)
        if encode is None:
            return rounded
        return encode(rounded.double()).to(torch.int64)

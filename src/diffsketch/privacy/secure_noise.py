"""Noise for real releases: exact samplers on the operating system's randomness.

Every comparison of a random real number with a probability is decided by as many bits as it takes.
Nearly always the first 32 or 64 and a bound in floating point are enough; the rest is decided in
many digits. So all of them are exact, for the rational numbers that their float parameters stand
for. None of them takes constant time.
"""

from __future__ import annotations

import decimal
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.files import cores
from diffsketch.privacy.simulated_noise import (
    BlockSearch,
    Floats,
    Integers,
    Noise,
    checked_probabilities,
    count_cells,
)

Words: TypeAlias = npt.NDArray[np.uint64]

SLACK = 2.0**-40  # a bound on the error of `Law.weights`, with room for the arithmetic that follows
MAX_BLOCKS = 1 << 13  # of a table
_WORD = 64
_PIECE = 1 << 16  # numbers that a thread draws at a time
_TAIL = 44.0  # exp(-44) is about 2**-63.5: where tables end, and tails are drawn otherwise


def random_words(count: int, bits: int = _WORD) -> npt.NDArray[Any]:
    """So many words of 32 or 64 bits from the operating system."""
    return np.frombuffer(os.urandom(bits // 8 * count), f"u{bits // 8}")


def in_pieces(draw: Callable[[slice], None], count: int) -> None:
    """Call `draw` for slices of `range(count)`, by as many threads as there are cores."""
    pieces = [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]
    if len(pieces) < 2:
        for piece in pieces:
            draw(piece)
    else:
        with ThreadPoolExecutor(cores()) as pool:
            for done in [pool.submit(draw, piece) for piece in pieces]:
                done.result()


# Laws are symmetric, log-concave distributions over the integers, up to a constant factor.
# `weights` are of order 1 at 0, with an absolute error below `SLACK / 4`, for `abs(x)` up to
# `1.1 * radius + 2`. Functions of NumPy are taken to be right to 2**-46, where its own bound is 4
# units in the last place, 2**-50. `digits` is a whole number within 1 of `2**bits` times the weight
# of any `x`. Weights from `radius` on, where tails begin, are below half of that of 0.


@dataclass(frozen=True)
class ExponentialLaw:
    """Weights `exp(-abs(x / scale)**power / power)`: Laplace for power 1, Gaussian for power 2."""

    scale: float
    power: int

    @property
    def radius(self) -> int:
        """Begin of the tails."""
        return math.ceil(math.pow(self.power * _TAIL, 1 / self.power) * self.scale) + 1

    def weights(self, x: Integers) -> Floats:
        """Float weights. An error of `t * 2**-50` in the exponent `t` is one below 2**-51."""
        with np.errstate(over="ignore"):  # far beyond a tiny scale: a weight of 0
            return np.asarray(np.exp(-(np.abs(x / self.scale) ** self.power) / self.power))

    def digits(self, x: int, bits: int) -> int:
        """The weight in so many binary digits."""
        power: Fraction = (abs(x) / Fraction(self.scale)) ** self.power / self.power
        if power > bits:
            return 0
        # The quotient is wrong by at most bits * 10**-prec, and so is its exponential.
        with decimal.localcontext(decimal.Context(prec=_decimals(bits))):
            weight: Decimal = (Decimal(-power.numerator) / power.denominator).exp()
            return round(weight * (1 << bits))


def _decimals(bits: int) -> int:
    """Decimal digits for a number of so many bits, with room for `10**6 * bits` rounding errors."""
    return math.ceil(0.30103 * bits) + 2 * len(str(bits)) + 8


@dataclass(frozen=True)
class SkellamLaw:
    """Weights `2**shift * exp(-v) I(x, v)`, with the variance `v` and the Bessel function `I`.

    `p(x) = exp(-v) I(x, v)` are the coefficients of the Fourier series of the characteristic
    function `exp(-v (1 - cos t))`. Its mean over the `size` angles `t = 2 pi j / size`, each times
    `cos(t x)`, is the sum of `p(x + m size)` over all whole numbers `m`, exactly. So it is `p(x)`
    plus at most the probability of numbers from `size - abs(x)` on, which Bernstein's inequality
    bounds by `2 exp(-tail)` for a `size` of `abs(x) + _bernstein(v, tail)`. Angles for which the
    characteristic function is below `exp(-tail)` are left out, which changes the mean by less than
    that. As `size` grows like the deviation and the angles that are left fall like its inverse,
    some `tail * 2 / pi` of them remain at any variance.
    """

    variance: float

    @property
    def radius(self) -> int:
        """Begin of the tails."""
        return _bernstein(self.variance, _TAIL)

    @cached_property
    def _shift(self) -> int:
        """Binary scale of the weights: the largest probability is about `0.4 / std`."""
        return max(0, round(math.log2(self.variance) / 2))

    @cached_property
    def _angles(self) -> tuple[int, Integers, Floats]:
        """`size`, the numbers `j` of angles, and their parts in the mean."""
        tail = (46 + self._shift) * math.log(2)  # 3 exp(-tail) of p is 3 * 2**-46 of a weight
        size = (int(1.1 * self.radius) + 3 + _bernstein(self.variance, tail)) | 1
        most = math.asin(min(1.0, math.sqrt(tail / 2 / self.variance))) * size / math.pi
        j = np.arange(min(size // 2, math.ceil(most)) + 1)
        parts = np.exp(-2 * self.variance * np.square(np.sin(np.pi * j / size)))
        parts[1:] *= 2  # the angles -t
        return size, j, np.ldexp(parts / size, self._shift)

    def weights(self, x: Integers) -> Floats:
        """Float weights. The parts add up to that of 0, so errors stay of their size."""
        size, j, parts = self._angles
        turns = (np.abs(x)[:, None] * j) % size / size
        return np.asarray(np.cos(2 * np.pi * turns) @ parts)

    def digits(self, x: int, bits: int) -> int:
        """The weight in so many binary digits."""
        bits += self._shift
        tail = (bits + 4) * math.log(2)
        size = (abs(x) + _bernstein(self.variance, tail)) | 1
        with decimal.localcontext(decimal.Context(prec=_decimals(bits))):
            pi = 16 * _arctan_inverse(5) - 4 * _arctan_inverse(239)  # Machin's formula
            twice, total, j = Decimal(2 * self.variance), Decimal(1), 1
            while j <= size // 2:
                power = twice * _sin(pi * j / size) ** 2
                if power > tail:
                    break
                turn = j * x % size  # cos(2 y) is 1 - 2 sin(y)**2
                cosine = 1 - 2 * _sin(pi * min(turn, size - turn) / size) ** 2
                total += 2 * (-power).exp() * cosine
                j += 1
            return round(total / size * (1 << bits))


def _bernstein(variance: float, tail: float) -> int:
    """A distance that Skellam numbers exceed or reach with probability below `2 exp(-tail)`."""
    return math.ceil((tail / 3 + math.sqrt(tail**2 / 9 + 2 * tail * variance)) * (1 + 1e-12)) + 1


def _arctan_inverse(x: int) -> Decimal:
    total, power, k = Decimal(0), Decimal(1) / x, 1
    while total + power != total:
        total += power / k if k % 4 == 1 else -power / k
        power, k = power / (x * x), k + 2
    return total


def _sin(angle: Decimal) -> Decimal:
    """Sine by its series, for angles from 0 to pi / 2."""
    total, term, square, k = angle, angle, angle * angle, 1
    while total + term != total:
        term = -term * square / ((k + 1) * (k + 2))
        total, k = total + term, k + 2
    return total


Law: TypeAlias = ExponentialLaw | SkellamLaw


@dataclass(frozen=True)
class ExactTable:
    """A distribution to draw from, exactly, by blocks of `2**shift` integers and rejection.

    Block `b` gets a whole number `size[b]` of the `2**64` random words, at least `factor` times its
    largest weight. A word picks the block that it is in and has a place in it, `0 .. size[b] - 1`;
    an integer `x` of the block is drawn evenly, and kept if `place + u < factor * weight(x)` with a
    random real `u` in `[0, 1)`. So each integer is kept with probability `factor * weight(x) /
    2**(64 + shift)`, and what is kept has the law exactly, however good or bad the sizes are.

    Places below `sure` are kept whatever `x` and `u` are, by a bound in floating point. A few in a
    thousand need the weight in floating point, of wide distributions, and some 2**-36 of them need
    `u` and more digits. Words beyond all blocks and the tails are not kept.

    *Tails.* They have a number of words as well: the absolute value is `end + k * 2**tail_bits` and
    `tail_bits` even bits, with `k` the heads before the first tail of a coin, and a coin is the
    sign (one more below zero, as blocks are from `-end` to `end - 1`). Weights at the `k`-th of
    these steps are below `2**-k` times that at `end`, as the logarithm of the weight is concave,
    has fallen by `log(2)` or more from 0 to `end`, and a step is at least as long. So the words
    that the first step needs are enough, and to keep `x` is decided as above with
    `factor * 2**(k + 2 + tail_bits - shift)`.

    Guarantees (`tests/privacy/test_secure_noise.py`): sizes and `sure` are on the right side of
    exact weights; the rule decides as exact weights do on chosen bits.
    """

    law: Law
    shift: int  # binary logarithm of a block's length
    lowest: int  # first integer of the first block
    factor: int  # words for a weight of 1
    starts: Words  # first word of each block, of the tails, and of those that are never kept
    sure: Words  # words of a block below this are kept

    @classmethod
    def build(cls, law: Law) -> ExactTable:
        """The table for a law; takes some milliseconds."""
        shift = max(0, (2 * law.radius).bit_length() - (MAX_BLOCKS.bit_length() - 1))
        half = (law.radius >> shift) + 1
        blocks = np.arange(-half, half, dtype=np.int64)
        near = np.where(blocks < 0, -(blocks + 1 << shift) + 1, blocks << shift)
        far = np.where(blocks < 0, -blocks << shift, (blocks + 1 << shift) - 1)
        peaks = law.weights(near)
        lows = law.weights(far) if shift else peaks
        steps = 1 << (half << shift).bit_length() - shift + 2
        last = float(law.weights(np.array([half << shift]))[0])
        tops = np.append(peaks, last * steps) + SLACK * np.append(np.ones(2 * half), steps)
        # With room for the rounding of sums and for the ones that are added.
        factor = int((1 - 2.0**-30) * 2.0**_WORD / tops.sum())
        starts = np.zeros(2 * half + 2, np.uint64)
        np.cumsum((factor * tops).astype(np.uint64) + np.uint64(1), out=starts[1:])
        sure = np.zeros(2 * half + 2, np.uint64)
        sure[:-2] = starts[:-2] + (factor * np.maximum(lows - SLACK, 0)).astype(np.uint64)
        for array in (starts, sure):
            array.setflags(write=False)
        return cls(law, shift, -half << shift, factor, starts, sure)

    @cached_property
    def _search(self) -> BlockSearch:
        return BlockSearch(self.starts[1:])

    def draw(self, count: int) -> Integers:
        """So many integers, independent of each other."""
        result = np.empty(count, np.int64)

        def fill(piece: slice) -> None:
            values, kept = self._propose(piece.stop - piece.start)
            while not kept.all():
                (missing,) = np.nonzero(~kept)
                values[missing], kept[missing] = self._propose(len(missing))
            result[piece] = values

        in_pieces(fill, count)
        return result

    def _propose(self, count: int) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Integers, and whether they are kept."""
        words = random_words(count)
        index = self._search.find(words)
        values = (index << self.shift) + self.lowest
        if self.shift:
            bits = 32 if self.shift <= 32 else _WORD
            values += (random_words(count, bits) >> (bits - self.shift)).astype(np.int64)
        kept = words < self.sure[index]
        (doubtful,) = np.nonzero(~kept)
        if len(doubtful):
            at = index[doubtful]
            places = words[doubtful] - self.starts[at]
            values[doubtful], kept[doubtful] = self._decide(values[doubtful], at, places)
        return values, kept

    def _decide(
        self, values: Integers, index: Integers, places: Words
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """The same integers, but new ones for the tails, and whether they are kept."""
        tails = len(self.starts) - 2
        weights = np.zeros(len(values))
        inner = index < tails
        weights[inner] = self.law.weights(values[inner])
        kept = inner & (places + 1.0 <= self.factor * (weights - SLACK))
        unclear = ~kept & (places < self.factor * (weights + SLACK)) & inner
        end = -self.lowest
        bits = end.bit_length()
        for i in np.flatnonzero(unclear | (index == tails)):
            factor = self.factor
            if index[i] == tails:
                k = 0
                while int(random_words(1)[0]) & 1:
                    k += 1
                word = int(random_words(1)[0])
                size = end + (k << bits) + (word & (1 << bits) - 1)
                values[i] = ~size if word >> 63 else size  # blocks are from -end to end - 1
                factor <<= k + 2 + bits - self.shift
            kept[i] = self._keep(int(values[i]), int(places[i]), factor)
        return values, kept

    def _keep(self, x: int, place: int, factor: int) -> bool:
        """Whether `place + u < factor * weight(x)`, for a random real number `u`."""
        bits = 0
        while True:
            bits, place = bits + _WORD, (place << _WORD) + int(random_words(1)[0])
            more = factor.bit_length() + 8
            weight = self.law.digits(x, bits + more)
            if place << more >= factor * (weight + 1):
                return False
            if place + 1 << more <= factor * (weight - 1):
                return True


@lru_cache(maxsize=64)
def exact_table(law: Law) -> ExactTable:
    """The table of a law, kept for the next draw from it."""
    return ExactTable.build(law)


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
            scaled = rest * 2.0**32
            digits = scaled.astype(np.int64)
            words = random_words(len(rest), 32).astype(np.int64)
            result[places] = words < digits
            (tied,) = np.nonzero((words == digits) & (scaled > digits))
            places, rest = places[tied], (scaled - digits)[tied]

    in_pieces(fill, len(probabilities))
    return result


def binomial(count: int, trials: int, probability: float) -> Integers:
    """Exact binomial numbers; takes some `trials / 4` bytes of the system's randomness for each.

    All trials of a number compare their random reals with `probability` bit by bit. A fair coin
    gives the next bit of those that are still equal to it: where `probability` has a 1, the zeros
    are below and succeed; where it has a 0, the ones are above and fail.
    """
    result = np.zeros(count, np.int64)
    if probability == 1:
        return result + trials

    def fill(piece: slice) -> None:
        rest, undecided = probability, np.full(piece.stop - piece.start, trials, np.int64)
        while rest > 0 and undecided.any():
            equal = _coins(undecided)
            rest *= 2
            if rest >= 1:
                rest -= 1
                result[piece] += undecided - equal
            undecided = equal

    in_pieces(fill, count)
    return result


def _coins(tosses: Integers) -> Integers:
    """Number of heads among so many fair coins: random bits, counted."""
    masks = (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
    pairs, fours, eights = (np.uint64(mask) for mask in masks)
    heads = np.zeros_like(tosses)
    for done in range(0, int(tosses.max()), _WORD):
        (active,) = np.nonzero(tosses > done)
        unused = np.maximum(0, done + _WORD - tosses[active]).astype(np.uint64)
        words = random_words(len(active)) >> unused
        # The set bits of each word: sums of pairs, of fours, of bytes, and of all bytes.
        words = words - ((words >> np.uint64(1)) & pairs)
        words = (words & fours) + ((words >> np.uint64(2)) & fours)
        words = (words + (words >> np.uint64(4))) & eights
        heads[active] += ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).view(np.int64)
    return heads


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

    def _integers(self, shape: tuple[int, ...], law: str, *parameters: float) -> Tensor:
        count, first = count_cells(shape), float(parameters[0])
        if law == "binomial":
            values = binomial(count, int(first), parameters[1])
        elif not first:
            values = np.zeros(count, np.int64)
        elif law == "skellam":
            values = exact_table(SkellamLaw(first)).draw(count)
        else:
            power = 2 if law == "discrete_gaussian" else 1
            values = exact_table(ExponentialLaw(first, power)).draw(count)
        return torch.from_numpy(values).reshape(shape)


def _not_whole(asked: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"noise must be FastNoise for {asked}: SecureNoise gives whole numbers only, since noise "
        f"in floating point can be attacked through its rounding; use {instead} on whole numbers"
    )

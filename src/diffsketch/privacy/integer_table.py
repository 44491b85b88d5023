"""Integer laws, and tables that draw from them exactly: one engine for any source of random words.

Every comparison of a random real number with a probability is decided by as many bits as it takes.
Nearly always the first 64 and a bound in floating point are enough; the rest is decided in many
digits. So numbers have exactly the law of the rational number that a float parameter stands for,
if the words are even and independent: those of the operating system, or a seeded generator's, for
simulation (`noise`). None of it takes constant time.
"""

from __future__ import annotations

import decimal
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Words: TypeAlias = npt.NDArray[np.uint64]
WordSource: TypeAlias = Callable[[int, int], npt.NDArray[Any]]
"""Draws `count` random words of `bits` bits, 32 or 64: `uint32` or `uint64`."""

SLACK = 2.0**-40  # a bound on the error of `Law.weights`, with room for the arithmetic that follows
MAX_BLOCKS = 1 << 14  # of a table: its cost is then below that of a few thousand draws
_WORD = 64
_TAIL = 44.0  # exp(-44) is about 2**-63.5: where tables end, and tails are drawn otherwise
_GUIDE_BITS = 16  # of a random word that tell the block at once, in most cases
# Draws from which on the guide beats a search: 4 us against 5 for these, 20 against 700 for 16,000.
# To make it takes some ms, but once for a law: runs draw from it in each round, for every device.
_GUIDE_FROM = 1 << 9


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
        # Where the exponent `abs(x / scale)**power / power` reaches `_TAIL`.
        return math.ceil(math.pow(self.power * _TAIL, 1 / self.power) * self.scale) + 1

    def weights(self, x: Integers) -> Floats:
        """Float weights. An error of `t * 2**-50` in the exponent `t` is one below 2**-51."""
        with np.errstate(over="ignore"):  # far beyond a tiny scale: a weight of 0
            return np.asarray(np.exp(-(np.abs(x / self.scale) ** self.power) / self.power))

    def digits(self, x: int, bits: int) -> int:
        """The weight in `bits` binary digits."""
        power: Fraction = (abs(x) / Fraction(self.scale)) ** self.power / self.power
        # The weight is below `exp(-bits)`, and so less than one unit of the last digit.
        if power > bits:
            return 0
        # The quotient is wrong by at most bits * 10**-prec, and so is its exponential.
        with decimal.localcontext(decimal.Context(prec=_decimals(bits))):
            weight: Decimal = (Decimal(-power.numerator) / power.denominator).exp()
            return round(weight * (1 << bits))


def _decimals(bits: int) -> int:
    """Decimal digits for a number of `bits` bits, with room for `10**6 * bits` rounding errors."""
    return math.ceil(0.30103 * bits) + 2 * len(str(bits)) + 8


class FourierLaw(ABC):
    """Weights `2**shift * p(x)` of a law with variance `v` and a known characteristic function.

    `p(x)` are the coefficients of the Fourier series of the characteristic function `c(t)`. Its
    mean over the `size` angles `t = 2 pi j / size`, each times `cos(t x)`, is the sum of `p(x + m
    size)` over all whole numbers `m`, exactly. So it is `p(x)` plus at most the probability of
    numbers from `size - abs(x)` on, which Bernstein's inequality bounds by `2 exp(-tail)` for a
    `size` of `abs(x) + _bernstein(v, tail)`. All laws here have `c(t) <= exp(-2 v s)` with `s =
    sin(t / 2)**2`. Angles for which that bound is below `exp(-tail)` are left out, which changes
    the mean by less than that. As `size` grows like the deviation and the angles that are left fall
    like its inverse, some `tail * 2 / pi` of them remain at any variance.
    """

    variance: float

    @abstractmethod
    def _characteristic(self, squares: Floats) -> Floats:
        """Return `c(t)` for each `s`."""

    @abstractmethod
    def _exact_characteristic(self, square: Decimal) -> Decimal:
        """Return `c(t)` in the digits of the context."""

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
        # Errors of 2**-46 of a weight, which is `2**shift` times a probability.
        tail = (46 + self._shift) * math.log(2)  # 3 exp(-tail) of p is 3 * 2**-46 of a weight
        size = (int(1.1 * self.radius) + 3 + _bernstein(self.variance, tail)) | 1
        # From this angle on `exp(-2 v s)` is below `exp(-tail)`.
        most = math.asin(min(1.0, math.sqrt(tail / 2 / self.variance))) * size / math.pi
        j = np.arange(min(size // 2, math.ceil(most)) + 1)
        parts = self._characteristic(np.square(np.sin(np.pi * j / size)))
        parts[1:] *= 2  # the angles -t
        return size, j, np.ldexp(parts / size, self._shift)

    def weights(self, x: Integers) -> Floats:
        """Float weights. The parts add up to that of 0, so errors stay of their size."""
        size, j, parts = self._angles
        # Reduced before it is divided: large angles would lose the digits that a cosine depends on.
        turns = (np.abs(x)[:, None] * j) % size / size
        return np.asarray(np.cos(2 * np.pi * turns) @ parts)

    def digits(self, x: int, bits: int) -> int:
        """The weight in `bits` binary digits."""
        bits += self._shift
        tail = (bits + 4) * math.log(2)
        size = (abs(x) + _bernstein(self.variance, tail)) | 1
        with decimal.localcontext(decimal.Context(prec=_decimals(bits))):
            pi = 16 * _arctan_inverse(5) - 4 * _arctan_inverse(239)  # Machin's formula
            twice, total, j = Decimal(2 * self.variance), Decimal(1), 1
            while j <= size // 2:
                square = _sin(pi * j / size) ** 2
                if twice * square > tail:
                    break
                # Reduced in whole numbers, so that huge `x` lose no digits.
                turn = j * x % size  # cos(2 y) is 1 - 2 sin(y)**2
                cosine = 1 - 2 * _sin(pi * min(turn, size - turn) / size) ** 2
                total += 2 * self._exact_characteristic(square) * cosine
                j += 1
            return round(total / size * (1 << bits))


@dataclass(frozen=True)
class SkellamLaw(FourierLaw):
    """The difference of two Poisson numbers: `c(t)` is `exp(-v (1 - cos t))`, or `exp(-2 v s)`."""

    variance: float

    def _characteristic(self, squares: Floats) -> Floats:
        return np.asarray(np.exp(-2 * self.variance * squares))

    def _exact_characteristic(self, square: Decimal) -> Decimal:
        return (-Decimal(2 * self.variance) * square).exp()


@dataclass(frozen=True)
class CoinsLaw(FourierLaw):
    """Heads among `2 pairs` fair coins, less `pairs`: `c(t)` is `cos(t / 2)**(2 pairs)`."""

    pairs: int

    @property
    def variance(self) -> float:  # type: ignore[override]
        """A quarter for each coin."""
        return self.pairs / 2

    def _characteristic(self, squares: Floats) -> Floats:
        # By the logarithm: a power would multiply the rounding of `1 - s`.
        return np.asarray(np.exp(self.pairs * np.log1p(-squares)))

    def _exact_characteristic(self, square: Decimal) -> Decimal:
        with decimal.localcontext() as context:
            context.prec += len(str(self.pairs))  # as a power multiplies it here
            return (1 - square) ** self.pairs


def _bernstein(variance: float, tail: float) -> int:
    """A distance that sums of steps up to 1 reach with probability below `2 exp(-tail)`."""
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


Law: TypeAlias = ExponentialLaw | FourierLaw


@dataclass(frozen=True)
class IntegerTable:
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

    Guarantees (`tests/privacy/test_integer_table.py`): sizes and `sure` are on the right side of
    exact weights; the rule decides as exact weights do on chosen bits.
    """

    law: Law
    shift: int  # binary logarithm of a block's length
    lowest: int  # first integer of the first block
    factor: int  # words for a weight of 1
    starts: Words  # first word of each block, of the tails, and of those that are never kept
    sure: Words  # words of a block below this are kept

    @classmethod
    def build(cls, law: Law) -> IntegerTable:
        """The table for a law; takes some milliseconds."""
        # Blocks as short as the table's size allows: one integer each, for narrow laws.
        shift = max(0, (2 * law.radius).bit_length() - (MAX_BLOCKS.bit_length() - 1))
        # Blocks on both sides of 0, of which the outermost reach beyond the radius.
        half = (law.radius >> shift) + 1
        blocks = np.arange(-half, half, dtype=np.int64)
        # Weights fall with the size: a block is highest at its end near 0 and lowest at the other.
        near = np.where(blocks < 0, -(blocks + 1 << shift) + 1, blocks << shift)
        far = np.where(blocks < 0, -blocks << shift, (blocks + 1 << shift) - 1)
        peaks = law.weights(near)
        lows = law.weights(far) if shift else peaks
        # Words for the tails: as many as their first step needs, in units of the last weight.
        steps = 1 << (half << shift).bit_length() - shift + 2
        last = float(law.weights(np.array([half << shift]))[0])
        tops = np.append(peaks, last * steps) + SLACK * np.append(np.ones(2 * half), steps)
        # With room for the rounding of sums and for the ones that are added.
        # All words but a part in 2**30 belong to a block or a tail.
        factor = int((1 - 2.0**-30) * 2.0**_WORD / tops.sum())
        starts = np.zeros(2 * half + 2, np.uint64)
        np.cumsum((factor * tops).astype(np.uint64) + np.uint64(1), out=starts[1:])
        sure = np.zeros(2 * half + 2, np.uint64)
        sure[:-2] = starts[:-2] + (factor * np.maximum(lows - SLACK, 0)).astype(np.uint64)
        for array in (starts, sure):
            array.setflags(write=False)
        return cls(law, shift, -half << shift, factor, starts, sure)

    @cached_property
    def _guide(self) -> npt.NDArray[np.int16]:
        """The block of all words that begin with some bits, if all of them are kept; else -1."""
        # The smallest and the largest word that begin with these bits.
        first = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << np.uint64(_WORD - _GUIDE_BITS)
        last = first + np.uint64((1 << _WORD - _GUIDE_BITS) - 1)
        index = np.searchsorted(self.starts[1:], first, side="right")
        return np.where(last < self.sure[index], index, -1).astype(np.int16)

    def find(self, words: Words) -> tuple[Integers, Integers]:
        """Return the block of each word, and the places of those that are not surely kept.

        The guide saves most searches and changes no result.
        """
        if len(words) < _GUIDE_FROM:
            index = np.searchsorted(self.starts[1:], words, side="right")
            return index, np.flatnonzero(words >= self.sure[index])
        prefixes = (words >> np.uint64(_WORD - _GUIDE_BITS)).view(np.int64)
        index = self._guide[prefixes].astype(np.int64)
        (doubtful,) = np.nonzero(index < 0)
        searched = np.searchsorted(self.starts[1:], words[doubtful], side="right")
        index[doubtful] = searched
        return index, doubtful[words[doubtful] >= self.sure[searched]]

    @cached_property
    def low_bits(self) -> int:
        """Bits of the words that tell integers of a block apart; 0 if a block is one integer."""
        return 0 if not self.shift else 32 if self.shift <= 32 else _WORD

    def draw(self, source: WordSource, count: int) -> Integers:
        """Draw `count` integers, independent of each other."""
        words = source(count, _WORD)
        lows = source(count, self.low_bits) if self.shift else None
        values, unsettled = self.look_up(words, lows)
        if len(unsettled):
            values[unsettled] = self.settle(source, words[unsettled], values[unsettled])
        return values

    def look_up(self, words: Words, lows: npt.NDArray[Any] | None) -> tuple[Integers, Integers]:
        """Return the integer that each word proposes, and the places where more words decide.

        Args:
            words: One of 64 bits for each integer; of any number of messages.
            lows: One of `low_bits` for each, if that is not 0.
        """
        index, unclear = self.find(words)
        values = (index << self.shift) + self.lowest
        if self.shift and lows is not None:
            values += (lows >> (self.low_bits - self.shift)).astype(np.int64)
        if len(unclear):
            at, proposed = index[unclear], values[unclear]
            places, inner = words[unclear] - self.starts[at], at < len(self.starts) - 2
            least = self.factor * (self._weights(proposed, inner) - SLACK)
            # A whole word more, since the random real beside the place is below 1.
            unclear = unclear[~(inner & (places + 1.0 <= least))]
        return values, unclear

    def settle(self, source: WordSource, words: Words, values: Integers) -> Integers:
        """Decide about what `look_up` proposed and did not decide; draw again what is not kept."""
        index, _ = self.find(words)
        tails = len(self.starts) - 2
        places, inner, kept = words - self.starts[index], index < tails, np.zeros(len(words), bool)
        # What cannot be kept whatever the further bits are needs none of them.
        possible = inner & (places < self.factor * (self._weights(values, inner) + SLACK))
        end = -self.lowest
        bits = end.bit_length()
        for i in np.flatnonzero(possible | (index == tails)):
            factor = self.factor
            if index[i] == tails:
                k = 0
                # Which step of the tail: geometric, by fair coins.
                while int(source(1, _WORD)[0]) & 1:
                    k += 1
                word = int(source(1, _WORD)[0])
                size = end + (k << bits) + (word & (1 << bits) - 1)
                values[i] = ~size if word >> 63 else size  # blocks are from -end to end - 1
                # A number of step `k` is proposed with probability `2**-(k + 2 + bits)`, one of a
                # block with `2**-shift`.
                factor <<= k + 2 + bits - self.shift
            kept[i] = self._keep(source, int(values[i]), int(places[i]), factor)
        if not kept.all():
            values[~kept] = self.draw(source, int((~kept).sum()))
        return values

    def _weights(self, values: Integers, inner: npt.NDArray[np.bool_]) -> Floats:
        """Float weights of integers in blocks; 0 for others, whose value is still unknown."""
        weights = np.zeros(len(values))
        weights[inner] = self.law.weights(values[inner])
        return weights

    def _keep(self, source: WordSource, x: int, place: int, factor: int) -> bool:
        """Whether `place + u < factor * weight(x)`, for a random real number `u`."""
        bits = 0
        while True:
            bits, place = bits + _WORD, (place << _WORD) + int(source(1, _WORD)[0])
            # Enough digits that `factor` times their error is below the last bit of the place.
            more = factor.bit_length() + 8
            weight = self.law.digits(x, bits + more)
            # `weight` is within 1 of the exact one: decide where both bounds agree.
            if place << more >= factor * (weight + 1):
                return False
            if place + 1 << more <= factor * (weight - 1):
                return True


@lru_cache(maxsize=64)
def integer_table(law: Law) -> IntegerTable:
    """Return the table of a law, kept for the next draw from it."""
    return IntegerTable.build(law)

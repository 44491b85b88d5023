"""Samplers that take bits of the operating system: what `SecureNoise` draws beside OpenDP.

Every comparison of a random number with a probability is decided by as many bits as it takes, so
that `bernoulli` and `binomial` are exact for the probability that a float stands for. `Skellam` is
a table of 128-bit whole numbers, whose error is stated. None of them takes constant time.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["SKELLAM_ERROR", "SKELLAM_MAX_VARIANCE", "SkellamTable", "bernoulli", "binomial"]

Integers: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]

SKELLAM_MAX_VARIANCE = 2.0**30
SKELLAM_ERROR = 2.0**-100  # in total variation, per number
_WORD = 64
_PRECISION = 256  # bits that the Bessel functions start with
_TAIL = 110.0  # 2 exp(-110) < 2**-157: where the Skellam distribution is cut off
_PIECE = 1 << 20  # numbers drawn at a time, which bounds the memory


def random_words(count: int) -> Words:
    """So many words of 64 bits from the operating system."""
    return np.frombuffer(os.urandom(8 * count), np.uint64)


def bernoulli(probabilities: npt.NDArray[np.float64]) -> Integers:
    """1 with exactly the probability that each float stands for, else 0.

    A random real number is compared with the probability 64 bits at a time; the next 64 are
    needed only if all before are equal. Scaling by 2**64 and splitting off the whole part are
    exact in float64.
    """
    result = np.zeros(probabilities.shape, np.int64)
    result[probabilities == 1] = 1
    (open_places,) = np.nonzero((probabilities > 0) & (probabilities < 1))
    rest = probabilities[open_places]
    while len(open_places):
        scaled = np.ldexp(rest, _WORD)
        whole = np.floor(scaled)
        digits, words = whole.astype(np.uint64), random_words(len(rest))
        result[open_places] = words < digits
        undecided = (words == digits) & (scaled > whole)
        open_places, rest = open_places[undecided], (scaled - whole)[undecided]
    return result


def binomial(count: int, trials: int, probability: float) -> Integers:
    """Exact binomial numbers; takes some `trials / 4` bytes of the system's randomness for each.

    All trials of a number compare their random reals with `probability` bit by bit. A fair coin
    gives the next bit of those that are still equal to it: where `probability` has a 1, the zeros
    are below and succeed; where it has a 0, the ones are above and fail.
    """
    pieces = [
        _binomial_piece(min(_PIECE, count - start), trials, probability)
        for start in range(0, count, _PIECE)
    ]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.int64)


def _binomial_piece(count: int, trials: int, probability: float) -> Integers:
    if probability == 1:
        return np.full(count, trials, np.int64)
    undecided, result = np.full(count, trials, np.int64), np.zeros(count, np.int64)
    while probability > 0 and undecided.any():
        equal = _coins(undecided)
        probability *= 2
        if probability >= 1:
            probability -= 1
            result += undecided - equal
        undecided = equal
    return result


def _coins(tosses: Integers) -> Integers:
    """How many of so many fair coins show heads: random bits, counted."""
    heads = np.zeros_like(tosses)
    for done in range(0, int(tosses.max()), _WORD):
        (active,) = np.nonzero(tosses > done)
        unused = np.maximum(0, done + _WORD - tosses[active]).astype(np.uint64)
        heads[active] += _count_ones(random_words(len(active)) >> unused)
    return heads


def _count_ones(words: Words) -> Integers:
    """Set bits of each word: sums of pairs, of fours, of bytes, and of all bytes."""
    pairs, fours, eights = (
        np.uint64(mask) for mask in (0x5555555555555555, 0x3333333333333333, 0x0F0F0F0F0F0F0F0F)
    )
    words = words - ((words >> np.uint64(1)) & pairs)
    words = (words & fours) + ((words >> np.uint64(2)) & fours)
    words = (words + (words >> np.uint64(4))) & eights
    return ((words * np.uint64(0x0101010101010101)) >> np.uint64(56)).view(np.int64)


@dataclass(frozen=True)
class SkellamTable:
    """The distribution function of a Skellam distribution in whole numbers of 128 bits.

    The probability of `x` is `exp(-v) I(x, v)`, with the variance `v` and the modified Bessel
    function `I`. The recurrence `I(x - 1) = I(x + 1) + (2 x / v) I(x)` is run downwards, where it
    is stable, in whole numbers of at least 256 bits, from 1 and 0 at the end of the table; and as
    the probabilities add up to 1, only their ratios are needed.

    Guarantees: a total variation distance of at most 2**-100 (`SKELLAM_ERROR`;
    `tests/privacy/test_secure_noise.py`). It consists of the tail that is cut off (below 2**-157),
    of starting the recurrence there (`I(x)` gets a relative error of `(I(end) / I(x))**2` times at
    most 2**20, a ratio of products `I K`; below 2**-116 in all), of its rounding (below 2**-236,
    as all terms are positive) and of that of up to 2**20 limits to 128 bits (below 2**-107).

    Args:
        radius: Numbers are in `-radius .. radius`.
        high: The limits' upper 64 bits: random numbers below the i-th limit and not below the one
            before mean `i - radius`.
        low: Their lower 64 bits.
    """

    radius: int
    high: Words
    low: Words

    @classmethod
    def build(cls, variance: float) -> SkellamTable:
        """The table for a variance, a rational number as every float is."""
        radius = math.ceil(_TAIL / 3 + math.sqrt(_TAIL**2 / 9 + 2 * _TAIL * variance))
        numerator, denominator = float(variance).as_integer_ratio()
        bessel = [0, 1 << _PRECISION]  # of radius + 1, radius, ..., 0, up to a common factor
        for x in range(radius, 0, -1):
            bessel.append(bessel[-2] + 2 * x * denominator * bessel[-1] // numerator)
        weights = bessel[1:] + bessel[-2:0:-1]
        total, sum_so_far, limits = sum(weights), 0, []
        for weight in weights[:-1]:
            sum_so_far += weight
            limits.append((sum_so_far << 2 * _WORD) // total)
        high = np.array([limit >> _WORD for limit in limits], np.uint64)
        low = np.array([limit & (1 << _WORD) - 1 for limit in limits], np.uint64)
        return cls(radius, high, low)

    def draw(self, count: int) -> Integers:
        """So many numbers."""
        return self.look_up(random_words(count), random_words(count))

    def look_up(self, high: Words, low: Words) -> Integers:
        """The numbers that random numbers of 128 bits mean: how many limits are not above each."""
        index = np.searchsorted(self.high, high, side="left")
        (tied,) = np.nonzero(self.high[np.minimum(index, len(self.high) - 1)] == high)
        while len(tied):  # rare: the upper bits are a limit's, so the lower ones decide
            at = index[tied]
            tied = tied[(self.high[at] == high[tied]) & (self.low[at] <= low[tied])]
            index[tied] += 1
            tied = tied[index[tied] < len(self.high)]
        return (index - self.radius).astype(np.int64)

"""Fast sampling of integers by table: what `FastNoise` draws whole numbers with.

The integers are cut into blocks of `2**shift`, few enough for a table. A block is drawn with a
probability proportional to its highest weight, an integer in it evenly, and it is kept with the
ratio of its weight to the highest one. Narrow distributions have one integer per block, so that
nothing is ever rejected and this is plain inversion of the distribution function.

How exact: weights are computed in float64 to a relative error below 1e-11, and the table resolves
probabilities to 2**-64; integers with a total probability below 2**-64 are never drawn. No sample
that fits in memory can tell that from the exact distribution. It is still not for real releases:
`SecureNoise` is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

__all__ = ["IntegerTable", "binomial", "discrete_gaussian", "discrete_laplace", "skellam"]

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
LogWeight: TypeAlias = Callable[[Integers], Floats]

MAX_BLOCKS = 1 << 14  # of a table: its cost is then below that of a few thousand draws
_GUIDE_BITS = 16  # of a random word that tell the block at once, in most cases
_GUIDE_FROM = 1 << 14  # draws that make up for the cost of the guide
_TAIL = 46.0  # 2 exp(-46) < 2**-64: where distributions are cut off


@dataclass(frozen=True)
class IntegerTable:
    """A distribution over integers to draw from.

    Args:
        starts: First integer of each block; the blocks in order of rising probability, so that
            the smallest probabilities are resolved best.
        limits: Random words below the i-th of these (and not below the one before) mean block i.
        shift: Blocks have `2**shift` integers.
        peaks: Largest logarithm of a weight in each block.
        sure: Ratio of the smallest weight to the largest in each block.
        log_weight: Logarithm of the weight of any integer.
    """

    starts: Integers
    limits: npt.NDArray[np.uint64]
    shift: int
    peaks: Floats
    sure: Floats
    log_weight: LogWeight

    @classmethod
    def build(cls, log_weight: LogWeight, *, mode: int, below: int, above: int) -> IntegerTable:
        """The table of integers from `mode - below` to `mode + above`; weights fall off `mode`."""
        shift = max(0, (below + above).bit_length() - (MAX_BLOCKS.bit_length() - 1))
        width = 1 << shift
        blocks = np.arange(-below // width, above // width + 1, dtype=np.int64)
        starts = mode + blocks * width
        near = np.where(blocks < 0, starts + (width - 1), starts)
        far = np.where(blocks < 0, starts, starts + (width - 1))
        peaks, sure = log_weight(near), np.ones(len(starts))
        if shift:
            sure = np.exp(log_weight(far) - peaks)
        order = np.argsort(peaks, kind="stable")
        sums = np.cumsum(np.exp(peaks[order] - peaks.max()))
        limits = (sums[:-1] / sums[-1] * 2.0**64).astype(np.uint64)
        return cls(starts[order], limits, shift, peaks[order], sure[order], log_weight)

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """So many integers, independent of each other."""
        values, kept = self._propose(rng, count)
        while not kept.all():
            (missing,) = np.nonzero(~kept)
            values[missing], kept[missing] = self._propose(rng, len(missing))
        return values

    def _propose(
        self, rng: np.random.Generator, count: int
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Integers, and whether they may be kept."""
        index = self._blocks(_words(rng, count))
        values = self.starts[index]
        if not self.shift:
            return values, np.ones(count, np.bool_)
        values += (_words(rng, count) >> np.uint64(64 - self.shift)).view(np.int64)
        chance = rng.random(count)
        kept = chance < self.sure[index]
        (doubtful,) = np.nonzero(~kept)
        ratio = np.exp(self.log_weight(values[doubtful]) - self.peaks[index[doubtful]])
        kept[doubtful] = chance[doubtful] < ratio
        return values, kept

    def draw_rows(self, rngs: Iterable[np.random.Generator], count: int) -> Integers:
        """What `draw` gives for each generator, looked up together: `(generators, count)`."""
        if self.shift:
            rows = [self.draw(rng, count) for rng in rngs]
            return np.stack(rows) if rows else np.empty((0, count), np.int64)
        words = [_words(rng, count) for rng in rngs]
        flat = np.concatenate(words) if words else np.empty(0, np.uint64)
        return self.starts[self._blocks(flat)].reshape(len(words), count)

    def _blocks(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """The blocks of random words. The guide saves most searches and changes no result."""
        if len(words) < _GUIDE_FROM:
            return np.searchsorted(self.limits, words, side="right")
        firsts = (words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
        index: npt.NDArray[np.intp] = self._guide[firsts]
        (doubtful,) = np.nonzero(index < 0)
        index[doubtful] = np.searchsorted(self.limits, words[doubtful], side="right")
        return index

    @cached_property
    def _guide(self) -> npt.NDArray[np.intp]:
        """For the first bits of a word: the block, or -1 if more bits are needed."""
        rest = np.uint64(64 - _GUIDE_BITS)
        firsts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << rest
        low = np.searchsorted(self.limits, firsts, side="right")
        high = np.searchsorted(self.limits, firsts | np.uint64((1 << int(rest)) - 1), side="right")
        return np.where(low == high, low, -1)


def discrete_gaussian(std: float) -> IntegerTable:
    """Weights `exp(-x**2 / (2 std**2))`."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(over="ignore"):  # far beyond a tiny std: a weight of 0
            return -0.5 * np.square(x / std)

    radius = math.ceil(math.sqrt(2 * _TAIL) * std) + 1
    return IntegerTable.build(log_weight, mode=0, below=radius, above=radius)


def discrete_laplace(scale: float) -> IntegerTable:
    """Weights `exp(-abs(x) / scale)`."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(over="ignore"):
            return -np.abs(x) / scale

    radius = math.ceil(_TAIL * scale) + 1
    return IntegerTable.build(log_weight, mode=0, below=radius, above=radius)


def skellam(variance: float) -> IntegerTable:
    """Weights `exp(-variance) * I(x, variance)`, of the modified Bessel function."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(divide="ignore"):  # the function underflows far beyond a tiny variance
            return np.log(np.asarray(special.ive(np.abs(x), variance), np.float64))

    def log_weight_if_wide(x: Integers) -> Floats:
        # Debye's expansion up to an exponential factor that is the same for all x. The next term
        # is below variance**-3, and the expansion is used only beyond 10**5.
        root = np.hypot(x, variance)
        share = np.square(x / root)
        rest = (3 - 5 * share) / (24 * root)
        rest += (81 - 462 * share + 385 * np.square(share)) / (1152 * np.square(root))
        power = np.square(x.astype(np.float64)) / (root + variance) - x * np.arcsinh(x / variance)
        result: Floats = power - 0.5 * np.log(root / variance) + np.log1p(rest)
        return result

    radius = _bernstein_radius(variance)
    weight = log_weight if 2 * radius < MAX_BLOCKS else log_weight_if_wide
    return IntegerTable.build(weight, mode=0, below=radius, above=radius)


def binomial(trials: int, probability: float) -> IntegerTable:
    """Weights of the binomial distribution, for a probability above 0 and below 1."""
    mean = trials * Fraction(probability)  # exactly
    mode = min(trials, math.floor(mean + Fraction(probability)))
    radius = _bernstein_radius(float(mean * (1 - Fraction(probability)))) + 1
    low, high = max(0, mode - radius), min(trials, mode + radius)
    if high - low >= MAX_BLOCKS:
        weight = _wide_binomial(trials, mean)
    else:
        # Ratios of neighbours: no difference of large logarithms of factorials.
        x = np.arange(low, high)
        steps = np.log((trials - x) / (x + 1)) + math.log(probability / (1 - probability))
        logs = np.concatenate([[0.0], np.cumsum(steps)])

        def weight(x: Integers) -> Floats:
            return logs[x - low]

    return IntegerTable.build(weight, mode=mode, below=mode - low, above=high - mode)


def _wide_binomial(trials: int, mean: Fraction) -> LogWeight:
    """By Stirling's formula, up to a common factor, where successes and failures are many.

    Many is 10**5 and more, so that the formula's next term is below 1e-15. The sizes that nearly
    cancel are never computed: only the distance from the mean is.
    """
    centre = round(mean)
    rest, successes, failures = float(mean - centre), float(mean), float(trials - mean)

    def log_weight(x: Integers) -> Floats:
        distance = (x - centre).astype(np.float64) - rest
        one: Floats = distance / successes
        two: Floats = -distance / failures
        power = successes * _deviance(one) + failures * _deviance(two)
        roots = 0.5 * (np.log1p(one) + np.log1p(two))
        terms = 1 / (successes * (1 + one)) + 1 / (failures * (1 + two))
        result: Floats = -power - roots - terms / 12
        return result

    return log_weight


def _deviance(d: Floats) -> Floats:
    """`(1 + d) log(1 + d) - d` for small `d`, by its series."""
    total = np.zeros_like(d)
    for k in range(16, 1, -1):
        total = total * -d + 1 / (k * (k - 1))
    result: Floats = np.square(d) * total
    return result


def _bernstein_radius(variance: float) -> int:
    """A sum of steps up to 1 is farther from its mean with probability below 2**-64."""
    return math.ceil(_TAIL / 3 + math.sqrt(_TAIL**2 / 9 + 2 * _TAIL * variance))


def _words(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64)

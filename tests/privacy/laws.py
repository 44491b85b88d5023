"""Exact laws of integer noise, and how surprising drawn numbers are under one."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
from scipy import stats
from torch import Tensor

from diffsketch.privacy.integer_table import CoinsLaw, ExponentialLaw, Law, SkellamLaw

Probabilities = npt.NDArray[np.float64]


def surprise(values: Tensor, lowest: int, probabilities: Probabilities) -> float:
    """A bound on the probability of counts as far off, for numbers from `lowest` on.

    The count of each number and of all up to it are binomial; their exact tails, times the number
    of the tails that were looked at.
    """
    found = values.numpy().ravel() - lowest
    counts = np.bincount(found[found >= 0], minlength=len(probabilities))[: len(probabilities)]
    observed = np.concatenate([counts, (found < 0).sum() + counts.cumsum()])
    chances = np.concatenate([probabilities, probabilities.cumsum()]).clip(0, 1)
    low = np.min(stats.binom.cdf(observed, len(found), chances))
    high = np.min(stats.binom.sf(observed - 1, len(found), chances))
    return min(1.0, 2 * len(chances) * float(min(low, high)))


def normalised(weights: Probabilities) -> Probabilities:
    return weights / math.fsum(weights)


def gaussian_law(std: float, reach: float = 12) -> tuple[int, Probabilities]:
    radius = math.ceil(reach * std) + 2
    x = np.arange(-radius, radius + 1)
    with np.errstate(over="ignore"):
        return -radius, normalised(np.exp(-(x**2) / (2 * std**2)))


def laplace_law(scale: float) -> tuple[int, Probabilities]:
    radius = math.ceil(60 * scale) + 2
    x = np.arange(-radius, radius + 1)
    return -radius, math.tanh(1 / (2 * scale)) * np.exp(-np.abs(x) / scale)


def skellam_law(variance: float) -> tuple[int, Probabilities]:
    """From its definition: the difference of two Poisson numbers."""
    reach = math.ceil(40 + 7 * math.sqrt(variance))  # each is within 10 standard deviations
    low = max(0, math.floor(variance / 2 - reach))
    one = stats.poisson.pmf(np.arange(low, math.ceil(variance / 2 + reach)), variance / 2)
    return 1 - len(one), np.convolve(one, one[::-1])


def binomial_law(trials: int, probability: float = 0.5) -> tuple[int, Probabilities]:
    middle, reach = trials * probability, 40 + 9 * math.sqrt(trials / 4)
    low, high = max(0, math.floor(middle - reach)), min(trials, math.ceil(middle + reach))
    return low, stats.binom.pmf(np.arange(low, high + 1), trials, probability)


def exact_weight(law: Law, x: int) -> mpmath.mpf:
    """The weight of `x` by mpmath's functions, in the digits that it is set to."""
    if isinstance(law, ExponentialLaw):
        return mpmath.exp(-((abs(x) / mpmath.mpf(law.scale)) ** law.power) / law.power)
    if isinstance(law, SkellamLaw):
        variance = mpmath.mpf(law.variance)
        probability = mpmath.besseli(abs(x), variance) * mpmath.exp(-variance)
    else:
        assert isinstance(law, CoinsLaw)
        tosses = 2 * law.pairs
        probability = mpmath.binomial(tosses, law.pairs + x) / mpmath.mpf(2) ** tosses
    return probability * 2**law._shift


def words_of(words: list[int], after: int = 0) -> Callable[..., npt.NDArray[np.uint64]]:
    """A source of random words: these, then others."""
    rest = iter(words)
    return lambda count, bits=64: np.array(
        [next(rest, after) for _ in range(count)], f"u{bits // 8}"
    )

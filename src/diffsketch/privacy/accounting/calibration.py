"""Calibration: the noise that a target needs. It meets the target, and hardly more."""

from __future__ import annotations

import math
from collections.abc import Callable

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.privacy.accounting.composition import epsilon_for

_LEAST, _MOST = 1e-6, 1e12  # noise multipliers that are looked at
_TIGHT = 1e-4  # where each look takes a Fourier transform
_EXACT = 1e-10  # where there is a closed form


def calibrate(
    event_of: Callable[[float], events.Event],
    budget: Budget,
    *,
    rounds: int = 1,
    least: float = _LEAST,
    most: float = _MOST,
    tolerance: float = _TIGHT,
) -> float:
    """The smallest number for which so many rounds of `event_of(number)` stay within the budget.

    Guarantees: the result meets the budget, by the same arithmetic that accountants use; a number
    smaller by more than the tolerance does not (`tests/privacy/test_accounting.py`).

    Args:
        event_of: One round's event; the larger its number, the more private it has to be.
        budget: The most for all rounds together.
        rounds: Number of rounds.
        least: Where to look from; this comes back if it is enough already.
        most: Where to look to.
        tolerance: Relative excess that the result may have.

    Raises:
        ArgumentError: Not even `most` is enough.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(calibrate(events.gaussian, budget), 3)
    3.731
    """
    check(0 < least < most < math.inf, "least", f"be in (0, {most:g})", least)
    check(1e-12 <= tolerance < 1, "tolerance", "be in [1e-12, 1)", tolerance)
    check_whole("rounds", rounds, least=1)

    # Whoever spends the rounds one by one adds in another order: rounding must not refuse the last.
    limit = budget.epsilon * (1 - 1e-12)

    def total(number: float) -> float:
        return epsilon_for(events.repeated(event_of(number), rounds), budget.delta)

    if total(least) <= limit:
        return least
    low, high = _bracket(total, limit, least, most)
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if total(middle) <= limit:
            high = middle
        else:
            low = middle
    return high


def gaussian_multiplier(*, epsilon: float, delta: float, rounds: int, rate: float = 1.0) -> float:
    """The noise multiplier of Gaussian noise for a target over all rounds.

    Args:
        epsilon: The target.
        delta: Its probability of failure, > 0.
        rounds: Number of rounds.
        rate: Probability with which a unit is in a round, if `PoissonSampler` draws it.

    >>> round(gaussian_multiplier(epsilon=1.0, delta=1e-5, rounds=100), 2)
    37.31
    """
    check(0 < delta < 1, "delta", "be in (0, 1)", delta)
    return calibrate(
        lambda z: events.poisson_sampled(rate, events.gaussian(z)),
        Budget(epsilon, delta),
        rounds=rounds,
        tolerance=_EXACT if rate == 1 else _TIGHT,
    )


def _bracket(
    total: Callable[[float], float], limit: float, least: float, most: float
) -> tuple[float, float]:
    """Two numbers, a factor of 4 apart, of which only the larger one is within the limit."""
    number = min(max(1.0, least), most)
    if total(number) <= limit:
        while total(number / 4) <= limit:
            number /= 4
        return max(number / 4, least), number
    while number < most:
        number = min(4 * number, most)
        if total(number) <= limit:
            return max(number / 4, least), number
    raise ArgumentError(f"no number up to {most:g} keeps epsilon within {limit:g}")

"""How much noise the target takes: a multiplier for all shapes of a message alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from scipy.optimize import brentq

from diffsketch.plan.options import rounded_up
from diffsketch.plan.request import PlanRequest
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for, renyi_epsilon_for
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Epsilon, ProvenClaim

__all__ = ["NoiseLevels", "least_multiplier"]

_LEAST, _MOST = 0.02, 1e12  # less noise protects nothing, and more is of no use
_PRECISION = 1e-3  # of epsilon, relative
_CORRECTIONS = 8
# Composing more of anything but Gaussian noise takes long, and Gaussian noise is then no worse.
_MOST_ROUNDS = 20_000

Curve = Callable[[float], float]


def least_multiplier(request: PlanRequest, event: Callable[[float], Event]) -> float | None:
    """The least multiplier whose event, in all rounds, keeps the target; None if none does.

    Rounded up to four digits; epsilon comes within 0.2% or so of the target.

    `privacy.accounting.calibration` finds the same by bisection, but exact composition can take a
    second. Rényi divergences are quick and nearly right, so the search here goes along their
    curve, and the exact one is asked only how far off they are.
    """
    target = request.target_epsilon

    def exact(multiplier: float) -> float:
        return epsilon_for(events.repeated(event(multiplier), request.rounds), request.delta)

    def quick(multiplier: float) -> float:
        if request.delta == 0:
            return exact(multiplier)
        every = events.repeated(event(multiplier), request.rounds)
        return renyi_epsilon_for(every, request.delta)

    goal = target
    best: float | None = None
    for _ in range(_CORRECTIONS):
        found = _root(quick, goal, start=best or _guess(request))
        if found is None:
            return best
        spent = exact(found)
        if spent <= target:
            best = found if best is None else min(best, found)
            if spent >= (1 - _PRECISION) * target or found <= _LEAST:
                break
        # A little less than what would be right if the two curves were in proportion.
        goal *= (1 - _PRECISION / 2) * target / max(spent, 1e-300)
    return best


def _root(curve: Curve, goal: float, *, start: float) -> float | None:
    """Where a falling curve meets the goal, or `_LEAST` if it is below; rounded up."""

    def excess(log_multiplier: float) -> float:
        return math.log(max(curve(math.exp(log_multiplier)), 1e-300) / goal)

    least, most = math.log(_LEAST), math.log(_MOST)
    low = high = min(most, max(least, math.log(start)))
    step = math.log(1.5)
    while excess(high) > 0:
        if high >= most:
            return None
        low, high = high, min(most, high + step)
        step *= 2
    while low == high or excess(low) <= 0:
        if low <= least:
            return _LEAST
        low, high = max(least, low - step), low
        step *= 2
    return rounded_up(math.exp(brentq(excess, low, high, xtol=1e-5)))


def _guess(request: PlanRequest) -> float:
    """Near the multiplier of Gaussian noise, where the search starts."""
    if request.delta == 0:
        return request.rounds / request.target_epsilon
    tail = 2 * math.log(1.25 / request.delta)
    return math.sqrt(request.rounds * (tail + 2 * request.target_epsilon)) / request.target_epsilon


@dataclass(frozen=True)
class NoiseLevels:
    """The multipliers of the noises whose privacy does not depend on the message's shape."""

    request: PlanRequest
    _totals: dict[Event, Epsilon] = field(default_factory=dict, repr=False)

    @cached_property
    def gaussian(self) -> float | None:
        """Standard deviation over the L2 sensitivity; None without a delta."""
        return least_multiplier(self.request, events.gaussian) if self.request.delta else None

    @cached_property
    def laplace(self) -> float | None:
        """Scale over the sensitivity of a single number."""
        return least_multiplier(self.request, events.laplace) if self._few_rounds else None

    @cached_property
    def pure(self) -> float | None:
        """One over the epsilon of one round of any mechanism that needs no delta."""
        if not self._few_rounds:
            return None
        return least_multiplier(self.request, lambda m: events.approximate(1 / m))

    @property
    def _few_rounds(self) -> bool:
        return self.request.delta == 0 or self.request.rounds <= _MOST_ROUNDS

    def total(self, claim: ProvenClaim) -> Epsilon:
        """The claim's epsilon over all rounds, computed once for claims about the same event."""
        if claim.event not in self._totals:
            found = claim.epsilon(delta=self.request.delta, rounds=self.request.rounds)
            self._totals[claim.event] = found
        return replace(self._totals[claim.event], scope=claim.scope)

"""From events to epsilon and delta: the only place that does privacy arithmetic over rounds.

Gaussian noise alone composes in closed form (`gaussian_curve`). Otherwise privacy loss
distributions are composed (`losses`); what is known only by its Rényi divergence
(`events.concentrated`), and deltas too small for that arithmetic, are left to those (`renyi`).
Whatever the way, epsilon and delta are never below what is known to hold.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

from dp_accounting import dp_event

from diffsketch.errors import check
from diffsketch.privacy.accounting.events import (
    ApproximateDpEvent,
    Event,
    approximate,
    gaussian,
    leaves,
    pure_bound,
)
from diffsketch.privacy.accounting.gaussian_curve import gaussian_delta, gaussian_epsilon
from diffsketch.privacy.accounting.losses import (
    distrust,
    few_kinds,
    grid_step,
    loss_distribution,
    refined_step,
    tractable,
)
from diffsketch.privacy.accounting.renyi import renyi_delta, renyi_epsilon

__all__ = ["delta_for", "epsilon_for", "renyi_epsilon_for"]

_SMALL = 50  # a delta of so many margins: what is taken off it may cost more than Rényi's looseness


def epsilon_for(event: Event, delta: float) -> float:
    """The least epsilon that is known to hold with `delta` for all that `event` comprises."""
    check(0 <= delta < 1, "delta", "be in [0, 1)", delta)
    total = _Total.of(event)
    if total.failure > delta:
        return math.inf
    delta = (delta - total.failure) / (1 - total.failure)
    if delta == 0 or math.isinf(total.mu):
        return total.largest_loss
    if not total.others:
        return gaussian_epsilon(total.mu, delta)
    return min(total.largest_loss, _best_epsilon(total, delta))


def delta_for(event: Event, epsilon: float) -> float:
    """The least delta that is known to hold with `epsilon`."""
    check(epsilon >= 0, "epsilon", "be >= 0", epsilon)
    total = _Total.of(event)
    if total.largest_loss <= epsilon:
        return total.failure
    if math.isinf(total.mu):
        return 1.0
    known = _best_delta(total, epsilon) if total.others else gaussian_delta(total.mu, epsilon)
    return min(1.0, total.failure + (1 - total.failure) * known)


def renyi_epsilon_for(event: Event, delta: float) -> float:
    """The same through Rényi divergences alone: looser, and a second opinion."""
    check(0 < delta < 1, "delta", "be in (0, 1)", delta)
    total = _Total.of(event)
    if total.failure >= delta or math.isinf(total.mu):
        return math.inf
    return renyi_epsilon(total.parts, (delta - total.failure) / (1 - total.failure))


@dataclass(frozen=True)
class _Total:
    """All events of one kind together.

    An (epsilon, delta)-private mechanism is no worse than one that tells everything with
    probability delta, and else is epsilon-private. So it enters as a pure one, while the
    probability that none of them fails, whatever the others do, is a factor.

    Args:
        mu: The shift, in standard deviations, of the one Gaussian that all amount to.
        others: What is not Gaussian, with the number of its repetitions.
        failure: How likely it is that an approximate one fails.
    """

    mu: float
    others: Counter[Event]
    failure: float

    @classmethod
    def of(cls, event: Event) -> _Total:
        others: Counter[Event] = Counter()
        shifts: list[float] = []
        stays, fails = 0.0, 0.0
        for leaf, count in leaves(event):
            if isinstance(leaf, dp_event.GaussianDpEvent):
                shifts.append(math.sqrt(count) / leaf.noise_multiplier)
            elif isinstance(leaf, ApproximateDpEvent):
                stays += count * math.log1p(-leaf.delta)
                fails += count * leaf.delta
                if leaf.epsilon > 0:  # else it tells nothing unless it fails
                    others[approximate(leaf.epsilon)] += count
            else:
                others[leaf] += count
        return cls(math.hypot(*shifts), others, min(fails, -math.expm1(stays)))

    @property
    def parts(self) -> Counter[Event]:
        """The others and the Gaussian."""
        return self.others + Counter([gaussian(1 / self.mu)] if self.mu > 0 else [])

    @property
    def largest_loss(self) -> float:
        """An epsilon that holds with no delta but `failure`."""
        if self.mu > 0:
            return math.inf
        return math.fsum(count * pure_bound(leaf) for leaf, count in self.others.items())


def _best_epsilon(total: _Total, delta: float) -> float:
    parts = few_kinds(total.parts)
    margin = distrust(parts)
    if delta < 2 * margin or not tractable(parts):
        return renyi_epsilon(parts, delta)
    step = grid_step(parts)
    best = float(loss_distribution(parts, step).get_epsilon_for_delta(delta - margin))
    finer = refined_step(parts, step, best)
    if best > 0 and finer < step:
        other = loss_distribution(parts, finer).get_epsilon_for_delta(delta - margin)
        best = min(best, float(other))
    return best if delta > _SMALL * margin else min(best, renyi_epsilon(parts, delta))


def _best_delta(total: _Total, epsilon: float) -> float:
    parts = few_kinds(total.parts)
    if not tractable(parts):
        return renyi_delta(parts, epsilon)
    margin = distrust(parts)
    # Near the largest loss there is, delta falls to 0 within less than a step.
    fine = min(epsilon, 100 * (total.largest_loss - epsilon))
    step = refined_step(parts, grid_step(parts), fine)
    best = float(loss_distribution(parts, step).get_delta_for_epsilon(epsilon))
    best = max(best, 0.0) + margin
    return best if best > _SMALL * margin else min(best, renyi_delta(parts, epsilon))

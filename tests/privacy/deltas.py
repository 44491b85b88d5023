"""The delta that an event has at an epsilon, which tests compare with enumerated ones."""

from __future__ import annotations

import math
from collections import Counter

from scipy.stats import norm

from diffsketch.privacy.accounting import events, losses
from diffsketch.privacy.accounting.events import Event, GaussianEvent, Leaf


def delta_for(event: Event, epsilon: float) -> float:
    """Exact for Gaussian noise; else on a grid, and no less than the truth."""
    parts: Counter[Leaf] = Counter()
    for leaf, count in events.leaves(event):
        parts[leaf] += count
    if all(isinstance(leaf, GaussianEvent) for leaf in parts):
        shifts = (n**0.5 / leaf.noise_multiplier for leaf, n in parts.items())  # type: ignore[union-attr]
        mu = math.hypot(*shifts)
        second = math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
        return float(norm.cdf(mu / 2 - epsilon / mu)) - second
    largest = sum(count * events.pure_bound(leaf) for leaf, count in parts.items())
    if largest <= epsilon:
        return 0.0
    # Near the largest loss there is, delta falls to 0 within less than a step.
    fine = min(epsilon, 100 * (largest - epsilon)) / 2000
    step = max(min(losses.grid_step(parts), fine), losses._finest(parts))
    found = float(losses.loss_distribution(parts, step).get_delta_for_epsilon(epsilon))
    return max(found, 0.0) + losses.distrust(parts)

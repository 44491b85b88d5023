"""Privacy loss distributions: the tight way to compose what is not only Gaussian noise.

dp-accounting puts the losses on a grid and rounds them so that any grid, coarse or fine, gives an
upper bound; a step in proportion to the losses' spread makes it tight. Fourier transforms then
compose them, and their rounding error is *not* on the safe side: below some 1e-11 it would make
epsilon too small by several per cent. `distrust` bounds it, and it is taken off delta.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from scipy.special import log_ndtr, ndtr, ndtri

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.events import (
    ApproximateDpEvent,
    Event,
    approximate,
    concentrated,
    gaussian,
    laplace,
    poisson_sampled,
    pure_bound,
)

__all__ = [
    "distrust",
    "few_kinds",
    "grid_step",
    "loss_distribution",
    "no_better",
    "refined_step",
    "tractable",
]

_Array: TypeAlias = npt.NDArray[np.float64]

_STEP = 0.02  # of the standard deviation of a round's loss: overstates epsilon by about 1e-4
_COARSE_STEP = 0.05  # where many different events have to share the time
_FEW = 10
_MOST_KINDS = 100
_MOST_RATIO = 4.0  # rather slow than so much worse
_MOST_POINTS = 10**5  # of one event
_MOST_COMPOSED = 10**6
_MOST_ROUNDS = 10**6
_LARGEST_LOSS = 300.0  # exponentials of more come near to overflow
_LEAST_SPREAD = 1e-100  # squares of less vanish
_ORDINARY = 1e100
_TAIL = 10.0  # standard deviations beyond which dp-accounting's Gaussian tail counts as lost
_QUANTILES = ndtri((np.arange(2000) + 0.5) / 2000)


def few_kinds(parts: Mapping[Event, int]) -> Counter[Event]:
    """The same events, those that are nearly alike made equal to a slightly less private one.

    So many rounds with a noise of their own, each, cost no more time than a hundred kinds.
    """
    ratio, merged = 1.0, Counter(parts)
    while len(merged) > _MOST_KINDS and ratio < _MOST_RATIO:
        ratio = 1 + 1e-3 if ratio == 1 else ratio**1.5
        merged = Counter()
        for leaf, count in parts.items():
            merged[no_better(leaf, ratio)] += count
    return merged


def no_better(leaf: Event, ratio: float) -> Event:
    """With less noise, a higher rate or a larger bound: the next one on a grid of this ratio."""
    match leaf:
        case dp_event.GaussianDpEvent():
            return gaussian(_below(leaf.noise_multiplier, ratio))
        case dp_event.LaplaceDpEvent():
            return laplace(_below(leaf.noise_multiplier, ratio))
        case dp_event.PoissonSampledDpEvent():
            rate = min(1.0, _above(leaf.sampling_probability, ratio))
            return poisson_sampled(rate, no_better(leaf.event, ratio))
        case dp_event.ZCDpEvent():
            return concentrated(_above(leaf.rho, ratio), _above(leaf.xi, ratio) if leaf.xi else 0.0)
        case ApproximateDpEvent():
            return approximate(_above(leaf.epsilon, ratio), leaf.delta)
    raise ArgumentError(f"event must be one that diffsketch makes, got {leaf}")


def _above(value: float, ratio: float) -> float:
    """The next power of the ratio, or the value itself where powers come near to overflow."""
    if not 1 / _ORDINARY < value < _ORDINARY:
        return value
    exponent = math.ceil(math.log(value) / math.log(ratio))
    return max(ratio**exponent, value)


def _below(value: float, ratio: float) -> float:
    if not 1 / _ORDINARY < value < _ORDINARY:
        return value
    exponent = math.floor(math.log(value) / math.log(ratio))
    return min(ratio**exponent, value)


def tractable(parts: Mapping[Event, int]) -> bool:
    """Whether these events can be composed here; else only their Rényi divergences can."""
    if any(isinstance(leaf, dp_event.ZCDpEvent) for leaf in parts):
        return False
    return sum(parts.values()) <= _MOST_ROUNDS and all(
        _widest(leaf) <= _LARGEST_LOSS and _spread(leaf) >= _LEAST_SPREAD for leaf in parts
    )


def distrust(parts: Mapping[Event, int]) -> float:
    """More than the rounding of the Fourier transforms can take from delta."""
    return 1e-14 + 4e-16 * sum(parts.values())


def grid_step(parts: Mapping[Event, int]) -> float:
    """The distance of neighbouring losses on the grid that fits these events."""
    rounds = sum(parts.values())
    variance = math.fsum(count * _spread(leaf) ** 2 for leaf, count in parts.items()) / rounds
    step = (_STEP if len(parts) <= _FEW else _COARSE_STEP) * math.sqrt(variance)
    return max(step, _finest(parts))


def refined_step(parts: Mapping[Event, int], step: float, epsilon: float) -> float:
    """A finer step where `step` is too large to resolve so small an epsilon.

    The losses of each event are rounded up to the grid, by a whole step if it is much coarser than
    they are: a step of `epsilon / 500` made two events cost 0.2% more than each by itself.
    """
    return max(min(step, epsilon / 2000), _finest(parts))


def loss_distribution(parts: Mapping[Event, int], step: float) -> Any:
    """The composed distribution of the privacy loss (dp-accounting's), never too favourable."""
    total = pld.identity(value_discretization_interval=step)
    by_count: dict[int, list[Event]] = {}
    for leaf, count in parts.items():
        by_count.setdefault(count, []).append(leaf)
    for count, kinds in by_count.items():
        # Composed before they are repeated, since repeating is the dearer of the two.
        once = pld.identity(value_discretization_interval=step)
        for leaf in kinds:
            once = once.compose(_loss_of(leaf, step))
        total = total.compose(once.self_compose(count))
    return total


def _loss_of(leaf: Event, step: float) -> Any:
    inner, rate = leaf, 1.0
    if isinstance(leaf, dp_event.PoissonSampledDpEvent):
        inner, rate = leaf.event, float(leaf.sampling_probability)
    match inner:
        case dp_event.GaussianDpEvent():
            return _sampled_gaussian(float(inner.noise_multiplier), rate, step)
        case dp_event.LaplaceDpEvent():
            return pld.from_laplace_mechanism(
                inner.noise_multiplier, value_discretization_interval=step, sampling_prob=rate
            )
        case ApproximateDpEvent():
            return _randomised_response(inner.epsilon, step)
    raise ArgumentError(f"event must be one that diffsketch makes, got {leaf}")


def _sampled_gaussian(noise_multiplier: float, rate: float, step: float) -> Any:
    """The same as dp-accounting's `from_gaussian_mechanism`, ten times as fast.

    That one looks for the noise of each loss on the grid by itself; here all are in closed form.
    """
    pmfs = []
    for adjacency in (AdjacencyType.REMOVE, AdjacencyType.ADD)[: 1 if rate == 1 else 2]:
        mechanism = GaussianPrivacyLoss(
            noise_multiplier, sampling_prob=rate, adjacency_type=adjacency
        )
        bounds = mechanism.connect_dots_bounds()
        low = math.floor(bounds.epsilon_lower / step)
        high = math.ceil(bounds.epsilon_upper / step)
        losses = np.arange(low, high + 1) * step
        curve = _delta_removed if adjacency is AdjacencyType.REMOVE else _delta_added
        deltas = np.clip(curve(losses, 1 / noise_multiplier, rate), 0.0, 1.0)
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas))
    return pld.PrivacyLossDistribution(*pmfs)


def _delta_removed(losses: _Array, mu: float, rate: float) -> _Array:
    """Of the mixture of N(mu, 1), with probability `rate`, and N(0, 1), against N(0, 1)."""
    if rate == 1:
        return _delta(losses, mu)
    deltas = -np.expm1(losses)  # where the mixture is the larger one everywhere
    partly = losses > math.log1p(-rate)
    deltas[partly] = rate * _delta(np.log1p(np.expm1(losses[partly]) / rate), mu)
    return deltas


def _delta_added(losses: _Array, mu: float, rate: float) -> _Array:
    """Of N(0, 1) against that mixture."""
    weights = -np.expm1(losses + math.log1p(-rate))
    deltas = np.zeros_like(losses)  # where the mixture is the larger one everywhere
    partly = weights > 0
    inner = losses[partly] + math.log(rate) - np.log(weights[partly])
    deltas[partly] = weights[partly] * _delta(inner, mu)
    return deltas


def _delta(losses: _Array, mu: float) -> _Array:
    centre = losses / mu
    second = np.exp(losses + log_ndtr(-centre - mu / 2))
    return np.asarray(ndtr(mu / 2 - centre) - second)


def _randomised_response(bound: float, step: float) -> Any:
    """The losses `bound` and `-bound`, each split between its neighbours on the grid.

    The split keeps both the probability and the mean of `exp(-loss)`. dp-accounting's own would
    round every loss up, by as much as a step in each round.
    """
    masses: dict[int, float] = {}
    for loss in (bound, -bound):
        mass = 1 / (1 + math.exp(-loss))
        below = math.floor(loss / step)
        excess = loss - below * step
        above = math.expm1(-excess) / math.expm1(-step) if excess > 0 else 0.0
        masses[below] = masses.get(below, 0.0) + mass * (1 - min(above, 1.0))
        masses[below + 1] = masses.get(below + 1, 0.0) + mass * min(above, 1.0)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(masses, 0.0, step)


def _finest(parts: Mapping[Event, int]) -> float:
    """What keeps both one event and all of them together to a size that takes a second at most."""
    alone = 2 * max(_widest(leaf) for leaf in parts)
    total = math.fsum(count * _widest(leaf) for leaf, count in parts.items())
    return max(alone / _MOST_POINTS, min(2 * total, alone + _width(parts)) / _MOST_COMPOSED)


def _width(parts: Mapping[Event, int]) -> float:
    return 2 * _TAIL * math.hypot(*(math.sqrt(n) * _spread(leaf) for leaf, n in parts.items()))


def _widest(leaf: Event) -> float:
    """About the largest loss on the grid."""
    match leaf:
        case dp_event.GaussianDpEvent():
            mu = 1 / leaf.noise_multiplier
            return float(mu * mu / 2 + _TAIL * mu)
        case dp_event.PoissonSampledDpEvent():
            return _widest(leaf.event)
    return pure_bound(leaf)


def _spread(leaf: Event) -> float:
    """About the standard deviation of the loss; it decides how tight, not how sound we are."""
    match leaf:
        case dp_event.GaussianDpEvent():
            return float(1 / leaf.noise_multiplier)
        case dp_event.PoissonSampledDpEvent():
            return _sampled_spread(leaf)
    bound = pure_bound(leaf)
    if isinstance(leaf, dp_event.LaplaceDpEvent):
        return min(bound, math.sqrt(3))
    return bound / math.cosh(bound / 2)


def _sampled_spread(leaf: Event) -> float:
    inner, rate = leaf.event, leaf.sampling_probability
    if isinstance(inner, dp_event.GaussianDpEvent):
        mu = 1 / inner.noise_multiplier
        there, absent = mu * _QUANTILES + mu * mu / 2, mu * _QUANTILES - mu * mu / 2
    else:
        bound = pure_bound(inner)
        there, absent = np.array([bound]), np.array([bound, -bound])
    losses = [np.logaddexp(math.log1p(-rate), math.log(rate) + loss) for loss in (there, absent)]
    moment = rate * np.mean(losses[0] ** 2) + (1 - rate) * np.mean(losses[1] ** 2)
    return math.sqrt(moment)

"""Composition of events that are not only Gaussian noise.

*Privacy loss distributions* are the tight way. dp-accounting puts the losses on a grid and rounds
them so that any grid, coarse or fine, gives an upper bound; a step in proportion to the losses'
spread makes it tight. Fourier transforms then compose them, and their rounding error is *not* on
the safe side: below some 1e-11 it would make epsilon too small by several per cent. `distrust`
bounds it, and it is taken off delta.

*Rényi divergences* are for deltas too small for that arithmetic. Every order `a` gives a bound;
they add up over rounds without any rounding to a grid, so this holds for the smallest delta and for
any number of rounds, and is looser.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS, compute_epsilon
from scipy.special import log_ndtr, ndtr, ndtri

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events

_Array: TypeAlias = npt.NDArray[np.float64]
_Parts: TypeAlias = Mapping[events.Leaf, int]

_SMALL = 50  # margins in a delta, below which taking one off may cost more than Rényi's looseness
_STEP = 0.02  # of the standard deviation of a round's loss: overstates epsilon by about 1e-4
_COARSE_STEP = 0.05  # where many different events have to share the time
_FEW = 10  # kinds of events that may each take a fine step
# Points of a grid, for one event and for all: the size of the Fourier transforms.
_MOST_POINTS = 10**5
_MOST_COMPOSED = 10**6
_MOST_ROUNDS = 10**6  # for which `distrust` is 4e-10, near the deltas that users ask for
_LARGEST_LOSS = 300.0  # exponentials of more come near to overflow
_LEAST_SPREAD = 1e-100  # squares of less vanish
_TAIL = 10.0  # standard deviations beyond which dp-accounting's Gaussian tail counts as lost
_QUANTILES = ndtri((np.arange(2000) + 0.5) / 2000)

_WHOLE_ORDERS: _Array = np.array([*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024], float)
_LEAST = 1e-15  # of a divergence, as zero would mean perfect privacy
_SLACK = 1e-13  # of the logarithm of a moment, where it is a sum of many terms


def as_dp_event(leaf: events.Leaf) -> Any:
    """The same event for dp-accounting's own accountants, which know no approximate ones."""
    match leaf:
        case events.GaussianEvent():
            return dp_event.GaussianDpEvent(leaf.noise_multiplier)
        case events.LaplaceEvent():
            return dp_event.LaplaceDpEvent(leaf.noise_multiplier)
        case events.PoissonEvent():
            return dp_event.PoissonSampledDpEvent(leaf.rate, as_dp_event(leaf.event))
    raise ArgumentError(f"leaf must be known to dp-accounting, got {leaf}")


def epsilon_for(parts: _Parts, delta: float) -> float:
    """The least epsilon that is known to hold with `delta` > 0 for these events and counts."""
    margin = distrust(parts)
    # A margin that eats half of delta, or losses beyond floats: no grid.
    if delta < 2 * margin or not tractable(parts):
        return renyi_epsilon(parts, delta)
    step = grid_step(parts)
    best = float(loss_distribution(parts, step).get_epsilon_for_delta(delta - margin))
    # The losses of each event are rounded up to the grid, by a whole step if it is much coarser
    # than they are: a step of epsilon / 500 made two events cost 0.2% more than each by itself.
    finer = max(min(step, best / 2000), _finest(parts))
    if best > 0 and finer < step:
        other = loss_distribution(parts, finer).get_epsilon_for_delta(delta - margin)
        best = min(best, float(other))
    return best if delta > _SMALL * margin else min(best, renyi_epsilon(parts, delta))


def tractable(parts: _Parts) -> bool:
    """Whether these events can be composed on a grid; else only their Rényi divergences can."""
    return sum(parts.values()) <= _MOST_ROUNDS and all(
        _widest(leaf) <= _LARGEST_LOSS and _spread(leaf) >= _LEAST_SPREAD for leaf in parts
    )


def distrust(parts: _Parts) -> float:
    """More than the rounding of the Fourier transforms can take from delta."""
    return 1e-14 + 4e-16 * sum(parts.values())


def grid_step(parts: _Parts) -> float:
    """The distance of neighbouring losses on the grid that fits these events."""
    # The mean variance of one round: grids that fit it also fit their sum.
    rounds = sum(parts.values())
    variance = math.fsum(count * _spread(leaf) ** 2 for leaf, count in parts.items()) / rounds
    step = (_STEP if len(parts) <= _FEW else _COARSE_STEP) * math.sqrt(variance)
    return max(step, _finest(parts))


def loss_distribution(parts: _Parts, step: float) -> Any:
    """The composed distribution of the privacy loss (dp-accounting's), never too favourable."""
    total = pld.identity(value_discretization_interval=step)
    by_count: dict[int, list[events.Leaf]] = {}
    for leaf, count in parts.items():
        by_count.setdefault(count, []).append(leaf)
    for count, kinds in by_count.items():
        # Composed before they are repeated, since repeating is the dearer of the two.
        # Kinds with equal counts share one repetition.
        once = pld.identity(value_discretization_interval=step)
        for leaf in kinds:
            inner, rate = (
                (leaf.event, leaf.rate) if isinstance(leaf, events.PoissonEvent) else (leaf, 1.0)
            )
            if isinstance(inner, events.ApproximateEvent):
                # The worst of all that is pure with this epsilon.
                loss = _randomised_response(inner.epsilon, step)
            elif isinstance(inner, events.GaussianEvent):
                loss = _sampled_gaussian(inner.noise_multiplier, rate, step)
            else:
                loss = pld.from_laplace_mechanism(
                    inner.noise_multiplier, value_discretization_interval=step, sampling_prob=rate
                )
            once = once.compose(loss)
        total = total.compose(once.self_compose(count))
    return total


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
        mu = 1 / noise_multiplier
        # The mixture of N(mu, 1), with probability `rate`, and N(0, 1) against N(0, 1), or the
        # other way round; the rest of `deltas` is where the mixture is the larger everywhere.
        if rate == 1:
            deltas = _delta(losses, mu)
        elif adjacency is AdjacencyType.REMOVE:
            deltas = -np.expm1(losses)
            partly = losses > math.log1p(-rate)
            deltas[partly] = rate * _delta(np.log1p(np.expm1(losses[partly]) / rate), mu)
        else:
            weights = -np.expm1(losses + math.log1p(-rate))
            deltas, partly = np.zeros_like(losses), weights > 0
            inner = losses[partly] + math.log(rate) - np.log(weights[partly])
            deltas[partly] = weights[partly] * _delta(inner, mu)
        deltas = np.clip(deltas, 0.0, 1.0)
        pmfs.append(pld_pmf.create_pmf_pessimistic_connect_dots_fixed_gap(step, low, high, deltas))
    return pld.PrivacyLossDistribution(*pmfs)


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
        # Of two answers with the ratio `exp(bound)`, the true one is as likely as this.
        mass = 1 / (1 + math.exp(-loss))
        below = math.floor(loss / step)
        excess = loss - below * step
        above = math.expm1(-excess) / math.expm1(-step) if excess > 0 else 0.0
        masses[below] = masses.get(below, 0.0) + mass * (1 - min(above, 1.0))
        masses[below + 1] = masses.get(below + 1, 0.0) + mass * min(above, 1.0)
    return pld.PrivacyLossDistribution.create_from_rounded_probability(masses, 0.0, step)


def _finest(parts: _Parts) -> float:
    """A step that keeps one event, and all of them together, to a second of time at most."""
    alone = 2 * max(_widest(leaf) for leaf in parts)
    total = math.fsum(count * _widest(leaf) for leaf, count in parts.items())
    spreads = (math.sqrt(count) * _spread(leaf) for leaf, count in parts.items())
    # Sums of many losses are nearly normal: that is far narrower than their range.
    width = 2 * _TAIL * math.hypot(*spreads)
    return max(alone / _MOST_POINTS, min(2 * total, alone + width) / _MOST_COMPOSED)


def _widest(leaf: events.Leaf) -> float:
    """Estimate the largest loss on the grid."""
    if isinstance(leaf, events.PoissonEvent):
        return _widest(leaf.event)
    if isinstance(leaf, events.GaussianEvent):
        mu = 1 / leaf.noise_multiplier
        # The loss is normal with mean `mu**2 / 2` and deviation `mu`.
        return mu * mu / 2 + _TAIL * mu
    return events.pure_bound(leaf)


def _spread(leaf: events.Leaf) -> float:
    """Estimate the standard deviation of the loss: a bad one makes epsilon loose, never wrong."""
    if isinstance(leaf, events.GaussianEvent):
        return 1 / leaf.noise_multiplier
    bound = events.pure_bound(leaf)
    if isinstance(leaf, events.LaplaceEvent):
        return min(bound, math.sqrt(3))
    if isinstance(leaf, events.ApproximateEvent):
        return bound / math.cosh(bound / 2)
    inner, rate = leaf.event, leaf.rate
    if isinstance(inner, events.GaussianEvent):
        mu = 1 / inner.noise_multiplier
        there, absent = mu * _QUANTILES + mu * mu / 2, mu * _QUANTILES - mu * mu / 2
    else:
        bound = events.pure_bound(inner)
        there, absent = np.array([bound]), np.array([bound, -bound])
    losses = [np.logaddexp(math.log1p(-rate), math.log(rate) + loss) for loss in (there, absent)]
    moment = rate * np.mean(losses[0] ** 2) + (1 - rate) * np.mean(losses[1] ** 2)
    return math.sqrt(moment)


def renyi_epsilon(parts: _Parts, delta: float) -> float:
    """The least epsilon that the divergences imply for `delta` > 0."""
    # As zero-concentrated privacy: it says near which order the best bound is.
    rho = math.fsum(count * _slope(leaf) for leaf, count in parts.items())
    orders = np.array(DEFAULT_RDP_ORDERS)
    best = math.sqrt(math.log(1 / delta) / rho) if rho > 0 else 0.0
    if 0 < best < math.inf:  # then 1 + best is the best order for a divergence of rho * a
        near = 1 + best * np.geomspace(0.03, 30, 300)
        orders = np.unique(np.concatenate([DEFAULT_RDP_ORDERS, near[near > 1.01]]))
    total = np.zeros_like(orders)
    for leaf, count in parts.items():
        total += count * _curve(leaf, orders)
    # One below zero is rounding, and would count as perfect privacy; dp-accounting needs the rest.
    total = np.maximum(np.where(np.isnan(total), np.inf, total), _LEAST)
    return float(compute_epsilon(orders, total, delta)[0])


def _slope(leaf: events.Leaf) -> float:
    """Estimate the divergence of order `a`, over `a`; exact for Gaussian noise."""
    if isinstance(leaf, events.PoissonEvent):
        return leaf.rate**2 * _slope(leaf.event)
    if isinstance(leaf, events.GaussianEvent):
        return 0.5 / leaf.noise_multiplier / leaf.noise_multiplier
    bound = events.pure_bound(leaf)
    return bound * bound / 2


def _curve(leaf: events.Leaf, orders: _Array) -> _Array:
    """Upper bounds on the Rényi divergences of these orders."""
    if isinstance(leaf, events.GaussianEvent):
        return orders * _slope(leaf)
    if isinstance(leaf, events.PoissonEvent) and isinstance(leaf.event, events.GaussianEvent):
        # A finite sum at whole orders; between them the moments' logarithm is convex.
        with np.errstate(all="ignore"):  # what overflows becomes infinite or NaN: no bound
            whole: _Array = RdpAccountant(_WHOLE_ORDERS).compose(as_dp_event(leaf)).rdp
            moments = (_WHOLE_ORDERS - 1) * np.maximum(whole, 0) + _SLACK
            finite = np.isfinite(moments)
            finite_orders = np.append(1.0, _WHOLE_ORDERS[finite])
            chord = np.interp(
                orders, finite_orders, np.append(_SLACK, moments[finite]), right=np.inf
            )
        return np.asarray(np.minimum(chord / (orders - 1), orders * _slope(leaf.event)))
    # Randomised response is the worst of all that has this pure epsilon.
    bound = events.pure_bound(leaf)
    pure = np.minimum(bound, orders * bound * bound / 2)
    if bound >= 1e-3:  # below, the exact one is the same, and would be lost in rounding
        with np.errstate(under="ignore"):
            tail = np.log1p(np.exp((1 - 2 * orders) * bound)) - np.log1p(np.exp(-bound))
        pure = np.minimum(pure, bound + tail / (orders - 1) + _SLACK / (orders - 1))
    if isinstance(leaf, events.LaplaceEvent):
        curve: _Array = RdpAccountant(orders).compose(as_dp_event(leaf)).rdp
        pure = np.minimum(curve + _SLACK / (orders - 1), pure)
    return np.asarray(pure)

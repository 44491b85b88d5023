"""Composition of events: from events to epsilon and delta."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.pld import pld_pmf
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType, GaussianPrivacyLoss
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import (
    DEFAULT_RDP_ORDERS,
    compute_delta,
    compute_epsilon,
)
from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtr, ndtri

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.accounting.events import (
    ApproximateDpEvent,
    Event,
    approximate,
    concentrated,
    gaussian,
    laplace,
    leaves,
    poisson_sampled,
    pure_bound,
)

_ROOT_HALF_PI = math.sqrt(math.pi / 2)
_LOG_ROOT_TWO_PI = math.log(2 * math.pi) / 2
_SMALL_SHIFT = 2e-3  # below, the difference of two Mills' ratios is taken from derivatives
_NOTHING_BEYOND = 1e4  # standard deviations: a float cannot hold so small a probability
_ROUNDING = 1e-11  # relative, and more than the arithmetic here can lose


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The least epsilon that holds with `delta`, rounded up by less than `1e-10` of `1 + mu`."""
    if mu == 0:
        return 0.0
    if delta == 0 or math.isinf(mu * mu):
        return math.inf
    least, most = -mu / 2, -float(ndtri(delta))
    target = math.log(delta)
    if _log_delta(least, mu) <= target - _ROUNDING:
        return 0.0
    if _log_delta(most, mu) >= target:  # the second term is lost in rounding, or nearly
        u = most
    else:
        u = float(brentq(lambda u: _log_delta(u, mu) - target, least, most, xtol=1e-14))
    return max(0.0, mu * (u + _ROUNDING * (1 + abs(u)) + mu / 2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """The least delta that holds with `epsilon`, rounded up by less than `1e-10` of itself."""
    if mu == 0 or math.isinf(epsilon):
        return 0.0
    if math.isinf(mu * mu):
        return 1.0
    log_delta = _log_delta(epsilon / mu - mu / 2, mu)
    return min(1.0, math.exp(log_delta) * (1 + _ROUNDING))


def _log_delta(u: float, mu: float) -> float:
    if u > _NOTHING_BEYOND:
        return -math.inf
    if u < -5:
        # Mills' ratio overflows here, while nothing cancels.
        second = math.exp(-u * u / 2 - _LOG_ROOT_TWO_PI - float(log_ndtr(-u))) * _mills(u + mu)
        return float(log_ndtr(-u)) + math.log1p(-second)
    if mu < _SMALL_SHIFT:
        middle = u + mu / 2
        first = middle * _mills(middle) - 1
        third = 2 * first + middle * (_mills(middle) + middle * first)
        difference = -mu * (first + mu * mu / 24 * third)
    else:
        difference = _mills(u) - _mills(u + mu)
    if difference <= 0:
        return -math.inf
    return -u * u / 2 - _LOG_ROOT_TWO_PI + math.log(difference)


def _mills(x: float) -> float:
    return _ROOT_HALF_PI * float(erfcx(x / math.sqrt(2)))


_Curve: TypeAlias = npt.NDArray[np.float64]
_WHOLE_ORDERS: _Curve = np.array([*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024], float)
_LEAST = 1e-15
_SLACK = 1e-13  # of the logarithm of a moment, where it is a sum of many terms


def renyi_epsilon(parts: Mapping[Event, int], delta: float) -> float:
    """The least epsilon that the divergences imply for `delta` > 0."""
    rho = _total_slope(parts)
    orders = _orders(math.sqrt(math.log(1 / delta) / rho) if rho > 0 else 0.0)
    return float(compute_epsilon(orders, _total(parts, orders), delta)[0])


def renyi_delta(parts: Mapping[Event, int], epsilon: float) -> float:
    """The least delta that the divergences imply for `epsilon`."""
    if math.isinf(epsilon):
        return 0.0
    rho = _total_slope(parts)
    orders = _orders((epsilon - rho) / (2 * rho) if rho > 0 else 0.0)
    return min(1.0, float(compute_delta(orders, _total(parts, orders), epsilon)[0]))


def _orders(best: float) -> _Curve:
    """dp-accounting's orders, and more about 1 + `best`, which is the best for `rho * a`."""
    if not 0 < best < math.inf:
        return np.array(DEFAULT_RDP_ORDERS)
    near = 1 + best * np.geomspace(0.03, 30, 300)
    return np.unique(np.concatenate([DEFAULT_RDP_ORDERS, near[near > 1.01]]))


def _total_slope(parts: Mapping[Event, int]) -> float:
    return math.fsum(count * _slope(leaf) for leaf, count in parts.items())


def _slope(leaf: Event) -> float:
    match leaf:
        case dp_event.ZCDpEvent():
            return float(leaf.rho)
        case dp_event.PoissonSampledDpEvent():
            return float(leaf.sampling_probability) ** 2 * _slope(leaf.event)
        case dp_event.GaussianDpEvent():
            return float(0.5 / leaf.noise_multiplier / leaf.noise_multiplier)
    bound = pure_bound(leaf)
    return bound * bound / 2


def _total(parts: Mapping[Event, int], orders: _Curve) -> _Curve:
    total = np.zeros_like(orders)
    for leaf, count in parts.items():
        total += count * _curve(leaf, orders)
    # One below zero is rounding, and would count as perfect privacy; dp-accounting needs the rest.
    return np.maximum(np.where(np.isnan(total), np.inf, total), _LEAST)


def _curve(leaf: Event, orders: _Curve) -> _Curve:
    match leaf:
        case dp_event.GaussianDpEvent():
            return orders * _slope(leaf)
        case dp_event.ZCDpEvent():
            return float(leaf.xi) + orders * _slope(leaf)
        case dp_event.LaplaceDpEvent():
            return _laplace_curve(leaf, orders)
        case ApproximateDpEvent():
            return _pure_curve(leaf.epsilon, orders)
        case dp_event.PoissonSampledDpEvent():
            if isinstance(leaf.event, dp_event.LaplaceDpEvent):
                return _pure_curve(pure_bound(leaf), orders)
            return _sampled_curve(leaf, orders)
    raise ArgumentError(f"event must be one that diffsketch makes, got {leaf}")


def _laplace_curve(leaf: Event, orders: _Curve) -> _Curve:
    curve: _Curve = RdpAccountant(orders).compose(leaf).rdp
    return np.minimum(curve + _SLACK / (orders - 1), _pure_curve(pure_bound(leaf), orders))


def _sampled_curve(leaf: Event, orders: _Curve) -> _Curve:
    """At whole orders, where it is a finite sum; between them the moments' logarithm is convex."""
    with np.errstate(all="ignore"):  # what overflows becomes infinite or NaN: no bound
        whole: _Curve = RdpAccountant(_WHOLE_ORDERS).compose(leaf).rdp
        moments = (_WHOLE_ORDERS - 1) * np.maximum(whole, 0) + _SLACK
        known = np.isfinite(moments)
        orders_known = np.append(1.0, _WHOLE_ORDERS[known])
        chord = np.interp(orders, orders_known, np.append(_SLACK, moments[known]), right=np.inf)
    return np.asarray(np.minimum(chord / (orders - 1), orders * _slope(leaf.event)))


def _pure_curve(bound: float, orders: _Curve) -> _Curve:
    """Of randomised response, the worst of all that has this pure epsilon."""
    quadratic = np.minimum(bound, orders * bound * bound / 2)
    if bound < 1e-3:  # there the exact one is the same, and would be lost in rounding
        return np.asarray(quadratic)
    with np.errstate(under="ignore"):
        tail = np.log1p(np.exp((1 - 2 * orders) * bound)) - np.log1p(np.exp(-bound))
    exact = bound + tail / (orders - 1) + _SLACK / (orders - 1)
    return np.asarray(np.minimum(quadratic, exact))


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

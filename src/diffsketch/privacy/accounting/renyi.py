"""Rényi divergences of events, and the epsilon and delta that they imply.

Every order `a` gives a bound; they add up over rounds without any rounding to a grid, so this
holds for the smallest delta and for any number of rounds, and is looser than `losses`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from dp_accounting import dp_event
from dp_accounting.rdp import RdpAccountant
from dp_accounting.rdp.rdp_privacy_accountant import (
    DEFAULT_RDP_ORDERS,
    compute_delta,
    compute_epsilon,
)

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.events import ApproximateDpEvent, Event, pure_bound

__all__ = ["renyi_delta", "renyi_epsilon"]

_Curve: TypeAlias = npt.NDArray[np.float64]
_WHOLE_ORDERS: _Curve = np.array([*range(2, 64), 64, 80, 96, 128, 192, 256, 384, 512, 1024], float)
_LEAST = 1e-15
_ROUNDING = 1e-13  # of the logarithm of a moment, where it is a sum of many terms


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
    return np.minimum(curve + _ROUNDING / (orders - 1), _pure_curve(pure_bound(leaf), orders))


def _sampled_curve(leaf: Event, orders: _Curve) -> _Curve:
    """At whole orders, where it is a finite sum; between them the moments' logarithm is convex."""
    with np.errstate(all="ignore"):  # what overflows becomes infinite or NaN: no bound
        whole: _Curve = RdpAccountant(_WHOLE_ORDERS).compose(leaf).rdp
        moments = (_WHOLE_ORDERS - 1) * np.maximum(whole, 0) + _ROUNDING
        known = np.isfinite(moments)
        orders_known = np.append(1.0, _WHOLE_ORDERS[known])
        chord = np.interp(orders, orders_known, np.append(_ROUNDING, moments[known]), right=np.inf)
    return np.asarray(np.minimum(chord / (orders - 1), orders * _slope(leaf.event)))


def _pure_curve(bound: float, orders: _Curve) -> _Curve:
    """Of randomised response, the worst of all that has this pure epsilon."""
    quadratic = np.minimum(bound, orders * bound * bound / 2)
    if bound < 1e-3:  # there the exact one is the same, and would be lost in rounding
        return np.asarray(quadratic)
    with np.errstate(under="ignore"):
        tail = np.log1p(np.exp((1 - 2 * orders) * bound)) - np.log1p(np.exp(-bound))
    exact = bound + tail / (orders - 1) + _ROUNDING / (orders - 1)
    return np.asarray(np.minimum(quadratic, exact))

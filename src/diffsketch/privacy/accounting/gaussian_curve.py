"""Epsilon and delta of Gaussian noise, in closed form and at any size.

A Gaussian mechanism whose result can move by `mu` standard deviations satisfies epsilon with
exactly `delta = Phi(-u) - exp(epsilon) Phi(-u - mu)`, `u = epsilon / mu - mu / 2` (Balle and
Wang, 2018). Taken literally that loses all digits when `mu` is very small or very large, so it is
written with Mills' ratio `m(x) = Phi(-x) / phi(x)`: `delta = phi(u) (m(u) - m(u + mu))`.
"""

from __future__ import annotations

import math

from scipy.optimize import brentq
from scipy.special import erfcx, log_ndtr, ndtri

__all__ = ["gaussian_delta", "gaussian_epsilon"]

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

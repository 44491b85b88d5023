"""Skellam noise on whole numbers: differences of Poisson numbers, which add up exactly."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.mechanisms.integer import IntegerMechanism, lowest_line
from diffsketch.privacy.noise import Noise

__all__ = ["SkellamMechanism"]


@dataclass(frozen=True)
class SkellamMechanism(IntegerMechanism):
    """The difference of two Poisson numbers in every cell, of variance `mu` together.

    `sqrt(mu)` is `noise_multiplier` times the L2 sensitivity of the rounded tables. A sum of
    Skellam numbers is one, so shares of variance `mu / cohort` make exactly the same mechanism.

    Agarwal et al., Theorem 3.5 and Corollary 3.6: for whole-number shifts of L1 and L2 norms at
    most D1 and D2, the Rényi divergence of every *whole* order `a` >= 2 is at most

        a D2**2 / (2 mu) + min(((2a - 1) D2**2 + 6 D1) / (4 mu**2), 3 D1 / (2 mu)).

    Both branches are lines `rho a + xi`. They are carried over to all real orders `a` > 1 by
    raising `xi` by `rho * min(1, max(3 - 2 sqrt(2), 2 - 2 D / (e**D - 1)))`, `D = 2 rho + xi`
    being the bound for order 2, since

    * `(a - 1) * divergence(a)` is convex in `a` and 0 at 1. Between whole orders it is below the
      chord, which exceeds the line's `(a - 1)(rho a + xi)` by `rho s (1 - s)`, `s` the fraction of
      `a`: at most `(3 - 2 sqrt(2)) rho` after division by `a - 1 >= 1`, and `rho` for `a < 2`.
    * A reflection swaps a symmetric distribution and its shift. For such pairs
      `exp((a - 1) * divergence(a))` is the mean of `cosh((2a - 1) u) / cosh(u)` over some `u`,
      which is convex in `(2a - 1)**2`, so in `a (a - 1)`. The chord from order 1 to order 2 gives
      `divergence(a) <= a (e**D - 1) / 2` for `1 < a < 2`. The lower of this and `D` exceeds the
      line by at most `rho (2 - 2 D / (e**D - 1))`.

    Guarantees: exact divergences, computed by brute force for whole and other orders, obey this
    (`tests/privacy/test_integer.py::test_skellam_bound`). A secure source of noise states how far
    it is from this distribution (`SecureNoise.skellam_error`).

    >>> from diffsketch.privacy.mechanisms.bounds import NormBound
    >>> from diffsketch.privacy.mechanisms.quantize import Quantizer
    >>> quantizer = Quantizer(NormBound(1.0), granularity=0.001, cells=154)
    >>> mechanism = SkellamMechanism(quantizer, 4.0, trust=Trust.DISTRIBUTED, cohort=1000)
    >>> mechanism.with_bits_for(1e-6).bits
    22
    >>> print(mechanism.claim.epsilon(delta=1e-5, rounds=1))
    epsilon = 1.018 at delta = 1e-05 over 1 round (proven; client unit, replace, distributed trust)

    References:
        Agarwal, Kairouz, Liu (2021), The Skellam Mechanism for Differentially Private Federated
        Learning.
    """

    @property
    def _share(self) -> float:
        """The variance of one message's noise."""
        return self._noise_variance / self._parts

    @property
    def _name(self) -> str:
        return "Skellam noise"

    @property
    def _noise_variance(self) -> float:
        return (self.noise_multiplier * self.quantizer.sensitivity(2, self.relation)) ** 2

    def _draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        return noise.skellam(shape, self._share)

    def _event(self, present: int) -> Event:
        mu = self._noise_variance
        if self.trust is Trust.DISTRIBUTED:
            mu = self._share * present
        square = self.quantizer.sensitivity(2, self.relation) ** 2
        shift_1 = self.quantizer.sensitivity(1, self.relation)
        lines = [
            (square / (2 * mu), 3 * shift_1 / (2 * mu)),
            (square / (2 * mu) + square / (2 * mu**2), (6 * shift_1 - square) / (4 * mu**2)),
        ]
        return lowest_line([_for_real_orders(rho, xi) for rho, xi in lines])

    def _log_tail(self, room: float, sources: int) -> float:
        # Chernoff: E[exp(l x)] = exp(mu (cosh(l) - 1)), at its best for l = asinh(room / mu).
        mu = sources * self._share
        return room**2 / (math.hypot(room, mu) + mu) - room * math.asinh(room / mu)


def _for_real_orders(rho: float, xi: float) -> tuple[float, float]:
    """A line above the divergences of all orders, from one above those of whole orders."""
    at_two = 2 * rho + xi
    ratio = at_two / math.expm1(at_two) if at_two < 700 else 0.0
    extra = rho * min(1.0, max(3 - 2 * math.sqrt(2), 2 - 2 * ratio))
    # An event's line starts at 0 or above; a lower one is simply not made use of.
    return rho, max(0.0, xi + extra)

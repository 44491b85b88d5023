"""Discrete Gaussian noise on whole numbers, from one source or shared among a cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from diffsketch.errors import check
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.mechanisms.domination import gaussian_event
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.noise import Noise

__all__ = ["DiscreteGaussianMechanism"]


@dataclass(frozen=True)
class DiscreteGaussianMechanism(IntegerMechanism):
    """Noise with probabilities proportional to `exp(-x**2 / (2 sigma**2))` on whole numbers.

    `sigma` is `noise_multiplier` times the L2 sensitivity of the rounded tables. Claims rest on a
    Gaussian that is at most as private (`domination`): all curvatures of one source of noise (local
    or central trust) are `1 / sigma**2`. So the epsilon is that of Gaussian noise whose variance is
    smaller by some 1/12.

    Under distributed trust each of `n` members adds noise of `s = sigma / sqrt(cohort)`. The sum is
    log-concave as its parts are, and its curvatures are at most

        1 / (n s**2) + 4 * sum(atanh(2 q(k) / (1 - q(k)**3)) for k in 1..n-1),
        q(k) = exp(-2 pi**2 s**2 k / (k + 1)).

    For the sum of `k` members has probabilities in proportion to `exp(-x**2 / (2 k s**2)) F(k, x)`,
    with `F(1, x) = 1`. To add another one makes `F(k + 1, x)` a sum over `y` of `F(k, y)
    exp(-(y - x k / (k + 1))**2 / (2 v))`, `v = s**2 k / (k + 1)`. By Poisson summation the sum of
    these exponentials alone is, up to a factor, one and `2 q(k)**(j**2) cos(2 pi j x k / (k + 1))`
    for every `j >= 1`, which is within `1 +- 2 q(k) / (1 - q(k)**3)`. So `log F(n, x)` is, up to a
    constant, at most the sum of the `atanh` in size, and its second difference at most four times
    that. (Kairouz et al. bound `F` in much the same way, also for shares of at least 1/2.)

    Guarantees: never below exact enumeration (`tests/privacy/test_domination.py`).

    References:
        Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy.
        Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        share = self._share
        if self.trust is Trust.DISTRIBUTED:
            check(
                share >= 0.5,
                "noise_multiplier",
                f"give shares >= 1/2 (not {share:.3g})",
                self.noise_multiplier,
            )

    @property
    def _share(self) -> float:
        """The parameter of one message's noise."""
        sigma = self.noise_multiplier * self.quantizer.sensitivity(2, self.relation)
        return sigma / math.sqrt(self._parts)

    @property
    def _name(self) -> str:
        return "discrete Gaussian noise"

    @property
    def _noise_variance(self) -> float:
        # That of a discrete Gaussian is at most its parameter's square.
        return self._parts * self._share**2

    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """The noise of one message: int64."""
        return noise.discrete_gaussian(shape, self._share)

    def _event(self, present: int) -> Event:
        members = present if self.trust is Trust.DISTRIBUTED else 1
        curvature = 1 / (members * self._share**2) + _excess(self._share, members)
        shift = self.quantizer.sensitivity(2, self.relation)
        return gaussian_event(curvature, shift, distance=self._distance(present))

    def _log_tail(self, room: int) -> float:
        # A discrete Gaussian is sub-Gaussian with its own parameter, and so are sums.
        return -(room**2) / (2 * self._sources * self._share**2)


def _excess(share: float, members: int) -> float:
    """The second part of the sum's curvature, which one source of noise has not."""
    k = np.arange(1, members, dtype=np.float64)
    q = np.exp(-2 * (math.pi * share) ** 2 * k / (k + 1))
    return 4 * float(np.arctanh(2 * q / (1 - q**3)).sum())

"""Discrete Gaussian noise on whole numbers, from one source or shared among a cohort."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from diffsketch.errors import check
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.mechanisms.integer import IntegerMechanism, lowest_line
from diffsketch.privacy.noise import Noise

__all__ = ["DiscreteGaussianMechanism"]


@dataclass(frozen=True)
class DiscreteGaussianMechanism(IntegerMechanism):
    """Noise with probabilities proportional to `exp(-x**2 / (2 sigma**2))` on whole numbers.

    `sigma` is `noise_multiplier` times the L2 sensitivity of the rounded tables. One source of it
    (local or central trust) has a Rényi divergence of order `a` of at most `a D2**2 / (2 sigma**2)`
    (Canonne et al.): `rho`-zCDP with `rho = 1 / (2 noise_multiplier**2)`, as for real Gaussians.

    Under distributed trust each of `n` members adds noise of `s = sigma / sqrt(cohort)`. A sum of
    discrete Gaussians is not one, but nearly so. Proposition 14 of Kairouz et al.: for `s >= 1/2`,

        tau = 10 * sum(exp(-2 pi**2 s**2 k / (k + 1)) for k in 1..n-1),

    whole-number shifts of L1 and L2 norms at most D1 and D2, `d` cells and every order `a` >= 1,
    the divergence is at most each of

        a D2**2 / (2 n s**2) + tau d,
        a/2 (D2**2 / (n s**2) + 2 tau D1 / (sqrt(n) s) + tau**2 d),
        a/2 (D2 / (sqrt(n) s) + tau sqrt(d))**2.

    Guarantees: exact divergences in one and two dimensions, computed by brute force, obey this
    (`tests/privacy/test_integer.py::test_shared_discrete_gaussian_bound`).

    References:
        Canonne, Kamath, Steinke (2020), The Discrete Gaussian for Differential Privacy.
        Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation.
    """

    _sub_gaussian: ClassVar[bool] = True

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

    def _draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        return noise.discrete_gaussian(shape, self._share)

    def _event(self, present: int) -> Event:
        if self.trust is not Trust.DISTRIBUTED:
            return events.concentrated(1 / (2 * self.noise_multiplier**2))
        cells = self.quantizer.cells
        sigma = math.sqrt(present) * self._share
        shift = self.quantizer.sensitivity(2, self.relation) / sigma
        shift_1 = self.quantizer.sensitivity(1, self.relation) / sigma
        tau = _excess(self._share, present)
        return lowest_line(
            [
                (shift**2 / 2, tau * cells),
                ((shift**2 + 2 * tau * shift_1 + tau**2 * cells) / 2, 0.0),
                ((shift + tau * math.sqrt(cells)) ** 2 / 2, 0.0),
            ]
        )

    def _log_tail(self, room: float, sources: int) -> float:
        # A discrete Gaussian is sub-Gaussian with its own parameter, and so are sums.
        return -(room**2) / (2 * sources * self._share**2)


def _excess(share: float, members: int) -> float:
    """`tau` above: how far the sum's logarithmic probabilities are from a discrete Gaussian's."""
    k = np.arange(1, members, dtype=np.float64)
    return 10 * float(np.exp(-2 * (math.pi * share) ** 2 * k / (k + 1)).sum())

"""Gaussian noise on vectors and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.mechanisms.additive import AdditiveMechanism
from diffsketch.privacy.noise import Noise

__all__ = ["GaussianMechanism"]


@dataclass(frozen=True)
class GaussianMechanism(AdditiveMechanism):
    """Independent Gaussian noise, `noise_multiplier` times the L2 sensitivity, on every entry.

    Guarantees: exactly `mu`-Gaussian differential privacy with `mu = 1 / noise_multiplier`, for
    each epsilon and delta (the analytic Gaussian mechanism; `tests/privacy/test_gaussian.py`).
    This is a theorem about real numbers. In floating point the noise is for simulation; for a real
    release take whole numbers and discrete noise.

    Args:
        bound: How values are clipped, and with that the sensitivity.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        relation: Which data sets are neighbours.
        trust: Who adds the noise. For `local` each worker does, with `release`; for `central` a
            server that all trust, once, with `release_sum`.

    >>> from diffsketch.privacy.mechanisms.bounds import NormBound
    >>> mechanism = GaussianMechanism(NormBound(limit=2.0), noise_multiplier=3.0)
    >>> mechanism.std
    12.0
    >>> print(mechanism.claim)  # doctest: +NORMALIZE_WHITESPACE
    Simulated noise. With exact noise: Proven: Gaussian noise of standard deviation 12 on what is
    sent limits how well anyone who sees a client's message can tell which of two data sets one
    client holds.

    References:
        B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy", 2018.
    """

    order: ClassVar[Literal[1, 2]] = 2

    @property
    def std(self) -> float:
        """Standard deviation of the noise in a cell."""
        return self._scale

    @property
    def _name(self) -> str:
        return f"Gaussian noise of standard deviation {self.std:.4g}"

    def _event(self) -> Event:
        return events.gaussian(self.noise_multiplier)

    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        return noise.normal(tuple(values.shape), self.std, dtype=values.dtype)

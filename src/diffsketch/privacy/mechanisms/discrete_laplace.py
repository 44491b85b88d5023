"""Discrete Laplace (two-sided geometric) noise on whole numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.noise import Noise

__all__ = ["DiscreteLaplaceMechanism"]


@dataclass(frozen=True)
class DiscreteLaplaceMechanism(IntegerMechanism):
    """Noise with probabilities proportional to `exp(-abs(x) / scale)` on whole numbers.

    `scale` is `noise_multiplier` times the L1 sensitivity of the rounded tables (which is small
    for tables that are clipped in that norm, `NormBound(..., order=1)`). No probability changes by
    more than a factor of `exp(D1 / scale)`: pure differential privacy with an epsilon of
    `1 / noise_multiplier` (`tests/privacy/test_integer.py::test_discrete_laplace_is_pure`).

    Not for distributed trust: sums of discrete Laplace numbers are not discrete Laplace.

    References:
        Ghosh, Roughgarden, Sundararajan (2009), Universally Utility-Maximizing Privacy Mechanisms.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.trust is Trust.DISTRIBUTED:
            raise ArgumentError("trust must be local or central for Laplace noise, got distributed")

    @property
    def scale(self) -> float:
        """Of the noise, in steps."""
        return self.noise_multiplier * self.quantizer.sensitivity(1, self.relation)

    @property
    def _name(self) -> str:
        return "discrete Laplace noise"

    @property
    def _noise_variance(self) -> float:
        return 2 * math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2

    def _draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        return noise.discrete_laplace(shape, self.scale)

    def _event(self, present: int) -> Event:  # noqa: ARG002
        return events.approximate(1 / self.noise_multiplier)

    def _log_tail(self, room: float, sources: int) -> float:
        # Chernoff: E[exp(l x)] = (1 - q)**2 / ((1 - q e**l) (1 - q e**-l)) with q = exp(-1/scale).
        # Any l in (0, 1/scale) gives a bound; this is the best for Laplace noise on real numbers.
        relative = room / (sources * self.scale)
        slope = min(relative / (1 + math.hypot(1, relative)), 1 - 1e-9) / self.scale
        parts = (math.expm1(slope - 1 / self.scale), math.expm1(-slope - 1 / self.scale))
        log_mgf = 2 * math.log(-math.expm1(-1 / self.scale)) - sum(math.log(-x) for x in parts)
        return sources * log_mgf - slope * room

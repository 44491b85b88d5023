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

    A release is at most as revealing as that of one real number with Laplace noise of
    `noise_multiplier` times the distance that it moves: over rounds they compose as such, and with
    a delta of 0 each has an epsilon of `1 / noise_multiplier`. For this `scale` is the number `b`
    with

        D1 / b + m / (4 b**2) = 1 / noise_multiplier,    b <= noise_multiplier D1 + 1/4,

    `D1` being the L1 sensitivity of the rounded tables (which is small for tables that are clipped
    in that norm, `NormBound(..., order=1)`) and `m` how many cells can move, at most `D1`.

    *Proof*, as in `domination`, with the Laplace distribution in place of the normal one. Let
    `z(t)` be the point above which a Laplace number of scale 1 is as likely as `X >= t`. As
    `P[X >= t]` is `exp(-t / b) / (1 + exp(-1 / b))` for `t >= 1`, `z` grows by `1 / b` from one
    whole number to the next, but from 0 to 1 by `1 / b + 2 log(cosh(1 / (2 b)))`, at most
    `1 / b + 1 / (4 b**2)`. So to move a cell by `s` steps tells no more than to move a real number
    by `s / b + 1 / (4 b**2)`; and to move several of those, than to move one by the sum
    (`LaplaceMechanism`).

    Guarantees: never below exact enumeration (`tests/privacy/test_domination.py`).

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
        shift = self.quantizer.sensitivity(1, self.relation)
        moved = min(shift, self.quantizer.cells)
        root = math.sqrt(shift**2 + moved / self.noise_multiplier)
        return self.noise_multiplier * (shift + root) / 2

    @property
    def _name(self) -> str:
        return "discrete Laplace noise"

    @property
    def _noise_variance(self) -> float:
        return 2 * math.exp(-1 / self.scale) / math.expm1(-1 / self.scale) ** 2

    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """The noise of one message: int64."""
        return noise.discrete_laplace(shape, self.scale)

    def _event(self, present: int) -> Event:  # noqa: ARG002
        return events.laplace(self.noise_multiplier)

    def _log_tail(self, room: int) -> float:
        # Chernoff: E[exp(l x)] = (1 - q)**2 / ((1 - q e**l) (1 - q e**-l)) with q = exp(-1/scale).
        # Any l in (0, 1/scale) gives a bound; this is the best for Laplace noise on real numbers.
        relative = room / (self._sources * self.scale)
        slope = min(relative / (1 + math.hypot(1, relative)), 1 - 1e-9) / self.scale
        parts = (math.expm1(slope - 1 / self.scale), math.expm1(-slope - 1 / self.scale))
        log_mgf = 2 * math.log(-math.expm1(-1 / self.scale)) - sum(math.log(-x) for x in parts)
        return self._sources * log_mgf - slope * room

"""Laplace noise on vectors and tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.mechanisms.additive import AdditiveMechanism
from diffsketch.privacy.mechanisms.bounds import CoordinateBound
from diffsketch.privacy.noise import Noise

__all__ = ["LaplaceMechanism"]


@dataclass(frozen=True)
class LaplaceMechanism(AdditiveMechanism):
    """Independent Laplace noise, its scale `noise_multiplier` times the L1 sensitivity.

    One release is `1 / noise_multiplier`-differentially private with a delta of 0. Over rounds,
    the event says more than that number.

    *Coordinates.* One coordinate moves one cell in each of the `rows` rows, each by at most the
    same amount, a `1 / rows` of the L1 sensitivity. These cells have independent noise, so that a
    release is `rows` one-dimensional releases of multiplier `noise_multiplier * rows`.

    *Any other bound.* A release is at most as revealing as that of one number that moves by the
    whole L1 sensitivity:

    * Take the scale of the noise as the unit. For one number that moves by `s`, from `P` to `Q`,
      let `D(s, e) = max_S P(S) - exp(e) Q(S)`. It is `1 - exp((e - s) / 2)` for `-s <= e <= s`,
      and 0 beyond `s`. It grows with `s` and falls with `e`.
    * Two numbers that move by `a <= c`: the first one's privacy loss `L` is at most `a`, so that
      `D(a and c, e) = E[D(c, e - L)] <= D(c, e - a) = 1 - exp((e - a - c) / 2) = D(a + c, e)`
      for `0 <= e <= a + c`, since `e - a` is then in `[-c, c]`. Beyond `a + c` both are 0, and for
      `e < 0` both follow from `-e`, as `P` and `Q` are mirror images.
    * So two numbers may be replaced by one that moves by the sum, and this again with the next
      one, since what dominates a part dominates the whole. One coordinate that takes all of the
      sensitivity reaches the bound.

    `tests/privacy/test_laplace.py` computes these numerically. They are theorems about real
    numbers: in floating point the noise is for simulation.

    Args:
        bound: How values are clipped, and with that the sensitivity: coordinates, or an L1 norm.
        noise_multiplier: Scale of the noise, in L1 sensitivities.
        relation: Which data sets are neighbours.
        trust: Who adds the noise. For `local` each worker does, with `release`; for `central` a
            server that all trust, once, with `release_sum`.

    >>> mechanism = LaplaceMechanism(CoordinateBound(limit=0.5, rows=4), noise_multiplier=2.0)
    >>> mechanism.scale
    8.0
    >>> print(mechanism.claim)  # doctest: +NORMALIZE_WHITESPACE
    Simulated noise. With exact noise: Proven: Laplace noise of scale 8 on what is sent limits how
    well anyone who sees a client's message can tell which of two values one coordinate of a vector
    has.

    References:
        C. Dwork, F. McSherry, K. Nissim, A. Smith, "Calibrating noise to sensitivity in private
        data analysis", 2006.
    """

    order: ClassVar[Literal[1, 2]] = 1

    @property
    def scale(self) -> float:
        """Scale of the noise in a cell; its standard deviation is sqrt(2) times that."""
        return self._scale

    @property
    def _name(self) -> str:
        return f"Laplace noise of scale {self.scale:.4g}"

    def _event(self) -> Event:
        if isinstance(self.bound, CoordinateBound):
            rows = self.bound.rows
            return events.repeated(events.laplace(self.noise_multiplier * rows), rows)
        return events.laplace(self.noise_multiplier)

    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        return noise.laplace(tuple(values.shape), self.scale, dtype=values.dtype)

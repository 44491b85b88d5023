"""Gaussian and Laplace noise on real numbers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_type
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Relation, Scope, SimulatedClaim, Trust
from diffsketch.privacy.clipping import Bound, CoordinateBound, Encode
from diffsketch.privacy.simulated_noise import Noise


@dataclass(frozen=True)
class AdditiveMechanism(ABC):
    """Real noise whose scale is `noise_multiplier` times the sensitivity. Subclasses say which.

    For `local` trust each worker adds it to its own message, with `release`; for `central` trust a
    server adds it once, to the sum. Not for `distributed` trust: shares of real noise do not add up
    to a guarantee about rounded messages.
    """

    bound: Bound
    noise_multiplier: float
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.LOCAL

    order: ClassVar[Literal[1, 2]]  # of the norm in which the sensitivity counts

    def __post_init__(self) -> None:
        check(isinstance(self.bound, Bound), "bound", "be a bound", self.bound)
        check_positive("noise_multiplier", self.noise_multiplier)
        scope = Scope(self.bound.unit, self.relation, self.trust)  # checks, and converts names
        check(scope.trust is not Trust.DISTRIBUTED, "trust", "be local or central", scope.trust)
        object.__setattr__(self, "relation", scope.relation)
        object.__setattr__(self, "trust", scope.trust)
        # A scale that vanishes in floating point would be no noise at all.
        check(0 < self._scale < math.inf, "noise_multiplier", "give noise", self.noise_multiplier)

    @property
    def _scale(self) -> float:
        return self.noise_multiplier * self.bound.sensitivity(self.order, self.relation)

    @property
    def claim(self) -> SimulatedClaim:
        """The claim of one release on real numbers: noise in floating point is simulated.

        For releases there is noise on whole numbers: `DiscreteGaussianMechanism` and its kin.
        """
        event, name = self._event()
        scope = Scope(self.bound.unit, self.relation, self.trust)
        return SimulatedClaim(scope, event, f"{name} on what is sent")

    def release(
        self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None, batch: bool = False
    ) -> Tensor:
        """Bound, encode and add noise: a vector `(dim,)` in, a vector or a table out.

        With `encode`, several vectors `(..., dim)` give a table each. Without, several vectors are
        to be announced by `batch=True`: a table that was made beforehand looks the same, and its
        rows would be clipped one by one, which bounds too little. Pass `encode` for that.

        Raises:
            ArgumentError: A value is not finite, or several vectors came unannounced.
        """
        check_type("noise", noise, Noise)
        if encode is None and not batch and vectors.dim() != 1:
            raise ArgumentError(
                f"vectors must be one vector (dim,), or batch=True said for several, got shape "
                f"{tuple(vectors.shape)}; a table is clipped as a whole by passing encode"
            )
        values = self.bound.apply(vectors, encode)
        return values + self._draw(values, noise).to(values.device)

    @abstractmethod
    def _event(self) -> tuple[Event, str]:
        """The event of one release, and the name of the noise, with its size."""

    @abstractmethod
    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        """Noise of the shape and type of `values`."""


@dataclass(frozen=True)
class GaussianMechanism(AdditiveMechanism):
    """Independent Gaussian noise, `noise_multiplier` times the L2 sensitivity, on every entry.

    Guarantees: exactly `mu`-Gaussian differential privacy with `mu = 1 / noise_multiplier`, for
    each epsilon and delta (the analytic Gaussian mechanism; `tests/privacy/test_additive.py`).
    This is a theorem about real numbers. In floating point the noise is for simulation; for a real
    release take whole numbers and discrete noise.

    Args:
        bound: Clipping of values, and with that the sensitivity.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        relation: Which data sets are neighbours.
        trust: Who adds the noise: each worker, with `release` (`local`), or a trusted server, once
            (`central`).

    >>> from diffsketch.privacy.clipping import NormBound
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

    def _event(self) -> tuple[Event, str]:
        name = f"Gaussian noise of standard deviation {self.std:.4g}"
        return events.gaussian(self.noise_multiplier), name

    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        return noise.normal(tuple(values.shape), self.std, dtype=values.dtype)


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

    `tests/privacy/test_additive.py` computes these numerically. They are theorems about real
    numbers: in floating point the noise is for simulation.

    Args:
        bound: Clipping of values, and with that the sensitivity: coordinates, or an L1 norm.
        noise_multiplier: Scale of the noise, in L1 sensitivities.
        relation: Which data sets are neighbours.
        trust: Who adds the noise: each worker, with `release` (`local`), or a trusted server, once
            (`central`).

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

    def _event(self) -> tuple[Event, str]:
        rows = self.bound.rows if isinstance(self.bound, CoordinateBound) else 1
        event = events.repeated(events.laplace(self.noise_multiplier * rows), rows)
        return event, f"Laplace noise of scale {self.scale:.4g}"

    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        return noise.laplace(tuple(values.shape), self.scale, dtype=values.dtype)

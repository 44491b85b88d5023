"""What Gaussian and Laplace noise share: bound, encode, add independent noise to every entry."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import Relation, Scope, SimulatedClaim, Trust, Unit
from diffsketch.privacy.mechanisms.bounds import Bound, CoordinateBound, Encode, NormBound
from diffsketch.privacy.noise import Noise

__all__ = ["AdditiveMechanism"]


@dataclass(frozen=True)
class AdditiveMechanism(ABC):
    """Real noise whose scale is `noise_multiplier` times the sensitivity. Subclasses say which.

    For `local` trust each worker adds it to its own message, with `release`; for `central` trust a
    server that all trust adds it once, to the sum, with `release_sum`. Not for `distributed`
    trust: shares of real noise do not add up to a guarantee about rounded messages (the mechanisms
    on whole numbers do).
    """

    bound: Bound
    noise_multiplier: float
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.LOCAL

    order: ClassVar[Literal[1, 2]]
    """Of the norm in which the sensitivity counts."""

    def __post_init__(self) -> None:
        if not isinstance(self.bound, CoordinateBound | NormBound):
            raise ArgumentError(f"bound must be a bound, got bound={self.bound!r}")
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
        """What one release would guarantee with real numbers: noise in floating point is simulated.

        For releases there is noise on whole numbers: `DiscreteGaussianMechanism` and its kin.
        """
        scope = Scope(self.bound.unit, self.relation, self.trust)
        return SimulatedClaim(scope, self._event(), f"{self._name} on what is sent")

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
        _check_noise(noise)
        if encode is None and not batch and vectors.dim() != 1:
            raise ArgumentError(
                f"vectors must be one vector (dim,), or batch=True said for several, got shape "
                f"{tuple(vectors.shape)}; a table is clipped as a whole by passing encode"
            )
        return self._add_noise(self.bound.apply(vectors, encode), noise)

    def release_sum(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """The sum of `(units, dim)` vectors, each bounded and encoded, with noise added once.

        For a server that is trusted with the vectors of all clients, or a client with its own
        examples.

        Raises:
            ArgumentError: The claim is about single messages of clients, which nothing would hide.
        """
        _check_noise(noise)
        check(vectors.dim() == 2, "vectors", "be a batch (units, dim)", tuple(vectors.shape))
        own = self.bound.unit is Unit.EXAMPLE
        check(own or self.trust is Trust.CENTRAL, "trust", "be central for a sum", self.trust)
        return self._add_noise(self.bound.apply(vectors, encode).sum(dim=0), noise)

    def _add_noise(self, values: Tensor, noise: Noise) -> Tensor:
        return values + self._draw(values, noise).to(values.device)

    @property
    @abstractmethod
    def _name(self) -> str:
        """Of the noise, with its size."""

    @abstractmethod
    def _event(self) -> Event:
        """What one release is to an accountant."""

    @abstractmethod
    def _draw(self, values: Tensor, noise: Noise) -> Tensor:
        """Noise of the shape and type of `values`."""


def _check_noise(noise: Noise) -> None:
    if not isinstance(noise, Noise):
        kind = type(noise).__name__
        raise ArgumentError(f"noise must be a Noise, such as NoiseKey.source gives, got a {kind}")

"""Gaussian noise on real numbers, for simulations."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_type
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Relation, RelationName, Scope, SimulatedClaim, Trust, TrustName
from diffsketch.privacy.clipping import Bound, Encode
from diffsketch.privacy.noise import Noise


@dataclass(frozen=True)
class GaussianMechanism:
    """Independent Gaussian noise, `noise_multiplier` times the L2 sensitivity, on every entry.

    For `local` trust each worker adds it to its own message, with `release`; for `central` trust a
    server adds it once, to the sum. Not for `distributed` trust: shares of real noise do not add up
    to a guarantee about rounded messages.

    Guarantees: exactly `mu`-Gaussian differential privacy with `mu = 1 / noise_multiplier`, for
    each epsilon and delta (the analytic Gaussian mechanism; `tests/privacy/test_additive.py`).
    This is a theorem about real numbers. In floating point the noise is for simulation; for a real
    release take whole numbers and discrete noise (`DiscreteGaussianMechanism`).

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

    bound: Bound
    noise_multiplier: float
    relation: RelationName = Relation.REPLACE
    trust: TrustName = Trust.LOCAL

    def __post_init__(self) -> None:
        check(isinstance(self.bound, Bound), "bound", "be a bound", self.bound)
        check_positive("noise_multiplier", self.noise_multiplier)
        trust = self._scope.trust
        check(trust is not Trust.DISTRIBUTED, "trust", "be local or central", trust)
        # A scale that vanishes in floating point would be no noise at all.
        check(0 < self.std < math.inf, "noise_multiplier", "give noise", self.noise_multiplier)

    @property
    def _scope(self) -> Scope:
        return Scope(self.bound.unit, self.relation, self.trust)  # checks, and converts names

    @property
    def std(self) -> float:
        """Standard deviation of the noise in a cell."""
        return self.noise_multiplier * self.bound.sensitivity(self._scope.relation)

    @property
    def claim(self) -> SimulatedClaim:
        """The claim of one release on real numbers: noise in floating point is simulated."""
        text = f"Gaussian noise of standard deviation {self.std:.4g} on what is sent"
        return SimulatedClaim(self._scope, events.gaussian(self.noise_multiplier), text)

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
        drawn = noise.normal(tuple(values.shape), self.std, dtype=values.dtype)
        return values + drawn.to(values.device)

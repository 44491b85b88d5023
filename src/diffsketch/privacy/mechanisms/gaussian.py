"""Gaussian noise on vectors and tables."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor

from diffsketch.errors import check
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust
from diffsketch.privacy.mechanisms.bounds import Bound, Encode
from diffsketch.privacy.noise import Noise

__all__ = ["GaussianMechanism"]


@dataclass(frozen=True)
class GaussianMechanism:
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
    Proven: Gaussian noise of standard deviation 12 on what is sent limits how well anyone who
    sees a client's message can tell which of two data sets one client holds.

    References:
        B. Balle, Y.-X. Wang, "Improving the Gaussian mechanism for differential privacy", 2018.
    """

    bound: Bound
    noise_multiplier: float
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.LOCAL

    def __post_init__(self) -> None:
        good = 0 < self.noise_multiplier < math.inf
        check(good, "noise_multiplier", "be > 0 and finite", self.noise_multiplier)
        scope = Scope(self.bound.unit, self.relation, self.trust)  # checks, and converts names
        object.__setattr__(self, "relation", scope.relation)
        object.__setattr__(self, "trust", scope.trust)
        self.bound.sensitivity(2, self.relation)  # raises now if there is none

    @property
    def std(self) -> float:
        """Standard deviation of the noise in a cell."""
        return self.noise_multiplier * self.bound.sensitivity(2, self.relation)

    @property
    def claim(self) -> ProvenClaim:
        """What one release guarantees."""
        scope = Scope(self.bound.unit, self.relation, self.trust)
        text = f"Gaussian noise of standard deviation {self.std:.4g} on what is sent"
        return ProvenClaim(scope, events.gaussian(self.noise_multiplier), text)

    def release(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """Bound, encode and add noise; `(..., dim)` in, `(..., dim)` or tables out."""
        return self._add_noise(self.bound.apply(vectors, encode), noise)

    def release_sum(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """The sum of `(units, dim)` vectors, each bounded and encoded, with noise added once."""
        check(vectors.dim() >= 2, "vectors", "be a batch (units, dim)", tuple(vectors.shape))
        return self._add_noise(self.bound.apply(vectors, encode).sum(dim=0), noise)

    def _add_noise(self, values: Tensor, noise: Noise) -> Tensor:
        added = noise.normal(tuple(values.shape), self.std, dtype=values.dtype)
        return values + added.to(values.device)

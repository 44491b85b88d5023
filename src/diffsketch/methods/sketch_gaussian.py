"""Gaussian noise on clipped tables: by each worker, or once by a trusted server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check_positive
from diffsketch.methods.base import Encoded, check_sums
from diffsketch.methods.sketch import TableMethod
from diffsketch.privacy.claim import ProvenClaim, Relation, Trust
from diffsketch.privacy.mechanisms import GaussianMechanism, NormBound
from diffsketch.privacy.mechanisms.tails import noise_norm
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed

__all__ = ["SketchGaussian"]


@dataclass(frozen=True, kw_only=True)
class SketchGaussian(TableMethod):
    """Tables clipped to a norm, and Gaussian noise that hides a whole client.

    The *table* is clipped, to a Euclidean norm of `clip`, and not the vector, since a sketch can
    make a vector longer. Replacing a client's data moves the table by at most `2 clip`, taking its
    data away (zeros instead) by `clip`: times `noise_multiplier`, that is the standard deviation.

    * local: each worker adds it to its table, and `publish` nothing.
    * central: workers send clipped tables to a server that they trust, and `publish` adds it, once.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        clip: Norm of the table. That of a dense vector's is about `sqrt(rows)` times the vector's.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        relation: Which data sets are neighbours.
        trust: `local` or `central`.
        family: Of the hashes.
        combine: How the rows' estimates become one.
    """

    clip: float
    noise_multiplier: float
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.LOCAL

    name: ClassVar[str] = "sketch-gaussian"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("clip", self.clip)
        check_positive("noise_multiplier", self.noise_multiplier)
        object.__setattr__(self, "relation", self.mechanism.relation)
        object.__setattr__(self, "trust", self.mechanism.trust)

    @cached_property
    def mechanism(self) -> GaussianMechanism:
        """What clips, adds noise and makes the claim."""
        bound = NormBound(self.clip)
        return GaussianMechanism(bound, self.noise_multiplier, self.relation, self.trust)

    @cached_property
    def _claim(self) -> ProvenClaim:
        return self.mechanism.claim

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        def encode(vectors: Tensor) -> Tensor:
            return check_sums(self.sketch.encode(vectors, seed))

        if self.trust is Trust.LOCAL:
            return Encoded(self.mechanism.release(batch, noise, encode=encode))
        return Encoded(self.mechanism.bound.apply(batch, encode))

    def _message_norm(self, failure: float) -> float:
        if self.trust is Trust.CENTRAL:
            return self.clip
        return self.clip + noise_norm(self.rows * self.cols, self.mechanism.std**2, failure)

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """For central trust the sum with noise, else the sum."""
        if self.trust is Trust.LOCAL:
            return total
        drawn = noise.normal((1, *total.shape), self.mechanism.std, dtype=total.dtype)[0]
        return total + drawn.to(total.device)

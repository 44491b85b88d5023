"""cpSGD under a secure sum: few levels, and binomial noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check_positive, check_whole
from diffsketch.methods.base import FALSE_REFUSAL, Encoded, register
from diffsketch.methods.forecast import (
    Plannable,
    RelativeError,
    Vectors,
    clipped_coordinates,
    noise_error,
    rounding_variance,
)
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    NoClaim,
    PaperClaim,
    Relation,
    RelationName,
    Scope,
    Trust,
    Unit,
    rounded_up,
)
from diffsketch.privacy.clipping import clip_coordinates, clip_norm
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS, BinomialMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.message import MessageFormat

_DEVIATIONS = 4.5  # of a coordinate, within the range of a plan


@register
@dataclass(frozen=True, kw_only=True)
class CpSgd(Plannable):
    """Agarwal et al.'s cpSGD, the paper's baseline with whole numbers.

    The vector is clipped to norm `clip`, its coordinates are clipped to `[-limit, limit]` and
    rounded at random to one of `levels` levels, and a binomial number of `trials` fair trials is
    added to each. The mean is the sum, less the noise's mean, over the number of workers.

    Under distributed trust the noise of all workers together hides one client, if there is enough
    of it; `claim_for` says what is proven, and that nothing is where the theorem's condition fails.
    A message has as many bits a number as the secure sum of the cohort needs.

    *The paper's settings* are those of `PAPER_SETTINGS`: `claimed=5.0` or `10.0`, with `bits` 4
    (if not given) or 5, takes levels and trials from its table. They were run with 10 workers a
    round, break the theorem's condition by far, and are shown as claimed. Messages then have the
    paper's 4 or 5 bits, which hold one worker's number and leave no room for a secure sum: that is
    the paper's accounting. (Where workers are enough for a proof, they have the bits of the sum.)
    The paper does not say which range it took for coordinates; `limit=1` needs no look at the data.

    Args:
        dim: Length of the vectors.
        cohort: Workers of a round, at most.
        clip: Norm of a vector. If not given, `limit * sqrt(dim)`: none that fits the range is
            clipped, and the claim is accordingly weak.
        limit: Range of a coordinate, X in the paper.
        levels: Of a coordinate, k in the paper.
        trials: Of the noise, m in the paper.
        delta: That the claim is made for.
        claimed: An epsilon of the paper's table.
        bits: To choose from the paper's table.
        relation: Which data sets are neighbours.

    >>> CpSgd(dim=7850, cohort=10, claimed=5.0).wire_bytes
    3929
    >>> CpSgd(dim=7850, cohort=10, levels=12, trials=4).wire_bytes
    7854
    """

    cohort: int
    clip: float | None = None
    limit: float = 1.0
    levels: int | None = None
    trials: int | None = None
    delta: float = 1e-5
    claimed: float | None = None
    bits: int | None = None
    relation: RelationName = Relation.REPLACE

    name: ClassVar[str] = "cpsgd"
    code: ClassVar = 6
    margins: ClassVar = (16, 2, 4, 8, 32, 64, 256)
    """Levels of a coordinate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("cohort", self.cohort, least=1)
        check_positive("limit", self.limit)
        if self.clip is not None:
            check_positive("clip", self.clip)
        object.__setattr__(self, "relation", self.mechanism.relation)

    @cached_property
    def mechanism(self) -> BinomialMechanism:
        """The mechanism that clips and adds noise, with levels and trials as given or claimed."""
        levels, trials = self.levels, self.trials
        if self.claimed is not None:
            # The first row that agrees in all that was given: 4 bits where nothing was said.
            wanted = (self.claimed, self.bits, levels, trials)
            for row in PAPER_SETTINGS:
                if all(value in (None, its) for value, its in zip(wanted, row, strict=True)):
                    levels, trials = row.levels, row.trials
                    break
            else:
                rows = (f"{s.claimed:g} {s.bits} {s.levels} {s.trials}" for s in PAPER_SETTINGS)
                raise ArgumentError(
                    "claimed, bits, levels and trials must be a row of the paper's table "
                    f"({'; '.join(rows)}), got claimed={self.claimed}, bits={self.bits}, "
                    f"levels={levels}, trials={trials}"
                )
        elif self.bits is not None:
            raise ArgumentError("bits must come with claimed: levels and trials decide them")
        if levels is None or trials is None:
            missing = "levels" if levels is None else "trials"
            raise ArgumentError(f"{missing} must be given, or claimed for the paper's settings")
        check_whole("levels", levels, least=2)
        check_whole("trials", trials, least=1)
        clip = self.limit * math.sqrt(self.dim) if self.clip is None else self.clip
        return BinomialMechanism(
            self.dim, clip, self.limit, levels, trials, self.cohort, self.delta,
            relation=self.relation,
        )  # fmt: skip

    @property
    def most_messages(self) -> int | None:
        """The cohort, whose sum must not wrap."""
        return self.cohort

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of the secure sum; where there is only the paper's claim, that of the paper."""
        sent = self.mechanism
        bits = sent.bits if isinstance(self._claim, PaperClaim) else sent.sum_bits
        return self._format((self.dim,), "unsigned", bits)

    def sum_bits(self, count: int) -> int:  # noqa: ARG002
        """Bits of a cell of the cohort's sum, which does not wrap."""
        return self.mechanism.sum_bits

    @cached_property
    def _claim(self) -> Claim:
        return self._claim_of(self.cohort)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        return self._claim if present == self.cohort else self._claim_of(present)

    def _claim_of(self, present: int) -> Claim:
        claim = self.mechanism.claim_for(present)
        if self.claimed is None or not isinstance(claim, NoClaim):
            return claim
        per_round = Epsilon(self.claimed, self.delta, 1, Basis.CLAIMED, claim.scope)
        # A paper's claim is for its own messages, which a secure sum cannot add up.
        size = f"messages of {self.mechanism.bits} bits that leave no room for a secure sum"
        source = f"the paper's table for cpSGD (where {claim.reason}), with {size},"
        return PaperClaim(claim.scope, per_round, source)

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """Bound by clip, rounding and the noise of `count` workers."""
        return self.mechanism.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:
        """Norm of the numbers that the cells stand for, less the noise's mean."""
        return float(torch.linalg.vector_norm(self.mechanism.centred(total, count)))

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to a norm, and to the range of coordinates."""
        return clip_coordinates(clip_norm(vectors, self.mechanism.clip), self.limit)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(self.mechanism.release(batch, noise))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return (self.mechanism.centred(total, count) / count).float()

    @classmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Settings, all but the noise: a range that dense vectors hardly ever leave."""
        wanted = Scope(Unit.CLIENT, scope.relation, Trust.DISTRIBUTED)
        if scope != wanted or bits is not None or cells < vectors.dim:
            return None
        # No coordinate exceeds the norm, and hardly any 4.5 of its standard deviations.
        limit = min(vectors.norm, _DEVIATIONS * vectors.norm / math.sqrt(vectors.dim))
        return {
            "clip": vectors.norm, "limit": float(rounded_up(limit, 4)), "levels": int(margin),
            "relation": scope.relation.value,
        }  # fmt: skip

    @classmethod
    def noise_settings(cls, level: float) -> dict[str, Any]:
        """Choose the trials of the noise."""
        return {"trials": max(1, math.ceil(level))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round."""
        mechanism, count = self.mechanism, vectors.count
        cell = min(vectors.norm, mechanism.clip) / math.sqrt(mechanism.dim) / mechanism.step
        rounding = mechanism.step**2 * rounding_variance(cell) / count
        return replace(
            clipped_coordinates(vectors, self.limit),
            noise=noise_error(vectors, mechanism.step**2 * mechanism.trials / 4 / count),
            rounding=noise_error(vectors, rounding),
        )

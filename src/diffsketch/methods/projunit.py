"""ProjUnit: what a client needs who trusts nobody with anything."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor

from diffsketch.errors import check, check_positive, check_whole
from diffsketch.methods.base import Encoded
from diffsketch.methods.forecast import Plannable, RelativeError, Vectors
from diffsketch.privacy.claim import ProvenClaim, Scope, Trust, Unit, rounded_down
from diffsketch.privacy.mechanisms.privunit import MAX_PER_MESSAGE, ProjUnit
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["ProjUnitMean"]

_MOST_ENTRIES = 1 << 31  # of a projection, in a plan


@dataclass(frozen=True, kw_only=True)
class ProjUnitMean(Plannable):
    """The direction of a random projection under local, pure differential privacy.

    Vectors are clipped to norm `clip`, projected by a matrix that the round's seed gives, and sent
    by PrivUnitG as `size` numbers; a whole client is hidden from everybody, with a delta of 0. All
    workers of a round use the same matrix, so that messages can be summed and the sum projected
    back. The estimate is unbiased over the seeds; for one seed, the mean itself has the error of
    a projection, about `dim / size` times its squared norm.

    Args:
        dim: Length of the vectors.
        size: Numbers of a message.
        per_round: Epsilon of one message.
        clip: Norm of a vector.
    """

    size: int
    per_round: float
    clip: float

    name: ClassVar[str] = "projunit"
    margins: ClassVar = (0.0,)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("size", self.size, least=1)
        check_positive("per_round", self.per_round)
        most = MAX_PER_MESSAGE
        check(self.per_round <= most, "per_round", f"be at most {most:g}", self.per_round)
        check_positive("clip", self.clip)
        _ = self.mechanism  # checks the rest

    @cached_property
    def mechanism(self) -> ProjUnit:
        """What clips, projects and randomises."""
        return ProjUnit(self.dim, self.size, self.per_round, self.clip, shared=True)

    @cached_property
    def message_format(self) -> MessageFormat:
        """`size` numbers in float32."""
        return MessageFormat(self.name, self.dim, (self.size,), "float32", 32)

    @cached_property
    def _claim(self) -> ProvenClaim:
        return self.mechanism.claim

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return Encoded(self.mechanism.release(batch, noise, seed=seed))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return (self.mechanism.decode(total[None], seed=seed) / count).float()

    @classmethod
    def planned(
        cls,
        vectors: Vectors,
        scope: Scope,
        *,
        cells: int,
        bits: int | None,
        margin: float,  # noqa: ARG003
    ) -> dict[str, Any] | None:
        """Settings, all but epsilon."""
        size = min(cells, vectors.dim, _MOST_ENTRIES // vectors.dim)
        wanted = Scope(Unit.CLIENT, scope.relation, Trust.LOCAL)
        if scope != wanted or bits is not None or size < 1:
            return None
        return {"size": size, "clip": vectors.norm}

    @classmethod
    def noised(cls, level: float) -> dict[str, Any]:
        """Epsilon of one message."""
        return {"per_round": float(rounded_down(1 / level, 4))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Error of one round: of the projection, the same for all, and of each one's noise.

        All messages of a unit vector `u` have `S' S u / (|S u| E|S u|)` in common, whose squared
        norm is `(size + dim - 1) / E|S u|**2` on average.
        """
        kept = min(1.0, self.clip / vectors.norm)
        length = math.exp(math.lgamma(self.size / 2 + 0.5) - math.lgamma(self.size / 2))
        projected = (self.size + self.dim - 1) / (2 * length**2)
        noise = self.mechanism.squared_norm - projected * (kept * vectors.norm) ** 2
        return RelativeError(
            (1 - kept) ** 2 + kept**2 * (projected - 1),
            noise / (vectors.count * vectors.norm**2 * vectors.mean_energy),
            kept=kept,
        )

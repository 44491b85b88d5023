"""The vectors as they are: what everything else is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.methods.base import Encoded, Method, mean_of
from diffsketch.privacy.claim import NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["Uncompressed"]


_CLAIM = NoClaim(Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL), "vectors are sent as they are")


@dataclass(frozen=True)
class Uncompressed(Method):
    """No compression and no privacy: messages are the vectors in float32, their mean is exact."""

    name: ClassVar[str] = "none"

    @cached_property
    def message_format(self) -> MessageFormat:
        """`dim` numbers in float32."""
        return MessageFormat(self.name, self.dim, (self.dim,), "float32", 32)

    def _claim_for(self, present: int, seed: HashSeed) -> NoClaim:  # noqa: ARG002
        return _CLAIM

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(batch)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return mean_of(total, count, out)

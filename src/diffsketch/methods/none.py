"""The vectors as they are: what everything else is measured against."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffsketch.methods.base import Encoded, Method
from diffsketch.privacy.claim import NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["Uncompressed"]


@dataclass(frozen=True)
class Uncompressed(Method):
    """No compression and no privacy: messages are the vectors in float32, their mean is exact."""

    name: ClassVar[str] = "none"

    @property
    def message_format(self) -> MessageFormat:
        """`dim` numbers in float32."""
        return MessageFormat(self.name, self.dim, (self.dim,), "float32", 32)

    def claim_for(self, present: int, seed: HashSeed) -> NoClaim:  # noqa: ARG002
        """None: a message is the vector."""
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        return NoClaim(scope, "vectors are sent as they are")

    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        """The vectors in float32."""
        self._check_vectors(vectors)
        return Encoded(vectors.detach().float())

    def decode(self, total: Tensor, seed: HashSeed, *, count: int) -> Tensor:  # noqa: ARG002
        """The mean."""
        self._check_total(total, count)
        return total / count

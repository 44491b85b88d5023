"""A Count Sketch without any privacy; and what all methods that send tables share."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.methods.base import Encoded, Method
from diffsketch.privacy.claim import Claim, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import Family, HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["PlainSketch", "TableMethod"]


@dataclass(frozen=True)
class TableMethod(Method):
    """What methods share whose messages are Count Sketch tables in float32.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        family: Of the hashes.
        combine: How the rows' estimates become one.
    """

    rows: int
    cols: int
    family: Family = field(default="blocked", kw_only=True)
    combine: Combine = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sketch  # checks the sizes

    @cached_property
    def sketch(self) -> CountSketch:
        """Of the vectors."""
        return CountSketch(self.dim, self.rows, self.cols, self.family)

    @property
    def message_format(self) -> MessageFormat:
        """A table in float32."""
        return MessageFormat(self.name, self.dim, (self.rows, self.cols), "float32", 32)

    def decode(self, total: Tensor, seed: HashSeed, *, count: int) -> Tensor:
        """The query of the mean table."""
        self._check_total(total, count)
        return self.sketch.query(total / count, seed, combine=self.combine)


@dataclass(frozen=True)
class PlainSketch(TableMethod):
    """The bare sketch: compression, and no privacy that anybody claims.

    >>> method = PlainSketch(dim=7850, rows=7, cols=22)
    >>> method.wire_bytes, round(method.compression, 1)
    (664, 47.3)
    """

    name: ClassVar[str] = "sketch"

    def claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        """None: whoever has the seed recovers the vector's large coordinates."""
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        return NoClaim(scope, "bare tables are sent")

    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        """The tables of the vectors."""
        self._check_vectors(vectors)
        return Encoded(self.sketch.encode(vectors.detach().to(torch.float32), seed))

"""Means without privacy: uncompressed vectors, and bare Count Sketches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods.base import Encoded, Method, mean_of
from diffsketch.privacy.claim import NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import Family, HashSeed
from diffsketch.wire.formats import MessageFormat

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


_CLAIM_SKETCH = NoClaim(Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL), "bare tables are sent")


@dataclass(frozen=True)
class TableMethod(Method):
    """What methods share whose messages are Count Sketch tables, most of them in float32.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        family: Of the hashes.
        combine: How the rows' estimates become one. The mean is unbiased and has the smaller
            error under noise; the median, the paper's, withstands a few large coordinates.
    """

    rows: int
    cols: int
    family: Family = field(default="blocked", kw_only=True)
    combine: Combine = field(default="mean", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.sketch  # checks the sizes
        check(self.combine in ("mean", "median"), "combine", "be mean or median", self.combine)

    @cached_property
    def sketch(self) -> CountSketch:
        """Of the vectors; for those with appended noise, of the longer ones."""
        return CountSketch(self.dim, self.rows, self.cols, self.family)

    @cached_property
    def message_format(self) -> MessageFormat:
        """A table in float32."""
        return MessageFormat(self.name, self.dim, (self.rows, self.cols), "float32", 32)

    def mean_table(self, total: Tensor, count: int | float) -> Tensor:
        """Table of the mean, from the published sum: float32."""
        return (total / count).float()

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        table = self.mean_table(total, count)
        return self.sketch.query(table, seed, combine=self.combine, out=out)


def largest_table(dim: int, rows: int) -> float:
    """The norm of a table of coordinates of 1 at most, if each row has all of them in one cell."""
    return dim * math.sqrt(rows)


@dataclass(frozen=True)
class PlainSketch(TableMethod):
    """The bare sketch: compression, and no privacy that anybody claims.

    >>> method = PlainSketch(dim=7850, rows=7, cols=22)
    >>> method.wire_bytes, round(method.compression, 1)
    (664, 47.3)
    """

    name: ClassVar[str] = "sketch"

    def _claim_for(self, present: int, seed: HashSeed) -> NoClaim:  # noqa: ARG002
        return _CLAIM_SKETCH

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(self.sketch.encode(batch, seed))

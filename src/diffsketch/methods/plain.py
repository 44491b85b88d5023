"""Messages that are vectors or Count Sketch tables, and the two methods without privacy."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods.base import Encoded, Method, register
from diffsketch.methods.forecast import Vectors
from diffsketch.privacy.claim import NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import Encode
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import MAX_COLS, Family, HashSeed
from diffsketch.wire.formats import MessageFormat

_SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


class LinearMethod(Method):
    """A method whose messages are the vectors, or their tables, in float32 if not said otherwise.

    `VectorMethod` and `TableMethod` say which; what is done to them besides, methods say.
    """

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Shape of the vector, or of its table."""

    @abstractmethod
    def _encoder(self, seed: HashSeed) -> Encode | None:
        """Return the function from vectors to tables; None where vectors are sent."""

    @classmethod
    @abstractmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        """Choose sizes for so many cells, for the planner; None if it does not fit."""

    @cached_property
    def message_format(self) -> MessageFormat:
        """The vector or table in float32."""
        return self._format(self._shape)

    def _mean(self, total: Tensor, count: int | float, out: Tensor | None = None) -> Tensor:
        """Compute the mean vector or table from a published sum: float32."""
        if out is None:
            return (total / count).float()
        return torch.div(total.detach(), count, out=out)


class VectorMethod(LinearMethod):
    """A method that sends vectors of `dim` numbers."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def _encoder(self, seed: HashSeed) -> Encode | None:  # noqa: ARG002
        return None

    @classmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        return {} if cells >= vectors.dim else None

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return self._mean(total, count, out)


@dataclass(frozen=True)
class TableMethod(LinearMethod):
    """A method that sends Count Sketch tables.

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
        """Sketch of the vectors; for those with appended noise, of the longer ones."""
        return CountSketch(self.dim, self.rows, self.cols, self.family)

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.rows, self.cols)

    def _encoder(self, seed: HashSeed) -> Encode | None:
        return lambda vectors: self.sketch.encode(vectors, seed)

    @classmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        # One row: to the mean over the rows, tables of as many cells are all alike.
        cols = min(cells, vectors.dim - 1, MAX_COLS)
        return {"rows": 1, "cols": cols} if cols >= 1 else None

    def mean_table(self, total: Tensor, count: int | float) -> Tensor:
        """Compute the table of the mean from the published sum: float32."""
        return self._mean(total, count)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        table = self.mean_table(total, count)
        return self.sketch.query(table, seed, combine=self.combine, out=out)


@register
@dataclass(frozen=True)
class Uncompressed(VectorMethod):
    """No compression and no privacy: messages are the vectors in float32, their mean is exact."""

    name: ClassVar[str] = "none"
    code: ClassVar = 0
    _claim: ClassVar = NoClaim(_SCOPE, "vectors are sent as they are")

    def _claim_for(self, present: int, seed: HashSeed) -> NoClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(batch)


@register
@dataclass(frozen=True)
class PlainSketch(TableMethod):
    """The bare sketch: compression, and no privacy that anybody claims.

    >>> method = PlainSketch(dim=7850, rows=7, cols=22)
    >>> method.wire_bytes, round(method.compression, 1)
    (664, 47.3)
    """

    name: ClassVar[str] = "sketch"
    code: ClassVar = 1
    _claim: ClassVar = NoClaim(_SCOPE, "bare tables are sent")

    def _claim_for(self, present: int, seed: HashSeed) -> NoClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        return Encoded(self.sketch.encode(batch, seed))

"""How far one unit can move what is released: clipping, and the sensitivity that it earns.

A `Bound` both clips and states the sensitivity, so that the two cannot drift apart. A vector is
bounded before it is encoded (its coordinates) or after (the norm of the table that is sent: do not
bound the vector's norm and assume that a sketch keeps it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive
from diffsketch.privacy.claim import Relation, Unit
from diffsketch.privacy.clipping import clip_coordinates, clip_norm

__all__ = ["Bound", "CoordinateBound", "Encode", "FlaggedBound", "NormBound"]

Encode = Callable[[Tensor], Tensor]


class Bound(Protocol):
    """What every bound can do."""

    @property
    def unit(self) -> Unit:
        """Whose influence is bounded."""

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """The largest change of the released value in the norm of this order."""

    def apply(self, vectors: Tensor, encode: Encode | None) -> Tensor:
        """What is released but for the noise: `(..., dim)`, encoded if need be, and bounded."""


@dataclass(frozen=True)
class CoordinateBound:
    """Every coordinate of the vector is clipped to `[-limit, limit]`, then it is encoded.

    One coordinate of the vector is in one cell of each of `rows` rows (1 for a raw vector), with
    a weight of +1 or -1. It moves each of them by up to `2 limit` if its value is replaced, by
    `limit` if it is removed (becomes 0); `tests/privacy/test_bounds.py` compares tables.

    Args:
        limit: The largest size of a coordinate.
        rows: Rows of the sketch that encodes.
    """

    limit: float
    rows: int = 1

    measure: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)
        if isinstance(self.rows, bool) or not isinstance(self.rows, int):
            raise ArgumentError(f"rows must be an int, got {type(self.rows).__name__}")
        check(self.rows >= 1, "rows", "be >= 1", self.rows)

    @property
    def unit(self) -> Unit:
        """One coordinate."""
        return Unit.COORDINATE

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """`2 limit rows` or `2 limit sqrt(rows)` for `replace`, half of it for add-or-remove."""
        _check_order(order)
        change = self.limit * _values_that_differ(relation)
        return change * (self.rows if order == 1 else math.sqrt(self.rows))

    def apply(self, vectors: Tensor, encode: Encode | None) -> Tensor:
        """Clip, then encode."""
        clipped = clip_coordinates(vectors, self.limit)
        if encode is None:
            check(self.rows == 1, "rows", "be 1 for a vector that is not encoded", self.rows)
            return clipped
        tables = _tables(encode, clipped)
        if tables.shape[-2] != self.rows:
            shape = tuple(tables.shape)
            raise ArgumentError(f"encode must return {self.rows} rows, got shape {shape}")
        return tables


@dataclass(frozen=True)
class NormBound:
    """What is released is clipped, as a whole, to a norm of at most `limit`.

    Replacing a unit moves it by up to `2 limit`, adding or removing it by `limit`.

    Args:
        limit: The largest norm of the vector, or of the table if it is encoded.
        unit: Whose contribution a vector is: a client's, or an example's.
        order: Of the norm that is clipped.
    """

    limit: float
    unit: Unit = Unit.CLIENT
    order: Literal[1, 2] = 2

    measure: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)
        _check_order(self.order)
        good = self.unit in (Unit.EXAMPLE, Unit.CLIENT)
        check(good, "unit", "be example or client", self.unit)
        object.__setattr__(self, "unit", Unit(self.unit))

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """`2 limit` for `replace`, `limit` for add-or-remove, in the norm that is clipped.

        The L1 norm bounds the L2 norm as well; the other way round there is no bound.
        """
        _check_order(order)
        if order < self.order:
            raise ArgumentError(f"a bound on the L{self.order} norm gives no L{order} sensitivity")
        return self.limit * _values_that_differ(relation)

    def apply(self, vectors: Tensor, encode: Encode | None) -> Tensor:
        """Encode, then clip."""
        if encode is None:
            return clip_norm(vectors, self.limit, order=self.order, dims=1)
        return clip_norm(_tables(encode, vectors), self.limit, order=self.order, dims=2)


@dataclass(frozen=True)
class FlaggedBound:
    """What is released is clipped to a norm of at most 1, and one more cell says whether it was.

    The cell is `share` for what was longer. For what was not, it is `-share` if data sets are
    replaced, and 0 if they are added or removed: then nothing but zeros is sent for a vector of
    zeros. So all cells together have a norm of at most `limit = sqrt(1 + share**2)`, a vector that
    is replaced moves them by up to `2 limit`, and one that becomes zeros by `limit`.

    Guarantees (`tests/methods/test_adaptive.py`): the worst neighbours are that far apart, and no
    others are farther.

    Args:
        share: Size of the cell, over the norm of the rest.
        relation: Which data sets are neighbours.
    """

    share: float
    relation: Relation = Relation.REPLACE

    unit: ClassVar[Unit] = Unit.CLIENT
    order: ClassVar[Literal[2]] = 2
    measure: ClassVar[str] = " clips"

    def __post_init__(self) -> None:
        check_positive("share", self.share)
        _values_that_differ(self.relation)

    @property
    def limit(self) -> float:
        """The largest norm of all cells."""
        return math.hypot(1.0, self.share)

    @property
    def low(self) -> float:
        """The cell of what was not clipped."""
        return -self.share if self.relation == Relation.REPLACE else 0.0

    def apply(self, vectors: Tensor, encode: Encode | None) -> Tensor:
        """Encode, clip, and append the cell: `(..., cells + 1)`."""
        values = vectors if encode is None else _tables(encode, vectors).flatten(-2)
        clipped = clip_norm(values, 1.0)
        longer = (clipped != values).any(dim=-1, keepdim=True)
        flags = torch.full_like(clipped[..., :1], self.low).masked_fill(longer, self.share)
        return torch.cat([clipped, flags], dim=-1)


def _tables(encode: Encode, vectors: Tensor) -> Tensor:
    tables = encode(vectors)
    if tables.dim() != vectors.dim() + 1 or tables.shape[:-2] != vectors.shape[:-1]:
        shapes = f"shape {tuple(tables.shape)} from {tuple(vectors.shape)}"
        raise ArgumentError(f"encode must return a table for each vector, got {shapes}")
    return tables


def _values_that_differ(relation: Relation) -> int:
    """A value and another, 2, or a value and nothing, 1; names of relations count as well."""
    check(relation in list(Relation), "relation", f"be one of {', '.join(Relation)}", relation)
    return 2 if Relation(relation) is Relation.REPLACE else 1


def _check_order(order: int) -> None:
    check(order in (1, 2), "order", "be 1 or 2", order)

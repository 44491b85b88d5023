"""Clipping of vectors and tables, and the sensitivity that it leaves.

A bound both clips and states the sensitivity, so that the two cannot drift apart. A vector is
bounded before it is encoded (its coordinates) or after (the norm of the table that is sent: do not
bound the vector's norm and assume that a sketch keeps it).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_choice, check_positive, check_whole
from diffsketch.privacy.claim import Relation, Unit

_ONE = 1 << 1074  # in units of the smallest float64, so that every float64 is a whole number


def clip_coordinates(values: Tensor, limit: float) -> Tensor:
    """`values`, of any shape, with every entry brought into `[-limit, limit]`.

    Guarantees (`tests/privacy/test_clipping.py`): no entry is beyond `limit`, even where the type
    of `values` cannot hold that number; entries within keep their bits; `values` stays as it is.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64, or
            a value is NaN or infinite.
    """
    check_positive("limit", limit)
    _check_values(values)
    held = float(_towards_zero(torch.tensor(limit, dtype=torch.float64), values.dtype))
    return values.detach().clamp(-held, held)


def clip_norm(values: Tensor, limit: float, *, order: Literal[1, 2] = 2, dims: int = 1) -> Tensor:
    """`values` scaled down where their norm over the last `dims` dimensions exceeds `limit`.

    Guarantees (`tests/privacy/test_clipping.py`): the norm of what comes back, as a real number,
    is at most `limit`; vectors whose norm is at most `limit` keep their bits; the others keep
    their direction up to rounding, and come within a few roundings of the limit; `values` stays
    as it is.

    Args:
        values: float32 or float64, any number of vectors (`dims=1`), tables (`dims=2`) or numbers
            (`dims=0`, which takes 0-d tensors as well). Without entries, the norm is 0.
        limit: The largest norm.
        order: 1 for the sum of the absolute values, 2 for the Euclidean norm.
        dims: Number of dimensions that make one vector.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64 or
            have too few dimensions, or a value is NaN or infinite.
    """
    check_positive("limit", limit)
    check(order in (1, 2), "order", "be 1 or 2", order)
    check(dims >= 0, "dims", "be >= 0", dims)
    _check_values(values)
    check(values.dim() >= dims, "values", f"have at least dims={dims} dimensions", values.dim())
    if values.numel() == 0:
        return values.detach().clone()
    rows = values.detach().reshape(-1, math.prod(values.shape[values.dim() - dims :]))
    return _clip_rows(rows, limit, order).reshape(values.shape)


def _clip_rows(rows: Tensor, limit: float, order: Literal[1, 2]) -> Tensor:
    """Clip the norm of each row.

    Norms are computed in float64 to a relative error of at most `slack`. Where that does not tell
    whether a row is within the limit, whole numbers do: slowly, but hardly ever.
    """
    slack = (rows.shape[1] + 8) * 2.0**-52
    # By the largest entry first, or squares overflow and underflow.
    largest = rows.abs().amax(dim=1, keepdim=True).double()
    largest[largest == 0] = 1
    units = rows.double() / largest
    norms = torch.linalg.vector_norm(units, ord=order, dim=1, keepdim=True)
    ratios = norms * (largest / limit)  # may be infinite, which is beyond the limit as well
    beyond = ratios > 1
    for index in torch.nonzero((ratios - 1).abs() <= slack)[:, 0].tolist():
        beyond[index] = _exceeds(rows[index].tolist(), limit, order)
    scaled = units * (limit * (1 - 3 * slack) / norms)
    # Numbers this small would be rounded by more than the slack.
    scaled[scaled.abs() < torch.finfo(torch.float64).tiny] = 0
    return torch.where(beyond, _towards_zero(scaled, rows.dtype), rows)


def _exceeds(row: list[float], limit: float, order: Literal[1, 2]) -> bool:
    """Whether the norm is above the limit, with no rounding at all."""

    def whole(value: float) -> int:
        numerator, denominator = abs(value).as_integer_ratio()
        return numerator * (_ONE // denominator)

    total: int = sum(whole(value) ** order for value in row)
    return total > int(whole(float(limit)) ** order)


def _towards_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float64 values in another type, rounded towards zero: never larger."""
    cast = values.to(dtype)
    return torch.where(cast.abs() > values.abs(), torch.nextafter(cast, cast.new_zeros(())), cast)


def _check_values(values: Tensor) -> None:
    if not isinstance(values, Tensor) or values.dtype not in (torch.float32, torch.float64):
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ArgumentError(f"values must be a float32 or float64 tensor, got {kind}")
    if not bool(torch.isfinite(values).all()):
        raise ArgumentError("values must be finite, got NaN or infinity among them")


Encode: TypeAlias = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class CoordinateBound:
    """Every coordinate of the vector is clipped to `[-limit, limit]`, then it is encoded.

    One coordinate of the vector is in one cell of each of `rows` rows (1 for a raw vector), with
    a weight of +1 or -1. It moves each of them by up to `2 limit` if its value is replaced, by
    `limit` if it is removed (becomes 0); `tests/privacy/test_clipping.py` compares tables.

    Args:
        limit: The largest size of a coordinate.
        rows: Rows of the sketch that encodes.
    """

    limit: float
    rows: int = 1

    unit: ClassVar[Unit] = Unit.COORDINATE
    measure: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)
        check_whole("rows", self.rows, least=1)

    def sensitivity(self, order: Literal[1, 2], relation: Relation) -> float:
        """`2 limit rows` or `2 limit sqrt(rows)` for `replace`, half of it for add-or-remove."""
        _check_order(order)
        change = self.limit * check_choice("relation", relation, Relation).values
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
    """Bound on the norm: a release is clipped, as a whole, to at most `limit`.

    Replacing a unit moves it by up to `2 limit`, adding or removing it by `limit`.

    Args:
        limit: The largest norm of the vector, or of the table if it is encoded.
        unit: Whose contribution a vector is: a client's, or an example's.
        order: Order of the norm that is clipped.
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
        return self.limit * check_choice("relation", relation, Relation).values

    def apply(self, vectors: Tensor, encode: Encode | None) -> Tensor:
        """Encode, then clip."""
        if encode is None:
            return clip_norm(vectors, self.limit, order=self.order, dims=1)
        return clip_norm(_tables(encode, vectors), self.limit, order=self.order, dims=2)


@dataclass(frozen=True)
class FlaggedBound:
    """Clips a release to a norm of at most 1; one more cell says whether it was longer.

    The cell is `share` for what was longer. For what was not, it is `-share` if data sets are
    replaced, and 0 if they are added or removed: then nothing but zeros is sent for a vector of
    zeros. So all cells together have a norm of at most `limit = sqrt(1 + share**2)`, a vector that
    is replaced moves them by up to `2 limit`, and one that becomes zeros by `limit`.

    Guarantees (`tests/methods/test_client_noise.py`): the worst neighbours are that far apart, and
    no others are farther.

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
        object.__setattr__(self, "relation", check_choice("relation", self.relation, Relation))

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


Bound: TypeAlias = CoordinateBound | NormBound


def _tables(encode: Encode, vectors: Tensor) -> Tensor:
    tables = encode(vectors)
    if tables.dim() != vectors.dim() + 1 or tables.shape[:-2] != vectors.shape[:-1]:
        shapes = f"shape {tuple(tables.shape)} from {tuple(vectors.shape)}"
        raise ArgumentError(f"encode must return a table for each vector, got {shapes}")
    return tables


def _check_order(order: int) -> None:
    check(order in (1, 2), "order", "be 1 or 2", order)

"""Clipping and rounding of vectors and tables, and the sensitivity that they leave.

A bound both clips and states the sensitivity, so that the two cannot drift apart. A vector is
bounded before it is encoded (its coordinates) or after (the norm of the table that is sent: do not
bound the vector's norm and assume that a sketch keeps it).

For integer noise and secure sums modulo a power of two, what was clipped is divided by a step (the
`granularity`) and rounded at random to whole numbers. Rounding can enlarge the norm; the quantizer
that rounds also states the norm that it never exceeds.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self, TypeAlias

import torch
from torch import Tensor

from diffsketch.errors import (
    ArgumentError,
    MismatchError,
    check,
    check_choice,
    check_positive,
    check_whole,
)
from diffsketch.privacy.claim import Relation, RelationName, Unit, UnitName
from diffsketch.privacy.noise import Noise

Encode: TypeAlias = Callable[[Tensor], Tensor]

MAX_BITS = 62  # of a modulus, so that a message and its centred value fit in an int64
_MAX_STEPS = 2.0**30  # of the clipped norm: sums of squares then stay below 2**63
_DRAWS = 64  # of one rounding, before it is rounded towards zero
_ONE = 1 << 1074  # in units of the smallest float64, so that every float64 is a whole number


def clip_coordinates(values: Tensor, limit: float) -> Tensor:
    """Bring every entry of `values`, of any shape, into `[-limit, limit]`.

    Guarantees (`tests/privacy/test_clipping.py`): no entry is beyond `limit`, even where the type
    of `values` cannot hold that number; entries within keep their bits; `values` stays as it is.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64, or
            a value is NaN or infinite.
    """
    _check_values(values, limit)
    # In float32 the nearest number to the limit may be above it.
    held = float(_towards_zero(torch.tensor(limit, dtype=torch.float64), values.dtype))
    return values.detach().clamp(-held, held)


def clip_norm(values: Tensor, limit: float, *, dims: int = 1) -> Tensor:
    """Scale `values` down to a Euclidean norm, over the last `dims` dimensions, of `limit`.

    Guarantees (`tests/privacy/test_clipping.py`): the norm of what comes back, as a real number,
    is at most `limit`; vectors whose norm is at most `limit` keep their bits; the others keep
    their direction up to rounding, and come within a few roundings of the limit; `values` stays
    as it is.

    Args:
        values: float32 or float64, any number of vectors (`dims=1`), tables (`dims=2`) or numbers
            (`dims=0`, which takes 0-d tensors as well). Without entries, the norm is 0.
        limit: The largest norm.
        dims: Number of dimensions that make one vector.

    Raises:
        ArgumentError: `limit` is not positive and finite, `values` are not float32 or float64 or
            have too few dimensions, or a value is NaN or infinite.
    """
    _check_values(values, limit)
    if not 0 <= dims <= values.dim():
        check(dims >= 0, "dims", "be >= 0", dims)
        check(False, "values", f"have at least dims={dims} dimensions", values.dim())
    if values.numel() == 0:
        return values.detach().clone()
    rows = values.detach().reshape(-1, math.prod(values.shape[values.dim() - dims :]))
    # Norms are computed in float64 to a relative error of at most `slack`. Where that does not
    # tell whether a row is within the limit, whole numbers do: slowly, but hardly ever.
    slack = (rows.shape[1] + 8) * 2.0**-52
    # By the largest entry first, or squares overflow and underflow.
    largest = rows.abs().amax(dim=1, keepdim=True).double()
    # Zeros are divided by 1, and stay zeros.
    largest[largest == 0] = 1
    units = rows.double() / largest
    norms = torch.linalg.vector_norm(units, dim=1, keepdim=True)
    ratios = norms * (largest / limit)  # may be infinite, which is beyond the limit as well
    beyond = ratios > 1
    for index in torch.nonzero((ratios - 1).abs() <= slack)[:, 0].tolist():
        beyond[index] = _exceeds(rows[index].tolist(), limit)
    # Three slacks below the limit: for the norm, the quotient and the product.
    scaled = units * (limit * (1 - 3 * slack) / norms)
    # Numbers this small would be rounded by more than the slack.
    scaled[scaled.abs() < torch.finfo(torch.float64).tiny] = 0
    return torch.where(beyond, _towards_zero(scaled, rows.dtype), rows).reshape(values.shape)


def _exceeds(row: list[float], limit: float) -> bool:
    """Whether the norm is above the limit, with no rounding at all."""

    def whole(value: float) -> int:
        # Denominators of floats are powers of two, 2**1074 at most: in that unit all are whole.
        numerator, denominator = value.as_integer_ratio()
        return numerator * (_ONE // denominator)

    return sum(whole(value) ** 2 for value in row) > whole(float(limit)) ** 2


def _towards_zero(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Cast float64 values to another type, rounding towards zero: never larger."""
    cast = values.to(dtype)
    return torch.where(cast.abs() > values.abs(), torch.nextafter(cast, cast.new_zeros(())), cast)


def _check_values(values: Tensor, limit: float) -> None:
    if type(limit) is not float or not 0 < limit < math.inf:  # it has the words for it
        check_positive("limit", limit)
    if not isinstance(values, Tensor) or values.dtype not in (torch.float32, torch.float64):
        kind = values.dtype if isinstance(values, Tensor) else type(values).__name__
        raise ArgumentError(f"values must be a float32 or float64 tensor, got {kind}")
    if not bool(torch.isfinite(values).all()):
        raise ArgumentError("values must be finite, got NaN or infinity among them")


@dataclass(frozen=True)
class CoordinateBound:
    """Bound on every coordinate: clipped to `[-limit, limit]`, then the vector is encoded.

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

    def sensitivity(self, relation: RelationName) -> float:
        """L2 sensitivity: `2 limit sqrt(rows)` for `replace`, half of it for add-or-remove."""
        return _change(self.limit, relation) * math.sqrt(self.rows)

    def l1_sensitivity(self, relation: RelationName) -> float:
        """L1 sensitivity: `2 limit rows` for `replace`, half of it for add-or-remove."""
        return _change(self.limit, relation) * self.rows

    def apply(self, vectors: Tensor, encode: Encode | None = None) -> Tensor:
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
    """Bound on the Euclidean norm: a release is clipped, as a whole, to at most `limit`.

    Replacing a unit moves it by up to `2 limit`, adding or removing it by `limit`.

    Args:
        limit: The largest norm of the vector, or of the table if it is encoded.
        unit: Whose contribution a vector is: a client's, an example's, or a person's.
    """

    limit: float
    unit: UnitName = Unit.CLIENT

    measure: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_positive("limit", self.limit)
        group = self.unit in (Unit.EXAMPLE, Unit.PERSON, Unit.CLIENT)
        check(group, "unit", "be example, person or client", self.unit)
        object.__setattr__(self, "unit", Unit(self.unit))

    def sensitivity(self, relation: RelationName) -> float:
        """L2 sensitivity: `2 limit` for `replace`, `limit` for add-or-remove."""
        return _change(self.limit, relation)

    def apply(self, vectors: Tensor, encode: Encode | None = None) -> Tensor:
        """Encode, then clip: vectors `(..., dim)`, or the tables of `encode`."""
        if encode is None:
            return clip_norm(vectors, self.limit)
        return clip_norm(_tables(encode, vectors), self.limit, dims=2)


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
        share: Size of the cell, over the norm of the others.
        relation: Which data sets are neighbours.
    """

    share: float
    relation: RelationName = Relation.REPLACE

    unit: ClassVar[Unit] = Unit.CLIENT
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

    def apply(self, cells: Tensor) -> Tensor:
        """Clip, and append the cell: `(..., cells + 1)`."""
        clipped = clip_norm(cells, 1.0)
        # What is within the norm keeps its bits, so any other bit means that it was clipped.
        longer = (clipped != cells).any(dim=-1, keepdim=True)
        flags = torch.full_like(clipped[..., :1], self.low).masked_fill(longer, self.share)
        return torch.cat([clipped, flags], dim=-1)


Bound: TypeAlias = CoordinateBound | NormBound


def _tables(encode: Encode, vectors: Tensor) -> Tensor:
    tables = encode(vectors)
    if tables.dim() != vectors.dim() + 1 or tables.shape[:-2] != vectors.shape[:-1]:
        shapes = f"shape {tuple(tables.shape)} from {tuple(vectors.shape)}"
        raise ArgumentError(f"encode must return a table for each vector, got {shapes}")
    return tables


def _change(limit: float, relation: RelationName) -> float:
    """Bound the change of something of size `limit` at most, if a unit is replaced or removed."""
    return limit * check_choice("relation", relation, Relation).values


def stochastic_round(values: Tensor, noise: Noise) -> Tensor:
    """Round each value down or up to a whole number (int64), at random, right on average.

    A value `n + f` with a whole `n` and `0 <= f < 1` becomes `n + 1` with probability `f`, else
    `n`. The variance is `f (1 - f)`, at most 1/4.
    """
    # Floor, not truncation: the fraction is then in [0, 1) on both sides of zero.
    low = values.floor()
    return low.to(torch.int64) + noise.bernoulli(values - low)


def wrap(values: Tensor, bits: int) -> Tensor:
    """Reduce `values` modulo `2**bits`, to `[0, 2**bits)`.

    Sums of wrapped values may overflow an int64 without harm: its own modulus is a multiple.
    """
    check_whole("bits", bits, least=1, most=MAX_BITS)
    check(values.dtype == torch.int64, "values", "be int64", values.dtype)
    return values & ((1 << bits) - 1)


def centre(values: Tensor, bits: int) -> Tensor:
    """Return the numbers in `[-2**(bits - 1), 2**(bits - 1))` that are equal modulo `2**bits`."""
    wrapped = wrap(values, bits)
    return torch.where(wrapped >= 1 << (bits - 1), wrapped - (1 << bits), wrapped)


class Grid(ABC):
    """Whole numbers to send, whose size is bounded: what integer noise is added to.

    Attributes:
        granularity: The step: a whole number `x` stands for `x * granularity`.
        cells: Cells of a message: the dimension of a vector, or rows times columns.
    """

    granularity: float
    cells: int

    @property
    @abstractmethod
    def longest(self) -> float:
        """The largest Euclidean norm of a message, in steps."""

    @property
    def peak(self) -> int:
        """The largest size of a cell, in steps."""
        return math.floor(self.longest)

    def sensitivity(self, relation: RelationName) -> float:
        """The largest change of a sum of messages by one unit, in the L2 norm and in steps."""
        return _change(self.longest, relation)

    def bounded(self, cells: Tensor) -> Tensor:
        """Clip the cells, unless they were bounded as they were made."""
        return cells

    def rounded(self, bounded: Tensor, noise: Noise) -> Tensor:  # noqa: ARG002
        """Round to whole numbers (int64), unless they are whole."""
        return bounded.to(torch.int64)


@dataclass(frozen=True)
class Quantizer(Grid):
    """Clips, divides by `granularity` and rounds at random; knows how large the result can be.

    With `c = bound.limit / granularity` and `d = cells`, rounded messages `x` obey

        sum(x**2) <= min((c + sqrt(d))**2,
                         c**2 + d/4 + sqrt(2 ln(1/rejection)) (c + sqrt(d)/2)).

    The first is what rounding can do at worst. The second holds with probability at least
    `1 - rejection`; a rounding that exceeds it is drawn again (and towards zero in the end), as in
    the distributed discrete Gaussian mechanism. Either way the bound is checked on the whole
    numbers themselves, so it does not rest on floating-point arithmetic.

    Guarantees: the norms are never exceeded (`tests/privacy/test_integer.py::test_norms_hold`);
    rounding is unbiased for `rejection=0`, and else off by at most `rejection / (1 - rejection)`
    steps in a cell (`test_rounding_is_unbiased`, `test_bias_of_drawing_again`).

    Args:
        bound: How messages are clipped.
        granularity: The step: a whole number `x` stands for `x * granularity`.
        cells: Cells of a message: the dimension of a vector, or rows times columns.
        rejection: Largest probability of drawing again; 0 for the worst-case bound alone.

    References:
        Kairouz, Liu, Steinke (2021), The Distributed Discrete Gaussian Mechanism for Federated
        Learning with Secure Aggregation, section 4 (conditional randomised rounding).
    """

    bound: NormBound | FlaggedBound
    granularity: float
    cells: int
    rejection: float = 1e-4

    def __post_init__(self) -> None:
        check_positive("granularity", self.granularity)
        check_whole("cells", self.cells, least=1)
        check(0 <= self.rejection < 1, "rejection", "be in [0, 1)", self.rejection)
        least = self.bound.limit / _MAX_STEPS
        check(self.granularity >= least, "granularity", f"be >= {least:g}", self.granularity)

    @cached_property
    def largest(self) -> int:
        """The largest sum of squares of a message."""
        steps, root = self.bound.limit / self.granularity, math.sqrt(float(self.cells))
        tail = math.log(1 / self.rejection) if self.rejection else math.inf
        # Each cell may be rounded away from zero by nearly a step: sqrt(cells) in all.
        worst = (steps + root) ** 2
        likely = steps**2 + float(self.cells) / 4 + math.sqrt(2 * tail) * (steps + root / 2)
        return max(1, math.floor(min(worst, likely)))

    @property
    def longest(self) -> float:
        """The largest Euclidean norm of a message, in steps."""
        return math.sqrt(self.largest)

    def bounded(self, cells: Tensor) -> Tensor:
        """Clip the cells `(messages, cells)`.

        Raises:
            ArgumentError: A value is NaN or infinite.
            MismatchError: A message has not `cells` entries.
        """
        bounded = self.bound.apply(cells)
        if bounded.dim() != 2 or bounded.shape[1] != self.cells:
            shape = tuple(bounded.shape)
            raise MismatchError(f"expected messages of {self.cells} cells, got shape {shape}")
        return bounded

    def rounded(self, bounded: Tensor, noise: Noise) -> Tensor:
        """Round to whole numbers (int64), drawing again where the norm becomes too large."""
        exact = bounded.detach().to("cpu", torch.float64) / self.granularity
        result = stochastic_round(exact, noise)
        for draw in range(_DRAWS + 1):
            # On the whole numbers that would be sent: no rounding can hide that a norm is exceeded.
            again = result.square().sum(dim=-1) > self.largest
            if not bool(again.any()):
                break
            if draw < _DRAWS:
                result[again] = stochastic_round(exact[again], noise.part(again))
            else:  # never an error: whether there is one would depend on private data
                result[again] = exact[again].trunc().to(torch.int64)
        return result.to(bounded.device)


@dataclass(frozen=True)
class CoordinateQuantizer(Grid):
    """Clips every coordinate and rounds it at random to one of `2 steps + 1` levels, then encodes.

    The rounded coordinates are whole numbers of size `steps` at most, and tables are sums of them
    in float64, which is exact below `2**53`: so one coordinate moves the whole numbers of a table
    by just what `sensitivity` says. Sums of the coordinates themselves in float32 would not do:
    their rounding lets one coordinate move a cell by more (2.35 where 2 is stated;
    `tests/privacy/test_integer.py::test_float_sums_move_more`).

    Args:
        bound: The clipping of coordinates.
        steps: Steps in `bound.limit`.
        cells: Cells of a message.
        dim: Coordinates of a vector, where vectors are encoded; None for as many as cells.
        load: Coordinates of a cell, at most: a matter of accuracy, not of privacy.
    """

    bound: CoordinateBound
    steps: int
    cells: int
    dim: int | None = None
    load: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "cells", "load"):
            check_whole(name, getattr(self, name), least=1)
        # All coordinates may meet in one cell.
        most = 2**53 // (self.dim or 1)  # or sums in float64 were not exact
        check(self.steps <= most, "steps", f"be <= {most} for dim={self.dim}", self.steps)

    @property
    def granularity(self) -> float:  # type: ignore[override]
        """The step: a whole number `x` stands for `x * granularity`."""
        return self.bound.limit / self.steps

    @property
    def longest(self) -> float:
        """The largest Euclidean norm of a message, in steps."""
        # Vectors that are not encoded: every cell is one coordinate.
        if self.dim is None:
            return self.steps * math.sqrt(self.cells)
        # In a table, all coordinates may be in one cell of a row.
        return self.steps * self.dim * math.sqrt(self.bound.rows)

    @property
    def peak(self) -> int:
        """The largest size of a cell, in steps."""
        return self.steps * self.load

    def sensitivity(self, relation: RelationName) -> float:
        """The largest change of a message by one coordinate, in the L2 norm and in steps."""
        return _change(float(self.steps), relation) * math.sqrt(self.bound.rows)

    def l1_sensitivity(self, relation: RelationName) -> float:
        """The same in the L1 norm."""
        return _change(float(self.steps), relation) * self.bound.rows

    def prepared(self, vectors: Tensor, noise: Noise) -> Tensor:
        """Clip and round the coordinates: whole numbers in float64, ready to be encoded."""
        clipped = clip_coordinates(vectors, self.bound.limit)
        # A quotient of size 1 at most, in floating point too, so that none exceeds `steps`.
        exact = (clipped.to("cpu", torch.float64) / self.bound.limit).clamp(-1, 1) * self.steps
        return stochastic_round(exact, noise).to(vectors.device, torch.float64)


@dataclass(frozen=True)
class WholeTables(Grid):
    """Bound on tables of whole numbers that each unit's table obeys as it is made.

    Nothing is left to clip or to round: counts are whole, and whoever makes a unit's table drops
    what is too much for it (`diffsketch.analytics.items`). Two tables may be nearer to each other
    than twice their length: counts are not negative, so `m` ones each are `sqrt(2 m)` apart.

    Args:
        cells: Entries of a table.
        norm: The largest Euclidean norm of a unit's table, in steps.
        distance: The largest norm of the difference of two of them, in steps.
        granularity: The step: a whole number `x` stands for `x * granularity`.
    """

    cells: int
    norm: float
    distance: float
    granularity: float = 1.0

    unit: ClassVar[Unit] = Unit.CLIENT
    measure: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_whole("cells", self.cells, least=1)
        for name in ("norm", "distance", "granularity"):
            check_positive(name, getattr(self, name))
        check(self.distance <= 2 * self.norm, "distance", "be <= 2 * norm", self.distance)

    @property
    def bound(self) -> Self:
        """The bound itself, as other quantizers have one."""
        return self

    @property
    def longest(self) -> float:
        """The largest Euclidean norm of a table, in steps."""
        return self.norm

    def sensitivity(self, relation: RelationName) -> float:
        """`distance` for `replace`, `norm` for add-or-remove, in steps."""
        replaces = check_choice("relation", relation, Relation) is Relation.REPLACE
        return self.distance if replaces else self.norm

"""Count Sketch tables, of few bits where that is asked for, and the two methods without privacy."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_between, check_whole
from diffsketch.methods.base import MANY, Encoded, Method, Tables, check_sums, register
from diffsketch.methods.forecast import RelativeError, Vectors, collision_error, noise_error
from diffsketch.privacy.claim import Trust, TrustName
from diffsketch.privacy.clipping import centre, wrap
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import MAX_COLS, Family, HashSeed
from diffsketch.sketch.kernels.estimators import COMBINES, Combine
from diffsketch.sketch.rounding import CELL_BITS, LIMITS, CellGrid
from diffsketch.wire.message import MessageFormat

_FIRST_LIMIT = 2.0**-20  # of cells, if none is given
_SATURATING = 3  # rounds with most cells beyond their limit: in as many, it grows 2,400-fold


@dataclass(frozen=True)
class TableMethod(Method):
    """A method that sends Count Sketch tables.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        family: Family of the hashes.
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
        check(self.combine in COMBINES, "combine", f"be {' or '.join(COMBINES)}", self.combine)

    @classmethod
    def _sized(cls, dim: int, cells: int) -> dict[str, Any] | None:
        # One row: to the mean over the rows, tables of as many cells are all alike.
        cols = min(cells, dim - 1, MAX_COLS)
        return {"rows": 1, "cols": cols} if cols >= 1 else None

    @property
    def _sketched(self) -> int:
        """Length of the vectors that are sketched: more than `dim` where noise is appended."""
        return self.dim

    @cached_property
    def sketch(self) -> CountSketch:
        """Sketch of the vectors; for those with appended noise, of the longer ones."""
        return CountSketch(self._sketched, self.rows, self.cols, self.family)

    @cached_property
    def encoder(self) -> Tables:
        """Encoder to tables."""
        return Tables(self.dim, self.sketch, self.combine)


class SaturatedCells(UserWarning):
    """Most cells are beyond their limit, so that a mean is far too small."""


class SaturationWatch:
    """Warns once where most cells have saturated in several rounds in a row."""

    def __init__(self) -> None:
        self._rounds, self._warned = 0, False

    def see(self, saturated: int, cells: int, *, method: Method, index: int, whose: str) -> None:
        """Count a round in which `saturated` of `cells` cells were beyond the limit."""
        # Where most cells are cut, the limit is not what the tables want.
        self._rounds = self._rounds + 1 if 2 * saturated > cells else 0
        if self._rounds == _SATURATING and not self._warned:
            self._warned = True
            warnings.warn(
                f"round {index}: more than half of all cells{whose} were beyond their limit in the "
                f"last {_SATURATING} rounds (now {method.round_clip:.3g}), so that what is applied "
                "is far too small: give a larger cell_limit if this is the start, else see whether "
                "training diverges",
                SaturatedCells,
                stacklevel=4,
            )


@dataclass(frozen=True)
class RoundedTables(TableMethod):
    """Tables whose cells may be rounded to few bits (`CellGrid`).

    Rounding to 4 bits adds 10% to the variance of the cells, and a sketch's own variance is far
    larger. So at equal bytes, eight times as many cells of 4 bits have an eighth of its error.

    The arguments of `TableMethod`, and:

    Args:
        bits: Bits of a cell: 1 to 8 or 16, or 32 for float32.
        cell_limit: With fewer bits than 32, the largest cell of the round: the same for all
            workers, so that sums of messages are sums of whole numbers. After each round everybody
            has the next one from the published sum (`after`). Where it starts too small, cells
            saturate for the first few rounds; too large, they are coarse.
        cohort: With fewer bits than 32, the largest number of messages in a sum, if that is known:
            a sum then takes no more bits than it needs.
        trust: `distributed` for messages that a secure sum takes: the rounded cells modulo a power
            of two with room for the sum of the cohort. It adds no noise, and changes no claim.
    """

    bits: int = field(default=32, kw_only=True)
    cell_limit: float = field(default=_FIRST_LIMIT, kw_only=True)
    cohort: int | None = field(default=None, kw_only=True)
    trust: TrustName = field(default=Trust.LOCAL, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        supported = type(self.bits) is int and (self.bits in CELL_BITS or self.bits == 32)
        check(supported, "bits", "be 1 to 8, 16 or 32", self.bits)
        check_between("cell_limit", self.cell_limit, *LIMITS)
        if self.bits == 32 and self.cell_limit != _FIRST_LIMIT:
            raise ArgumentError(
                "cell_limit must not be given for cells of 32 bits, which are not rounded, got "
                f"cell_limit={self.cell_limit!r}"
            )
        if self.cohort is not None:
            check_whole("cohort", self.cohort, least=1)
        trusts = Trust.LOCAL, Trust.DISTRIBUTED
        check(self.trust in trusts, "trust", "be local or distributed", self.trust)
        object.__setattr__(self, "trust", Trust(self.trust))
        if self._modular and self.bits == 32:
            raise ArgumentError("bits must be below 32 for distributed trust, got bits=32")
        if self._modular and self.cohort is None:
            raise ArgumentError("cohort must be given for distributed trust, got cohort=None")
        if self.grid is not None:  # for the table's size
            object.__setattr__(self, "_extra_cells", self.grid.size_cells)

    @cached_property
    def _modular(self) -> bool:
        """Whether messages are numbers modulo a power of two, for a secure sum."""
        return self.trust is Trust.DISTRIBUTED

    @property
    def max_summands(self) -> int:
        """Number of messages that a sum is sized for: the cohort, or 4,096."""
        return self.cohort or MANY

    @cached_property
    def most_messages(self) -> int | None:
        """The cohort, if cells have few bits and it was given."""
        return None if self.grid is None else self.cohort

    @cached_property
    def grid(self) -> CellGrid | None:
        """Grid of the cells; None for float32."""
        return None if self.bits == 32 else CellGrid(self.bits, self.cell_limit)

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of the table: float32, or whole numbers of few bits."""
        if self.grid is None:
            return super().message_format
        shape = (math.prod(self.encoder.shape) + self._extra_cells,)
        return self._format(shape, "unsigned" if self._modular else "signed", self.sum_bits(1))

    @property
    def exact(self) -> bool:
        """False: noise, if there is any, is added in floating point before cells are rounded."""
        return False

    def sum_bits(self, count: int) -> int:
        """Bits of a cell of a sum of `count` messages; of the cohort's under a secure sum."""
        # Modulo a power of two, a message has as many bits as the cohort's sum.
        count = self.max_summands if self._modular else count
        return self.bits if self.grid is None else self.bits + (count - 1).bit_length()

    def reduced(self, total: Tensor) -> Tensor:
        """Reduce the sum modulo a power of two under a secure sum."""
        return wrap(total, self.total_format.bits) if self._modular else total

    def _centred(self, total: Tensor) -> Tensor:
        return centre(total, self.total_format.bits) if self._modular else total

    @property
    def round_clip(self) -> float | None:
        """The round's `cell_limit`; None for float32."""
        return None if self.grid is None else self.grid.limit

    def at_clip(self, clip: float) -> Self:
        """Return the same method in a round with this `cell_limit`."""
        if self.grid is None:
            return super().at_clip(clip)
        other = copy(self)  # with all that was computed, which but for the grid stays the same
        object.__setattr__(other, "cell_limit", clip)
        object.__setattr__(other, "grid", CellGrid(self.bits, clip))
        return other

    def after(self, total: Tensor, *, count: int | float) -> Self:
        """Move the limit by the sizes that are in the sum."""
        if self.grid is None:
            return self
        sizes = self._centred(total[-self.grid.size_cells :])
        return self.at_clip(self.grid.next_limit(sizes, count))

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return self._rounded(Encoded(self.encoder.encode(batch, seed)), noise)

    def _rounded(self, encoded: Encoded, noise: Noise) -> Encoded:
        """Round the tables of messages, if cells have few bits."""
        if self.grid is None:
            return encoded
        tables = check_sums(encoded.messages).flatten(1)
        messages, saturated = self.grid.round(tables, noise.words((len(tables), 3)))
        if self._modular:
            messages = wrap(messages.long(), self.message_format.bits)
        return replace(encoded, messages=messages, saturated=saturated)

    @property
    def wants_limit(self) -> bool:
        """Whether cells are rounded, and nobody has said within which limit."""
        return self.grid is not None and self.cell_limit == _FIRST_LIMIT

    @property
    def reaches_largest(self) -> bool:
        """Whether the first limit is that of the largest vector: grids of few bits cut any."""
        return self.grid is not None and self.grid.kept == 1

    def at_limit_of(self, vectors: Iterable[Tensor]) -> Self:
        """Return the same method with the `cell_limit` that suits vectors `(dim,)`."""
        limits = [limit for limit in map(self.limit_for, vectors) if limit is not None]
        if not limits:
            return self
        # Few levels cut whatever is beyond: too large is better than the mean of sizes.
        if self.reaches_largest:
            return self.at_clip(max(limits))
        # The geometric mean, to which the limit of few bits would move by itself.
        return self.at_clip(math.exp(math.fsum(map(math.log, limits)) / len(limits)))

    def limit_for(self, vector: Tensor) -> float | None:
        """The `cell_limit` that suits a vector, nearly.

        None for float32, and for a vector that is zero or not finite.
        """
        if self.grid is None:
            return None
        vector = vector.detach()
        cols = self.encoder.shape[-1]
        # Each cell of a row sums `dim / cols` coordinates with random signs.
        rms = torch.linalg.vector_norm(vector, dtype=torch.float64) / math.sqrt(cols)
        if not 0 < float(rms) < math.inf:
            return None
        limit = float(self.grid.best_limit(rms))
        if self.reaches_largest:  # the largest coordinate is in some cell
            largest = float(torch.linalg.vector_norm(vector, ord=math.inf))
            limit = max(limit, min(largest * self.grid.headroom, LIMITS[1]))
        return limit

    @cached_property
    def rounds_sums(self) -> bool:
        """Whether the sum may be rounded again (`CellGrid.again`) by whoever forms it.

        A secure sum forms no sum that could be rounded before it is known.
        """
        return self.grid is not None and not self._modular

    def mean_table(self, total: Tensor, count: int | float, *, out: Tensor | None = None) -> Tensor:
        """Compute the table of the mean from the published sum: float32."""
        if self.grid is None:
            return super().mean_table(total, count, out=out)
        cells = self._centred(total[: -self._extra_cells]).reshape(self.encoder.shape)
        return self.grid.mean(cells, count)

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round of dense vectors, with the limit that their tables want.

        With the mean over the rows; of the sketch and its roundings, not of any noise.
        """
        recovery, cols = collision_error(self.encoder), self.encoder.shape[-1]
        if self.grid is None:
            return RelativeError(recovery)
        # Cells of dense vectors are normal numbers of deviation `norm / sqrt(cols)`.
        kept, variance = self.grid.kept, self.grid.rounding_share * (vectors.norm**2 / cols)
        rounding = noise_error(vectors, variance / vectors.count, rows=self.encoder.rows)
        return RelativeError(recovery * kept**2 + (1 - kept) ** 2, rounding=rounding, kept=kept)

    def norm_of(self, total: Tensor, count: int = 1) -> float:
        """Norm of the numbers that the cells stand for."""
        if self.grid is None:
            return super().norm_of(total, count)
        return float(torch.linalg.vector_norm(self.mean_table(total, count).double())) * count


@register
@dataclass(frozen=True)
class Uncompressed(Method):
    """No compression and no privacy: messages are the vectors in float32, their mean is exact."""

    name: ClassVar[str] = "none"
    code: ClassVar = 0


@register
@dataclass(frozen=True)
class PlainSketch(RoundedTables):
    """The bare sketch: compression, and no privacy that anybody claims.

    >>> method = PlainSketch(dim=7850, rows=7, cols=22)
    >>> method.wire_bytes, round(method.compression, 1)
    (620, 50.6)
    >>> PlainSketch(dim=7850, rows=1, cols=128, bits=4).message_format.payload_bytes
    65
    """

    name: ClassVar[str] = "sketch"
    code: ClassVar = 1

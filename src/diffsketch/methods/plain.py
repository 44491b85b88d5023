"""Messages that are vectors or Count Sketch tables, and the two methods without privacy."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffsketch.errors import check
from diffsketch.methods.base import FALSE_REFUSAL, Encoded, Method, fitted, register
from diffsketch.methods.forecast import Vectors
from diffsketch.privacy.claim import Claim, NoClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.clipping import Encode, wrap
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.simulated_noise import Noise
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import MAX_COLS, Family, HashSeed
from diffsketch.wire.formats import MessageFormat

MANY = 4096  # messages that a sum in clear has room for, whatever cohort is given


class LinearMethod(Method):
    """A method that sends the vectors, or their tables (`TableMethod`).

    In float32; or, with an integer mechanism, as the whole numbers that it makes of them: modulo
    `2**bits` under a secure sum, else signed and cut off at the limits of their format.
    """

    @property
    def _integer(self) -> IntegerMechanism | None:
        """The mechanism that clips, rounds, adds noise and makes the claim, if there is one."""
        return None

    @property
    def _shape(self) -> tuple[int, ...]:
        """Shape of the vector, or of its table."""
        return (self.dim,)

    @property
    def _sent_shape(self) -> tuple[int, ...]:
        """Shape of a message."""
        return self._shape

    @property
    def _together(self) -> int:
        """Messages that a total in clear has room for."""
        return MANY

    def _encoder(self, seed: HashSeed) -> Encode | None:  # noqa: ARG002
        """Return the function from vectors to tables; None where vectors are sent."""
        return None

    def _inputs(self, batch: Tensor, seed: HashSeed) -> tuple[Tensor, Encode | None]:
        """Vectors as the mechanism takes them, and the function that makes tables of them."""
        return batch, self._encoder(seed)

    @classmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        """Choose sizes for so many cells, for the planner; None if it does not fit."""
        return {} if cells >= vectors.dim else None

    @cached_property
    def message_format(self) -> MessageFormat:
        """Format of the vector or table: float32 or whole numbers."""
        shape, mechanism = self._sent_shape, self._integer
        if mechanism is None:
            return self._format(shape)
        if mechanism.trust is Trust.DISTRIBUTED:
            return self._format(shape, "unsigned", mechanism.bits)
        bits = mechanism.bits
        if mechanism.trust is Trust.CENTRAL:  # without noise: the clip bounds every cell
            bits = mechanism.quantizer.peak.bit_length() + 1
        return self._format(shape, "signed", bits)

    @cached_property
    def total_format(self) -> MessageFormat:
        """The same for float32 and under a secure sum; else with room for the sum and its noise."""
        return replace(self.message_format, bits=self.sum_bits(self._together))

    def sum_bits(self, count: int) -> int:
        """The message's for float32 and under a secure sum; else room for the sum and its noise."""
        layout, mechanism = self.message_format, self._integer
        if mechanism is None or mechanism.trust is Trust.DISTRIBUTED:
            return layout.bits
        return min(62, 1 + max(layout.bits + (count - 1).bit_length(), mechanism.bits))

    @cached_property
    def _claim(self) -> Claim:
        if self._integer is not None:
            return self._integer.claim
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        table = len(self._shape) == 2
        return NoClaim(scope, "bare tables are sent" if table else "vectors are sent as they are")

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        shared = self._integer
        if shared is None or shared.trust is not Trust.DISTRIBUTED or present == shared.cohort:
            return self._claim
        return shared.claim_for(present)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        mechanism = self._integer
        batch, encode = self._inputs(batch, seed)
        if mechanism is None:
            return Encoded(batch if encode is None else encode(batch))
        if mechanism.trust is Trust.DISTRIBUTED:
            return Encoded(mechanism.release(batch, noise, encode=encode))
        values = mechanism.rounded(batch, noise, encode=encode)
        if mechanism.trust is Trust.LOCAL:
            values += mechanism.draw(tuple(values.shape), noise).to(values.device)
        return Encoded(fitted(values, self.message_format))

    def reduced(self, total: Tensor) -> Tensor:
        """The sum modulo `2**bits`, which is all that a secure sum has; else within its format."""
        if self._integer is None:
            return total
        if self._integer.trust is Trust.DISTRIBUTED:
            return wrap(total, self._integer.bits)
        return fitted(total, self.total_format)

    def _centred(self, total: Tensor) -> Tensor:
        """The signed numbers of a sum, which may have wrapped."""
        if self._integer is None or self._integer.trust is not Trust.DISTRIBUTED:
            return total
        return self._integer.centred(total)

    def _mean(self, total: Tensor, count: int | float, out: Tensor | None = None) -> Tensor:
        """Compute the mean vector or table from a published sum: float32."""
        if self._integer is not None:
            step = self._integer.quantizer.granularity
            return torch.mul(self._centred(total), step / count, out=out)
        if out is None:
            return (total / count).float()
        return torch.div(total.detach(), count, out=out)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return self._mean(total, count, out)

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """Bound by clip, rounding and the noise of so many; infinite without a mechanism."""
        bound = super().honest_norm(count)
        return bound if self._integer is None else self._integer.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:
        """Norm of the numbers that the cells stand for."""
        step = 1.0 if self._integer is None else self._integer.quantizer.granularity
        return super().norm_of(self._centred(total), count) * step


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
        table = self._mean(total, count)
        return self.sketch.query(table, seed, combine=self.combine, out=out)


@register
@dataclass(frozen=True)
class Uncompressed(LinearMethod):
    """No compression and no privacy: messages are the vectors in float32, their mean is exact."""

    name: ClassVar[str] = "none"
    code: ClassVar = 0


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

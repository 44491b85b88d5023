"""The paper's two baselines: Laplace noise on the raw vector, and on its sketch.

The paper "assume[s] that the input gradients are bounded by a constant alpha with a 90%
probability" and takes the 90th percentile of each worker's own vector for it. One coordinate whose
value is replaced by another then moves a cell by at most `2 alpha`, and the whole message, in the
L1 norm, by

    2 alpha          for a raw vector,
    2 alpha rows     for a table, where it is in one cell of each row.

Laplace noise has the scale `sensitivity / per_round`. Since one coordinate in ten exceeds alpha,
and alpha comes from the private vector, these are no sensitivities, and what follows from them is
claimed and not proven. With a `clip`, which does not come from the vector, they are: coordinates
are clipped and rounded onto a grid, and the noise is discrete Laplace noise on whole numbers.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check_between, check_positive
from diffsketch.methods.base import FALSE_REFUSAL, Encoded, fitted, mean_of
from diffsketch.methods.forecast import (
    Plannable,
    RelativeError,
    Vectors,
    clipped_coordinates,
    collision_error,
    noise_error,
    rounding_variance,
)
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    Trust,
    Unit,
    rounded_down,
    rounded_up,
)
from diffsketch.privacy.clipping import Encode
from diffsketch.privacy.mechanisms import CoordinateBound, DiscreteLaplaceMechanism
from diffsketch.privacy.mechanisms.rounding import CoordinateQuantizer
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import estimate_alpha
from diffsketch.sketch.hashing import MAX_COLS, HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["SCOPE", "LaplaceBaseline", "RawLaplace", "SketchLaplace", "add_laplace", "paper_claim"]

SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""What the paper's epsilons are about."""

_STEPS = 256  # of the clip, at least
_MANY = 4096  # messages that a sum has room for, at least
_CUT = 1e-6  # probability that noise is cut off in any cell of a message


def paper_claim(per_round: float, source: str) -> PaperClaim:
    """An epsilon that the paper claims for each round."""
    return PaperClaim(SCOPE, Epsilon(per_round, 0.0, 1, Basis.CLAIMED, SCOPE), source)


class LaplaceBaseline(Plannable):
    """Laplace noise by the paper's alpha, or by a clip: what both baselines share.

    With `clip=None`, alpha is each vector's own 90th percentile, and the claim is the paper's. With
    a number, coordinates are clipped to `[-clip, clip]` and rounded at random to multiples of
    `clip / steps`, `steps` being 256, or more where so many coordinates meet in a cell that their
    rounding would add over 0.5% to the variance of the noise. The claim is proven, pure, and
    exactly `per_round` for one round.
    """

    # Fields of the dataclasses that inherit, in the order and by the names that they choose.
    per_round: float
    clip: float | None
    _noised: ClassVar[str]  # what is sent, in words
    margins: ClassVar = (3.0, 1.645, 1.8, 2.0, 2.25, 2.5, 2.75, 3.5, 4.0, 5.0)
    """Clips in standard deviations of a coordinate; 1.645, the paper's, keeps nine tenths."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("per_round", self.per_round)
        if self.clip is not None:
            check_between("clip", self.clip, 1e-30, 1e30)
            check_between("per_round", self.per_round, 1e-9, 1e9)
            _ = self.mechanism  # checks the rest

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Shape of a message."""

    @abstractmethod
    def _encoder(self, seed: HashSeed) -> Encode | None:
        """Function from vectors to tables; None where the vectors themselves are sent."""

    @property
    def _rows(self) -> int:
        """Cells of a message that each coordinate is in."""
        return self._shape[0] if len(self._shape) == 2 else 1

    @cached_property
    def mechanism(self) -> DiscreteLaplaceMechanism | None:
        """What clips, rounds and adds noise; None for the paper's reading."""
        if self.clip is None:
            return None
        cells, expected, table = math.prod(self._shape), self.dim / self._shape[-1], {}
        if len(self._shape) == 2:
            load = math.ceil(expected + 6 * math.sqrt(expected) + 6)
            table = {"dim": self.dim, "load": min(self.dim, load)}
        steps = max(_STEPS, math.ceil(2.5 * self.per_round * math.sqrt(expected) / self._rows))
        bound = CoordinateBound(self.clip, self._rows)
        quantizer = CoordinateQuantizer(bound, steps, cells, **table)
        return DiscreteLaplaceMechanism(quantizer, 1 / self.per_round).with_bits_for(_CUT)

    @cached_property
    def message_format(self) -> MessageFormat:
        """Whole numbers if there is a clip; in the paper's reading float32."""
        if self.mechanism is None:
            return MessageFormat(self.name, self.dim, self._shape, "float32", 32)
        return MessageFormat(self.name, self.dim, self._shape, "signed", self.mechanism.bits)

    @cached_property
    def total_format(self) -> MessageFormat:
        """The same with room for a sum."""
        return replace(self.message_format, bits=self.sum_bits(_MANY))

    def sum_bits(self, count: int) -> int:
        """Room for a sum of so many messages; of float32, none is needed."""
        form = self.message_format
        return form.bits if self.mechanism is None else form.for_sums_of(count).bits

    @cached_property
    def _claim(self) -> ProvenClaim | PaperClaim:
        if self.mechanism is not None:
            return self.mechanism.claim
        return paper_claim(self.per_round, f"the paper's Laplace noise on {self._noised}")

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim | PaperClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        encode, mechanism = self._encoder(seed), self.mechanism
        if mechanism is None:
            messages = batch if encode is None else encode(batch)
            return Encoded(
                add_laplace(
                    messages, batch, noise,
                    alpha=estimate_alpha(batch), rows=self._rows, per_round=self.per_round,
                )
            )  # fmt: skip
        values = mechanism.rounded(batch, noise, encode=encode)
        values += mechanism.draw(tuple(values.shape), noise).to(values.device)
        return Encoded(fitted(values, self.message_format))

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """By the clip, the worst that a table can make of it, and the noise of so many."""
        return math.inf if self.mechanism is None else self.mechanism.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:  # noqa: ARG002
        """Norm of the numbers that the cells stand for."""
        return float(torch.linalg.vector_norm(self._mean(total, 1).double()))

    def reduced(self, total: Tensor) -> Tensor:
        """The sum within its format."""
        return total if self.mechanism is None else fitted(total, self.total_format)

    def _mean(self, total: Tensor, count: int | float, out: Tensor | None = None) -> Tensor:
        """Mean of what was sent: float32."""
        if self.mechanism is None:
            return mean_of(total, count, out)
        return torch.mul(total, self.mechanism.quantizer.granularity / count, out=out)

    @classmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Settings, all but the noise; the grid is the method's own."""
        sized = cls._sized(vectors, cells)
        if scope != replace(SCOPE, relation=scope.relation) or bits is not None or sized is None:
            return None
        return {**sized, "clip": float(rounded_up(margin * vectors.norm / vectors.dim**0.5, 4))}

    @classmethod
    @abstractmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        """Sizes of what is sent; None if it does not fit."""

    @classmethod
    def noised(cls, level: float) -> dict[str, Any]:
        """Settings of the noise."""
        return {"per_round": float(rounded_down(1 / level, 4))}

    def forecast(self, vectors: Vectors) -> RelativeError:
        """Error of one round."""
        if self.mechanism is None:
            raise ArgumentError("clip must be given for a forecast, got clip=None")
        table, cols, limit = len(self._shape) == 2, self._shape[-1], self.mechanism.quantizer.bound
        collisions = collision_error(self.dim, self._rows, cols) if table else 0.0
        step = self.mechanism.quantizer.granularity
        rounding = rounding_variance(vectors.norm / math.sqrt(self.dim) / step) * self.dim / cols
        return replace(
            clipped_coordinates(vectors, limit.limit, collisions=collisions),
            noise=noise_error(vectors, self.mechanism.std**2 / vectors.count, rows=self._rows),
            rounding=noise_error(vectors, step**2 * rounding / vectors.count, rows=self._rows),
        )


@dataclass(frozen=True)
class RawLaplace(LaplaceBaseline):
    """Laplace noise on every coordinate, and no compression: Algorithm 2 without its sketch.

    * Compression: none.
    * Validation: always adds noise. Sensitivity of one coordinate: `2 alpha`, so the scale is
      `2 alpha / per_round`.
    * Aggregation and query: the sum, over the number of workers.

    With `clip=None`, alpha is each vector's own 90th percentile, as in the paper: no bound, and so
    a claim without proof. With a number, coordinates are clipped to `[-clip, clip]`, the
    sensitivity `2 clip` is one, and the claim is proven: pure epsilon for one coordinate.

    Args:
        dim: Length of the vectors.
        per_round: Epsilon of one message.
        clip: Limit of a coordinate, or None for the paper's reading.

    >>> from diffsketch.sketch import SketchKey
    >>> seed = SketchKey.from_integer(0).seed(0)
    >>> print(RawLaplace(100, per_round=0.5, clip=1.0).claim_for(10, seed))
    ... # doctest: +NORMALIZE_WHITESPACE
    Proven: discrete Laplace noise of standard deviation 5.657 on whole numbers limits how well
    anyone who sees a client's message can tell which of two values one coordinate of a vector has.
    """

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "laplace"
    _noised: ClassVar[str] = "raw vectors"

    @classmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        return {} if cells >= vectors.dim else None

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def _encoder(self, seed: HashSeed) -> Encode | None:  # noqa: ARG002
        return None

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return self._mean(total, count, out)


@dataclass(frozen=True, kw_only=True)
class SketchLaplace(LaplaceBaseline, TableMethod):
    """Laplace noise on every cell of the table: Algorithm 2 without its Theorem 1.

    * Compression: the table of the vector (of the clipped one, if there is a `clip`).
    * Validation: always adds noise. One coordinate is in one cell of each row, so its sensitivity
      is `2 alpha rows`, and the scale `2 alpha rows / per_round`.
    * Aggregation and query: the sum; the query of the mean table.

    With `clip=None`, alpha is each vector's own 90th percentile, as in the paper: no bound, and so
    a claim without proof. With a number, coordinates are clipped to `[-clip, clip]` and the claim
    is proven, for one coordinate; hashes need not be secret for it.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table. One row needs the least noise.
        cols: Columns of the table.
        per_round: Epsilon of one message.
        clip: Limit of a coordinate, or None for the paper's reading.
        family: Of the hashes.
        combine: How the rows' estimates become one.
    """

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "sketch-laplace"
    _noised: ClassVar[str] = "sketches"

    @classmethod
    def _sized(cls, vectors: Vectors, cells: int) -> dict[str, Any] | None:
        cols = min(cells, vectors.dim - 1, MAX_COLS)
        return {"rows": 1, "cols": cols} if cols >= 1 else None

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.rows, self.cols)

    def _encoder(self, seed: HashSeed) -> Encode | None:
        return lambda vectors: self.sketch.encode(vectors, seed)

    def mean_table(self, total: Tensor, count: int | float) -> Tensor:
        """Table of the mean, from the published sum: float32."""
        return self._mean(total, count)


def add_laplace(
    messages: Tensor, vectors: Tensor, noise: Noise, *, alpha: Tensor, rows: int, per_round: float
) -> Tensor:
    """Messages `(workers, ...)` with Laplace noise of scale `2 alpha rows / per_round`.

    A vector with nine zeros in ten has an alpha of 0, and would get no noise at all by the paper's
    rule. Its largest coordinate stands in for alpha then (this is our reading; zeros stay as they
    are).

    Args:
        messages: One for each vector.
        vectors: `(workers, dim)`.
        noise: With a row for each of them.
        alpha: Of each vector, float64.
        rows: In which a coordinate is: 1 for raw vectors.
        per_round: The epsilon that is claimed.
    """
    if float(alpha.min()) == 0:
        alpha = torch.where(alpha > 0, alpha, vectors.abs().amax(dim=-1).double())
    scales = (alpha * (2 * rows / per_round)).to(messages.dtype)
    drawn = noise.laplace(tuple(messages.shape), 1.0, dtype=messages.dtype).to(messages.device)
    return torch.addcmul(messages, drawn, scales.reshape(-1, *(1,) * (messages.dim() - 1)))

"""The two parts of a method: an encoder, and a noise that bounds, rounds and claims.

A new encoder is a subclass of `Encoder`. A new noise is a subclass of `IntegerMechanism`, which has
all of it but the law of the noise, or of `NoNoise`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.simulated_noise import Noise
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import Geometry, HashSeed

MANY = 4096
"""Number of messages that an unencrypted sum is sized for if no cohort is given."""

_NAMED = 5  # rows that an error lists


@dataclass(frozen=True)
class Encoder:
    """A linear map from vectors to cells, and estimates back: here, the identity."""

    dim: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the cells: `(dim,)`, or `(rows, cols)` of a table."""
        return (self.dim,)

    @property
    def rows(self) -> int:
        """Number of cells that each coordinate is in."""
        return 1

    @property
    def collision_share(self) -> float:
        """Share of the pairs of coordinates that may meet in a cell."""
        return 0.0

    def encode(self, vectors: Tensor, seed: HashSeed) -> Tensor:  # noqa: ARG002
        """Encode vectors `(workers, dim)` as cells `(workers, *shape)`."""
        return vectors

    def decode(self, cells: Tensor, seed: HashSeed, out: Tensor | None) -> Tensor:  # noqa: ARG002
        """Estimate the vector `(dim,)` with these cells: in `out`, unless there is no need."""
        return cells


@dataclass(frozen=True)
class Tables(Encoder):
    """Count Sketch tables.

    Args:
        dim: Length of the vectors.
        sketch: Sketch of the vectors, or of longer ones that begin with them.
        combine: How the rows' estimates become one.
    """

    sketch: CountSketch
    combine: Combine

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of a table."""
        return self.sketch.rows, self.sketch.cols

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self.sketch.rows

    @property
    def collision_share(self) -> float:
        """`1 - 1 / runs`: coordinates of one run never meet; every run is 1 long for `pairwise`.

        Raises:
            ArgumentError: Rows are combined by the median, of which no error is known.
        """
        mean = self.combine == "mean" or self.rows <= 2  # whose median is their mean
        check(mean, "combine", "be mean for a forecast", self.combine)
        pairwise = self.sketch.family == "pairwise"
        return 1 - 1 / (self.dim if pairwise else Geometry.of(self.dim, self.sketch.cols).runs)

    def encode(self, vectors: Tensor, seed: HashSeed) -> Tensor:
        """Encode vectors as tables, if no sum of coordinates overflows."""
        return check_sums(self.sketch.encode(vectors, seed))

    def decode(self, cells: Tensor, seed: HashSeed, out: Tensor | None) -> Tensor:
        """Query the first `dim` coordinates: not those that a longer sketch has beyond them."""
        out = cells.new_empty(self.dim) if out is None else out
        return self.sketch.query(cells, seed, combine=self.combine, offset=0, out=out)


@dataclass(frozen=True)
class NoNoise:
    """Float32 cells as they are, and whatever is claimed for them."""

    claim: Claim

    whole: ClassVar[Literal[False]] = False
    step: ClassVar[float] = 1.0

    def prepared(self, vectors: Tensor, noise: Noise) -> Tensor:  # noqa: ARG002
        """Return the vectors."""
        return vectors

    def bounded(self, cells: Tensor) -> Tensor:
        """Return the cells."""
        return cells

    rounded = noised = prepared

    def reduced(self, total: Tensor, bits: int) -> Tensor:  # noqa: ARG002
        """Return the total."""
        return total

    centred = bounded

    def mean(self, total: Tensor, count: int | float, *, unit: float, out: Tensor | None) -> Tensor:  # noqa: ARG002
        """Divide a sum by the number of messages."""
        if out is None:
            return (total / count).float()
        return torch.div(total.detach(), count, out=out)

    def largest_norm(self, count: int, failure: float) -> float:  # noqa: ARG002
        """Infinite: nothing is clipped."""
        return math.inf


NoiseLaw: TypeAlias = NoNoise | IntegerMechanism


def is_finite(values: Tensor) -> bool:
    """Check that all values are finite.

    A sum is finite only if its terms are, and quick; it may overflow, so look again then.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def check_sums(tables: Tensor) -> Tensor:
    """Return the tables `(workers, ...)` of finite vectors, if they are finite as well."""
    if not is_finite(tables):
        rows = rows_of(~torch.isfinite(tables).flatten(1).all(dim=1)) if len(tables) > 1 else ""
        raise ArgumentError(
            "vectors must be small enough for float32, but sums of their coordinates overflow"
            f"{rows}"
        )
    return tables


def rows_of(bad: Tensor) -> str:
    """Name the bad rows in an error message; the only row of a vector needs no name."""
    if bad.dim() == 0:
        return ""
    rows = bad.nonzero().flatten().tolist()
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f" in rows {', '.join(map(str, rows[:_NAMED]))}{more}"

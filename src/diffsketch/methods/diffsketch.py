"""DiffSketch as the paper has it: Algorithm 2, validated by Theorem 1."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check_positive
from diffsketch.methods.base import Encoded, check_whole
from diffsketch.methods.laplace import add_laplace, paper_claim
from diffsketch.methods.sketch import TableMethod
from diffsketch.privacy.claim import PaperClaim
from diffsketch.privacy.mechanisms.appended import padded_tables
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.paper.theorem1 import claimed_per_round, estimates
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import HashSeed

__all__ = ["DiffSketch", "PaddedTables"]


@dataclass(frozen=True, kw_only=True)
class PaddedTables(TableMethod):
    """Tables of vectors that `padding` random numbers are appended to.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        padding: How many numbers are appended.
        family: Of the hashes.
        combine: How the rows' estimates become one.
    """

    padding: int

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, least=0)
        super().__post_init__()

    @cached_property
    def sketch(self) -> CountSketch:
        """Of the extended vectors: with it the tables are made, and must be queried."""
        check_whole("dim", self.dim, least=1)
        return CountSketch(self.dim + self.padding, self.rows, self.cols, self.family)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        mean = (total / count).float()
        # Only the vector's own coordinates, not those of the appended numbers.
        out = mean.new_empty(self.dim) if out is None else out
        return self.sketch.query(mean, seed, combine=self.combine, offset=0, out=out)


@dataclass(frozen=True, kw_only=True)
class DiffSketch(PaddedTables):
    """Algorithm 2 of the paper, at the workers.

    * Compression: the table of the vector, with `padding` numbers appended that have the normal
      distribution of the vector's own standard deviation ("the same Gaussian"). Where they are
      many, the table that they make is drawn from its distribution, without drawing them
      (`privacy.mechanisms.appended`).
    * Validation: Theorem 1 for the length `dim + padding`, with alpha the 90th percentile of the
      sizes of the worker's coordinates and sigma their standard deviation. A worker for whom it
      claims nothing, or more than `per_round`, adds Laplace noise to its table. One coordinate's
      sensitivity is `2 alpha rows`, so the scale is `2 alpha rows / per_round`.
    * Aggregation and query: the sum; the query of the mean table, by the median of its rows.

    **No guarantee**: Theorem 1 is not proven (its authors say so), alpha bounds only nine
    coordinates in ten, and whether a worker adds noise depends on private data. `diffsketch-proven`
    and the other methods are for when it counts.

    `Encoded` tells what Theorem 1 claims for each worker, and who added noise.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        per_round: The epsilon that is to be claimed for each message.
        padding: How many numbers are appended. Without any, Theorem 1 claims something only for
            tables that are very small for the length of the vector.
        family: Of the hashes.
        combine: How the rows' estimates become one: by their median, as in Algorithm 1. (For other
            methods it is the mean, if nothing is given.)
    """

    per_round: float
    padding: int = 0
    combine: Combine = field(default="median", kw_only=True)

    name: ClassVar[str] = "diffsketch"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("per_round", self.per_round)

    @cached_property
    def _claim(self) -> PaperClaim:
        source = "Theorem 1 of the paper, with Laplace noise where it claims less,"
        return paper_claim(self.per_round, source)

    def _claim_for(self, present: int, seed: HashSeed) -> PaperClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        alpha, sigma = estimates(batch, validate=False)
        claimed = claimed_per_round(self.sketch.dim, self.rows, self.cols, alpha=alpha, sigma=sigma)
        tables = self._tables(batch, sigma, seed, noise)
        noised = ~(claimed <= self.per_round)
        if bool(noised.all()):
            tables = self._noisy(tables, batch, noise, alpha)
        elif bool(noised.any()):
            some = self._noisy(tables[noised], batch[noised], noise.part(noised), alpha[noised])
            tables[noised] = some
        return Encoded(tables, claimed, noised)

    def _tables(self, batch: Tensor, sigma: Tensor, seed: HashSeed, noise: Noise) -> Tensor:
        if not self.padding:
            return self.sketch.encode(batch, seed)
        return padded_tables(batch, self.sketch, seed=seed, std=sigma, noise=noise)

    def _noisy(self, tables: Tensor, batch: Tensor, noise: Noise, alpha: Tensor) -> Tensor:
        return add_laplace(
            tables, batch, noise, alpha=alpha, rows=self.rows, per_round=self.per_round
        )

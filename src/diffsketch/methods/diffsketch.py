"""DiffSketch as the paper has it, and with appended noise that has a proof."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check_positive, check_whole
from diffsketch.methods.base import Encoded
from diffsketch.methods.laplace import add_laplace, paper_claim
from diffsketch.methods.plain import TableMethod, largest_table
from diffsketch.privacy.claim import NoClaim, PaperClaim, ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.mechanisms import CoordinateBound, PaddedGaussian
from diffsketch.privacy.mechanisms.integer import noise_norm
from diffsketch.privacy.mechanisms.padding import padded_tables
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.theorems import claimed_per_round, estimates
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import HashSeed


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


@dataclass(frozen=True, kw_only=True)
class ProvenDiffSketch(PaddedTables):
    """Algorithm 2 with its appended noise repaired, which makes it a Gaussian mechanism.

    * Compression: the table of the vector, its coordinates clipped to `[-clip, clip]`, with
      `padding` numbers of standard deviation `std` appended. Both are fixed beforehand.
    * Validation: `claim_for(present, seed)`, once for the round's hashes and before any data is
      seen. One coordinate moves the table by up to `2 clip` (`clip` for add-or-remove) in one cell
      of each row; what that amounts to beside the noise is computed from the hashes.
    * Aggregation and query: the sum; the query of the mean table.

    The claim is proven, for one coordinate and hashes that everybody knows. There is none where
    the padding is shorter than the table has cells, or leaves part of it without noise.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        clip: Limit of a coordinate.
        padding: How many numbers are appended.
        std: Their standard deviation; must not come from private data.
        relation: Which data sets are neighbours.
        family: Of the hashes.
        combine: How the rows' estimates become one.

    >>> from diffsketch.sketch import SketchKey
    >>> method = ProvenDiffSketch(7850, 7, 22, clip=1.645, padding=39_250, std=1.0)
    >>> print(method.claim_for(10, SketchKey.from_integer(0).seed(0)).epsilon(delta=1e-5, rounds=1))
    epsilon = 0.7619 at delta = 1e-05 over 1 round (proven, simulated; coordinate unit, \
replace, local trust)
    """

    clip: float
    std: float
    relation: Relation = Relation.REPLACE

    name: ClassVar[str] = "diffsketch-proven"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("padding", self.padding, least=1)
        check_positive("clip", self.clip)
        check_positive("std", self.std)
        scope = Scope(Unit.COORDINATE, self.relation, Trust.LOCAL)  # checks, and converts names
        object.__setattr__(self, "relation", scope.relation)

    def mechanism(self, seed: HashSeed) -> PaddedGaussian:
        """The mechanism of a round, kept with its seed: the claim takes a factorisation."""
        kept = seed.memo.get(self)
        if kept is None:
            bare = CountSketch(self.dim, self.rows, self.cols, self.family)
            bound = CoordinateBound(self.clip)
            kept = PaddedGaussian(bare, seed, bound, self.padding, self.std, self.relation)
            seed.memo[self] = kept
        mechanism: PaddedGaussian = kept
        return mechanism

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim | NoClaim:  # noqa: ARG002
        return self.mechanism(seed).claim

    def _message_norm(self, failure: float) -> float:
        # Its length moves by at most sqrt(rows padding) times what is appended, a Gaussian, does.
        noise = noise_norm(1, self.std**2 * self.rows * self.padding, failure)
        return self.clip * largest_table(self.dim, self.rows) + noise

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return Encoded(self.mechanism(seed).release(batch, noise))

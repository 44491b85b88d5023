"""DiffSketch with appended noise that a proof is known for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check_positive
from diffsketch.methods.base import Encoded, check_whole
from diffsketch.methods.diffsketch import PaddedTables
from diffsketch.methods.sketch import largest_table
from diffsketch.privacy.claim import NoClaim, ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.mechanisms import CoordinateBound, PaddedGaussian
from diffsketch.privacy.mechanisms.tails import noise_norm
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed

__all__ = ["ProvenDiffSketch"]


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

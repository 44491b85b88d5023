"""The paper's appended noise over many rounds, each with hashes of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import NoClaim, ProvenClaim, Relation, Scope, Trust
from diffsketch.privacy.mechanisms.bounds import CoordinateBound
from diffsketch.privacy.mechanisms.padding import PaddedGaussian
from diffsketch.privacy.mechanisms.spectrum import EXACT_CELLS
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed

__all__ = ["FittedPadding"]


@dataclass(frozen=True)
class FittedPadding:
    """Appended noise of the standard deviation that each round's known hashes need.

    What a `PaddedGaussian` guarantees depends on the hashes of the round. They are public, so the
    standard deviation may depend on them: every round then has the same event.

    Guarantees: for every seed, `at(seed).claim` is at least as strong as `claim`
    (`tests/plan/test_padded.py`).

    Args:
        sketch: For the vector without noise; small enough for an exact computation.
        bound: How the vector's coordinates are clipped.
        padding: How many numbers are appended.
        noise_multiplier: Of the Gaussian noise that a round is to amount to.
        relation: Which data sets are neighbours.
    """

    sketch: CountSketch
    bound: CoordinateBound
    padding: int
    noise_multiplier: float
    relation: Relation = Relation.REPLACE

    def __post_init__(self) -> None:
        cells = self.sketch.rows * self.sketch.cols
        check(cells <= EXACT_CELLS, "sketch", f"have at most {EXACT_CELLS} cells", cells)
        good = 0 < self.noise_multiplier < math.inf
        check(good, "noise_multiplier", "be > 0 and finite", self.noise_multiplier)

    def at(self, seed: HashSeed) -> PaddedGaussian:
        """The mechanism of one round.

        Raises:
            ArgumentError: For these hashes there is no proof, whatever the noise.
        """
        trial = PaddedGaussian(self.sketch, seed, self.bound, self.padding, 1.0, self.relation)
        claim = trial.claim
        if isinstance(claim, NoClaim):
            raise ArgumentError(f"seed must allow a proof, but {claim.reason}")
        # The multiplier is in proportion to the standard deviation; the rest is for rounding.
        std = self.noise_multiplier / claim.event.noise_multiplier * (1 + 1e-12)
        return replace(trial, std=std)

    @property
    def claim(self) -> ProvenClaim:
        """What every round guarantees that `at` returns a mechanism for."""
        scope = Scope(self.bound.unit, self.relation, Trust.LOCAL)
        text = f"{self.padding} Gaussian numbers appended to the vector, fitted to the hashes,"
        return ProvenClaim(scope, events.gaussian(self.noise_multiplier), text)

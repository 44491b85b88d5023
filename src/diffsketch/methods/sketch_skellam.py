"""Whole-number tables with Skellam noise, for secure sums."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive
from diffsketch.methods.base import FALSE_REFUSAL, Encoded, check_sums, check_whole
from diffsketch.methods.sketch import TableMethod
from diffsketch.privacy.claim import ProvenClaim, Relation, Trust
from diffsketch.privacy.mechanisms import NormBound, Quantizer, SkellamMechanism
from diffsketch.privacy.mechanisms.quantize import MAX_BITS, centre, wrap
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["SketchSkellam"]

_WRAPS = 1e-6  # probability that any cell of a round's sum wraps
_STEPS = 256.0  # of the clip, at least: drawing roundings again costs 4.3 steps of the norm


@dataclass(frozen=True, kw_only=True)
class SketchSkellam(TableMethod):
    """Tables clipped to a norm, rounded to whole numbers, plus Skellam noise, modulo `2**bits`.

    * distributed (under a secure sum, where nobody sees a single message): each of the `cohort`
      workers adds its share of the noise. If fewer contribute, there is less noise:
      `claim_for(present, seed)` says what that leaves.
    * local: each worker adds all of it to its own message.

    The sensitivity is `2 clip` (`clip` for add-or-remove, where zeros are sent instead of data)
    and what rounding adds to it; the noise's standard deviation is `noise_multiplier` times that.

    A step is `granularity` wide. If it is not given,

    * with `bits`, it is the finest for which the sum of the cohort wraps with a probability of at
      most 1e-6, even if all workers have all of their norm in the same cell;
    * without, `clip / max(256, 5 sqrt(cells), 5 sqrt(cohort) / (2 noise_multiplier))` (`cohort` is
      1 for local trust, and the 2 is 1 for add-or-remove). Then rounding makes the sensitivity
      about 2% larger, and adds about 1% to the variance of the noise.

    If `bits` are not given, they are the fewest for the same probability.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table.
        cols: Columns of the table.
        clip: Norm of the table. That of a dense vector's is about `sqrt(rows)` times the vector's.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        cohort: Workers of a round, at most.
        bits: Of a cell.
        granularity: Width of a step.
        relation: Which data sets are neighbours.
        trust: `distributed` or `local`.
        family: Of the hashes.
        combine: How the rows' estimates become one.

    >>> method = SketchSkellam(7850, 7, 22, clip=1.0, noise_multiplier=4.0, cohort=1000)
    >>> method.message_format.bits, method.wire_bytes
    (20, 433)
    """

    clip: float
    noise_multiplier: float
    cohort: int
    bits: int | None = None
    granularity: float | None = None
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.DISTRIBUTED

    name: ClassVar[str] = "sketch-skellam"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("clip", self.clip)
        check_positive("noise_multiplier", self.noise_multiplier)
        check_whole("cohort", self.cohort, least=1)
        if self.bits is not None:
            check_whole("bits", self.bits, least=1)
        if self.granularity is not None:
            check_positive("granularity", self.granularity)
        check(self.trust != Trust.CENTRAL, "trust", "be distributed or local", self.trust)
        object.__setattr__(self, "relation", self.mechanism.relation)
        object.__setattr__(self, "trust", self.mechanism.trust)

    @cached_property
    def mechanism(self) -> SkellamMechanism:
        """What clips, rounds, adds noise and makes the claim."""
        step = self.granularity or self.clip / _STEPS
        start = SkellamMechanism(
            Quantizer(NormBound(self.clip), step, self.rows * self.cols), self.noise_multiplier,
            relation=self.relation, trust=self.trust, cohort=self.cohort,
            bits=self.bits or MAX_BITS,
        )  # fmt: skip
        if self.granularity is None and self.bits is not None:
            return start.with_granularity_for(_WRAPS)
        if self.granularity is None:
            fine = replace(start.quantizer, granularity=self._fine_step(start))
            start = replace(start, quantizer=fine)
        fitted = start.with_bits_for(_WRAPS)
        if self.bits is None:
            return fitted
        if self.bits < fitted.bits:
            raise ArgumentError(
                f"bits must be >= {fitted.bits} for this granularity, cohort and noise, or sums "
                f"wrap, got bits={self.bits}"
            )
        return start

    def _fine_step(self, mechanism: SkellamMechanism) -> float:
        """By the rule above."""
        parts = self.cohort if mechanism.trust is Trust.DISTRIBUTED else 1
        change = 2 if mechanism.relation is Relation.REPLACE else 1
        cells = self.rows * self.cols
        rounding = 5 * math.sqrt(parts) / (change * self.noise_multiplier)
        return self.clip / max(_STEPS, 5 * math.sqrt(cells), rounding)

    @cached_property
    def message_format(self) -> MessageFormat:
        """A table of whole numbers."""
        shape = (self.rows, self.cols)
        return MessageFormat(self.name, self.dim, shape, "unsigned", self.mechanism.bits)

    @cached_property
    def _claim(self) -> ProvenClaim:
        return self.mechanism.claim

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim:  # noqa: ARG002
        return self._claim if present == self.cohort else self.mechanism.claim_for(present)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        def encode(vectors: Tensor) -> Tensor:
            return check_sums(self.sketch.encode(vectors, seed))

        return Encoded(self.mechanism.release(batch, noise, encode=encode))

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """By the clip, its rounding and the noise of so many; never more than the cohort."""
        return self.mechanism.largest_norm(count, failure)

    def norm_of(self, total: Tensor, count: int = 1) -> float:  # noqa: ARG002
        """Of the numbers around 0 that the cells stand for."""
        steps = centre(total, self.mechanism.bits).double()
        return self.mechanism.quantizer.granularity * float(torch.linalg.vector_norm(steps))

    def publish(self, total: Tensor, noise: Noise) -> Tensor:  # noqa: ARG002
        """The sum modulo `2**bits`, which is all that a secure sum has."""
        return wrap(total, self.mechanism.bits)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        mean = self.mechanism.decode(total, count).float()
        return self.sketch.query(mean, seed, combine=self.combine, out=out)

"""Means under Gaussian or Skellam noise that hides a whole client, compressed or not.

One class does it all: clip, round onto a public grid, add whole-number noise. What a subclass adds
is which noise, and whether the clipped thing is the vector itself or its Count Sketch.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive
from diffsketch.methods.base import Encoded, Method, check_sums, check_whole, fitted
from diffsketch.methods.sketch import TableMethod
from diffsketch.privacy.claim import ProvenClaim, Relation, Trust
from diffsketch.privacy.mechanisms import (
    DiscreteGaussianMechanism,
    NormBound,
    Quantizer,
    SkellamMechanism,
)
from diffsketch.privacy.mechanisms.bounds import Encode
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.mechanisms.quantize import MAX_BITS, wrap
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["ClientNoise", "GaussianMean", "SkellamMean", "SketchGaussian", "SketchSkellam"]

_WRAPS = 1e-6  # probability that any cell of a message (of the sum, if that wraps) is cut off
_STEPS, _ROUNDING = 256.0, 5.0  # of the clip at least, and over the noise; times `fineness`
_ANY_COHORT = 4096  # what the grid is fine enough for where no cohort is given


@dataclass(frozen=True, kw_only=True)
class ClientNoise(Method):
    """Clip to a norm, round onto a grid, add whole-number noise: a claim about whole clients.

    What is *sent* is clipped, to a Euclidean norm of `clip`: the vector, or its table, since a
    sketch can make a vector longer. Replacing a client's data moves it by at most `2 clip`, taking
    the data away (zeros instead) by `clip`, and rounding adds a little, which is counted. The
    noise's standard deviation is `noise_multiplier` times that sensitivity.

    * local: each worker adds all of the noise to its own message.
    * central: workers send clipped messages to a server that they trust, and `publish` adds it.
    * distributed (under a secure sum, where nobody sees a single message): each of the `cohort`
      workers adds its share, and messages are taken modulo `2**bits`. If fewer contribute, there
      is less noise: `claim_for(present, seed)` says what that leaves.

    *The grid.* A step is `granularity` wide. If it is not given, then with `bits` it is the finest
    for which a message (the sum of the cohort, for distributed trust) is cut off with a probability
    of at most 1e-6; and without, `clip / max(256 f, 5 f sqrt(cells), 5 f sqrt(n) / (c
    noise_multiplier))`. `n` is the number of messages beside one draw of the noise (1 for local
    trust, else the cohort, or 4096 if that is not given), `c` is 2 (1 for add-or-remove), and `f`
    is the class's `fineness`: 4 for Gaussian noise, where rounding adds at most 0.4% to the
    standard deviation of the noise and 0.3% to the variance of the mean beside it; 1 for Skellam
    noise, which saves two bits of a cell for 2% and 1%. If `bits` are not given, they are the
    fewest for that probability.

    Guarantees (`tests/methods/test_proven_methods.py`): the sensitivity holds for the whole
    numbers that are sent; epsilon and error are within 1% of the real-valued Gaussian mechanism's.

    Args:
        dim: Length of the vectors.
        clip: Norm of what is sent. That of a dense vector's table is about `sqrt(rows)` times the
            vector's.
        noise_multiplier: Standard deviation of the noise, in sensitivities.
        cohort: Workers of a round, at most. Needed for distributed trust.
        bits: Of a cell of a message.
        granularity: Width of a step.
        relation: Which data sets are neighbours.
        trust: Who adds the noise.
    """

    clip: float
    noise_multiplier: float
    cohort: int | None = None
    bits: int | None = None
    granularity: float | None = None
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.LOCAL

    law: ClassVar[type[DiscreteGaussianMechanism | SkellamMechanism]]
    fineness: ClassVar[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("clip", self.clip)
        check_positive("noise_multiplier", self.noise_multiplier)
        if self.cohort is not None:
            check_whole("cohort", self.cohort, least=1)
        elif self.trust == Trust.DISTRIBUTED:
            raise ArgumentError("cohort must be given for distributed trust, got cohort=None")
        if self.bits is not None:
            check_whole("bits", self.bits, least=1)
            central = self.trust == Trust.CENTRAL
            check(not central, "bits", "not be given for central trust; see granularity", self.bits)
        if self.granularity is not None:
            check_positive("granularity", self.granularity)
        object.__setattr__(self, "relation", self.mechanism.relation)
        object.__setattr__(self, "trust", self.mechanism.trust)

    @property
    @abstractmethod
    def _shape(self) -> tuple[int, ...]:
        """Shape of what is clipped and sent."""

    @property
    def _cells(self) -> int:
        return math.prod(self._shape)

    @abstractmethod
    def _encoder(self, seed: HashSeed) -> Encode | None:
        """Function from vectors to what is clipped; None for the vectors themselves."""

    @cached_property
    def mechanism(self) -> IntegerMechanism:
        """What clips, rounds, adds noise and makes the claim."""
        grid = Quantizer(NormBound(self.clip), self.granularity or self.clip / _STEPS, self._cells)
        sums = self.cohort if self.trust == Trust.DISTRIBUTED and self.cohort else 1
        start = self.law(
            grid, self.noise_multiplier,
            relation=self.relation, trust=self.trust, cohort=sums, bits=self.bits or MAX_BITS,
        )  # fmt: skip
        if self.granularity is None and self.bits is not None:
            return start.with_granularity_for(_WRAPS)
        if self.granularity is None:
            start = replace(start, quantizer=replace(grid, granularity=self._fine_step(start)))
        fits = start.with_bits_for(_WRAPS)
        if self.bits is None:
            return fits
        if self.bits < fits.bits:
            raise ArgumentError(
                f"bits must be >= {fits.bits} for this granularity, cohort and noise, or numbers "
                f"are cut off, got bits={self.bits}"
            )
        return start

    def _fine_step(self, mechanism: IntegerMechanism) -> float:
        """Width of a step by the rule above."""
        together = 1 if mechanism.trust is Trust.LOCAL else self.cohort or _ANY_COHORT
        change = 2 if mechanism.relation is Relation.REPLACE else 1
        beside = _ROUNDING * math.sqrt(together) / (change * self.noise_multiplier)
        return self.clip / (self.fineness * max(_STEPS, _ROUNDING * math.sqrt(self._cells), beside))

    @cached_property
    def message_format(self) -> MessageFormat:
        """Whole numbers: modulo `2**bits` under a secure sum, else signed."""
        mechanism = self.mechanism
        if self.trust is Trust.DISTRIBUTED:
            return MessageFormat(self.name, self.dim, self._shape, "unsigned", mechanism.bits)
        bits = mechanism.bits
        if self.trust is Trust.CENTRAL:  # without noise: the clip bounds every cell
            bits = mechanism.quantizer.peak.bit_length() + 1
        return MessageFormat(self.name, self.dim, self._shape, "signed", bits)

    @cached_property
    def total_format(self) -> MessageFormat:
        """The same under a secure sum, which wraps; else with room for the sum and its noise."""
        if self.trust is Trust.DISTRIBUTED:
            return self.message_format
        return self.message_format.for_sums_of(self.cohort, noise_bits=self.mechanism.bits)

    @cached_property
    def _claim(self) -> ProvenClaim:
        return self.mechanism.claim

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim:  # noqa: ARG002
        if self.cohort is not None:
            check(present <= self.cohort, "present", f"be in 1..{self.cohort}", present)
        if self.trust is not Trust.DISTRIBUTED or present == self.cohort:
            return self._claim
        return self.mechanism.claim_for(present)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        mechanism, encode = self.mechanism, self._encoder(seed)
        if self.trust is Trust.DISTRIBUTED:
            return Encoded(mechanism.release(batch, noise, encode=encode))
        values = mechanism.rounded(batch, noise, encode=encode)
        if self.trust is Trust.LOCAL:
            values += mechanism.draw(tuple(values.shape), noise).to(values.device)
        return Encoded(fitted(values, self.message_format))

    def central_noise(self, noise: Noise, *, sums: int | None = None) -> Tensor | None:
        """For central trust, the noise that hides a client in the sum."""
        if self.trust is not Trust.CENTRAL:
            return None
        drawn = self.mechanism.draw((sums or 1, *self._shape), noise)
        return drawn[0] if sums is None else drawn

    def reduced(self, total: Tensor) -> Tensor:
        """The sum modulo `2**bits`, which is all that a secure sum has; else within its format."""
        if self.trust is Trust.DISTRIBUTED:
            return wrap(total, self.mechanism.bits)
        return fitted(total, self.total_format)

    def _mean(self, total: Tensor, count: int | float, out: Tensor | None = None) -> Tensor:
        """Mean of what was clipped, without the query: float32."""
        if self.trust is Trust.DISTRIBUTED:
            total = self.mechanism.centred(total)
        return torch.mul(total, self.mechanism.quantizer.granularity / count, out=out)


@dataclass(frozen=True, kw_only=True)
class _Dense(ClientNoise):
    """The vector itself is clipped and sent."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.dim,)

    def _encoder(self, seed: HashSeed) -> Encode | None:  # noqa: ARG002
        return None

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return self._mean(total, count, out)


@dataclass(frozen=True, kw_only=True)
class _Table(ClientNoise, TableMethod):
    """The table of the vector is clipped and sent."""

    @property
    def _shape(self) -> tuple[int, ...]:
        return (self.rows, self.cols)

    def _encoder(self, seed: HashSeed) -> Encode | None:
        return lambda vectors: check_sums(self.sketch.encode(vectors, seed))

    def mean_table(self, total: Tensor, count: int | float) -> Tensor:
        """Table of the mean, from the published sum: float32."""
        return self._mean(total, count)


@dataclass(frozen=True, kw_only=True)
class GaussianMean(_Dense):
    """A dense mean under discrete Gaussian noise: the mechanism of DP-FedAvg.

    `ClientNoise` has the arguments.

    >>> GaussianMean(dim=7850, clip=1.0, noise_multiplier=4.0).message_format.bits
    18
    """

    name: ClassVar[str] = "gaussian"
    law: ClassVar = DiscreteGaussianMechanism
    fineness: ClassVar[float] = 4.0


@dataclass(frozen=True, kw_only=True)
class SkellamMean(_Dense):
    """A dense mean under Skellam noise, as a rule shared by a cohort under a secure sum.

    `ClientNoise` has the arguments.
    """

    trust: Trust = Trust.DISTRIBUTED

    name: ClassVar[str] = "skellam"
    law: ClassVar = SkellamMechanism
    fineness: ClassVar[float] = 1.0


@dataclass(frozen=True, kw_only=True)
class SketchGaussian(_Table):
    """Clipped tables under discrete Gaussian noise.

    `ClientNoise` has the arguments besides those of every `TableMethod`.

    >>> SketchGaussian(7850, 7, 22, clip=1.0, noise_multiplier=4.0).wire_bytes
    376
    """

    name: ClassVar[str] = "sketch-gaussian"
    law: ClassVar = DiscreteGaussianMechanism
    fineness: ClassVar[float] = 4.0


@dataclass(frozen=True, kw_only=True)
class SketchSkellam(_Table):
    """Clipped tables under Skellam noise, as a rule shared by a cohort under a secure sum.

    `ClientNoise` has the arguments besides those of every `TableMethod`.

    >>> method = SketchSkellam(7850, 7, 22, clip=1.0, noise_multiplier=4.0, cohort=1000)
    >>> method.message_format.bits, method.wire_bytes
    (20, 433)
    """

    trust: Trust = Trust.DISTRIBUTED

    name: ClassVar[str] = "sketch-skellam"
    law: ClassVar = SkellamMechanism
    fineness: ClassVar[float] = 1.0

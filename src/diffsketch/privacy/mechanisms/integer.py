"""What mechanisms with integer noise share: messages for a secure sum, and when that sum wraps.

A message is a clipped and rounded table plus integer noise, modulo `2**bits`. Whoever runs a
secure sum sees only the sum of the messages modulo `2**bits`. Reducing it is post-processing, so
the modulus costs no privacy; a sum that wraps costs accuracy, with a probability stated here.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, TypeVar

from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.accounting.events import Event
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust
from diffsketch.privacy.mechanisms.bounds import Encode
from diffsketch.privacy.mechanisms.quantize import (
    MAX_BITS,
    CoordinateQuantizer,
    Quantizer,
    centre,
    wrap,
)
from diffsketch.privacy.mechanisms.tails import noise_norm
from diffsketch.privacy.noise import Noise

__all__ = ["IntegerMechanism"]

_Self = TypeVar("_Self", bound="IntegerMechanism")
_HALVINGS = 60


@dataclass(frozen=True)
class IntegerMechanism(ABC):
    """A quantiser, integer noise, and a modulus. Its subclasses say which noise.

    * `local` trust: every member adds all of the noise to its message.
    * `distributed` trust: every one of the `cohort` members adds its share, and the claim is about
      their secure sum. It holds while all of them contribute; `claim_for` says what holds if only
      some did. The relation add-or-remove means that a member's table becomes zero (it still adds
      its share of the noise).
    * `central` trust: members send `rounded` tables to a server which they trust, and which adds
      the noise once, to the sum: `release_sum`, or `perturb` for a sum that came by wire.

    Args:
        quantizer: Clipping and rounding, and with that the sensitivity.
        noise_multiplier: The noise over the sensitivity; the subclass says of which order.
        relation: Which data sets are neighbours.
        trust: Who adds the noise.
        cohort: Messages in a sum.
        bits: Per cell of a message; the modulus is `2**bits`.
    """

    quantizer: Quantizer | CoordinateQuantizer
    noise_multiplier: float
    relation: Relation = field(default=Relation.REPLACE, kw_only=True)
    trust: Trust = field(default=Trust.LOCAL, kw_only=True)
    cohort: int = field(default=1, kw_only=True)
    bits: int = field(default=32, kw_only=True)

    _sub_gaussian: ClassVar[bool] = False  # with `_noise_variance` as the parameter

    def __post_init__(self) -> None:
        good = 0 < self.noise_multiplier < math.inf
        check(good, "noise_multiplier", "be > 0 and finite", self.noise_multiplier)
        check(self.cohort >= 1, "cohort", "be >= 1", self.cohort)
        check(1 <= self.bits <= MAX_BITS, "bits", f"be in 1..{MAX_BITS}", self.bits)
        scope = Scope(self.quantizer.bound.unit, self.relation, self.trust)
        object.__setattr__(self, "relation", scope.relation)
        object.__setattr__(self, "trust", scope.trust)

    @property
    def claim(self) -> ProvenClaim:
        """What one round guarantees if every member of the cohort contributed its noise."""
        return self.claim_for(self.cohort)

    def claim_for(self, present: int) -> ProvenClaim:
        """What one round guarantees if only `present` members contributed noise.

        Under distributed trust fewer members mean less noise: never go on with `claim` then.
        """
        self._check_count("present", present)
        std = f"{self._std_for(present):.4g}{self.quantizer.bound.measure}"
        text = f"{self._name} of standard deviation {std} on whole numbers"
        if self.trust is Trust.DISTRIBUTED:
            text += f", shared among {present} members,"
        scope = Scope(self.quantizer.bound.unit, self.relation, self.trust)
        return ProvenClaim(scope, self._event(present), text)

    @property
    def std(self) -> float:
        """Standard deviation, in units of the data, of the noise that `claim` rests on.

        On a cell of each message for `local` trust, of the sum for the others.
        """
        return self._std_for(self.cohort)

    def variance(self, count: int) -> float:
        """Of a cell of the decoded mean of `count` messages, at most: noise and rounding."""
        self._check_count("count", count)
        noise = self._noise_variance / self._parts
        if self.trust is not Trust.CENTRAL:
            noise *= count
        return self.quantizer.granularity**2 * (noise + count / 4) / count**2

    def rounded(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """Clipped and rounded (int64), without any noise: only for a server which is trusted."""
        return self.quantizer.apply(vectors, noise, encode=encode)

    def perturb(self, integers: Tensor, noise: Noise) -> Tensor:
        """Whole numbers with one member's noise (the server's for central trust), wrapped."""
        drawn = self.draw(tuple(integers.shape), noise).to(integers.device)
        return wrap(integers + drawn, bits=self.bits)

    def release(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """One message (int64, in `[0, 2**bits)`) for each vector, with a member's noise.

        Its cells take `bits` bits each on the wire.
        """
        return self.perturb(self.rounded(vectors, noise, encode=encode), noise)

    def release_sum(self, vectors: Tensor, noise: Noise, *, encode: Encode | None = None) -> Tensor:
        """The sum of `(members, dim)` vectors, each clipped and rounded, with noise added once.

        For a server that is trusted with the vectors: the same as `perturb` of the sum of
        `rounded` ones.
        """
        check(vectors.dim() == 2, "vectors", "be a batch (members, dim)", tuple(vectors.shape))
        check(self.trust is Trust.CENTRAL, "trust", "be central for a sum", self.trust)
        check(len(vectors) <= self.cohort, "vectors", f"be at most {self.cohort}", len(vectors))
        return self.perturb(self.rounded(vectors, noise, encode=encode).sum(dim=0), noise)

    def decode(self, total: Tensor, count: int) -> Tensor:
        """The mean (float64) of `count` messages from their sum, wrapped or not."""
        self._check_count("count", count)
        return self.centred(total).double() * (self.quantizer.granularity / count)

    def centred(self, total: Tensor) -> Tensor:
        """The signed whole numbers (int64) that a sum modulo `2**bits` stands for."""
        return centre(total, self.bits)

    def overflow_bound(self, *, largest: float | None = None) -> float:
        """A bound on the probability that any cell of the sum wraps and decodes wrongly.

        A matter of accuracy, not of privacy.

        Args:
            largest: A bound on the absolute value of each cell of the exact sum, in units of the
                data, where one is known. Else every member is taken to have its whole norm in the
                same cell.
        """
        room = (1 << (self.bits - 1)) - self._peak(largest)
        if room <= 0:
            return 1.0
        log_tail = math.log(2 * self.quantizer.cells) + self._log_tail(room, self._sources)
        return math.exp(min(0.0, log_tail))

    def largest_cell(self, count: int, value: float, failure: float) -> float:
        """Largest size of a cell in which messages have at most `value`, in units of the data.

        Rounding adds a step to each.
        """
        return count * (value + self.quantizer.granularity) + self._noise_norm(count, 1, failure)

    def _noise_norm(self, count: int, cells: int, failure: float) -> float:
        """Norm of the noise of `count` messages in so many cells, in units of the data."""
        if self.trust is Trust.CENTRAL:
            return 0.0
        tail = None if self._sub_gaussian else partial(self._log_tail, sources=count)
        variance = count * self._noise_variance / self._parts
        return self.quantizer.granularity * noise_norm(cells, variance, failure, log_tail=tail)

    def largest_norm(self, count: int, failure: float) -> float:
        """Norm of the sum of `count` messages, in units of the data, but with `failure`.

        Sums that wrap only get shorter.
        """
        own = count * self.quantizer.longest * self.quantizer.granularity
        return own + self._noise_norm(count, self.quantizer.cells, failure)

    def with_bits_for(self: _Self, failure: float, *, largest: float | None = None) -> _Self:
        """The same with the fewest bits for which `overflow_bound` is at most `failure`."""
        _check_failure(failure)
        for bits in range(1, MAX_BITS + 1):
            fitted = replace(self, bits=bits)
            if fitted.overflow_bound(largest=largest) <= failure:
                return fitted
        raise ArgumentError(f"no modulus of at most {MAX_BITS} bits holds the sum")

    def with_granularity_for(self: _Self, failure: float, *, largest: float | None = None) -> _Self:
        """The same with the finest step for which `overflow_bound` is at most `failure`."""
        _check_failure(failure)
        quantizer = self.quantizer
        if not isinstance(quantizer, Quantizer):
            raise ArgumentError("granularity must be given where coordinates are rounded")
        limit = quantizer.bound.limit
        fine, coarse = math.log(limit) - 20, math.log(limit) + 3

        def at(log_step: float) -> _Self:
            step = math.exp(log_step)
            return replace(self, quantizer=replace(quantizer, granularity=step))

        if at(coarse).overflow_bound(largest=largest) > failure:
            raise ArgumentError(f"bits must be more for this cohort, got bits={self.bits}")
        for _ in range(_HALVINGS):
            middle = (fine + coarse) / 2
            if at(middle).overflow_bound(largest=largest) <= failure:
                coarse = middle
            else:
                fine = middle
        return at(coarse)

    def _std_for(self, present: int) -> float:
        part = present / self.cohort if self.trust is Trust.DISTRIBUTED else 1.0
        return self.quantizer.granularity * math.sqrt(self._noise_variance * part)

    def _peak(self, largest: float | None) -> int:
        """A cell of the sum without noise, at most, in steps."""
        if largest is None:
            return self.cohort * self.quantizer.peak
        check(0 <= largest < math.inf, "largest", "be >= 0 and finite", largest)
        return math.ceil(largest / self.quantizer.granularity) + self.cohort

    @property
    def _parts(self) -> int:
        """In how many messages the noise of the claim comes."""
        return self.cohort if self.trust is Trust.DISTRIBUTED else 1

    @property
    def _sources(self) -> int:
        """How many draws of a message's noise are in a sum."""
        return 1 if self.trust is Trust.CENTRAL else self.cohort

    def _check_count(self, name: str, value: int) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")
        check(1 <= value <= self.cohort, name, f"be in 1..{self.cohort}", value)

    @property
    @abstractmethod
    def _name(self) -> str:
        """Of the noise."""

    @property
    @abstractmethod
    def _noise_variance(self) -> float:
        """Of the noise that the claim rests on, in steps, at most."""

    @abstractmethod
    def draw(self, shape: tuple[int, ...], noise: Noise) -> Tensor:
        """The noise of one message (of the server, for central trust): int64."""

    @abstractmethod
    def _event(self, present: int) -> Event:
        """What a round with the noise of so many members is to an accountant."""

    @abstractmethod
    def _log_tail(self, room: float, sources: int) -> float:
        """A bound on the logarithm of P[a cell of the sum of so many messages' noises >= room]."""


def _check_failure(failure: float) -> None:
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)

"""What a plan is asked for: the vectors, the budget of bytes and the privacy that is wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.claim import Relation, Scope, Trust, Unit

__all__ = ["HEADER_BYTES", "PlanRequest"]

HEADER_BYTES = 48  # of a message, besides its cells
_MAX_DIM = 1 << 40
_MAX_COUNT = 10**9
_LEAST_NORM, _MOST_NORM = 1e-30, 1e30  # so that squares, and products of them, are numbers


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan depends on.

    Args:
        dim: Length of the vectors whose mean is wanted.
        workers: Workers that send a message in each round.
        rounds: Rounds that the target is for, all together.
        target_epsilon: The most that the rounds may cost, at `delta`.
        delta: The probability that epsilon may leave out; 0 for pure differential privacy.
        message_bytes: The most that one worker may send in one round, header included.
        unit: Whose data is protected.
        relation: Which data sets are neighbours.
        trust: Whom one is willing to trust. Methods that need less trust are considered as well.
        vector_norm: Norm that a unit's vector has: of a client, or of an example if that is the
            unit. What is longer will be clipped. Must be public: not measured on private data.
        spread: How much the vectors differ: the variance around what they have in common over
            the squared norm of what they have in common. 0 if they are all the same.
        examples: Examples of each worker, whose mean is its vector; for the unit `example` only.

    Raises:
        ArgumentError: A value is out of range, or they do not go together.

    >>> PlanRequest(dim=0, workers=10, rounds=1, target_epsilon=1.0, message_bytes=1000)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: dim must be in 1..1099511627776, got dim=0
    """

    dim: int
    workers: int
    rounds: int
    target_epsilon: float
    message_bytes: int
    delta: float = 1e-5
    unit: Unit = Unit.CLIENT
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.DISTRIBUTED
    vector_norm: float = 1.0
    spread: float = 0.0
    examples: int = 1

    def __post_init__(self) -> None:
        self._check_counts()
        scope = Scope(self.unit, self.relation, self.trust)
        for name in ("unit", "relation", "trust"):
            object.__setattr__(self, name, getattr(scope, name))
        target, norm = self.target_epsilon, self.vector_norm
        check(0 < target < math.inf, "target_epsilon", "be > 0 and finite", target)
        check(_LEAST_NORM <= norm <= _MOST_NORM, "vector_norm", "be in 1e-30..1e30", norm)
        check(0 <= self.delta < 1, "delta", "be in [0, 1)", self.delta)
        check(0 <= self.spread < math.inf, "spread", "be >= 0 and finite", self.spread)
        if self.examples != 1 and self.unit is not Unit.EXAMPLE:
            raise ArgumentError(
                f"examples must be 1 unless the unit is example, got examples={self.examples} "
                f"and unit={self.unit.value!r}"
            )

    def _check_counts(self) -> None:
        limits = {"dim": _MAX_DIM, "message_bytes": 1 << 50}
        for name in ("dim", "workers", "rounds", "message_bytes", "examples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentError(f"{name} must be an int, got {name}={value!r}")
            limit = limits.get(name, _MAX_COUNT)
            check(1 <= value <= limit, name, f"be in 1..{limit}", value)
        least = HEADER_BYTES + 4
        good = self.message_bytes >= least
        reason = f"be >= {least}, a header of {HEADER_BYTES} bytes and one number"
        check(good, "message_bytes", reason, self.message_bytes)

    @property
    def payload_bytes(self) -> int:
        """What is left of a message for its cells."""
        return self.message_bytes - HEADER_BYTES

    @property
    def units(self) -> int:
        """How many vectors the mean is over: of all workers, or of all their examples."""
        return self.workers * self.examples

    @property
    def mean_energy(self) -> float:
        """Squared norm of the mean over that of a single vector: 1 if they are all the same."""
        return (1 + self.spread / self.units) / (1 + self.spread)

"""What a plan is asked for: the vectors, who takes part, the bytes and the privacy wanted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from diffsketch.errors import ArgumentError, check, check_whole
from diffsketch.methods import Method
from diffsketch.methods.forecast import Vectors
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.claim import Epsilon, ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.sketch import SketchKey
from diffsketch.wire.formats import HEADER_BYTES

__all__ = ["SAMPLINGS", "PlanRequest"]

SAMPLINGS = ("shuffled", "uniform", "weighted", "poisson")
"""How a round's devices are drawn, by the names of `diffsketch run --sampling`."""

_MOST_DIM, _MOST_COUNT = 1 << 40, 10**9
_LEAST_NORM, _MOST_NORM = 1e-30, 1e30  # so that squares, and products of them, are numbers
_SEED = SketchKey.from_integer(0).seed(0)  # claims of the methods in plans are the same for all


@dataclass(frozen=True)
class PlanRequest:
    """Everything that a plan depends on.

    Args:
        dim: Length of the vectors whose mean is wanted.
        cohort: Clients that send a message in each round.
        rounds: Rounds of the whole run.
        target_epsilon: The most that the run may cost any client, at `delta`.
        message_bytes: The most that one client may send in one round, header included.
        population: Clients that a cohort is drawn from; None for the cohort itself.
        sampling: How it is drawn: in passes over all clients (`shuffled`), or so that a client may
            be in every round (`uniform`, `weighted`), or each on its own and in secret (`poisson`,
            for central trust and add-or-remove), which amplifies the guarantee.
        delta: The probability that epsilon may leave out; 0 for pure differential privacy.
        unit: What is protected: all data of a client, or one coordinate of a vector.
        relation: Which data sets are neighbours.
        trust: Whom one is willing to trust. Methods that need less trust are considered as well.
        vector_norm: Norm that a client's vector has. What is longer will be clipped. Must be
            public: not measured on private data.
        spread: How much the vectors differ: the variance around what they have in common over
            the squared norm of what they have in common. 0 if they are all the same.

    Raises:
        ArgumentError: A value is out of range, or they do not go together.

    >>> PlanRequest(dim=0, cohort=10, rounds=1, target_epsilon=1.0, message_bytes=1000)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: dim must be >= 1, got dim=0
    >>> devices = {"cohort": 1000, "population": 6000, "rounds": 60}
    >>> PlanRequest(dim=7850, **devices, target_epsilon=8.0, message_bytes=500).paying_rounds
    10
    """

    dim: int
    cohort: int
    rounds: int
    target_epsilon: float
    message_bytes: int
    population: int | None = None
    sampling: str = "shuffled"
    delta: float = 1e-5
    unit: Unit = Unit.CLIENT
    relation: Relation = Relation.REPLACE
    trust: Trust = Trust.DISTRIBUTED
    vector_norm: float = 1.0
    spread: float = 0.0

    def __post_init__(self) -> None:
        for name in ("dim", "cohort", "rounds", "message_bytes"):
            value, most = getattr(self, name), _MOST_COUNT
            if name in ("dim", "message_bytes"):
                most = _MOST_DIM
            check_whole(name, value, least=1)
            check(value <= most, name, f"be <= {most}", value)
        if self.population is not None:
            check_whole("population", self.population, least=self.cohort)
        least = HEADER_BYTES + 4
        reason = f"be >= {least}, a header of {HEADER_BYTES} bytes and one number"
        check(self.message_bytes >= least, "message_bytes", reason, self.message_bytes)
        scope = Scope(self.unit, self.relation, self.trust)
        for name in ("unit", "relation", "trust"):
            object.__setattr__(self, name, getattr(scope, name))
        if self.unit is Unit.EXAMPLE:
            raise ArgumentError(
                "unit must be client or coordinate, got unit='example': methods hide all data of "
                "a client, single examples among them"
            )
        target, norm = self.target_epsilon, self.vector_norm
        check(0 < target < math.inf, "target_epsilon", "be > 0 and finite", target)
        check(_LEAST_NORM <= norm <= _MOST_NORM, "vector_norm", "be in 1e-30..1e30", norm)
        check(0 <= self.delta < 1, "delta", "be in [0, 1)", self.delta)
        known = ", ".join(SAMPLINGS)
        check(self.sampling in SAMPLINGS, "sampling", f"be one of {known}", self.sampling)
        if self.sampling == "poisson":
            scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
            good = Scope(self.unit, self.relation, self.trust) == scope
            check(good, "sampling", f"not be poisson but for {scope}", self.sampling)
        _ = self.vectors  # checks the rest

    @cached_property
    def vectors(self) -> Vectors:
        """Those of one round."""
        return Vectors(self.dim, self.cohort, self.vector_norm, self.spread)

    @property
    def payload_bits(self) -> int:
        """Bits that are left of a message for its cells."""
        return 8 * (self.message_bytes - HEADER_BYTES)

    @property
    def members(self) -> int:
        """All clients that may ever take part."""
        return self.population or self.cohort

    @property
    def paying_rounds(self) -> int:
        """Rounds that a client pays for, at most.

        As `diffsketch run` counts them, but for `uniform` and `weighted`: there it looks at who is
        drawn, and here nobody is yet.
        """
        if self.sampling != "shuffled":
            return self.rounds
        return -(-self.rounds // (self.members // self.cohort))

    @property
    def sampler(self) -> PoissonSampler | None:
        """Sampler of a secret sample, if there is one."""
        if self.sampling != "poisson":
            return None
        return PoissonSampler(self.members, self.cohort / self.members)

    def total(self, method: Method) -> Epsilon | None:
        """Epsilon of the whole run, from the method's own claim; None if it is not proven."""
        claim = method.claim_for(self.cohort, _SEED)
        if not isinstance(claim, ProvenClaim):
            return None
        if self.sampler is not None:
            claim = self.sampler.amplified(claim)
        return claim.epsilon(delta=self.delta, rounds=self.paying_rounds)

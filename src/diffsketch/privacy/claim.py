"""Privacy claims as types: an epsilon with its basis, unit, relation and trust."""

from __future__ import annotations

import decimal
import math
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import ClassVar, TypeAlias

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.accounting.events import Event, check_event, is_sampled, leaves, repeated


def rounded_up(value: float, digits: int = 3) -> str:
    """The number with so many significant digits, and never less than it is.

    >>> rounded_up(3.201), rounded_up(0.1), rounded_up(12345.0), rounded_up(8.0)
    ('3.21', '0.1', '12400', '8')
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 3) -> str:
    """The number with so many significant digits, and never more than it is.

    >>> rounded_down(3.209), rounded_down(0.1), rounded_down(12345.0), rounded_down(8.0)
    ('3.2', '0.1', '12300', '8')
    """
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    context = decimal.Context(prec=digits, rounding=rounding)
    # From its shortest text: as the number that a user gave, and not a little above it.
    return f"{float(context.create_decimal(repr(float(value)))):.15g}"


class Basis(StrEnum):
    """Why one should believe it."""

    PROVEN = "proven"
    CLAIMED = "claimed"
    MEASURED = "measured"
    NONE = "none"
    """Nobody claims anything: the epsilon is infinite."""


class Unit(StrEnum):
    """What differs between two neighbouring data sets."""

    COORDINATE = "coordinate"
    EXAMPLE = "example"
    CLIENT = "client"


class Relation(StrEnum):
    """How it differs: the unit is there or not, or it has another value."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE = "replace"


class Trust(StrEnum):
    """Who may see less noise: nobody, the members of a secure sum, or the server."""

    LOCAL = "local"
    DISTRIBUTED = "distributed"
    CENTRAL = "central"


_QUESTIONS = {
    (Unit.COORDINATE, Relation.ADD_OR_REMOVE): "whether one coordinate of a vector was set to 0",
    (Unit.COORDINATE, Relation.REPLACE): "which of two values one coordinate of a vector has",
    (Unit.EXAMPLE, Relation.ADD_OR_REMOVE): "whether one training example was used",
    (Unit.EXAMPLE, Relation.REPLACE): "which of two training examples was used",
    # Who takes part is known, but for secret samples: a client that "is not there" sends zeros.
    (Unit.CLIENT, Relation.ADD_OR_REMOVE): "whether one client sends its data or zeros",
    (Unit.CLIENT, Relation.REPLACE): "which of two data sets one client holds",
}
_OF_A_SAMPLE = "whether one client took part"
_VIEWERS = {
    Trust.LOCAL: "anyone who sees a client's message",
    Trust.DISTRIBUTED: (
        "anyone who sees the secure sum of the messages, but no single message and no member's "
        "noise,"
    ),
    Trust.CENTRAL: "anyone who sees what a trusted server publishes, but no message,",
}


@dataclass(frozen=True)
class Scope:
    """What a claim is about.

    >>> print(Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL).sentence)
    how well anyone who sees a client's message can tell which of two data sets one client holds
    """

    unit: Unit
    relation: Relation
    trust: Trust

    def __post_init__(self) -> None:
        for name, kind in (("unit", Unit), ("relation", Relation), ("trust", Trust)):
            value = getattr(self, name)
            if value not in list(kind):
                options = ", ".join(kind)
                raise ArgumentError(f"{name} must be one of {options}, got {name}={value!r}")
            object.__setattr__(self, name, kind(value))

    def __str__(self) -> str:
        return f"{self.unit} unit, {self.relation}, {self.trust} trust"

    @property
    def sentence(self) -> str:
        """In words that need no glossary, for rounds whose members are known."""
        return _telling(self.trust, _QUESTIONS[self.unit, self.relation])


@dataclass(frozen=True)
class Epsilon:
    """A number that still says what it is. `float()` of it is the bare number.

    Args:
        value: Epsilon itself; infinite if nothing is limited.
        delta: The probability that is not covered.
        rounds: How many rounds it is about; 0 if nothing was released yet.
        basis: Why one should believe it.
        scope: What it is about.
        simulated: Whether the noise came from a seed, or is on real numbers: then it says what
            exact noise would guarantee, and nothing of the numbers at hand.
    """

    value: float
    delta: float
    rounds: int
    basis: Basis
    scope: Scope
    simulated: bool = False

    def __post_init__(self) -> None:
        check(self.value >= 0, "value", "be >= 0", self.value)
        check(0 <= self.delta < 1, "delta", "be in [0, 1)", self.delta)
        _check_rounds(self.rounds, least=0)
        _check_type("scope", self.scope, Scope)
        check(self.basis in list(Basis), "basis", f"be one of {', '.join(Basis)}", self.basis)
        object.__setattr__(self, "basis", Basis(self.basis))

    def __float__(self) -> float:
        return float(self.value)

    @property
    def basis_text(self) -> str:
        """The basis as it is printed: `proven, simulated` where noise came from a seed."""
        return f"{self.basis}, simulated" if self.simulated else str(self.basis)

    def shown(self, digits: int = 3) -> str:
        """The bare number in so many digits: an upper bound rounded up, a measured one down.

        Guarantees (`tests/privacy/test_digits.py`): what is shown follows from what is known.

        >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
        >>> Epsilon(7.981, 1e-5, 100, Basis.PROVEN, scope).shown()
        '7.99'
        >>> Epsilon(7.989, 1e-5, 100, Basis.MEASURED, scope).shown()
        '7.98'
        """
        if math.isinf(self.value):
            return "inf"
        rounded = rounded_down if self.basis is Basis.MEASURED else rounded_up
        return rounded(self.value, digits)

    def __str__(self) -> str:
        sign = ">=" if self.basis is Basis.MEASURED else "="
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds:,} rounds"
        return (
            f"epsilon {sign} {self.shown(4)} at delta = {self.delta:g} over {rounds} "
            f"({self.basis_text}; {self.scope})"
        )


@dataclass(frozen=True)
class ProvenClaim:
    """A theorem that holds: the event of one round, which accountants compose.

    Args:
        scope: What it is about.
        event: What one round does, made by `diffsketch.privacy.accounting.events`.
        mechanism: What limits the leak, in words: "Gaussian noise of ...".

    Raises:
        ArgumentError: The event is not one of ours, or is sampled where sampling gains nothing:
            whoever sees single messages sees who sends one, a secure sum lacks the noise of those
            who are not drawn, and the gain is known for a unit that is there or not, not for one
            that is replaced.

    >>> from diffsketch.privacy.accounting import events
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> print(claim.epsilon(delta=1e-5, rounds=10))
    epsilon = 7.512 at delta = 1e-05 over 10 rounds (proven; client unit, replace, central trust)
    """

    scope: Scope
    event: Event
    mechanism: str
    basis: ClassVar[Basis] = Basis.PROVEN

    def __post_init__(self) -> None:
        _check_type("scope", self.scope, Scope)
        _check_text("mechanism", self.mechanism)
        check_event(self.event)
        check(any(True for _ in leaves(self.event)), "event", "do something", self.event)
        if is_sampled(self.event):
            scope = self.scope
            check(scope.trust is Trust.CENTRAL, "trust", "be central if sampled", scope.trust)
            added = scope.relation is Relation.ADD_OR_REMOVE
            check(added, "relation", "be add-or-remove if sampled", scope.relation)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The epsilon of so many rounds, composed."""
        _check_rounds(rounds)
        value = epsilon_for(repeated(self.event, rounds), delta)
        return Epsilon(value, delta, rounds, self.basis, self.scope)

    def __str__(self) -> str:
        sentence = self.scope.sentence
        if is_sampled(self.event) and self.scope.unit is Unit.CLIENT:
            sentence = _telling(self.scope.trust, _OF_A_SAMPLE)
        return f"Proven: {self.mechanism} limits {sentence}."


@dataclass(frozen=True)
class SimulatedClaim(ProvenClaim):
    """Guarantee of a round if its noise were exact, while it is not.

    Noise from a seed is known to whoever has the seed, and noise on real numbers is rounded, which
    gives values away: so this can be computed, shown and composed in a simulation, and nothing that
    sends accepts it. `of` makes it from a claim about exact noise.
    """

    @classmethod
    def of(cls, claim: Claim) -> Claim:
        """A proven claim as a simulated one; any other claim as it is."""
        if type(claim) is not ProvenClaim:
            return claim
        return cls(claim.scope, claim.event, claim.mechanism)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The epsilon of so many rounds with exact noise, marked as simulated."""
        return replace(super().epsilon(delta=delta, rounds=rounds), simulated=True)

    def __str__(self) -> str:
        return f"Simulated noise. With exact noise: {super().__str__()}"


@dataclass(frozen=True)
class PaperClaim:
    """An epsilon that a paper claims for one round without a proof that holds. No guarantee.

    Args:
        scope: What it is about.
        per_round: The claimed number, for one round.
        source: Who claims it.
    """

    scope: Scope
    per_round: Epsilon
    source: str
    basis: ClassVar[Basis] = Basis.CLAIMED

    def __post_init__(self) -> None:
        _check_type("scope", self.scope, Scope)
        _check_text("source", self.source)
        _check_number("per_round", self.per_round, self.basis, self.scope)
        rounds = self.per_round.rounds
        check(rounds == 1, "per_round", "be about 1 round", rounds)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The claim, for one round: it says nothing about several."""
        _check_rounds(rounds)
        least = self.per_round.delta
        check(least <= delta < 1, "delta", f"be in [{least:g}, 1)", delta)
        check(rounds == 1, "rounds", "be 1, since a claim without proof does not compose", rounds)
        return Epsilon(float(self.per_round), delta, rounds, self.basis, self.scope)

    def __str__(self) -> str:
        delta = f" at delta = {self.per_round.delta:g}" if self.per_round.delta > 0 else ""
        return (
            f"Claimed, not proven: {self.source} says that epsilon = {self.per_round.shown(4)}"
            f"{delta} per round limits {self.scope.sentence}; its proof does not hold, so this is "
            "no guarantee."
        )


@dataclass(frozen=True)
class MeasuredClaim:
    """What an attack achieved: the true epsilon is at least this, with so much confidence.

    Args:
        scope: What it is about.
        lower_bound: The least epsilon that fits what was seen.
        confidence: The probability that such an experiment gives a bound that is true.
        attack: What was done, in words: "an attack that ...".
    """

    scope: Scope
    lower_bound: Epsilon
    confidence: float
    attack: str
    basis: ClassVar[Basis] = Basis.MEASURED

    def __post_init__(self) -> None:
        _check_type("scope", self.scope, Scope)
        _check_text("attack", self.attack)
        check(0 < self.confidence < 1, "confidence", "be in (0, 1)", self.confidence)
        _check_number("lower_bound", self.lower_bound, self.basis, self.scope)
        check(self.lower_bound.rounds >= 1, "lower_bound", "be about some round", self.lower_bound)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The bound, for the delta and the rounds that it was measured at."""
        check(delta == self.lower_bound.delta, "delta", f"be {self.lower_bound.delta}", delta)
        check(rounds == self.lower_bound.rounds, "rounds", f"be {self.lower_bound.rounds}", rounds)
        return self.lower_bound

    def __str__(self) -> str:
        bound, rounds = self.lower_bound, self.lower_bound.rounds
        after = "1 round" if rounds == 1 else f"{rounds:,} rounds"
        return (
            f"Measured: {self.attack} shows with {self.confidence:.4g} confidence that after "
            f"{after} no epsilon below {bound.shown(4)} (at delta = {bound.delta:g}) describes "
            f"{self.scope.sentence}."
        )


@dataclass(frozen=True)
class NoClaim:
    """Nothing can be said, and why. A value, so that a training run can go on and report it."""

    scope: Scope
    reason: str
    basis: ClassVar[Basis] = Basis.NONE

    def __post_init__(self) -> None:
        _check_type("scope", self.scope, Scope)
        _check_text("reason", self.reason)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """Infinite: whatever the data is, it may be told."""
        _check_rounds(rounds)
        return Epsilon(math.inf, delta, rounds, self.basis, self.scope)

    def __str__(self) -> str:
        return f"No claim: {self.reason}, so nothing limits {self.scope.sentence}."


Claim: TypeAlias = ProvenClaim | PaperClaim | MeasuredClaim | NoClaim


def _telling(trust: Trust, question: str) -> str:
    return f"how well {_VIEWERS[trust]} can tell {question}"


def _check_rounds(rounds: int, *, least: int = 1) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise ArgumentError(f"rounds must be an int, got {type(rounds).__name__}")
    check(rounds >= least, "rounds", f"be >= {least}", rounds)


def _check_type(name: str, value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise ArgumentError(f"{name} must be of type {kind.__name__}, got {name}={value!r}")


def _check_text(name: str, value: str) -> None:
    _check_type(name, value, str)
    check(bool(value.strip()), name, "not be empty", value)


def _check_number(name: str, value: Epsilon, basis: Basis, scope: Scope) -> None:
    """A number inside a claim must not say other words than the claim does."""
    _check_type(name, value, Epsilon)
    check(value.basis is basis, name, f"have the basis {basis}", value.basis)
    check(value.scope == scope, name, f"be about {scope}", value.scope)

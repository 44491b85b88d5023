"""Privacy claims as types: an epsilon with its basis, unit, relation and trust.

An epsilon means nothing without four terms: its *basis* (a theorem that holds, a claim that may
not, or a measurement), the *unit* that it protects, the *relation* of the data sets that it
compares, and whom one has to *trust*. A `Claim` carries them, and hands out an `Epsilon` that
carries them too. `Epsilon` is the one place where an epsilon becomes text.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Literal, TypeAlias

from diffsketch.errors import (
    ArgumentError,
    check,
    check_choice,
    check_delta,
    check_type,
    check_whole,
)
from diffsketch.privacy.accounting import events


def rounded_up(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, never below its value.

    >>> rounded_up(3.201), rounded_up(0.1), rounded_up(12345.0), rounded_up(8.0)
    ('3.21', '0.1', '12400', '8')
    """
    return _rounded(value, digits, decimal.ROUND_CEILING)


def rounded_down(value: float, digits: int = 3) -> str:
    """Format a number with `digits` significant digits, never above its value."""
    return _rounded(value, digits, decimal.ROUND_FLOOR)


def _rounded(value: float, digits: int, rounding: str) -> str:
    context = decimal.Context(prec=digits, rounding=rounding)
    # From its shortest text: as the number that a user gave, and not a little above it.
    return f"{float(context.create_decimal(repr(float(value)))):.15g}"


class Basis(StrEnum):
    """Reason to believe an epsilon."""

    PROVEN = "proven"
    CLAIMED = "claimed"
    MEASURED = "measured"
    NONE = "none"  # nobody claims anything: the epsilon is infinite


class Unit(StrEnum):
    """Part in which two neighbouring data sets differ."""

    COORDINATE = "coordinate"
    EXAMPLE = "example"
    PERSON = "person"  # all records of one person in one party's data
    CLIENT = "client"


class Relation(StrEnum):
    """Kind of difference: the unit is there or not, or it has another value."""

    ADD_OR_REMOVE = "add-or-remove"
    REPLACE = "replace"

    @property
    def values(self) -> int:
        """Values that differ: one and another, 2, or one and nothing, 1."""
        return 2 if self is Relation.REPLACE else 1


class Trust(StrEnum):
    """Parties that must be trusted: nobody, the members of a secure sum, or the server."""

    LOCAL = "local"
    DISTRIBUTED = "distributed"
    CENTRAL = "central"


# Settings take names as well as members: `trust="central"`.
UnitName: TypeAlias = Unit | Literal["coordinate", "example", "person", "client"]
RelationName: TypeAlias = Relation | Literal["add-or-remove", "replace"]
TrustName: TypeAlias = Trust | Literal["local", "distributed", "central"]

_QUESTIONS = {
    (Unit.COORDINATE, Relation.ADD_OR_REMOVE): "whether one coordinate of a vector was set to 0",
    (Unit.COORDINATE, Relation.REPLACE): "which of two values one coordinate of a vector has",
    (Unit.EXAMPLE, Relation.ADD_OR_REMOVE): "whether one training example was used",
    (Unit.EXAMPLE, Relation.REPLACE): "which of two training examples was used",
    (Unit.PERSON, Relation.ADD_OR_REMOVE): "whether one person's records were used",
    (Unit.PERSON, Relation.REPLACE): "which of two persons' records were used",
    # Who takes part is known, but for secret samples: a client that "is not there" sends zeros.
    (Unit.CLIENT, Relation.ADD_OR_REMOVE): "whether one client sends its data or zeros",
    (Unit.CLIENT, Relation.REPLACE): "which of two data sets one client holds",
}
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
    """Unit, relation and trust: the scope of a claim.

    >>> print(Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL).sentence)
    how well anyone who sees a client's message can tell which of two data sets one client holds
    """

    unit: Unit
    relation: Relation
    trust: Trust

    def __init__(self, unit: UnitName, relation: RelationName, trust: TrustName) -> None:
        object.__setattr__(self, "unit", check_choice("unit", unit, Unit))
        object.__setattr__(self, "relation", check_choice("relation", relation, Relation))
        object.__setattr__(self, "trust", check_choice("trust", trust, Trust))

    def __str__(self) -> str:
        return f"{self.unit} unit, {self.relation}, {self.trust} trust"

    @property
    def short(self) -> str:
        """The three terms alone: `client, replace, local`."""
        return f"{self.unit}, {self.relation}, {self.trust}"

    @property
    def viewers(self) -> str:
        """The viewers that the claim limits, without terms of the field."""
        return _VIEWERS[self.trust]

    @property
    def sentence(self) -> str:
        """The scope without terms of the field, for rounds whose participants are known."""
        return f"how well {self.viewers} can tell {_QUESTIONS[self.unit, self.relation]}"


def check_samplable(scope: Scope) -> None:
    """Raise an `ArgumentError` unless a secret sample is known to help a claim of this scope.

    A message shows which client sends it, and a secure sum lacks the noise of clients that were not
    drawn: so samples of clients help under central trust alone. Records are drawn by the party that
    holds them, which sends a message with all of its noise whomever it draws.
    """
    records = scope.unit in (Unit.EXAMPLE, Unit.PERSON)
    hidden = records or scope.trust is Trust.CENTRAL
    check(hidden, "trust", "be central for a sample of clients", scope.trust)
    added = scope.relation is Relation.ADD_OR_REMOVE
    check(added, "relation", "be add-or-remove for a sample", scope.relation)


Style: TypeAlias = Literal["plain", "symbols", "short"]


@dataclass(frozen=True)
class Epsilon:
    """A number that still says what it is. `float()` of it is the bare number.

    Text of any length comes from here, rounded to the side that stays true: `str()` and `text` in
    full, `quantity` and `terms` for its two halves, `shown` for the bare number.

    Args:
        value: Epsilon itself; infinite if nothing is limited.
        delta: The probability that is not covered.
        rounds: Number of rounds that it is about; 0 if nothing was released yet.
        basis: Why one should believe it.
        scope: Unit, relation and trust.
        simulated: Whether the noise came from a seed, or is on real numbers: then it says what
            exact noise would guarantee, and nothing of the numbers at hand.
        doors: What is sent without noise beside the releases that the number is about.

    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    >>> epsilon = Epsilon(7.9812, 1e-5, 100, Basis.PROVEN, scope)
    >>> print(epsilon)
    epsilon = 7.982 at delta = 1e-05 over 100 rounds (proven; client unit, replace, central trust)
    >>> epsilon.text("symbols")
    'ε = 7.99 at δ = 1e-05 over 100 rounds (proven; client unit, replace, central trust)'
    >>> epsilon.text("short")
    'epsilon 7.99 (delta 1e-05; proven; client, replace, central)'
    >>> Epsilon(7.9892, 1e-5, 100, Basis.MEASURED, scope).shown()
    '7.98'
    """

    value: float
    delta: float
    rounds: int
    basis: Basis
    scope: Scope
    simulated: bool = False
    doors: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check(self.value >= 0, "value", "be >= 0", self.value)
        check_delta(self.delta)
        check_whole("rounds", self.rounds, least=0)
        check_type("scope", self.scope, Scope)
        object.__setattr__(self, "basis", check_choice("basis", self.basis, Basis))

    def __float__(self) -> float:
        return float(self.value)

    def __str__(self) -> str:
        return self.text(digits=4)

    def text(self, style: Style = "plain", *, digits: int = 3, quantity: str = "") -> str:
        """The epsilon in full: numbers, basis, unit, relation, trust.

        Args:
            style: `plain`, `symbols` (Greek letters, for pages) or `short` (for a terminal line).
            digits: Significant digits of the number.
            quantity: Text in place of the numbers, where there are none for the whole.

        >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        >>> Epsilon(1.0, 1e-5, 1, Basis.CLAIMED, scope).text("short")
        'epsilon 1 per round (delta 1e-05; claimed; client, replace, local)'
        >>> Epsilon(math.inf, 1e-5, 100, Basis.PROVEN, scope).text("short")
        'proven per round, nothing over 100 rounds (delta 1e-05; client, replace, local)'
        """
        if style != "short":
            return f"{quantity or self.quantity(style, digits=digits)} ({self.terms(style)})"
        # An infinite number would read like a failed computation.
        if self.basis is Basis.NONE:
            return "no claim"
        if math.isinf(self.value):
            what = f"{self.basis_text} per round, nothing over {self.rounds_text}"
            return f"{what} (delta {self.delta:g}; {self.scope.short})"
        times = " per round" if self.basis is Basis.CLAIMED and not self.doors else ""
        terms = f"(delta {self.delta:g}; {self.terms(style)})"
        return f"epsilon {self.shown(digits)}{times} {terms}"

    def quantity(self, style: Literal["plain", "symbols"] = "plain", *, digits: int = 3) -> str:
        """The half of it that is numbers: value, delta and rounds.

        >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
        >>> Epsilon(1.0, 0.0, 1, Basis.CLAIMED, scope).quantity("symbols")
        'ε = 1 per round'
        >>> Epsilon(2.5, 0.0, 1, Basis.MEASURED, scope).quantity("symbols")
        'ε ≥ 2.5 after 1 round'
        """
        # A measurement bounds epsilon from below, everything else from above.
        measured, shown = self.basis is Basis.MEASURED, self.shown(digits)
        if style == "plain":
            sign = ">=" if measured else "="
            return f"epsilon {sign} {shown} at delta = {self.delta:g} over {self.rounds_text}"
        if self.basis is Basis.NONE:
            return "ε unlimited"
        value = "unlimited" if math.isinf(self.value) else f"{'≥' if measured else '='} {shown}"
        delta = f" at δ = {self.delta:g}" if self.delta > 0 else ""
        when = f"{'after' if measured else 'over'} {self.rounds_text}"
        return f"ε {value}{delta} {'per round' if self.rounds == 1 and not measured else when}"

    @property
    def rounds_text(self) -> str:
        """The rounds as they are printed."""
        return "1 round" if self.rounds == 1 else f"{self.rounds:,} rounds"

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data, which `from_json` reads; an infinite value becomes null."""
        return {
            "value": float(self) if math.isfinite(self.value) else None,
            "delta": self.delta,
            "basis": str(self.basis),
            **{name: str(term) for name, term in asdict(self.scope).items()},
            "rounds": self.rounds,
            "simulated": self.simulated,
            **({"doors": list(self.doors)} if self.doors else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Epsilon:
        """Read what `to_json` wrote."""
        return cls(
            value=math.inf if data["value"] is None else data["value"],
            delta=data["delta"],
            rounds=data["rounds"],
            basis=Basis(data["basis"]),
            scope=Scope(data["unit"], data["relation"], data["trust"]),
            simulated=data["simulated"],
            doors=tuple(data.get("doors", ())),
        )

    def terms(self, style: Style = "plain") -> str:
        """The half of it that is terms: basis; unit, relation, trust."""
        return f"{self.basis_text}; {self.scope.short if style == 'short' else self.scope}"

    @property
    def basis_text(self) -> str:
        """The basis as it is printed: `proven, simulated` where noise came from a seed.

        Where a door was opened: `claimed, without evaluation`, for example.
        """
        if self.basis is Basis.NONE:
            return "no claim"
        without = f", without {' and '.join(self.doors)}" if self.doors else ""
        return f"{self.basis}{', simulated' if self.simulated else ''}{without}"

    def shown(self, digits: int = 3) -> str:
        """Format the bare number in `digits` digits: upper bounds rounded up, measured ones down.

        Guarantees (`tests/privacy/test_claim.py`): the text follows from what is known.
        """
        if math.isinf(self.value):
            return "inf"
        rounded = rounded_down if self.basis is Basis.MEASURED else rounded_up
        return rounded(self.value, digits)


@dataclass(frozen=True)
class ProvenClaim:
    """A theorem that holds: the event of one round, which accountants compose.

    Args:
        scope: Unit, relation and trust.
        event: One round, made by `diffsketch.privacy.accounting.events`.
        mechanism: Description of what limits the leak: "Gaussian noise of ...".

    Raises:
        ArgumentError: The event is not one of ours, or is sampled where sampling gains nothing
            that is proven (`PoissonSampler.amplified`).

    >>> from diffsketch.privacy.accounting import events
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> print(claim.epsilon(delta=1e-5, rounds=10))
    epsilon = 7.512 at delta = 1e-05 over 10 rounds (proven; client unit, replace, central trust)
    """

    scope: Scope
    event: events.Event
    mechanism: str
    basis: ClassVar[Basis] = Basis.PROVEN
    noise_is_proven: ClassVar[bool] = True  # of the messages, whatever else is sent beside them

    def __post_init__(self) -> None:
        _check_parts(self, "mechanism")
        events.check_event(self.event)
        # An empty composition would claim an epsilon of 0 for whatever is sent.
        check(any(True for _ in events.leaves(self.event)), "event", "do something", self.event)
        if events.is_sampled(self.event):
            check_samplable(self.scope)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """Compose `rounds` rounds to one epsilon."""
        check_whole("rounds", rounds, least=1)
        total = events.repeated(self.event, rounds)
        return self.stated(events.epsilon_for(total, delta), delta, rounds)

    def stated(self, value: float, delta: float, rounds: int) -> Epsilon:
        """An epsilon that was computed for rounds of which this is the weakest claim."""
        return Epsilon(value, delta, rounds, self.basis, self.scope)

    def __str__(self) -> str:
        sentence = self.scope.sentence
        if events.is_sampled(self.event) and self.scope.unit is Unit.CLIENT:
            sentence = f"how well {self.scope.viewers} can tell whether one client took part"
        return f"Proven: {self.mechanism} limits {sentence}."


@dataclass(frozen=True)
class SimulatedClaim(ProvenClaim):
    """Guarantee of a round if its noise were exact, while it is not.

    Noise from a seed is known to whoever has the seed, and noise on real numbers is rounded, which
    gives values away: so this can be shown and composed in a simulation, and nothing that sends
    accepts it.
    """

    @classmethod
    def of(cls, claim: Claim) -> Claim:
        """A proven claim as a simulated one; any other claim as it is."""
        if type(claim) is not ProvenClaim:
            return claim
        return cls(claim.scope, claim.event, claim.mechanism)

    def stated(self, value: float, delta: float, rounds: int) -> Epsilon:
        """An epsilon that exact noise would have, marked as simulated."""
        return replace(super().stated(value, delta, rounds), simulated=True)

    def __str__(self) -> str:
        return f"Simulated noise. With exact noise: {super().__str__()}"


@dataclass(frozen=True)
class OpenClaim(ProvenClaim):
    """Guarantee of the messages alone, where something else is sent beside them, without noise.

    A user has opened these doors, by name. The messages have the noise of the proven claim and are
    counted and composed like it; but nobody can say what all that is sent tells, so the basis is
    `claimed`, and every epsilon names the doors.

    Args:
        doors: What is sent beside the messages: "evaluation", "metrics".

    >>> from diffsketch.privacy.accounting import events
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    >>> claim = OpenClaim(scope, events.gaussian(2.0), "Gaussian noise", ("evaluation",))
    >>> print(claim.epsilon(delta=1e-5, rounds=10).text("short"))
    epsilon 7.52 (delta 1e-05; claimed, without evaluation; client, replace, local)
    """

    doors: tuple[str, ...] = ()
    basis: ClassVar[Basis] = Basis.CLAIMED

    def __post_init__(self) -> None:
        super().__post_init__()
        check(bool(self.doors), "doors", "name what is sent beside the messages", self.doors)

    def with_doors(self, doors: Iterable[str]) -> OpenClaim:
        """The same claim with these doors open as well."""
        return replace(self, doors=tuple(sorted({*self.doors, *doors})))

    def stated(self, value: float, delta: float, rounds: int) -> Epsilon:
        """An epsilon of the messages alone, which names the doors."""
        return replace(super().stated(value, delta, rounds), doors=self.doors)

    def __str__(self) -> str:
        return (
            f"Claimed for the messages alone, as {' and '.join(self.doors)} leaves without noise, "
            f"of which nothing can be said. {super().__str__()}"
        )


@dataclass(frozen=True)
class PaperClaim:
    """An epsilon that a paper claims for one round without a proof that holds. No guarantee.

    Args:
        scope: Unit, relation and trust.
        per_round: The claimed number, for one round.
        source: Who claims it.
    """

    scope: Scope
    per_round: Epsilon
    source: str
    basis: ClassVar[Basis] = Basis.CLAIMED
    noise_is_proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_parts(self, "source", "per_round")
        rounds = self.per_round.rounds
        check(rounds == 1, "per_round", "be about 1 round", rounds)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The claim, for one round: it says nothing about several."""
        check_whole("rounds", rounds, least=1)
        check_delta(delta)
        # A claim at some delta holds at every larger one, and says nothing about a smaller one.
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
    """Result of an attack: the true epsilon is at least this, with a stated confidence.

    Args:
        scope: Unit, relation and trust.
        lower_bound: The least epsilon that fits what was seen.
        confidence: The probability that such an experiment gives a bound that is true.
        attack: Description of it: "an attack that ...".
    """

    scope: Scope
    lower_bound: Epsilon
    confidence: float
    attack: str
    basis: ClassVar[Basis] = Basis.MEASURED
    noise_is_proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_parts(self, "attack", "lower_bound")
        check(0 < self.confidence < 1, "confidence", "be in (0, 1)", self.confidence)
        check(self.lower_bound.rounds >= 1, "lower_bound", "be about some round", self.lower_bound)

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """The bound, for the delta and the rounds that it was measured at."""
        check(delta == self.lower_bound.delta, "delta", f"be {self.lower_bound.delta}", delta)
        check(rounds == self.lower_bound.rounds, "rounds", f"be {self.lower_bound.rounds}", rounds)
        return self.lower_bound

    def __str__(self) -> str:
        bound = self.lower_bound
        return (
            f"Measured: {self.attack} shows with {self.confidence:.4g} confidence that after "
            f"{bound.rounds_text} no epsilon below {bound.shown(4)} (at delta = {bound.delta:g}) "
            f"describes {self.scope.sentence}."
        )


@dataclass(frozen=True)
class NoClaim:
    """Nothing can be said, and why. A value, so that a training run can go on and report it."""

    scope: Scope
    reason: str
    basis: ClassVar[Basis] = Basis.NONE
    noise_is_proven: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_parts(self, "reason")

    def epsilon(self, *, delta: float, rounds: int) -> Epsilon:
        """Infinite: whatever the data is, it may be told."""
        check_whole("rounds", rounds, least=1)
        return Epsilon(math.inf, delta, rounds, self.basis, self.scope)

    def __str__(self) -> str:
        return f"No claim: {self.reason}, so nothing limits {self.scope.sentence}."


Claim: TypeAlias = ProvenClaim | PaperClaim | MeasuredClaim | NoClaim


def _check_parts(claim: Claim, text: str, number: str | None = None) -> None:
    """Raise unless a claim's scope, text and number (of its basis and scope) are in order."""
    check_type("scope", claim.scope, Scope)
    check_type(text, getattr(claim, text), str)
    check(bool(getattr(claim, text).strip()), text, "not be empty", getattr(claim, text))
    if number is not None:
        value = getattr(claim, number)
        check_type(number, value, Epsilon)
        check(value.basis is claim.basis, number, f"have the basis {claim.basis}", value.basis)
        check(value.scope == claim.scope, number, f"be about {claim.scope}", value.scope)


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """The claim of a mechanism as plain data; `claim_from_json` is its inverse."""
    scope = claim.scope
    data: dict[str, Any] = {"scope": [str(scope.unit), str(scope.relation), str(scope.trust)]}
    if isinstance(claim, ProvenClaim):
        data |= {"event": events.to_json(claim.event), "mechanism": claim.mechanism}
        if isinstance(claim, SimulatedClaim):
            data["simulated"] = True
        if isinstance(claim, OpenClaim):
            data["doors"] = list(claim.doors)
        return data
    if isinstance(claim, PaperClaim):
        number = claim.per_round
        return {**data, "epsilon": float(number), "delta": number.delta, "source": claim.source}
    if isinstance(claim, NoClaim):
        return {**data, "reason": claim.reason}
    raise ArgumentError(f"claim must be of a mechanism, not {claim.basis}, got {claim}")


def claim_from_json(data: Mapping[str, Any]) -> Claim:
    """The claim that `claim_to_json` wrote, checked as if it were made anew."""
    try:
        # What is left in `fields` is passed on, so an unknown key is a TypeError.
        fields = dict(data)
        scope = Scope(*fields.pop("scope"))
        if "event" in fields:
            fields["event"] = events.from_json(fields["event"])
            if "doors" in fields:
                return OpenClaim(scope, **{**fields, "doors": tuple(fields["doors"])})
            # Written only where it is true.
            simulated = fields.pop("simulated", False)
            return (SimulatedClaim if simulated else ProvenClaim)(scope, **fields)
        if "source" in fields:
            number = Epsilon(fields["epsilon"], fields["delta"], 1, Basis.CLAIMED, scope)
            return PaperClaim(scope, number, fields["source"])
        return NoClaim(scope, **fields)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"data must describe a claim, got {data!r} ({error!r})") from None

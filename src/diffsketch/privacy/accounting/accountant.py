"""Accountants: privacy spent over rounds, and a hard stop at a budget.

Only proven claims can be spent: they are about events, and events compose. All rounds of one
accountant are about the same unit, relation and trust.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from diffsketch.errors import (
    ArgumentError,
    DiffSketchError,
    MismatchError,
    check,
    check_positive,
    check_type,
)
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for, no_better
from diffsketch.privacy.claim import Basis, Epsilon, ProvenClaim, Scope, SimulatedClaim

_Key: TypeAlias = tuple[tuple[events.Leaf, int], ...]  # an event's leaves
_Rounds: TypeAlias = tuple[events.Event, int]
_MOST_ROUNDS = 10**6
_ALIKE = 1.02  # ratio of the noise of events that may share a reserve


class Lookahead:
    """Reserves rounds ahead, as many as were spent, and hands them out one by one.

    What was spent and what is reserved, composed, are within the budget: so is all that is taken
    from the reserve. All kinds of rounds are reserved at once, in proportion to what was spent of
    them: rounds that go on as before are composed when their number has doubled, however many
    kinds there are. When that is too much it is a smaller share of them; when no more can be
    reserved, the very rounds that are asked for decide. Events that are nearly alike share what is
    reserved for a slightly less private one, so that rounds that all differ a little are not
    composed one by one either.
    """

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon, self._delta = epsilon, delta
        self._reserve: Counter[_Key] = Counter()
        self._share = 1.0  # of what was spent, to be reserved next
        self._alike: dict[_Key, _Key] = {}  # by key, so as not to be computed again

    def admits(
        self, event: events.Event, rounds: int, *, spent: Callable[[], Iterable[_Rounds]]
    ) -> bool:
        """Whether the rounds fit; if so they count as spent from now on.

        Args:
            event: Event of one of them.
            rounds: Their number.
            spent: Gives the events so far and their rounds; called only if need be.
        """
        if self.takes(event, rounds):
            return True
        total = _counted([*spent(), (event, rounds)])
        self._reserve.clear()
        groups = self._groups(total, tuple(events.leaves(event)))
        while reserve := {key: n for key in groups if (n := int(self._share * groups[key]))}:
            if self._total(total + Counter(reserve)) <= self._epsilon:
                self._reserve.update(reserve)
                self._share = min(1.0, 2 * self._share)
                return True
            self._share /= 4
        self._share *= 4
        return self._total(total) <= self._epsilon

    def takes(self, event: events.Event, rounds: int) -> bool:
        """Whether the rounds were reserved; if so they count as spent from now on."""
        exact = tuple(events.leaves(event))
        for key in (exact, self._alike_to(exact)):
            if self._reserve[key] >= rounds:
                self._reserve[key] -= rounds
                return True
        return False

    def most(self, event: events.Event, *, spent: Iterable[_Rounds]) -> int:
        """Number of such rounds that fit, up to a million."""
        known, key = _counted(spent), tuple(events.leaves(event))
        return _last_within(lambda n: self._total(known + Counter({key: n})), self._epsilon)

    def copy(self) -> Lookahead:
        """Another one in the same state."""
        other = Lookahead(self._epsilon, self._delta)
        other._reserve, other._share = self._reserve.copy(), self._share
        other._alike = self._alike  # the same for all
        return other

    def _alike_to(self, key: _Key) -> _Key:
        """The key of a slightly less private event, which others have as well."""
        if key not in self._alike:
            self._alike[key] = tuple((no_better(leaf, _ALIKE), count) for leaf, count in key)
        return self._alike[key]

    def _groups(self, total: Counter[_Key], asked: _Key) -> dict[_Key, float]:
        """Rounds that are alike, taken together.

        What is asked for counts as if there had been as many as of others: it may be what is to
        come.
        """
        groups: dict[_Key, list[_Key]] = {}
        for key in total:
            groups.setdefault(self._alike_to(key), []).append(key)
        found: dict[_Key, float] = {}
        for alike, keys in groups.items():
            least = total.total() / len(groups) if alike == self._alike_to(asked) else 0
            rounds = max(least, sum(total[key] for key in keys))
            found[keys[0] if len(keys) == 1 else alike] = rounds
        return found

    def _total(self, rounds: Counter[_Key]) -> float:
        parts = [(leaf, count * n) for key, n in rounds.items() for leaf, count in key]
        return epsilon_for(_composed(parts), self._delta)


def _composed(rounds: Iterable[_Rounds]) -> events.Event:
    return events.composed(*(events.repeated(event, count) for event, count in rounds))


def _counted(rounds: Iterable[_Rounds]) -> Counter[_Key]:
    total: Counter[_Key] = Counter()
    for event, count in rounds:
        total[tuple(events.leaves(event))] += count
    return total


def _last_within(total: Callable[[int], float], limit: float) -> int:
    """The largest number of rounds, up to a million, whose total is within the limit.

    Totals are nearly powers of the number of rounds, which makes a good guess; every other step
    halves the range in any case.
    """
    least, most, low, high = 0, 1, 0.0, total(1)
    while high <= limit:
        if most == _MOST_ROUNDS:
            return most
        least, low = most, high
        most = min(8 * most, _MOST_ROUNDS)
        high = total(most)
    halve = False
    while most - least > 1:
        guess = (least + most) // 2
        if not halve and 0 < low < high < math.inf:
            share = math.log(limit / low) / math.log(high / low)
            guess = round(least * (most / least) ** share)
        guess = min(max(guess, least + 1), most - 1)
        value = total(guess)
        halve = not halve
        if value <= limit:
            least, low = guess, value
        else:
            most, high = guess, value
    return least


class BudgetExceeded(DiffSketchError):  # noqa: N818 - it says what happened
    """A round was not spent, since more than the budget would have been. Do not release it."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent.

    Args:
        epsilon: The most for all rounds together.
        delta: The probability that it need not cover.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check(0 <= self.delta < 1, "delta", "be in [0, 1)", self.delta)


@dataclass(frozen=True)
class Spending:
    """Rounds that did the same, whenever they were."""

    claim: ProvenClaim
    rounds: int

    def __post_init__(self) -> None:
        events.repeated(self.claim.event, self.rounds)  # checks the number

    @property
    def kind(self) -> str:
        """The claim as JSON text: the same for equal claims, and only for those."""
        data = {"event": events.to_json(self.claim.event), "mechanism": self.claim.mechanism}
        return json.dumps(data, sort_keys=True, separators=(",", ":"))


class Accountant:
    """Adds up the rounds of proven mechanisms, however different they are.

    Guarantees: the epsilon is never below that of the composed rounds
    (`tests/privacy/test_composition.py`); no sequence of calls spends more than the budget
    (`tests/privacy/test_accounting.py`). A crash forgets it: for that there is `Ledger`.

    Args:
        scope: Scope that all claims must have.
        budget: Where to stop; if there is none, it only counts.

    >>> from diffsketch.privacy.claim import Relation, Trust, Unit
    >>> scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    >>> accountant = Accountant(scope, Budget(epsilon=8.0, delta=1e-5))
    >>> claim = ProvenClaim(scope, events.gaussian(2.0), "Gaussian noise")
    >>> accountant.spend(claim, rounds=10)
    >>> print(accountant.epsilon(delta=1e-5))
    epsilon = 7.512 at delta = 1e-05 over 10 rounds (proven; client unit, replace, local trust)
    >>> accountant.rounds_left(claim)
    1
    """

    def __init__(self, scope: Scope, budget: Budget | None = None) -> None:
        check_type("scope", scope, Scope)
        self._scope, self._budget = scope, budget
        self._spent: dict[str, Spending] = {}  # by kind: composition knows no order
        self._lookahead = None if budget is None else Lookahead(budget.epsilon, budget.delta)
        self._watched = budget is not None  # whether the budget was there for every round

    @classmethod
    def restored(cls, scope: Scope, budget: Budget | None, spent: Iterable[Spending]) -> Accountant:
        """One that has spent this before, within the budget or not."""
        accountant = cls(scope, budget)
        accountant._watched = False
        for item in spent:
            accountant._check(item.claim)
            accountant._record(item)
        return accountant

    @property
    def scope(self) -> Scope:
        """The unit, relation and trust that all claims are about."""
        return self._scope

    @property
    def budget(self) -> Budget | None:
        """The budget at which it stops."""
        return self._budget

    @property
    def spent(self) -> tuple[Spending, ...]:
        """All rounds, those of equal claims together, in the order of each claim's first."""
        return tuple(self._spent.values())

    @property
    def rounds(self) -> int:
        """Number of rounds spent."""
        return sum(item.rounds for item in self._spent.values())

    @property
    def kinds(self) -> Mapping[str, int]:
        """Number of rounds spent of each kind (see `Spending`)."""
        return {kind: item.rounds for kind, item in self._spent.items()}

    def epsilon(self, delta: float) -> Epsilon:
        """The epsilon that all rounds so far amount to."""
        value = epsilon_for(_composed(self._events()), delta)
        if self._watched and self._budget is not None and delta >= self._budget.delta:
            value = min(value, self._budget.epsilon)  # or no round would have been spent
        simulated = any(isinstance(each.claim, SimulatedClaim) for each in self.spent)
        return Epsilon(value, delta, self.rounds, Basis.PROVEN, self._scope, simulated)

    def spend(self, claim: ProvenClaim, rounds: int = 1) -> None:
        """Count rounds that do what the claim says. Call it before they are released.

        Raises:
            ArgumentError: The claim is not proven.
            MismatchError: The claim is about something else.
            BudgetExceeded: It would be too much. Nothing was spent.
        """
        self._check(claim)
        more = Spending(claim, rounds)
        ahead, budget = self._lookahead, self._budget
        if ahead and budget and not ahead.admits(claim.event, rounds, spent=self._events):
            event = _composed([*self._events(), (claim.event, rounds)])
            total = epsilon_for(event, budget.delta)
            many = "1 more round" if rounds == 1 else f"{rounds:,} more rounds"
            raise BudgetExceeded(
                f"{many} would bring epsilon to {total:.6g} at delta = {budget.delta:g}, above "
                f"the budget of {budget.epsilon:g} ({self._scope}); nothing was spent"
            )
        self._record(more)

    def rounds_left(self, claim: ProvenClaim) -> int:
        """Number of rounds like this that the budget still allows, up to a million.

        Raises:
            ArgumentError: There is no budget, or the claim is not proven.
            MismatchError: The claim is about something else.
        """
        self._check(claim)
        if self._lookahead is None:
            raise ArgumentError("budget must be given for rounds to be left of it")
        return self._lookahead.most(claim.event, spent=self._events())

    def __repr__(self) -> str:
        return f"Accountant({self._scope}, budget={self._budget}, rounds={self.rounds})"

    def copy(self) -> Accountant:
        """Another one in the same state."""
        other = Accountant(self._scope, self._budget)
        other._spent, other._watched = dict(self._spent), self._watched
        other._lookahead = self._lookahead and self._lookahead.copy()
        return other

    def follow(self, earlier: Accountant) -> None:
        """Take over what another one has reserved, if what was spent since is covered by that.

        Args:
            earlier: Accountant with the same budget, none of whose rounds is missing here.
        """
        ahead, known = earlier._lookahead and earlier._lookahead.copy(), earlier.kinds
        more = ((item, item.rounds - known.get(kind, 0)) for kind, item in self._spent.items())
        if ahead and all(n == 0 or ahead.takes(item.claim.event, n) for item, n in more):
            self._lookahead = ahead

    def _check(self, claim: ProvenClaim) -> None:
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "claim must be a ProvenClaim: only what is proven adds up over rounds, got "
                f"{type(claim).__name__} ({claim})"
            )
        if claim.scope != self._scope:
            raise MismatchError(
                f"claims of one accountant must be about the same: {self._scope}, got {claim.scope}"
            )

    def _record(self, more: Spending) -> None:
        kind = more.kind
        if kind in self._spent:
            more = Spending(more.claim, self._spent[kind].rounds + more.rounds)
        self._spent[kind] = more

    def _events(self) -> list[_Rounds]:
        return [(item.claim.event, item.rounds) for item in self._spent.values()]

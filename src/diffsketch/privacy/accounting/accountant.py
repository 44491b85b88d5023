"""Accountants: privacy spent over rounds, and a hard stop at a budget.

Only proven claims can be spent: they are about events, and events compose. All rounds of one
accountant are about the same unit, relation and trust. `calibrate` finds the noise that a budget
needs, and a `PoissonSampler` draws those who take part in a round.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor

from diffsketch.errors import (
    ArgumentError,
    DiffSketchError,
    MismatchError,
    check,
    check_delta,
    check_positive,
    check_type,
    check_whole,
)
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import epsilon_for, no_better
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    ProvenClaim,
    Scope,
    SimulatedClaim,
    Unit,
    check_samplable,
)
from diffsketch.privacy.simulated_noise import Noise

_Key: TypeAlias = tuple[tuple[events.Leaf, int], ...]  # an event's leaves
_Rounds: TypeAlias = tuple[events.Event, int]
_MOST_ROUNDS = 10**6
_ALIKE = 1.02  # ratio of the noise of events that may share a reserve
_TIGHT = 1e-4  # of a calibration, where each look takes a Fourier transform
_EXACT = 1e-10  # where there is a closed form


def _composed(rounds: Iterable[_Rounds]) -> events.Event:
    return events.composed(*(events.repeated(event, count) for event, count in rounds))


def _counted(rounds: Iterable[_Rounds]) -> Counter[_Key]:
    total: Counter[_Key] = Counter()
    for event, count in rounds:
        total[tuple(events.leaves(event))] += count
    return total


def _total(rounds: Counter[_Key], delta: float) -> float:
    parts = [(leaf, count * n) for key, n in rounds.items() for leaf, count in key]
    return epsilon_for(_composed(parts), delta)


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
        check_delta(self.delta)


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
        self._watched = budget is not None  # whether the budget was there for every round
        self._reserve: Counter[_Key] = Counter()  # fits the budget, with all that was spent
        self._share = 1.0  # of what was spent, to be reserved next
        self._alike: dict[_Key, _Key] = {}  # by key, so as not to be computed again

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
        budget = self._budget
        if budget is not None and not self._admits(budget, claim.event, rounds):
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

        Totals are nearly powers of the number of rounds, which makes a good guess; every other
        step halves the range in any case.

        Raises:
            ArgumentError: There is no budget, or the claim is not proven.
            MismatchError: The claim is about something else.
        """
        self._check(claim)
        if self._budget is None:
            raise ArgumentError("budget must be given for rounds to be left of it")
        known, key = _counted(self._events()), tuple(events.leaves(claim.event))
        limit, delta = self._budget.epsilon, self._budget.delta

        def total(rounds: int) -> float:
            return _total(known + Counter({key: rounds}), delta)

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

    def __repr__(self) -> str:
        return f"Accountant({self._scope}, budget={self._budget}, rounds={self.rounds})"

    def copy(self) -> Accountant:
        """Another one in the same state."""
        other = copy(self)
        other._spent, other._reserve = dict(self._spent), self._reserve.copy()
        return other

    def follow(self, earlier: Accountant) -> None:
        """Take over what an earlier one has reserved, if what was spent since is covered by that.

        It has the same budget, and none of its rounds is missing here.
        """
        self._reserve, self._share = earlier._reserve.copy(), earlier._share
        known = earlier.kinds
        more = ((item, item.rounds - known.get(kind, 0)) for kind, item in self._spent.items())
        if not all(n == 0 or self._takes(item.claim.event, n) for item, n in more):
            self._reserve, self._share = Counter(), 1.0

    def _admits(self, budget: Budget, event: events.Event, rounds: int) -> bool:
        """Whether the rounds fit; if so they count as spent from now on.

        Rounds are reserved ahead, as many as were spent, and handed out one by one. What was spent
        and what is reserved, composed, are within the budget: so is all that is taken from the
        reserve. All kinds of rounds are reserved at once, in proportion to what was spent of them,
        so they are composed only when their number has doubled; when that is too much it is a
        smaller share, and in the end the very rounds that are asked for. Events that are nearly
        alike share what is reserved for a slightly less private one.
        """
        if self._takes(event, rounds):
            return True
        total = _counted([*self._events(), (event, rounds)])
        self._reserve.clear()
        alike: dict[_Key, list[_Key]] = {}
        for key in total:
            alike.setdefault(self._alike_to(key), []).append(key)
        asked = self._alike_to(tuple(events.leaves(event)))
        numbers: dict[_Key, float] = {}
        for group, keys in alike.items():
            # What is asked for counts as if there had been as many as of others: it may be what
            # is to come.
            least = total.total() / len(alike) if group == asked else 0
            most = max(least, sum(total[key] for key in keys))
            numbers[keys[0] if len(keys) == 1 else group] = most
        while reserve := {key: n for key in numbers if (n := int(self._share * numbers[key]))}:
            if _total(total + Counter(reserve), budget.delta) <= budget.epsilon:
                self._reserve.update(reserve)
                self._share = min(1.0, 2 * self._share)
                return True
            self._share /= 4
        self._share *= 4
        return _total(total, budget.delta) <= budget.epsilon

    def _takes(self, event: events.Event, rounds: int) -> bool:
        """Whether the rounds were reserved; if so they count as spent from now on."""
        exact = tuple(events.leaves(event))
        for key in (exact, self._alike_to(exact)):
            if self._reserve[key] >= rounds:
                self._reserve[key] -= rounds
                return True
        return False

    def _alike_to(self, key: _Key) -> _Key:
        if key not in self._alike:
            self._alike[key] = tuple((no_better(leaf, _ALIKE), count) for leaf, count in key)
        return self._alike[key]

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


def calibrate(
    event_of: Callable[[float], events.Event],
    budget: Budget,
    *,
    rounds: int = 1,
    least: float = 1e-6,
    most: float = 1e12,
    tolerance: float = _TIGHT,
) -> float:
    """The smallest number for which so many rounds of `event_of(number)` stay within the budget.

    Guarantees: the result meets the budget, by the same arithmetic that accountants use; a number
    smaller by more than the tolerance does not (`tests/privacy/test_accounting.py`).

    Args:
        event_of: One round's event; the larger its number, the more private it has to be.
        budget: The most for all rounds together.
        rounds: Number of rounds.
        least: Where to look from; this comes back if it is enough already.
        most: Where to look to.
        tolerance: Relative excess that the result may have.

    Raises:
        ArgumentError: Not even `most` is enough.

    >>> budget = Budget(epsilon=1.0, delta=1e-5)
    >>> round(calibrate(events.gaussian, budget), 3)
    3.731
    """
    check(0 < least < most < math.inf, "least", f"be in (0, {most:g})", least)
    check(1e-12 <= tolerance < 1, "tolerance", "be in [1e-12, 1)", tolerance)
    check_whole("rounds", rounds, least=1)
    # Whoever spends the rounds one by one adds in another order: rounding must not refuse the last.
    limit = budget.epsilon * (1 - 1e-12)

    def total(number: float) -> float:
        return epsilon_for(events.repeated(event_of(number), rounds), budget.delta)

    if total(least) <= limit:
        return least
    high = min(max(1.0, least), most)
    if total(high) <= limit:
        while total(high / 4) <= limit:
            high /= 4
    else:
        while high < most:
            high = min(4 * high, most)
            if total(high) <= limit:
                break
        else:
            raise ArgumentError(f"no number up to {most:g} keeps epsilon within {limit:g}")
    low = max(high / 4, least)
    while high > low * (1 + tolerance):
        middle = math.sqrt(low * high)
        if total(middle) <= limit:
            high = middle
        else:
            low = middle
    return high


def gaussian_multiplier(*, epsilon: float, delta: float, rounds: int, rate: float = 1.0) -> float:
    """The noise multiplier of Gaussian noise for a target over all rounds.

    Args:
        epsilon: The target.
        delta: Its probability of failure, > 0.
        rounds: Number of rounds.
        rate: Probability with which a unit is in a round, if `PoissonSampler` draws it.

    >>> round(gaussian_multiplier(epsilon=1.0, delta=1e-5, rounds=100), 2)
    37.31
    """
    check(0 < delta < 1, "delta", "be in (0, 1)", delta)
    return calibrate(
        lambda z: events.poisson_sampled(rate, events.gaussian(z)),
        Budget(epsilon, delta),
        rounds=rounds,
        tolerance=_EXACT if rate == 1 else _TIGHT,
    )


@dataclass(frozen=True)
class PoissonSampler:
    """Each member takes part with the same probability, independently of all others.

    The number of members who do varies, and may be 0: the round is released all the same, with
    the same noise, and a mean is the sum over `expected`, not over the number drawn. Who was drawn
    stays secret. A fixed number of members, or a shuffled list, is not this.

    Guarantees: the members drawn are independent, with probability `rate`; a claim is amplified
    only where that is proven: for central trust, not for replacement, not for another unit than
    the one that is drawn (`tests/privacy/test_accounting.py`).

    Args:
        members: Number of members to draw from.
        rate: The probability of each.
        unit: Kind of the members: clients, or examples.

    >>> from diffsketch.privacy.claim import Relation, Scope, Trust
    >>> scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    >>> claim = ProvenClaim(scope, events.gaussian(1.0), "Gaussian noise")
    >>> sampler = PoissonSampler(members=10_000, rate=0.01)
    >>> for part in (claim, sampler.amplified(claim)):
    ...     print(round(float(part.epsilon(delta=1e-5, rounds=100)), 2))
    91.82
    0.72
    """

    members: int
    rate: float
    unit: Unit = Unit.CLIENT

    def __post_init__(self) -> None:
        check_whole("members", self.members, least=1)
        check(0 < self.rate <= 1, "rate", "be in (0, 1]", self.rate)
        check(self.unit in (Unit.CLIENT, Unit.EXAMPLE), "unit", "be client or example", self.unit)
        object.__setattr__(self, "unit", Unit(self.unit))

    @property
    def expected(self) -> float:
        """The mean number of members who take part."""
        return self.members * self.rate

    def draw(self, noise: Noise) -> Tensor:
        """The members of one round, in ascending order (int64). Draw anew for each round."""
        odds = torch.full((self.members,), self.rate, dtype=torch.float64)
        return noise.bernoulli(odds).nonzero().squeeze(1)

    def amplified(self, claim: ProvenClaim) -> ProvenClaim:
        """The claim of a round on such a sample, if it does what `claim` says.

        Raises:
            ArgumentError: Sampling gains nothing that is proven: the claim is not proven itself,
                is not for central trust (a message shows who sends it, and a secure sum lacks the
                noise of those who are not drawn) or is for replacement, or its noise is not
                Gaussian or Laplace on one number.
            MismatchError: The claim is about another unit. To draw clients does not hide an
                example among those that its client holds.
        """
        check_type("claim", claim, ProvenClaim)
        scope = claim.scope
        check_samplable(scope)
        if scope.unit is not self.unit:
            raise MismatchError(f"a sample of {self.unit}s is no sample of {scope.unit}s")
        event = events.poisson_sampled(self.rate, claim.event)
        text = f"{claim.mechanism}, on a secret sample that each {self.unit} joins with "
        return replace(claim, event=event, mechanism=text + f"probability {self.rate:.4g},")

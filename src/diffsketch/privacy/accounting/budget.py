"""Budgets: what releases cost, whether that is within a budget, and the epsilon to state.

Epsilons do not add up over releases; prices do. The price of Gaussian noise is `1 / multiplier**2`
(closed form), of a failure probability itself, and any other event is counted. Epsilon is computed
from the sums.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from diffsketch.errors import (
    ArgumentError,
    DiffSketchError,
    MismatchError,
    check_delta,
    check_positive,
)
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import (
    Basis,
    Claim,
    Epsilon,
    NoClaim,
    OpenClaim,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)

_GAUSSIAN, _FAILURE = "gaussian", "failure"  # other prices are named by their event, as JSON text
_ROUNDING = 2.0**-50  # relative, and more than is lost in adding prices up

Prices: TypeAlias = Mapping[str, float]
"""Cost of releases. Gaussian noise: the sum of `1 / multiplier**2`. Failure probabilities: their
sum. Any other event: its count. Each adds up over releases, and epsilon grows with it."""


class BudgetExceeded(DiffSketchError):  # noqa: N818 - it says what happened
    """A release was not charged, since more than the budget would have been. Do not release it."""


@dataclass(frozen=True)
class Budget:
    """The most that may be spent.

    Args:
        epsilon: The most for all releases together.
        delta: The probability that it need not cover.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_delta(self.delta)


def prices_of(claim: Claim) -> dict[str, float]:
    """Cost of one release with this claim; nothing has a price without a proof."""
    prices: dict[str, float] = {}
    if not isinstance(claim, ProvenClaim):
        return prices
    for leaf, count in events.leaves(claim.event):
        if isinstance(leaf, events.GaussianEvent):
            name, price = _GAUSSIAN, count / leaf.noise_multiplier**2
        elif isinstance(leaf, events.ApproximateEvent) and leaf.epsilon == 0:
            name, price = _FAILURE, count * leaf.delta
        else:
            name, price = as_text(events.to_json(leaf)), float(count)
        prices[name] = prices.get(name, 0.0) + price
    return prices


def _epsilon_of(prices: Prices, delta: float) -> float:
    """Epsilon of releases with these prices: in closed form where all of them are Gaussian."""
    parts: list[events.Event] = []
    for name, price in prices.items():
        # Sums of prices may be rounded down, and a budget must not be exceeded by that.
        above = price * (1 + _ROUNDING)
        # A price that underflowed to 0 adds nothing, and no event has an infinite multiplier.
        if price == 0:
            continue
        if name == _GAUSSIAN:
            parts.append(events.gaussian(1 / math.sqrt(above)))
        elif name == _FAILURE:
            parts.append(events.approximate(0.0, min(above, math.nextafter(1.0, 0.0))))
        else:
            parts.append(events.repeated(events.from_json(json.loads(name)), int(price)))
    return epsilon_for(events.composed(*parts), delta) if parts else 0.0


def is_within(prices: Prices, budget: Budget) -> bool:
    """Check whether releases with these prices are within the budget."""
    return _epsilon_of(prices, budget.delta) <= budget.epsilon


class Allowance:
    """Decides whether prices are within a budget, and composes as seldom as it can.

    It remembers prices that are within the budget. Epsilon grows in every price, so whatever is not
    above them in any price is within the budget too, and is not composed again. No sequence of
    questions changes an answer (`tests/privacy/test_accounting.py`).
    """

    def __init__(self, budget: Budget | None) -> None:
        self.budget = budget
        self._within: Prices = {}
        self._share = 1.0  # of the prices asked for, to be looked ahead next

    def check(
        self, weakest: Claim | None, prices: Prices, *, releases: int, asked: int = 1
    ) -> None:
        """Raise `BudgetExceeded` if these prices are above the budget, or nothing is proven.

        Args:
            weakest: Weakest claim of everything, with what is asked for.
            prices: Of everything, with what is asked for.
            releases: How many have these prices, with what is asked for.
            asked: How many of them are asked for; named in the error.
        """
        if self.budget is None or weakest is None:
            return
        if not weakest.noise_is_proven:
            raise BudgetExceeded(
                f"the budget of {self.budget.epsilon:g} is for what is proven, and a release is "
                f"not: {weakest}; nothing was spent"
            )
        if all(price <= self._within.get(name, 0.0) for name, price in prices.items()):
            return
        budget, total = self.budget, _epsilon_of(prices, self.budget.delta)
        if not total <= budget.epsilon:
            more = "1 more round" if asked == 1 else f"{asked:,} more rounds"
            raise BudgetExceeded(
                f"{more} would bring epsilon to {total:.6g} at delta = {budget.delta:g}, above "
                f"the budget of {budget.epsilon:g} ({weakest.scope}); nothing was spent"
            )
        self._within = self._ahead(prices, releases, budget)

    def _ahead(self, prices: Prices, releases: int, budget: Budget) -> Prices:
        """Larger prices that are within the budget: up to twice these, by less near the end."""
        while self._share * releases >= 1:  # less than one more release, nothing is gained
            # If twice as much is affordable, as many rounds again need no composition.
            ahead = _times(prices, 1 + self._share)
            if is_within(ahead, budget):
                self._share = min(1.0, 2 * self._share)
                return ahead
            # Near the end: look less far, until a single release is all that is gained.
            self._share /= 4
        self._share *= 4
        return prices


def _times(prices: Prices, factor: float) -> Prices:
    """Prices times a factor; of events that are counted, whole numbers."""
    return {
        name: price * factor if name in (_GAUSSIAN, _FAILURE) else float(math.floor(price * factor))
        for name, price in prices.items()
    }


def as_text(data: Any) -> str:
    """Return plain data as JSON text, the same for equal data."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def weaker(claim: Claim, other: Claim | None) -> Claim:
    """The claim that releases with either of them have together.

    Nothing is claimed if nothing is for a single one. Of claims without a proof it is the larger;
    of proven ones, which compose, `claim`, or the one about simulated noise.

    Raises:
        ArgumentError: A claim is measured.
        MismatchError: They are about different units, relations or trust.
    """
    # Weaker and weaker: what is claimed says less than what is proven.
    ranks = {Basis.PROVEN: 0, Basis.CLAIMED: 1, Basis.NONE: 2}
    for part in (claim, other or claim):
        if part.basis not in ranks:
            raise ArgumentError(f"claim must be of a mechanism, not {part.basis}, got {part}")
    if other is None or other is claim:
        return claim
    if other.scope != claim.scope:
        raise MismatchError(
            f"claims of one account must be about the same: {claim.scope}, got {other.scope}"
        )
    if isinstance(claim, PaperClaim) and isinstance(other, PaperClaim):
        return max(claim, other, key=lambda part: float(part.per_round))
    for opened, second in ((claim, other), (other, claim)):
        if isinstance(opened, OpenClaim) and isinstance(second, OpenClaim | SimulatedClaim):
            more = second.doors if isinstance(second, OpenClaim) else ("exact noise",)
            return opened.with_doors(more)
        if isinstance(opened, OpenClaim) and isinstance(second, PaperClaim):
            return second
    # Both are proven by rank, but one simulated release makes the whole a simulation.
    if claim.basis is Basis.PROVEN and isinstance(other, SimulatedClaim):
        return other
    return other if ranks[other.basis] > ranks[claim.basis] else claim


def stated_epsilon(claim: Claim | None, prices: Prices, rounds: int, delta: float) -> Epsilon:
    """Epsilon of rounds whose weakest claim and prices are these, with all that it means.

    Proven claims are composed. Of claims without proof the largest is stated, for one round: they
    do not compose. Where nothing is claimed it is infinite. Before the first round it is 0, or
    infinite where nothing will be claimed.
    """
    if claim is None:
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        return Epsilon(0.0, delta, 0, Basis.PROVEN, scope)
    if isinstance(claim, ProvenClaim):
        return claim.stated(_epsilon_of(prices, delta) if rounds else 0.0, delta, rounds)
    if rounds == 0:
        value = math.inf if isinstance(claim, NoClaim) else 0.0
        return Epsilon(value, delta, 0, claim.basis, claim.scope)
    if isinstance(claim, PaperClaim):
        return claim.epsilon(delta=max(delta, claim.per_round.delta), rounds=1)
    return claim.epsilon(delta=delta, rounds=rounds)

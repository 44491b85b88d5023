"""Budgets: what releases cost, whether that is within a budget, and the epsilon to state.

Also the noise that a budget needs (`calibrate`), and secret samples that need less of it.

Epsilons do not add up over releases; prices do. The price of Gaussian noise is `1 / multiplier**2`
(closed form), of a failure probability itself, and any other event is counted. Epsilon is computed
from the sums.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

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
    check_samplable,
)
from diffsketch.privacy.noise import Noise

_GAUSSIAN, _FAILURE = "gaussian", "failure"  # other prices are named by their event, as JSON text
_ROUNDING = 2.0**-50  # relative, and more than is lost in adding prices up
_TIGHT = 1e-4  # relative excess of a calibration, where each look takes a Fourier transform
_EXACT = 1e-10  # where there is a closed form

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
    return events.epsilon_for(events.composed(*parts), delta) if parts else 0.0


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


def calibrate(
    event_of: Callable[[float], events.Event],
    budget: Budget,
    *,
    rounds: int = 1,
    least: float = 1e-6,
    most: float = 1e12,
    tolerance: float = _TIGHT,
) -> float:
    """The smallest number for which `rounds` of `event_of(number)` stay within the budget.

    Guarantees: the result meets the budget, by the same arithmetic that accounts use; a number
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
        return events.epsilon_for(events.repeated(event_of(number), rounds), budget.delta)

    # Most noise multipliers are near 1: from there, by factors of 4 to a bracket. Not from `least`,
    # where many a method refuses to have so little noise.
    high = min(max(1.0, least), most)
    if total(high) <= limit:
        while total(max(high / 4, least)) <= limit:
            high = max(high / 4, least)
            if high == least:
                return least
    else:
        while high < most:
            high = min(4 * high, most)
            if total(high) <= limit:
                break
        else:
            raise ArgumentError(f"no number up to {most:g} keeps epsilon within {limit:g}")
    low = max(high / 4, least)
    while high > low * (1 + tolerance):
        # The geometric mean, as the tolerance is relative.
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
    only where that is proven: not for replacement, not for another unit than the one that is drawn,
    and of clients for central trust only (`tests/privacy/test_accounting.py`).

    Args:
        members: Number of members to draw from.
        rate: The probability of each.
        unit: Kind of the members: clients, examples or persons.

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
        least = 1 if self.unit == Unit.CLIENT else 0  # a party may have no records, in secret
        check_whole("members", self.members, least=least)
        check(0 < self.rate <= 1, "rate", "be in (0, 1]", self.rate)
        drawable = self.unit in (Unit.CLIENT, Unit.EXAMPLE, Unit.PERSON)
        check(drawable, "unit", "be client, example or person", self.unit)
        object.__setattr__(self, "unit", Unit(self.unit))

    @property
    def expected(self) -> float:
        """The mean number of members who take part."""
        return self.members * self.rate

    def draw(self, noise: Noise) -> Tensor:
        """The members of one round, in ascending order (int64). Draw anew for each round."""
        # In float64: rounded to float32, the rate would be another than the claim's.
        odds = torch.full((self.members,), self.rate, dtype=torch.float64)
        return noise.bernoulli(odds).nonzero().squeeze(1)

    def amplified(self, claim: ProvenClaim) -> ProvenClaim:
        """The claim of a round on such a sample, if it does what `claim` says.

        Raises:
            ArgumentError: Sampling gains nothing that is proven: the claim is not proven itself,
                is for replacement, or about clients and not for central trust
                (`check_samplable`), or its noise is not Gaussian or Laplace on one number.
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

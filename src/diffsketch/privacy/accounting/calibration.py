"""The noise that a budget needs (`calibrate`), and secret samples that need less of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check, check_type, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.accounting.events import epsilon_for
from diffsketch.privacy.claim import ProvenClaim, Unit, check_samplable
from diffsketch.privacy.noise import Noise

_TIGHT = 1e-4  # relative excess of a calibration, where each look takes a Fourier transform
_EXACT = 1e-10  # where there is a closed form


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
        return epsilon_for(events.repeated(event_of(number), rounds), budget.delta)

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

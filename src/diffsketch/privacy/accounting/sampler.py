"""Poisson sampling: who takes part in a round, and what that is worth.

One object draws the sample and states the claim, so that a gain is only ever claimed for a sample
that was drawn in the way that the theorem is about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check, check_type, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import ProvenClaim, Unit, check_samplable
from diffsketch.privacy.noise import Noise


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

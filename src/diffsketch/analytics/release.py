"""One release: sums of whole numbers in, an answer with intervals and its epsilon out.

All questions are sums of tables of whole numbers, one table a person, with a bound on how far one
person can move the sum. This module calibrates the noise, charges, releases, and says what was
promised.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diffsketch.errors import check_between, check_positive, check_type, check_whole
from diffsketch.methods.gate import release_total
from diffsketch.privacy import Account, Budget
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.budget import calibrate
from diffsketch.privacy.claim import (
    Epsilon,
    ProvenClaim,
    Relation,
    RelationName,
    Trust,
    TrustName,
)
from diffsketch.privacy.clipping import WholeTables
from diffsketch.privacy.mechanisms.integer import SkellamMechanism

Floats = npt.NDArray[np.float64]
CONFIDENCE = 0.95
NORMAL_95 = 1.959964  # noise is as good as normal: its standard deviation is 8 steps or more
_LEAST_STEPS = 8.0


@dataclass(frozen=True)
class Terms:
    """Promise to each person, and who pays for it.

    Args:
        epsilon: The most that this answer may tell of one person.
        delta: The probability that epsilon need not cover.
        trust: Who must be trusted: the holder of the data (`central`), the members of a secure sum
            (`distributed`) or nobody (`local`).
        relation: What differs between neighbours: another person's data, or a person's data and
            none. The number of people is public in either.
        account: What is charged, before any noise is drawn. With a budget, it refuses.
    """

    epsilon: float
    delta: float = 1e-6
    trust: TrustName = Trust.CENTRAL
    relation: RelationName = Relation.REPLACE
    account: Account | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_between("delta", self.delta, 1e-300, 0.5)
        if self.account is not None:
            check_type("account", self.account, Account)


@dataclass(frozen=True)
class TableNoise:
    """Noise of one release of a table, calibrated to its terms.

    Attributes:
        mechanism: Noise of one person's table, or of the server, in steps.
        claim: Claim of the release, with the probability `failure` of a threshold composed in.
        people: Number of tables in the sum.
    """

    terms: Terms
    mechanism: SkellamMechanism
    claim: ProvenClaim
    people: int

    @classmethod
    def of(
        cls, terms: Terms, tables: WholeTables, *, people: int, failure: float = 0.0
    ) -> TableNoise:
        """Calibrate the noise.

        Args:
            terms: Promise to each person.
            tables: How far one person's table can move the sum.
            people: Number of tables in a sum.
            failure: Probability that something else gives one person away, which is taken off
                delta: of a threshold (`counts`).
        """
        check_whole("people", people, least=1)

        def claim_at(multiplier: float) -> tuple[SkellamMechanism, ProvenClaim]:
            mechanism = SkellamMechanism(
                tables, multiplier, relation=terms.relation, trust=terms.trust, cohort=people
            )
            claim = mechanism.claim
            if failure:
                event = events.composed(claim.event, events.approximate(0.0, failure))
                claim = replace(
                    claim, event=event, mechanism=f"{claim.mechanism} and a threshold for names"
                )
            return mechanism, claim

        multiplier = calibrate(
            lambda level: claim_at(level)[1].event,
            Budget(terms.epsilon, terms.delta),
            tolerance=1e-6,
        )
        return cls(terms, *claim_at(multiplier), people)

    @property
    def std(self) -> float:
        """Standard deviation of the noise of a sum, in units of the data."""
        local = self.mechanism.trust is Trust.LOCAL
        return self.mechanism.std * (math.sqrt(self.people) if local else 1.0)

    def tail_bound(self, margin: float) -> float:
        """Bound the probability that a sum's noise is `margin` steps or more."""
        local = self.mechanism.trust is Trust.LOCAL
        return self.mechanism.tail_bound(margin, count=self.people if local else None)

    @property
    def epsilon(self) -> Epsilon:
        """Epsilon of the release, with its words."""
        return self.claim.epsilon(delta=self.terms.delta, rounds=1)

    def charge(self, claim: ProvenClaim) -> None:
        """Charge the account, if there is one, for all parts of a release together."""
        if self.terms.account is not None:
            self.terms.account.charge(claim)

    def release(self, total: npt.NDArray[np.int64]) -> Floats:
        """Charge the account and return the sum with its noise, in units of the data."""
        return self.release_part(total, account=self.terms.account)

    def release_part(
        self,
        total: npt.NDArray[np.int64],
        *,
        count: int | None = None,
        account: Account | None = None,
    ) -> Floats:
        """Return a part with its noise, cells or people of their own: after `charge`."""
        noisy = release_total(
            torch.from_numpy(np.ascontiguousarray(total, np.int64)), self.mechanism, self.claim,
            count=self.people if count is None else count, account=account,
        )  # fmt: skip
        return noisy.numpy() * self.mechanism.step


def steps_for(std: float) -> float:
    """Granularity for whole data with noise of about this size: 1, or a power of two below.

    Skellam noise of `s` steps costs `7 / (12 s**2)` of the variance more than Gaussian noise: with
    8 steps less than 1%. Coarse steps keep messages short.
    """
    return min(1.0, 2.0 ** math.floor(math.log2(std / _LEAST_STEPS)))


@dataclass(frozen=True, eq=False)
class Answer:
    """A private answer: estimates with intervals, and what was promised for them.

    Attributes:
        question: What was asked: "mean of", "people with", ...
        names: Column, key or level of each estimate.
        estimates: One a name, float64.
        low: Lower ends of the intervals.
        high: Upper ends. With `confidence` an interval has what the estimate would be without
            noise and sketch, from data bounded in the same way.
        epsilon: What this answer cost, with its words. An account has it as well.
        claim: What is proven of it.
        people: Number of people, which is public.
        how: In words: how it was computed, its predicted error and that of what was not chosen.
        message_bytes: Bytes of one person's message, where people send messages; else 0.
    """

    question: str
    names: tuple[Any, ...]
    estimates: Floats
    low: Floats
    high: Floats
    epsilon: Epsilon
    claim: ProvenClaim
    people: int
    how: str
    message_bytes: int = 0
    confidence: float = CONFIDENCE

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield a dictionary for each name: name, estimate, low, high."""
        ends = np.stack([self.estimates, self.low, self.high], axis=1).tolist()
        for name, (estimate, low, high) in zip(self.names, ends, strict=True):
            yield {"name": name, "estimate": estimate, "low": low, "high": high}

    def __getitem__(self, name: Any) -> float:
        return float(self.estimates[self.names.index(name)])

    def __len__(self) -> int:
        return len(self.names)

    def __str__(self) -> str:
        lines = [f"{self.question} ({self.people:,} people; {self.confidence:.0%} intervals)"]
        width = max((len(str(name)) for name in self.names), default=0)
        for row in self.rows():
            low, high = (_brief(row[end]) for end in ("low", "high"))
            lines.append(f"  {row['name']!s:<{width}}  {_brief(row['estimate'])}  [{low}, {high}]")
        return "\n".join([*lines, f"{self.how}", str(self.epsilon)])


def plain_names(names: Any) -> tuple[Any, ...]:
    """Keys as Python's own texts and numbers."""
    return tuple(names.tolist() if isinstance(names, np.ndarray) else names)


def _brief(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def answer(
    question: str,
    names: Any,
    estimates: Floats,
    margin: Floats | float,
    noise: TableNoise,
    how: str,
    **more: Any,
) -> Answer:
    """Make an answer whose intervals are `margin` to either side."""
    return Answer(
        question, plain_names(names), estimates, estimates - margin, estimates + margin,
        noise.epsilon, noise.claim, noise.people, how, **more,
    )  # fmt: skip

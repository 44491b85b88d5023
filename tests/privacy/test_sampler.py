"""Poisson samples: how they are drawn, and where they gain something."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.noise.secure import SecureNoise

SCOPE = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
LOCAL = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


def claim_of(event: events.Event, scope: Scope = SCOPE) -> ProvenClaim:
    return ProvenClaim(scope, event, "noise")


def test_amplified_claims() -> None:
    sampler = PoissonSampler(members=1000, rate=0.01)
    claim = claim_of(events.gaussian(1.0))
    amplified = sampler.amplified(claim)
    assert amplified.event == events.poisson_sampled(0.01, events.gaussian(1.0))
    assert amplified.scope == SCOPE
    assert str(amplified) == (
        "Proven: noise, on a secret sample that each client joins with probability 0.01, limits "
        "how well anyone who sees what a trusted server publishes, but no message, can tell "
        "whether one client took part."
    )
    assert PoissonSampler(1000, 1.0).amplified(claim).event == claim.event
    assert sampler.expected == 10


def scope_of(unit: Unit, relation: Relation, trust: Trust) -> ProvenClaim:
    return claim_of(events.gaussian(1.0), Scope(unit, relation, trust))


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (scope_of(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL), ArgumentError),
        (scope_of(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.LOCAL), ArgumentError),
        (scope_of(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL), ArgumentError),
        (scope_of(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL), MismatchError),
        (scope_of(Unit.COORDINATE, Relation.ADD_OR_REMOVE, Trust.CENTRAL), MismatchError),
        (claim_of(events.approximate(1.0)), ArgumentError),
        (claim_of(events.concentrated(1.0)), ArgumentError),
        (claim_of(events.poisson_sampled(0.5, events.gaussian(1.0))), ArgumentError),
    ],
)
def test_what_sampling_does_not_amplify(claim: ProvenClaim, error: type[Exception]) -> None:
    with pytest.raises(error):
        PoissonSampler(1000, 0.01).amplified(claim)


def test_samples_of_examples() -> None:
    scope = Scope(Unit.EXAMPLE, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    sampler = PoissonSampler(50_000, 0.01, unit=Unit.EXAMPLE)
    assert sampler.amplified(claim_of(events.laplace(1.0), scope)).scope == scope
    with pytest.raises(MismatchError, match="a sample of examples is no sample of clients"):
        sampler.amplified(claim_of(events.laplace(1.0)))


def test_a_secure_sum_gains_nothing_by_sampling() -> None:
    """Who is not drawn brings no noise: an empty sum shows that nobody was."""
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.DISTRIBUTED)
    with pytest.raises(ArgumentError, match="trust must be central"):
        PoissonSampler(100, 0.01).amplified(claim_of(events.gaussian(1.0), scope))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PoissonSampler(0, 0.5),
        lambda: PoissonSampler(True, 0.5),
        lambda: PoissonSampler(2.5, 0.5),  # type: ignore[arg-type]
        lambda: PoissonSampler(10, 0.0),
        lambda: PoissonSampler(10, 1.5),
        lambda: PoissonSampler(10, math.nan),
        lambda: PoissonSampler(10, 0.5, unit=Unit.COORDINATE),
    ],
)
def test_samplers_are_checked(make: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError):
        make()


MEMBERS, RATE, ROUNDS = 40, 0.2, 5000


def drawn(rounds: int = ROUNDS) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    sampler, noise = PoissonSampler(MEMBERS, RATE), FastNoise(2024)
    taken = np.zeros((rounds, MEMBERS), dtype=np.bool_)
    for row in taken:
        row[sampler.draw(noise).numpy()] = True
    return taken


def size_statistic(taken: np.ndarray[tuple[int, int], np.dtype[np.bool_]]) -> float:
    """A p-value: whether the sample sizes are binomial."""
    sizes = taken.sum(axis=1)
    counts = np.bincount(sizes, minlength=MEMBERS + 1)
    expected = len(taken) * stats.binom.pmf(np.arange(MEMBERS + 1), MEMBERS, RATE)
    usual = expected > 5
    observed = np.append(counts[usual], counts[~usual].sum())
    wanted = np.append(expected[usual], expected[~usual].sum())
    return float(stats.chisquare(observed, wanted).pvalue)


def test_samples_are_independent() -> None:
    """p-values of 1e-9 for the sizes, and 7 standard errors for each member and pair of members.

    A false alarm in less than 1 of 10^8. The controls: a fixed number of members in each round,
    as many samplers draw, and members who only ever come together.
    """
    taken = drawn()
    assert size_statistic(taken) > 1e-9
    limit = 7 / math.sqrt(ROUNDS)
    centred = (taken - RATE) / math.sqrt(RATE * (1 - RATE))
    assert np.abs(centred.mean(axis=0)).max() < limit
    pairs = centred.T @ centred / ROUNDS - np.eye(MEMBERS)
    assert np.abs(pairs[~np.eye(MEMBERS, dtype=bool)]).max() < limit

    rng = np.random.default_rng(7)
    fixed = np.zeros_like(taken)
    for row in fixed:
        row[rng.choice(MEMBERS, int(MEMBERS * RATE), replace=False)] = True
    assert size_statistic(fixed) < 1e-9
    together = taken.copy()
    together[:, 1] = together[:, 0]
    scaled = (together - RATE) / math.sqrt(RATE * (1 - RATE))
    assert abs((scaled[:, 0] * scaled[:, 1]).mean()) > limit


def test_secure_samples() -> None:
    """30 rounds of 1,000 members, within 7 standard deviations: a false alarm in 1 of 10^11."""
    sampler, noise = PoissonSampler(1000, 0.1), SecureNoise()
    members = [sampler.draw(noise) for _ in range(30)]
    total = sum(len(cohort) for cohort in members)
    assert abs(total - 3000) < 7 * math.sqrt(30 * 1000 * 0.1 * 0.9)
    for cohort in members:
        assert cohort.tolist() == sorted(set(cohort.tolist()))


def test_everybody_or_almost_nobody() -> None:
    assert PoissonSampler(5, 1.0).draw(FastNoise(1)).tolist() == [0, 1, 2, 3, 4]
    assert PoissonSampler(5, 1e-12).draw(FastNoise(1)).tolist() == []

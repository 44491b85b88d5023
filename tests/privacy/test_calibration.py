"""Calibrated noise meets its target, and hardly more; checked by composing it again."""

from __future__ import annotations

import math
from collections.abc import Callable

import dp_accounting
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.accountant import Accountant, Budget, BudgetExceeded
from diffsketch.privacy.accounting.calibration import (
    calibrate,
    gaussian_multiplier,
    laplace_multiplier,
)
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.claim import ProvenClaim, Relation, Scope, Trust, Unit


def check_tight(total: Callable[[float], float], found: float, target: float) -> None:
    """It is enough, and 0.1% less (the control) is not."""
    assert total(found) <= target
    assert total(found * 0.999) > target


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate"),
    [
        (1.0, 1e-5, 1, 1.0),
        (1.0, 1e-5, 100, 1.0),
        (0.01, 1e-12, 10_000, 1.0),
        (1000.0, 1e-5, 1, 1.0),
        (1.0, 1e-5, 1000, 0.01),
        (8.0, 1e-6, 100, 0.2),
        (0.1, 1e-5, 10_000, 1 / 600),
        (50.0, 1e-5, 1, 0.1),
    ],
)
def test_gaussian_noise_meets_its_target(
    epsilon: float, delta: float, rounds: int, rate: float
) -> None:
    def total(noise: float) -> float:
        event = events.poisson_sampled(rate, events.gaussian(noise))
        return epsilon_for(events.repeated(event, rounds), delta)

    found = gaussian_multiplier(epsilon=epsilon, delta=delta, rounds=rounds, rate=rate)
    check_tight(total, found, epsilon)


@settings(max_examples=50, deadline=None)
@given(
    epsilon=st.floats(-3, 3).map(lambda power: 10.0**power),
    delta=st.floats(-12, -1).map(lambda power: 10.0**power),
    rounds=st.integers(1, 10**5),
)
def test_gaussian_noise_in_closed_form(epsilon: float, delta: float, rounds: int) -> None:
    """The inverse of an independent function, and exact far beyond what is promised."""
    found = gaussian_multiplier(epsilon=epsilon, delta=delta, rounds=rounds)
    one = float(gaussian_mechanism.get_sigma_gaussian(epsilon, delta))
    assert found == pytest.approx(one * math.sqrt(rounds), rel=1e-7)


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate", "count"),
    [
        (1.0, 0.0, 1, 1.0, 1),
        (1.0, 0.0, 100, 1.0, 7),
        (1.0, 0.0, 10, 0.1, 1),
        (1.0, 1e-5, 1, 1.0, 1),
        (1.0, 1e-5, 1000, 1.0, 1),
        (5.0, 1e-6, 50, 1.0, 10),
        (1.0, 1e-5, 200, 0.05, 1),
    ],
)
def test_laplace_noise_meets_its_target(
    epsilon: float, delta: float, rounds: int, rate: float, count: int
) -> None:
    def total(noise: float) -> float:
        event = events.repeated(events.poisson_sampled(rate, events.laplace(noise)), count)
        return epsilon_for(events.repeated(event, rounds), delta)

    found = laplace_multiplier(epsilon=epsilon, delta=delta, rounds=rounds, rate=rate, count=count)
    check_tight(total, found, epsilon)
    if delta == 0 and rate == 1:
        assert found == pytest.approx(rounds * count / epsilon, rel=1e-9)


def test_against_dp_accounting() -> None:
    theirs = dp_accounting.calibrate_dp_mechanism(
        PLDAccountant,
        lambda noise: dp_accounting.SelfComposedDpEvent(
            dp_accounting.PoissonSampledDpEvent(0.05, dp_accounting.GaussianDpEvent(noise)), 50
        ),
        target_epsilon=1.0,
        target_delta=1e-5,
        bracket_interval=dp_accounting.ExplicitBracketInterval(0.6, 3.0),
        tol=1e-3,
    )
    ours = gaussian_multiplier(epsilon=1.0, delta=1e-5, rounds=50, rate=0.05)
    assert ours == pytest.approx(float(theirs), rel=2e-3)


def test_any_event_can_be_calibrated() -> None:
    def event_of(noise: float) -> events.Event:
        return events.composed(events.gaussian(noise), events.concentrated(1 / noise))

    budget = Budget(epsilon=2.0, delta=1e-6)
    found = calibrate(event_of, budget, rounds=5)
    check_tight(lambda noise: epsilon_for(events.repeated(event_of(noise), 5), 1e-6), found, 2.0)


@pytest.mark.parametrize("rate", [1.0, 0.02])
@pytest.mark.parametrize("rounds", [1, 7, 100, 997])
def test_an_accountant_grants_just_these_rounds(rounds: int, rate: float) -> None:
    noise = gaussian_multiplier(epsilon=4.0, delta=1e-5, rounds=rounds, rate=rate)
    event = events.poisson_sampled(rate, events.gaussian(noise))
    scope = Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
    claim, budget = ProvenClaim(scope, event, "noise"), Budget(4.0, 1e-5)
    accountant = Accountant(scope, budget)
    for _ in range(rounds):
        accountant.spend(claim)
    if rounds < 500:  # one of more is less than the noise is tight
        with pytest.raises(BudgetExceeded):
            accountant.spend(claim)


def test_the_ends_of_the_search() -> None:
    budget = Budget(epsilon=1.0, delta=1e-5)
    assert calibrate(events.gaussian, budget, least=5.0, most=10.0) == 5.0
    with pytest.raises(ArgumentError, match="no number up to 2 keeps epsilon within 1"):
        calibrate(events.gaussian, budget, least=0.5, most=2.0)
    with pytest.raises(ArgumentError, match="no number up to"):
        calibrate(lambda _: events.approximate(0.1, 1e-4), budget)


@pytest.mark.parametrize(
    "make",
    [
        lambda: gaussian_multiplier(epsilon=1.0, delta=0.0, rounds=1),
        lambda: gaussian_multiplier(epsilon=0.0, delta=1e-5, rounds=1),
        lambda: gaussian_multiplier(epsilon=math.nan, delta=1e-5, rounds=1),
        lambda: gaussian_multiplier(epsilon=1.0, delta=1e-5, rounds=0),
        lambda: gaussian_multiplier(epsilon=1.0, delta=1e-5, rounds=1, rate=0.0),
        lambda: laplace_multiplier(epsilon=1.0, delta=1.0, rounds=1),
        lambda: laplace_multiplier(epsilon=1.0, delta=0.0, rounds=1, count=0),
        lambda: laplace_multiplier(epsilon=1.0, delta=0.0, rounds=1, rate=0.5, count=2),
        lambda: calibrate(events.gaussian, Budget(1.0, 1e-5), least=2.0, most=1.0),
        lambda: calibrate(events.gaussian, Budget(1.0, 1e-5), tolerance=0.0),
    ],
)
def test_bad_targets(make: Callable[[], float]) -> None:
    with pytest.raises(ArgumentError):
        make()

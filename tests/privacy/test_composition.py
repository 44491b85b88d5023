"""Composition over rounds: against tables, dp-accounting's own accountants, and simulation."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import example, given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import delta_for, epsilon_for, renyi_epsilon_for
from diffsketch.privacy.accounting.events import Event

DELTA = 1e-5
Array = npt.NDArray[np.float64]


def rounds_of(event: Event, rounds: int, delta: float = DELTA) -> float:
    return epsilon_for(events.repeated(event, rounds), delta)


def sampled(rate: float, multiplier: float) -> Event:
    return events.poisson_sampled(rate, events.gaussian(multiplier))


@pytest.mark.parametrize(
    ("event", "rounds", "expected"),
    [
        (events.gaussian(3.7306), 1, 1.000),
        (events.gaussian(3.7306), 100, 14.43),
        (events.gaussian(3.7306), 1000, 71.27),
        (events.gaussian(10.0), 1, 0.341),
        (events.gaussian(10.0), 100, 4.377),
        (events.gaussian(10.0), 1000, 17.86),
        (events.laplace(10.0), 1, 0.100),
        (events.laplace(10.0), 100, 4.22),
        (events.laplace(10.0), 1000, 17.42),
        (sampled(1 / 600, 1.0), 100, 0.100),
        (sampled(1 / 600, 1.0), 1000, 0.261),
        (sampled(0.01, 1.0), 100, 0.718),
        (sampled(0.01, 1.0), 1000, 1.828),
    ],
)
def test_known_values(event: Event, rounds: int, expected: float) -> None:
    """Numbers of a prototype of its own, to the digits that are known of them."""
    assert rounds_of(event, rounds) == pytest.approx(expected, rel=2e-3)


@pytest.mark.parametrize(
    "event",
    [
        events.repeated(events.laplace(3.0), 20),
        events.repeated(sampled(0.01, 0.8), 500),
        events.repeated(events.poisson_sampled(0.1, events.laplace(2.0)), 50),
        events.composed(
            events.repeated(events.gaussian(9.0), 10),
            events.repeated(events.gaussian(20.0), 30),
            events.repeated(events.laplace(15.0), 8),
            events.repeated(sampled(0.02, 1.0), 100),
        ),
    ],
)
@pytest.mark.parametrize("delta", [1e-3, 1e-6])
def test_against_the_accountants_of_dp_accounting(event: Event, delta: float) -> None:
    """Theirs uses a fixed grid, so ours may be below it by its coarseness, but not by more."""
    theirs = float(PLDAccountant().compose(event).get_epsilon(target_delta=delta))
    ours = epsilon_for(event, delta)
    assert ours == pytest.approx(theirs, rel=1e-3)
    assert ours <= renyi_epsilon_for(event, delta)
    if "Laplace" not in str(event):
        rdp = float(RdpAccountant().compose(event).get_epsilon(target_delta=delta))
        assert ours < rdp


# Exact deltas of one round on a sample (Balle, Barthe, Gaboardi 2018), by high precision.


def exact_sampled_delta(rate: float, multiplier: float, epsilon: float) -> float:
    with mpmath.workdps(60):
        q, mu = mpmath.mpf(rate), 1 / mpmath.mpf(multiplier)

        def gaussian(level: mpmath.mpf) -> mpmath.mpf:
            first = mpmath.ncdf(mu / 2 - level / mu)
            return first - mpmath.exp(level) * mpmath.ncdf(-mu / 2 - level / mu)

        removed = q * gaussian(mpmath.log1p(mpmath.expm1(epsilon) / q))
        weight = 1 - mpmath.exp(epsilon) * (1 - q)
        added = mpmath.mpf(0)
        if weight > 0:
            added = weight * gaussian(mpmath.mpf(epsilon) + mpmath.log(q / weight))
        return float(max(removed, added))


@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 1.0), (0.01, 1.0), (1e-3, 0.3), (0.1, 8.0)])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-8])
def test_one_sampled_round_is_exact(rate: float, multiplier: float, delta: float) -> None:
    epsilon = epsilon_for(sampled(rate, multiplier), delta)
    assert exact_sampled_delta(rate, multiplier, epsilon) <= delta
    if epsilon > 0:
        assert exact_sampled_delta(rate, multiplier, epsilon * 0.998) > delta
        # The control: a fifth less noise than was paid for.
        assert exact_sampled_delta(rate, 0.8 * multiplier, epsilon) > delta


def simulated_delta(draws: list[Array], epsilon: float) -> tuple[float, float]:
    """Mean and standard error of `max(0, 1 - exp(epsilon - loss))` over the sums of the losses."""
    total = np.sum(draws, axis=0)
    excess = -np.expm1(np.minimum(epsilon - total, 0.0))
    return float(excess.mean()), float(excess.std() / math.sqrt(len(excess)))


def loss_draws(rng: np.random.Generator, size: int, less: float) -> list[Array]:
    """Losses when a unit is there: 3 Laplace rounds, one Gaussian, 2 on a sample of a fifth."""
    draws: list[Array] = []
    for _ in range(3):
        noise = rng.laplace(1.0, 4.0 * less, size)
        draws.append((np.abs(noise) - np.abs(noise - 1)) / (4.0 * less))
    draws.append(rng.normal(1 / (2 * 9.0), 1 / 3.0, size))
    mu = 1 / 1.5
    for _ in range(2):
        noise = rng.standard_normal(size) + mu * (rng.random(size) < 0.2)
        draws.append(np.log1p(0.2 * np.expm1(mu * noise - mu * mu / 2)))
    return draws


def test_different_rounds_against_simulation() -> None:
    """Six standard errors: a false alarm in 1 of 10^8. The direction of removal is the worse one.

    The control: Laplace noise smaller by a fifth than the event says, seen as clearly.
    """
    event = events.composed(
        events.repeated(events.laplace(4.0), 3),
        events.gaussian(3.0),
        events.repeated(sampled(0.2, 1.5), 2),
    )
    rng, size = np.random.default_rng(11), 1_000_000
    draws, wrong = loss_draws(rng, size, 1.0), loss_draws(rng, size, 0.8)
    for epsilon in (0.2, 0.6, 1.0):
        delta = delta_for(event, epsilon)
        mean, error = simulated_delta(draws, epsilon)
        assert abs(mean - delta) < 6 * error + 1e-3 * delta
        mean, error = simulated_delta(wrong, epsilon)
        assert mean - delta > 6 * error + 1e-3 * delta


# What is pure, approximate, or known only by its Rényi divergence.


def optimal_composition(bound: float, failure: float, rounds: int, epsilon: float) -> float:
    """delta of (bound, failure)-private rounds (Kairouz, Oh, Viswanath 2015), in 50 digits."""
    with mpmath.workdps(50):
        true = 1 / (1 + mpmath.exp(-mpmath.mpf(bound)))
        rest = mpmath.mpf(0)
        for count in range(rounds + 1):
            gap = epsilon - (2 * count - rounds) * mpmath.mpf(bound)
            if gap < 0:
                odds = mpmath.binomial(rounds, count) * true**count * (1 - true) ** (rounds - count)
                rest += odds * (1 - mpmath.exp(gap))
        return float(1 - (1 - mpmath.mpf(failure)) ** rounds * (1 - rest))


@pytest.mark.parametrize(
    ("bound", "failure", "rounds"), [(0.3, 1e-7, 1), (0.3, 1e-7, 30), (1.0, 0, 9)]
)
def test_approximate_rounds_compose_optimally(bound: float, failure: float, rounds: int) -> None:
    event = events.repeated(events.approximate(bound, failure), rounds)
    for delta in (1e-3, 1e-5):
        epsilon = epsilon_for(event, delta)
        assert optimal_composition(bound, failure, rounds, epsilon) <= delta * (1 + 1e-9)
        assert optimal_composition(bound, failure, rounds, 0.995 * epsilon) > delta


def test_without_delta() -> None:
    assert rounds_of(events.laplace(4.0), 10, 0.0) == pytest.approx(2.5)
    assert rounds_of(events.approximate(0.5), 10, 0.0) == pytest.approx(5.0)
    bound = math.log1p(0.1 * math.expm1(0.5))
    assert rounds_of(events.poisson_sampled(0.1, events.laplace(2.0)), 7, 0.0) == pytest.approx(
        7 * bound
    )
    for event in (events.gaussian(5.0), sampled(0.1, 5.0), events.concentrated(0.1)):
        assert epsilon_for(event, 0.0) == math.inf
        assert epsilon_for(events.composed(event, events.laplace(1.0)), 0.0) == math.inf
    assert epsilon_for(events.approximate(0.5, 1e-9), 0.0) == math.inf


def test_failures_use_up_delta() -> None:
    event = events.repeated(events.approximate(0.5, 1e-6), 10)
    assert epsilon_for(event, 0.9e-5) == math.inf
    assert epsilon_for(event, 1e-5) <= 5.0
    assert epsilon_for(events.approximate(0.5, 1e-6), 1e-6) == 0.5
    assert delta_for(event, 5.0) == pytest.approx(1e-5, rel=1e-4)
    assert delta_for(event, math.inf) == pytest.approx(1e-5, rel=1e-4)
    assert renyi_epsilon_for(event, 1e-6) == math.inf


def test_nothing_costs_nothing() -> None:
    assert epsilon_for(events.composed(), 1e-5) == 0
    assert epsilon_for(events.composed(), 0.0) == 0
    assert delta_for(events.composed(), 0.0) == 0
    assert epsilon_for(events.approximate(0.0), 0.0) == 0
    assert renyi_epsilon_for(events.composed(), 1e-5) < 1e-9


def test_concentrated_rounds_with_pure_ones() -> None:
    """Gaussian noise as a concentrated event: looser than as itself, never tighter, always valid.

    A mechanism whose divergence is known may be composed with approximate ones by taking the
    probability that those fail off delta; here against the same rounds without that detour.
    """
    pure = events.repeated(events.approximate(0.1, 1e-8), 20)
    known = events.composed(events.gaussian(2.0), pure)
    bounded = events.composed(events.concentrated(1 / 8), pure)
    for delta in (1e-3, 1e-5):
        exact, loose = epsilon_for(known, delta), epsilon_for(bounded, delta)
        assert exact < loose < 1.25 * exact + 0.2
        assert delta_for(bounded, loose) <= delta * (1 + 1e-6)
    # Taking less noise for granted than there is (the control) is seen.
    less = events.composed(events.concentrated(1 / 16), pure)
    assert epsilon_for(less, 1e-5) < 0.9 * epsilon_for(known, 1e-5)
    assert epsilon_for(bounded, 1e-7) == math.inf  # the 20 failures alone have more


def test_concentrated_rounds_with_any_other() -> None:
    parts = [
        events.concentrated(0.01, 0.02),
        events.gaussian(5.0),
        events.laplace(8.0),
        sampled(0.05, 2.0),
        events.poisson_sampled(0.05, events.laplace(1.0)),
        events.approximate(0.05, 1e-9),
    ]
    total = epsilon_for(events.composed(*parts), DELTA)
    assert math.isfinite(total)
    assert total <= sum(epsilon_for(part, DELTA / 6) for part in parts)
    for part in parts:
        assert epsilon_for(part, DELTA) < total


# Extremes: a number, infinity, or an error that says why; never a warning, never NaN.


@pytest.mark.parametrize(
    "event",
    [
        events.gaussian(1e-3),
        events.gaussian(1e-200),
        events.gaussian(1e6),
        events.gaussian(1e300),
        events.laplace(1e-6),
        events.laplace(1e9),
        events.approximate(1e9),
        events.concentrated(1e9, 1e9),
        events.concentrated(1e-12),
        sampled(1e-9, 1e-3),
        sampled(1e-9, 1e6),
        sampled(0.999, 1e-3),
        events.poisson_sampled(1e-9, events.laplace(1e-6)),
        events.composed(events.gaussian(1e-200), events.laplace(1.0)),
        events.composed(events.gaussian(1e300), events.laplace(1.0)),
        events.composed(events.gaussian(1e-3), sampled(0.1, 1.0)),
    ],
)
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.9])
def test_extremes(event: Event, delta: float) -> None:
    one = epsilon_for(event, delta)
    many = epsilon_for(events.repeated(event, 5000), delta)
    assert 0 <= one <= many * (1 + 1e-6)
    assert 0 <= delta_for(event, 1.0) <= 1
    assert renyi_epsilon_for(event, delta) >= 0


def test_known_extremes() -> None:
    # Quantiles of the normal distribution, from tables: 4.2649 and 7.9413 standard deviations.
    assert epsilon_for(events.gaussian(1e-3), 1e-5) == pytest.approx(5e5 + 4264.9, rel=1e-5)
    assert epsilon_for(events.gaussian(1e-3), 1e-15) == pytest.approx(5e5 + 7941.3, rel=1e-5)
    assert epsilon_for(events.gaussian(1e6), 1e-5) == 0  # total variation is 4e-7
    assert epsilon_for(events.gaussian(1e-200), 1e-5) == math.inf
    assert delta_for(events.gaussian(1e-200), 1e5) == 1
    assert epsilon_for(events.laplace(1e-6), 1e-5) <= 1e6


def test_small_deltas_are_not_understated() -> None:
    """Where Fourier transforms have no digits left, and would be 5% below the truth.

    One Gaussian in 10,000 parts, each as a sampled one of the rate 1 - 1e-12: in effect the same.
    """
    multiplier, rounds = 100.0, 10_000
    one = events.gaussian(multiplier / math.sqrt(rounds))
    part = sampled(1 - 1e-12, multiplier)
    for delta in (1e-10, 1e-11, 1e-12, 1e-14):
        assert rounds_of(part, rounds, delta) >= epsilon_for(one, delta) * (1 - 1e-9)
        assert rounds_of(part, rounds, delta) <= epsilon_for(one, delta) * 1.1


def test_many_different_rounds() -> None:
    """Three hundred noise multipliers: merged to fewer, which costs little."""
    noise = np.linspace(5.0, 12.0, 300)
    event = events.composed(*(events.poisson_sampled(0.999999, events.gaussian(z)) for z in noise))
    exact = epsilon_for(events.composed(*(events.gaussian(z) for z in noise)), DELTA)
    assert exact * (1 - 1e-3) <= epsilon_for(event, DELTA) <= 1.015 * exact


@pytest.mark.parametrize("delta", [-1e-9, 1.0, math.nan])
def test_delta_is_checked(delta: float) -> None:
    with pytest.raises(ArgumentError, match="delta must be in"):
        epsilon_for(events.gaussian(1.0), delta)
    with pytest.raises(ArgumentError, match="delta must be in"):
        renyi_epsilon_for(events.gaussian(1.0), delta)
    with pytest.raises(ArgumentError, match="epsilon must be >= 0"):
        delta_for(events.gaussian(1.0), math.nan)


# Laws.

powers = st.floats(-1, 1.5).map(lambda power: 10.0**power)
leaf = st.one_of(
    st.builds(events.gaussian, powers),
    st.builds(events.laplace, powers),
    st.builds(events.concentrated, st.floats(1e-3, 1.0)),
    st.builds(events.approximate, st.floats(0.01, 1.0), st.sampled_from([0.0, 1e-9])),
    st.builds(sampled, st.floats(1e-3, 0.5), st.floats(0.5, 10.0)),
)
deltas = st.floats(-7, -2).map(lambda power: 10.0**power)
slow = settings(max_examples=25, deadline=None)
ROUNDING = 1e-3  # grids differ with what is on them


@slow
@given(leaf, deltas, st.integers(1, 50))
def test_more_rounds_and_less_delta_cost_more(event: Event, delta: float, rounds: int) -> None:
    few, many = rounds_of(event, rounds, delta), rounds_of(event, rounds + 10, delta)
    assert few <= many * (1 + ROUNDING)
    assert few <= rounds_of(event, rounds, delta / 3) * (1 + ROUNDING)


@slow
@given(leaf, leaf, deltas, st.integers(2, 5))
def test_only_what_is_composed_matters(one: Event, two: Event, delta: float, count: int) -> None:
    repeated = events.composed(events.repeated(one, count), two)
    in_turn = events.composed(*[one] * (count - 1), two, one)
    assert epsilon_for(repeated, delta) == pytest.approx(epsilon_for(in_turn, delta), rel=1e-6)


@slow
@given(leaf, leaf, deltas)
@example(events.laplace(1.0), sampled(0.001, 3.0), 1e-6)
@example(events.approximate(2.0), sampled(0.001, 3.0), 1e-6)
def test_no_worse_than_adding_up(one: Event, two: Event, delta: float) -> None:
    total = epsilon_for(events.composed(one, two), 2 * delta)
    apart = epsilon_for(one, delta) + epsilon_for(two, delta)
    if not any("ZCDp" in str(event) for event in (one, two)):  # Rényi's way is looser for few
        assert total <= apart * (1 + ROUNDING) + 1e-5
    assert total >= max(epsilon_for(one, 2 * delta), epsilon_for(two, 2 * delta)) * (1 - ROUNDING)


@slow
@given(leaf, deltas, st.integers(1, 30))
def test_delta_is_the_inverse(event: Event, delta: float, rounds: int) -> None:
    total = events.repeated(event, rounds)
    epsilon = epsilon_for(total, delta)
    if 0 < epsilon < math.inf:
        assert delta_for(total, epsilon) <= delta * 1.1
        assert delta_for(total, 0.9 * epsilon) >= delta * 0.99

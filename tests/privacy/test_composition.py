"""Composition over rounds: against exact values, dp-accounting's accountants, and simulation."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from diffsketch.privacy.accounting import events, losses
from diffsketch.privacy.accounting.events import (
    Event,
    Leaf,
    PoissonEvent,
    epsilon_for,
    gaussian_epsilon,
    no_better,
)

DELTA = 1e-5
Array = npt.NDArray[np.float64]


def rounds_of(event: Event, rounds: int, delta: float = DELTA) -> float:
    return epsilon_for(events.repeated(event, rounds), delta)


def sampled(rate: float, multiplier: float) -> Leaf:
    return events.poisson_sampled(rate, events.gaussian(multiplier))


# Gaussian noise, in closed form.


def exact_delta(mu: mpmath.mpf | float, epsilon: mpmath.mpf | float) -> mpmath.mpf:
    with mpmath.workdps(400):
        shift, level = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(shift / 2 - level / shift)
        return first - mpmath.exp(level) * mpmath.ncdf(-shift / 2 - level / shift)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: 10.0**power)


@settings(max_examples=50, deadline=None)
@given(mu=powers(-12, 1.5), delta=powers(-15, -0.01))
def test_gaussian_epsilon_is_exact_and_rounded_up(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert exact_delta(mu, epsilon) >= delta * (1 - 1e-8)
        # The control: the noise 1% smaller than was paid for.
        assert exact_delta(1.01 * mu, epsilon) > delta * (1 + 1e-6)


@pytest.mark.parametrize("mu", [1e3, 1e9, 1e100])
def test_huge_shifts(mu: float) -> None:
    """There delta is `Phi(-u)` but for a term that is smaller by a factor of `mu`."""
    for delta in (1e-15, 0.5):
        with mpmath.workdps(250):
            u = -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(delta) - 1)
            known = mpmath.mpf(mu) * (u + mpmath.mpf(mu) / 2)
        assert abs(gaussian_epsilon(mu, delta) / known - 1) < 3 / mu + 1e-9


def test_tiny_shifts_and_the_ends() -> None:
    """With epsilon = 0, delta is the total variation `2 Phi(mu / 2) - 1`, about `mu phi(0)`."""
    for mu in (1e-300, 1e-12, 1e-6):
        limit = mu / math.sqrt(2 * math.pi)
        assert gaussian_epsilon(mu, 1.0001 * limit) == 0
        if mu > 1e-20:
            assert 0 < gaussian_epsilon(mu, 0.99 * limit) < mu
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(1.0, 0.0) == gaussian_epsilon(1e200, 1e-5) == math.inf


# All events.


@pytest.mark.slow
@pytest.mark.parametrize(
    "event",
    [
        events.repeated(sampled(0.01, 0.8), 200),
        events.repeated(events.poisson_sampled(0.1, events.laplace(2.0)), 50),
        events.composed(
            events.repeated(events.gaussian(9.0), 10),
            events.repeated(events.gaussian(20.0), 30),
            events.repeated(events.laplace(15.0), 8),
            events.repeated(sampled(0.02, 1.0), 100),
        ),
    ],
)
def test_against_the_accountants_of_dp_accounting(event: Event) -> None:
    """Theirs uses a fixed grid, so ours may be below it by its coarseness, but not by more."""
    tight, loose, laplace = PLDAccountant(), RdpAccountant(), "Laplace" in str(event)
    for leaf, count in events.leaves(event):
        for accountant in (tight,) if laplace else (tight, loose):
            accountant.compose(losses.as_dp_event(leaf), count)
    for delta in (1e-3, 1e-6):
        ours = epsilon_for(event, delta)
        assert ours == pytest.approx(float(tight.get_epsilon(target_delta=delta)), rel=1e-3)
        renyi = losses.renyi_epsilon(Counter(dict(events.leaves(event))), delta)
        assert ours <= renyi
        if not laplace:
            rdp = float(loose.get_epsilon(target_delta=delta))
            assert ours < rdp
            assert renyi == pytest.approx(rdp, rel=0.1)  # their orders are others


def exact_sampled_delta(rate: float, multiplier: float, epsilon: float) -> float:
    """Of one round on a sample (Balle, Barthe, Gaboardi 2018), by high precision."""
    with mpmath.workdps(60):
        q, mu = mpmath.mpf(rate), 1 / mpmath.mpf(multiplier)
        removed = q * exact_delta(mu, mpmath.log1p(mpmath.expm1(epsilon) / q))
        weight = 1 - mpmath.exp(epsilon) * (1 - q)
        added = mpmath.mpf(0)
        if weight > 0:
            added = weight * exact_delta(mu, mpmath.mpf(epsilon) + mpmath.log(q / weight))
        return float(max(removed, added))


@pytest.mark.parametrize(("rate", "multiplier"), [(0.5, 1.0), (0.01, 1.0), (1e-3, 0.3), (0.1, 8.0)])
@pytest.mark.parametrize("delta", [1e-3, 1e-8])
def test_one_sampled_round_is_exact(rate: float, multiplier: float, delta: float) -> None:
    epsilon = epsilon_for(sampled(rate, multiplier), delta)
    assert exact_sampled_delta(rate, multiplier, epsilon) <= delta
    if epsilon > 0:
        assert exact_sampled_delta(rate, multiplier, epsilon * 0.998) > delta
        # The control: a fifth less noise than was paid for.
        assert exact_sampled_delta(rate, 0.8 * multiplier, epsilon) > delta


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
    rng, size = np.random.default_rng(11), 300_000
    right, wrong = loss_draws(rng, size, 1.0), loss_draws(rng, size, 0.8)
    for delta in (0.2, 0.05, 0.01):
        epsilon = epsilon_for(event, delta)
        for draws, fits in ((right, True), (wrong, False)):
            excess = -np.expm1(np.minimum(epsilon - np.sum(draws, axis=0), 0.0))
            error = 6 * float(excess.std()) / math.sqrt(size) + 1e-3 * delta
            gap = float(excess.mean()) - delta
            assert (abs(gap) < error) if fits else (gap > error)


def binomial_delta(bound: float, rounds: int, epsilon: float, failure: float = 0.0) -> float:
    """delta of (bound, failure)-private rounds (Kairouz, Oh, Viswanath 2015).

    The exact sum over the number of true answers of randomised response.
    """
    true = np.arange(rounds + 1)
    total = (2 * true - rounds) * bound
    odds = stats.binom.pmf(true, rounds, 1 / (1 + math.exp(-bound)))
    excess = float(np.sum(odds[total > epsilon] * -np.expm1(epsilon - total[total > epsilon])))
    return -math.expm1(rounds * math.log1p(-failure)) * (1 - excess) + excess


@pytest.mark.parametrize(
    ("bound", "failure", "rounds"), [(0.3, 1e-7, 1), (0.3, 1e-7, 30), (1.0, 0, 9)]
)
def test_approximate_rounds_compose_optimally(bound: float, failure: float, rounds: int) -> None:
    event = events.repeated(events.approximate(bound, failure), rounds)
    for delta in (1e-3, 1e-5):
        epsilon = epsilon_for(event, delta)
        assert binomial_delta(bound, rounds, epsilon, failure) <= delta * (1 + 1e-9)
        assert binomial_delta(bound, rounds, 0.995 * epsilon, failure) > delta


def test_without_delta_and_with_failures() -> None:
    assert rounds_of(events.laplace(4.0), 10, 0.0) == pytest.approx(2.5)
    assert rounds_of(events.approximate(0.5), 10, 0.0) == pytest.approx(5.0)
    bound = math.log1p(0.1 * math.expm1(0.5))
    on_a_sample = events.poisson_sampled(0.1, events.laplace(2.0))
    assert rounds_of(on_a_sample, 7, 0.0) == pytest.approx(7 * bound)
    for event in (events.gaussian(5.0), sampled(0.1, 5.0)):
        assert epsilon_for(event, 0.0) == math.inf
        assert epsilon_for(events.composed(event, events.laplace(1.0)), 0.0) == math.inf
    assert epsilon_for(events.approximate(0.5, 1e-9), 0.0) == math.inf
    ten = events.repeated(events.approximate(0.5, 1e-6), 10)
    assert epsilon_for(ten, 0.9e-5) == math.inf
    assert epsilon_for(ten, 1e-5) <= 5.0
    assert epsilon_for(events.approximate(0.5, 1e-6), 1e-6) == 0.5
    assert epsilon_for(events.composed(), 1e-5) == epsilon_for(events.composed(), 0.0) == 0
    assert epsilon_for(events.approximate(0.0), 0.0) == 0


# Extremes: a number, infinity, or an error that says why; never a warning, never NaN.


@pytest.mark.parametrize(
    "event",
    [
        events.gaussian(1e-200),
        events.gaussian(1e300),
        events.laplace(1e-6),
        events.laplace(1e9),
        events.approximate(1e9),
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
    assert 0 <= epsilon_for(event, delta) <= rounds_of(event, 5000, delta) * (1 + 1e-6)


def test_small_deltas_are_not_understated() -> None:
    """Where Fourier transforms have no digits left, and would be 5% below the truth.

    One Gaussian in 10,000 parts, each as a sampled one of the rate 1 - 1e-12: in effect the same.
    """
    multiplier, rounds = 100.0, 10_000
    one = events.gaussian(multiplier / math.sqrt(rounds))
    part = sampled(1 - 1e-12, multiplier)
    for delta in (1e-10, 1e-12, 1e-14):
        assert 1 - 1e-9 <= rounds_of(part, rounds, delta) / epsilon_for(one, delta) <= 1.1


def test_many_different_rounds() -> None:
    """Three hundred noise multipliers: merged to fewer, which costs little."""
    noise = np.linspace(5.0, 12.0, 300)
    event = events.composed(*(sampled(0.999999, z) for z in noise))
    exact = epsilon_for(events.composed(*(events.gaussian(z) for z in noise)), DELTA)
    assert exact * (1 - 1e-3) <= epsilon_for(event, DELTA) <= 1.015 * exact


# Laws.

# Privacy loss distributions: upper bounds on every grid.


def epsilon_at(parts: dict[Leaf, int], step: float, delta: float) -> float:
    return float(losses.loss_distribution(parts, step).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 1), (10.0, 100), (100.0, 10_000)])
def test_coarser_grids_stay_upper_bounds(multiplier: float, rounds: int) -> None:
    parts: dict[Leaf, int] = {events.gaussian(multiplier): rounds}
    exact = gaussian_epsilon(math.sqrt(rounds) / multiplier, 1e-5)
    step = losses.grid_step(parts)
    found = [epsilon_at(parts, factor * step, 1e-5) for factor in (1, 4, 16, 64)]
    assert exact <= found[0] <= exact * (1 + 3e-4)
    assert found == sorted(found)
    assert found[-1] > exact * 1.01  # or the test would see no grid at all


@pytest.mark.parametrize(("bound", "rounds"), [(0.5, 1), (0.1, 400), (0.01, 20_000)])
@pytest.mark.parametrize("spread", [1.0, 6.5])
def test_randomised_response_against_its_binomial(bound: float, rounds: int, spread: float) -> None:
    """Also where delta is some 1e-11."""
    parts: dict[Leaf, int] = {events.approximate(bound): rounds}
    epsilon = rounds * bound * math.tanh(bound / 2) + spread * math.sqrt(rounds) * bound
    exact = binomial_delta(bound, rounds, epsilon)
    found = losses.loss_distribution(parts, losses.grid_step(parts)).get_delta_for_epsilon(epsilon)
    margin = losses.distrust(parts)
    assert exact <= found + margin <= exact * 1.01 + 2 * margin


def test_the_margin_is_enough() -> None:
    """Fourier transforms understate delta for many rounds, but by less than half of it.

    The n-th power of a transform multiplies its rounding by n; how it rounds differs between
    libraries: -0.14 with NumPy 2.4 and SciPy 1.17, -0.245 with 2.5 and 1.18 on Python 3.13.
    """
    least = math.inf
    for rounds in (1_000, 10_000):
        bound = 1 / math.sqrt(rounds)
        parts: dict[Leaf, int] = {events.approximate(bound): rounds}
        distribution = losses.loss_distribution(parts, losses.grid_step(parts))
        for epsilon in np.linspace(5, 9, 9):
            found = float(distribution.get_delta_for_epsilon(epsilon))
            gap = found - binomial_delta(bound, rounds, float(epsilon))
            least = min(least, gap / losses.distrust(parts))
    assert -0.5 < least < -0.05  # so the margin is needed, too


def test_the_margin_is_taken_off_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    event = events.repeated(sampled(0.1, 1.0), 20)
    whole, rest = epsilon_for(event, 1e-5), epsilon_for(event, 6e-6)
    monkeypatch.setattr(losses, "distrust", lambda _: 4e-6)
    assert whole * 1.01 < rest <= epsilon_for(event, 1e-5) * (1 + 1e-9)


@pytest.mark.parametrize("ratio", [1.001, 2.0])
def test_no_better_is_less_private_in_every_respect(ratio: float) -> None:
    for value in 10.0 ** np.random.default_rng(5).uniform(-6, 6, 100):
        for make in (events.gaussian, events.laplace):
            noise: Any = no_better(make(value), ratio)
            assert value / ratio * (1 - 1e-9) <= noise.noise_multiplier <= value
        bound: Any = no_better(events.approximate(value, 1e-7), ratio)
        assert value <= bound.epsilon <= value * ratio * (1 + 1e-9)
        assert bound.delta == 1e-7
        rate = min(1.0, value / 1e6)
        part: Any = no_better(sampled(rate, value), ratio)
        if rate * ratio < 1:
            assert rate <= part.rate <= rate * ratio * (1 + 1e-9)
            assert part.event.noise_multiplier <= value
    for extreme in (1e-310, 1e308):
        for kind in (events.gaussian, events.laplace, events.approximate):
            assert no_better(kind(extreme), ratio) == kind(extreme)
    assert no_better(events.approximate(0.0), ratio) == events.approximate(0.0)


# Rényi divergences.

ORDERS = np.array([1.05, 1.5, 2.0, 3.7, 10.0, 33.3, 63.0])


def integrated(event: Leaf, order: float) -> float:
    """The divergence of the larger direction, from the densities."""
    rate, inner = (event.rate, event.event) if isinstance(event, PoissonEvent) else (1.0, event)
    gaussian = isinstance(inner, events.GaussianEvent)
    density: Any = stats.norm.logpdf if gaussian else stats.laplace.logpdf
    scale = inner.noise_multiplier  # type: ignore[union-attr]
    noise = np.linspace(-60 * scale, 60 * scale + 70, 1_000_001)
    absent = density(noise, scale=scale)
    with np.errstate(divide="ignore"):
        there = np.logaddexp(
            np.log(1 - rate) + absent, math.log(rate) + density(noise, loc=1, scale=scale)
        )
    both = []
    for first, second in ((there, absent), (absent, there)):
        power = order * first + (1 - order) * second
        top = power.max()
        moment = integrate.trapezoid(np.exp(power - top), noise)
        both.append(float(top + math.log(moment)) / (order - 1))
    return max(both)


@pytest.mark.parametrize(
    ("event", "tight"),
    [
        (events.gaussian(2.0), 1e-6),
        (events.laplace(0.7), 1e-6),
        (sampled(0.1, 1.5), 0.4),
        (events.poisson_sampled(0.2, events.laplace(2.0)), 3.0),
    ],
)
@pytest.mark.parametrize("order", [1.5, 3.7, 10.0])
def test_curves_are_above_the_divergence(event: Leaf, order: float, tight: float) -> None:
    """Exactly it, or (between whole orders, and for sampled Laplace noise) not far above."""
    exact = integrated(event, order)
    found = float(losses._curve(event, np.array([order]))[0])
    assert exact * (1 - 1e-6) <= found <= exact * (1 + tight) + 1e-9


@pytest.mark.parametrize("bound", [1e-4, 0.05, 8.0, 60.0])
def test_pure_curve_is_that_of_randomised_response(bound: float) -> None:
    for order in ORDERS:
        true, false = 1 / (1 + math.exp(-bound)), 1 / (1 + math.exp(bound))
        terms = [(true, false), (false, true)]
        logs = [order * math.log(p) + (1 - order) * math.log(q) for p, q in terms]
        exact = float(np.logaddexp(*logs)) / (order - 1)
        found = float(losses._curve(events.approximate(bound), np.array([order]))[0])
        assert exact * (1 - 1e-7) - 1e-12 <= found <= exact * (1 + 1e-4) + 1e-11


@pytest.mark.parametrize("mu", [1e-4, 0.4, 140.0])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
def test_renyi_epsilon_is_at_the_best_order(mu: float, delta: float) -> None:
    """Against a search over orders of our own, in the formula of Canonne, Kamath, Steinke."""
    orders = 1 + np.geomspace(0.0101, 1e7, 400_000)
    bound = mu**2 / 2 * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    found = losses.renyi_epsilon({events.gaussian(1 / mu): 1}, delta)
    best = max(0.0, float(bound.min()))
    assert best * (1 - 1e-6) <= found <= best * 1.002 or found == 0
    if found > 0:
        assert found > gaussian_epsilon(mu, delta)


@pytest.mark.parametrize(
    "event",
    [
        sampled(1e-9, 1e6),
        sampled(1e-3, 1e-3),
        sampled(0.5, 0.05),
        events.laplace(1e9),
        events.laplace(1e-6),
        events.approximate(1e-12),
        events.approximate(1e6),
    ],
)
def test_extremes_have_a_bound_above_zero(event: Leaf) -> None:
    """Rounding must never make a divergence 0, which would count as perfect privacy."""
    assert np.all(losses._curve(event, ORDERS) > 0)
    assert 0 <= losses.renyi_epsilon({event: 3}, 1e-9) < math.inf

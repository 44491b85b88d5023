"""Privacy loss distributions: upper bounds on every grid, against exact and independent ones."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import mpmath  # type: ignore[import-untyped]
import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy import stats

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import composition as losses
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import gaussian_epsilon
from diffsketch.privacy.accounting.events import Event

Array = npt.NDArray[np.float64]


def epsilon_at(parts: dict[Event, int], step: float, delta: float) -> float:
    return float(losses.loss_distribution(parts, step).get_epsilon_for_delta(delta))


@pytest.mark.parametrize(("multiplier", "rounds"), [(5.0, 1), (10.0, 100), (100.0, 10_000)])
def test_coarser_grids_stay_upper_bounds(multiplier: float, rounds: int) -> None:
    parts = {events.gaussian(multiplier): rounds}
    exact = gaussian_epsilon(math.sqrt(rounds) / multiplier, 1e-5)
    step = losses.grid_step(parts)
    found = [epsilon_at(parts, factor * step, 1e-5) for factor in (1, 4, 16, 64)]
    assert exact <= found[0] <= exact * (1 + 3e-4)
    assert found == sorted(found)
    assert found[-1] > exact * 1.01  # or the test would see no grid at all


@pytest.mark.parametrize(
    ("multiplier", "rate", "step"),
    [(1.0, 0.01, 1e-3), (0.3, 1e-3, 1e-2), (5.0, 0.1, 1e-3), (1.0, 1.0, 1e-2), (0.1, 0.9, 0.05)],
)
def test_sampled_gaussian_is_that_of_dp_accounting(
    multiplier: float, rate: float, step: float
) -> None:
    event = events.poisson_sampled(rate, events.gaussian(multiplier))
    ours = losses.loss_distribution({event: 1}, step)
    theirs: Any = pld.from_gaussian_mechanism(
        multiplier, sampling_prob=rate, value_discretization_interval=step
    )
    for epsilon in (0.0, 0.01, 0.3, 1.0, 5.0):
        expected = theirs.get_delta_for_epsilon(epsilon)
        assert ours.get_delta_for_epsilon(epsilon) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def binomial_delta(bound: float, rounds: int, epsilon: float) -> float:
    """Of randomised response: the exact sum over the number of true answers."""
    true = np.arange(rounds + 1)
    total = (2 * true - rounds) * bound
    odds = stats.binom.pmf(true, rounds, 1 / (1 + math.exp(-bound)))
    return float(np.sum(odds[total > epsilon] * -np.expm1(epsilon - total[total > epsilon])))


def test_the_reference_itself() -> None:
    """It is in doubles; once in 50 digits, to know that it is right."""
    bound, rounds, epsilon = 0.1, 60, 4.25
    with mpmath.workdps(50):
        odds = 1 / (1 + mpmath.exp(-mpmath.mpf(bound)))
        exact = mpmath.mpf(0)
        for true in range(rounds + 1):
            gap = epsilon - (2 * true - rounds) * mpmath.mpf(bound)
            if gap < 0:
                weight = mpmath.binomial(rounds, true) * odds**true * (1 - odds) ** (rounds - true)
                exact += weight * (1 - mpmath.exp(gap))
    assert binomial_delta(bound, rounds, epsilon) == pytest.approx(float(exact), rel=1e-10)


@pytest.mark.parametrize(("bound", "rounds"), [(0.5, 1), (0.1, 7), (0.1, 400), (0.01, 20_000)])
@pytest.mark.parametrize("spread", [1.0, 3.0, 6.5])
def test_randomised_response_against_its_binomial(bound: float, rounds: int, spread: float) -> None:
    """Also where delta is some 1e-11."""
    parts: dict[Event, int] = {events.approximate(bound): rounds}
    epsilon = rounds * bound * math.tanh(bound / 2) + spread * math.sqrt(rounds) * bound
    exact = binomial_delta(bound, rounds, epsilon)
    found = losses.loss_distribution(parts, losses.grid_step(parts)).get_delta_for_epsilon(epsilon)
    margin = losses.distrust(parts)
    assert exact <= found + margin <= exact * 1.01 + 2 * margin


def test_the_margin_is_enough() -> None:
    """Fourier transforms understate delta for many rounds, but by less than a fifth of it."""
    least = math.inf
    for rounds in (1_000, 10_000, 60_000):
        bound = 1 / math.sqrt(rounds)
        parts: dict[Event, int] = {events.approximate(bound): rounds}
        distribution = losses.loss_distribution(parts, losses.grid_step(parts))
        for epsilon in np.linspace(5, 9, 9):
            found = float(distribution.get_delta_for_epsilon(epsilon))
            gap = found - binomial_delta(bound, rounds, float(epsilon))
            least = min(least, gap / losses.distrust(parts))
    assert least > -0.2


def rounded_losses(event: Event, step: float, up: bool, remove: bool) -> tuple[int, Array]:
    """The distribution of one loss by nothing but normal distribution functions, on a grid."""
    rate, mu = event.sampling_probability, 1 / event.event.noise_multiplier
    noise = np.linspace(-12, 12 + mu, 400_001)
    with_unit = np.diff(rate * stats.norm.cdf(noise - mu) + (1 - rate) * stats.norm.cdf(noise))
    without = np.diff(stats.norm.cdf(noise))
    middle = (noise[1:] + noise[:-1]) / 2
    loss = np.log1p(rate * np.expm1(mu * middle - mu * mu / 2))
    odds, loss = (with_unit, loss) if remove else (without, -loss)
    cells = (np.ceil if up else np.floor)(loss / step).astype(int)
    return int(cells.min()), np.bincount(cells - cells.min(), weights=odds).astype(np.float64)


def convolved_deltas(
    event: Event, rounds: int, levels: tuple[float, ...], *, up: bool, remove: bool
) -> Array:
    step = 5e-4
    low, odds = rounded_losses(event, step, up, remove)
    total = np.ones(1)
    for _ in range(rounds):
        total = np.convolve(total, odds)
    loss = (low * rounds + np.arange(len(total))) * step
    excess = [np.sum(total[loss > e] * -np.expm1(e - loss[loss > e])) for e in levels]
    return np.array(excess)


@pytest.mark.parametrize(("multiplier", "rate", "rounds"), [(1.5, 0.3, 3), (2.0, 0.05, 4)])
def test_sampled_gaussian_against_direct_convolution(
    multiplier: float, rate: float, rounds: int
) -> None:
    """Rounding all losses down or up brackets the truth; no Fourier transform is involved."""
    event, levels = events.poisson_sampled(rate, events.gaussian(multiplier)), (0.05, 0.2, 0.4)
    low, high = (
        np.maximum(
            convolved_deltas(event, rounds, levels, up=up, remove=True),
            convolved_deltas(event, rounds, levels, up=up, remove=False),
        )
        for up in (False, True)
    )
    step = losses.grid_step({event: rounds})
    distribution = losses.loss_distribution({event: rounds}, step)
    found = np.array([distribution.get_delta_for_epsilon(level) for level in levels])
    assert np.all(low <= found)
    assert np.all(found <= 1.01 * high)
    # The control: a fifth less noise is outside of the bracket.
    less = events.poisson_sampled(rate, events.gaussian(0.8 * multiplier))
    wrong = losses.loss_distribution({less: rounds}, step).get_delta_for_epsilon(levels[-1])
    assert float(wrong) > 1.05 * high[-1]


def test_merged_kinds_are_no_better_and_nearly_the_same() -> None:
    noise = np.random.default_rng(4).uniform(15.0, 40.0, 400)
    parts = Counter(events.laplace(float(scale)) for scale in noise)
    merged = losses.few_kinds(parts)
    assert len(merged) <= 100
    assert sum(merged.values()) == 400
    step = losses.grid_step(merged)
    exact, coarse = epsilon_at(parts, step, 1e-5), epsilon_at(merged, step, 1e-5)
    assert exact <= coarse <= 1.02 * exact


@pytest.mark.parametrize("ratio", [1.001, 1.02, 2.0])
def test_no_better_is_less_private_in_every_respect(ratio: float) -> None:
    rng = np.random.default_rng(5)
    for value in 10.0 ** rng.uniform(-6, 6, 300):
        for make in (events.gaussian, events.laplace):
            other = losses.no_better(make(value), ratio)
            assert value / ratio * (1 - 1e-9) <= other.noise_multiplier <= value
        other = losses.no_better(events.concentrated(value, 0.3), ratio)
        assert value <= other.rho <= value * ratio * (1 + 1e-9)
        assert 0.3 <= other.xi <= 0.3 * ratio * (1 + 1e-9)
        other = losses.no_better(events.approximate(value, 1e-7), ratio)
        assert value <= other.epsilon <= value * ratio * (1 + 1e-9)
        assert other.delta == 1e-7
        rate = min(1.0, value / 1e6)
        other = losses.no_better(events.poisson_sampled(rate, events.gaussian(value)), ratio)
        if rate * ratio < 1:
            assert rate <= other.sampling_probability <= rate * ratio * (1 + 1e-9)
            assert other.event.noise_multiplier <= value
    for extreme in (1e-310, 1e-200, 1e200, 1e308):
        for kind in (events.gaussian, events.laplace, events.concentrated, events.approximate):
            assert losses.no_better(kind(extreme), ratio) == kind(extreme)
    assert losses.no_better(events.approximate(0.0), ratio) == events.approximate(0.0)


def test_what_is_out_of_reach_says_so() -> None:
    assert not losses.tractable({events.concentrated(1.0): 1})
    assert not losses.tractable({events.laplace(1e-3): 1})
    assert not losses.tractable({events.laplace(1.0): 10**7})
    assert losses.tractable({events.laplace(1.0): 10**4, events.gaussian(0.1): 1})
    with pytest.raises(ArgumentError, match="one that diffsketch makes"):
        losses.loss_distribution({events.concentrated(1.0): 1}, 0.1)

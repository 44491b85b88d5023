"""Rényi divergences against numerical integration, and what they imply against the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from scipy import integrate, stats

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import (
    _curve,
    gaussian_epsilon,
    renyi_delta,
    renyi_epsilon,
)
from diffsketch.privacy.accounting.events import Event

ORDERS = np.array([1.05, 1.5, 2.0, 3.7, 10.0, 33.3, 63.0])


def integrated(event: Event, order: float) -> float:
    """The divergence of the larger direction, from the densities."""
    rate, inner = 1.0, event
    if hasattr(event, "sampling_probability"):
        rate, inner = event.sampling_probability, event.event
    scale = inner.noise_multiplier
    density = stats.norm.logpdf if "Gaussian" in type(inner).__name__ else stats.laplace.logpdf
    noise = np.linspace(-60 * scale, 60 * scale + 70, 2_000_001)
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
        (events.poisson_sampled(0.1, events.gaussian(1.5)), 0.4),
        (events.poisson_sampled(0.2, events.laplace(2.0)), 3.0),
    ],
)
@pytest.mark.parametrize("order", [1.5, 2.0, 3.7, 10.0])
def test_curves_are_above_the_divergence(event: Event, order: float, tight: float) -> None:
    """Exactly it, or (between whole orders, and for sampled Laplace noise) not far above."""
    exact = integrated(event, order)
    found = float(_curve(event, np.array([order]))[0])
    assert exact * (1 - 1e-6) <= found <= exact * (1 + tight) + 1e-9


@pytest.mark.parametrize("bound", [1e-4, 0.05, 1.0, 8.0, 60.0])
def test_pure_curve_is_that_of_randomised_response(bound: float) -> None:
    for order in ORDERS:
        true, false = 1 / (1 + math.exp(-bound)), 1 / (1 + math.exp(bound))
        terms = [(true, false), (false, true)]
        logs = [order * math.log(p) + (1 - order) * math.log(q) for p, q in terms]
        exact = float(np.logaddexp(*logs)) / (order - 1)
        found = float(_curve(events.approximate(bound), np.array([order]))[0])
        assert exact * (1 - 1e-7) - 1e-12 <= found <= exact * (1 + 1e-4) + 1e-11


@pytest.mark.parametrize("rho", [1e-9, 1e-4, 0.1, 10.0, 1e4])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.01])
def test_concentrated_events_at_the_best_order(rho: float, delta: float) -> None:
    """Against a search over orders of our own, in the formula of Canonne, Kamath, Steinke."""
    orders = 1 + np.geomspace(0.0101, 1e7, 400_000)
    bound = rho * orders + np.log1p(-1 / orders) - np.log(delta * orders) / (orders - 1)
    found = renyi_epsilon({events.concentrated(rho): 1}, delta)
    best = max(0.0, float(bound.min()))
    assert best * (1 - 1e-6) <= found <= best * 1.002 or found == 0
    if found > 0:
        assert renyi_delta({events.concentrated(rho): 1}, found) <= delta * 1.01
        # It holds for Gaussian noise, which has just this divergence, and is not exact for it.
        assert found > gaussian_epsilon(math.sqrt(2 * rho), delta)


def test_against_dp_accounting() -> None:
    event = events.poisson_sampled(0.01, events.gaussian(1.0))
    theirs = float(RdpAccountant().compose(event, 1000).get_epsilon(target_delta=1e-5))
    assert renyi_epsilon({event: 1000}, 1e-5) == pytest.approx(theirs, rel=0.01)


@pytest.mark.parametrize(
    "event",
    [
        events.poisson_sampled(1e-9, events.gaussian(1e6)),
        events.poisson_sampled(1e-3, events.gaussian(1e-3)),
        events.poisson_sampled(0.5, events.gaussian(0.05)),
        events.laplace(1e9),
        events.laplace(1e-6),
        events.approximate(1e-12),
        events.approximate(1e6),
    ],
)
def test_extremes_have_a_bound_above_zero(event: Event) -> None:
    """Rounding must never make a divergence 0, which would count as perfect privacy."""
    curve = _curve(event, ORDERS)
    assert np.all(curve > 0)
    assert 0 <= renyi_epsilon({event: 3}, 1e-9) < math.inf
    assert 0 <= renyi_delta({event: 3}, 0.5) <= 1


def test_the_ends() -> None:
    assert renyi_delta({events.concentrated(1.0): 1}, math.inf) == 0
    assert renyi_delta({events.concentrated(1e6): 1}, 1.0) == 1
    with pytest.raises(ArgumentError, match="one that diffsketch makes"):
        renyi_epsilon({"event": 1}, 1e-5)

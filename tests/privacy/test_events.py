"""Events as plain data: only sensible ones can be made, and JSON keeps them exactly."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dp_accounting import dp_event
from hypothesis import given
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.events import Event

positive = st.floats(1e-300, 1e300)
sampled = st.builds(
    events.poisson_sampled,
    st.floats(1e-300, 1.0),
    st.one_of(st.builds(events.gaussian, positive), st.builds(events.laplace, positive)),
)
simple = st.one_of(
    st.builds(events.gaussian, positive),
    st.builds(events.laplace, positive),
    st.builds(events.concentrated, positive, st.floats(0, 1e300)),
    st.builds(events.approximate, st.floats(0, 1e300), st.floats(0, 1, exclude_max=True)),
    sampled,
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(events.repeated, inner, st.integers(1, 10**6)),
        st.lists(inner, min_size=2, max_size=3).map(lambda parts: events.composed(*parts)),
    ),
    max_leaves=6,
)

NOT_POSITIVE = [0.0, -1.0, math.nan, math.inf]


@given(nested)
def test_json_keeps_events_exactly(event: Event) -> None:
    text = json.dumps(events.to_json(event), allow_nan=False)
    assert events.from_json(json.loads(text)) == event
    events.check_event(event)


@pytest.mark.parametrize("value", NOT_POSITIVE)
@pytest.mark.parametrize("make", [events.gaussian, events.laplace, events.concentrated])
def test_noise_must_be_positive(make: Callable[[float], Event], value: float) -> None:
    with pytest.raises(ArgumentError, match="must be > 0 and finite"):
        make(value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: events.approximate(-0.1), "epsilon must be >= 0"),
        (lambda: events.approximate(math.nan), "epsilon must be >= 0"),
        (lambda: events.approximate(math.inf), "epsilon must be >= 0"),
        (lambda: events.approximate(1.0, 1.0), "delta must be in"),
        (lambda: events.approximate(1.0, -1e-9), "delta must be in"),
        (lambda: events.approximate(1.0, math.nan), "delta must be in"),
        (lambda: events.concentrated(1.0, -1.0), "xi must be >= 0"),
        (lambda: events.poisson_sampled(0.0, events.gaussian(1.0)), "rate must be in"),
        (lambda: events.poisson_sampled(1.1, events.gaussian(1.0)), "rate must be in"),
        (lambda: events.poisson_sampled(math.nan, events.gaussian(1.0)), "rate must be in"),
        (lambda: events.poisson_sampled(0.5, events.approximate(1.0)), "Gaussian or Laplace"),
        (lambda: events.poisson_sampled(0.5, events.concentrated(1.0)), "Gaussian or Laplace"),
        (
            lambda: events.poisson_sampled(0.5, events.repeated(events.laplace(1.0), 2)),
            "Gaussian or Laplace",
        ),
        (lambda: events.repeated(events.gaussian(1.0), 0), "count must be >= 1"),
        (lambda: events.repeated(events.gaussian(1.0), 2.5), "count must be an int"),  # type: ignore[arg-type]
        (lambda: events.repeated(events.gaussian(1.0), True), "count must be an int"),
    ],
)
def test_senseless_events_cannot_be_made(make: Callable[[], Event], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        make()


GAUSSIAN = {"kind": "gaussian", "noise_multiplier": 2.0}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"kind": "gauss"},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise_multiplier": "2.0"},
        {"kind": "gaussian", "noise_multiplier": True},
        {"kind": "gaussian", "noise_multiplier": None},
        {"kind": "gaussian", "noise_multiplier": math.nan},
        {"kind": "gaussian", "noise_multiplier": -2.0},
        {"kind": "gaussian", "noise_multiplier": 2.0, "count": 3},
        {"kind": "approximate", "epsilon": 1.0, "delta": 2.0},
        {"kind": "repeated", "count": 2.7, "event": GAUSSIAN},
        {"kind": "repeated", "count": "2", "event": GAUSSIAN},
        {"kind": "repeated", "count": 0, "event": GAUSSIAN},
        {"kind": "repeated", "count": 2},
        {"kind": "poisson", "rate": 0.5, "event": {"kind": "approximate", "epsilon": 1.0}},
        {"kind": "poisson", "rate": "0.5", "event": GAUSSIAN},
        {"kind": "composed", "events": 3},
        {"kind": "composed", "events": [3]},
        {"kind": ["gaussian"]},
        [],
        None,
    ],
)
def test_other_data_is_refused(data: Any) -> None:
    with pytest.raises(ArgumentError, match="data must describe an event"):
        events.from_json(data)


@pytest.mark.parametrize(
    "event",
    [
        dp_event.NonPrivateDpEvent(),
        dp_event.GaussianDpEvent(0.0),
        dp_event.GaussianDpEvent(math.nan),
        dp_event.PoissonSampledDpEvent(0.1, dp_event.ZCDpEvent(1.0)),
        dp_event.SelfComposedDpEvent(dp_event.UnsupportedDpEvent(), 3),
        "gaussian",
    ],
)
def test_events_of_others_are_refused(event: Any) -> None:
    with pytest.raises(ArgumentError):
        events.check_event(event)


def test_leaves_multiply_repetitions() -> None:
    one, two = events.gaussian(1.0), events.laplace(2.0)
    event = events.repeated(events.composed(one, events.repeated(two, 3), one), 5)
    assert list(events.leaves(event)) == [(one, 5), (two, 15), (one, 5)]
    assert not events.is_sampled(event)
    assert events.is_sampled(events.composed(event, events.poisson_sampled(0.5, one)))


def test_a_rate_of_one_is_no_sample() -> None:
    assert events.poisson_sampled(1.0, events.gaussian(2.0)) == events.gaussian(2.0)


def test_failures_are_not_sampled() -> None:
    noise, failure = events.gaussian(2.0), events.approximate(0.0, 1e-9)
    event = events.poisson_sampled(0.1, events.composed(noise, failure))
    assert event == events.composed(events.poisson_sampled(0.1, noise), failure)
    for others in ((noise, noise), (noise, events.approximate(0.1, 1e-9)), (failure, failure)):
        with pytest.raises(ArgumentError, match="Gaussian or Laplace"):
            events.poisson_sampled(0.1, events.composed(*others))


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.5, 1.0])
@pytest.mark.parametrize("scale", [0.01, 0.3, 1.0, 50.0])
def test_largest_loss_of_sampled_laplace_noise(scale: float, rate: float) -> None:
    """Against the densities themselves, on a grid that has both peaks."""
    noise = np.linspace(-1.0, 2.0, 301)
    ratio = (np.abs(noise) - np.abs(noise - 1)) / scale  # logarithms, with the unit to without it
    with np.errstate(divide="ignore"):
        loss = np.logaddexp(np.log(1 - rate), math.log(rate) + ratio)
    largest = float(np.abs(loss).max())
    event = events.poisson_sampled(rate, events.laplace(scale))
    assert events.pure_bound(event) == pytest.approx(largest, rel=1e-8)


def test_largest_loss_of_other_events() -> None:
    assert events.pure_bound(events.approximate(0.7, 1e-6)) == 0.7
    assert events.pure_bound(events.gaussian(1.0)) == math.inf
    assert events.pure_bound(events.concentrated(1.0)) == math.inf
    assert events.pure_bound(events.poisson_sampled(0.1, events.gaussian(1.0))) == math.inf

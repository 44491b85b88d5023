"""Epsilon and delta of Gaussian noise against mpmath, from tiny to huge noise."""

from __future__ import annotations

import math

import mpmath  # type: ignore[import-untyped]
import pytest
from dp_accounting import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.privacy.accounting.composition import gaussian_delta, gaussian_epsilon


def exact_delta(mu: float, epsilon: float) -> mpmath.mpf:
    with mpmath.workdps(400):
        shift, level = mpmath.mpf(mu), mpmath.mpf(epsilon)
        first = mpmath.ncdf(shift / 2 - level / shift)
        return first - mpmath.exp(level) * mpmath.ncdf(-shift / 2 - level / shift)


def powers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda power: 10.0**power)


@settings(max_examples=150, deadline=None)
@given(mu=powers(-12, 1.5), delta=powers(-15, -0.01))
def test_epsilon_is_the_least_that_holds(mu: float, delta: float) -> None:
    epsilon = gaussian_epsilon(mu, delta)
    assert exact_delta(mu, epsilon) <= delta * (1 + 1e-9)
    if epsilon > 0:
        assert exact_delta(mu, epsilon) >= delta * (1 - 1e-8)
        # The control: the noise 1% smaller than was paid for.
        assert exact_delta(1.01 * mu, epsilon) > delta * (1 + 1e-6)


@settings(max_examples=150, deadline=None)
@given(mu=powers(-12, 1.5), deviations=st.floats(-20, 8))
def test_delta_is_exact_and_rounded_up(mu: float, deviations: float) -> None:
    epsilon = max(0.0, mu * (deviations + mu / 2))
    exact = exact_delta(mu, epsilon)
    assert exact <= gaussian_delta(mu, epsilon) <= exact * (1 + mpmath.mpf("1e-10"))


@pytest.mark.parametrize("mu", [1e3, 1e6, 1e9, 1e100])
@pytest.mark.parametrize("delta", [1e-15, 1e-5, 0.5])
def test_huge_shifts(mu: float, delta: float) -> None:
    """There delta is `Phi(-u)` but for a term that is smaller by a factor of `mu`."""
    with mpmath.workdps(250):
        u = -mpmath.sqrt(2) * mpmath.erfinv(2 * mpmath.mpf(delta) - 1)
        known = mpmath.mpf(mu) * (u + mpmath.mpf(mu) / 2)
    assert abs(gaussian_epsilon(mu, delta) / known - 1) < 3 / mu + 1e-9
    assert gaussian_delta(mu, 1.0) == 1.0


@pytest.mark.parametrize("mu", [1e-300, 1e-100, 1e-12, 1e-6])
def test_tiny_shifts(mu: float) -> None:
    """With epsilon = 0, delta is the total variation `2 Phi(mu / 2) - 1`, about `mu phi(0)`."""
    limit = mu / math.sqrt(2 * math.pi)
    assert gaussian_delta(mu, 0.0) == pytest.approx(limit, rel=1e-9)
    assert gaussian_epsilon(mu, 1.0001 * limit) == 0
    if mu > 1e-20:
        assert 0 < gaussian_epsilon(mu, 0.99 * limit) < mu
    assert gaussian_delta(mu, 1.0) == 0


def test_the_ends() -> None:
    assert gaussian_epsilon(0.0, 1e-5) == 0
    assert gaussian_epsilon(1.0, 0.0) == math.inf
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert gaussian_delta(0.0, 0.0) == 0
    assert gaussian_delta(1e200, 1.0) == 1
    assert gaussian_delta(1.0, math.inf) == 0


@pytest.mark.parametrize("multiplier", [0.1, 0.5, 1.0, 3.7306, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-5, 1e-2])
def test_against_dp_accounting(multiplier: float, delta: float) -> None:
    theirs = float(gaussian_mechanism.get_epsilon_gaussian(multiplier, delta))
    assert gaussian_epsilon(1 / multiplier, delta) == pytest.approx(theirs, rel=1e-8, abs=1e-10)

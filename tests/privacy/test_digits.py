"""Epsilons in few digits: upper bounds never smaller, lower bounds never larger."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    Relation,
    Scope,
    Trust,
    Unit,
    rounded_down,
    rounded_up,
)

SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.CENTRAL)
VALUES = [0.0, 1e-7, 0.1, 0.3, 1.0, 2.0001, 7.994, 9.991, 123.4, 1e6 + 1]


def shown(value: float, basis: Basis) -> str:
    return Epsilon(value, 1e-5, 1, basis, SCOPE).shown()


@pytest.mark.parametrize("value", VALUES)
def test_upper_bounds_are_never_shown_smaller(value: float) -> None:
    up = float(rounded_up(value))
    assert value <= up <= value * 1.01
    assert up == value or float(f"{value:.3g}") <= up
    assert float(rounded_up(up)) == up


@pytest.mark.parametrize("value", VALUES)
def test_lower_bounds_are_never_shown_larger(value: float) -> None:
    down = float(rounded_down(value))
    assert value * 0.99 <= down <= value
    assert down == value or down <= float(f"{value:.3g}")
    assert float(rounded_down(down)) == down


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_both_sides_are_a_step_of_the_last_digit_apart(value: float, digits: int) -> None:
    down, up = float(rounded_down(value, digits)), float(rounded_up(value, digits))
    assert down <= value <= up
    # A step of the last digit, whatever the first one is, but for rounding to floats.
    assert up - down <= value * 10.0 ** (1 - digits) * (1 + 1e-6)


@pytest.mark.parametrize(
    ("basis", "expected"),
    [
        (Basis.PROVEN, ("2.35", "2.36")),
        (Basis.CLAIMED, ("2.35", "2.36")),
        (Basis.NONE, ("2.35", "2.36")),
        (Basis.MEASURED, ("2.34", "2.35")),
    ],
)
def test_the_basis_says_to_which_side(basis: Basis, expected: tuple[str, str]) -> None:
    # To the nearest, one of each pair would be wrong.
    assert (shown(2.342, basis), shown(2.358, basis)) == expected
    assert shown(8.0, basis) == "8"
    assert shown(math.inf, basis) == "inf"

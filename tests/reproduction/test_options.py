"""Settings of measurements are read strictly."""

from __future__ import annotations

import math

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.reproduction.measurements import options


def test_lists_come_from_texts_and_single_numbers() -> None:
    assert options.numbers({"a": "1, 2.5"}, "a") == [1.0, 2.5]
    assert options.numbers({"a": 3}, "a") == [3.0]
    assert options.wholes({"a": "4,8"}, "a") == [4, 8]


@pytest.mark.parametrize("value", ["1, x", "", "inf", True, None, [1]])
def test_other_lists_are_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="a must"):
        options.numbers({"a": value}, "a")


@pytest.mark.parametrize("value", [-1, 2.0, True, "3"])
def test_other_whole_numbers_are_refused(value: object) -> None:
    with pytest.raises(ArgumentError, match="a must be a whole number"):
        options.whole({"a": value}, "a")


def test_fractions_are_no_whole_numbers() -> None:
    with pytest.raises(ArgumentError, match="whole"):
        options.wholes({"a": "1.5"}, "a")


def test_unknown_and_missing_settings_are_named() -> None:
    with pytest.raises(ArgumentError, match="'typo'"):
        options.run_settings({"task": "mnist", "typo": 1}, {"vectors"})
    assert options.run_settings({"task": "mnist", "vectors": 3}, {"vectors"}) == {"task": "mnist"}
    with pytest.raises(ArgumentError, match="a must be given"):
        options.number({}, "a")
    with pytest.raises(ArgumentError, match="a must be a text"):
        options.text({"a": 1}, "a")


def test_infinity_becomes_none_for_json() -> None:
    assert [options.finite(value) for value in (1.0, math.inf, math.nan)] == [1.0, None, None]

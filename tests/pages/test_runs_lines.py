"""Runs that become one line: which do, what it is called, and what it comes to."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.pages.runs_lines import Line, lines_of
from diffsketch.pages.runs_plots import plots_of
from diffsketch.pages.runs_reading import Run
from diffsketch.pages.runs_tables import numbers_of, table_of
from tests.pages.runs_sample import made, point


def test_a_seed_that_stopped_keeps_its_last_value() -> None:
    """Else the mean would rise when a bad seed is gone; nor is there a jump at its last round."""
    whole = made((point(0, 0.1), point(5, 0.5), point(10, 0.9)))
    gone = made((point(0, 0.1), point(3, 0.2, loss=None)), outcome="diverged", seed=1)
    (line,), _ = lines_of([whole, gone])
    accuracy, loss = plots_of([line], prefix="p")
    assert accuracy.series[0].other_x["Rounds"] == (0.0, 5.0, 10.0)
    assert accuracy.series[0].y == pytest.approx((0.1, 0.35, 0.55))
    assert accuracy.series[0].ended == "1 of 2 seeds diverged"
    assert loss.series[0].y == (1.0, None, None)
    assert table_of([line], prefix="p").rows[0][1] == "1 of 2 finished, 1 of 2 diverged"


def test_a_seed_that_goes_on_counts_as_far_as_it_is() -> None:
    whole = made((point(0, 0.1), point(5, 0.5), point(10, 0.9)))
    open_end = made((point(0, 0.1), point(5, 0.3)), outcome="under way", seed=1)
    (line,), _ = lines_of([whole, open_end])
    accuracy = plots_of([line], prefix="p")[0].series[0]
    assert accuracy.y == pytest.approx((0.1, 0.4, 0.9))
    assert accuracy.ended == "1 of 2 seeds under way"
    assert "seed 1: 5 of 10 rounds so far" in accuracy.note
    assert numbers_of(line).accuracy == 0.9  # of those that ended


def names(*runs: Run) -> list[str]:
    return [line.name for line in lines_of(runs)[0]]


def test_names_say_what_differs() -> None:
    sketch: dict[str, Any] = {"method": "sketch", "combine": "mean", "family": "blocked"}
    assert names(made()) == ["none"]
    assert names(made(), made(**sketch, rows=7, cols=22)) == ["none", "sketch"]
    assert names(made(**sketch, rows=7, cols=22), made(**sketch, rows=1, cols=154)) == [
        "sketch 7x22", "sketch 1x154",
    ]  # fmt: skip
    diffsketch: dict[str, Any] = {
        "method": "diffsketch",
        "combine": "median",
        "rows": 7,
        "cols": 22,
    }
    assert names(
        made(**diffsketch, per_round=1.0),
        made(**diffsketch, per_round=0.5),
        made(**sketch, rows=7, cols=22),  # has another default of `combine`: its name says so
        made(rounds=2000),
    ) == [
        "diffsketch, 10 rounds, epsilon 1 a round",
        "diffsketch, 10 rounds, epsilon 0.5 a round",
        "sketch, 10 rounds",
        "none, 2,000 rounds",
    ]
    assert names(made(learning_rate=0.1), made(learning_rate=0.5)) == [
        "none, learning rate 0.1", "none, learning rate 0.5",
    ]  # fmt: skip
    assert names(made(budget=3.0), made()) == ["none, budget 3", "none"]


def test_names_of_comparisons_are_kept() -> None:
    assert names(made(name="a", budget=1.0), made(name="b")) == ["a", "b"]
    assert names(made(name="a", budget=1.0), made(name="a", budget=2.0)) == [
        "a, budget 1", "a, budget 2",
    ]  # fmt: skip
    assert names(made(name="a"), made(name="b")) == ["a", "b"]  # though their settings are one


def test_a_run_twice_is_counted_once_unless_it_differs() -> None:
    long = made((point(0, 0.1), point(5, 0.5)), path="long")
    short = made((point(0, 0.1),), path="short", outcome="interrupted")
    lines, notes = lines_of([short, long])
    assert [line.runs for line in lines] == [(long,)]
    assert notes == ["short repeats long, and is counted once."]
    other = made((point(0, 0.1), point(5, 0.6)), path="other")
    lines, notes = lines_of([long, other])
    assert [line.name for line in lines] == ["none (long)", "none (other)"]
    assert notes == []


def test_many_seeds_in_a_line() -> None:
    line = Line("a", tuple(made(seed=seed) for seed in range(3, 40)))
    assert line.seeds == "3 to 39"
    assert Line("a", tuple(made(seed=seed) for seed in (1, 2, 9))).seeds == "1, 2, 9"

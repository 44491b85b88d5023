"""What cannot be drawn is refused, with its name."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.pages.checks import all_exhibits, check_page, check_plot, check_table
from diffsketch.pages.exhibits import Axis, Mark, Page, Plot, Section, Series, Table
from tests.pages.sample import ACCURACY, CLAIMS, ERRORS, PAGE, SETTINGS


def page_of(*exhibits: Plot | Table) -> Page:
    return Page("t", "", (Section("s", "S", exhibits=exhibits),))


def test_the_sample_is_accepted_and_whole() -> None:
    check_page(PAGE)
    assert [exhibit.name for exhibit in all_exhibits(PAGE)] == [
        "claims", "accuracy", "error", "privacy", "settings", "histogram", "nasty",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "a b", "../x", "a_b", "ä", "-a", "a--b", "a/b", "a.svg"])
def test_names_that_no_file_should_have(name: str) -> None:
    with pytest.raises(ArgumentError, match="name of exhibit must consist of letters"):
        check_page(page_of(replace(ERRORS, name=name)))
    with pytest.raises(ArgumentError, match="name of section"):
        check_page(Page("t", "", (Section(name, "S"),)))


def test_names_are_unique_also_without_capitals_and_in_folds() -> None:
    with pytest.raises(ArgumentError, match="be unique on its page, got name of exhibit='Error'"):
        check_page(page_of(ERRORS, replace(ERRORS, name="Error")))
    folded = Section("s", "S", exhibits=(SETTINGS,), details={"more": SETTINGS})
    with pytest.raises(ArgumentError, match="unique"):
        check_page(Page("t", "", (folded,)))
    with pytest.raises(ArgumentError, match="name of section must be unique"):
        check_page(Page("t", "", (Section("s", "S"), Section("s", "S"))))
    check_page(Page("t", "", (Section("error", "S", exhibits=(ERRORS,)),)))


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (Series("a", (1.0,), (1.0, 2.0)), "x of series 'a' in plot 'p' must have 2 numbers, got 1"),
        (Series("a", (1.0,), (1.0,), low=(0.0,)), "high of series 'a'"),
        (Series("a", (1.0,), (1.0,), high=(0.0, 1.0), low=(0.0,)), "high of series 'a'"),
        (Series("a", (1.0, 2.0), (1.0, 2.0), kind="steps"), "must have 3 numbers, got 2"),
    ],
)
def test_numbers_that_do_not_belong_together(series: Series, message: str) -> None:
    with pytest.raises(MismatchError, match=message):
        check_plot(Plot("p", "P", Axis("x"), Axis("y"), (series,)))


def test_every_series_has_every_axis() -> None:
    lacking = replace(ACCURACY.series[0], other_x={"rounds": ACCURACY.series[0].x})
    with pytest.raises(MismatchError, match=r"other_x\['seconds'\] of series 'none'"):
        check_plot(replace(ACCURACY, series=(lacking,)))
    with pytest.raises(ArgumentError, match="have labels of their own"):
        check_plot(replace(ACCURACY, other_x=(Axis("rounds"), Axis("rounds"))))


def test_marks_and_rows() -> None:
    with pytest.raises(ArgumentError, match="mark of plot error must be finite"):
        check_plot(replace(ERRORS, marks=(Mark(math.nan, "nowhere"),)))
    with pytest.raises(MismatchError, match="row 1 of table 'claims' must have 5 cells, got 1"):
        check_table(replace(CLAIMS, rows=(CLAIMS.rows[0], ("short",))))

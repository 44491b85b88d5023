"""Parts of a page: what cannot be shown is refused, texts stay true, CSV reads back."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace

import pytest

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.pages.exhibits import (
    Axis,
    Exhibit,
    Mark,
    Page,
    Plot,
    Section,
    Series,
    Table,
    all_exhibits,
    to_csv,
    to_latex,
)
from diffsketch.privacy.claim import Epsilon
from tests.pages import sample


def page_of(*exhibits: Plot | Table) -> Page:
    return Page("t", "", (Section("s", "S", exhibits=exhibits),))


def test_the_sample_is_accepted_and_whole() -> None:
    assert [exhibit.name for exhibit in all_exhibits(sample.PAGE)] == [
        "claims", "accuracy", "error", "privacy", "settings", "histogram", "nasty",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["", "../x", "a_b", "ä", "a--b"])
def test_names_that_no_file_should_have(name: str) -> None:
    with pytest.raises(ArgumentError, match="name of exhibit must consist of letters"):
        replace(sample.ERRORS, name=name)
    with pytest.raises(ArgumentError, match="name of section"):
        Page("t", "", (Section(name, "S"),))


def test_names_are_unique_also_without_capitals_and_in_folds() -> None:
    with pytest.raises(ArgumentError, match="be unique on its page, got name of exhibit='Error'"):
        page_of(sample.ERRORS, replace(sample.ERRORS, name="Error"))
    folded = Section("s", "S", exhibits=(sample.SETTINGS,), details={"more": (sample.SETTINGS,)})
    with pytest.raises(ArgumentError, match="unique"):
        Page("t", "", (folded,))
    with pytest.raises(ArgumentError, match="name of section must be unique"):
        Page("t", "", (Section("s", "S"), Section("s", "S")))
    Page("t", "", (Section("error", "S", exhibits=(sample.ERRORS,)),))


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
        Plot("p", "P", Axis("x"), Axis("y"), (series,))


def test_every_series_has_every_axis() -> None:
    lacking = replace(sample.ACCURACY.series[0], other_x={"rounds": sample.ACCURACY.series[0].x})
    with pytest.raises(MismatchError, match=r"other_x\['seconds'\] of series 'none'"):
        replace(sample.ACCURACY, series=(lacking,))
    with pytest.raises(ArgumentError, match="have labels of their own"):
        replace(sample.ACCURACY, other_x=(Axis("rounds"), Axis("rounds")))


def test_marks_and_rows() -> None:
    with pytest.raises(ArgumentError, match="mark of plot error must be finite"):
        replace(sample.ERRORS, marks=(Mark(math.nan, "nowhere"),))
    with pytest.raises(MismatchError, match="row 1 of table 'claims' must have 5 cells, got 1"):
        replace(sample.CLAIMS, rows=(sample.CLAIMS.rows[0], ("short",)))


def lines(exhibit: Exhibit) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(exhibit).decode("utf-8"), newline="")))


@pytest.mark.parametrize("text", ["=1+1", "+A1", "-2+cmd|' /C'!A0", "@SUM(A1)", "\t=1", "-x"])
def test_cells_are_no_formulas(text: str) -> None:
    table = Table("t", "T", (text, "number"), ((text, -1.5), ("-2e-05", -3)))
    first, second = lines(table)
    assert first == {f"'{text}": f"'{text}", "number": "-1.5"}
    assert second == {f"'{text}": "-2e-05", "number": "-3"}


def test_a_plot_has_a_line_for_each_point() -> None:
    plot, found = sample.ACCURACY, lines(sample.ACCURACY)
    assert len(found) == sum(len(series.y) for series in plot.series) + len(plot.marks)
    series = plot.series[2]
    mine = [line for line in found if line["series"] == series.name]
    assert tuple(float(line["x"]) for line in mine) == series.x
    assert tuple(float(line["y"]) for line in mine) == series.y  # to the last bit
    assert tuple(float(line["low"]) for line in mine) == series.low
    assert tuple(float(line["high"]) for line in mine) == series.high
    assert tuple(float(line["x: seconds"]) for line in mine) == series.other_x["seconds"]
    epsilon = {name: text for name, text in mine[0].items() if name.startswith("epsilon")}
    assert epsilon == {
        "epsilon_text": "", "epsilon_value": "7.981", "epsilon_delta": "1e-05",
        "epsilon_basis": "proven", "epsilon_unit": "client", "epsilon_relation": "replace",
        "epsilon_trust": "distributed", "epsilon_rounds": "60",
    }  # fmt: skip


def test_ends_gaps_marks() -> None:
    found = lines(sample.ACCURACY)
    assert [line["ended"] for line in found if line["ended"]] == ["diverged in round 22"]
    assert next(line for line in found if line["series"] == "none")["epsilon_value"] == "inf"
    assert found[-1]["kind"] == "mark"
    assert found[-1]["y"] == "0.9"
    assert lines(sample.ERRORS)[2]["y"] == ""
    assert lines(sample.ERRORS)[-1]["x"] == "50.0"
    assert lines(sample.NASTY_PLOT)[1]["y"] == "inf"


def test_bins_and_categories() -> None:
    first = lines(sample.HISTOGRAM)[0]
    assert (float(first["x"]), float(first["x_end"])) == sample.HISTOGRAM.series[0].x[:2]
    assert [line["category"] for line in lines(sample.PRIVACY)[:2]] == ["Theorem 1", "Skellam"]


def test_tables() -> None:
    assert to_csv(sample.SETTINGS).decode() == (
        "setting,value,why\nrounds,60,as in the paper\nmomentum,true,\nstep,0.1,tuned\n"
    )
    found = lines(sample.CLAIMS)
    assert found[3]["claim"] == sample.NASTY
    assert found[0]["privacy basis"] == "claimed"
    assert found[3]["privacy"] == found[3]["privacy trust"] == ""


def test_tables_as_latex() -> None:
    assert to_latex(sample.SETTINGS).decode().splitlines() == [
        r"\begin{tabular}{lll}", r"\toprule", r"setting & value & why \\", r"\midrule",
        r"rounds & 60 & as in the paper \\", r"momentum & yes & -- \\", r"step & 0.1 & tuned \\",
        r"\bottomrule", r"\end{tabular}",
    ]  # fmt: skip
    text = to_latex(sample.CLAIMS).decode()
    assert r"\begin{tabular}{llrlr}" in text
    assert r"$\varepsilon$ $\geq$ 3.44 at $\delta$ = 1e-05" in text
    # Nothing of a name is a command: its signs are escaped.
    assert r"\& \%\{x\} \$2\textasciicircum{}2\$" in text


def test_a_column_of_epsilons_and_others() -> None:
    table = Table("t", "T", ("privacy", "n"), ((sample.PROVEN, 1), ("no claim", 2)))
    found = lines(table)
    assert isinstance(table.rows[0][0], Epsilon)
    assert found[0]["privacy"] == "7.981"
    assert found[1] == {
        "privacy": "no claim", "privacy delta": "", "privacy basis": "", "privacy unit": "",
        "privacy relation": "", "privacy trust": "", "privacy rounds": "", "n": "2",
    }  # fmt: skip


def test_points_that_are_epsilons_have_each_their_own() -> None:
    by_case = Series("claimed", (0.0, 1.0, 2.0), (0.5, 3.0, None), epsilon=sample.PROVEN,
                     epsilon_along="y")  # fmt: skip
    bins = Series("bins", (0.1, 0.2, 0.4), (0.5, 0.5), kind="steps", epsilon=sample.PROVEN,
                  epsilon_along="x")  # fmt: skip
    whole = Series("whole", (0.0,), (0.5,), epsilon=sample.PROVEN)
    found = lines(Plot("p", "", Axis(""), Axis(""), (by_case, bins, whole)))
    values = ["0.5", "3.0", "", "", "", repr(float(sample.PROVEN))]
    assert [line["epsilon_value"] for line in found] == values
    assert {line["epsilon_basis"] for line in found} == {"proven"}

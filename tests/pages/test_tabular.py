"""CSV: all numbers, exactly."""

from __future__ import annotations

import csv
import io

from diffsketch.pages.exhibits import Axis, Exhibit, Plot, Series, Table
from diffsketch.pages.tabular import to_csv
from diffsketch.privacy.claim import Epsilon
from tests.pages.sample import (
    ACCURACY,
    CLAIMS,
    ERRORS,
    HISTOGRAM,
    NASTY,
    NASTY_PLOT,
    PRIVACY,
    PROVEN,
    SETTINGS,
)


def lines(exhibit: Exhibit) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(to_csv(exhibit).decode("utf-8"), newline="")))


def test_a_plot_has_a_line_for_each_point() -> None:
    found = lines(ACCURACY)
    assert len(found) == sum(len(series.y) for series in ACCURACY.series) + len(ACCURACY.marks)
    series = ACCURACY.series[2]
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
    found = lines(ACCURACY)
    assert [line["ended"] for line in found if line["ended"]] == ["diverged in round 22"]
    assert next(line for line in found if line["series"] == "none")["epsilon_value"] == "inf"
    assert found[-1]["kind"] == "mark"
    assert found[-1]["y"] == "0.9"
    assert lines(ERRORS)[2]["y"] == ""
    assert lines(ERRORS)[-1]["x"] == "50.0"
    assert lines(NASTY_PLOT)[1]["y"] == "inf"


def test_bins_and_categories() -> None:
    first = lines(HISTOGRAM)[0]
    assert (float(first["x"]), float(first["x_end"])) == HISTOGRAM.series[0].x[:2]
    assert [line["category"] for line in lines(PRIVACY)[:2]] == ["Theorem 1", "Skellam"]


def test_tables() -> None:
    assert to_csv(SETTINGS).decode() == (
        "setting,value,why\nrounds,60,as in the paper\nmomentum,true,\nstep,0.1,tuned\n"
    )
    found = lines(CLAIMS)
    assert found[3]["claim"] == NASTY
    assert found[0]["privacy basis"] == "claimed"
    assert found[3]["privacy"] == found[3]["privacy trust"] == ""


def test_a_column_of_epsilons_and_others() -> None:
    table = Table("t", "T", ("privacy", "n"), ((PROVEN, 1), ("no claim", 2)))
    found = lines(table)
    assert isinstance(table.rows[0][0], Epsilon)
    assert found[0]["privacy"] == "7.981"
    assert found[1] == {
        "privacy": "no claim", "privacy delta": "", "privacy basis": "", "privacy unit": "",
        "privacy relation": "", "privacy trust": "", "privacy rounds": "", "n": "2",
    }  # fmt: skip


def test_points_that_are_epsilons_have_each_their_own() -> None:
    by_case = Series("claimed", (0.0, 1.0, 2.0), (0.5, 3.0, None), epsilon=PROVEN,
                     epsilon_along="y")  # fmt: skip
    bins = Series("bins", (0.1, 0.2, 0.4), (0.5, 0.5), kind="steps", epsilon=PROVEN,
                  epsilon_along="x")  # fmt: skip
    whole = Series("whole", (0.0,), (0.5,), epsilon=PROVEN)
    found = lines(Plot("p", "", Axis(""), Axis(""), (by_case, bins, whole)))
    values = ["0.5", "3.0", "", "", "", repr(float(PROVEN))]
    assert [line["epsilon_value"] for line in found] == values
    assert {line["epsilon_basis"] for line in found} == {"proven"}

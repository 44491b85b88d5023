"""Plots as Plotly figures: every kind, gaps, logarithms, other axes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from diffsketch.pages.exhibits import Axis, Mark, Plot, Series
from diffsketch.pages.interactive import figure, group_of, library, switched
from diffsketch.pages.palette import NEUTRAL, looks_of_page
from tests.pages.sample import ACCURACY, ERRORS, HISTOGRAM, NASTY_PLOT, PAGE, PRIVACY


def plot_of(*series: Series, **more: Any) -> Plot:
    axes = {"x": Axis("x"), "y": Axis("y")} | more
    return Plot("p", "P", series=series, **axes)


def traces(plot: Plot, index: int) -> list[dict[str, Any]]:
    data = figure(plot)["data"]
    return [trace for trace in data if trace["legendgroup"] == group_of(index)]


@pytest.mark.parametrize("plot", [ACCURACY, ERRORS, PRIVACY, HISTOGRAM, NASTY_PLOT])
def test_figures_are_plain_json_and_repeatable(plot: Plot) -> None:
    text = json.dumps(figure(plot), allow_nan=False)
    assert text == json.dumps(figure(plot), allow_nan=False)
    assert "template" not in figure(plot)["layout"]  # Plotly's own would be 7 kB in each
    assert sum(trace["showlegend"] for trace in figure(plot)["data"]) == len(plot.series)


def test_a_band_belongs_to_its_line() -> None:
    series = Series("a", (1.0, 2.0, 3.0, 4.0), (5.0, 6.0, None, 8.0), (4.0, 5.0, None, 7.0),
                    (6.0, 7.0, None, 9.0), kind="band")  # fmt: skip
    shade, line = traces(plot_of(series), 0)
    # Up along the high end, back along the low one; what follows a gap is on its own.
    assert shade["x"] == [1, 2, 2, 1, None, 4, 4, None]
    assert shade["y"] == [6, 7, 5, 4, None, 9, 7, None]
    assert shade["fill"] == "toself"
    assert line["y"] == [5, 6, None, 8]
    assert line["customdata"] == [" (4 to 6)", " (5 to 7)", "", " (7 to 9)"]
    assert line["line"]["dash"] == "solid"


def test_a_spread_that_reaches_zero_stays_on_a_logarithmic_axis() -> None:
    series = Series("a", (0.0, 1.0, 2.0), (2.0, 2.0, 0.0), (1.0, -1.0, 0.0), (4.0, 4.0, 4.0),
                    kind="band")  # fmt: skip
    shade, line = traces(plot_of(series, x=Axis("x", log=True), y=Axis("y", log=True)), 0)
    assert line["x"] == [None, 1, 2]
    assert line["y"] == [2, 2, None]
    assert shade["y"] == [4, 4, 0.5, 0.5, None]  # half of the least positive number


def test_without_a_spread_a_band_is_a_line() -> None:
    (line,) = traces(plot_of(Series("a", (1.0,), (2.0,), kind="band")), 0)
    assert line["mode"] == "lines+markers"


def test_kinds() -> None:
    line, points = figure(ERRORS)["data"]
    assert line["y"][2] is None
    assert points["mode"] == "markers"
    assert points["error_y"]["array"][0] == pytest.approx(0.2)
    assert points["error_y"]["arrayminus"][4] == pytest.approx(1.0)
    claimed, measured = figure(PRIVACY)["data"]
    assert claimed["type"] == measured["type"] == "bar"
    assert claimed["marker"]["pattern"]["shape"] == "/"  # dashed
    assert "pattern" not in measured["marker"]
    assert figure(PRIVACY)["layout"]["xaxis"]["ticktext"][1] == "Skellam"
    steps, fit = figure(HISTOGRAM)["data"]
    assert steps["line"]["shape"] == "hv"
    assert len(steps["x"]) == len(steps["y"]) == len(steps["customdata"]) == 21
    assert steps["customdata"][0] == "-3 to -2.7"
    assert fit["line"]["dash"] != "solid"
    assert fit["line"]["color"] == NEUTRAL


def test_colours_follow_roles_over_plots() -> None:
    looks = looks_of_page(PAGE)
    one = figure(ACCURACY, looks)["data"][3]
    other = figure(ERRORS, looks)["data"][0]
    assert one["name"] == other["name"] == "DiffSketch 50x"
    assert one["line"]["color"] == other["line"]["color"] == looks["diffsketch"].colour


def test_an_early_end_is_marked() -> None:
    shade, line, end = traces(ACCURACY, 3)
    assert (end["x"], end["y"]) == (line["x"][-1:], line["y"][-1:])
    assert "diverged in round 22" in end["hovertemplate"]
    assert shade["meta"] == "band"
    # The last point that can be drawn, where the last one cannot.
    gone = Series("a", (1.0, 2.0, 3.0), (5.0, 6.0, math.nan), ended="diverged")
    assert traces(plot_of(gone), 0)[1]["x"] == [2]


def test_hover_says_what_it_is_worth() -> None:
    hover = traces(ACCURACY, 1)[1]["hovertemplate"].replace("<br>", " ")
    for words in ("bytes from all workers: %{x}", "test accuracy: %{y}%{customdata}",
                  "ε = 1 a round (claimed; coordinate unit, add-or-remove, local trust)",
                  "<i>mean of five seeds</i>"):  # fmt: skip
        assert words in hover
    assert "ε = 7.99 at δ = 1e-05" in traces(ACCURACY, 2)[1]["hovertemplate"]


def test_axes() -> None:
    layout = figure(ACCURACY)["layout"]
    assert layout["xaxis"]["type"] == "log"
    assert layout["yaxis"]["type"] == "linear"
    assert layout["yaxis"]["tickformat"].endswith("p")
    assert layout["xaxis"]["title"]["text"] == "bytes from all workers"


def test_other_axes_have_only_what_differs() -> None:
    rounds, seconds = switched(ACCURACY)
    assert rounds["label"] == "rounds"
    full = figure(ACCURACY, axis_index=1)
    assert len(rounds["data"]) == len(full["data"])
    for before, change, after in zip(figure(ACCURACY)["data"], rounds["data"], full["data"],
                                     strict=True):  # fmt: skip
        assert {**before, **change} == after
        assert "y" not in change
    assert rounds["data"][1]["x"][:2] == [1, 2]
    assert seconds["layout"]["xaxis"]["title"]["text"] == "seconds"
    assert seconds["layout"]["xaxis"]["type"] == "linear"


def test_other_axes_have_the_same_traces_even_where_nothing_can_be_drawn() -> None:
    series = Series("a", (1.0,), (1.0,), (0.5,), (2.0,), kind="band", ended="diverged",
                    other_x={"time": (0.0,)})  # fmt: skip
    plot = plot_of(series, other_x=(Axis("time", log=True),))
    (time,) = switched(plot)
    assert [change["x"] for change in time["data"]] == [[], [None], []]


def test_marks() -> None:
    plot = replace(ACCURACY, marks=(Mark(0.9, "y"), Mark(1e5, "x", axis="x")))
    layout = figure(plot)["layout"]
    across, upright = layout["shapes"]
    assert (across["yref"], across["y0"], across["y1"], across["xref"]) == ("y", 0.9, 0.9, "paper")
    assert (upright["xref"], upright["x0"], upright["yref"]) == ("x", 1e5, "paper")
    # Plotly takes words on a logarithmic axis at the logarithm, and lines at the number.
    assert layout["annotations"][1]["x"] == pytest.approx(5)
    other = figure(plot, axis_index=1)["layout"]
    assert [shape["visible"] for shape in other["shapes"]] == [True, False]
    below = replace(ACCURACY, marks=(Mark(0.0, "x", axis="x"),))
    assert not figure(below)["layout"]["shapes"][0]["visible"]


def test_text_is_no_markup() -> None:
    text = json.dumps(figure(NASTY_PLOT))
    assert "<script" not in text
    assert "<img" not in text
    assert "%{x}" in text.replace("%&#123;x}", "")  # of the template, not of the name
    assert "$" not in text


def test_plotly_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Invalid value"):
        figure(plot_of(Series("a", (1.0,), (1.0,))), {"a": replace_colour("no colour")})


def replace_colour(colour: str) -> Any:
    return replace(looks_of_page(PAGE)["diffsketch"], colour=colour)


def test_the_library_fits_a_script_element() -> None:
    source = library()
    assert "Plotly" in source[:20000] or "plotly.js" in source[:200]
    assert "</script" not in source.lower()
    assert "\r" not in source  # a browser would change it, and its hash with it

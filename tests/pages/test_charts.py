"""Colours that can be told apart, Plotly figures, and pictures drawn from the same figures."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image
from plotly.offline import get_plotlyjs

from diffsketch.pages.charts import (
    COLOURS,
    NEUTRAL,
    Look,
    figure,
    looks_of,
    switched,
    to_png,
    to_svg,
)
from diffsketch.pages.exhibits import Axis, Mark, Plot, Series, all_exhibits
from diffsketch.pages.page import asset
from tests.pages.sample import ACCURACY, ERRORS, HISTOGRAM, NASTY_PLOT, PAGE, PRIVACY

Array = npt.NDArray[np.float64]
LOOKS = looks_of(all_exhibits(PAGE))

# Machado, Oliveira and Fernandes (2009), severity 1, on linear RGB.
VISION = {
    "all cones": np.eye(3),
    "no red": np.array([[0.152286, 1.052583, -0.204868],
                        [0.114503, 0.786281, 0.099216],
                        [-0.003882, -0.048116, 1.051998]]),
    "no green": np.array([[0.367322, 0.860646, -0.227968],
                          [0.280085, 0.672501, 0.047413],
                          [-0.011820, 0.042940, 0.968881]]),
    "no blue": np.array([[1.255528, -0.076749, -0.178779],
                         [-0.078411, 0.930809, 0.147602],
                         [0.004733, 0.691367, 0.303900]]),
}  # fmt: skip
_CONES = np.array([[0.4122214708, 0.5363325363, 0.0514459929],
                   [0.2119034982, 0.6806995451, 0.1073969566],
                   [0.0883024619, 0.2817188376, 0.6299787005]])  # fmt: skip
_LAB = np.array([[0.2104542553, 0.7936177850, -0.0040720468],
                 [1.9779984951, -2.4285922050, 0.4505937099],
                 [0.0259040371, 0.7827717662, -0.8086757660]])  # fmt: skip


def linear(colour: str) -> Array:
    parts = np.array([int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def distance(one: str, other: str, vision: Array) -> float:
    """In OKLab, in which 0.02 is just seen."""
    seen = [np.clip(vision @ linear(colour), 0, 1) for colour in (one, other)]
    first, second = (_LAB @ np.cbrt(_CONES @ colour) for colour in seen)
    return float(np.linalg.norm(first - second))


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, as the Web Content Accessibility Guidelines define it."""
    weights = np.array([0.2126, 0.7152, 0.0722])
    low, high = sorted(float(weights @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("vision", VISION)
def test_colours_can_be_told_apart(vision: str) -> None:
    for pair in itertools.combinations((*COLOURS, NEUTRAL), 2):
        assert distance(*pair, VISION[vision]) > 0.05, pair


def test_a_palette_of_red_and_green_would_be_found() -> None:
    assert distance("#d62728", "#8c6d00", VISION["all cones"]) > 0.05
    assert distance("#d62728", "#8c6d00", VISION["no red"]) < 0.1
    assert distance("#7d8000", "#a86e00", VISION["no green"]) < 0.05


def test_colours_and_text_stand_out_on_both_backgrounds() -> None:
    themes = re.findall(r"--back: (\S+); --card: (\S+); --text: (\S+); --muted: (\S+);",
                        asset("page.css"))  # fmt: skip
    assert len(themes) == 2  # light and dark
    for back, card, text, muted in themes:
        assert min(contrast(colour, card) for colour in (*COLOURS, NEUTRAL)) >= 3
        for below, above in itertools.product((back, card), (text, muted)):
            assert contrast(below, above) >= 4.5


def looks_for(*plots: list[str]) -> Mapping[str, Look]:
    series = [tuple(Series(name, (0.0,), (0.0,)) for name in names) for names in plots]
    return looks_of([Plot("p", "", Axis(""), Axis(""), each) for each in series])


def test_roles_differ_in_colour_or_symbol_and_where_they_share_a_plot_in_colour() -> None:
    names = [f"method {number}" for number in range(64)]
    looks = looks_for(names)
    assert len(set(looks.values())) == 64
    assert len({looks[name].colour for name in names[: len(COLOURS)]}) == len(COLOURS)
    # The second plot's roles are the first and the ninth to appear: counting on would repeat one.
    looks = looks_for(names[:8], ["method 0", "method 8"])
    assert len({looks[name].colour for name in names[:8]}) == 8
    assert looks["method 0"].colour != looks["method 8"].colour
    assert len(set(looks.values())) == 9


def plot_of(*series: Series, **more: Any) -> Plot:
    axes = {"x": Axis("x"), "y": Axis("y")} | more
    return Plot("p", "P", series=series, **axes)


def traces(plot: Plot, index: int) -> list[dict[str, Any]]:
    data = figure(plot)["data"]
    return [trace for trace in data if trace["legendgroup"] == f"series-{index}"]


@pytest.mark.parametrize("plot", [ACCURACY, ERRORS, PRIVACY, HISTOGRAM, NASTY_PLOT])
def test_figures_are_plain_json_and_their_svg_has_every_colour(plot: Plot) -> None:
    text = json.dumps(figure(plot), allow_nan=False)
    assert text == json.dumps(figure(plot), allow_nan=False)
    assert "template" not in figure(plot)["layout"]  # Plotly's own would be 7 kB in each
    assert sum(trace["showlegend"] for trace in figure(plot)["data"]) == len(plot.series)
    picture = to_svg(plot, LOOKS)
    assert ElementTree.fromstring(picture).tag.endswith("svg")  # noqa: S314 - our own
    assert b"<dc:date>" not in picture
    for series in plot.series:
        assert LOOKS[series.role or series.name].colour.encode() in picture, series.name


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
    one, other = figure(ACCURACY, LOOKS)["data"][3], figure(ERRORS, LOOKS)["data"][0]
    assert one["name"] == other["name"] == "DiffSketch 50x"
    assert one["line"]["color"] == other["line"]["color"] == LOOKS["diffsketch"].colour
    assert "DiffSketch 50x" not in LOOKS  # has a role of its own
    assert LOOKS["none"].colour == LOOKS["reference"].colour == NEUTRAL


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
    assert layout["yaxis"]["tickformat"].endswith("%")
    other = figure(plot, axis_index=1)["layout"]
    assert [shape["visible"] for shape in other["shapes"]] == [True, False]
    below = replace(ACCURACY, marks=(Mark(0.0, "x", axis="x"),))
    assert not figure(below)["layout"]["shapes"][0]["visible"]


def test_ticks_differ_and_have_units() -> None:
    y = Axis("share", percent=True)
    bytes_up = Axis("Bytes sent", log=True, unit="B")
    close = Plot("p", "", bytes_up, y, (Series("a", (1e6, 1e7), (0.99995, 1.0)),))
    layout = figure(close)["layout"]
    assert " ".join(layout["xaxis"]["ticktext"]).startswith("100 kB 200 kB 500 kB 1 MB 2 MB")
    digits = int(layout["yaxis"]["tickformat"][1])
    assert f"{0.99995:.{digits}%}" != f"{0.99996:.{digits}%}"
    assert "range" not in layout["yaxis"]
    drawn = to_svg(close).decode()
    assert "<!-- 10 MB -->" in drawn  # matplotlib's note of the text that a path draws
    # Plotly would show a line that is flat at 100% from 0% to 200%.
    flat = Plot("p", "", Axis("x"), y, (Series("a", (0.0, 1.0, 2.0), (None, 1.0, 1.0)),))
    assert figure(flat)["layout"]["yaxis"]["range"] == pytest.approx([0.95, 1.004])


def test_text_is_no_markup() -> None:
    text = json.dumps(figure(NASTY_PLOT))
    assert "<script" not in text
    assert "<img" not in text
    assert "%{x}" in text.replace("%&#123;x}", "")  # of the template, not of the name
    assert "$" not in text


def test_plotly_refuses_what_it_does_not_know() -> None:
    with pytest.raises(ValueError, match="Invalid value"):
        figure(plot_of(Series("a", (1.0,), (1.0,))), {"a": Look("#000000", "no symbol")})


def test_the_library_fits_a_script_element() -> None:
    source = get_plotlyjs()
    assert "Plotly" in source[:20000] or "plotly.js" in source[:200]
    assert "</script" not in source.lower()
    assert "\r" not in source  # a browser would change it, and its hash with it


@pytest.mark.parametrize("kind", ["line", "band", "points", "bars"])
def test_pictures_show_spreads_and_dashes(kind: Any) -> None:
    series = Series("a", (1.0, 2.0), (5.0, 6.0), (4.0, 5.0), (6.0, 7.0), kind=kind)
    changes = (series, replace(series, low=(), high=()), replace(series, dashed=True))
    assert len({to_svg(plot_of(each)) for each in changes}) == 3


@pytest.mark.slow
def test_the_same_plot_gives_the_same_bytes_whatever_is_set() -> None:
    svg, png = to_svg(ACCURACY), to_png(ACCURACY)
    with mpl.rc_context({"lines.linewidth": 9, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        assert to_svg(ACCURACY) == svg
        assert to_png(ACCURACY) == png
        assert mpl.rcParams["lines.linewidth"] == 9  # as it was
    assert to_svg(ERRORS) != svg


def test_png_shows_the_series() -> None:
    image = np.asarray(Image.open(io.BytesIO(to_png(PRIVACY, LOOKS))).convert("RGB"))
    assert image.shape[1] > 900
    colour = tuple(int(LOOKS["measured"].colour[start : start + 2], 16) for start in (1, 3, 5))
    assert (image == colour).all(axis=2).mean() > 0.02  # bars
    other = np.asarray(Image.open(io.BytesIO(to_png(ERRORS, LOOKS))).convert("RGB"))
    assert (other == colour).all(axis=2).mean() == 0


def test_plots_without_numbers() -> None:
    nothing = Series("a", (), (), kind="steps"), Series("b", (1.0,), (None,), ended="at once")
    to_png(Plot("p", "", Axis("x", log=True), Axis("y"), nothing))
    to_svg(Plot("p", "", Axis("x"), Axis("y", percent=True), ()))

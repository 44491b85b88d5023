"""Colours that can be told apart, and pictures of plots. Plotly's figures: test_browser.py."""

from __future__ import annotations

import io
import itertools
import json
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

from diffsketch.pages.charts import COLOURS, NEUTRAL, Look, looks_of, spec
from diffsketch.pages.exhibits import Axis, Plot, Series, all_exhibits
from diffsketch.pages.page import asset
from diffsketch.pages.pictures import picture, thumbnail
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


@pytest.mark.parametrize("plot", [ACCURACY, ERRORS, PRIVACY, HISTOGRAM, NASTY_PLOT])
def test_plots_are_plain_json(plot: Plot) -> None:
    assert json.loads(json.dumps(spec(plot, LOOKS), allow_nan=False))["series"]


def test_colours_follow_roles_over_plots() -> None:
    first, second = spec(ACCURACY, LOOKS)["series"][1], spec(ERRORS, LOOKS)["series"][0]
    assert first["name"] == second["name"] == "DiffSketch 50x"
    assert first["colour"] == second["colour"] == LOOKS["diffsketch"].colour
    assert "DiffSketch 50x" not in LOOKS  # has a role of its own
    assert LOOKS["none"].colour == LOOKS["reference"].colour == NEUTRAL


# -- Pictures --------------------------------------------------------------------------------------


@pytest.mark.parametrize("plot", [ACCURACY, ERRORS, PRIVACY, HISTOGRAM, NASTY_PLOT])
def test_an_svg_has_every_colour(plot: Plot) -> None:
    drawn = picture(plot, LOOKS, form="svg")
    assert ElementTree.fromstring(drawn).tag.endswith("svg")  # noqa: S314 - our own
    assert b"<dc:date>" not in drawn
    for series in plot.series:
        assert LOOKS[series.role or series.name].colour.encode() in drawn, series.name


@pytest.mark.parametrize("kind", ["line", "band", "points", "bars"])
def test_spreads_dashes_and_ends_show(kind: Any) -> None:
    series = Series("a", (1.0, 2.0), (5.0, 6.0), (4.0, 5.0), (6.0, 7.0), kind=kind)
    changes: list[dict[str, Any]] = [
        {}, {"low": (), "high": ()}, {"dashed": True}, {"ended": "diverged"},
    ]  # fmt: skip
    shown = [replace(series, **change) for change in changes]
    drawn = {picture(Plot("p", "P", Axis("x"), Axis("y"), (one,)), form="svg") for one in shown}
    assert len(drawn) == 4


@pytest.mark.slow
def test_the_same_plot_gives_the_same_bytes_whatever_is_set() -> None:
    before = [picture(ACCURACY, form=form) for form in ("svg", "png", "pdf")]
    with mpl.rc_context({"lines.linewidth": 9, "svg.hashsalt": "x", "axes.facecolor": "red"}):
        assert [picture(ACCURACY, form=form) for form in ("svg", "png", "pdf")] == before
        assert mpl.rcParams["lines.linewidth"] == 9  # as it was
    assert picture(ERRORS, form="svg") != before[0]


def test_a_png_shows_the_series() -> None:
    colour = tuple(bytes.fromhex(LOOKS["measured"].colour[1:]))
    for plot, has_bars in ((PRIVACY, True), (ERRORS, False)):
        image = np.asarray(Image.open(io.BytesIO(picture(plot, LOOKS))).convert("RGB"))
        assert image.shape[1] > 900
        assert bool((image == colour).all(axis=2).mean() > 0.02) is has_bars


def test_bars_fill_a_logarithmic_axis_and_long_labels_are_whole() -> None:
    """A bar of ten times another is as much of the axis longer; a label is broken into lines."""
    bars = Series("measured", (0.0, 1.0), (1.0, 100.0), kind="bars")
    label = "epsilon of a message (claimed; coordinate unit, replace, local trust; one round)"
    plot = Plot("p", "", Axis("case"), Axis(label, log=True), (bars,), categories=("a", "b"))
    colour = tuple(bytes.fromhex(LOOKS["measured"].colour[1:]))
    image = np.asarray(Image.open(io.BytesIO(picture(plot, LOOKS))).convert("RGB"))
    heights = (image == colour).all(axis=2).sum(axis=0)
    small, large = heights[: len(heights) // 2].max(), heights[len(heights) // 2 :].max()
    # They begin at half of the shortest: log10(2) of the axis against log10(200).
    assert small / large == pytest.approx(np.log10(2) / np.log10(200), abs=0.05)
    assert large > 300
    drawn = picture(plot, LOOKS, form="svg").decode()
    assert label not in drawn
    assert "<!-- epsilon of a message" in drawn
    small_one = Image.open(io.BytesIO(thumbnail(plot, LOOKS)))
    assert small_one.size == (260, 170)


def test_they_have_units_and_may_be_empty() -> None:
    up = Axis("Bytes sent", log=True, unit="B")
    close = Plot("p", "", up, Axis("share", percent=True), (Series("a", (1e6, 1e7), (0.9, 1.0)),))
    # Matplotlib's note of the text that a path draws.
    assert "<!-- 10 MB -->" in picture(close, form="svg").decode()
    nothing = Series("a", (), (), kind="steps"), Series("b", (1.0,), (None,), ended="at once")
    picture(Plot("p", "", Axis("x", log=True), Axis("y"), nothing))
    picture(Plot("p", "", Axis("x"), Axis("y", percent=True), ()))

"""Pictures of plots: their colours, spreads, units, and the same bytes whatever is set."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from diffsketch.pages.charts import looks_of
from diffsketch.pages.exhibits import Axis, Plot, Series, all_exhibits
from diffsketch.pages.pictures import picture, thumbnail
from tests.pages.sample import ACCURACY, ERRORS, HISTOGRAM, NASTY_PLOT, PAGE, PRIVACY

LOOKS = looks_of(all_exhibits(PAGE))


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

"""Pictures: valid, the same bytes each time, the colours of the page."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from diffsketch.pages.exhibits import Axis, Plot, Series
from diffsketch.pages.palette import looks_of_page
from diffsketch.pages.static import to_png, to_svg
from tests.pages.sample import ACCURACY, ERRORS, HISTOGRAM, NASTY_PLOT, PAGE, PRIVACY

LOOKS = looks_of_page(PAGE)


@pytest.mark.parametrize("plot", [ACCURACY, ERRORS, PRIVACY, HISTOGRAM, NASTY_PLOT])
def test_svg(plot: Plot) -> None:
    picture = to_svg(plot, LOOKS)
    root = ElementTree.fromstring(picture)  # noqa: S314 - our own
    assert root.tag.endswith("svg")
    assert b"<dc:date>" not in picture
    for series in plot.series:
        look = LOOKS[series.role or series.name]
        assert look.colour.encode() in picture, series.name


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

"""Colours can be told apart, also by the colour-blind, on light and dark; roles keep theirs."""

from __future__ import annotations

import itertools
import re

import numpy as np
import numpy.typing as npt
import pytest

from diffsketch.pages import page as page_module
from diffsketch.pages.exhibits import Axis, Plot, Series
from diffsketch.pages.palette import COLOURS, NEUTRAL, looks_of_page, looks_of_plots
from tests.pages.sample import PAGE

Array = npt.NDArray[np.float64]

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
    """As the Web Content Accessibility Guidelines define it."""
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


def test_colours_stand_out_on_both_backgrounds() -> None:
    style = page_module._asset("page.css")
    cards = re.findall(r"--card: (#[0-9a-f]{6})", style)
    assert len(cards) == 2  # light and dark
    for colour, card in itertools.product((*COLOURS, NEUTRAL), cards):
        assert contrast(colour, card) >= 3, (colour, card)


def test_text_can_be_read() -> None:
    themes = re.findall(r"--back: (\S+); --card: (\S+); --text: (\S+); --muted: (\S+);",
                        page_module._asset("page.css"))  # fmt: skip
    assert len(themes) == 2
    for back, card, text, muted in themes:
        for below, above in itertools.product((back, card), (text, muted)):
            assert contrast(below, above) >= 4.5


def test_a_role_has_one_look_on_a_page_whatever_it_is_called() -> None:
    looks = looks_of_page(PAGE)
    assert {"none", "diffsketch", "claimed", "gradients"} <= looks.keys()
    assert "DiffSketch 50x" not in looks  # has a role of its own
    assert looks["none"].colour == looks["reference"].colour == NEUTRAL


def test_many_roles_differ_in_colour_or_symbol() -> None:
    names = [f"method {number}" for number in range(64)]
    series = tuple(Series(name, (0.0,), (0.0,)) for name in names)
    looks = looks_of_plots([Plot("p", "", Axis(""), Axis(""), series)])
    assert len(set(looks.values())) == 64
    assert len({look.colour for look in list(looks.values())[: len(COLOURS)]}) == len(COLOURS)


def test_roles_that_share_a_plot_have_different_colours() -> None:
    # The second plot's roles are the first and the ninth to appear: counting on would repeat one.
    names = [[f"method {number}" for number in range(8)], ["method 0", "method 8"]]
    plots = [
        Plot("p", "", Axis(""), Axis(""), tuple(Series(name, (0.0,), (0.0,)) for name in some))
        for some in names
    ]
    looks = looks_of_plots(plots)
    for some in names:
        assert len({looks[name].colour for name in some}) == len(some)
    assert len(set(looks.values())) == 9

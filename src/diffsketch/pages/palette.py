"""Colours and symbols: one for each role, the same in all plots of a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from diffsketch.pages.exhibits import Page, Plot, Series

__all__ = [
    "COLOURS",
    "NEUTRAL",
    "SYMBOLS",
    "Look",
    "has_symbols",
    "looks_of_page",
    "looks_of_plots",
    "role_of",
]

# Found by search: as far from each other as possible also for the colour-blind, and with a
# contrast of 3 to both backgrounds; tests/pages/test_palette.py measures both.
COLOURS = (
    "#0070d6",
    "#eb7014",
    "#007a5c",
    "#d666ad",
    "#8552a3",
    "#5ca366",
    "#8f85eb",
    "#ad470a",
)
NEUTRAL = "#7b8694"
"""Of references, marks, and what does nothing about privacy or size."""
NEUTRAL_ROLES = ("none", "reference")
_SYMBOLS_UP_TO = 30
SYMBOLS = (
    "circle",
    "square",
    "diamond",
    "triangle-up",
    "triangle-down",
    "pentagon",
    "star",
    "hexagon",
)


@dataclass(frozen=True)
class Look:
    """How a role is drawn.

    Attributes:
        colour: Hexadecimal.
        symbol: Of points, by Plotly's name; tells roles apart without colours.
    """

    colour: str
    symbol: str


_LOOKS = tuple(
    Look(COLOURS[slot], SYMBOLS[(slot + cycle) % len(SYMBOLS)])
    for cycle in range(len(SYMBOLS))
    for slot in range(len(COLOURS))
)


def role_of(series: Series) -> str:
    """What decides a series' colour."""
    return series.role or series.name


def has_symbols(series: Series) -> bool:
    """Whether a series shows its points: a line of many would be hidden by them."""
    there = sum(value is not None for value in series.y)
    return series.kind == "points" or there <= _SYMBOLS_UP_TO


def looks_of_plots(plots: Iterable[Plot]) -> Mapping[str, Look]:
    """A look for each role, in the order of their first appearance.

    The roles "none" and "reference" are grey. Roles that share a plot have different colours, as
    long as there are any; after 64 roles looks repeat.

    >>> from diffsketch.pages.exhibits import Axis
    >>> series = (Series("a", (0.0,), (1.0,)), Series("none", (0.0,), (1.0,)))
    >>> looks = looks_of_plots([Plot("p", "P", Axis("x"), Axis("y"), series)])
    >>> looks["a"].colour, looks["none"].colour
    ('#0070d6', '#7b8694')
    """
    together: dict[str, set[str]] = {}
    for plot in plots:
        roles = [role_of(series) for series in plot.series]
        for role in roles:
            together.setdefault(role, set()).update(roles)
    looks: dict[str, Look] = {}
    for role, others in together.items():
        if role in NEUTRAL_ROLES:
            looks[role] = Look(NEUTRAL, SYMBOLS[0])
            continue
        beside = {looks[other].colour for other in others if other in looks}
        free = [look for look in _LOOKS if look not in looks.values()] or list(_LOOKS)
        looks[role] = next((look for look in free if look.colour not in beside), free[0])
    return looks


def looks_of_page(page: Page) -> Mapping[str, Look]:
    """A look for each role on a page."""
    exhibits = (exhibit for section in page.sections for exhibit in section.exhibits)
    return looks_of_plots(exhibit for exhibit in exhibits if isinstance(exhibit, Plot))

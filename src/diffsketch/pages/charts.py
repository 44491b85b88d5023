"""Looks of plots, and the data from which a page's script draws them with Plotly.

Colours of a page's text and grid are left to the page, which knows whether it is light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from diffsketch.pages.exhibits import Exhibit, Plot, Series

# Found by search: as far from each other as possible also for the colour-blind, and with a
# contrast of 3 to both backgrounds; tests/pages/test_charts.py measures both.
COLOURS = (
    "#0070d6", "#eb7014", "#007a5c", "#d666ad", "#8552a3", "#5ca366", "#8f85eb", "#ad470a",
)  # fmt: skip
NEUTRAL = "#7b8694"
"""Colour of marks, and of the roles "none" and "reference"."""
# By Plotly's names.
SYMBOLS = (
    "circle", "square", "diamond", "triangle-up", "triangle-down", "pentagon", "star", "hexagon",
)  # fmt: skip
_SYMBOLS_UP_TO = 30  # points of a line: more would hide it
# In pixels, as Plotly has them: width and dashes of lines, sizes of symbols on lines and of points;
# and the opacity of shades.
STYLE: dict[str, Any] = {"width": 2.2, "dash": (6, 4), "symbol": 6, "point": 9, "faint": 0.18}


@dataclass(frozen=True)
class Look:
    """Colour (hexadecimal) and symbol (by Plotly's name) of a role."""

    colour: str
    symbol: str


# Colours first: eight roles differ in colour, and only then do symbols differ.
_LOOKS = tuple(
    Look(COLOURS[slot], SYMBOLS[(slot + cycle) % len(SYMBOLS)])
    for cycle in range(len(SYMBOLS))
    for slot in range(len(COLOURS))
)


def has_symbols(series: Series) -> bool:
    """Tell whether a series shows its points: a line of many would be hidden by them."""
    return series.kind == "points" or len(series.y) - series.y.count(None) <= _SYMBOLS_UP_TO


def looks_of(exhibits: Iterable[Exhibit], first: Sequence[str] = ()) -> Mapping[str, Look]:
    """Choose a look for each role of the plots: `first` some, then as they appear.

    The roles "none" and "reference" are grey. Roles that share a plot have different colours, as
    long as there are any; after 64 roles looks repeat.

    >>> from diffsketch.pages.exhibits import Axis
    >>> series = (Series("a", (0.0,), (1.0,)), Series("none", (0.0,), (1.0,)))
    >>> looks = looks_of([Plot("p", "P", Axis("x"), Axis("y"), series)])
    >>> looks["a"].colour, looks["none"].colour
    ('#0070d6', '#7b8694')
    """
    together: dict[str, set[str]] = {role: set() for role in first}
    for plot in exhibits:
        drawn = plot.series if isinstance(plot, Plot) else ()
        roles = [series.role or series.name for series in drawn]
        for role in roles:
            together.setdefault(role, set()).update(roles)
    looks: dict[str, Look] = {}
    for role, others in together.items():
        if role in ("none", "reference"):
            looks[role] = Look(NEUTRAL, "circle")
            continue
        beside = {looks[other].colour for other in others if other in looks}
        free = [look for look in _LOOKS if look not in looks.values()] or list(_LOOKS)
        looks[role] = next((look for look in free if look.colour not in beside), free[0])
    return looks


def drawable(value: float | None, *, log: bool = False) -> float | None:
    """Return the number as a plain float, or None if an axis has no place for it.

    >>> drawable(float("nan")), drawable(0, log=True), drawable(0)
    (None, None, 0.0)
    """
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return float(value)


def spec(plot: Plot, looks: Mapping[str, Look]) -> dict[str, Any]:
    """Convert a plot and its looks to plain data, from which the page's script makes figures."""
    return {
        "axes": [asdict(axis) for axis in (plot.x, *plot.other_x)],
        "y": asdict(plot.y),
        "categories": plot.categories,
        "marks": [{"value": m.value, "label": m.label, "axis": m.axis} for m in plot.marks],
        "neutral": NEUTRAL,
        "style": STYLE,
        "series": [
            {
                "name": series.name,
                "x": [
                    list(map(drawable, places))
                    for places in (series.x, *(series.other_x[a.label] for a in plot.other_x))
                ],
                "y": list(map(drawable, series.y)),
                "low": list(map(drawable, series.low)),
                "high": list(map(drawable, series.high)),
                "kind": series.kind,
                "dashed": series.dashed,
                "colour": looks[series.role or series.name].colour,
                "symbol": looks[series.role or series.name].symbol if has_symbols(series) else "",
                "meaning": series.meaning,
                "ended": series.ended,
                "note": series.note,
            }
            for series in plot.series
        ],
    }

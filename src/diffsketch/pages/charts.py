"""Looks of plots, pictures by matplotlib, and the data that a page draws with Plotly.

Both draw the same description, a `Plot`, with the looks and sizes that are named here: `picture` as
a PNG or SVG file (Plotly's own export needs a browser), the page's script from `spec`. Colours of a
page's text and grid are left to the page, which knows whether it is light or dark.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from diffsketch.pages.exhibits import Exhibit, Plot, Series, meanings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Found by search: as far from each other as possible also for the colour-blind, and with a
# contrast of 3 to both backgrounds; tests/pages/test_charts.py measures both.
COLOURS = (
    "#0070d6", "#eb7014", "#007a5c", "#d666ad", "#8552a3", "#5ca366", "#8f85eb", "#ad470a",
)  # fmt: skip
NEUTRAL = "#7b8694"
"""Colour of marks, and of the roles "none" and "reference"."""
# By Plotly's name: matplotlib's.
SYMBOLS = {
    "circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "triangle-down": "v",
    "pentagon": "p", "star": "*", "hexagon": "h",
}  # fmt: skip
_SYMBOLS_UP_TO = 30  # points of a line: more would hide it
_POINTS = 0.75  # of a pixel
# In pixels, as Plotly has them: width and dashes of lines, sizes of symbols on lines and of points;
# and the opacity of shades.
STYLE: dict[str, Any] = {"width": 2.2, "dash": (6, 4), "symbol": 6, "point": 9, "faint": 0.18}
_LEGEND_WIDTH, _NOTE_WIDTH = 50, 118  # characters of a picture's legend, and of the note

_Numbers = list[float | None]
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """Colour (hexadecimal) and symbol (by Plotly's name) of a role."""

    colour: str
    symbol: str


# Colours first: eight roles differ in colour, and only then do symbols differ.
_LOOKS = tuple(
    Look(COLOURS[slot], list(SYMBOLS)[(slot + cycle) % len(SYMBOLS)])
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


def _spread(plot: Plot, series: Series) -> tuple[_Numbers, _Numbers]:
    """Return both ends; on a logarithmic axis one at 0 or below is half the least number drawn."""
    low, high = list(map(drawable, series.low)), list(map(drawable, series.high))
    if plot.y.log:
        # A band that reaches 0 has no end on a logarithmic axis: half of the least is below all.
        drawn = (value for line in plot.series for value in (*line.y, *line.low, *line.high))
        floor = 0.5 * min((v for v in drawn if v and drawable(v, log=True)), default=1.0)
        low = [None if value is None else max(value, floor) for value in low]
        high = [drawable(value, log=True) for value in high]
    return low, high


def picture(plot: Plot, looks: Mapping[str, Look] | None = None, *, form: str = "png") -> bytes:
    """Draw the plot over its first x axis, as PNG or as SVG with letters as outlines.

    The same plot gives the same bytes: no dates, no random names, no fonts of the machine. Looks
    by role give it the colours of a page; by default it has those of this plot alone.
    """
    looks = looks_of([plot]) if looks is None else looks
    labels = [_label(series) for series in plot.series]
    labels += [_wrapped_plain(mark.label, _LEGEND_WIDTH) for mark in plot.marks]
    worth = "\n".join(
        _wrapped_plain(
            f"{', '.join(names)}: {text} ({epsilon.basis_text}; {epsilon.scope})", _NOTE_WIDTH
        )
        for (epsilon, text), names in meanings([plot]).items()
    )
    stream = io.BytesIO()
    # From matplotlib's own defaults: what a user has set must not change the picture.
    with mpl.rc_context(), style.context("default"):
        mpl.rcParams["svg.hashsalt"] = "diffsketch"
        lines = sum(label.count("\n") + 1 for label in labels) / 2 + worth.count("\n") + 2
        # Inches; a picture grows with its legend, so that the axes keep their size.
        size = (7.2, 4.3 + 0.17 * lines)
        drawing = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = drawing.subplots()
        _set_axes(axes, plot)
        bars = [series for series in plot.series if series.kind == "bars"]
        handles = []
        for series in plot.series:
            # Only bars stand beside each other; lines share their places.
            shift = 0.0
            if series in bars:  # side by side around their category
                shift = (bars.index(series) - (len(bars) - 1) / 2) * 0.8 / len(bars)
            look = looks[series.role or series.name]
            handles.append(
                _draw(axes, plot, series, look, shift=shift, width=0.8 / len(bars or "-"))
            )
        for mark in plot.marks:
            line = axes.axvline if mark.axis == "x" else axes.axhline
            handles.append(line(mark.value, color=NEUTRAL, linewidth=1.2, linestyle=":"))
        axes.set_title(_wrapped_plain(plot.title, 70), fontsize=11.5, loc="left")
        if handles:
            drawing.legend(
                handles, labels, loc="outside lower left", frameon=False, fontsize=8, ncols=2,
                title=worth or None, title_fontsize=7.5, alignment="left",
            )  # fmt: skip
        FigureCanvasAgg(drawing)
        about = {"Software": "diffsketch"} if form == "png" else {"Date": None, "Creator": ""}
        drawing.savefig(stream, format=form, dpi=140, metadata=about)
    return stream.getvalue()


def _draw(axes: Axes, plot: Plot, series: Series, look: Look, *, shift: float, width: float) -> Any:
    """Draw a series with its spread and the cross at an early end; returns its legend's handle."""

    def numbers(values: Iterable[float | None], *, log: bool = False) -> _Array:
        return np.array([drawable(value, log=log) for value in values], dtype=float)  # None: NaN

    x, y = numbers(series.x, log=plot.x.log) + shift, numbers(series.y, log=plot.y.log)
    low, high = map(numbers, _spread(plot, series))
    colour, faint = look.colour, {"color": look.colour, "alpha": STYLE["faint"], "linewidth": 0}
    handle: Any
    if series.kind == "bars":
        face: dict[str, Any] = (
            {"facecolor": "white", "hatch": "///"} if series.dashed else {"facecolor": colour}
        )
        handle = axes.bar(x, y, width=0.92 * width, edgecolor=colour, **face)
    else:
        thickness = _POINTS * STYLE["width"]
        dashes = tuple(_POINTS * pixels / thickness for pixels in STYLE["dash"])
        line: dict[str, Any] = {"color": colour, "linewidth": thickness}
        line["linestyle"] = (0, dashes) if series.dashed else "-"
        if series.kind == "steps":
            y = np.append(y, y[-1:])
            line["drawstyle"] = "steps-post"
            if not (plot.y.log or series.dashed):
                axes.fill_between(x, y, step="post", **faint)
        elif has_symbols(series):
            size = STYLE["point"] if series.kind == "points" else STYLE["symbol"]
            line |= {"marker": SYMBOLS[look.symbol], "markersize": _POINTS * size}
        if series.kind == "points":
            line |= {"linestyle": "none", "markerfacecolor": "none" if series.dashed else colour}
        handle = axes.plot(x, y, **line)[0]
    if series.low and series.kind == "band":
        axes.fill_between(x, low, high, **faint)
    elif series.low and series.kind != "steps":
        axes.vlines(x, low, high, color=NEUTRAL if series.kind == "bars" else colour, linewidth=1.1)
    if series.ended and len(last := np.flatnonzero(np.isfinite(x[: len(y)] + y))):
        axes.plot(x[last[-1]], y[last[-1]], "x", color=colour, markersize=9, markeredgewidth=2.2)
    return handle


def _label(series: Series) -> str:
    """Name a series in a picture's legend."""
    text = series.name + (f" (ends at the cross: {series.ended})" if series.ended else "")
    lines = _wrapped_plain(text, _LEGEND_WIDTH, break_on_hyphens=False)
    # Matplotlib leaves out what begins with an underscore.
    return f" {lines}" if lines.startswith("_") else lines


def _wrapped_plain(text: str, width: int, **more: bool) -> str:
    """Wrap, and escape dollar signs, which matplotlib takes for formulas."""
    return "\n".join(textwrap.wrap(text, width, **more)).replace("$", r"\$")  # type: ignore[arg-type]


def _set_axes(axes: Axes, plot: Plot) -> None:
    for name, axis in (("x", plot.x), ("y", plot.y)):
        ruler = getattr(axes, f"{name}axis")
        if axis.log:
            getattr(axes, f"set_{name}scale")("log", nonpositive="mask")
        if axis.unit:
            ruler.set_major_formatter(FuncFormatter(partial(_tick_with, axis.unit)))
        elif not (axis.log or axis.percent):
            ruler.set_major_formatter(FuncFormatter(_tick))
        if axis.percent:
            ruler.set_major_formatter(PercentFormatter(xmax=1.0))
        getattr(axes, f"set_{name}label")(axis.label.replace("$", r"\$"), fontsize=9.5)
    axes.tick_params(labelsize=8.5)
    axes.grid(color="#e6eaef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if plot.categories:
        labels = [_wrapped_plain(label, 16) for label in plot.categories]
        axes.set_xticks(range(len(labels)), labels)


def _tick_with(unit: str, value: float, position: int | None = None) -> str:
    """Format a tick's number with a unit.

    >>> _tick_with("B", 1e7), _tick_with("B", 500.0)
    ('10 MB', '500 B')
    """
    del position
    number = _tick(value)
    return f"{number[:-1]} {number[-1]}{unit}" if number[-1].isalpha() else f"{number} {unit}"


def _tick(value: float, position: int | None = None) -> str:
    """Format a tick's number, thousands in units.

    >>> _tick(20000.0), _tick(0.25), _tick(-3e6)
    ('20k', '0.25', '-3M')
    """
    del position
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size > 1e3):
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"

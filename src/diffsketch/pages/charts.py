"""Plots as Plotly figures for a page, and as pictures by matplotlib.

Both draw the same description, a `Plot`, with the looks and sizes that are named here. `figure`
gives what `Plotly.react` takes, as plain data; `picture` draws a PNG or SVG file (Plotly's own
export needs a browser). Colours of a page's text and grid are left to the page, which knows whether
it is light or dark.
"""

from __future__ import annotations

import html
import io
import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, PercentFormatter

from diffsketch.pages.exhibits import Axis, Exhibit, Plot, Series, meanings, value_text

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
_PHONE_WIDTH, _CATEGORY_WIDTH = 46, 14  # characters: several categories stand side by side there
_POINTS = 0.75  # of a pixel
# Sizes in pixels, as Plotly has them.
LINE_WIDTH, DASH, SYMBOL_SIZE, POINT_SIZE = 2.2, (6, 4), 6, 9
FAINT = 0.18  # opacity of shades
_LEGEND_WIDTH, _NOTE_WIDTH = 50, 118  # characters of a picture's legend, and of the note

Trace = dict[str, Any]
_Numbers = list[float | None]
_Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Look:
    """Colour (hexadecimal) and symbol (by Plotly's name) of a role."""

    colour: str
    symbol: str


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

    >>> series = (Series("a", (0.0,), (1.0,)), Series("none", (0.0,), (1.0,)))
    >>> looks = looks_of([Plot("p", "P", Axis("x"), Axis("y"), series)])
    >>> looks["a"].colour, looks["none"].colour
    ('#0070d6', '#7b8694')
    """
    together: dict[str, set[str]] = {role: set() for role in first}
    for plot in exhibits:
        roles = [one.role or one.name for one in plot.series] if isinstance(plot, Plot) else []
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


def figure(
    plot: Plot, looks: Mapping[str, Look] | None = None, *, axis_index: int = 0
) -> dict[str, Any]:
    """Make `{"data": [...], "layout": {...}}` of a plot.

    All traces of a series have its group, so that its line, spread and cross come and go together;
    `meta` is empty in the main one and says what the others are. Looks are those of this plot alone
    by default; the x axis is `plot.x` for an `axis_index` of 0, else one of `plot.other_x`.
    """
    looks = looks_of([plot]) if looks is None else looks
    axis = (plot.x, *plot.other_x)[axis_index]
    traces: list[Trace] = []
    x_numbers: list[float] = []
    for index, series in enumerate(plot.series):
        places = series.x if axis_index == 0 else series.other_x[axis.label]
        x_numbers += places
        x = [drawable(place, log=axis.log) for place in places]
        shared = {"legendgroup": f"series-{index}", "name": plain_text(series.name)}
        traces += [
            {**shared, "showlegend": not trace["meta"], **trace}
            for trace in _traces(plot, series, axis, x, looks[series.role or series.name])
        ]
    x_axis = _axis(axis, x_numbers)
    if plot.categories and axis_index == 0:
        x_axis |= {
            "tickvals": list(range(len(plot.categories))),
            "ticktext": [_wrapped(word, _CATEGORY_WIDTH) for word in plot.categories],
            "ticklabeloverflow": "allow",  # or the last is left out where it is turned
        }
    layout = {
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "group",
        "bargap": 0.25,
        "xaxis": x_axis,
        "yaxis": _axis(plot.y, [value for series in plot.series for value in series.y]),
        **_marks(plot, axis_index),
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "hoverlabel": {"align": "left", "namelength": -1},
    }
    return {"data": traces, "layout": layout}


def plain_text(text: str) -> str:
    """Escape text so that Plotly shows it as it is: without tags, links or template fields.

    >>> plain_text("<b>%{x}</b>")
    '&lt;b&gt;%&#123;x}&lt;/b&gt;'
    """
    # A pair of dollar signs would be a formula, for which Plotly looks for MathJax.
    return html.escape(text, quote=False).replace("%{", "%&#123;").replace("$", "&#36;")


def _wrapped(text: str, width: int = _PHONE_WIDTH) -> str:
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return "<br>".join(plain_text(line) for line in lines)


def _traces(plot: Plot, series: Series, axis: Axis, x: _Numbers, look: Look) -> list[Trace]:
    y = [drawable(value, log=plot.y.log) for value in series.y]
    low, high = _spread(plot, series)
    steps = series.kind == "steps"
    spread = "%{customdata}" if series.low and not steps else ""
    hover = [
        f"<b>{_wrapped(series.name)}</b>",
        f"{_wrapped(axis.label)}: {'%{customdata}' if steps else '%{x}'}",
        f"{_wrapped(plot.y.label)}: %{{y}}{spread}",
        _wrapped(series.meaning),
        f"<i>{_wrapped(series.note)}</i>" if series.note else "",
    ]
    texts = [
        "" if None in ends else " ({} to {})".format(*(value_text(end, plot.y) for end in ends))
        for ends in zip(series.low, series.high, strict=True)
    ]
    red, green, blue = bytes.fromhex(look.colour[1:])
    faint = f"rgba({red},{green},{blue},{FAINT})"
    dash = ",".join(f"{pixels}px" for pixels in DASH) if series.dashed else "solid"
    line: Trace = {"color": look.colour, "width": LINE_WIDTH, "dash": dash}
    marker: Trace = {"color": look.colour, "symbol": look.symbol, "size": SYMBOL_SIZE}
    main: Trace = {"meta": "", "type": "scatter", "x": x, "y": y}
    main["hovertemplate"] = "<br>".join(filter(None, hover)) + "<extra></extra>"
    main["customdata"] = texts or None
    if series.kind == "bars":
        marker = {"color": look.colour, "line": {"color": look.colour, "width": 1}, "opacity": 0.9}
        if series.dashed:
            marker["pattern"] = {"shape": "/", "fgcolor": look.colour, "bgcolor": "rgba(0,0,0,0)"}
        main |= {"type": "bar", "marker": marker}
    elif steps:  # a histogram: each bin keeps its height up to the next edge
        bins = [
            f"{value_text(left, axis)} to {value_text(right, axis)}"
            for left, right in itertools.pairwise(x)
        ]
        main |= {"mode": "lines", "y": [*y, *y[-1:]], "customdata": [*bins, *bins[-1:]]}
        main["line"] = {**line, "shape": "hv"}
        main["fill"] = "none" if plot.y.log or series.dashed else "tozeroy"
        main["fillcolor"] = faint
    elif series.kind == "points":
        marker["size"] = POINT_SIZE
        if series.dashed:
            hollow = {"width": 2, "color": look.colour}
            marker |= {"symbol": f"{look.symbol}-open", "line": hollow}
        main |= {"mode": "markers", "marker": marker}
    else:
        main["mode"] = "lines+markers" if has_symbols(series) else "lines"
        main |= {"line": line, "marker": marker}
    traces = [main]
    if series.low and series.kind == "band":
        shade: Trace = {"meta": "band", "type": "scatter", "mode": "lines", "hoverinfo": "skip"}
        shade |= {"line": {"width": 0, "color": look.colour}, "fill": "toself", "fillcolor": faint}
        # Around each stretch without gaps: along its upper side, and back on the lower. Also where
        # nothing of it can be drawn: every axis has the same traces.
        shade |= {"x": [], "y": []}
        places = zip(x, low, high, strict=True)
        for whole, group in itertools.groupby(places, lambda each: None not in each):
            if whole:
                across, below, above = zip(*group, strict=True)
                shade["x"] += [*across, *across[::-1], None]
                shade["y"] += [*above, *below[::-1], None]
        traces.insert(0, shade)
    elif series.low and not steps:
        middle = list(map(drawable, series.y))
        main["error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": list(map(_above, high, middle)),
            "arrayminus": list(map(_above, middle, low)),
            "color": NEUTRAL if series.kind == "bars" else look.colour,
            "thickness": 1.5,
            "width": 4,
        }
    if series.ended:  # a cross, with the reason
        last = [(p, v) for p, v in zip(x, y, strict=False) if p is not None and v is not None][-1:]
        reason = f"<b>{_wrapped(series.name)}</b><br>ends here: {_wrapped(series.ended)}"
        stroke = {"width": 3, "color": look.colour}
        cross: Trace = {"meta": "end", "type": "scatter", "mode": "markers"}
        cross["marker"] = {"symbol": "x-thin", "size": 12, "line": stroke, "color": look.colour}
        cross["hovertemplate"] = f"{reason}<extra></extra>"
        traces.append({**cross, "x": [p for p, _ in last], "y": [v for _, v in last]})
    return traces


def _above(one: float | None, other: float | None) -> float:
    return 0.0 if one is None or other is None else one - other


def _spread(plot: Plot, series: Series) -> tuple[_Numbers, _Numbers]:
    """Return both ends; on a logarithmic axis one at 0 or below is half the least number drawn."""
    low, high = list(map(drawable, series.low)), list(map(drawable, series.high))
    if plot.y.log:
        every = (value for each in plot.series for value in (*each.y, *each.low, *each.high))
        positive = [value for value in (drawable(one, log=True) for one in every) if value]
        floor = 0.5 * min(positive, default=1.0)
        low = [None if value is None else max(value, floor) for value in low]
        high = [drawable(value, log=True) for value in high]
    return low, high


def _axis(axis: Axis, numbers: Sequence[float | None]) -> dict[str, Any]:
    sizes = [abs(size) for size in map(drawable, numbers) if size]
    tiny = bool(sizes) and (min(sizes) if axis.log else max(sizes)) < 1e-3
    made: dict[str, Any] = {
        "title": {"text": _wrapped(axis.label), "standoff": 8},
        "type": "log" if axis.log else "linear",
        "automargin": True,
        "zeroline": False,
        # k, M, G read well; m and µ for small numbers would not.
        "exponentformat": "power" if tiny else "SI",
        "hoverformat": ".4~g" if tiny or (sizes and min(sizes) < 1e-4) else ",.4~r",
    }
    narrow = False
    if axis.log:
        narrow = bool(sizes) and max(sizes) < 30 * min(sizes)
        made["dtick"] = "D2" if narrow else 1
        if narrow:
            made["tickformat"] = ".3~g" if tiny else ",.3~r"  # or 20 would be labelled "2"
        made["minor"] = {"showgrid": False, "ticks": ""}
        if sizes and min(sizes) >= 1 and max(sizes) >= 1e4:
            made["tickformat"] = "~s"
    if axis.unit:
        made |= {"tickformat": ".4~s", "hoverformat": ".4~s", "ticksuffix": axis.unit}
        if axis.log and sizes:  # on which Plotly leaves out the suffix of all but powers of ten
            low, high = math.floor(math.log10(min(sizes))), math.ceil(math.log10(max(sizes)))
            steps = (1, 2, 5) if narrow else (1,)
            places = [step * 10.0**power for power in range(low - 1, high + 2) for step in steps]
            made |= {"tickvals": places, "ticktext": [_tick_with(axis.unit, one) for one in places]}
            del made["dtick"]
    if axis.percent:
        # Enough digits for neighbours to differ, however close they are; zeros are left out.
        made |= {"tickformat": ".6~%", "hoverformat": ".4~p"}
        drawn = {number for number in map(drawable, numbers) if number is not None}
        if len(drawn) == 1 and 0 <= min(drawn) <= 1:  # or it would end at 200%
            value = min(drawn)
            made["range"] = [max(value - 0.05, -0.004), min(value + 0.05, 1.004)]
    return made


def _marks(plot: Plot, axis_index: int) -> dict[str, list[dict[str, Any]]]:
    """Make lines and their labels, in the order of the marks; on x they are of the first axis."""
    places = [drawable(place, log=plot.x.log) for series in plot.series for place in series.x]
    drawn = [math.log10(p) if plot.x.log else p for p in places if p is not None]
    shapes, annotations = [], []
    for index, mark in enumerate(plot.marks):
        upright, log = mark.axis == "x", (plot.x if mark.axis == "x" else plot.y).log
        visible = not (upright and axis_index) and not (log and mark.value <= 0)
        along, across = ("y", "x") if upright else ("x", "y")
        shape = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{across}ref": across}
        shape |= {f"{across}0": mark.value, f"{across}1": mark.value, "type": "line"}
        shape |= {"visible": visible, "line": {"color": NEUTRAL, "width": 1.6, "dash": "dot"}}
        shapes.append(shape)
        # Text, unlike lines, stands at the logarithm where an axis is logarithmic.
        value = math.log10(mark.value) if log and mark.value > 0 else mark.value
        label = {"text": _wrapped(mark.label), "visible": visible, "showarrow": False}
        label |= {f"{along}ref": "paper", f"{across}ref": across, across: value}
        if upright:  # at the top, right of the line while there is space; one below the other
            left = bool(drawn) and value > min(drawn) + 0.7 * (max(drawn) - min(drawn))
            label |= {"xanchor": "right" if left else "left", "xshift": -3 if left else 3}
            label |= {"y": 1 - 0.09 * (index % 5), "yanchor": "top"}
        else:  # right and left by turns, as neighbours would else cover each other
            label |= {"x": 1 - index % 2, "xanchor": "left" if index % 2 else "right"}
            label["yanchor"] = "bottom"
        annotations.append({**label, "font": {"size": 11}, "borderpad": 1})
    return {"shapes": shapes, "annotations": annotations}


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
        size = (7.2, 4.3 + 0.17 * lines)
        drawing = Figure(figsize=size, layout="constrained", facecolor="white")
        axes = drawing.subplots()
        _set_axes(axes, plot)
        bars = [series for series in plot.series if series.kind == "bars"]
        handles = []
        for series in plot.series:
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
    colour, faint = look.colour, {"color": look.colour, "alpha": FAINT, "linewidth": 0}
    handle: Any
    if series.kind == "bars":
        face = {"facecolor": "white", "hatch": "///"} if series.dashed else {"facecolor": colour}
        handle = axes.bar(x, y, width=0.92 * width, edgecolor=colour, **face)
    else:
        thickness = _POINTS * LINE_WIDTH
        dashes = tuple(_POINTS * pixels / thickness for pixels in DASH)
        line: dict[str, Any] = {"color": colour, "linewidth": thickness}
        line["linestyle"] = (0, dashes) if series.dashed else "-"
        if series.kind == "steps":
            y = np.append(y, y[-1:])
            line["drawstyle"] = "steps-post"
            if not (plot.y.log or series.dashed):
                axes.fill_between(x, y, step="post", **faint)
        elif has_symbols(series):
            size = POINT_SIZE if series.kind == "points" else SYMBOL_SIZE
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

"""Plots as pictures, in the colours of the page. The only module here that imports matplotlib.

The same plot gives the same bytes: no dates, no random names, no fonts of the machine.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib import style
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, PercentFormatter

from diffsketch.pages.checks import check_plot
from diffsketch.pages.exhibits import Axis, Plot, Series
from diffsketch.pages.labels import drawable, epsilon_words
from diffsketch.pages.palette import NEUTRAL, Look, has_symbols, looks_of_plots, role_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["to_png", "to_svg"]

_SYMBOLS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "triangle-down": "v",
    "pentagon": "p",
    "star": "*",
    "hexagon": "h",
}
_WIDTH = 7.2  # inches
_PLOT_HEIGHT, _LINE_HEIGHT = 4.3, 0.17
_LEGEND_WIDTH = 92  # characters
_DASHES = (0, (4, 2.5))
_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def to_svg(plot: Plot, looks: Mapping[str, Look] | None = None) -> bytes:
    """The plot over its first x axis as SVG, with letters as outlines.

    Args:
        plot: What to draw.
        looks: By role, to have the colours of a page; those of this plot alone by default.

    Raises:
        ArgumentError: A name or a mark is outside what can be drawn.
        MismatchError: Numbers that belong together are not equally many.
    """
    return _picture(plot, looks, form="svg", metadata={"Date": None, "Creator": "diffsketch"})


def to_png(plot: Plot, looks: Mapping[str, Look] | None = None) -> bytes:
    """As `to_svg`, as PNG."""
    return _picture(plot, looks, form="png", metadata={"Software": "diffsketch"})


def _picture(
    plot: Plot, looks: Mapping[str, Look] | None, *, form: str, metadata: Mapping[str, Any]
) -> bytes:
    check_plot(plot)
    looks = looks_of_plots([plot]) if looks is None else looks
    stream = io.BytesIO()
    # From matplotlib's own defaults: what a user has set must not change the picture.
    with mpl.rc_context(), style.context("default"):
        mpl.rcParams["svg.hashsalt"] = "diffsketch"
        figure = _figure(plot, looks)
        FigureCanvasAgg(figure)
        figure.savefig(stream, format=form, dpi=140, metadata=dict(metadata))
    return stream.getvalue()


def _figure(plot: Plot, looks: Mapping[str, Look]) -> Figure:
    handles, labels = _legend(plot, looks)
    lines = sum(label.count("\n") + 1 for label in labels)
    height = _PLOT_HEIGHT + _LINE_HEIGHT * lines
    figure = Figure(figsize=(_WIDTH, height), layout="constrained", facecolor="white")
    axes = figure.subplots()
    _set_axes(axes, plot)
    bars = [series for series in plot.series if series.kind == "bars"]
    for series in plot.series:
        look = looks[role_of(series)]
        if series.kind == "bars":
            _draw_bars(axes, series, look, slot=bars.index(series), slots=len(bars))
        elif series.kind == "steps":
            _draw_steps(axes, plot, series, look)
        else:
            _draw_line(axes, plot, series, look)
    for mark in plot.marks:
        line = axes.axvline if mark.axis == "x" else axes.axhline
        line(mark.value, color=NEUTRAL, linewidth=1.2, linestyle=":")
    axes.set_title(_plain("\n".join(textwrap.wrap(plot.title, 70))), fontsize=11.5, loc="left")
    if handles:
        figure.legend(handles, labels, loc="outside lower left", frameon=False, fontsize=8)
    return figure


def _set_axes(axes: Axes, plot: Plot) -> None:
    for name, axis in (("x", plot.x), ("y", plot.y)):
        ruler = getattr(axes, f"{name}axis")
        if axis.log:
            getattr(axes, f"set_{name}scale")("log", nonpositive="mask")
        elif not axis.percent:
            ruler.set_major_formatter(FuncFormatter(_tick))
        if axis.percent:
            ruler.set_major_formatter(PercentFormatter(xmax=1.0))
        getattr(axes, f"set_{name}label")(_plain(axis.label), fontsize=9.5)
    axes.tick_params(labelsize=8.5)
    axes.grid(color="#e6eaef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if plot.categories:
        words = [_plain("\n".join(textwrap.wrap(word, 16))) for word in plot.categories]
        axes.set_xticks(range(len(words)), words)


def _draw_line(axes: Axes, plot: Plot, series: Series, look: Look) -> None:
    """A line or a cloud of points, with its spread and, where it ends early, a cross."""
    x, y = _numbers(series.x, plot.x), _numbers(series.y, plot.y)
    axes.plot(x, y, **_style(series, look))
    if series.low:
        low, high = _spread(series, plot)
        if series.kind == "band":
            axes.fill_between(x, low, high, color=look.colour, alpha=0.18, linewidth=0)
        else:
            axes.vlines(x, low, high, color=look.colour, linewidth=1.3)
    drawn = [(a, b) for a, b in zip(x, y, strict=True) if not (math.isnan(a) or math.isnan(b))]
    if series.ended and drawn:
        axes.plot(*drawn[-1], marker="x", markersize=9, markeredgewidth=2.5, color=look.colour)


def _style(series: Series, look: Look) -> dict[str, Any]:
    marker = {"marker": _SYMBOLS[look.symbol], "color": look.colour}
    if series.kind == "points":
        inside = "none" if series.dashed else look.colour
        return {**marker, "linestyle": "", "markersize": 6, "markerfacecolor": inside}
    size = 4 if has_symbols(series) else 0
    style = _DASHES if series.dashed else "-"
    return {**marker, "linestyle": style, "linewidth": 1.7, "markersize": size}


def _spread(series: Series, plot: Plot) -> tuple[list[float], list[float]]:
    """Both ends; on a logarithmic axis, one that reaches 0 ends below all that is drawn."""
    low, high = _numbers(series.low, Axis("")), _numbers(series.high, plot.y)
    if plot.y.log:
        every = (value for each in plot.series for value in (*each.y, *each.low, *each.high))
        floor = 0.5 * min((value for value in _numbers(every, plot.y) if value > 0), default=1.0)
        low = [max(value, floor) for value in low]
    return low, high


def _draw_bars(axes: Axes, series: Series, look: Look, *, slot: int, slots: int) -> None:
    width = 0.8 / slots
    x = [place + (slot - (slots - 1) / 2) * width for place in _numbers(series.x, Axis(""))]
    y = _numbers(series.y, Axis(""))
    face = "white" if series.dashed else look.colour
    hatch = "///" if series.dashed else None
    axes.bar(x, y, width=0.92 * width, facecolor=face, edgecolor=look.colour, hatch=hatch)
    if series.low:
        low, high = _numbers(series.low, Axis("")), _numbers(series.high, Axis(""))
        axes.vlines(x, low, high, color="#3c4653", linewidth=1.3)


def _draw_steps(axes: Axes, plot: Plot, series: Series, look: Look) -> None:
    if not series.y:
        return
    edges, heights = _numbers(series.x, plot.x), _numbers(series.y, plot.y)
    style = _DASHES if series.dashed else "-"
    axes.stairs(heights, edges, color=look.colour, linewidth=1.5, linestyle=style, baseline=None)
    if not plot.y.log and not series.dashed:
        axes.stairs(heights, edges, color=look.colour, alpha=0.18, fill=True)


def _legend(plot: Plot, looks: Mapping[str, Look]) -> tuple[list[Line2D | Patch], list[str]]:
    """Everything that is drawn, with all that an epsilon means."""
    handles: list[Line2D | Patch] = []
    labels = []
    for series in plot.series:
        look = looks[role_of(series)]
        if series.kind in ("bars", "steps"):
            face = "white" if series.dashed else look.colour
            hatch = "///" if series.dashed else None
            handles.append(Patch(facecolor=face, edgecolor=look.colour, hatch=hatch))
        else:
            handles.append(Line2D([], [], **_style(series, look)))
        words = series.name
        if series.epsilon is not None:
            words += f": {epsilon_words(series.epsilon, instead=series.epsilon_text)}"
        elif series.epsilon_text:
            words += f": {series.epsilon_text}"
        labels.append(words + (f" (ends at the cross: {series.ended})" if series.ended else ""))
    for mark in plot.marks:
        handles.append(Line2D([], [], color=NEUTRAL, linewidth=1.2, linestyle=":"))
        meaning = "" if mark.epsilon is None else f": {epsilon_words(mark.epsilon)}"
        labels.append(mark.label + meaning)
    return handles, [_label(words) for words in labels]


def _label(words: str) -> str:
    lines = "\n".join(textwrap.wrap(words, _LEGEND_WIDTH, break_on_hyphens=False))
    # Matplotlib leaves out what begins with an underscore.
    return _plain(f" {lines}" if lines.startswith("_") else lines)


def _plain(text: str) -> str:
    """Text whose dollar signs are not taken for formulas."""
    return text.replace("$", r"\$")


def _numbers(values: Iterable[float | None], axis: Axis) -> list[float]:
    """With NaN where there is nothing to draw, which leaves a gap."""
    numbers = (drawable(value, log=axis.log) for value in values)
    return [math.nan if number is None else number for number in numbers]


def _tick(value: float, position: int | None = None) -> str:
    """A tick's number, thousands in units.

    >>> _tick(20000.0), _tick(0.25), _tick(-3e6)
    ('20k', '0.25', '-3M')
    """
    del position
    for size, unit in _UNITS:
        if abs(value) >= 10 * size or (abs(value) >= size > 1e3):
            return f"{value / size:.6g}{unit}"
    return f"{value:.6g}"

"""Pictures of plots, for papers and documents: PDF, SVG or PNG by matplotlib.

They have the looks and sizes of the interactive page (`diffsketch.pages.charts`).
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
from matplotlib import style
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator, PercentFormatter

from diffsketch.pages.charts import NEUTRAL, STYLE, SYMBOLS, Look, drawable, has_symbols, looks_of
from diffsketch.pages.exhibits import Plot, Series, meanings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKERS = dict(zip(SYMBOLS, "osD^vp*h", strict=True))  # matplotlib's names of the symbols
_POINTS = 0.75  # of a pixel
_LEGEND_WIDTH, _NOTE_WIDTH = 50, 118  # characters of a picture's legend, and of the note
_LABEL_WIDTH = 48  # of the label of a y axis; an x axis has twice the room
_BESIDE = 5  # categories whose names have room beside each other

_Array = npt.NDArray[np.float64]


def _floor(plot: Plot) -> float:
    """Half of the least number that the plot draws on a logarithmic axis, so below all of them."""
    values = (value for line in plot.series for value in (*line.y, *line.low, *line.high))
    return 0.5 * min((v for v in values if v and drawable(v, log=True)), default=1.0)


def thumbnail(plot: Plot, looks: Mapping[str, Look]) -> bytes:
    """The plot in small, as PNG: its lines and axes, without words."""
    stream = io.BytesIO()
    with mpl.rc_context(), style.context("default"):
        drawing = Figure(figsize=(2.6, 1.7), layout="constrained", facecolor="white")
        axes = drawing.subplots()
        _set_axes(axes, plot)
        _draw_all(axes, plot, looks)
        for ruler in (axes.xaxis, axes.yaxis):
            ruler.label.set_visible(False)
            ruler.set_minor_formatter(NullFormatter())
        if plot.categories:
            axes.xaxis.set_major_locator(NullLocator())
        axes.tick_params(labelsize=6)
        drawing.savefig(stream, format="png", dpi=100, metadata={"Software": "diffsketch"})
    return stream.getvalue()


def picture(plot: Plot, looks: Mapping[str, Look] | None = None, *, form: str = "png") -> bytes:
    """Draw the plot over its first x axis, as `png`, `pdf` or `svg` (with letters as outlines).

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
        handles = _draw_all(axes, plot, looks)
        axes.set_title(_wrapped_plain(plot.title, 70), fontsize=11.5, loc="left")
        if handles:
            drawing.legend(
                handles, labels, loc="outside lower left", frameon=False, fontsize=8, ncols=2,
                title=worth or None, title_fontsize=7.5, alignment="left",
            )  # fmt: skip
        about: dict[str, Any] = {
            "png": {"Software": "diffsketch"}, "svg": {"Date": None, "Creator": ""},
            "pdf": {"CreationDate": None},
        }  # fmt: skip
        drawing.savefig(stream, format=form, dpi=140, metadata=about[form])
    return stream.getvalue()


def _draw_all(axes: Axes, plot: Plot, looks: Mapping[str, Look]) -> list[Any]:
    """Draw all series and marks; returns their handles in the legend."""
    bars = [series for series in plot.series if series.kind == "bars"]
    handles = []
    for series in plot.series:
        # Only bars stand beside each other; lines share their places.
        shift = 0.0
        if series in bars:  # side by side around their category
            shift = (bars.index(series) - (len(bars) - 1) / 2) * 0.8 / len(bars)
        look = looks[series.role or series.name]
        handles.append(_draw(axes, plot, series, look, shift=shift, width=0.8 / len(bars or "-")))
    if bars and plot.y.log:
        axes.set_ylim(bottom=_floor(plot))
    for mark in plot.marks:
        line = axes.axvline if mark.axis == "x" else axes.axhline
        handles.append(line(mark.value, color=NEUTRAL, linewidth=1.2, linestyle=":"))
    return handles


def _draw(axes: Axes, plot: Plot, series: Series, look: Look, *, shift: float, width: float) -> Any:
    """Draw a series with its spread and the cross at an early end; returns its legend's handle."""

    def numbers(values: Iterable[float | None], *, log: bool = False) -> _Array:
        return np.array([drawable(value, log=log) for value in values], dtype=float)  # None: NaN

    x, y = numbers(series.x, log=plot.x.log) + shift, numbers(series.y, log=plot.y.log)
    low, high = numbers(series.low), numbers(series.high, log=plot.y.log)
    # A logarithmic axis has no 0: bars stand, and bands end, below the least that is drawn.
    floor = _floor(plot) if plot.y.log else 0.0
    low = np.maximum(low, floor) if plot.y.log else low
    colour, faint = look.colour, {"color": look.colour, "alpha": STYLE["faint"], "linewidth": 0}
    handle: Any
    if series.kind == "bars":
        face: dict[str, Any] = (
            {"facecolor": "white", "hatch": "///"} if series.dashed else {"facecolor": colour}
        )
        handle = axes.bar(x, y - floor, width=0.92 * width, bottom=floor, edgecolor=colour, **face)
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
            line |= {"marker": _MARKERS[look.symbol], "markersize": _POINTS * size}
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
        if axis.percent:
            ruler.set_major_formatter(PercentFormatter(xmax=1.0))
        elif axis.unit or not axis.log:
            ruler.set_major_formatter(FuncFormatter(partial(_tick, axis.unit)))
        wide = _LABEL_WIDTH if name == "y" else 2 * _LABEL_WIDTH
        getattr(axes, f"set_{name}label")(_wrapped_plain(axis.label, wide), fontsize=9.5)
    axes.tick_params(labelsize=8.5)
    axes.grid(color="#e6eaef", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    if plot.categories:
        labels = [_wrapped_plain(label, 16) for label in plot.categories]
        slant: dict[str, Any] = {"rotation": 40, "ha": "right"} if len(labels) > _BESIDE else {}
        axes.set_xticks(range(len(labels)), labels, **slant)


def _tick(unit: str, value: float, _: object = None) -> str:
    """Format a tick's number, thousands in units.

    >>> _tick("", 20000.0), _tick("", 0.25), _tick("", -3e6), _tick("B", 1e7), _tick("B", 500.0)
    ('20k', '0.25', '-3M', '10 MB', '500 B')
    """
    prefix, space = "", " " if unit else ""
    for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * size or (abs(value) >= size > 1e3):
            value, prefix = value / size, letter
            break
    return f"{value:.6g}{space}{prefix}{unit}"

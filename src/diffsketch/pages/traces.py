"""Series as Plotly's traces: plain data, of what Plotly understands. Used by `interactive`."""

from __future__ import annotations

import html
import itertools
import textwrap
from typing import Any

from diffsketch.pages.exhibits import Axis, Plot, Series
from diffsketch.pages.labels import drawable, epsilon_words, value_text
from diffsketch.pages.palette import NEUTRAL, Look, has_symbols

__all__ = ["Trace", "plain_text", "traces_of", "wrapped_text"]

Trace = dict[str, Any]
_PHONE_WIDTH = 46  # characters


def traces_of(
    plot: Plot, series: Series, *, axis: Axis, axis_index: int, look: Look
) -> list[Trace]:
    """All traces of a series; `meta` is empty in the main one and says what the others are.

    Args:
        plot: What it is in.
        series: What to draw.
        axis: The x axis.
        axis_index: 0 if that is the plot's first.
        look: Colour and symbol.
    """
    places = series.x if axis_index == 0 else series.other_x[axis.label]
    x = [drawable(place, log=axis.log) for place in places]
    y = [drawable(value, log=plot.y.log) for value in series.y]
    main: Trace = {
        "meta": "",
        "name": plain_text(series.name),
        "x": x,
        "y": y,
        "hovertemplate": _hover(plot, series, axis),
        "customdata": _spreads(plot, series),
    }
    if series.kind == "bars":
        main |= {"type": "bar", "marker": _bar_marker(series, look)}
    elif series.kind == "steps":
        main |= _steps(x, y, plot=plot, axis=axis, look=look, dashed=series.dashed)
    else:
        main |= {"type": "scatter", **_line_or_points(series, look)}
    traces = [main]
    if series.kind == "band":
        traces = [*_band(plot, series, x, look), main]
    elif series.low and series.kind != "steps":
        main["error_y"] = _errors(series, look)
    return traces + _end(series, x, y, look)


def plain_text(text: str) -> str:
    """The text so that Plotly shows it as it is: without tags, links or fields of templates.

    >>> plain_text("<b>%{x}</b>")
    '&lt;b&gt;%&#123;x}&lt;/b&gt;'
    """
    # A pair of dollar signs would be a formula, for which Plotly looks for MathJax.
    return html.escape(text, quote=False).replace("%{", "%&#123;").replace("$", "&#36;")


def wrapped_text(text: str, width: int = _PHONE_WIDTH) -> str:
    """As `plain_text`, on lines of so many characters; by default they fit a phone."""
    lines = textwrap.wrap(text, width, break_on_hyphens=False) or [""]
    return "<br>".join(plain_text(line) for line in lines)


def _line_or_points(series: Series, look: Look) -> Trace:
    marker: Trace = {"color": look.colour, "symbol": look.symbol, "size": 6}
    if series.kind == "points":
        marker["size"] = 9
        if series.dashed:
            marker["symbol"] = f"{look.symbol}-open"
            marker["line"] = {"width": 2, "color": look.colour}
        return {"mode": "markers", "marker": marker}
    return {
        "mode": "lines+markers" if has_symbols(series) else "lines",
        "marker": marker,
        "line": {
            "color": look.colour,
            "width": 2.2,
            "dash": "6px,4px" if series.dashed else "solid",
        },
    }


def _bar_marker(series: Series, look: Look) -> Trace:
    marker: Trace = {"color": look.colour, "line": {"color": look.colour, "width": 1}}
    marker["opacity"] = 0.9
    if series.dashed:
        marker["pattern"] = {"shape": "/", "fgcolor": look.colour, "bgcolor": "rgba(0,0,0,0)"}
    return marker


def _steps(
    x: list[float | None],
    y: list[float | None],
    *,
    plot: Plot,
    axis: Axis,
    look: Look,
    dashed: bool,
) -> Trace:
    """A histogram: the line keeps each bin's height up to the next edge."""
    edges = [value_text(edge, axis) for edge in x]
    bins = [f"{left} to {right}" for left, right in itertools.pairwise(edges)]
    return {
        "type": "scatter",
        "mode": "lines",
        "y": [*y, *y[-1:]],
        "line": {
            "shape": "hv",
            "color": look.colour,
            "width": 1.8,
            "dash": "6px,4px" if dashed else "solid",
        },
        "fill": "none" if plot.y.log or dashed else "tozeroy",
        "fillcolor": _faint(look.colour),
        "customdata": [*bins, *bins[-1:]],
    }


def _band(plot: Plot, series: Series, x: list[float | None], look: Look) -> list[Trace]:
    """The shaded spread: for each stretch without gaps, its upper side and back on the lower."""
    floor = _floor(plot) if plot.y.log else None
    around_x: list[float | None] = []
    around_y: list[float | None] = []
    stretch: list[tuple[float, float, float]] = []
    ends: list[tuple[float | None, float | None, float | None]]
    ends = list(zip(x, series.low, series.high, strict=True)) if series.low else []
    for place, low, high in [*ends, (None, None, None)]:
        bottom, top = drawable(low), drawable(high, log=plot.y.log)
        if place is not None and bottom is not None and top is not None:
            stretch.append((place, bottom if floor is None else max(bottom, floor), top))
            continue
        if stretch:
            around_x += [*(p for p, _, _ in stretch), *(p for p, _, _ in stretch[::-1]), None]
            around_y += [*(t for _, _, t in stretch), *(b for _, b, _ in stretch[::-1]), None]
            stretch = []
    shade: Trace = {
        "meta": "band",
        "type": "scatter",
        "mode": "lines",
        "name": plain_text(series.name),
        "x": around_x,
        "y": around_y,
        "line": {"width": 0, "color": look.colour},
        "fill": "toself",
        "fillcolor": _faint(look.colour),
        "hoverinfo": "skip",
    }
    # Also where nothing of it can be drawn: every axis has the same traces.
    return [shade] if series.low else []


def _floor(plot: Plot) -> float:
    """Where a spread that reaches 0 ends on a logarithmic axis: half of the least number."""
    numbers = (value for series in plot.series for value in (*series.y, *series.low, *series.high))
    positive = [value for value in (drawable(number, log=True) for number in numbers) if value]
    return 0.5 * min(positive, default=1.0)


def _errors(series: Series, look: Look) -> Trace:
    up, down = [], []
    for y, low, high in zip(series.y, series.low, series.high, strict=True):
        middle, bottom, top = drawable(y), drawable(low), drawable(high)
        up.append(0.0 if middle is None or top is None else top - middle)
        down.append(0.0 if middle is None or bottom is None else middle - bottom)
    colour = NEUTRAL if series.kind == "bars" else look.colour
    return {
        "type": "data",
        "symmetric": False,
        "array": up,
        "arrayminus": down,
        "color": colour,
        "thickness": 1.5,
        "width": 4,
    }


def _end(series: Series, x: list[float | None], y: list[float | None], look: Look) -> list[Trace]:
    """The cross where a series ends early, with the reason."""
    drawn = [(p, v) for p, v in zip(x, y, strict=False) if p is not None and v is not None]
    if not series.ended:
        return []
    reason = f"<b>{wrapped_text(series.name)}</b><br>ends here: {wrapped_text(series.ended)}"
    return [
        {
            "meta": "end",
            "type": "scatter",
            "mode": "markers",
            "name": plain_text(series.name),
            "x": [place for place, _ in drawn[-1:]],
            "y": [value for _, value in drawn[-1:]],
            "marker": {
                "symbol": "x-thin",
                "size": 12,
                "line": {"width": 3, "color": look.colour},
                "color": look.colour,
            },
            "hovertemplate": f"{reason}<extra></extra>",
        }
    ]


def _hover(plot: Plot, series: Series, axis: Axis) -> str:
    place = "%{customdata}" if series.kind == "steps" else "%{x}"
    lines = [f"<b>{wrapped_text(series.name)}</b>", f"{wrapped_text(axis.label)}: {place}"]
    spread = "%{customdata}" if series.low and series.kind != "steps" else ""
    lines.append(f"{wrapped_text(plot.y.label)}: %{{y}}{spread}")
    if series.epsilon is not None:
        lines.append(wrapped_text(epsilon_words(series.epsilon, instead=series.epsilon_text)))
    elif series.epsilon_text:
        lines.append(wrapped_text(series.epsilon_text))
    if series.note:
        lines.append(f"<i>{wrapped_text(series.note)}</i>")
    return "<br>".join(lines) + "<extra></extra>"


def _spreads(plot: Plot, series: Series) -> list[str] | None:
    if not series.low:
        return None
    ends = zip(series.low, series.high, strict=True)
    return [
        ""
        if low is None or high is None
        else f" ({value_text(low, plot.y)} to {value_text(high, plot.y)})"
        for low, high in ends
    ]


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"

"""Plots as Plotly figures. The only module that imports Plotly.

A figure is what `Plotly.react` takes, as plain data. Each trace of a series has the series' group,
so that its line, spread and cross come and go together; colours of text and grid are left to the
page, which knows whether it is light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

from diffsketch.pages.checks import check_plot
from diffsketch.pages.exhibits import Axis, Plot
from diffsketch.pages.labels import drawable
from diffsketch.pages.palette import NEUTRAL, Look, looks_of_plots, role_of
from diffsketch.pages.traces import Trace, traces_of, wrapped_text

__all__ = ["figure", "group_of", "library", "switched"]

_CATEGORY_WIDTH = 14  # characters: several stand beside each other on a phone


def library() -> str:
    """The source of plotly.js, as the Python package ships it."""
    return str(get_plotlyjs())


def group_of(index: int) -> str:
    """The `legendgroup` of all traces of the series at an index of its plot."""
    return f"series-{index}"


def figure(
    plot: Plot, looks: Mapping[str, Look] | None = None, *, axis_index: int = 0
) -> dict[str, Any]:
    """A plot as `{"data": [...], "layout": {...}}`, checked by Plotly's own validators.

    Args:
        plot: What to draw.
        looks: By role; those of this plot alone by default.
        axis_index: Which x axis: 0 for `plot.x`, 1 and up for `plot.other_x`.

    Raises:
        ArgumentError: A name or a mark is outside what can be drawn.
        MismatchError: Numbers that belong together are not equally many.
    """
    check_plot(plot)
    looks = looks_of_plots([plot]) if looks is None else looks
    axis = (plot.x, *plot.other_x)[axis_index]
    traces: list[Trace] = []
    for index, series in enumerate(plot.series):
        made = traces_of(
            plot, series, axis=axis, axis_index=axis_index, look=looks[role_of(series)]
        )
        group = group_of(index)
        traces += [{"legendgroup": group, "showlegend": not each["meta"], **each} for each in made]
    layout = _layout(plot, axis, axis_index)
    # An empty template: Plotly's own would be repeated in every figure, and has its own colours.
    checked = go.Figure(data=traces, layout={**layout, "template": "none"})
    plain: dict[str, Any] = checked.to_plotly_json()
    plain["layout"].pop("template", None)
    return plain


def switched(plot: Plot, looks: Mapping[str, Look] | None = None) -> list[dict[str, Any]]:
    """For each of `plot.other_x`: how its figure differs from that of the first axis.

    Each is `{"label": ..., "data": [...], "layout": {...}}`: for every trace and for the layout
    the keys that have another value, so that most numbers are on the page only once.
    """
    first = figure(plot, looks)
    changes = []
    for axis_index, axis in enumerate(plot.other_x, start=1):
        other = figure(plot, looks, axis_index=axis_index)
        traces = zip(first["data"], other["data"], strict=True)
        changes.append(
            {
                "label": axis.label,
                "data": [_difference(before, after) for before, after in traces],
                "layout": _difference(first["layout"], other["layout"]),
            }
        )
    return changes


def _difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in after.items() if before.get(key) != value}


def _layout(plot: Plot, axis: Axis, axis_index: int) -> dict[str, Any]:
    x_numbers = [
        place
        for series in plot.series
        for place in (series.x if axis_index == 0 else series.other_x[axis.label])
    ]
    y_numbers = [value for series in plot.series for value in series.y]
    x_axis = _axis(axis, x_numbers)
    if plot.categories and axis_index == 0:
        x_axis |= {
            "tickvals": list(range(len(plot.categories))),
            "ticktext": [wrapped_text(word, _CATEGORY_WIDTH) for word in plot.categories],
            "ticklabeloverflow": "allow",  # or the last is left out where it is turned
        }
    return {
        "showlegend": False,
        "hovermode": "closest",
        "barmode": "group",
        "bargap": 0.25,
        "xaxis": x_axis,
        "yaxis": _axis(plot.y, y_numbers),
        **_marks(plot, axis_index),
        "margin": {"l": 8, "r": 12, "t": 12, "b": 8},
        "hoverlabel": {"align": "left", "namelength": -1},
    }


def _axis(axis: Axis, numbers: list[float | None] | list[float]) -> dict[str, Any]:
    sizes = [abs(size) for size in (drawable(number) for number in numbers) if size]
    tiny = bool(sizes) and (min(sizes) if axis.log else max(sizes)) < 1e-3
    made: dict[str, Any] = {
        "title": {"text": wrapped_text(axis.label), "standoff": 8},
        "type": "log" if axis.log else "linear",
        "automargin": True,
        "zeroline": False,
        # k, M, G read well; m and µ for small numbers would not.
        "exponentformat": "power" if tiny else "SI",
        "hoverformat": ".4~g" if tiny or (sizes and min(sizes) < 1e-4) else ",.4~r",
    }
    if axis.log:
        narrow = bool(sizes) and max(sizes) < 30 * min(sizes)
        made["dtick"] = "D2" if narrow else 1
        if narrow:
            made["tickformat"] = ".3~g" if tiny else ",.3~r"  # or 20 would be labelled "2"
        made["minor"] = {"showgrid": False, "ticks": ""}
        if sizes and min(sizes) >= 1 and max(sizes) >= 1e4:
            made["tickformat"] = "~s"
    if axis.percent:
        made |= {"tickformat": ".3~p", "hoverformat": ".4~p"}
    return made


def _marks(plot: Plot, axis_index: int) -> dict[str, list[dict[str, Any]]]:
    """Lines and their words, in the order of the marks; on x they belong to the first axis."""
    shapes, annotations = [], []
    for index, mark in enumerate(plot.marks):
        upright, log = mark.axis == "x", (plot.x if mark.axis == "x" else plot.y).log
        visible = not (upright and axis_index) and not (log and mark.value <= 0)
        along, across = ("y", "x") if upright else ("x", "y")
        line = {f"{along}ref": "paper", f"{along}0": 0, f"{along}1": 1, f"{across}ref": across}
        shapes.append(
            {
                **line,
                f"{across}0": mark.value,
                f"{across}1": mark.value,
                "type": "line",
                "visible": visible,
                "line": {"color": NEUTRAL, "width": 1.6, "dash": "dot"},
            }
        )
        # Words, unlike lines, stand at the logarithm where an axis is logarithmic.
        value = math.log10(mark.value) if log and mark.value > 0 else mark.value
        beside = _above(plot, index, value) if upright else _on_line(index, value)
        words = {"text": wrapped_text(mark.label), "visible": visible, "showarrow": False}
        annotations.append({**words, **beside, "font": {"size": 11}, "borderpad": 1})
    return {"shapes": shapes, "annotations": annotations}


def _on_line(index: int, value: float) -> dict[str, Any]:
    """Right and left by turns, as neighbours would else cover each other."""
    side = {"x": 0, "xanchor": "left"} if index % 2 else {"x": 1, "xanchor": "right"}
    return {**side, "xref": "paper", "yref": "y", "y": value, "yanchor": "bottom"}


def _above(plot: Plot, index: int, value: float) -> dict[str, Any]:
    """At the top, right of the line while there is room; one below the other."""
    places = [drawable(place, log=plot.x.log) for series in plot.series for place in series.x]
    drawn = [math.log10(p) if plot.x.log else p for p in places if p is not None]
    left = bool(drawn) and value > min(drawn) + 0.7 * (max(drawn) - min(drawn))
    height = 1 - 0.09 * (index % 5)
    side = {"xanchor": "right", "xshift": -3} if left else {"xanchor": "left", "xshift": 3}
    return {**side, "xref": "x", "x": value, "yref": "paper", "y": height, "yanchor": "top"}

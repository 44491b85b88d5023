"""Exhibits as CSV: every number that a page shows, in full precision."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from diffsketch.pages.checks import check_plot, check_table
from diffsketch.pages.exhibits import Cell, Exhibit, Plot, Series, Table
from diffsketch.privacy.claim import Epsilon

__all__ = ["to_csv"]

_EPSILON = ("value", "delta", "basis", "unit", "relation", "trust", "rounds")


def to_csv(exhibit: Exhibit) -> bytes:
    """An exhibit as CSV (UTF-8, lines end in LF).

    A plot has a line for each point: `series, kind, x, y, low, high`, a column for each other x
    axis (`x: <its label>`) and what the epsilon of the series means; where the points are epsilons
    themselves, each has its own value there, and a bin none. `x_end` is the other edge of
    a bin, `category` the word below a bar. Marks are lines of the kind "mark". A table is as it
    is; a column with epsilons becomes several. What there is not is empty.

    Raises:
        ArgumentError: A name or a mark is outside what can be shown.
        MismatchError: Numbers or cells that belong together are not equally many.
    """
    lines = _plot_lines(exhibit) if isinstance(exhibit, Plot) else _table_lines(exhibit)
    stream = io.StringIO(newline="")
    csv.writer(stream, lineterminator="\n").writerows(lines)
    return stream.getvalue().encode("utf-8")


def _plot_lines(plot: Plot) -> Iterable[Sequence[str]]:
    check_plot(plot)
    axes = [axis.label for axis in plot.other_x]
    fixed = ("series", "kind", "category", "x", "x_end", "y", "low", "high")
    epsilon = ("epsilon_text", *(f"epsilon_{name}" for name in _EPSILON))
    yield [*fixed, *(f"x: {label}" for label in axes), *epsilon, "ended"]
    for series in plot.series:
        yield from _series_lines(plot, series, axes)
    for mark in plot.marks:
        place = [_text(mark.value), "", ""] if mark.axis == "x" else ["", "", _text(mark.value)]
        meaning = ["", *_epsilon_cells(mark.epsilon, mark.value)]
        yield [mark.label, "mark", "", *place, "", "", *("" for _ in axes), *meaning, ""]


def _series_lines(plot: Plot, series: Series, axes: Sequence[str]) -> Iterable[Sequence[str]]:
    steps, count = series.kind == "steps", len(series.y)
    low, high = (ends or (None,) * count for ends in (series.low, series.high))
    for index in range(count):
        place = series.x[index]
        named = place in range(len(plot.categories))
        yield [
            series.name,
            series.kind,
            plot.categories[int(place)] if named else "",
            _text(place),
            _text(series.x[index + 1]) if steps else "",
            *(_text(value) for value in (series.y[index], low[index], high[index])),
            *(_text(series.other_x[label][index]) for label in axes),
            series.epsilon_text,
            *_epsilon_cells(series.epsilon, _value(series, index)),
            series.ended if index == count - 1 else "",
        ]


def _table_lines(table: Table) -> Iterable[Sequence[str]]:
    check_table(table)
    columns = range(len(table.columns))
    spread = [any(isinstance(row[column], Epsilon) for row in table.rows) for column in columns]
    heading: list[str] = []
    for name, several in zip(table.columns, spread, strict=True):
        heading += [name, *(f"{name} {part}" for part in _EPSILON[1:])] if several else [name]
    yield heading
    for row in table.rows:
        line: list[str] = []
        for cell, several in zip(row, spread, strict=True):
            if isinstance(cell, Epsilon):
                line += _epsilon_cells(cell, float(cell))
            else:
                line += [_text(cell), *("" for _ in _EPSILON[1:])] if several else [_text(cell)]
        yield line


def _value(series: Series, index: int) -> Cell:
    """The epsilon that a point is about."""
    if not series.epsilon_along:
        return None if series.epsilon is None else float(series.epsilon)
    if series.kind == "steps":  # a bin is about all between its edges
        return None
    return series.y[index] if series.epsilon_along == "y" else series.x[index]


def _epsilon_cells(epsilon: Epsilon | None, value: Cell) -> list[str]:
    if epsilon is None:
        return ["" for _ in _EPSILON]
    scope = epsilon.scope
    words = (epsilon.basis_text, str(scope.unit), str(scope.relation), str(scope.trust))
    return [_text(value), _text(epsilon.delta), *words, str(epsilon.rounds)]


def _text(cell: Cell) -> str:
    """With all digits: reading the text back gives the same number.

    >>> _text(0.1), _text(None), _text(3), _text(True)
    ('0.1', '', '3', 'true')
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return repr(float(cell)) if isinstance(cell, float) else str(cell)

"""Exhibits as CSV, with every number in full, and tables as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from diffsketch.files import csv_cell
from diffsketch.pages.exhibits import DASH, Cell, Exhibit, Plot, Table, cell_text, is_numeric
from diffsketch.privacy.claim import Epsilon

_LATEX = str.maketrans({
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", DASH: "--",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "±": r"$\pm$", "≥": r"$\geq$", "∞": r"$\infty$",
})  # fmt: skip
_EPSILON = ("value", "delta", "basis", "unit", "relation", "trust", "rounds")


def to_csv(exhibit: Exhibit) -> bytes:
    """Format an exhibit as CSV (UTF-8, lines end in LF).

    A plot has a line for each point: `series, kind, x, y, low, high`, a column for each other x
    axis (`x: <its label>`) and the parts of the series' epsilon; where the points are epsilons
    themselves, each has its own value there, and a bin none. `x_end` is the other edge of
    a bin, `category` the label below a bar. Marks are lines of the kind "mark". A table is as it
    is; a column with epsilons becomes several. A missing value is empty. Texts that a spreadsheet
    would take for a formula begin with an apostrophe (`csv_cell`).
    """
    lines = _plot_lines(exhibit) if isinstance(exhibit, Plot) else _table_lines(exhibit)
    stream = io.StringIO(newline="")
    rows = ([_exact(cell) for cell in line] for line in lines)
    csv.writer(stream, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode("utf-8")


def to_latex(table: Table) -> bytes:
    """Format a table for LaTeX with the package `booktabs`, values as a page shows them."""
    aligned = "".join("lr"[is_numeric(table, at)] for at, _ in enumerate(table.columns))
    heading, *rows = (
        " & ".join(cell_text(cell).translate(_LATEX) for cell in row) + r" \\"
        for row in (table.columns, *table.rows)
    )
    begin = [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule", heading, r"\midrule"]
    return "\n".join([*begin, *rows, r"\bottomrule", r"\end{tabular}", ""]).encode("utf-8")


def _plot_lines(plot: Plot) -> Iterator[list[Cell]]:
    axes = [axis.label for axis in plot.other_x]
    fixed = ("series", "kind", "category", "x", "x_end", "y", "low", "high")
    epsilon = ("epsilon_text", *(f"epsilon_{name}" for name in _EPSILON))
    yield [*fixed, *(f"x: {label}" for label in axes), *epsilon, "ended"]
    for series in plot.series:
        count = len(series.y)
        low, high = (ends or (None,) * count for ends in (series.low, series.high))
        for index, place in enumerate(series.x[:count]):
            named, steps = place in range(len(plot.categories)), series.kind == "steps"
            value: Cell = None if series.epsilon is None else float(series.epsilon)
            # One epsilon for a whole line would be wrong where each point has its own.
            if series.epsilon_along:  # a bin is about all between its edges
                epsilons = series.y if series.epsilon_along == "y" else series.x
                value = None if steps else epsilons[index]
            yield [
                series.name,
                series.kind,
                plot.categories[int(place)] if named else "",
                place,
                series.x[index + 1] if steps else "",
                *(series.y[index], low[index], high[index]),
                *(series.other_x[label][index] for label in axes),
                series.epsilon_text,
                *_epsilon_cells(series.epsilon, value),
                series.ended if index == count - 1 else "",
            ]
    for mark in plot.marks:
        place_cells: list[Cell] = [mark.value, "", ""] if mark.axis == "x" else ["", "", mark.value]
        meaning = ["", *_epsilon_cells(mark.epsilon, mark.value)]
        yield [mark.label, "mark", "", *place_cells, "", "", *("" for _ in axes), *meaning, ""]


def _table_lines(table: Table) -> Iterator[list[Cell]]:
    spread = [
        any(isinstance(row[column], Epsilon) for row in table.rows)
        for column, _ in enumerate(table.columns)
    ]
    heading: list[Cell] = []
    for name, several in zip(table.columns, spread, strict=True):
        heading += [name, *(f"{name} {part}" for part in _EPSILON[1:] if several)]
    yield heading
    for row in table.rows:
        line: list[Cell] = []
        for cell, several in zip(row, spread, strict=True):
            if isinstance(cell, Epsilon):
                line += _epsilon_cells(cell, float(cell))
            else:
                line += [cell, *("" for _ in _EPSILON[1:] if several)]
        yield line


def _epsilon_cells(epsilon: Epsilon | None, value: Cell) -> list[Cell]:
    if epsilon is None:
        return ["" for _ in _EPSILON]
    scope = epsilon.scope
    basis = f"{epsilon.basis}, simulated" if epsilon.simulated else str(epsilon.basis)
    return [value, epsilon.delta, basis, scope.unit, scope.relation, scope.trust, epsilon.rounds]


def _exact(cell: Cell) -> str:
    """Format with all digits: reading the text back gives the same number.

    >>> _exact(0.1), _exact(None), _exact(3), _exact(True)
    ('0.1', '', '3', 'true')
    """
    if cell is None:
        return ""
    if isinstance(cell, bool):
        return str(cell).lower()
    return repr(float(cell)) if isinstance(cell, float) else str(csv_cell(cell))

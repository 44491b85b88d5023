"""Parts of a page as plain data, checked when they are made, and as text: values, CSV and LaTeX.

The same parts become interactive plots, pictures, HTML and Markdown elsewhere.
"""

from __future__ import annotations

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import dataclass, field
from typing import Literal

from diffsketch.errors import MismatchError, check
from diffsketch.files import csv_cell
from diffsketch.privacy.claim import Epsilon

Cell = str | int | float | bool | Epsilon | None
"""Cell of a table. None is shown as a dash; an `Epsilon` with everything that it means."""
DASH = "\N{EN DASH}"
_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")
_LATEX = str.maketrans({
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", DASH: "--",
    "ε": r"$\varepsilon$", "δ": r"$\delta$", "±": r"$\pm$", "≥": r"$\geq$", "∞": r"$\infty$",
})  # fmt: skip
_EPSILON = ("value", "delta", "basis", "unit", "relation", "trust", "rounds")


@dataclass(frozen=True)
class Axis:
    """An axis of a plot."""

    label: str  # with the unit
    log: bool = False
    percent: bool = False  # numbers from 0 to 1 are shown as percentages
    unit: str = ""  # behind numbers and their k, M and G, such as B for bytes


@dataclass(frozen=True)
class Series:
    """One line, cloud of points, or set of bars."""

    name: str  # in the legend
    x: tuple[float, ...]  # one number for each of `y`, or one more for `steps`: the edges of bins
    y: tuple[float | None, ...]  # None leaves a gap
    low: tuple[float | None, ...] = ()  # ends of the spread at each place, or both empty
    high: tuple[float | None, ...] = ()
    kind: Literal["line", "band", "points", "bars", "steps"] = "line"  # a band shades the spread
    dashed: bool = False  # as for claims without proof and references
    role: str = ""  # decides the colour, such as the method's name; `name` by default
    epsilon: Epsilon | None = None  # the legend then has its value, basis and scope
    epsilon_text: str = ""  # in place of a value for the whole, such as "0.1 a round"
    # Axis whose numbers are epsilons: then only basis and scope of `epsilon` count.
    epsilon_along: Literal["", "x", "y"] = ""
    other_x: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by label of the axis
    ended: str = ""  # reason of an early end, such as "diverged"; a cross marks the last point
    note: str = ""  # text for the pointer

    @property
    def meaning(self) -> str:
        """The epsilon in full, or the text instead of it; empty if there is neither."""
        if self.epsilon is None:
            return self.epsilon_text
        return self.epsilon.text("symbols", quantity=self.epsilon_text)


@dataclass(frozen=True)
class Mark:
    """A straight line across a plot, with a label."""

    value: float
    label: str
    axis: Literal["x", "y"] = "y"  # the axis that `value` is on
    epsilon: Epsilon | None = None  # that the line stands for, if any: the label has it in full


def _check_name(kind: str, name: str) -> None:
    fits = _NAME.fullmatch(name) is not None
    check(fits, f"name of {kind}", "consist of letters and digits, with single dashes", name)


@dataclass(frozen=True)
class Plot:
    """A plot: lines, points and bars over one x axis at a time.

    Raises:
        ArgumentError: Its name cannot be that of a file, or a mark is not a number.
        MismatchError: A series has not as many numbers as places, or lacks an axis to switch to.
    """

    name: str  # of its files and anchor; letters, digits and dashes
    title: str
    x: Axis  # the one that is shown first
    y: Axis
    series: tuple[Series, ...]
    caption: str = ""
    marks: tuple[Mark, ...] = ()
    other_x: tuple[Axis, ...] = ()  # to switch to; every series has its `other_x` for each
    categories: tuple[str, ...] = ()  # labels of bars, one for each place 0, 1, 2, ...

    def __post_init__(self) -> None:
        _check_name("exhibit", self.name)
        labels = [axis.label for axis in (self.x, *self.other_x)]
        check(len(set(labels)) == len(labels), "other_x", "have labels of their own", labels)
        for series in self.series:
            count = len(series.y)
            places = count + (series.kind == "steps" and count > 0)
            numbers: dict[str, tuple[int, Sized]] = {"x": (places, series.x)}
            if series.low or series.high:  # a spread may be left out, but not one end of it
                numbers |= {"low": (count, series.low), "high": (count, series.high)}
            for label in labels[1:]:
                numbers[f"other_x[{label!r}]"] = (places, series.other_x.get(label, ()))
            for name, (expected, present) in numbers.items():
                if len(present) != expected:
                    raise MismatchError(
                        f"{name} of series {series.name!r} in plot {self.name!r} must have "
                        f"{expected} numbers, got {len(present)}"
                    )
        for mark in self.marks:
            check(math.isfinite(mark.value), f"mark of plot {self.name}", "be finite", mark.value)


@dataclass(frozen=True)
class Table:
    """A table: as many cells in each row as there are columns, else a `MismatchError`."""

    name: str  # of its file and anchor
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""

    def __post_init__(self) -> None:
        _check_name("exhibit", self.name)
        columns = len(self.columns)
        for number, row in enumerate(self.rows):
            if len(row) != columns:
                raise MismatchError(
                    f"row {number} of table {self.name!r} must have {columns} cells, got {len(row)}"
                )


Exhibit = Plot | Table


@dataclass(frozen=True)
class Section:
    """A part of a page; plots that follow each other stand side by side, with one legend."""

    name: str  # of its anchor
    title: str
    lead: str = ""  # summary in a sentence or two
    exhibits: tuple[Exhibit, ...] = ()
    text: tuple[str, ...] = ()  # paragraphs below the lead
    row: Mapping[str, str] = field(default_factory=dict)  # texts side by side, by heading
    notes: tuple[str, ...] = ()  # paragraphs that are folded away
    details: Mapping[str, tuple[Exhibit, ...]] = field(default_factory=dict)  # so are these
    badge: str = ""  # beside the heading and in the index, such as "Figure 3"

    @property
    def every_exhibit(self) -> tuple[Exhibit, ...]:
        """All that it has, also what is folded away."""
        return (*self.exhibits, *itertools.chain.from_iterable(self.details.values()))


@dataclass(frozen=True)
class Page:
    """A page of sections.

    Names of exhibits become names of files: they are unique also where a file system does not tell
    capital letters apart, else an `ArgumentError`.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    notice: str = ""  # in a box at the top, such as "Reduced run"
    origin: Mapping[str, str] = field(default_factory=dict)  # commands, versions, seeds, settings
    roles: tuple[str, ...] = ()  # of series, that get the first colours: blue, orange, green

    def __post_init__(self) -> None:
        for kind, names in (
            ("section", [section.name for section in self.sections]),
            ("exhibit", [exhibit.name for exhibit in all_exhibits(self)]),
        ):
            seen: set[str] = set()
            for name in names:
                _check_name(kind, name)
                check(name.lower() not in seen, f"name of {kind}", "be unique on its page", name)
                seen.add(name.lower())


def all_exhibits(page: Page) -> Iterator[Exhibit]:
    """Yield everything on a page that has a file, in its order: also what is folded away."""
    for section in page.sections:
        yield from section.every_exhibit


def meanings(plots: Iterable[Plot]) -> dict[tuple[Epsilon, str], list[str]]:
    """Group what has an epsilon by its worth: names by an epsilon and the values that they have.

    Basis and scope are that epsilon's; names with the same basis, scope and values are together.
    """
    by_name: dict[tuple[str, ...], tuple[Epsilon, dict[str, None]]] = {}
    for plot in plots:
        named = [(series.name, series.epsilon, series.epsilon_text) for series in plot.series]
        named += [(mark.label, mark.epsilon, "") for mark in plot.marks]
        for name, epsilon, text in named:
            if epsilon is not None:
                key = (name, epsilon.basis_text, str(epsilon.scope))
                value = text or epsilon.quantity("symbols")
                by_name.setdefault(key, (epsilon, {}))[1][value] = None
    groups: dict[tuple[str, ...], tuple[tuple[Epsilon, str], list[str]]] = {}
    # First by name, then names with the same values together: a note of a few lines.
    for (name, *worth), (epsilon, values) in by_name.items():
        text = "; ".join(values)
        groups.setdefault((*worth, text), ((epsilon, text), []))[1].append(name)
    return dict(groups.values())


def number_text(value: float) -> str:
    """Format a number for a reader: four significant digits, thousands apart.

    >>> number_text(33200000), number_text(0.98214), number_text(1e-9), number_text(1234.5678)
    ('33,200,000', '0.9821', '1e-09', '1,235')
    """
    if isinstance(value, int):
        return f"{value:,}"
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else ("∞" if value > 0 else "-∞")
    short = float(f"{value:.4g}")
    return f"{short:,.10g}" if value == 0 or 1e-4 <= abs(value) < 1e10 else f"{short:.4g}"


def cell_text(cell: Cell) -> str:
    """Format a cell of a table as a line of text.

    >>> cell_text(None), cell_text(True), cell_text(12345), cell_text("MNIST")
    ('–', 'yes', '12,345', 'MNIST')
    """
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, Epsilon):
        return cell.text("symbols")
    return cell if isinstance(cell, str) else number_text(cell)


def is_numeric(table: Table, column: int) -> bool:
    """Tell whether a column has numbers, and nothing but numbers."""
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
    )


# -- Files ----------------------------------------------------------------------------------------


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

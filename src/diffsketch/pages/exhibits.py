"""Parts of a page as plain data, their checks, and the text of their values.

The same parts become interactive plots, pictures, HTML, CSV and Markdown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from diffsketch.errors import MismatchError, check
from diffsketch.privacy.claim import Epsilon

Cell = str | int | float | bool | Epsilon | None
"""Cell of a table. None is shown as a dash; an `Epsilon` with everything that it means."""
DASH = "\N{EN DASH}"
_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        label: Label, with the unit.
        log: Whether it is logarithmic.
        percent: Whether numbers from 0 to 1 are shown as percentages.
    """

    label: str
    log: bool = False
    percent: bool = False


@dataclass(frozen=True)
class Series:
    """One line, cloud of points, or set of bars.

    Attributes:
        name: Name in the legend; the same method has the same `role` in all plots.
        x: Places; one number for each of `y`, or one more for `steps` (the edges of bins).
        y: Values; None leaves a gap.
        low: Lower end of the spread at each place, or empty.
        high: Upper end of the spread.
        kind: Kind of drawing. `band` is a line with its spread shaded.
        dashed: Whether it is dashed, as for claims without proof and references.
        role: Decides the colour, such as the method's name; the name itself by default.
        epsilon: Privacy of the series. The legend then has its value, basis and scope.
        epsilon_text: Replaces the value where there is none for the whole, such as "0.1 a round".
        epsilon_along: Axis whose numbers are epsilons, if one is: each point then has its own,
            and of `epsilon` only basis and scope count.
        other_x: Places on each of the plot's `other_x`, by its label.
        ended: Reason of an early end, such as "diverged"; a cross marks the last point.
        note: Text for the pointer.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float | None, ...]
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    kind: Literal["line", "band", "points", "bars", "steps"] = "line"
    dashed: bool = False
    role: str = ""
    epsilon: Epsilon | None = None
    epsilon_text: str = ""
    epsilon_along: Literal["", "x", "y"] = ""
    other_x: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    ended: str = ""
    note: str = ""

    @property
    def meaning(self) -> str:
        """The epsilon in full, or the text instead of it; empty if there is neither."""
        if self.epsilon is None:
            return self.epsilon_text
        return self.epsilon.text("symbols", quantity=self.epsilon_text)


@dataclass(frozen=True)
class Mark:
    """A straight line across a plot, with a label.

    Attributes:
        value: Place of the line.
        label: Label of the line.
        axis: Axis that `value` is on.
        epsilon: Epsilon that the line stands for, if any: the label has it in full.
    """

    value: float
    label: str
    axis: Literal["x", "y"] = "y"
    epsilon: Epsilon | None = None


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        name: Name of its files and anchor; letters, digits and dashes.
        title: Heading.
        x: The x axis that is shown first.
        y: The y axis.
        series: Lines, points and bars.
        caption: Text below the plot.
        marks: Straight lines.
        other_x: Axes to switch to; every series has its `other_x` for each.
        categories: Labels of bars, one for each place 0, 1, 2, ...
    """

    name: str
    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    caption: str = ""
    marks: tuple[Mark, ...] = ()
    other_x: tuple[Axis, ...] = ()
    categories: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        name: Name of its file and anchor.
        title: Heading.
        columns: Headings of the columns.
        rows: Cells, as many in each row as there are columns.
        caption: Text below the table.
    """

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    caption: str = ""


Exhibit = Plot | Table


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        name: Name of its anchor.
        title: Heading.
        lead: Summary in a sentence or two.
        exhibits: Plots and tables; plots that follow each other stand side by side if they fit.
        text: Paragraphs below the lead.
        details: Tables that are folded away, by heading, such as settings.
        badge: Short text beside the heading, such as "Figure 3 of the paper".
    """

    name: str
    title: str
    lead: str = ""
    exhibits: tuple[Exhibit, ...] = ()
    text: tuple[str, ...] = ()
    details: Mapping[str, Table] = field(default_factory=dict)
    badge: str = ""


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: Title.
        lead: Summary below the title.
        sections: Sections, in their order.
        notice: Text in a box at the top, such as "Reduced run"; empty for none.
        origin: Record of commands, versions, seeds and settings, as text by name.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    notice: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)


def all_exhibits(page: Page) -> Iterator[Exhibit]:
    """Yield everything on a page that has a file, in its order: also what is folded away."""
    for section in page.sections:
        yield from section.exhibits
        yield from section.details.values()


def check_page(page: Page) -> None:
    """Check all names and shapes.

    Names of exhibits become names of files: they are unique also where a file system does not
    tell capital letters apart.

    Raises:
        ArgumentError: A name has other than letters, digits and single dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many.
    """
    for kind, names in (
        ("section", [section.name for section in page.sections]),
        ("exhibit", [exhibit.name for exhibit in all_exhibits(page)]),
    ):
        seen: set[str] = set()
        for name in names:
            _check_name(kind, name)
            check(name.lower() not in seen, f"name of {kind}", "be unique on its page", name)
            seen.add(name.lower())
    for exhibit in all_exhibits(page):
        check_exhibit(exhibit)


def check_exhibit(exhibit: Exhibit) -> None:
    """Check that the numbers of a plot, or the cells of a table, fit together.

    Raises:
        ArgumentError: Its name cannot be that of a file, or a mark is not a number.
        MismatchError: A series has not as many numbers as places or lacks an axis to switch to, or
            a row has more or fewer cells than there are columns.
    """
    _check_name("exhibit", exhibit.name)
    if isinstance(exhibit, Table):
        columns = len(exhibit.columns)
        for number, row in enumerate(exhibit.rows):
            if len(row) != columns:
                raise MismatchError(
                    f"row {number} of table {exhibit.name!r} must have {columns} cells, "
                    f"got {len(row)}"
                )
        return
    labels = [axis.label for axis in (exhibit.x, *exhibit.other_x)]
    check(len(set(labels)) == len(labels), "other_x", "have labels of their own", labels)
    for series in exhibit.series:
        _check_series(exhibit, series)
    for mark in exhibit.marks:
        check(math.isfinite(mark.value), f"mark of plot {exhibit.name}", "be finite", mark.value)


def _check_name(kind: str, name: str) -> None:
    fits = _NAME.fullmatch(name) is not None
    check(fits, f"name of {kind}", "consist of letters and digits, with single dashes", name)


def _check_series(plot: Plot, series: Series) -> None:
    count = len(series.y)
    places = count + (series.kind == "steps" and count > 0)
    numbers = {"x": (places, series.x)}
    if series.low or series.high:  # a spread may be left out, but not one end of it
        numbers |= {"low": (count, series.low), "high": (count, series.high)}  # type: ignore[dict-item]
    for axis in plot.other_x:
        numbers[f"other_x[{axis.label!r}]"] = (places, series.other_x.get(axis.label, ()))
    for name, (expected, found) in numbers.items():
        if len(found) != expected:
            raise MismatchError(
                f"{name} of series {series.name!r} in plot {plot.name!r} must have {expected} "
                f"numbers, got {len(found)}"
            )


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


def value_text(value: float | None, axis: Axis) -> str:
    """Format a number as an axis shows it.

    >>> value_text(0.9213, Axis("accuracy", percent=True)), value_text(None, Axis("x"))
    ('92.13%', '–')
    """
    if value is None:
        return DASH
    return f"{number_text(100.0 * value)}%" if axis.percent else number_text(value)


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

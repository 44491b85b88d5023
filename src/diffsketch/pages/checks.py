"""What has to hold of exhibits before they are drawn; none is repaired in silence."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from diffsketch.errors import MismatchError, check
from diffsketch.pages.exhibits import Exhibit, Page, Plot, Series, Table

__all__ = ["all_exhibits", "check_page", "check_plot", "check_table"]

_NAME = re.compile(r"[A-Za-z0-9]+(-[A-Za-z0-9]+)*")


def all_exhibits(page: Page) -> Iterator[Exhibit]:
    """Everything on a page that has a file, in its order: also what is folded away."""
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
        if isinstance(exhibit, Plot):
            check_plot(exhibit)
        else:
            check_table(exhibit)


def check_plot(plot: Plot) -> None:
    """Check that a plot's numbers fit together.

    Raises:
        ArgumentError: Its name cannot be that of a file, or a mark is not a number.
        MismatchError: A series has not as many numbers as places, or lacks an axis to switch to.
    """
    _check_name("exhibit", plot.name)
    labels = [axis.label for axis in (plot.x, *plot.other_x)]
    check(len(set(labels)) == len(labels), "other_x", "have labels of their own", labels)
    for series in plot.series:
        _check_series(plot, series)
    for mark in plot.marks:
        check(math.isfinite(mark.value), f"mark of plot {plot.name}", "be finite", mark.value)


def check_table(table: Table) -> None:
    """Check that a table's rows are as long as its heading.

    Raises:
        ArgumentError: Its name cannot be that of a file.
        MismatchError: A row has more or fewer cells than there are columns.
    """
    _check_name("exhibit", table.name)
    for number, row in enumerate(table.rows):
        if len(row) != len(table.columns):
            raise MismatchError(
                f"row {number} of table {table.name!r} must have {len(table.columns)} cells, "
                f"got {len(row)}"
            )


def _check_name(kind: str, name: str) -> None:
    fits = _NAME.fullmatch(name) is not None
    check(fits, f"name of {kind}", "consist of letters and digits, with single dashes", name)


def _check_series(plot: Plot, series: Series) -> None:
    places = len(series.y) + (series.kind == "steps" and len(series.y) > 0)
    expected = {"x": places, "low": len(series.y), "high": len(series.y)}
    found = {"x": len(series.x), "low": len(series.low), "high": len(series.high)}
    for axis in plot.other_x:
        name = f"other_x[{axis.label!r}]"
        expected[name], found[name] = places, len(series.other_x.get(axis.label, ()))
    for name, count in expected.items():
        # A spread may be left out, but not one end of it.
        absent = name in ("low", "high") and not series.low and not series.high
        if found[name] != count and not absent:
            raise MismatchError(
                f"{name} of series {series.name!r} in plot {plot.name!r} must have {count} "
                f"numbers, got {found[name]}"
            )

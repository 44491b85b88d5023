"""What a page shows, as plain data: the same parts become interactive plots, pictures and CSV."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from diffsketch.privacy.claim import Epsilon

__all__ = ["Axis", "Cell", "Exhibit", "Mark", "Page", "Plot", "Section", "Series", "Table"]

Cell = str | int | float | bool | Epsilon | None
"""Of a table. None is shown as a dash; an `Epsilon` with everything that it means."""


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        label: With its unit.
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
        name: For the legend; the same method has the same `role` in all plots.
        x: Where; one number for each of `y`, or one more for `steps` (the edges of bins).
        y: How much; None where there is nothing to draw.
        low: Lower end of the spread at each place, or empty.
        high: Upper end.
        kind: How it is drawn. `band` is a line with its spread shaded.
        dashed: For what is only claimed, and for references.
        role: What decides the colour, such as the method's name; the name itself by default.
        epsilon: The privacy of what is shown. The legend then says its value, basis, unit,
            relation and trust.
        epsilon_text: Said instead of the value where there is none for the whole, such as
            "0.1 a round"; the rest of `epsilon` is said behind it.
        epsilon_along: The axis whose numbers are epsilons, if one is: each point then has its own,
            and of `epsilon` only the words count.
        other_x: For each of the plot's `other_x`, by its label: where, on that axis.
        ended: Why it ends early, such as "diverged"; its last point is marked with a cross.
        note: Shown when the pointer is over it.
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


@dataclass(frozen=True)
class Mark:
    """A straight line across a plot, with a word on it.

    Attributes:
        value: Where.
        label: What it is.
        axis: Which axis `value` is on.
        epsilon: If it is one: said in full in the label.
    """

    value: float
    label: str
    axis: Literal["x", "y"] = "y"
    epsilon: Epsilon | None = None


@dataclass(frozen=True)
class Plot:
    """A plot.

    Attributes:
        name: Of its files, and of its place on the page; letters, digits and dashes.
        title: Above it.
        x: The axis that is shown first.
        y: The other axis.
        series: What is drawn.
        caption: Below it: what to see.
        marks: Straight lines.
        other_x: Axes to switch to; every series has its `other_x` for each.
        categories: For bars: the words below them, one for each place 0, 1, 2, ...
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
        name: Of its file, and of its place on the page.
        title: Above it.
        columns: Headings.
        rows: As many cells in each as there are columns.
        caption: Below it.
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
        name: Of its place on the page.
        title: Its heading.
        lead: What there is to learn from it, in a sentence or two.
        exhibits: In their order; plots that follow each other stand side by side where there is
            room.
        text: Paragraphs below the lead.
        details: By heading: tables that are folded away, such as settings.
        badge: A word or two beside the heading, such as "Figure 3 of the paper".
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
        title: Of the page.
        lead: First words.
        sections: In their order.
        notice: Shown at the top in a box, such as "Reduced run"; empty for none.
        origin: What made it: commands, versions, seeds, settings, as words by name.
    """

    title: str
    lead: str
    sections: tuple[Section, ...]
    notice: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)

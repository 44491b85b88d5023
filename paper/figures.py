"""Figures as data: plots, tables and facts of records, as `figures.toml` describes them.

A record is a row of named values: a point of a curve, a case of an audit. Each drawing is a
function that turns the results of an experiment into lists of records by name, and `draw` makes
of them whatever `figures.toml` has for that drawing.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

from diffsketch.pages.exhibits import Axis, Cell, Exhibit, Mark, Plot, Series, Table
from diffsketch.privacy.claim import Epsilon, Relation, Scope, Trust, Unit
from paper.experiments import Experiment, Results, texts

Fact = float | str | bool | None
"""A number that was measured; None where there is none, such as an accuracy of no finished run."""
AllFacts: TypeAlias = Mapping[str, Mapping[str, Fact]]
"""The facts of all figures, by experiment and name."""
Record = dict[str, Any]
Records = Mapping[str, Sequence[Record]]
SECURE_SUM = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
"""The scope of cpSGD's."""
_STYLE = {"dashed", "role", "epsilon", "epsilon_text", "ended", "note"}
"""Fields of a series that its entry has, or else its records."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, as it came out."""

    exhibits: tuple[Exhibit, ...]  # as the paper has them
    proven: tuple[Exhibit, ...] = ()  # the same with proven privacy, and what an audit measured
    text: tuple[str, ...] = ()  # paragraphs
    facts: Mapping[str, Fact] = field(default_factory=dict)


Figures: TypeAlias = Sequence[tuple[Experiment, Figure]]
"""Experiments, each with the figure that it came to."""


def draw(experiment: Experiment, records: Records) -> Figure:
    """The figure of an experiment's records: exhibits in the order of its entry, and facts.

    All texts may have the options of the settings file, and `seeds`: how many.

    Guarantees (`paper/tests/test_figures.py`): records with one name are points of one line; what
    no record has is left out.
    """
    entry, seeds = texts()[experiment.drawing], experiment.seeds
    if experiment.measurements and not experiment.variants:  # which may have seeds of their own
        seeds = len(experiment.jobs_of(experiment.measurements[0]))
    counts = sorted({len(experiment.jobs_of(each)) for each in experiment.parts} or {seeds})
    count = "one seed" if counts == [1] else f"{' or '.join(map(str, counts))} seeds"
    shared = {**experiment.options, "seeds": count}
    proven = [each for each in entry["exhibit"] if each.get("proven")]
    others = [each for each in entry["exhibit"] if each not in proven]
    facts: dict[str, Fact] = {"seeds": seeds}
    for each in map(_whole, entry["facts"]):
        for record in _chosen(each, records):
            for name, key in each["names"].items():
                fact = record.get(key)
                facts[name.format_map(record)] = float(fact) if isinstance(fact, Epsilon) else fact
    return Figure(
        exhibits=tuple(exhibits_of(experiment.name, others, records, **shared)),
        proven=tuple(exhibits_of(experiment.name, proven, records, **shared)),
        text=tuple(text.format_map(shared) for text in entry.get("text", ())),
        facts=facts,
    )


def exhibits_of(
    experiment: str, entries: Iterable[Mapping[str, Any]], records: Records, **shared: Any
) -> list[Exhibit]:
    """The plots and tables of some entries; `shared` are fields of all records."""
    complete = {name: [{**shared, **row} for row in rows] for name, rows in records.items()}
    exhibits: list[Exhibit] = []
    for entry in map(_whole, entries):
        make = _tables if "columns" in entry else _plots
        exhibits += make(experiment, entry, complete)
    return exhibits


def _whole(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """An entry with what it shares with others, which `use` names."""
    return {**texts()[entry["use"]], **entry} if "use" in entry else entry


def _chosen(entry: Mapping[str, Any], records: Records) -> list[Record]:
    """The records that an entry is made of: those in its list that have the values it asks for."""
    wanted = entry.get("where", {}).items()
    return [record for record in records.get(entry["of"], ()) if wanted <= record.items()]


def _tables(experiment: str, entry: Mapping[str, Any], records: Records) -> list[Table]:
    """The tables of an entry, one for each name that the records come to; a row for a record."""
    groups: dict[str, list[Record]] = {}
    for record in _chosen(entry, records):
        groups.setdefault(entry["name"].format_map(record), []).append(record)
    tables = []
    for name, group in groups.items():
        rows = [tuple(record.get(key) for key in entry["columns"].values()) for record in group]
        tables.append(table(entry, f"{experiment}-{slug(name)}", rows, fields=group[0]))
    return tables


def table(
    entry: Mapping[str, Any],
    name: str,
    rows: Sequence[tuple[Cell, ...]],
    headings: Iterable[str] = (),
    fields: Mapping[str, Any] = {},
) -> Table:
    """A table of these rows, with the headings, title and caption of an entry."""
    columns = tuple(heading.format_map(fields) for heading in headings or entry["columns"])
    title, caption = (entry.get(part, "").format_map(fields) for part in ("title", "caption"))
    return Table(name, title, columns, tuple(rows), caption)


def _plots(experiment: str, entry: Mapping[str, Any], records: Records) -> list[Plot]:
    """The plots of an entry, one for each name that the records come to."""
    by_plot: dict[str, dict[tuple[int, str], list[Record]]] = {}
    for place, line in enumerate(entry["series"]):
        for record in _chosen(line, records):
            lines = by_plot.setdefault(entry["name"].format_map(record), {})
            lines.setdefault((place, line["name"].format_map(record)), []).append(record)
    plots = []
    for name, lines in by_plot.items():
        every = list(chain.from_iterable(lines.values()))
        values = (each[entry["x"]["field"]] for each in every if entry.get("categories"))
        categories = list(dict.fromkeys(values))
        series = [
            _series(entry, entry["series"][place], label, points, categories)
            for (place, label), points in lines.items()
        ]
        series = [line for line in series if any(value is not None for value in line.y)]
        if not series:
            continue
        about = every[0]
        plot = Plot(
            name=f"{experiment}-{slug(name)}",
            title=entry["title"].format_map(about),
            x=_axis(entry["x"], about),
            y=_axis(entry["y"], about),
            series=tuple(series),
            caption=entry.get("caption", "").format_map(about),
            marks=_marks(entry, name, records),
            other_x=tuple(_axis(axis, about) for axis in entry.get("other_x", ())),
            categories=tuple(map(str, categories)),
        )
        plots.append(plot)
    return plots


def _series(
    entry: Mapping[str, Any],
    line: Mapping[str, Any],
    name: str,
    points: Sequence[Record],
    categories: Sequence[Any],
) -> Series:
    """The series of some records. Where its values are epsilons, it has their meaning."""
    x, y = (line.get(axis) or entry[axis]["field"] for axis in ("x", "y"))
    low, high = (line.get(end, entry.get(end)) for end in ("low", "high"))

    def place(point: Record) -> float:
        return categories.index(point[x]) if categories else float(point[x])

    points = sorted(points, key=place)
    values = [point[y] for point in points]
    inherited = () if line.get("plain") else _STYLE
    style = {key: points[0][key] for key in inherited if key in points[0]}
    for key in _STYLE & line.keys():
        text = isinstance(line[key], str)
        style[key] = line[key].format_map(points[0]) if text else line[key]
    epsilons = [value for value in values if isinstance(value, Epsilon)]
    if epsilons:  # the legend has what they are worth, if that is the same for all
        same = len({(epsilon.basis, epsilon.scope) for epsilon in epsilons}) == 1
        style["epsilon"] = epsilons[0] if same else None
        style["epsilon_text"] = style["epsilon_text"] if same else ""
    along = line.get("epsilon_along", "y" if epsilons else "")
    kind, ends = line.get("kind", "line"), dict[str, Any]()
    if low and all(point[low] is not None for point in points if point[y] is not None):
        ends["low"], ends["high"] = (tuple(point[end] for point in points) for end in (low, high))
        kind = "band" if kind == "line" else kind
    if kind == "steps":  # the last place is the end of the last bin
        values.pop()
    return Series(
        name=name,
        x=tuple(float(place(point)) for point in points),
        y=tuple(None if value is None else float(value) for value in values),
        kind=kind,
        epsilon_along=along,
        other_x={
            axis["label"]: tuple(float(point[axis["field"]]) for point in points)
            for axis in entry.get("other_x", ())
        },
        **ends,
        **style,
    )


def _axis(entry: Mapping[str, Any], record: Record) -> Axis:
    log, percent, unit = entry.get("log", False), entry.get("percent", False), entry.get("unit", "")
    return Axis(entry["label"].format_map(record), log=log, percent=percent, unit=unit)


def _marks(entry: Mapping[str, Any], plot: str, records: Records) -> tuple[Mark, ...]:
    """The marks of a plot; of those with one label the first."""
    marks: dict[str, Mark] = {}
    for each in entry.get("marks", ()):
        for record in _chosen(each, records):
            label, value = each["label"].format_map(record), record[each["value"]]
            if entry["name"].format_map(record) == plot and value is not None:
                axis, epsilon = each.get("axis", "y"), record.get(each.get("epsilon"))
                marks.setdefault(label, Mark(value, label, axis, epsilon))
    return tuple(marks.values())


# --- what drawings need to make records ------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Measured:
    """A measurement of an experiment, with the result of each seed."""

    name: str
    settings: Mapping[str, Any]
    by_seed: tuple[Mapping[str, Any], ...]

    @property
    def first(self) -> Mapping[str, Any]:
        """The result of the first seed: enough for what is the same with every seed."""
        return self.by_seed[0]


def measured_of(experiment: Experiment, results: Results) -> list[Measured]:
    """The measurements of an experiment in its order."""
    return [
        Measured(each.name, each.settings, tuple(results[job] for job in experiment.jobs_of(each)))
        for each in experiment.measurements
    ]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation if there are several.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([1.0])
    ((2.0, 1.4142135623730951), (1.0, None))
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def mean_or_none(values: Iterable[float | None]) -> float | None:
    """The mean; None if one of the values is."""
    every: list[Any] = list(values)
    return None if None in every else statistics.fmean(every)


def band_of(mean: float | None, spread: float | None) -> dict[str, float | None]:
    """The ends of a share's band: one standard deviation to either side, within 0 and 1."""
    if mean is None or spread is None:
        return {"low": None, "high": None}
    return {"low": max(0.0, mean - spread), "high": min(1.0, mean + spread)}


def slug(text: str) -> str:
    """A text for names of files: letters, digits and dashes.

    >>> slug("50x, epsilon 0.1")
    '50x-epsilon-0-1'
    """
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")

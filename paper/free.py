"""The figure of the thesis made true: accuracy over table size at a fixed proven epsilon."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diffsketch.errors import check
from diffsketch.pages.exhibits import Axis, Exhibit, Mark, Plot, Series
from diffsketch.planning import PlanRequest, Relation
from paper.experiments import Experiment, Results
from paper.figures import Fact, Figure, Rows, banded, mean_and_spread, table
from paper.figures_trained import TrainedLine, facts_of, panels_of
from paper.free_size import FreeSize, free_size

_CELLS = Axis("cells of a message", log=True)
_TIMES = Axis("cells of a message over the planner's", log=True)
_ACCURACY = Axis("test accuracy", percent=True)
_GAP = Axis("accuracy less that of the dense mean", percent=True)
_POINT = 0.01  # of accuracy that a table may lose and still be called free


@dataclass(frozen=True)
class Sized:
    """The runs of one cohort and epsilon: tables by size, the dense mean, the planner's answer."""

    panel: str
    cohort: int
    budget: float
    dense: TrainedLine
    tables: tuple[TrainedLine, ...]  # smallest first
    free: FreeSize

    @property
    def chosen(self) -> TrainedLine | None:
        """The smallest table that was run with the planner's cells or more; None for the dense."""
        return next((one for one in self.tables if cells_of(one) >= self.free.cells), None)

    def gaps(self, line: TrainedLine) -> tuple[float, float | None]:
        """Accuracy less that of the dense mean, seed by seed: mean and standard deviation."""
        both = zip(line.accuracies, self.dense.accuracies, strict=True)
        return mean_and_spread([one - other for one, other in both])


def cells_of(line: TrainedLine) -> int:
    """Cells of a message."""
    return int(line.config["rows"]) * int(line.config["cols"])


def sized_of(panel: str, lines: Sequence[TrainedLine], *, spread: float) -> Sized:
    """Sort the lines of a panel, and ask the planner about the same run."""
    whole = [line for line in lines if "rows" not in line.config]
    check(len(whole) == 1, "panel", "have one dense mean", panel)
    dense = whole[0]
    tables = sorted((one for one in lines if one is not dense), key=cells_of)
    config = dense.config
    request = PlanRequest(
        dim=dense.summaries[0]["dim"], cohort=config["cohort"], population=config["workers"],
        rounds=config["rounds"], target_epsilon=config["budget"], delta=config["delta"],
        sampling=config["sampling"], relation=Relation(config.get("relation", "replace")),
        vector_norm=config["clip"], spread=spread, message_bytes=6,
    )  # fmt: skip
    size = free_size(request)
    return Sized(panel, config["cohort"], config["budget"], dense, tuple(tables), size)


def draw_free(experiment: Experiment, results: Results) -> Figure:
    """A plot for each cohort, one of all together over the planner's size, and a table.

    Option `spread`: that of the planner's request; the norm is the clip. Each panel has one dense
    mean; its other runs are tables.

    Guarantees (`paper/tests/test_free.py`): gaps are means of differences seed by seed; the
    planner is asked about the very settings of the runs.
    """
    panels, spread = panels_of(experiment, results), float(experiment.options.get("spread", 0.0))
    every = [sized_of(panel, lines, spread=spread) for panel, lines in panels.items()]
    facts = facts_of(experiment, panels) | _free_facts(every)
    exhibits: list[Exhibit] = []
    for cohort in dict.fromkeys(one.cohort for one in every):
        some = [one for one in every if one.cohort == cohort]
        exhibits.append(_over_cells(f"{experiment.name}-{cohort}-clients", some))
    exhibits.append(_together(f"{experiment.name}-together", every))
    return Figure(
        lead=_lead(every, facts),
        exhibits=(*exhibits, _sizes(f"{experiment.name}-sizes", every)),
        facts=facts,
    )


def _free_facts(every: Sequence[Sized]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    chosen: list[float] = []
    for one in every:
        facts |= {
            f"free/{one.panel}": one.free.cells,
            f"theory/{one.panel}": one.free.theory,
            f"saving/{one.panel}": one.free.request.dim / one.free.cells,
            f"gap/{one.panel}": None,
            f"gap-spread/{one.panel}": None,
        }
        for line in one.tables:
            place = f"{one.panel}/{line.name}"
            facts[f"gap/{place}"], facts[f"gap-spread/{place}"] = one.gaps(line)
        if one.chosen is not None:
            gap, facts[f"gap-spread/{one.panel}"] = one.gaps(one.chosen)
            facts[f"gap/{one.panel}"] = gap
            chosen.append(gap)
    smallest = [one.gaps(one.tables[0])[0] for one in every if one.tables]
    return facts | {
        "panels": len(every),
        "panels-predicted": len(chosen),  # the planner finds a table smaller than the vector
        "panels-free": sum(gap >= -_POINT for gap in chosen),  # and it was measured to be free
        "gap-mean": statistics.fmean(chosen) if chosen else None,
        "gap-worst": min(chosen, default=None),
        "gap-smallest-tables": statistics.fmean(smallest) if smallest else None,
    }


def _lead(every: Sequence[Sized], facts: Mapping[str, Fact]) -> str:
    parts = []
    for one in every:
        gap, size = facts[f"gap/{one.panel}"], one.free
        text = "no smaller table is free"
        if isinstance(gap, float):
            ratio = size.request.dim / size.cells
            text = f"{size.cells:,} cells ({ratio:.3g}x fewer), {100 * gap:+.1f} points"
        parts.append(f"{one.panel}: {text}")
    return (
        "Smallest table that the planner takes to cost nothing, and its accuracy less that of the "
        f"dense mean with the same epsilon. {'; '.join(parts)}. {_scope(every)}"
    )


def _scope(some: Sequence[Sized]) -> str:
    """Say once for a plot, and not for each of its lines, what its epsilons are."""
    one = some[0].dense.epsilon
    return (
        f"Epsilons are of the whole run at delta = {one.delta:g} ({one.basis_text}; {one.scope})."
    )


def _over_cells(name: str, some: Sequence[Sized]) -> Plot:
    """Accuracy over cells for one cohort; dashed: the dense mean; points: the planner's size."""
    series: list[Series] = []
    marks: list[Mark] = []
    for one in some:
        x, label = [float(cells_of(line)) for line in one.tables], f"epsilon {one.budget:g}"
        pairs = [(line.accuracy, line.spread) for line in one.tables]
        dim = float(one.free.request.dim)
        series.append(Series(f"sketch, {label}", tuple(x), **banded(pairs), role=label))
        series.append(Series(f"dense DP-FedAvg, {label}", (x[0], dim), (one.dense.accuracy,) * 2,
                             dashed=True, role=label))  # fmt: skip
        if one.free.theory <= dim:
            marks.append(Mark(one.free.theory, f"theory's size, {label}", axis="x"))
    known = [(one, one.chosen) for one in some if one.chosen is not None]
    series.append(
        Series("planner's size", tuple(float(cells_of(line)) for _, line in known),
               tuple(line.accuracy for _, line in known), kind="points", role="planner")
    )  # fmt: skip
    beyond = [f"{one.budget:g}" for one in some if one.free.theory > one.free.request.dim]
    caption = f"After the last round; bands are standard deviations over the seeds. {_scope(some)}"
    if beyond:
        caption += (
            " The theory's size, n^2 epsilon^2 over the rounds of a client, is beyond the vector's "
            f"own length for epsilon {', '.join(beyond)}: constants and logarithms are not in it."
        )
    return Plot(name, f"{some[0].cohort:,} clients a round", _CELLS, _ACCURACY, tuple(series),
                caption=caption, marks=tuple(marks))  # fmt: skip


def _together(name: str, every: Sequence[Sized]) -> Plot:
    """Accuracy less the dense mean's, over cells in the planner's: one line for each panel."""
    series = []
    for one in every:
        gaps = [one.gaps(line) for line in one.tables]
        times = tuple(cells_of(line) / one.free.cells for line in one.tables)
        series.append(Series(one.panel, times, tuple(gap for gap, _ in gaps),
                             dashed=one.chosen is None))  # fmt: skip
    caption = (
        "At 1 the planner says that a table costs nothing; means over the seeds of differences "
        "seed by seed. Dashed: it says so of no table smaller than the vector. " + _scope(every)
    )
    marks = (Mark(0.0, "dense mean"), Mark(1.0, "planner's size", axis="x"))
    return Plot(name, "Tables beside the planner's size", _TIMES, _GAP, tuple(series),
                caption=caption, marks=marks)  # fmt: skip


def _sizes(name: str, every: Sequence[Sized]) -> Exhibit:
    rows: Rows = []
    for one in every:
        chosen = one.chosen
        gap, spread = (None, None) if chosen is None else one.gaps(chosen)
        rows.append((
            one.cohort, one.dense.epsilon, one.free.request.paying_rounds,
            None if one.dense.accuracy is None else round(one.dense.accuracy, 4),
            round(one.free.theory), free_size(replace(one.free.request, spread=0.0)).cells,
            one.free.cells,
            None if chosen is None or chosen.accuracy is None else round(chosen.accuracy, 4),
            None if gap is None else round(gap, 4), None if spread is None else round(spread, 4),
            None if chosen is None else round(chosen.compression / one.dense.compression, 2),
        ))  # fmt: skip
    return table("free-sizes", name, rows, allowance=f"{every[0].free.allowance:.0%}")

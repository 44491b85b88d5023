"""Lines of runs as plots: accuracy, loss, epsilon, noise and time."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Sequence

from diffsketch.pages.exhibits import Axis, Mark, Plot, Series
from diffsketch.pages.runs_lines import Line
from diffsketch.pages.runs_reading import Point, Run
from diffsketch.privacy.claim import Basis, Epsilon

__all__ = ["OUTCOMES", "outcome_of", "plots_of"]

OUTCOMES = {
    "finished": "finished",
    "diverged": "diverged",
    "diverging": "diverging",
    "budget": "out of budget",
    "interrupted": "interrupted",
    "under way": "under way",
}
"""How a run ended, in words; but for the last two, which are not at their end."""

_UP, _BOTH = "Bytes sent by workers", "Bytes sent up and down"
_SPREAD = (
    "Lines are means over the seeds, shades reach from the lowest to the highest seed. A seed that "
    "stopped early keeps its last value; one that is not finished counts as far as it is."
)


def plots_of(lines: Sequence[Line], *, prefix: str) -> tuple[Plot, ...]:
    """The plots of one task, without those that would be empty.

    Args:
        lines: What to draw.
        prefix: Of the plots' names.
    """
    many = any(len(line.runs) > 1 for line in lines)
    spread = _SPREAD if many else ""
    plots = [
        _accuracy(lines, prefix=prefix, spread=spread),
        Plot(
            name=f"{prefix}-loss",
            title="Test loss",
            x=Axis("Rounds"),
            y=Axis("Test loss"),
            series=_series(lines, lambda point: point.loss),
            caption=f"Where it is not finite, nothing is drawn. {spread}".strip(),
        ),
        _epsilon(lines, prefix=prefix),
        Plot(
            name=f"{prefix}-noise",
            title="Messages that needed noise",
            x=Axis("Rounds"),
            y=Axis("Share of messages so far", percent=True),
            series=_series(lines, lambda point: point.noised_share),
            caption=(
                "Of methods whose workers check by the paper's Theorem 1 whether a message needs "
                f"noise. {spread}"
            ).strip(),
        ),
        _time(lines, prefix=prefix, many=many),
    ]
    return tuple(plot for plot in plots if plot.series)


def outcome_of(line: Line) -> str:
    """How the runs of a line ended, in words; with numbers where they ended differently."""
    kinds = [OUTCOMES.get(run.outcome, run.outcome) for run in line.runs]
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    if len(counts) == 1:
        return kinds[0]
    return ", ".join(f"{count} of {len(kinds)} {kind}" for kind, count in counts.items())


def _accuracy(lines: Sequence[Line], *, prefix: str, spread: str) -> Plot:
    return Plot(
        name=f"{prefix}-accuracy",
        title="Test accuracy",
        x=Axis(_BOTH, log=True),
        y=Axis("Test accuracy", percent=True),
        series=_series(lines, lambda point: point.accuracy, first=_BOTH),
        caption=(
            "Bytes are those of all messages with their headers; before the first message there "
            f"are none, so that measurement shows over rounds only. {spread}"
        ).strip(),
        other_x=(Axis("Rounds"), Axis(_UP, log=True)),
    )


def _epsilon(lines: Sequence[Line], *, prefix: str) -> Plot:
    series = _series(lines, lambda point: _drawn(point.epsilon), together=max)
    marks: dict[float, Mark] = {}
    for line in lines:
        budget, epsilon = line.config.budget, line.epsilon
        if budget is not None and epsilon is not None and epsilon.basis is Basis.PROVEN:
            rounds = line.config.rounds or epsilon.rounds
            of_line = dataclasses.replace(epsilon, value=budget, rounds=rounds)
            marks.setdefault(budget, Mark(budget, "budget", epsilon=of_line))
    drawn = {one.name for one in series}
    absent = [line.name for line in lines if line.name not in drawn]
    return Plot(
        name=f"{prefix}-epsilon",
        title="Epsilon spent",
        x=Axis("Rounds"),
        y=Axis("Epsilon at the delta of the run"),
        series=series,
        caption=(
            "What is proven adds up over the rounds. What is only claimed (dashed) is said for "
            "one round: it does not add up, and is no guarantee. Of several seeds, the largest."
            + (f" No epsilon to draw: {'; '.join(absent)}." if absent else "")
        ),
        marks=tuple(marks.values()),
    )


def _time(lines: Sequence[Line], *, prefix: str, many: bool) -> Plot:
    timed = [line for line in lines if any(run.seconds is not None for run in line.runs)]
    series = []
    for place, line in enumerate(timed):
        each = [1000 * run.seconds for run in line.runs if run.seconds is not None]
        several = len(each) > 1
        series.append(
            Series(
                name=line.name,
                x=(float(place),),
                y=(statistics.fmean(each),),
                low=(min(each),) if several else (),
                high=(max(each),) if several else (),
                kind="bars",
                epsilon=line.epsilon,
                epsilon_text=_instead(line.epsilon),
            )
        )
    return Plot(
        name=f"{prefix}-time",
        title="Time per round",
        x=Axis("Run"),
        y=Axis("Milliseconds per round"),
        series=tuple(series),
        caption=(
            "Of training alone, with all workers simulated on one machine; without evaluations."
            + (" Means over the seeds, with the fastest and the slowest." if many else "")
        ),
        categories=tuple(line.name for line in timed),
    )


def _series(
    lines: Sequence[Line],
    value: Callable[[Point], float | None],
    *,
    first: str = "",
    together: Callable[[list[float]], float] = statistics.fmean,
) -> tuple[Series, ...]:
    """A series for each line that has something to draw.

    Args:
        lines: The lines.
        value: What is drawn of a measurement.
        first: The label of the first axis, if it is one of bytes.
        together: What stands for several seeds.
    """
    found = []
    for line in lines:
        columns = _columns(line)
        values = [[value(point) for point in column] for column in columns]
        # If one of the seeds has none, as a loss that is not finite, there is no mean.
        known = [[one for one in column if one is not None] for column in values]
        whole = [len(own) == len(column) for own, column in zip(known, values, strict=True)]
        pairs = list(zip(known, whole, strict=True))
        if not any(whole):
            continue
        several = len(line.runs) > 1 and together is not max
        rounds = tuple(float(max(point.round_index for point in column)) for column in columns)
        places = {
            "Rounds": rounds,
            _UP: tuple(_mean(point.bytes_up for point in column) for column in columns),
            _BOTH: tuple(
                _mean(point.bytes_up + point.bytes_down for point in column) for column in columns
            ),
        }
        found.append(
            Series(
                name=line.name,
                x=places.pop(first or "Rounds"),
                y=tuple(together(own) if good else None for own, good in pairs),
                low=tuple(min(own) if good else None for own, good in pairs) if several else (),
                high=tuple(max(own) if good else None for own, good in pairs) if several else (),
                kind="band" if several else "line",
                dashed=line.epsilon is not None and line.epsilon.basis is Basis.CLAIMED,
                other_x=places if first else {},
                ended=_ended(line),
                note=_note(line),
                epsilon=line.epsilon,
                epsilon_text=_instead(line.epsilon),
            )
        )
    return tuple(found)


def _columns(line: Line) -> list[list[Point]]:
    """For each round at which a line is drawn, the measurements of its seeds.

    A round counts where each seed was measured or is over: else the mean would jump at the last
    round of a seed that stopped between the others' measurements. (`Line.runs` has the same
    settings throughout, so others are measured at the same rounds.)
    """
    curves = [({point.round_index: point for point in run.curve}, run) for run in line.runs]
    curves = [(curve, run) for curve, run in curves if curve]
    columns = []
    for index in sorted({index for curve, _ in curves for index in curve}):
        if all(index in curve or index > max(curve) for curve, _ in curves):
            column = [_at(index, curve, run) for curve, run in curves]
            columns.append([point for point in column if point is not None])
    return columns


def _at(index: int, curve: dict[int, Point], run: Run) -> Point | None:
    """What a run is at after a round: where it ended early, what it ended with."""
    if index in curve:
        return curve[index]
    return curve[max(curve)] if run.ended else None


def _ended(line: Line) -> str:
    """Why a line ends early, if so."""
    early = [OUTCOMES.get(run.outcome, run.outcome) for run in line.runs if _is_early(run)]
    if len(early) == len(line.runs) and len(set(early)) == 1:
        return early[0]
    return ", ".join(
        f"{early.count(kind)} of {len(line.runs)} seeds {kind}" for kind in dict.fromkeys(early)
    )


def _is_early(run: Run) -> bool:
    return run.outcome != "finished"


def _note(line: Line) -> str:
    """For the pointer: whose line it is, and how much of it there is."""
    seeds = f"seeds {line.seeds}" if len(line.runs) > 1 else f"seed {line.seeds}"
    open_ends = [run for run in line.runs if not run.ended]
    parts = [
        f"seed {run.config.seed}: {run.rounds:,} of {run.config.rounds:,} rounds so far"
        for run in open_ends
    ]
    return "; ".join([seeds, *parts])


def _instead(epsilon: Epsilon | None) -> str:
    """What a legend says where rounds are proven, but there is no value for all of them."""
    if epsilon is None or epsilon.basis is Basis.NONE or math.isfinite(float(epsilon)):
        return ""
    return f"ε bounded per round, nothing at δ = {epsilon.delta:g} over {epsilon.rounds:,} rounds"


def _drawn(epsilon: Epsilon) -> float | None:
    """What is claimed is of one round: from nothing to it, a line would seem to add up."""
    if epsilon.basis is Basis.CLAIMED and epsilon.rounds == 0:
        return None
    return float(epsilon) if math.isfinite(float(epsilon)) else None


def _mean(values: Iterable[int]) -> float:
    return statistics.fmean(values)

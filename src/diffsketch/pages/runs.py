"""A page of a user's own runs: finished, under way or interrupted, and comparisons of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffsketch.app.files import versions
from diffsketch.app.session import bytes_in_words
from diffsketch.pages.exhibits import Axis, Cell, Mark, Page, Plot, Section, Series, Table
from diffsketch.pages.run_lines import (
    RunLine,
    RunPoint,
    RunRecord,
    find_runs,
    lines_of,
    read_run,
    settings_of_line,
)
from diffsketch.privacy.claim import Basis, Epsilon

_TITLES = {"mnist": "MNIST", "mnist-devices": "MNIST*", "shakespeare": "Shakespeare"}
_OUTCOMES = {"budget": "out of budget"}  # the others are called as they are
_BASES = {
    Basis.PROVEN: "Proven privacy",
    Basis.CLAIMED: "Claimed only, which is no guarantee",
    Basis.NONE: "No claim of privacy",
}
_ROUNDS, _UP, _BOTH = "Rounds", "Bytes sent by workers", "Bytes sent up and down"
_Row = dict[str, Any]  # cells of a line by column
_SPREAD = (
    "Lines are means over the seeds, shades reach from the lowest to the highest seed. A seed that "
    "stopped early keeps its last value; one that is not finished counts as far as it is."
)


def page_of_runs(paths: Iterable[Path], *, title: str = "", command: str = "") -> Page:
    """Make the page: a section for each task, the same settings with several seeds as one line.

    Guarantees (`tests/pages/test_runs.py`): nothing is written, and no run is locked; a run that
    two paths lead to is counted once; each epsilon is an `Epsilon`, with everything it means.

    Args:
        paths: Directories of runs, of comparisons, or with some of them below.
        title: Title of the page; made from the tasks by default.
        command: Command that makes the page, for the record.

    Raises:
        DataError: There is no run in one of the directories, or something is damaged.
        MismatchError: A run is of another version's format, or its settings were changed.
    """
    found, notes = find_runs(paths)
    runs = [read_run(path, name) for path, name in found.items()]
    tasks = {run.config.task: _TITLES.get(run.config.task, run.config.task) for run in runs}
    leads = ["1 run." if len(runs) == 1 else f"{len(runs)} runs."]
    sections, all_lines = [], list[RunLine]()
    for task, name in tasks.items():
        lines, more = lines_of(run for run in runs if run.config.task == task)
        notes += more
        rows = [results_of(line) for line in lines]
        leads += _most_accurate(rows, lines, name)
        all_lines += lines
        sections.append(
            Section(
                name=task,
                title=name,
                lead=" ".join([*_fewest_bytes(rows), *_privacy(lines), *_diverged(lines)]),
                exhibits=(*plots_of(lines, prefix=task), table_of(lines, prefix=task)),
                details=details_of(lines, prefix=task),
            )
        )
    text = (*_said(all_lines, "claim"), *_said(all_lines, "assumes"))
    if text:  # long, and so below the numbers
        meaning = "What the epsilons mean, and what they rest on"
        sections.append(Section(name="privacy", title=meaning, text=text))
    return Page(
        title=title or f"Training runs: {', '.join(tasks.values())}",
        lead=" ".join(leads),
        sections=tuple(sections),
        notice=" ".join([*_unfinished(runs), *notes]),
        origin=_origin(runs, command),
    )


def plots_of(lines: Sequence[RunLine], *, prefix: str) -> tuple[Plot, ...]:
    """Make the plots of one task, without those that would be empty.

    Args:
        lines: The lines.
        prefix: Prefix of the plots' names.
    """
    many = any(len(line.runs) > 1 for line in lines)
    spread = _SPREAD if many else ""
    rounds = Axis(_ROUNDS)
    accuracy = Plot(
        f"{prefix}-accuracy",
        "Test accuracy",
        Axis(_BOTH, log=True),
        Axis("Test accuracy", percent=True),
        _series(lines, lambda point: point.accuracy, first=_BOTH),
        "Bytes are those of all messages with their headers; before the first message there are "
        f"none, so that measurement shows over rounds only. {spread}".strip(),
        other_x=(rounds, Axis(_UP, log=True)),
    )
    loss = Plot(
        f"{prefix}-loss",
        "Test loss",
        rounds,
        Axis("Test loss"),
        _series(lines, lambda point: point.loss),
        f"Where it is not finite, nothing is drawn. {spread}".strip(),
    )
    noise = Plot(
        f"{prefix}-noise",
        "Messages that needed noise",
        rounds,
        Axis("Share of messages so far", percent=True),
        _series(lines, lambda point: point.noised_share),
        "Of methods whose workers check by the paper's Theorem 1 whether a message needs noise. "
        f"{spread}".strip(),
    )
    time = _time_plot(lines, prefix=prefix, many=many)
    plots = (accuracy, loss, _epsilon_plot(lines, prefix=prefix), noise, time)
    return tuple(plot for plot in plots if plot.series)


def _epsilon_plot(lines: Sequence[RunLine], *, prefix: str) -> Plot:
    def value(point: RunPoint) -> float | None:
        # What is claimed is of one round: from nothing to it, a line would seem to add up.
        if point.epsilon.basis is Basis.CLAIMED and point.epsilon.rounds == 0:
            return None
        return float(point.epsilon) if math.isfinite(float(point.epsilon)) else None

    series = _series(lines, value, together=max)
    marks: dict[float, Mark] = {}
    for line in lines:
        budget, epsilon = line.config.budget, line.epsilon
        if budget is not None and epsilon is not None and epsilon.basis is Basis.PROVEN:
            rounds = line.config.rounds or epsilon.rounds
            whole = dataclasses.replace(epsilon, value=budget, rounds=rounds)
            marks.setdefault(budget, Mark(budget, "budget", epsilon=whole))
    drawn = {one.name for one in series}
    absent = [line.name for line in lines if line.name not in drawn]
    return Plot(
        name=f"{prefix}-epsilon",
        title="Epsilon spent",
        x=Axis(_ROUNDS),
        y=Axis("Epsilon at the delta of the run"),
        series=series,
        caption=(
            "What is proven adds up over the rounds. What is only claimed (dashed) is said for "
            "one round: it does not add up, and is no guarantee. Of several seeds, the largest."
            + (f" No epsilon to draw: {'; '.join(absent)}." if absent else "")
        ),
        marks=tuple(marks.values()),
    )


def _time_plot(lines: Sequence[RunLine], *, prefix: str, many: bool) -> Plot:
    timed = {
        line: [1000 * run.seconds for run in line.runs if run.seconds is not None] for line in lines
    }
    timed = {line: each for line, each in timed.items() if each}
    series = tuple(
        Series(
            name=line.name,
            x=(float(place),),
            y=(statistics.fmean(each),),
            low=(min(each),) if len(each) > 1 else (),
            high=(max(each),) if len(each) > 1 else (),
            kind="bars",
            epsilon=line.epsilon,
            epsilon_text=_instead(line.epsilon),
        )
        for place, (line, each) in enumerate(timed.items())
    )
    return Plot(
        name=f"{prefix}-time",
        title="Time per round",
        x=Axis("Run"),
        y=Axis("Milliseconds per round"),
        series=series,
        caption=(
            "Of training alone, with all workers simulated on one machine; without evaluations."
            + (" Means over the seeds, with the fastest and the slowest." if many else "")
        ),
        categories=tuple(line.name for line in timed),
    )


def _series(
    lines: Sequence[RunLine],
    value: Callable[[RunPoint], float | None],
    *,
    first: str = _ROUNDS,
    together: Callable[[list[float]], float] = statistics.fmean,
) -> tuple[Series, ...]:
    """Make a series for each line that has something to draw.

    Args:
        lines: The lines.
        value: Value of a measurement.
        first: Label of the first axis.
        together: Combines the values of several seeds.
    """
    found = []
    for line in lines:
        columns = _columns(line)
        # If one of the seeds has none, as a loss that is not finite, there is no mean.
        known = [[one for one in map(value, column) if one is not None] for column in columns]
        whole = [
            own if len(own) == len(all_) else [] for own, all_ in zip(known, columns, strict=True)
        ]
        if not any(whole):
            continue
        several = len(line.runs) > 1 and together is not max
        up = [statistics.fmean(point.bytes_up for point in column) for column in columns]
        down = [statistics.fmean(point.bytes_down for point in column) for column in columns]
        places = {
            _ROUNDS: tuple(float(max(one.round_index for one in column)) for column in columns),
            _UP: tuple(up),
            _BOTH: tuple(one + other for one, other in zip(up, down, strict=True)),
        }
        found.append(
            Series(
                name=line.name,
                x=places.pop(first),
                y=tuple(together(own) if own else None for own in whole),
                low=tuple(min(own, default=None) for own in whole) if several else (),
                high=tuple(max(own, default=None) for own in whole) if several else (),
                kind="band" if several else "line",
                dashed=line.epsilon is not None and line.epsilon.basis is Basis.CLAIMED,
                other_x=places if first != _ROUNDS else {},
                ended=_ended(line),
                note=_note(line),
                epsilon=line.epsilon,
                epsilon_text=_instead(line.epsilon),
            )
        )
    return tuple(found)


def _columns(line: RunLine) -> list[list[RunPoint]]:
    """List, for each round at which a line is drawn, the measurements of its seeds.

    A round counts where each seed was measured or is over: else the mean would jump at the last
    round of a seed that stopped between the others' measurements. Where a run ended early, its last
    measurement stays.
    """
    curves = [({one.round_index: one for one in run.curve}, run) for run in line.runs if run.curve]
    rounds = sorted({index for curve, _ in curves for index in curve})
    return [
        [curve.get(index, run.curve[-1]) for curve, run in curves if index in curve or run.ended]
        for index in rounds
        if all(index in curve or index > max(curve) for curve, _ in curves)
    ]


def _ended(line: RunLine) -> str:
    """Say why a line ends early, if so."""
    early = Counter(_outcome(run) for run in line.runs if run.outcome != "finished")
    if list(early.values()) == [len(line.runs)]:
        return next(iter(early))
    return ", ".join(f"{count} of {len(line.runs)} seeds {kind}" for kind, count in early.items())


def _outcome(run: RunRecord) -> str:
    return _OUTCOMES.get(run.outcome, run.outcome)


def _note(line: RunLine) -> str:
    """Say whose line it is and how much of it there is, for the pointer."""
    seeds = f"seeds {line.seeds}" if len(line.runs) > 1 else f"seed {line.seeds}"
    parts = [
        f"seed {run.config.seed}: {run.rounds:,} of {run.config.rounds:,} rounds so far"
        for run in line.runs
        if not run.ended
    ]
    return "; ".join([seeds, *parts])


def _instead(epsilon: Epsilon | None) -> str:
    """Say for a legend that rounds are proven, where there is no value for all of them."""
    if epsilon is None or epsilon.basis is Basis.NONE or math.isfinite(float(epsilon)):
        return ""
    return f"ε bounded per round, nothing at δ = {epsilon.delta:g} over {epsilon.rounds:,} rounds"


def results_of(line: RunLine) -> _Row:
    """Compute the cells of a line: means over the seeds that ended, or, if none did, of all so far.

    Accuracy is that of the last measurement, its spread the standard deviation over the seeds, and
    compression the bytes of vectors in float32 over those of the messages. Unknown values are None.
    """
    kinds = Counter(map(_outcome, line.runs))
    parts = [f"{count} of {len(line.runs)} {kind}" for kind, count in kinds.items()]
    outcome = ", ".join(parts) if len(kinds) > 1 else next(iter(kinds))
    summaries = [run.summary for run in line.runs if run.summary is not None]
    begun = [run for run in line.runs if (run.ended if summaries else run.curve)]
    last = [run.summary["accuracy"] if run.summary else run.curve[-1].accuracy for run in begun]
    best = [max(point.accuracy for point in run.curve) for run in begun]
    noised = [run.curve[-1].noised_share for run in begun]
    raw = sum(one[f"uncompressed_bytes_{way}"] for one in summaries for way in ("up", "down"))
    sent = sum(one[f"bytes_{way}"] for one in summaries for way in ("up", "down"))
    rounds = max((run.rounds for run in begun), default=0)
    if line.config.rounds != rounds:
        outcome += f" (of {line.config.rounds:,} rounds)"
    return {
        "Run": line.name,
        "Outcome": outcome,
        "Seeds": len(line.runs),
        "Accuracy, %": _mean(last, 100),
        "±": round(100 * statistics.stdev(last), 6) if len(last) > 1 else None,
        "Best accuracy, %": _mean(best, 100),
        "Epsilon": line.epsilon,
        "Rounds": rounds,
        "Bytes of a message": summaries[0]["message_bytes"] if summaries else None,
        "Bytes up": round(_mean([run.sent[0] for run in begun]) or 0),
        "Bytes down": round(_mean([run.sent[1] for run in begun]) or 0),
        "Compression": raw / sent if sent else None,
        "Messages with noise, %": _mean(noised, 100),
        "Milliseconds a round": _mean([run.seconds for run in line.runs], 1000),
    }


def _mean(values: Iterable[float | None], unit: float = 1) -> float | None:
    """Average what is known, in this unit; without the digits that only multiplying makes."""
    known = [value for value in values if value is not None]
    return round(unit * statistics.fmean(known), 6) if known else None


def table_of(lines: Sequence[RunLine], *, prefix: str) -> Table:
    """Make the table with one row for each line, without columns that would be empty."""
    rows = [results_of(line) for line in lines]
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    many = any(len(line.runs) > 1 for line in lines)
    return Table(
        name=f"{prefix}-results",
        title="Side by side",
        columns=tuple(kept),
        rows=tuple(tuple(row[name] for name in kept) for row in rows),
        caption=(
            ("Means over the seeds, ± the standard deviation; epsilon is the largest. " * many)
            + "Accuracy is that of the last measurement. Bytes are those of all messages with "
            "their headers; compression is of vectors in float32 to them. Interrupted: not "
            "finished, and no process of this machine is writing to it."
        ),
    )


def details_of(lines: Sequence[RunLine], *, prefix: str) -> dict[str, Table]:
    """Make the tables that are folded away: all single runs, and the settings of each line."""
    rows: list[dict[str, Cell]] = []
    for line in lines:
        for run in line.runs:
            last, (up, down) = run.curve[-1] if run.curve else None, run.sent
            rows.append(
                {
                    "Directory": str(run.path),
                    "Run": line.name,
                    "Seed": run.config.seed,
                    "Outcome": _outcome(run),
                    "Reason": str(run.summary["reason"]) if run.summary is not None else "",
                    "Rounds": run.rounds,
                    "Accuracy, %": _mean([last.accuracy], 100) if last else None,
                    "Loss": last.loss if last else None,
                    "Bytes up": up,
                    "Bytes down": down,
                    "Epsilon": run.epsilon,
                    "Milliseconds a round": None if run.seconds is None else 1000 * run.seconds,
                    "Command": run.command,
                    "Version": _pairs(run.versions),
                }
            )
    cells = tuple(tuple(row.values()) for row in rows)
    found = {"Single runs": Table(f"{prefix}-runs", "Single runs", tuple(rows[0]), cells)}
    for number, line in enumerate(lines, start=1):
        settings: list[tuple[Cell, ...]] = list(settings_of_line(line.config).items())
        found[f"Settings of {line.name}"] = Table(
            name=f"{prefix}-settings-{number}",
            title=line.name,
            columns=("Setting", "Value"),
            rows=(*settings, ("seeds", line.seeds)),
        )
    return found


def _pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _most_accurate(rows: Sequence[_Row], lines: Sequence[RunLine], task: str) -> list[str]:
    """Say which line is the most accurate, and its price."""
    known = [index for index, row in enumerate(rows) if row["Accuracy, %"] is not None]
    if not known:
        return []
    place = max(known, key=lambda index: rows[index]["Accuracy, %"])
    line, row = lines[place], rows[place]
    verb = "is the most accurate with" if len(known) > 1 else "has an accuracy of"
    spread = "" if row["±"] is None else f" ± {row['±']:.2f}"
    so_far = "" if all(run.ended for run in line.runs) else " so far,"
    price = bytes_in_words(row["Bytes up"] + row["Bytes down"])
    epsilon = "" if line.epsilon is None else f", {line.epsilon.text('short')}"
    return [
        f"On {task}, {line.name} {verb} {row['Accuracy, %']:.2f}%{spread}{so_far} after "
        f"{row['Rounds']:,} rounds and {price} up and down{epsilon}."
    ]


def _fewest_bytes(rows: Sequence[_Row]) -> list[str]:
    """Say which line sends the fewest bytes for a round, against the one that sends the most."""
    each = [
        ((row["Bytes up"] + row["Bytes down"]) / row["Rounds"], row)
        for row in rows
        if row["Rounds"] and row["Bytes up"] + row["Bytes down"]
    ]
    if len({count for count, _ in each}) < 2:
        return []
    few, row = min(each, key=lambda one: one[0])
    many, other = max(each, key=lambda one: one[0])
    return [
        f"{row['Run']} sends the fewest bytes, {bytes_in_words(few)} a round with all workers "
        f"({row['Accuracy, %']:.2f}% accuracy); {other['Run']} sends {many / few:.3g} times "
        "as many."
    ]


def _privacy(lines: Sequence[RunLine]) -> list[str]:
    names: dict[Basis, list[str]] = {basis: [] for basis in _BASES}
    for line in lines:
        if line.epsilon is not None:
            names[line.epsilon.basis].append(line.name)
    return [f"{_BASES[basis]}: {'; '.join(some)}." for basis, some in names.items() if some]


def _diverged(lines: Sequence[RunLine]) -> list[str]:
    found = []
    for line in lines:
        count = sum(run.outcome in ("diverged", "diverging") for run in line.runs)
        many = f" ({count} of {len(line.runs)})" if len(line.runs) > 1 else ""
        found += [f"{line.name}{many}"] if count else []
    return [f"Diverged: {'; '.join(found)}."] if found else []


def _unfinished(runs: Sequence[RunRecord]) -> list[str]:
    counts = Counter(run.outcome for run in runs if not run.ended)
    return [
        f"{count} of {len(runs)} runs {'is' if count == 1 else 'are'} {kind}, and shown as far as "
        f"{'it goes' if count == 1 else 'they go'}."
        for kind, count in sorted(counts.items(), reverse=True)
    ]


def _said(lines: Sequence[RunLine], key: str) -> list[str]:
    """List what summaries say about privacy, and for which lines."""
    names: dict[str, dict[str, None]] = {}
    for line in lines:
        for run in line.runs:
            said: Any = run.summary[key] if run.summary is not None else []
            for text in [said] if isinstance(said, str) else said:
                names.setdefault(str(text), {})[line.name] = None
    return [f"{'; '.join(some)}: {text}" for text, some in names.items()]


def _origin(runs: Sequence[RunRecord], command: str) -> dict[str, str]:
    """Record what made the page and the runs."""
    origin = {
        "Command": command,
        "Made with": _pairs(versions()),
        "Directories": ", ".join(str(run.path) for run in runs),
        "Seeds": ", ".join(str(seed) for seed in sorted({run.config.seed for run in runs})),
        "Commands of the runs": "\n".join(
            dict.fromkeys(run.command for run in runs if run.command)
        ),
        "Versions of the runs": "\n".join(dict.fromkeys(_pairs(run.versions) for run in runs)),
    }
    return {name: text for name, text in origin.items() if text}

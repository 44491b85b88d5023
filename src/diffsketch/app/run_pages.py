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
from diffsketch.app.run_records import (
    RunLine,
    RunPoint,
    find_runs,
    lines_of,
    read_run,
    settings_of_line,
)
from diffsketch.app.session import bytes_in_words
from diffsketch.pages.exhibits import Axis, Cell, Exhibit, Mark, Page, Plot, Section, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon

_TITLES = {"mnist": "MNIST", "mnist-devices": "MNIST*", "shakespeare": "Shakespeare"}
_BASES = {
    Basis.PROVEN: "Proven privacy",
    Basis.CLAIMED: "Claimed only, which is no guarantee",
    Basis.NONE: "No claim of privacy",
}
_ROUNDS, _UP, _BOTH = "Rounds", "Bytes sent by workers", "Bytes sent up and down"
_SPREAD = (
    " Lines are means over the seeds, shades reach from the lowest to the highest seed. A seed "
    "that stopped early keeps its last value; one that is not finished counts as far as it is."
)


def page_of_runs(paths: Iterable[Path], *, title: str = "", command: str = "") -> Page:
    """Make the page: a section for each task or own data; several seeds are one line.

    Guarantees (`tests/app/test_run_pages.py`): nothing is written, and no run is locked; a run that
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
    data = list(dict.fromkeys((run.config.task, run.config.data_dir) for run in runs))
    names = {one: f"data-{place}" if one[1] else one[0] for place, one in enumerate(data, start=1)}
    homes = [names[run.config.task, run.config.data_dir] for run in runs]
    tasks = {
        home: _TITLES.get(run.config.data_name, run.config.data_name)
        for home, run in zip(homes, runs, strict=True)
    }
    leads = ["1 run." if len(runs) == 1 else f"{len(runs)} runs."]
    sections, all_lines = [], list[RunLine]()
    for task, name in tasks.items():
        lines, more = lines_of(r for r, home in zip(runs, homes, strict=True) if home == task)
        notes += more
        best, lead = _leads(lines, name)
        leads += best
        exhibits: tuple[Exhibit, ...] = plots_of(lines, prefix=task)
        exhibits += (table_of(lines, prefix=task),)
        details = {heading: (one,) for heading, one in _details(lines, prefix=task).items()}
        sections.append(Section(task, name, lead, exhibits, details=details))
        all_lines += lines
    meanings = []
    for key in ("claim", "assumes"):
        said: dict[str, dict[str, None]] = {}
        for line in all_lines:
            for run in line.runs:
                texts: Any = run.summary[key] if run.summary is not None else []
                for text in [texts] if isinstance(texts, str) else texts:
                    said.setdefault(str(text), {})[line.name] = None
        meanings += [f"{'; '.join(names)}: {text}" for text, names in said.items()]
    if meanings:  # long, and so below the numbers
        heading = "What the epsilons mean, and what they rest on"
        sections.append(Section("privacy", heading, text=tuple(meanings)))
    open_ends = Counter(run.outcome for run in runs if run.summary is None)
    unfinished = [
        f"{count} of {len(runs)} runs {'is' if count == 1 else 'are'} {kind}, and shown as far as "
        f"{'it goes' if count == 1 else 'they go'}."
        for kind, count in sorted(open_ends.items(), reverse=True)
    ]
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
    return Page(
        title=title or f"Training runs: {', '.join(tasks.values())}",
        lead=" ".join(leads),
        sections=tuple(sections),
        notice=" ".join([*unfinished, *notes]),
        origin={name: text for name, text in origin.items() if text},
    )


def _pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


# -- Plots -----------------------------------------------------------------------------------------


def plots_of(lines: Sequence[RunLine], *, prefix: str) -> tuple[Plot, ...]:
    """Make the plots of one task, without those that would be empty."""
    spread = _SPREAD if any(len(line.runs) > 1 for line in lines) else ""
    rounds = Axis(_ROUNDS)
    accuracy = Plot(
        f"{prefix}-accuracy",
        "Test accuracy",
        Axis(_BOTH, log=True, unit="B"),
        Axis("Test accuracy", percent=True),
        _series(lines, lambda point: point.accuracy, first=_BOTH),
        "Bytes are those of all messages with their headers; before the first message there are "
        f"none, so that measurement shows over rounds only.{spread}",
        other_x=(rounds, Axis(_UP, log=True, unit="B")),
    )
    loss = Plot(
        f"{prefix}-loss",
        "Test loss",
        rounds,
        Axis("Test loss"),
        _series(lines, lambda point: point.loss),
        f"Where it is not finite, nothing is drawn.{spread}",
    )
    noise = Plot(
        f"{prefix}-noise",
        "Messages that needed noise",
        rounds,
        Axis("Share of messages so far", percent=True),
        _series(lines, lambda point: point.noised_share),
        "Of methods whose workers check by the paper's Theorem 1 whether a message needs noise."
        f"{spread}",
    )
    epsilon, time = _epsilon_plot(lines, prefix=prefix), _time_plot(lines, prefix=prefix)
    return tuple(plot for plot in (accuracy, loss, epsilon, noise, time) if plot.series)


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
    shown = {one.name for one in series}
    absent = [line.name for line in lines if line.name not in shown]
    caption = (
        "What is proven adds up over the rounds. What is only claimed (dashed) is said for "
        "one round: it does not add up, and is no guarantee. Of several seeds, the largest."
        + (f" No epsilon to draw: {'; '.join(absent)}." if absent else "")
    )
    y = Axis("Epsilon at the delta of the run")
    return Plot(
        f"{prefix}-epsilon", "Epsilon spent", Axis(_ROUNDS), y, series, caption,
        marks=tuple(marks.values()),
    )  # fmt: skip


def _time_plot(lines: Sequence[RunLine], *, prefix: str) -> Plot:
    series: list[Series] = []
    for line in lines:
        times = [1000 * run.seconds for run in line.runs if run.seconds is not None]
        if times:
            several = len(times) > 1
            series.append(
                Series(
                    line.name,
                    (float(len(series)),),
                    (statistics.fmean(times),),
                    (min(times),) if several else (),
                    (max(times),) if several else (),
                    kind="bars",
                    epsilon=line.epsilon,
                    epsilon_text=_epsilon_text(line.epsilon),
                )
            )
    caption = "Of training alone, with all workers simulated on one machine; without evaluations."
    if any(len(line.runs) > 1 for line in lines):
        caption += " Means over the seeds, with the fastest and the slowest."
    return Plot(
        f"{prefix}-time", "Time per round", Axis("Run"), Axis("Milliseconds per round"),
        # One alone is a number, which the table has, and no picture.
        tuple(series) if len(series) > 1 else (), caption,
        categories=tuple(one.name for one in series),
    )  # fmt: skip


def _series(
    lines: Sequence[RunLine],
    value: Callable[[RunPoint], float | None],
    *,
    first: str = _ROUNDS,
    together: Callable[[list[float]], float] = statistics.fmean,
) -> tuple[Series, ...]:
    """Make a series for each line that has something to draw.

    `first` labels the first axis, and `together` combines the values of several seeds. A round is
    drawn where each seed was measured or is over: else the mean would jump at the last round of a
    seed that stopped between the others' measurements. Where a run ended early, its last
    measurement stays.
    """
    found = []
    for line in lines:
        curves = [({one.round_index: one for one in run.curve}, run) for run in line.runs]
        curves = [(curve, run) for curve, run in curves if curve]
        columns = [
            [
                curve.get(index, run.curve[-1])
                for curve, run in curves
                if index in curve or run.summary is not None
            ]
            for index in sorted({index for curve, _ in curves for index in curve})
            if all(index in curve or index > max(curve) for curve, _ in curves)
        ]
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
        early = Counter(run.outcome_text for run in line.runs if run.outcome != "finished")
        ended = [f"{count} of {len(line.runs)} seeds {kind}" for kind, count in early.items()]
        notes = [f"seed{'s' if len(line.runs) > 1 else ''} {line.seeds}"]
        notes += [
            f"seed {run.config.seed}: {run.rounds:,} of {run.config.rounds:,} rounds so far"
            for run in line.runs
            if run.summary is None
        ]
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
                ended=", ".join(early if [len(line.runs)] == [*early.values()] else ended),
                note="; ".join(notes),
                epsilon=line.epsilon,
                epsilon_text=_epsilon_text(line.epsilon),
            )
        )
    return tuple(found)


def _epsilon_text(epsilon: Epsilon | None) -> str:
    """Say for a legend that rounds are proven, where there is no value for all of them."""
    if epsilon is None or epsilon.basis is Basis.NONE or math.isfinite(float(epsilon)):
        return ""
    return f"ε bounded per round, nothing at δ = {epsilon.delta:g} over {epsilon.rounds:,} rounds"


# -- Tables and sentences --------------------------------------------------------------------------


def results_of(line: RunLine) -> dict[str, Any]:
    """Compute the cells of a line: means over the seeds that ended, or, if none did, of all so far.

    Accuracy is that of the last measurement, its spread the standard deviation over the seeds, and
    compression the bytes of vectors in float32 over those of the messages. Unknown values are None.
    """
    kinds = Counter(run.outcome_text for run in line.runs)
    parts = [f"{count} of {len(line.runs)} {kind}" for kind, count in kinds.items()]
    outcome = ", ".join(parts) if len(kinds) > 1 else next(iter(kinds))
    summaries = [run.summary for run in line.runs if run.summary is not None]
    begun = [run for run in line.runs if (run.summary if summaries else run.curve)]
    last = [run.summary["accuracy"] if run.summary else run.curve[-1].accuracy for run in begun]
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
        "Best accuracy, %": _mean([max(one.accuracy for one in run.curve) for run in begun], 100),
        "Epsilon": line.epsilon,
        "Rounds": rounds,
        "Bytes of a message": summaries[0]["message_bytes"] if summaries else None,
        "Bytes up": round(_mean([run.sent[0] for run in begun]) or 0),
        "Bytes down": round(_mean([run.sent[1] for run in begun]) or 0),
        "Compression": raw / sent if sent else None,
        "Messages with noise, %": _mean([run.curve[-1].noised_share for run in begun], 100),
        "Saturated cells, %": _mean([one.get("saturated_share") for one in summaries], 100),
        "ms a round": _mean([run.seconds for run in line.runs], 1000),
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
    caption = (
        ("Means over the seeds, ± the standard deviation; epsilon is the largest. " * many)
        + "Accuracy is that of the last measurement. Bytes are those of all messages with "
        "their headers; compression is of vectors in float32 to them. Interrupted: not "
        "finished, and no process of this machine is writing to it."
    )
    cells = tuple(tuple(row[name] for name in kept) for row in rows)
    return Table(f"{prefix}-results", "Side by side", tuple(kept), cells, caption)


def _details(lines: Sequence[RunLine], *, prefix: str) -> dict[str, Table]:
    """Make the tables that are folded away: all single runs, and the settings of each line."""
    rows: list[dict[str, Cell]] = []
    for line in lines:
        for run in line.runs:
            last = run.curve[-1] if run.curve else None
            rows.append(
                {
                    "Directory": str(run.path),
                    "Run": line.name,
                    "Seed": run.config.seed,
                    "Outcome": run.outcome_text,
                    "Reason": str(run.summary["reason"]) if run.summary is not None else "",
                    "Rounds": run.rounds,
                    "Accuracy, %": _mean([last.accuracy], 100) if last else None,
                    "Loss": last.loss if last else None,
                    "Bytes up": run.sent[0],
                    "Bytes down": run.sent[1],
                    "Epsilon": run.epsilon,
                    "ms a round": None if run.seconds is None else 1000 * run.seconds,
                    "Command": run.command,
                    "Version": _pairs(run.versions),
                }
            )
    cells = tuple(tuple(row.values()) for row in rows)
    found = {"Single runs": Table(f"{prefix}-runs", "Single runs", tuple(rows[0]), cells)}
    for number, line in enumerate(lines, start=1):
        settings = (*settings_of_line(line.config).items(), ("seeds", line.seeds))
        name, columns = f"{prefix}-settings-{number}", ("Setting", "Value")
        found[f"Settings of {line.name}"] = Table(name, line.name, columns, settings)
    return found


def _leads(lines: Sequence[RunLine], task: str) -> tuple[list[str], str]:
    """Say which line is the most accurate, and at what price; and the lead of the section."""
    rows = [results_of(line) for line in lines]
    best, lead = [], []
    known = [index for index, row in enumerate(rows) if row["Accuracy, %"] is not None]
    if known:
        place = max(known, key=lambda index: rows[index]["Accuracy, %"])
        line, row = lines[place], rows[place]
        verb = "is the most accurate with" if len(known) > 1 else "has an accuracy of"
        spread = "" if row["±"] is None else f" ± {row['±']:.2f}"
        so_far = " so far," if any(run.summary is None for run in line.runs) else ""
        price = bytes_in_words(row["Bytes up"] + row["Bytes down"])
        epsilon = "" if line.epsilon is None else f", {line.epsilon.text('short')}"
        best.append(
            f"On {task}, {line.name} {verb} {row['Accuracy, %']:.2f}%{spread}{so_far} after "
            f"{row['Rounds']:,} rounds and {price} up and down{epsilon}."
        )
    each = [
        ((row["Bytes up"] + row["Bytes down"]) / row["Rounds"], row)
        for row in rows
        if row["Rounds"] and row["Bytes up"] + row["Bytes down"]
    ]
    if len({count for count, _ in each}) > 1:
        few, row = min(each, key=lambda one: one[0])
        many, other = max(each, key=lambda one: one[0])
        lead.append(
            f"{row['Run']} sends the fewest bytes, {bytes_in_words(few)} a round with all workers "
            f"({row['Accuracy, %']:.2f}% accuracy); {other['Run']} sends {many / few:.3g} times "
            "as many."
        )
    for basis, text in _BASES.items():
        names = [line.name for line in lines if line.epsilon and line.epsilon.basis is basis]
        lead += [f"{text}: {'; '.join(names)}."] if names else []
    diverged = []
    for line in lines:
        count = sum(run.outcome in ("diverged", "diverging") for run in line.runs)
        many_runs = f" ({count} of {len(line.runs)})" if len(line.runs) > 1 else ""
        diverged += [f"{line.name}{many_runs}"] if count else []
    lead += [f"Diverged: {'; '.join(diverged)}."] if diverged else []
    return best, " ".join(lead)

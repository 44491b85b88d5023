"""A page of a user's own runs, finished or not, and of comparisons of them."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffsketch.app.compare import has_plan, members_of, read_plan
from diffsketch.app.files import START, check_directory, has_run, versions
from diffsketch.app.run_records import (
    Point,
    RunLine,
    RunRecord,
    lines_of,
    read_run,
    settings_of_line,
)
from diffsketch.app.session import bytes_in_words
from diffsketch.errors import DataError
from diffsketch.pages.exhibits import Axis, Exhibit, Mark, Page, Plot, Section, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon
from diffsketch.training.defaults import TASK_TITLES

_DEPTH = 4  # directories below the one that is given: runs/COMPARISON/NAME/seed-0 is the usual most
_TOLD = 3  # lines whose results the page begins with
_ROUNDS, _UP, _BOTH = "Rounds", "Bytes sent by workers", "Bytes sent up and down"
_SPREAD = (
    " Lines are means over the seeds, shades reach from the lowest to the highest seed. A seed "
    "that stopped early keeps its last value; unfinished runs are shown up to their last round."
)
_RESULTS_CAPTION = (
    "Means over the seeds, ± the standard deviation; epsilon is the largest. Accuracy is that of "
    "the last measurement. Bytes are those of all messages with their headers; compression is of "
    "vectors in float32 to them. Unfinished: interrupted, or still under way."
)


def page_of_runs(paths: Iterable[Path], *, command: str = "") -> Page:
    """Make the page: a section for each task or own data; several seeds are one line.

    Guarantees (`tests/app/test_run_pages.py`): nothing is written, and no run is locked; a run that
    two paths lead to is counted once; each epsilon is an `Epsilon`, with everything it means.

    Args:
        paths: Directories of runs, of comparisons, or with some of them below.
        command: Command that makes the page, for the record.

    Raises:
        DataError: There is no run in one of the directories, or something is damaged.
        MismatchError: A run is of another version's format, or its settings were changed.
    """
    names, notes = find_runs(paths)
    runs = [read_run(path, name) for path, name in names.items()]
    by_data: dict[tuple[str, str | None], list[RunRecord]] = {}
    for run in runs:
        by_data.setdefault((run.config.task, run.config.data_dir), []).append(run)
    leads = ["1 run." if len(runs) == 1 else f"{len(runs)} runs."]
    sections, all_lines = [], list[RunLine]()
    for number, ((task, own_data), members) in enumerate(by_data.items(), start=1):
        prefix, data = f"data-{number}" if own_data else task, members[0].config.data_name
        lines, repeated = lines_of(members)
        notes, all_lines = notes + repeated, all_lines + lines
        heading = TASK_TITLES.get(data, data)
        leads += _best(lines, heading)
        exhibits: tuple[Exhibit, ...] = (*plots_of(lines, prefix=prefix), table_of(lines, prefix))
        details = {table.title: (table,) for table in _details(lines, prefix)}
        sections.append(Section(prefix, heading, "", exhibits, details=details))
    heading = ", ".join(section.title for section in sections)
    if meanings := _meanings(all_lines):  # long, and so below the numbers
        below = "What the epsilons mean, and what they rest on"
        sections.append(Section("privacy", below, text=tuple(meanings)))
    unfinished = Counter(run.outcome for run in runs if run.summary is None)
    # Those of each run are in the table of single runs.
    origin = {"Command": command, "Made with": _pairs(versions())}
    return Page(
        title=f"Training runs: {heading}",
        lead=" ".join(leads),
        sections=tuple(sections),
        notice=" ".join(
            [
                *(f"{count} of {len(runs)} runs {kind}." for kind, count in unfinished.items()),
                *notes,
            ]
        ),
        origin={name: text for name, text in origin.items() if text},
    )


def find_runs(paths: Iterable[Path]) -> tuple[dict[Path, str | None], list[str]]:
    """Find the runs in directories of runs or comparisons, or below them.

    Returns the directory of each run once, with its name in the comparison that it is part of; and
    which comparisons have runs that have not begun.
    """
    runs: dict[Path, tuple[Path, str | None]] = {}
    notes: list[str] = []
    for path in paths:
        check_directory(path, "a run or of a comparison")
        below = list(_below(path, notes, depth=_DEPTH))
        if not below:
            raise DataError(
                f"{path}: there is no run in it, nor in the directories below it: none has a "
                f"{START}"
            )
        for run, name in below:
            runs.setdefault(run.resolve(), (run, name))
    return dict(runs.values()), list(dict.fromkeys(notes))


def _below(path: Path, notes: list[str], *, depth: int) -> Iterator[tuple[Path, str | None]]:
    if has_run(path):
        place = path.resolve()
        yield path, _planned(place.parent.parent)[0].get(place)
    elif has_plan(path):
        names, planned = _planned(path)
        if len(names) < planned:
            notes.append(f"{planned - len(names)} of {planned} runs of {path} have not begun.")
        yield from names.items()
    elif depth:
        for folder in sorted(path.iterdir()):
            # Links are not followed: they may lead back.
            if folder.is_dir() and not folder.is_symlink() and not folder.name.startswith("."):
                yield from _below(folder, notes, depth=depth - 1)


def _planned(path: Path) -> tuple[dict[Path, str], int]:
    """Return a comparison's runs that have begun with their names, and how many it will have."""
    if not has_plan(path):
        return {}, 0
    members = members_of(*read_plan(path), path)
    return {run.path: run.name for run in members if has_run(run.path)}, len(members)


def _pairs(texts: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in texts.items())


def _meanings(lines: Sequence[RunLine]) -> list[str]:
    """List the claims of all runs, then what they assume, each once with the lines it is about."""
    meanings = []
    for key in ("claim", "assumes"):
        names: dict[str, dict[str, None]] = {}
        for line in lines:
            for run in line.runs:
                texts = run.summary[key] if run.summary is not None else []
                for text in [texts] if isinstance(texts, str) else texts:
                    names.setdefault(text, {})[line.name] = None
        meanings += [f"{'; '.join(about)}: {text}" for text, about in names.items()]
    return meanings


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
        _series(lines, lambda point: point["accuracy"], first=_BOTH),
        "Bytes are those of all messages with their headers; before the first message there are "
        f"none, so that measurement shows over rounds only.{spread}",
        other_x=(rounds, Axis(_UP, log=True, unit="B")),
    )
    finite = _series(lines, lambda point: point["loss"])
    loss = Plot(f"{prefix}-loss", "Test loss", rounds, Axis("Test loss"), finite)
    plots = (accuracy, loss, _epsilon_plot(lines, prefix))
    return tuple(plot for plot in plots if plot.series)


def _epsilon_plot(lines: Sequence[RunLine], prefix: str) -> Plot:
    def value(point: Point) -> float | None:
        epsilon = Epsilon.from_json(point["epsilon"])
        # A claim is about one round: a line from nothing to it would seem to add up.
        claimed = epsilon.basis is Basis.CLAIMED and epsilon.rounds == 0
        return None if claimed or math.isinf(epsilon) else float(epsilon)

    series = _series(lines, value, together=max)
    marks: dict[float, Mark] = {}
    for line in lines:
        budget, epsilon = line.config.budget, line.epsilon
        if budget is not None and epsilon is not None and epsilon.basis is Basis.PROVEN:
            rounds = line.config.rounds or epsilon.rounds
            # The budget is for all planned rounds, whatever has been spent of it so far.
            limit = dataclasses.replace(epsilon, value=budget, rounds=rounds)
            marks.setdefault(budget, Mark(budget, "budget", epsilon=limit))
    absent = [line.name for line in lines if line.name not in {drawn.name for drawn in series}]
    caption = (
        "What is proven adds up over the rounds. What is only claimed (dashed) is for one round, "
        "does not add up, and is no guarantee. Of several seeds, the largest."
        + (f" No epsilon to draw: {'; '.join(absent)}." if absent else "")
    )
    return Plot(
        f"{prefix}-epsilon", "Epsilon spent", Axis(_ROUNDS),
        Axis("Epsilon at the delta of the run"), series, caption, marks=tuple(marks.values()),
    )  # fmt: skip


def _series(
    lines: Sequence[RunLine],
    value: Callable[[Point], float | None],
    *,
    first: str = _ROUNDS,
    together: Callable[[list[float]], float] = statistics.fmean,
) -> tuple[Series, ...]:
    """Make a series for each line that has something to draw.

    `first` labels the first axis, and `together` combines the values of several seeds.
    """
    series = []
    for line in lines:
        columns = line.columns()
        values = [[value(point) for point in column] for column in columns.values()]
        # If one of the seeds has none, as a loss that is not finite, there is no mean.
        complete = [
            [v for v in column if None not in column and v is not None] for column in values
        ]
        if not any(complete):
            continue
        # A largest value has no spread to shade.
        several = len(line.runs) > 1 and together is not max
        up, down = (
            [statistics.fmean(point[way] for point in column) for column in columns.values()]
            for way in ("bytes_up", "bytes_down")
        )
        places = {_ROUNDS: tuple(map(float, columns)), _UP: tuple(up)}
        places[_BOTH] = tuple(map(sum, zip(up, down, strict=True)))
        early = {kind: n for kind, n in line.outcomes.items() if kind != "finished"}
        ended = [f"{count} of {len(line.runs)} seeds {kind}" for kind, count in early.items()]
        notes = [f"seed{'s' if len(line.runs) > 1 else ''} {line.seeds}"]
        notes += [
            f"seed {run.config.seed}: {run.rounds:,} of {run.config.rounds:,} rounds so far"
            for run in line.runs
            if run.summary is None
        ]
        series.append(
            Series(
                name=line.name,
                x=places.pop(first),
                y=tuple(together(column) if column else None for column in complete),
                low=tuple(min(column, default=None) for column in complete) if several else (),
                high=tuple(max(column, default=None) for column in complete) if several else (),
                kind="band" if several else "line",
                dashed=line.epsilon is not None and line.epsilon.basis is Basis.CLAIMED,
                other_x=places if first != _ROUNDS else {},
                ended=", ".join(early if [len(line.runs)] == [*early.values()] else ended),
                note="; ".join(notes),
                **_epsilon_of(line),
            )
        )
    return tuple(series)


def _epsilon_of(line: RunLine) -> dict[str, Any]:
    """Return a series' epsilon, and for a legend that rounds are proven where no total is."""
    epsilon, text = line.epsilon, ""
    if epsilon is not None and epsilon.basis is not Basis.NONE and math.isinf(epsilon):
        bounded = "ε bounded per round, nothing at δ"
        text = f"{bounded} = {epsilon.delta:g} over {epsilon.rounds:,} rounds"
    return {"epsilon": epsilon, "epsilon_text": text}


# -- Tables and sentences --------------------------------------------------------------------------


def results_of(line: RunLine) -> dict[str, Any]:
    """Compute the cells of a line; unknown values are None."""
    kinds = line.outcomes
    parts = [f"{count} of {len(line.runs)} {kind}" for kind, count in kinds.items()]
    outcome = ", ".join(parts) if len(kinds) > 1 else next(iter(kinds))
    if line.config.rounds != line.rounds:
        outcome += f" (of {line.config.rounds:,} rounds)"
    return {
        "Run": line.name,
        "Outcome": outcome,
        "Seeds": len(line.runs),
        "Accuracy, %": _scaled(line.mean("accuracy")),
        "±": _scaled(line.spread),
        "Best accuracy, %": _scaled(line.mean("best_accuracy")),
        "Epsilon": line.epsilon,
        "Rounds": line.rounds,
        "Bytes of a message": line.mean("message_bytes"),
        "Bytes up": round(line.mean("bytes_up") or 0),
        "Bytes down": round(line.mean("bytes_down") or 0),
        "Compression": line.compression("up", "down"),
        "Messages with noise, %": _scaled(line.mean("noised_share")),
        "Saturated cells, %": _scaled(line.mean("saturated_share")),
        "ms a round": _scaled(line.seconds, 1000),
    }


def _scaled(value: float | None, unit: float = 100) -> float | None:
    """Convert to a unit, without the digits that only multiplying makes."""
    return None if value is None else round(unit * value, 6)


def table_of(lines: Sequence[RunLine], prefix: str) -> Table:
    """Make the table with one row for each line, without columns that would be empty."""
    rows = [results_of(line) for line in lines]
    kept = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    cells = tuple(tuple(row[name] for name in kept) for row in rows)
    return Table(f"{prefix}-results", "Side by side", tuple(kept), cells, _RESULTS_CAPTION)


def _details(lines: Sequence[RunLine], prefix: str) -> Iterator[Table]:
    """Make the tables that are folded away: all single runs, and the settings of each line."""
    rows = [
        {
            "Directory": str(run.path),
            "Run": line.name,
            "Seed": run.config.seed,
            "Outcome": run.outcome,
            "Reason": run.value("reason") or "",
            "Rounds": run.rounds,
            "Accuracy, %": _scaled(run.value("accuracy")),
            "Loss": run.value("loss"),
            "Bytes up": run.value("bytes_up"),
            "Bytes down": run.value("bytes_down"),
            "Epsilon": run.epsilon,
            "ms a round": _scaled(run.seconds, 1000),
            "Command": run.command,
            "Version": _pairs(run.versions),
        }
        for line in lines
        for run in line.runs
    ]
    cells = tuple(tuple(row.values()) for row in rows)
    yield Table(f"{prefix}-runs", "Single runs", tuple(rows[0]), cells)
    for number, line in enumerate(lines, start=1):
        settings = (*settings_of_line(line.config).items(), ("seeds", line.seeds))
        name, title = f"{prefix}-settings-{number}", f"Settings of {line.name}"
        yield Table(name, title, ("Setting", "Value"), settings)


def _best(lines: Sequence[RunLine], task: str) -> list[str]:
    """Say what the most accurate lines reach, and at what price."""
    accuracies = {line: mean for line in lines if (mean := line.mean("accuracy")) is not None}
    reached = []
    for line in sorted(accuracies, key=lambda line: -accuracies[line])[:_TOLD]:
        spread = "" if line.spread is None else f" ± {100 * line.spread:.2f}"
        so_far = " so far," if any(run.summary is None for run in line.runs) else ""
        price = bytes_in_words((line.mean("bytes_up") or 0) + (line.mean("bytes_down") or 0))
        epsilon = "" if line.epsilon is None else f", {line.epsilon.text('short')}"
        reached.append(
            f"{line.name} reaches {100 * accuracies[line]:.2f}%{spread}{so_far} after "
            f"{line.rounds:,} rounds and {price} up and down{epsilon}"
        )
    return [f"On {task}, {'; '.join(reached)}."] if reached else []

"""A page of a user's own runs: finished, under way or interrupted, and comparisons of them.

Runs are found in directories and read without touching them (`find_runs`, `read_run`), those with
the same settings become one line (`lines_of`), and lines become plots, tables and sentences.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diffsketch.app.compare import has_plan, members_of, read_plan
from diffsketch.app.files import (
    START,
    SUMMARY,
    has_run,
    is_locked,
    look,
    read_metrics,
    unpack,
    versions,
)
from diffsketch.app.session import bytes_in_words, epsilon_from_data
from diffsketch.app.settings import METHOD_SETTINGS, RunConfig, Value
from diffsketch.errors import DataError
from diffsketch.pages.exhibits import Axis, Cell, Mark, Page, Plot, Section, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon

_DEPTH = 4  # directories below the one that is given: runs/COMPARISON/NAME/seed-0 is the usual most
_NEEDED = (
    "outcome", "reason", "diverging", "rounds", "accuracy", "best_accuracy", "message_bytes",
    "bytes_up", "bytes_down", "uncompressed_bytes_up", "uncompressed_bytes_down", "epsilon",
    "claim", "assumes", "noised_share",
)  # fmt: skip
_NO_OTHER_RUN = ("seed", "checkpoint_seconds")  # settings that a line's runs may differ in
_OF_METHODS = METHOD_SETTINGS | {"method", "hashes", "correction"}
# Settings of methods that are named also where only different methods have different ones.
_ALWAYS = ("rows", "cols", "per_round")
# Settings whose None means that something is not used, and not that it is off.
_UNUSED_IF_NONE = _OF_METHODS | {"local_epochs", "cohort", "sampling"}
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


class Point(NamedTuple):
    """One measurement of a run, a line of `metrics.jsonl`; bytes and epsilon since its start."""

    round_index: int
    accuracy: float
    loss: float | None  # None if it is not finite
    bytes_up: int
    bytes_down: int
    epsilon: Epsilon
    noised_share: float | None  # of the messages; None for methods that do not ask


@dataclass(frozen=True, eq=False)
class Run:
    """A run as its directory has it."""

    path: Path
    config: RunConfig
    curve: tuple[Point, ...]
    summary: dict[str, Any] | None  # None unless it ended
    rounds: int
    seconds: float | None  # of training, for a round
    outcome: str  # of the summary, or "diverging"; else "under way" or "interrupted"
    versions: Mapping[str, str]
    command: str
    name: str | None = None  # in the comparison that it is part of

    @property
    def ended(self) -> bool:
        """Whether there will be no more of it."""
        return self.summary is not None

    @property
    def epsilon(self) -> Epsilon | None:
        """Epsilon spent; None if nothing is measured yet."""
        if self.summary is not None:
            return epsilon_from_data(self.summary["epsilon"])
        return self.curve[-1].epsilon if self.curve else None

    @property
    def sent(self) -> tuple[int, int]:
        """Bytes up and down. The summary has also those of a round that diverged."""
        if self.summary is not None:
            return int(self.summary["bytes_up"]), int(self.summary["bytes_down"])
        return (self.curve[-1].bytes_up, self.curve[-1].bytes_down) if self.curve else (0, 0)


@dataclass(frozen=True, eq=False)
class Line:
    """Runs with the same settings, by seed, under a name that no other line has."""

    name: str
    runs: tuple[Run, ...]

    @property
    def config(self) -> RunConfig:
        """The settings, with the first seed."""
        return self.runs[0].config

    @property
    def epsilon(self) -> Epsilon | None:
        """The largest of the seeds'; None if nothing is measured yet."""
        known = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(known, key=float, default=None)

    @property
    def seeds(self) -> str:
        """The seeds as text, shortened where they follow each other."""
        numbers = [run.config.seed for run in self.runs]
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"{numbers[0]} to {numbers[-1]}"
        return ", ".join(str(number) for number in numbers)


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
    sections, all_lines = [], list[Line]()
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


def find_runs(paths: Iterable[Path]) -> tuple[dict[Path, str | None], list[str]]:
    """Find the runs in directories of runs or comparisons, or below them.

    Returns:
        The directory of each run once, with its name in the comparison that it is part of; and
        which comparisons have runs that have not begun.

    Raises:
        DataError: There is none in one of the paths, or the plan of a comparison is damaged.
        MismatchError: A plan is of another version's format.
    """
    runs: dict[Path, str | None] = {}
    notes: list[str] = []
    seen = set[Path]()
    for path in paths:
        if not path.is_dir():
            what = "is no directory" if path.exists() else "no such directory"
            raise DataError(f"{path}: {what}; it must be that of a run or of a comparison")
        below = list(_below(path, notes, depth=_DEPTH))
        if not below:
            raise DataError(
                f"{path}: there is no run in it, nor in the directories below it: none has a "
                f"{START}"
            )
        for run, name in below:
            if run.resolve() not in seen:
                seen.add(run.resolve())
                runs[run] = name
    return runs, list(dict.fromkeys(notes))


def _below(path: Path, notes: list[str], *, depth: int) -> Iterator[tuple[Path, str | None]]:
    if has_run(path):
        whole = path.resolve()
        yield path, _planned(whole.parent.parent)[0].get(whole)
    elif has_plan(path):
        names, planned = _planned(path)
        if len(names) < planned:
            notes.append(f"{planned - len(names)} of {planned} runs of {path} have not begun.")
        yield from names.items()
    elif depth:
        for below in sorted(path.iterdir()):
            # Links are not followed: they may lead back.
            if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
                yield from _below(below, notes, depth=depth - 1)


def _planned(path: Path) -> tuple[dict[Path, str], int]:
    """Return a comparison's runs that have begun with their names, and how many it will have."""
    if not has_plan(path):
        return {}, 0
    contenders, seeds = read_plan(path)
    members = members_of(contenders, seeds, path)
    return {one.path: one.name for one in members if has_run(one.path)}, len(members)


def read_run(path: Path, name: str | None = None) -> Run:
    """Read a run, finished or not.

    Guarantees (`tests/pages/test_runs.py`): no file is changed and no lock is taken, so that the
    run may go on meanwhile.

    Args:
        path: Its directory.
        name: Its name in the comparison that it is part of.

    Raises:
        DataError: A file is missing or damaged.
        MismatchError: It is of another version's format, or its settings were changed.
    """
    files = look(path)
    summary = files.summary()  # first: when it is there, so are all measurements
    lacking = [] if summary is None else [needed for needed in _NEEDED if needed not in summary]
    if lacking:
        where = path / SUMMARY
        raise DataError(f"{where}: lacks {lacking[0]}: written by another version of diffsketch")
    curve = _curve(files.metrics)
    last = curve[-1].round_index if curve else 0
    if summary is None:
        outcome = "under way" if is_locked(path) else "interrupted"
        timed = 0  # rounds until the last checkpoint, at which the time was taken
        if files.checkpoint.is_file():
            content = files.checkpoint.read_bytes()
            timed = int(
                unpack(content, files.checkpoint, identity=files.identity)[0]["round_index"]
            )
    else:
        outcome, timed = str(summary["outcome"]), summary["rounds"]
        if outcome == "finished" and summary["diverging"]:
            outcome = "diverging"
        if not curve or last != timed:
            extent = f"ends after round {last}" if curve else "has no measurements"
            raise DataError(
                f"{files.metrics}: damaged or missing: it {extent}, the run after round {timed}"
            )
    times = files.times()
    return Run(
        path=path,
        config=files.config,
        curve=curve,
        summary=summary,
        rounds=max(timed, last),
        seconds=times["training"] / timed if times and timed else None,
        outcome=outcome,
        versions=files.start["versions"],
        command=files.command,
        name=name,
    )


def _curve(path: Path) -> tuple[Point, ...]:
    """Read the measurements, checked: the file has no digest of its own."""
    points: list[Point] = []
    for number, record in enumerate(read_metrics(path), start=1):
        try:
            for name in ("round", "bytes_up", "bytes_down"):
                value = record[name]
                if type(value) is not int or value < 0:
                    raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
            for name, most in (("accuracy", 1), ("loss", math.inf), ("noised_share", 1)):
                value = record[name]
                good = type(value) in (int, float) and math.isfinite(value) and 0 <= value <= most
                if not good and not (value is None and name != "accuracy"):
                    raise ValueError(f"{name} must be a number from 0 to {most}, got {value!r}")
            spent = epsilon_from_data(record["epsilon"])
            known = record | {"round_index": record["round"], "epsilon": spent}
            point = Point(*(known[name] for name in Point._fields))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: damaged: line {number}: {error!r}") from error
        before = points[-1].round_index if points else -1
        if point.round_index <= before:
            raise DataError(
                f"{path}: damaged: line {number}: its round must be above {before}, got "
                f"{point.round_index}"
            )
        points.append(point)
    return tuple(points)


def lines_of(runs: Iterable[Run]) -> tuple[list[Line], list[str]]:
    """Group the runs of one task into lines; also say what was left out.

    Runs with the same settings are one line. Two of them with one seed are the same run: the
    longer one is taken, so that nothing is counted twice. If they differ nevertheless, as after a
    change of the source, or have different names in a comparison, they are different lines.
    """
    groups: list[list[Run]] = []
    notes = []
    for run in runs:
        home = next((group for group in groups if _fits(run, group)), None)
        if home is None:
            groups.append([run])
            continue
        twin = next((other for other in home if other.config.seed == run.config.seed), None)
        home.append(run)
        if twin is not None:
            shorter = min((run, twin), key=lambda one: (one.ended, len(one.curve)))
            home.remove(shorter)
            longer = twin if shorter is run else run
            notes.append(f"{shorter.path} repeats {longer.path}, and is counted once.")
    for group in groups:
        group.sort(key=lambda run: run.config.seed)
    names = _names(groups)
    return [Line(name, tuple(group)) for name, group in zip(names, groups, strict=True)], notes


def _settings(config: RunConfig) -> dict[str, Value]:
    """Return the settings that make a line, by name: those that are used, without the seed."""
    given = vars(config).items()
    return {name: value for name, value in given if value is not None and name not in _NO_OTHER_RUN}


def _fits(run: Run, group: Sequence[Run]) -> bool:
    if _settings(run.config) != _settings(group[0].config):
        return False
    if len({one.name for one in (run, *group)} - {None}) > 1:
        return False
    twins = [other for other in group if other.config.seed == run.config.seed]
    return all(
        one == two for twin in twins for one, two in zip(run.curve, twin.curve, strict=False)
    )


def _names(groups: Sequence[Sequence[Run]]) -> list[str]:
    """Name lines as comparisons do, or by method; with the settings that differ."""
    configs = [_settings(group[0].config) for group in groups]
    given = [next((run.name for run in group if run.name is not None), None) for group in groups]
    names = []
    for name, config in zip(given, configs, strict=True):
        alike = [one for one, other in zip(configs, given, strict=True) if name in (None, other)]
        head, differing = name or str(config["method"]), _differing(alike)
        if ("rows" in differing or "cols" in differing) and "rows" in config:
            head += f" {config['rows']}x{config['cols']}"  # the size belongs to the method
        rest = [one for one in differing if one in config and one not in ("rows", "cols")]
        names.append(", ".join([head, *(_setting_text(one, config[one]) for one in rest)]))
    return [
        name if names.count(name) == 1 else f"{name} ({group[0].path})"
        for name, group in zip(names, groups, strict=True)
    ]


def _differing(configs: Sequence[Mapping[str, Value]]) -> list[str]:
    """List the settings that are not the same in all of them, but for the method.

    What only some methods have differs where one method has it differently: that another method
    lacks it, or has another default, the method's name says already.
    """
    found = []
    for name in vars(RunConfig()):
        have = [one for one in configs if name in one or name not in _UNUSED_IF_NONE]
        if name in _OF_METHODS and name not in _ALWAYS:
            methods = {one["method"] for one in have}
            sets = [{one.get(name) for one in configs if one["method"] == own} for own in methods]
        else:
            sets = [{one.get(name) for one in have}]
        if any(len(values) > 1 for values in sets):
            found.append(name)
    return found


def _setting_text(name: str, value: Value) -> str:
    """Format a setting for a name.

    >>> _setting_text("per_round", 0.5), _setting_text("learning_rate", 0.01)
    ('epsilon 0.5 a round', 'learning rate 0.01')
    >>> _setting_text("rounds", 500), _setting_text("rotate", True)
    ('500 rounds', 'rotate')
    """
    spoken = name.replace("_", " ")
    if isinstance(value, bool):
        return spoken if value else f"no {spoken}"
    if name in ("rounds", "workers", "samples"):
        return f"{value:,} {spoken}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    forms = {"per_round": f"epsilon {shown} a round", "claimed": f"epsilon {shown} claimed"}
    return forms.get(name, f"{spoken} {shown}")


def plots_of(lines: Sequence[Line], *, prefix: str) -> tuple[Plot, ...]:
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


def _epsilon_plot(lines: Sequence[Line], *, prefix: str) -> Plot:
    def value(point: Point) -> float | None:
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


def _time_plot(lines: Sequence[Line], *, prefix: str, many: bool) -> Plot:
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
    lines: Sequence[Line],
    value: Callable[[Point], float | None],
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


def _columns(line: Line) -> list[list[Point]]:
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


def _ended(line: Line) -> str:
    """Say why a line ends early, if so."""
    early = Counter(_outcome(run) for run in line.runs if run.outcome != "finished")
    if list(early.values()) == [len(line.runs)]:
        return next(iter(early))
    return ", ".join(f"{count} of {len(line.runs)} seeds {kind}" for kind, count in early.items())


def _outcome(run: Run) -> str:
    return _OUTCOMES.get(run.outcome, run.outcome)


def _note(line: Line) -> str:
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


def results_of(line: Line) -> _Row:
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


def table_of(lines: Sequence[Line], *, prefix: str) -> Table:
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


def details_of(lines: Sequence[Line], *, prefix: str) -> dict[str, Table]:
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
        settings: list[tuple[Cell, ...]] = list(_settings(line.config).items())
        found[f"Settings of {line.name}"] = Table(
            name=f"{prefix}-settings-{number}",
            title=line.name,
            columns=("Setting", "Value"),
            rows=(*settings, ("seeds", line.seeds)),
        )
    return found


def _pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in found.items())


def _most_accurate(rows: Sequence[_Row], lines: Sequence[Line], task: str) -> list[str]:
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


def _privacy(lines: Sequence[Line]) -> list[str]:
    names: dict[Basis, list[str]] = {basis: [] for basis in _BASES}
    for line in lines:
        if line.epsilon is not None:
            names[line.epsilon.basis].append(line.name)
    return [f"{_BASES[basis]}: {'; '.join(some)}." for basis, some in names.items() if some]


def _diverged(lines: Sequence[Line]) -> list[str]:
    found = []
    for line in lines:
        count = sum(run.outcome in ("diverged", "diverging") for run in line.runs)
        many = f" ({count} of {len(line.runs)})" if len(line.runs) > 1 else ""
        found += [f"{line.name}{many}"] if count else []
    return [f"Diverged: {'; '.join(found)}."] if found else []


def _unfinished(runs: Sequence[Run]) -> list[str]:
    counts = Counter(run.outcome for run in runs if not run.ended)
    return [
        f"{count} of {len(runs)} runs {'is' if count == 1 else 'are'} {kind}, and shown as far as "
        f"{'it goes' if count == 1 else 'they go'}."
        for kind, count in sorted(counts.items(), reverse=True)
    ]


def _said(lines: Sequence[Line], key: str) -> list[str]:
    """List what summaries say about privacy, and for which lines."""
    names: dict[str, dict[str, None]] = {}
    for line in lines:
        for run in line.runs:
            said: Any = run.summary[key] if run.summary is not None else []
            for text in [said] if isinstance(said, str) else said:
                names.setdefault(str(text), {})[line.name] = None
    return [f"{'; '.join(some)}: {text}" for text, some in names.items()]


def _origin(runs: Sequence[Run], command: str) -> dict[str, str]:
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

"""Runs read from their directories, and grouped: the same settings with several seeds are a line.

Nothing is written and no run is locked, so that runs may go on meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from diffsketch.app.compare import has_plan, members_of, read_plan
from diffsketch.app.files import (
    START,
    SUMMARY,
    check_directory,
    has_run,
    is_locked,
    look,
    read_metrics,
    unpack,
)
from diffsketch.app.session import epsilon_from_data
from diffsketch.app.settings import METHOD_SETTINGS, RunConfig, Value
from diffsketch.errors import DataError
from diffsketch.privacy.claim import Epsilon

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


class RunPoint(NamedTuple):
    """One measurement of a run, a line of `metrics.jsonl`; bytes and epsilon since its start."""

    round_index: int
    accuracy: float
    loss: float | None  # None if it is not finite
    bytes_up: int
    bytes_down: int
    epsilon: Epsilon
    noised_share: float | None  # of the messages; None for methods that do not ask


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as its directory has it."""

    path: Path
    config: RunConfig
    curve: tuple[RunPoint, ...]
    summary: dict[str, Any] | None  # None unless it ended
    rounds: int
    seconds: float | None  # of training, for a round
    outcome: str  # of the summary, or "diverging"; else "under way" or "interrupted"
    versions: Mapping[str, str]
    command: str
    name: str | None = None  # in the comparison that it is part of

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

    @property
    def outcome_text(self) -> str:
        """The outcome as tables and legends name it."""
        return "out of budget" if self.outcome == "budget" else self.outcome


@dataclass(frozen=True, eq=False)
class RunLine:
    """Runs with the same settings, by seed, under a name that no other line has."""

    name: str
    runs: tuple[RunRecord, ...]

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


def find_runs(paths: Iterable[Path]) -> tuple[dict[Path, str | None], list[str]]:
    """Find the runs in directories of runs or comparisons, or below them.

    Returns the directory of each run once, with its name in the comparison that it is part of; and
    which comparisons have runs that have not begun.
    """
    runs: dict[Path, str | None] = {}
    notes: list[str] = []
    seen = set[Path]()
    for path in paths:
        check_directory(path, "a run or of a comparison")
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


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Read a run, finished or not; `name` is that in the comparison that it is part of.

    No file is changed and no lock is taken, so that the run may go on meanwhile.

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
        try:  # rounds until the last checkpoint, at which the time was taken
            content = files.checkpoint.read_bytes()
            state, _ = unpack(content, files.checkpoint, identity=files.identity)
            timed = int(state["round_index"])
        except FileNotFoundError:
            timed = 0
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
    seconds = times["training"] / timed if times and timed else None
    return RunRecord(
        path, files.config, curve, summary, max(timed, last), seconds, outcome,
        files.start["versions"], files.command, name,
    )  # fmt: skip


def _curve(path: Path) -> tuple[RunPoint, ...]:
    """Read the measurements, checked: the file has no digest of its own."""
    points: list[RunPoint] = []
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
            point = RunPoint(*(known[name] for name in RunPoint._fields))
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


def lines_of(runs: Iterable[RunRecord]) -> tuple[list[RunLine], list[str]]:
    """Group the runs of one task into lines; also say what was left out.

    Runs with the same settings are one line. Two of them with one seed are the same run: the
    longer one is taken, so that nothing is counted twice. If they differ nevertheless, as after a
    change of the source, or have different names in a comparison, they are different lines.
    """
    groups: list[list[RunRecord]] = []
    notes = []
    for run in runs:
        home = next((group for group in groups if _fits(run, group)), None)
        if home is None:
            groups.append([run])
            continue
        twin = next((other for other in home if other.config.seed == run.config.seed), None)
        home.append(run)
        if twin is not None:
            shorter = min((run, twin), key=lambda one: (one.summary is not None, len(one.curve)))
            home.remove(shorter)
            longer = twin if shorter is run else run
            notes.append(f"{shorter.path} repeats {longer.path}, and is counted once.")
    for group in groups:
        group.sort(key=lambda run: run.config.seed)
    names = _names(groups)
    return [RunLine(name, tuple(group)) for name, group in zip(names, groups, strict=True)], notes


def settings_of_line(config: RunConfig) -> dict[str, Value]:
    """Return the settings that make a line, by name: those that are used, without the seed."""
    given = vars(config).items()
    return {name: value for name, value in given if value is not None and name not in _NO_OTHER_RUN}


def _fits(run: RunRecord, group: Sequence[RunRecord]) -> bool:
    if settings_of_line(run.config) != settings_of_line(group[0].config):
        return False
    if len({one.name for one in (run, *group)} - {None}) > 1:
        return False
    twins = [other for other in group if other.config.seed == run.config.seed]
    return all(
        one == two for twin in twins for one, two in zip(run.curve, twin.curve, strict=False)
    )


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Name lines as comparisons do, or by method; with the settings that differ.

    A setting that only some methods have differs where one method has it differently: that another
    method lacks it, or has another default, the method's name says already.
    """
    configs = [settings_of_line(group[0].config) for group in groups]
    given = [next((run.name for run in group if run.name is not None), None) for group in groups]
    names = []
    for name, config in zip(given, configs, strict=True):
        alike = [one for one, other in zip(configs, given, strict=True) if name in (None, other)]
        differing = []
        for setting in vars(RunConfig()):
            have = [one for one in alike if setting in one or setting not in _UNUSED_IF_NONE]
            sets = [{one.get(setting) for one in have}]
            if setting in _OF_METHODS and setting not in _ALWAYS:
                methods = {one["method"] for one in have}
                sets = [
                    {one.get(setting) for one in alike if one["method"] == own} for own in methods
                ]
            if any(len(values) > 1 for values in sets):
                differing.append(setting)
        head = name or str(config["method"])
        if ("rows" in differing or "cols" in differing) and "rows" in config:
            head += f" {config['rows']}x{config['cols']}"  # the size belongs to the method
        rest = [one for one in differing if one in config and one not in ("rows", "cols")]
        names.append(", ".join([head, *(_setting_text(one, config[one]) for one in rest)]))
    return [
        name if names.count(name) == 1 else f"{name} ({group[0].path})"
        for name, group in zip(names, groups, strict=True)
    ]


def _setting_text(name: str, value: Value) -> str:
    """Format a setting for a name.

    >>> _setting_text("per_round", 0.5), _setting_text("learning_rate", 0.01)
    ('epsilon 0.5 a round', 'learning rate 0.01')
    >>> _setting_text("rounds", 500)
    '500 rounds'
    """
    spoken = name.replace("_", " ")
    if name in ("rounds", "workers", "samples"):
        return f"{value:,} {spoken}"
    shown = f"{value:g}" if isinstance(value, float) else str(value)
    forms = {"per_round": f"epsilon {shown} a round", "claimed": f"epsilon {shown} claimed"}
    return forms.get(name, f"{spoken} {shown}")

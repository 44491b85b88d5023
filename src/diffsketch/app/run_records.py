"""Runs as their directories have them, and lines: the same settings over several seeds.

`RunLine` is the one place where runs are averaged over seeds: tables of comparisons, pages and the
paper's figures take their means from it. Nothing is written and no run is locked, so that runs may
go on meanwhile.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from diffsketch.app.files import SUMMARY, look, read_metrics
from diffsketch.app.settings import FEDAVG_SETTINGS, METHOD_SETTINGS, RunConfig, Value
from diffsketch.errors import DataError
from diffsketch.privacy.claim import Epsilon

Point: TypeAlias = Mapping[str, Any]
"""One measurement of a run, a line of `metrics.jsonl`; bytes and epsilon are since its start."""

_NEEDED = (
    "outcome", "reason", "diverging", "rounds", "accuracy", "best_accuracy", "message_bytes",
    "bytes_up", "bytes_down", "uncompressed_bytes_up", "uncompressed_bytes_down", "epsilon",
    "claim", "assumes", "noised_share",
)  # fmt: skip
_NO_OTHER_RUN = ("seed", "checkpoint_seconds")  # settings that a line's runs may differ in
# Settings that are compared among runs with the same method, or algorithm: others lack them, or
# have another default, which their names say already.
_COMPARED_WITHIN = dict.fromkeys(METHOD_SETTINGS | {"hashes", "correction"}, "method")
_COMPARED_WITHIN |= dict.fromkeys(FEDAVG_SETTINGS, "algorithm")


@dataclass(frozen=True, eq=False)
class RunRecord:
    """A run as its directory has it; `summary` is None unless it ended."""

    path: Path
    config: RunConfig
    summary: dict[str, Any] | None
    curve: Sequence[Point]
    times: Mapping[str, float]  # of `times.json`; empty if unknown
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    name: str | None = None  # in the comparison that it is part of

    def value(self, quantity: str) -> Any:
        """Return the last value, by its name in summary and measurements; None if unknown.

        The summary goes first: it has also the bytes of a round that diverged.
        """
        last = self.summary or (self.curve[-1] if self.curve else {})
        return last.get(quantity)

    @property
    def rounds(self) -> int:
        """Rounds that are done: of an unfinished run, up to its last checkpoint."""
        if self.summary is not None:
            return int(self.summary["rounds"])
        return max(int(self.times.get("rounds", 0)), self.value("round") or 0)

    @property
    def seconds(self) -> float | None:
        """Seconds of training for a round; None if unknown."""
        return RunLine("", (self,)).seconds

    @property
    def epsilon(self) -> Epsilon | None:
        """Epsilon spent; None if nothing is measured yet."""
        data = self.value("epsilon")
        return None if data is None else Epsilon.from_json(data)

    @property
    def outcome(self) -> str:
        """Outcome as tables and legends name it."""
        if self.summary is None:
            return "unfinished"
        if self.summary["outcome"] == "finished" and self.summary["diverging"]:
            return "diverging"
        outcome = str(self.summary["outcome"])
        return {"budget": "out of budget", "early": "stopped early"}.get(outcome, outcome)


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
    def seeds(self) -> str:
        """The seeds as text, shortened where they follow each other."""
        numbers = [run.config.seed for run in self.runs]
        if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[-1] + 1)):
            return f"{numbers[0]} to {numbers[-1]}"
        return ", ".join(map(str, numbers))

    @cached_property
    def counted(self) -> list[RunRecord]:
        """Runs that ended; if none did, all that have measurements."""
        return [run for run in self.runs if run.summary] or [run for run in self.runs if run.curve]

    def values(self, quantity: str | Callable[[RunRecord], float | None]) -> list[float]:
        """List the known last values of a quantity, one of each run that counts."""
        all_values = (
            run.value(quantity) if isinstance(quantity, str) else quantity(run)
            for run in self.counted
        )
        return [value for value in all_values if value is not None]

    def mean(self, quantity: str | Callable[[RunRecord], float | None]) -> float | None:
        """Average the known last values of a quantity."""
        values = self.values(quantity)
        return statistics.fmean(values) if values else None

    @property
    def spread(self) -> float | None:
        """Standard deviation of the accuracy over the seeds; None for one seed."""
        accuracies = self.values("accuracy")
        return statistics.stdev(accuracies) if len(accuracies) > 1 else None

    def compression(self, *ways: str) -> float | None:
        """Compute bytes of vectors in float32 over those of the messages: "up", "down" or both."""
        # A ratio of sums, and not a mean of ratios: bytes of all seeds over bytes of all seeds.
        raw = sum(sum(self.values(f"uncompressed_bytes_{way}")) for way in ways)
        sent = sum(sum(self.values(f"bytes_{way}")) for way in ways)
        return raw / sent if raw and sent else None

    @property
    def rounds(self) -> int:
        """Rounds of the seed that has most."""
        return max((run.rounds for run in self.counted), default=0)

    @property
    def seconds(self) -> float | None:
        """Seconds of training for a round, over all seeds; None if unknown."""
        timed = [run for run in self.runs if run.times]
        # Of an unfinished run, the rounds at which the time was taken.
        rounds = sum(run.times.get("rounds", run.rounds) for run in timed)
        return sum(run.times["training"] for run in timed) / rounds if rounds else None

    @property
    def epsilon(self) -> Epsilon | None:
        """The largest of the seeds'; None if nothing is measured yet."""
        measured = [run.epsilon for run in self.runs if run.epsilon is not None]
        return max(measured, key=float, default=None)

    @property
    def outcomes(self) -> Counter[str]:
        """Number of seeds by outcome."""
        return Counter(run.outcome for run in self.runs)

    def columns(self) -> dict[int, list[Point]]:
        """Return the measurements of all seeds by the rounds at which they can be averaged.

        A round counts where each seed was measured or is over: else a mean would jump at the last
        round of a seed that stopped between the others' measurements. Where a run ended early, its
        last measurement stays, or else the mean would rise when a bad seed is gone.
        """
        curves = [({point["round"]: point for point in run.curve}, run) for run in self.runs]
        curves = [(curve, run) for curve, run in curves if curve]
        return {
            index: [
                curve.get(index, run.curve[-1])
                for curve, run in curves
                if index in curve or run.summary is not None
            ]
            for index in sorted({index for curve, _ in curves for index in curve})
            if all(index in curve or index > max(curve) for curve, _ in curves)
        }


def read_run(path: Path, name: str | None = None) -> RunRecord:
    """Read a run, finished or not; `name` is that in the comparison that it is part of.

    Raises:
        DataError: A file is missing or damaged.
        MismatchError: It is of another version's format, or its settings were changed.
    """
    directory = look(path)
    summary = directory.summary()  # first: when it is there, so are all measurements
    curve = read_metrics(directory.metrics)
    if summary is not None:
        for needed in (needed for needed in _NEEDED if needed not in summary):
            where = f"{path / SUMMARY}: lacks {needed}"
            raise DataError(f"{where}: written by another version of diffsketch")
        if not curve or curve[-1]["round"] != summary["rounds"]:
            extent = f"ends after round {curve[-1]['round']}" if curve else "has no measurements"
            raise DataError(
                f"{directory.metrics}: damaged or missing: it {extent}, the run after round "
                f"{summary['rounds']}"
            )
    return RunRecord(
        path, directory.config, summary, curve, directory.times(),
        versions=directory.start["versions"], command=directory.command, name=name,
    )  # fmt: skip


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
            # A finished run beats an unfinished one, then the one with more measurements.
            shorter, longer = sorted((run, twin), key=lambda r: (bool(r.summary), len(r.curve)))
            home.remove(shorter)
            notes.append(f"{shorter.path} repeats {longer.path}, and is counted once.")
    for group in groups:
        group.sort(key=lambda run: run.config.seed)
    names = _names(groups)
    return [RunLine(name, tuple(group)) for name, group in zip(names, groups, strict=True)], notes


def settings_of_line(config: RunConfig) -> dict[str, Value]:
    """Return the settings that make a line, by name: those that are used, without the seed."""
    used = config.known().items()
    return {name: value for name, value in used if name not in _NO_OTHER_RUN}


def _fits(run: RunRecord, group: Sequence[RunRecord]) -> bool:
    if settings_of_line(run.config) != settings_of_line(group[0].config):
        return False
    if len({member.name for member in (run, *group)} - {None}) > 1:
        return False
    twins = [other for other in group if other.config.seed == run.config.seed]
    return all(
        mine == theirs
        for twin in twins
        for mine, theirs in zip(run.curve, twin.curve, strict=False)
    )


def _names(groups: Sequence[Sequence[RunRecord]]) -> list[str]:
    """Name lines as comparisons do, or by method; with the settings that differ."""
    configs = [settings_of_line(group[0].config) for group in groups]
    titles = [next((run.name for run in group if run.name), None) for group in groups]
    names = []
    for title, config in zip(titles, configs, strict=True):
        rivals = [c for c, other in zip(configs, titles, strict=True) if title in (None, other)]
        differing = [
            setting
            for setting in RunConfig.model_fields
            if setting != "method"
            for within in [_COMPARED_WITHIN.get(setting)]
            if any(
                rival.get(setting) != config.get(setting)
                for rival in rivals
                if within is None or rival[within] == config[within]
            )
        ]
        # A name that the user gave goes before that of the method.
        head = title or str(config["method"])
        if "rows" in differing or "cols" in differing:
            head += f" {config['rows']}x{config['cols']}"  # the size belongs to the method
        others = [name for name in differing if name in config and name not in ("rows", "cols")]
        names.append(", ".join([head, *(_setting_text(name, config[name]) for name in others)]))
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
    return f"epsilon {shown} a round" if name == "per_round" else f"{spoken} {shown}"

"""A run read for a report, as far as it is: its measurements, what it came to, and its state."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsketch.app.files import SUMMARY, RunFiles, is_locked, look, read_metrics, unpack
from diffsketch.app.session import epsilon_from_data
from diffsketch.app.settings import RunConfig
from diffsketch.errors import DataError
from diffsketch.privacy.claim import Epsilon

__all__ = ["Point", "Run", "read_run"]

_NEEDED = (
    "outcome", "reason", "diverging", "rounds", "accuracy", "best_accuracy", "message_bytes",
    "bytes_up", "bytes_down", "uncompressed_bytes_up", "uncompressed_bytes_down", "epsilon",
    "claim", "assumes", "noised_share",
)  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One measurement of a run: a line of `metrics.jsonl`.

    Attributes:
        round_index: Rounds that were done.
        accuracy: On the test set.
        loss: On the test set; None if it is not finite.
        bytes_up: Sent by workers until then.
        bytes_down: Sent to workers until then.
        epsilon: Spent until then.
        noised_share: Of the messages until then, which needed noise; None where nobody asks.
    """

    round_index: int
    accuracy: float
    loss: float | None
    bytes_up: int
    bytes_down: int
    epsilon: Epsilon
    noised_share: float | None


@dataclass(frozen=True, eq=False)
class Run:
    """A run as its directory has it.

    Attributes:
        path: The directory, as it was given or found.
        config: All settings.
        curve: Its measurements; empty if it has just begun.
        summary: What it came to; None unless it ended.
        rounds: How many are done, as far as is known.
        seconds: Of training, for a round; None if not known.
        outcome: `finished`, `diverged`, `diverging` or `budget`; without a summary `under way` or
            `interrupted`.
        versions: That it was begun with.
        command: That began it; empty if not known.
        name: In the comparison that it is part of; None if it is part of none.
    """

    path: Path
    config: RunConfig
    curve: tuple[Point, ...]
    summary: dict[str, Any] | None
    rounds: int
    seconds: float | None
    outcome: str
    versions: Mapping[str, str]
    command: str
    name: str | None = None

    @property
    def ended(self) -> bool:
        """Whether there will be no more of it."""
        return self.summary is not None

    @property
    def epsilon(self) -> Epsilon | None:
        """What it has spent; None if nothing is measured yet."""
        if self.summary is not None:
            return epsilon_from_data(self.summary["epsilon"])
        return self.curve[-1].epsilon if self.curve else None


def read_run(path: Path, name: str | None = None) -> Run:
    """A run, finished or not.

    Guarantees (`tests/pages/test_runs_reading.py`): no file is changed and no lock is taken, so
    that the run may go on meanwhile.

    Args:
        path: Its directory.
        name: In the comparison that it is part of.

    Raises:
        DataError: A file is missing or damaged.
        MismatchError: It is of another version's format, or its settings were changed.
    """
    files = look(path)
    summary = files.summary()  # first: when it is there, so are all measurements
    if summary is not None:
        _check_summary(summary, path / SUMMARY)
    curve = tuple(_points(files.metrics))
    if summary is not None and (not curve or curve[-1].round_index != summary["rounds"]):
        last = f"ends after round {curve[-1].round_index}" if curve else "has no measurements"
        raise DataError(
            f"{files.metrics}: damaged or missing: it {last}, the run after round "
            f"{summary['rounds']}"
        )
    timed = _checkpointed(files) if summary is None else summary["rounds"]
    times = files.times()
    return Run(
        path=path,
        config=files.config,
        curve=curve,
        summary=summary,
        rounds=max(timed, curve[-1].round_index if curve else 0),
        seconds=times["training"] / timed if times and timed else None,
        outcome=_outcome(path, summary),
        versions=files.start["versions"],
        command=files.command,
        name=name,
    )


def _check_summary(summary: Mapping[str, Any], path: Path) -> None:
    for name in _NEEDED:
        if name not in summary:
            raise DataError(f"{path}: lacks {name}: written by another version of diffsketch")


def _points(path: Path) -> Iterator[Point]:
    """The measurements, checked: the file has no digest of its own."""
    before = -1
    for number, record in enumerate(read_metrics(path), start=1):
        try:
            point = _point(record)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise DataError(f"{path}: damaged: line {number}: {error!r}") from error
        if point.round_index <= before:
            raise DataError(
                f"{path}: damaged: line {number}: its round must be above {before}, got "
                f"{point.round_index}"
            )
        before = point.round_index
        yield point


def _point(record: Mapping[str, Any]) -> Point:
    whole = {name: record[name] for name in ("round", "bytes_up", "bytes_down")}
    real = {name: record[name] for name in ("accuracy", "loss", "noised_share")}
    for name, value in whole.items():
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} must be a whole number >= 0, got {value!r}")
    for name, value in real.items():
        number = type(value) in (int, float) and math.isfinite(value)
        most = math.inf if name == "loss" else 1
        if not (number and 0 <= value <= most) and not (value is None and name != "accuracy"):
            raise ValueError(f"{name} must be a number from 0 to {most}, got {value!r}")
    return Point(
        round_index=whole["round"],
        accuracy=real["accuracy"],
        loss=real["loss"],
        bytes_up=whole["bytes_up"],
        bytes_down=whole["bytes_down"],
        epsilon=epsilon_from_data(record["epsilon"]),
        noised_share=real["noised_share"],
    )


def _checkpointed(files: RunFiles) -> int:
    """Rounds until the last checkpoint, at which the time was taken; 0 before there is one."""
    try:
        content = files.checkpoint.read_bytes()
    except FileNotFoundError:
        return 0
    state, _ = unpack(content, files.checkpoint, identity=files.identity)
    return int(state["round_index"])


def _outcome(path: Path, summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "under way" if is_locked(path) else "interrupted"
    finished = summary["outcome"] == "finished"
    return "diverging" if finished and summary["diverging"] else str(summary["outcome"])

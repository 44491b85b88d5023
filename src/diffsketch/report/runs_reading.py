"""A run read for a report: nothing is locked, changed or written.

A run that is under way is read as far as it is. `diffsketch.run.directory` opens runs to continue
them, and so refuses those of other versions; to show one, only its format has to be known.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsketch.errors import DataError, MismatchError
from diffsketch.privacy.claim import Epsilon
from diffsketch.run.checkpoint import unpack
from diffsketch.run.config import RunConfig
from diffsketch.run.config_files import read_settings
from diffsketch.run.directory import RunDirectory
from diffsketch.run.metrics import read_metrics
from diffsketch.run.report import epsilon_from_data
from diffsketch.run.sealed import read_json

__all__ = ["Point", "Run", "read_run"]

_FORMAT = "diffsketch run 1"
_NEEDED = (
    "outcome", "reason", "diverging", "rounds", "accuracy", "best_accuracy", "message_bytes",
    "bytes_up", "bytes_down", "uncompressed_bytes_up", "uncompressed_bytes_down", "epsilon",
    "claim", "assumes", "noised_share",
)  # fmt: skip
_LOCKS = Path("/proc/locks")


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

    Guarantees (`tests/report/test_runs.py`): no file is changed and no lock is taken, so that the
    run may go on meanwhile.

    Args:
        path: Its directory.
        name: In the comparison that it is part of.

    Raises:
        DataError: A file is missing or damaged.
        MismatchError: It is of another version's format, or its settings were changed.
    """
    start = _start(path / "run.json")
    identity = str(start["config"])
    config = _config(path / "config.toml", identity)
    # Without a lock, for its methods that read. The summary first: when it is there, so are all
    # measurements.
    directory = RunDirectory(path, -1)
    summary = directory.summary()
    if summary is not None:
        _check_summary(summary, path / "summary.json")
    curve = tuple(_points(directory.metrics))
    if summary is not None and (not curve or curve[-1].round_index != summary["rounds"]):
        last = f"ends after round {curve[-1].round_index}" if curve else "has no measurements"
        raise DataError(
            f"{directory.metrics}: damaged or missing: it {last}, the run after round "
            f"{summary['rounds']}"
        )
    timed = _checkpointed(directory, identity) if summary is None else summary["rounds"]
    times = directory.times()
    return Run(
        path=path,
        config=config,
        curve=curve,
        summary=summary,
        rounds=max(timed, curve[-1].round_index if curve else 0),
        seconds=times["training"] / timed if times and timed else None,
        outcome=_outcome(path, summary),
        versions={str(key): str(value) for key, value in start["versions"].items()},
        command=_command(path / "command.txt"),
        name=name,
    )


def _start(path: Path) -> dict[str, Any]:
    """What the run was begun with."""
    try:
        start = read_json(path)
    except FileNotFoundError as error:
        raise DataError(f"{path}: missing") from error
    if start.get("format") != _FORMAT:
        raise MismatchError(
            f"{path}: must have the format {_FORMAT!r}, got {start.get('format')!r}: written by "
            "another version of diffsketch"
        )
    if not isinstance(start.get("versions"), dict) or not isinstance(start.get("config"), str):
        raise DataError(f"{path}: damaged: it lacks the versions or the digest of the settings")
    return start


def _config(path: Path, identity: str) -> RunConfig:
    settings = read_settings(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != identity:
        raise MismatchError(
            f"{path}: changed since the run began: it does not say any more what was run"
        )
    return RunConfig(**settings)  # type: ignore[arg-type]


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


def _checkpointed(directory: RunDirectory, identity: str) -> int:
    """Rounds until the last checkpoint, at which the time was taken; 0 before there is one."""
    path = directory.checkpoint
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return 0
    state, _ = unpack(content, path, identity=identity)
    return int(state["round_index"])


def _outcome(path: Path, summary: Mapping[str, Any] | None) -> str:
    if summary is None:
        return "under way" if _is_written_to(path) else "interrupted"
    finished = summary["outcome"] == "finished"
    return "diverging" if finished and summary["diverging"] else str(summary["outcome"])


def _is_written_to(path: Path) -> bool:
    """Whether a process of this machine has locked it, as the kernel tells without a lock.

    Trying to lock it would for a moment keep away whoever wants to continue the run.
    """
    place = path.stat()
    wanted = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    try:
        return any(wanted in line.split() for line in _LOCKS.read_text().splitlines())
    except OSError:
        return False


def _command(path: Path) -> str:
    """For the record only: nothing depends on it."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""

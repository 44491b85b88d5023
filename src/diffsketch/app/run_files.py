"""The files of a run: their names, and how to look at them. Nothing here locks or changes any.

`look` is for whoever shows a run: it may go on meanwhile, and may be of another version of which
only the format is known. `diffsketch.app.directory` is for whoever begins or continues one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsketch.errors import DataError, MismatchError
from diffsketch.app.config import RunConfig
from diffsketch.app.config_files import read_settings
from diffsketch.app.sealed import read_json, read_sealed

__all__ = [
    "CHECKPOINT", "COMMAND", "CONFIG", "FORMAT", "METRICS", "MODEL", "START", "SUMMARY", "TIMES",
    "RunFiles", "has_run", "look", "read_config", "read_start",
]  # fmt: skip

FORMAT = "diffsketch run 2"
START, CONFIG, COMMAND = "run.json", "config.toml", "command.txt"
METRICS, CHECKPOINT, TIMES = "metrics.jsonl", "checkpoint.safetensors", "times.json"
MODEL, SUMMARY = "model.safetensors", "summary.json"


class RunFiles:
    """A run as its files have it, whether it is finished, interrupted or under way. Use `look`.

    Args:
        path: The directory.
        config: The settings of the run, all resolved.
        start: What `run.json` says: what the run was begun with.
    """

    def __init__(self, path: Path, config: RunConfig, *, start: Mapping[str, Any]) -> None:
        self.path, self.config, self.start = path, config, start

    @property
    def identity(self) -> str:
        """A digest of the settings, by which a checkpoint is known."""
        return str(self.start["config"])

    @property
    def metrics(self) -> Path:
        """The measurements, one JSON object a line."""
        return self.path / METRICS

    @property
    def checkpoint(self) -> Path:
        """From which the run continues."""
        return self.path / CHECKPOINT

    @property
    def command(self) -> str:
        """That began it; empty if that is lost. For the record only: nothing depends on it."""
        try:
            return (self.path / COMMAND).read_text(encoding="utf-8", errors="replace").strip()
        except OSError:
            return ""

    def summary(self) -> dict[str, Any] | None:
        """What the run came to, if it is finished.

        Raises:
            DataError: The file is damaged.
        """
        try:
            return read_sealed(self.path / SUMMARY)
        except FileNotFoundError:
            return None

    @property
    def finished(self) -> bool:
        """Whether everything is there that a run leaves."""
        return (self.path / SUMMARY).exists() and (self.path / MODEL).exists()

    @property
    def begun(self) -> bool:
        """Whether a checkpoint was written, even if it is gone."""
        return self.checkpoint.exists() or (self.path / TIMES).exists()

    def times(self) -> dict[str, float]:
        """Seconds that the run took, all its sessions together; empty before there are any.

        Also if the file is damaged: nothing but the time that is shown depends on it.
        """
        try:
            found = read_json(self.path / TIMES)
        except (FileNotFoundError, DataError):
            return {}
        good = all(_is_time(found.get(name)) for name in ("training", "total"))
        return {name: found[name] for name in ("training", "total")} if good else {}

    def files(self) -> list[Path]:
        """What has been written, the most interesting first."""
        names = (SUMMARY, METRICS, MODEL, CONFIG, COMMAND, TIMES, CHECKPOINT)
        return [self.path / name for name in names if (self.path / name).exists()]


def has_run(path: Path) -> bool:
    """Whether a run was begun in a directory."""
    return (path / START).is_file()


def look(path: Path) -> RunFiles:
    """The run in a directory, to be shown.

    Guarantees (`tests/app/test_run_files.py`): no file is changed and no lock is taken or waited
    for, so that the run may go on meanwhile; versions other than ours are no obstacle.

    Raises:
        DataError: A file is missing or damaged.
        MismatchError: It is of another version's format, or its settings were changed.
    """
    start = read_start(path)
    return RunFiles(path, read_config(path, start), start=start)


def read_start(path: Path) -> dict[str, Any]:
    """What the run in a directory was begun with: `format`, `config` and `versions`.

    Raises:
        DataError: The file is missing or damaged.
        MismatchError: It is of another version's format.
    """
    file = path / START
    try:
        start = read_json(file)
    except FileNotFoundError as error:
        raise DataError(f"{file}: missing") from error
    if start.get("format") != FORMAT:
        raise MismatchError(
            f"{file}: must have the format {FORMAT!r}, got {start.get('format')!r}: written by "
            "another version of diffsketch"
        )
    start = read_sealed(file)
    versions = start.get("versions")
    if not isinstance(versions, dict) or not isinstance(start.get("config"), str):
        raise DataError(f"{file}: damaged: it lacks the versions or the digest of the settings")
    return {**start, "versions": {name: str(value) for name, value in versions.items()}}


def read_config(path: Path, start: Mapping[str, Any]) -> RunConfig:
    """The settings of the run in a directory.

    Args:
        path: The directory.
        start: Of `read_start`.

    Raises:
        DataError: The file cannot be read.
        MismatchError: It was changed.
    """
    file = path / CONFIG
    try:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError as error:
        raise DataError(f"{file}: {error.strerror or error}") from error
    if digest != start["config"]:
        raise MismatchError(
            f"{file}: changed since the run began: it does not say any more what was run, and a "
            "run can only be continued with the settings that it has"
        )
    return RunConfig(**read_settings(file))  # type: ignore[arg-type]


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0

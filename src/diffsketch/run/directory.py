"""The directory of a run: what is in it, who may write to it, and what belongs together."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy
import torch

from diffsketch import __version__
from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError
from diffsketch.files import prepare_output, replace_file, replace_files
from diffsketch.run.config import RunConfig
from diffsketch.run.config_files import read_settings, to_toml

__all__ = ["RunBusy", "RunDirectory", "free_name"]

_FORMAT = "diffsketch run 1"
_CONFIG, _RUN, _METRICS = "config.toml", "run.json", "metrics.jsonl"
_CHECKPOINT, _MODEL, _SUMMARY, _TIMES = (
    "checkpoint.safetensors",
    "model.safetensors",
    "summary.json",
    "times.json",
)
# In the order in which a run is removed: what says that there is one comes last.
_FILES = (_SUMMARY, _MODEL, _CHECKPOINT, _METRICS, _TIMES, _CONFIG, _RUN)


class RunBusy(DiffSketchError):  # noqa: N818 - it says what happened
    """Another process is writing to the directory of the run. Nothing was changed."""


class RunDirectory:
    """A run's directory, locked for this process until it is closed. Use `create` or `open`.

    Guarantees (`tests/run/test_directory.py`): nothing is removed that is not a run's and was not
    asked to be; two processes never write to one; settings that were changed since are noticed.

    Attributes:
        path: The directory.
        config: The settings of the run, all resolved.
        identity: A digest of the settings, by which a checkpoint is known.
        start: What `run.json` says: versions and the command that began the run.
    """

    def __init__(self, path: Path, lock: int) -> None:
        """Use `create` or `open`."""
        self.path, self._lock = path, lock
        self.config = RunConfig()
        self.identity = ""
        self.start: dict[str, Any] = {}

    @classmethod
    def create(
        cls, path: Path, config: RunConfig, *, command: list[str], overwrite: bool = False
    ) -> RunDirectory:
        """A directory for a new run.

        Args:
            path: New or empty, unless it is to be overwritten.
            config: All settings, resolved.
            command: That began it, for the record.
            overwrite: Whether a run that is there may be removed; other files stay.

        Raises:
            ArgumentError: Something is there that may not be removed.
            RunBusy: Another process is writing to it.
            OSError: It cannot be made.
        """
        prepare_output(path)
        self = cls(path, _locked(path))
        try:
            self._clear(overwrite=overwrite)
            content = to_toml(config).encode()
            self.config, self.identity = config, hashlib.sha256(content).hexdigest()
            self.start = {
                "format": _FORMAT,
                "config": self.identity,
                "versions": _versions(),
                "command": command,
            }
            text = json.dumps(self.start, indent=2)
            replace_files({path / _CONFIG: content, path / _RUN: text.encode() + b"\n"})
        except BaseException:
            self.close()
            raise
        return self

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The directory of a run that was begun.

        Raises:
            DataError: There is no run, or one of its files is damaged.
            MismatchError: It was begun by another version, or its settings were changed.
            RunBusy: Another process is writing to it.
        """
        if not (path / _RUN).is_file() or not (path / _CONFIG).is_file():
            raise DataError(f"{path}: not the directory of a run: {_CONFIG} or {_RUN} is missing")
        self = cls(path, _locked(path))
        try:
            self.start = _read_start(path / _RUN)
            self.identity = hashlib.sha256((path / _CONFIG).read_bytes()).hexdigest()
            if self.identity != self.start["config"]:
                raise MismatchError(
                    f"{path / _CONFIG}: changed since the run began: a run can only be continued "
                    "with the settings that it has"
                )
            self.config = RunConfig(**read_settings(path / _CONFIG))  # type: ignore[arg-type]
            self._remove_leftovers()
        except BaseException:
            self.close()
            raise
        return self

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let others write to it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def metrics(self) -> Path:
        """The measurements, one JSON object a line."""
        return self.path / _METRICS

    @property
    def checkpoint(self) -> Path:
        """From which the run continues."""
        return self.path / _CHECKPOINT

    def summary(self) -> dict[str, Any] | None:
        """What the run came to, if it is finished.

        Raises:
            DataError: The file is damaged.
        """
        path = self.path / _SUMMARY
        return _read_json(path) if path.exists() else None

    def times(self) -> dict[str, float]:
        """Seconds that the run took, all its sessions together; empty before there are any."""
        path = self.path / _TIMES
        return _read_json(path) if path.exists() else {}

    def write_checkpoint(self, content: bytes, times: dict[str, float]) -> None:
        """Replace the checkpoint; on an error the old one stays."""
        replace_file(self.checkpoint, content)
        replace_file(self.path / _TIMES, _json(times))

    def write_results(self, *, model: bytes, summary: dict[str, Any]) -> None:
        """Write what a finished run leaves; the summary last, since it says that it is finished."""
        replace_files({self.path / _MODEL: model, self.path / _SUMMARY: _json(summary)})

    def files(self) -> list[Path]:
        """What has been written, the most interesting first."""
        names = (_SUMMARY, _METRICS, _MODEL, _CONFIG, _TIMES, _CHECKPOINT)
        return [self.path / name for name in names if (self.path / name).exists()]

    def _clear(self, *, overwrite: bool) -> None:
        if not any(self.path.iterdir()):
            return
        shown = str(self.path)
        if not (self.path / _RUN).is_file():
            raise ArgumentError(
                f"output must be a new or empty directory, got output={shown!r}, which has files "
                "that are not those of a run"
            )
        if not overwrite:
            raise ArgumentError(
                f"output must be a new or empty directory, got output={shown!r}, which holds a "
                f"run: continue it with --resume {shown}, or replace it with --overwrite"
            )
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Temporary files of a process that was killed while it wrote one."""
        for name in _FILES:
            for path in self.path.glob(f".{name}.*.tmp"):
                path.unlink(missing_ok=True)


def free_name(base: Path) -> Path:
    """A new directory: the first of `base`, `base-2`, `base-3`, ... that does not exist."""
    base.parent.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = base if number == 1 else base.with_name(f"{base.name}-{number}")
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        else:
            return path


def _locked(path: Path) -> int:
    """Lock a directory until the process ends or closes what comes back. No file is left behind."""
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise RunBusy(f"{path}: another process is writing to this run") from None
    return lock


def _versions() -> dict[str, str]:
    return {
        "diffsketch": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }


def _read_start(path: Path) -> dict[str, Any]:
    start = _read_json(path)
    if start.get("format") != _FORMAT:
        raise MismatchError(
            f"{path}: must have the format {_FORMAT!r}, got {start.get('format')!r}: written by "
            "another version of diffsketch"
        )
    here = _versions()
    try:
        written = dict(start["versions"])
        _ = start["config"], start["command"]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error
    # What the numbers depend on: with another version the result might be another.
    for name in ("diffsketch", "torch", "numpy", "machine"):
        if written.get(name) != here[name]:
            raise MismatchError(
                f"{path}: the run was begun with {name} {written.get(name)} and can only be "
                f"continued with that, got {name} {here[name]}"
            )
    return start


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise DataError(f"{path}: damaged or not readable: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: damaged: it holds no JSON object")
    return found


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2, allow_nan=False).encode() + b"\n"

"""The directory of a run: what is in it, who may write to it, and what belongs together."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import math
import os
import shlex
from pathlib import Path
from types import TracebackType
from typing import Any

from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError
from diffsketch.files import prepare_output, replace_file, replace_files
from diffsketch.run.config import RunConfig
from diffsketch.run.config_files import read_settings, to_toml
from diffsketch.run.sealed import read_json, read_sealed, sealed
from diffsketch.run.versions import check_versions, versions

__all__ = ["RunBusy", "RunDirectory", "free_name", "locked"]

_FORMAT = "diffsketch run 1"
_CONFIG, _RUN, _METRICS, _COMMAND = "config.toml", "run.json", "metrics.jsonl", "command.txt"
_CHECKPOINT, _MODEL, _SUMMARY, _TIMES = (
    "checkpoint.safetensors",
    "model.safetensors",
    "summary.json",
    "times.json",
)
# In the order in which a run is removed: what says that there is one comes last.
_FILES = (_SUMMARY, _MODEL, _CHECKPOINT, _METRICS, _TIMES, _COMMAND, _CONFIG, _RUN)


class RunBusy(DiffSketchError):  # noqa: N818 - it says what happened
    """Another process is writing to the directory. Nothing was changed."""


class RunDirectory:
    """A run's directory, locked for this process until it is closed. Use `create` or `open`.

    Guarantees (`tests/run/test_directory.py`): nothing is removed that is not a run's and was not
    asked to be; two processes never write to one; settings that were changed since are noticed.

    Attributes:
        path: The directory.
        config: The settings of the run, all resolved.
        identity: A digest of the settings, by which a checkpoint is known.
        start: What `run.json` says: what the run was begun with.
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
            command: That began it, for the record: in a file of its own, since the same run may be
                begun by different commands.
            overwrite: Whether a run that is there may be removed; other files stay.

        Raises:
            ArgumentError: Something is there that may not be removed.
            RunBusy: Another process is writing to it.
            OSError: It cannot be made.
        """
        prepare_output(path)
        self = cls(path, locked(path))
        try:
            self._clear(overwrite=overwrite)
            content = to_toml(config).encode()
            self.config, self.identity = config, hashlib.sha256(content).hexdigest()
            self.start = {"format": _FORMAT, "config": self.identity, "versions": versions()}
            files = {
                path / _CONFIG: content,
                path / _COMMAND: shlex.join(command).encode(errors="replace") + b"\n",
                path / _RUN: _json(self.start),
            }
            replace_files(files)
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
        self = cls(path, locked(path))
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
        try:
            return read_sealed(self.path / _SUMMARY)
        except FileNotFoundError:
            return None

    @property
    def finished(self) -> bool:
        """Whether everything is there that a run leaves."""
        return (self.path / _SUMMARY).exists() and (self.path / _MODEL).exists()

    @property
    def begun(self) -> bool:
        """Whether a checkpoint was written, even if it is gone."""
        return self.checkpoint.exists() or (self.path / _TIMES).exists()

    def times(self) -> dict[str, float]:
        """Seconds that the run took, all its sessions together; empty before there are any.

        Also if the file is damaged: nothing but the time that is shown depends on it.
        """
        try:
            found = read_json(self.path / _TIMES)
        except (FileNotFoundError, DataError):
            return {}
        good = all(_is_time(found.get(name)) for name in ("training", "total"))
        return {name: found[name] for name in ("training", "total")} if good else {}

    def write_checkpoint(self, content: bytes, times: dict[str, float]) -> None:
        """Replace the checkpoint; on an error the old one stays."""
        replace_file(self.checkpoint, content)
        replace_file(self.path / _TIMES, _json(times))

    def write_results(self, *, model: bytes, summary: dict[str, Any]) -> None:
        """Write what a finished run leaves; the summary last, since it says that it is finished."""
        replace_files({self.path / _MODEL: model, self.path / _SUMMARY: sealed(summary)})

    def files(self) -> list[Path]:
        """What has been written, the most interesting first."""
        names = (_SUMMARY, _METRICS, _MODEL, _CONFIG, _COMMAND, _TIMES, _CHECKPOINT)
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


def locked(path: Path) -> int:
    """Lock a directory until the process ends or closes what comes back. No file is left behind.

    Raises:
        RunBusy: Another process has locked it.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        raise RunBusy(f"{path}: another process is writing to it") from None
    return lock


def _read_start(path: Path) -> dict[str, Any]:
    start = read_json(path)
    if start.get("format") != _FORMAT:
        raise MismatchError(
            f"{path}: must have the format {_FORMAT!r}, got {start.get('format')!r}: written by "
            "another version of diffsketch"
        )
    try:
        written = {str(name): str(value) for name, value in start["versions"].items()}
        _ = start["config"]
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error
    check_versions(written, path)
    return start


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value >= 0


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2, allow_nan=False).encode() + b"\n"

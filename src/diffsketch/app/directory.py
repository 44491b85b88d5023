"""The directory of a run that is begun or continued: who may write to it, and what."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsketch.errors import ArgumentError, DataError, DiffSketchError
from diffsketch.files import leftovers, prepare_output, replace_file, replace_files
from diffsketch.app.config import RunConfig
from diffsketch.app.config_files import to_toml
from diffsketch.app.run_files import (
    CHECKPOINT,
    COMMAND,
    CONFIG,
    FORMAT,
    METRICS,
    MODEL,
    START,
    SUMMARY,
    TIMES,
    RunFiles,
    has_run,
    read_config,
    read_start,
)
from diffsketch.app.sealed import read_sealed, sealed
from diffsketch.app.versions import check_versions, versions

__all__ = ["RunBusy", "RunDirectory", "free_name", "is_locked", "locked", "recovered"]

_RESULTS = (SUMMARY, MODEL, CHECKPOINT, METRICS, TIMES)
_BEGINNING = (CONFIG, COMMAND, START)  # as they take their places: the last says there is a run
_LOCKS = Path("/proc/locks")


class RunBusy(DiffSketchError):  # noqa: N818 - it says what happened
    """Another process is writing to the directory. Nothing was changed."""


class RunDirectory(RunFiles):
    """A run's directory, locked for this process until it is closed. Use `create` or `open`.

    Guarantees (`tests/app/test_directory.py`): nothing is removed that is not a run's and was not
    asked to be; two processes never write to one; settings that were changed since are noticed. A
    run that was killed while it began can be opened, or created again (`tests/app/test_resume.py`).

    Args:
        path: The directory.
        config: The settings of the run, all resolved.
        start: What `run.json` says: what the run was begun with.
        lock: Of `locked`.
    """

    def __init__(
        self, path: Path, config: RunConfig, *, start: Mapping[str, Any], lock: int
    ) -> None:
        super().__init__(path, config, start=start)
        self._lock = lock

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
        lock = locked(path)
        try:
            _clear(path, overwrite=overwrite)
            content = to_toml(config).encode()
            identity = hashlib.sha256(content).hexdigest()
            start = {"format": FORMAT, "config": identity, "versions": versions()}
            said = shlex.join(command).encode(errors="replace") + b"\n"
            contents = zip(_BEGINNING, (content, said, sealed(start)), strict=True)
            replace_files({path / name: content for name, content in contents})
        except BaseException:
            os.close(lock)
            raise
        return cls(path, config, start=start, lock=lock)

    @classmethod
    def open(cls, path: Path) -> RunDirectory:
        """The directory of a run that was begun.

        Raises:
            DataError: There is no run, or one of its files is damaged.
            MismatchError: It was begun by another version, or its settings were changed.
            RunBusy: Another process is writing to it.
        """
        if not (path / CONFIG).is_file() or not recovered(path):
            raise DataError(
                f"{path}: not the directory of a run: {CONFIG} or {START} is missing; a run that "
                "was interrupted before it was begun is begun again"
            )
        lock = locked(path)
        try:
            start = read_start(path)
            check_versions(start["versions"], path / START)
            config = read_config(path, start)
            for half in leftovers(path, (*_RESULTS, *_BEGINNING)):
                half.unlink(missing_ok=True)
        except BaseException:
            os.close(lock)
            raise
        return cls(path, config, start=start, lock=lock)

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let others write to it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def write_checkpoint(self, content: bytes, times: dict[str, float]) -> None:
        """Replace the checkpoint; on an error the old one stays."""
        replace_file(self.checkpoint, content)
        replace_file(self.path / TIMES, _json(times))

    def write_results(self, *, model: bytes, summary: dict[str, Any]) -> None:
        """Write what a finished run leaves; the summary last, since it says that it is finished."""
        replace_files({self.path / MODEL: model, self.path / SUMMARY: sealed(summary)})


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


def is_locked(path: Path) -> bool:
    """Whether a process of this machine has locked a directory, as the kernel tells without a lock.

    Trying to lock it would for a moment keep away whoever wants to continue the run. False where
    the kernel does not tell.
    """
    place = path.stat()
    wanted = f"{os.major(place.st_dev):02x}:{os.minor(place.st_dev):02x}:{place.st_ino}"
    try:
        return any(wanted in line.split() for line in _LOCKS.read_text().splitlines())
    except OSError:
        return False


def recovered(path: Path) -> bool:
    """Whether a run was begun in a directory; it is completed if a kill left it half begun.

    Raises:
        RunBusy: Another process is writing to it.
    """
    if path.is_dir():
        lock = locked(path)
        try:
            _complete(path)
        finally:
            os.close(lock)
    return has_run(path)


def _complete(path: Path) -> None:
    """Put the file in place that says that there is a run, if it is whole and all else is there.

    All files of a beginning are written before the first of them takes its place. Settings that
    this one knows the digest of are its own, and nobody else's.
    """
    if not (path / CONFIG).is_file():
        return
    digest = hashlib.sha256((path / CONFIG).read_bytes()).hexdigest()
    for leftover in leftovers(path, [START]):
        try:
            whole = read_sealed(leftover).get("config") == digest
        except DataError:
            continue
        if whole:
            leftover.replace(path / START)
            return


def _clear(path: Path, *, overwrite: bool) -> None:
    _complete(path)
    halves = leftovers(path, (*_RESULTS, *_BEGINNING))
    others = set(path.iterdir()) - set(halves)
    shown = str(path)
    if others and not has_run(path):
        raise ArgumentError(
            f"output must be a new or empty directory, got output={shown!r}, which has files "
            "that are not those of a run"
        )
    if others and not overwrite:
        raise ArgumentError(
            f"output must be a new or empty directory, got output={shown!r}, which holds a "
            f"run: continue it with --resume {shown}, or replace it with --overwrite"
        )
    # Those of a beginning are replaced: until then, it is said that there is a run.
    for old in (*(path / name for name in _RESULTS), *halves):
        old.unlink(missing_ok=True)


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, indent=2, allow_nan=False).encode() + b"\n"

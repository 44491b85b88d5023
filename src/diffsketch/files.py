"""Files written atomically, locks, and a private folder of the user."""

from __future__ import annotations

import errno
import math
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from diffsketch.errors import DataError

try:
    import fcntl
except ModuleNotFoundError:  # on Windows
    import msvcrt

_PAUSE = 0.01  # seconds between looks at a lock


class LockBusy(OSError):  # noqa: N818 - it says what happened
    """Another process holds the lock. Nothing was done under the lock."""


class LockLost(OSError):  # noqa: N818
    """The lock's file was removed while it was held, so another process may have held it too."""


def try_lock(handle: int) -> None:
    """Lock an open file for this process, or raise an `OSError` if another one has."""
    if os.name == "nt":
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
    else:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def locked_beside(path: Path, *, wait: float) -> Iterator[None]:
    """Hold a lock for a file among processes: `.NAME.lock` in its folder, which is left, empty.

    Args:
        path: The file, whether or not it exists.
        wait: Seconds to wait for other processes.

    Raises:
        DataError: The lock cannot be opened. Nothing was done under it.
        LockBusy: Others hold it for longer, or replaced it meanwhile.
        LockLost: It was removed while the block ran; raised at its end.
    """

    def is_ours() -> bool:
        """Whether the open file still has its name."""
        try:
            return os.path.samestat(os.fstat(handle), lock.stat())
        except OSError:
            return False

    lock = path.with_name(f".{path.name}.lock")
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)  # never inherited (PEP 446)
    except OSError as error:
        raise DataError(f"{lock} cannot be opened ({error})") from error
    # Polled, since a blocking lock could not be given up after a while.
    deadline = time.monotonic() + wait
    try:
        while True:
            try:
                try_lock(handle)
                break
            except (BlockingIOError, PermissionError):  # the second on Windows
                if time.monotonic() >= deadline:
                    raise LockBusy(
                        f"another process holds the lock of {path}, for more than {wait:g} s"
                    ) from None
                time.sleep(_PAUSE)
        # A lock on a file that somebody removed locks nobody else out.
        if not is_ours():
            raise LockBusy(f"{lock} was removed or replaced meanwhile")
        yield
        if not is_ours():
            raise LockLost(f"{lock} was removed meanwhile")
    finally:
        os.close(handle)  # and with it the lock


def private_folder() -> Path | None:
    """Make a folder below the temporary one that only this user can write; None if impossible.

    For caches of users whose home cannot be written. Code is read from it and run, so nobody else
    may write there, or put another folder in its place.
    """
    if os.name == "nt":  # where the temporary folder is the user's own
        return Path(tempfile.gettempdir())
    try:
        folder = Path(tempfile.gettempdir()) / f"diffsketch-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        status, above = folder.lstat(), folder.parent.stat()
    except OSError:
        return None
    mode = status.st_mode
    ours = stat.S_ISDIR(mode) and status.st_uid == os.getuid() and not mode & 0o077
    # In a folder that others may write, only the sticky bit keeps them from replacing ours.
    stays = above.st_mode & stat.S_ISVTX or not above.st_mode & 0o022
    return folder if ours and stays else None


def synchronise(folder: Path) -> None:
    """Write new names in a folder to the disk."""
    if os.name == "nt":  # Windows cannot open folders, and writes names at once
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def prepare_output(directory: Path) -> None:
    """Make the output directory before time is spent on results that could not be written."""
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "must be a directory", str(directory))
    directory.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file completely or not at all, replacing the old one.

    The content goes to a temporary name in the same directory, which then takes the file's place
    in one step. On an error the temporary file is removed and the old file is as it was.
    """
    replace_files({path: content})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files, all or none, as `replace_file` writes one.

    No file is replaced before all are written and all places are checked. If a replacement then
    fails, new files are removed again; some old ones may have been replaced.
    """
    # `leftovers` knows these names. With the process's number, two writers do not share a file.
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
    # New ones, which an error removes again.
    placed: list[Path] = []
    try:
        for path, content in contents.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            _write(temporary[path], content)
        for path in contents:
            fresh = not path.exists()
            temporary[path].replace(path)
            if fresh:
                placed.append(path)
    except BaseException:
        for path in (*temporary.values(), *placed):
            # Best effort: a power cut leaves temporary files, which are removed later.
            path.unlink(missing_ok=True)
        raise


def finite(value: float | None) -> float | None:
    """Return the value, or None for a number that JSON cannot hold."""
    return value if value is not None and math.isfinite(value) else None


def csv_cell(value: object) -> object:
    """Make a value safe for a CSV file: text that looks like a formula gets a leading `'`.

    >>> csv_cell("=1+1"), csv_cell(-1), csv_cell("-1"), csv_cell("a=b")
    ("'=1+1", -1, '-1', 'a=b')
    """
    if not isinstance(value, str) or not value.startswith(("=", "+", "-", "@", "\t", "\r")):
        return value
    number = value.lstrip("+-").replace(".", "", 1).replace("e-", "", 1).isdecimal()
    return value if number else f"'{value}"


def leftovers(directory: Path, names: Iterable[str]) -> list[Path]:
    """List temporary files of a process that was killed while it wrote files of these names."""
    paths = (path for name in names for path in directory.glob(f".{name}.*.tmp"))
    return [path for path in paths if path.suffixes[-2][1:].isdecimal()]  # the process's number


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        # Otherwise a crash of the machine could keep the new name but lose the content.
        os.fsync(stream.fileno())

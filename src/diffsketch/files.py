"""Writing files so that a reader never sees half of one. Imports nothing of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

__all__ = ["prepare_output", "replace_file", "replace_files"]


def prepare_output(directory: Path) -> None:
    """Make the output directory, before any time is spent on results that could not be kept.

    Raises:
        OSError: It cannot be made, or is something else.
    """
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "must be a directory", str(directory))
    directory.mkdir(parents=True, exist_ok=True)


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, replacing what is there.

    The content goes to a temporary name in the same directory, which then takes the file's place
    in one step. On an error the temporary file is removed and the old file is as it was.

    Raises:
        OSError: The file cannot be written.
    """
    replace_files({path: content})


def replace_files(contents: Mapping[Path, bytes]) -> None:
    """Write several files, all or none, as `replace_file` writes one.

    Nothing takes its place before everything is written and every place has been looked at. If
    one of the steps fails that then put them in place, new files are removed again; of old ones
    the first may have been replaced.

    Raises:
        OSError: A file cannot be written.
    """
    temporary = {path: path.with_name(f".{path.name}.{os.getpid()}.tmp") for path in contents}
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
            path.unlink(missing_ok=True)
        raise


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as stream:
        stream.write(content)
        stream.flush()
        # Otherwise a crash of the machine could keep the new name but lose the content.
        os.fsync(stream.fileno())

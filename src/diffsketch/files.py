"""Writing files so that a reader never sees half of one. Imports nothing of ours."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["replace_file"]


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, replacing what is there.

    The content goes to a temporary name in the same directory, which then takes the file's place
    in one step. On an error the temporary file is removed and the old file is as it was.

    Raises:
        OSError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as stream:
            stream.write(content)
            stream.flush()
            # Otherwise a crash of the machine could keep the new name but lose the content.
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise

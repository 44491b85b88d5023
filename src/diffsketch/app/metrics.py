"""Measurements of a run: one JSON object a line, appended, and cut back to a checkpoint's length.

No times of the clock are among them, so that the same run gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsketch.errors import DataError
from diffsketch.privacy.claim import Epsilon

__all__ = ["Metrics", "epsilon_data", "finite", "read_metrics"]


class Metrics:
    """The file of measurements of a run that is under way.

    Guarantees (`tests/app/test_metrics.py`): after `restore`, the file is what it was when `state`
    was called, whatever was written since; if it cannot be, that is an error.

    Args:
        path: The file; what it holds is kept until `restore` says otherwise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._new = not path.exists()
        # Appending: two programs could never write over each other's lines.
        self._stream = path.open("ab", buffering=0)
        self._digest = hashlib.sha256()
        self._length = 0

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a line.

        Raises:
            OSError: It cannot be written; half of it may be, which `restore` removes.
        """
        line = json.dumps(dict(record), allow_nan=False).encode() + b"\n"
        written = self._stream.write(line)
        if written != len(line):
            self._stream.write(line[written:])  # a full disk says so the second time
        self._digest.update(line)
        self._length += len(line)

    def state(self) -> dict[str, Any]:
        """How much there is, after it is safely on the disk."""
        os.fsync(self._stream.fileno())
        return {"bytes": self._length, "sha256": self._digest.hexdigest()}

    def restore(self, state: Mapping[str, Any] | None) -> None:
        """Cut the file back to what it was, or to nothing.

        Raises:
            DataError: It does not hold what it held.
        """
        length = 0 if state is None else int(state["bytes"])
        content = self._path.read_bytes()[:length]
        digest = hashlib.sha256(content)
        if state is not None and (len(content), digest.hexdigest()) != (length, state["sha256"]):
            if self._new:
                self._path.unlink()
                raise DataError(f"{self._path}: missing: the checkpoint was made with it")
            raise DataError(
                f"{self._path}: damaged: its first {length:,} bytes are not those that the "
                "checkpoint was made with; it was not changed"
            )
        self._stream.truncate(length)
        self._digest, self._length = digest, length


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The measurements in a file that may be growing: without a line that is not whole yet.

    Raises:
        DataError: A line is none that `Metrics` writes.
    """
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    found = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            _ = int(record["round"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise DataError(f"{path}: damaged: line {number} is no measurement") from error
        found.append(record)
    return found


def epsilon_data(epsilon: Epsilon) -> dict[str, Any]:
    """An epsilon for JSON, with everything that it means; an infinite value is null."""
    return {
        "value": finite(float(epsilon)),
        "delta": epsilon.delta,
        "basis": str(epsilon.basis),
        "unit": str(epsilon.scope.unit),
        "relation": str(epsilon.scope.relation),
        "trust": str(epsilon.scope.trust),
        "rounds": epsilon.rounds,
        "simulated": epsilon.simulated,
    }


def finite(value: float | None) -> float | None:
    """The value, or None for what JSON has no word for."""
    return value if value is not None and math.isfinite(value) else None

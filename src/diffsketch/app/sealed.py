"""JSON files that tell whether they are as they were written: a digest of the rest is in them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsketch.errors import DataError

__all__ = ["read_json", "read_sealed", "sealed"]

_SEAL = "sha256"


def sealed(data: Mapping[str, Any]) -> bytes:
    """The content of a file.

    Guarantees (`tests/app/test_sealed.py`): `read_sealed` gives the same back, and refuses a file
    with anything changed or missing.
    """
    content = {**data, _SEAL: _digest(data)}
    return json.dumps(content, indent=2, allow_nan=False).encode() + b"\n"


def read_sealed(path: Path) -> dict[str, Any]:
    """What `sealed` was given.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: It is damaged, or was changed.
    """
    found = read_json(path)
    seal = found.pop(_SEAL, None)
    if seal != _digest(found):
        raise DataError(f"{path}: damaged, or changed since it was written: its checksum differs")
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        FileNotFoundError: There is no such file.
        DataError: It is not readable, or holds something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (ValueError, OSError, RecursionError) as error:
        raise DataError(f"{path}: damaged or not readable: {error}") from error
    if not isinstance(found, dict):
        raise DataError(f"{path}: damaged: it holds no JSON object")
    return found


def _digest(data: Mapping[str, Any]) -> str:
    # As it will be read: keys are texts then, and tuples are lists.
    text = json.dumps(json.loads(json.dumps(data)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()

"""Embedded files and their checksums, and the words for what is wrong with a file."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from diffsketch.errors import DataError


def embedded_file(name: str) -> Traversable:
    """Return the embedded file called `name`; one that does not exist fails when it is opened."""
    return files("diffsketch.training.data") / "files" / name


def require(condition: bool, origin: object, problem: str) -> None:
    """Raise a `DataError` that names the file and the problem unless the condition holds."""
    if not condition:
        raise DataError(f"{origin}: {problem}")


def verify_sha256(content: bytes | bytearray, expected: str, *, origin: object) -> None:
    """Raise a `DataError` unless `content` has the SHA-256 `expected`."""
    digest = hashlib.sha256(content).hexdigest()
    problem = f"checksum failure: expected SHA-256 {expected}, found {digest}"
    require(digest == expected, origin, problem)

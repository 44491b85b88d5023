"""The files that ship inside the package, and the check that they are what they claim to be.

Imports nothing of ours but `errors`; only the loaders of this folder import it.
"""

from __future__ import annotations

import hashlib
from importlib.resources import files
from importlib.resources.abc import Traversable

from diffsketch.errors import DataError

__all__ = ["embedded_file", "verify_sha256"]


def embedded_file(name: str) -> Traversable:
    """The embedded file called `name`; reading one that does not exist fails on opening it."""
    return files("diffsketch.training.data") / "files" / name


def verify_sha256(content: bytes | bytearray, expected: str, *, origin: object) -> None:
    """Raise unless `content` has the SHA-256 `expected`.

    Guarantees: one flipped bit is found (`test_flipped_bit_in_embedded_images_is_found`).

    Args:
        content: The unpacked bytes of a file.
        expected: The SHA-256 as 64 hexadecimal digits.
        origin: Where the bytes came from, for the message.

    Raises:
        DataError: The checksum is another one.

    >>> verify_sha256(b"", "00", origin="nothing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    diffsketch.errors.DataError: nothing: checksum failure: expected SHA-256 00, found e3b0c4...
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{origin}: checksum failure: expected SHA-256 {expected}, found {found}")

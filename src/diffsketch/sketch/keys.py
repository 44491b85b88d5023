"""Keys of items that are not numbers: strings and bytes, hashed to 64 bits."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import SketchKey
from diffsketch.sketch.kernels.cpu_siphash import siphash


def hash_keys(values: Iterable[str | bytes], key: SketchKey) -> npt.NDArray[np.uint64]:
    """Hash strings (as UTF-8) or bytes to 64-bit keys, by SipHash-2-4 under a secret of `key`.

    All rounds of a key have the same hashes, so keys can be looked up in any table. Without the
    key nobody can find strings that share a hash on purpose; among `n` strings, two share one by
    chance with probability below `n**2 / 2**65`: 3% among 10^9.

    Args:
        values: Such as a list, an array of strings or objects, or a column of a data frame.
        key: The secret that all parties share.

    Raises:
        ArgumentError: A value is neither; it is named by its place.

    >>> hash_keys(["Rome", b"Rome", "Oslo"], SketchKey.from_integer(7)).tolist()
    [1265965635480588890, 1265965635480588890, 18244657654185091528]
    """
    texts: list[Any] = list(values)
    kinds = set(map(type, texts))
    if not all(issubclass(kind, str | bytes) for kind in kinds):
        at = next(i for i, text in enumerate(texts) if not isinstance(text, str | bytes))
        kind = type(texts[at]).__name__
        raise ArgumentError(f"values must be str or bytes, got a {kind} as values[{at}]")
    if kinds == {str} and (joined := "".join(texts)).isascii():  # the usual case, twice as fast
        parts, data = texts, joined.encode()
    else:
        parts = [
            text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
            for text in texts
        ]
        data = b"".join(parts)
    # Ends of all texts in one array of bytes: the compiled loop needs no Python objects.
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    # A secret of its own: whoever learns hashed keys learns nothing about the hashes of rounds.
    secret = hashlib.blake2b(key=key.secret, digest_size=16, person=b"ds-item-keys").digest()
    out = np.empty(len(parts), np.uint64)
    siphash(
        np.frombuffer(data, np.uint8), offsets, *np.frombuffer(secret, "<u8").astype(np.uint64), out
    )
    return out

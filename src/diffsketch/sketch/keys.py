"""Keys of items that are not numbers: strings and bytes, hashed to 64 bits by Numba."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from diffsketch.compiled import compiled
from diffsketch.errors import ArgumentError
from diffsketch.sketch.hashing import SketchKey


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


@njit(inline="always")
def _turn(value, bits):
    return (value << uint64(bits)) | (value >> uint64(64 - bits))


@njit(inline="always")
def _rounds(count, a, b, c, d):
    for _ in range(count):
        a, c = a + b, c + d
        b, d = _turn(b, 13) ^ a, _turn(d, 16) ^ c
        a, c = _turn(a, 32) + d, c + b
        b, d = _turn(b, 17) ^ c, _turn(d, 21) ^ a
        c = _turn(c, 32)
    return a, b, c, d


@compiled
def siphash(data, offsets, first_key, second_key, out):
    """SipHash-2-4 of the bytes from `offsets[i]` to the next one, for each number `i` of `out`."""
    for i in range(out.size):
        # The authors' initial state, "somepseudorandomlygeneratedbytes" in four words.
        a, b = first_key ^ uint64(0x736F6D6570736575), second_key ^ uint64(0x646F72616E646F6D)
        c, d = first_key ^ uint64(0x6C7967656E657261), second_key ^ uint64(0x7465646279746573)
        size = offsets[i + 1] - offsets[i]
        for start in range(0, size + 1, 8):  # the last word, of what is left, ends with the size
            word = uint64(0)
            left = min(8, size - start)
            for k in range(left):
                word |= uint64(data[offsets[i] + start + k]) << uint64(8 * k)
            if left < 8:
                word |= uint64(size & 255) << uint64(56)
            a, b, c, d = _rounds(2, a, b, c, d ^ word)
            a ^= word
        # SipHash-2-4: two rounds for each word of input, four at the end.
        a, b, c, d = _rounds(4, a, b, c ^ uint64(255), d)
        out[i] = a ^ b ^ c ^ d

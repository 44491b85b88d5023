"""Cells to bytes and back: float32 as it is, whole numbers in as many bits as they need.

Bit `k` of cell `i` is bit `i * bits + k` of the payload, where bit `n` is the `n mod 8`-th lowest
bit of byte `n div 8`. The last byte is filled up with zeros.

Computed in 64-bit words. Neighbours are joined in pairs, and pairs in fours, while they fit in a
word. Of cells that wide, with `g` the greatest common divisor of 64 and their bits, a group of
`64 / g` fills exactly `bits / g` words, and a cell's place in its group says which words it is in
and how far it is shifted. So one NumPy call moves the cells of all groups that have this place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.wire.errors import WireError
from diffsketch.wire.formats import HEADER_BYTES, MessageFormat

__all__ = ["pack", "unpack"]

Words: TypeAlias = npt.NDArray[np.uint64]

_CHUNK = 1 << 17
"""Cells at a time: a megabyte, which stays in a cache and bounds what is held beside the result."""

_WORD_BITS = 64


def pack(cells: Tensor, layout: MessageFormat) -> bytes:
    """The payload of a message.

    Args:
        cells: Of the format's shape: float32, or int64 for whole numbers.
        layout: The message's format.

    Raises:
        ArgumentError: A cell is not finite, beyond the format's `limits`, or of another type.
        MismatchError: The shape is another.

    >>> layout = MessageFormat("cpsgd", dim=3, shape=(3,), cells="unsigned", bits=5)
    >>> pack(torch.tensor([1, 2, 31]), layout).hex()
    '417c'
    """
    check_cells(cells, layout)
    values = cells.detach().cpu().contiguous().numpy().reshape(-1)
    if layout.cells == "float32":
        if not np.isfinite(values).all():
            raise ArgumentError("cells must be finite, got NaN or infinity among them")
        return values.astype("<f4", copy=False).tobytes()
    least, most, (low, end) = int(values.min()), int(values.max()), layout.limits
    if least < low or most >= end:
        wrong = least if least < low else most
        raise ArgumentError(f"cells must be in [{low}, {end}), got {wrong} among them")
    words = values.view(np.uint64)
    if layout.cells == "signed":
        words = words & np.uint64((1 << layout.bits) - 1)
    return _to_words(words, layout.bits).tobytes()[: layout.payload_bytes]


def unpack(data: bytes | bytearray, layout: MessageFormat) -> Tensor:
    """The cells behind the header of a message that has the right length; in memory of their own.

    Whole numbers are within their `limits`, because that is how many bits are read; signed ones
    are in two's complement.

    Raises:
        WireError: A cell is not finite, or the last byte is not filled up with zeros.
    """
    if layout.cells == "float32":
        floats = np.frombuffer(data, "<f4", offset=HEADER_BYTES).astype(np.float32)
        if not np.isfinite(floats).all():
            raise WireError("message has cells that are not finite")
        return torch.from_numpy(floats).reshape(layout.shape)
    used = layout.cell_count * layout.bits % 8
    if used and data[-1] >> used:
        raise WireError("message has other bits than zeros after its last cell")
    payload = np.frombuffer(data, np.uint8, offset=HEADER_BYTES)
    cells = _from_words(payload, layout.bits, layout.cell_count).view(np.int64)
    if layout.cells == "signed":
        half = layout.limits[1]
        cells = (cells ^ half) - half
    return torch.from_numpy(cells).reshape(layout.shape)


def check_cells(cells: Tensor, layout: MessageFormat) -> None:
    """Refuse another type or shape than the format's."""
    dtype = torch.float32 if layout.cells == "float32" else torch.int64
    if not isinstance(cells, Tensor) or cells.dtype != dtype:
        kind = cells.dtype if isinstance(cells, Tensor) else type(cells).__name__
        raise ArgumentError(f"cells must be a tensor of {dtype} in this format, got {kind}")
    if tuple(cells.shape) != layout.shape:
        raise MismatchError(f"cells must have the shape {layout.shape}, got {tuple(cells.shape)}")


def _to_words(cells: Words, bits: int) -> Words:
    """The packed words, as little-endian numbers; those of the last group may end in zeros."""
    size, width = _group(bits)
    packed = np.empty((-(-cells.size // size), width), "<u8")
    for part in _parts(packed.shape[0], size):
        chunk = cells[part.start * size : part.stop * size]
        if missing := -chunk.size % size:
            chunk = np.concatenate((chunk, np.zeros(missing, np.uint64)))
        wide = bits
        while 2 * wide <= _WORD_BITS:
            chunk = chunk[0::2] | chunk[1::2] << np.uint64(wide)
            wide *= 2
        block = np.ascontiguousarray(chunk.reshape(part.stop - part.start, -1).T)
        words = np.zeros((width, block.shape[1]), np.uint64)
        for row, word, shift in _places(wide):
            words[word] |= block[row] << np.uint64(shift)
            if shift + wide > _WORD_BITS:
                words[word + 1] = block[row] >> np.uint64(_WORD_BITS - shift)
        packed[part] = words.T
    return packed.reshape(-1)


def _from_words(payload: npt.NDArray[np.uint8], bits: int, count: int) -> Words:
    """The first `count` cells of a payload: the way back."""
    size, width = _group(bits)
    packed = np.zeros((-(-count // size), width), "<u8")
    packed.reshape(-1).view(np.uint8)[: payload.size] = payload
    cells = np.empty(packed.shape[0] * size, np.uint64)
    doublings = (_WORD_BITS // bits).bit_length() - 1
    for part in _parts(packed.shape[0], size):
        wide = bits << doublings
        words = np.ascontiguousarray(packed[part].T, np.uint64)
        block = np.empty((_group(wide)[0], words.shape[1]), np.uint64)
        for row, word, shift in _places(wide):
            np.right_shift(words[word], np.uint64(shift), out=block[row])
            if shift + wide > _WORD_BITS:
                block[row] |= words[word + 1] << np.uint64(_WORD_BITS - shift)
        chunk = block.T.reshape(-1)
        while True:
            chunk &= np.uint64((1 << wide) - 1)
            if wide == bits:
                break
            wide //= 2
            chunk = np.stack((chunk, chunk >> np.uint64(wide)), axis=1).reshape(-1)
        cells[part.start * size : part.stop * size] = chunk
    return cells[:count]


def _group(bits: int) -> tuple[int, int]:
    """The fewest cells that fill whole words, and those words."""
    common = math.gcd(_WORD_BITS, bits)
    return _WORD_BITS // common, bits // common


def _places(bits: int) -> Iterator[tuple[int, int, int]]:
    """Of each cell of a group: itself, its first word, and its shift there."""
    for cell in range(_group(bits)[0]):
        word, shift = divmod(cell * bits, _WORD_BITS)
        yield cell, word, shift


def _parts(groups: int, size: int) -> Iterator[slice]:
    step = max(1, _CHUNK // size)
    for start in range(0, groups, step):
        yield slice(start, min(groups, start + step))

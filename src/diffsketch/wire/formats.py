"""Message formats: the kind, number and width of the cells, and how cells become bytes.

float32 cells are written as they are, whole numbers in as many bits as they need: bit `k` of cell
`i` is bit `i * bits + k` of the payload, where bit `n` is the `n mod 8`-th lowest bit of byte
`n div 8`. The last byte is filled up with zeros.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.wire.kernels import pack_words, unpack_words

HEADER_BYTES = 48
"""Size of the full header of a message; `diffsketch.wire.message` lays it out."""

COUNT_BYTES = 4
"""Size of the number of messages in a sum, in an agreed round."""

CHECKSUM_BYTES = 4
"""Size of the header of a worker's message in an agreed round, except for short messages."""

_SHORT = 64  # bytes of cells up to which that checksum has two bytes

Cells: TypeAlias = Literal["float32", "unsigned", "signed"]

WHOLE_TYPES = (torch.int8, torch.int16, torch.int32, torch.int64)
"""Types of tensors of whole numbers. Sums are int64."""

_OWN_CODES = 128  # codes from here on are hashes of the names of users' own methods


class WireError(DiffSketchError, ValueError):
    """A message that arrived is refused. Its one line says why; nothing was changed."""


class DuplicateError(WireError):
    """The sender's message is already there: a repeated delivery, which may be ignored."""


@dataclass(frozen=True)
class MessageFormat:
    """The messages of one method: all of the same shape and kind of cells.

    Args:
        method: The method's name.
        dim: Length of the vectors that are encoded.
        shape: Of a message: `(rows, cols)` for a table, `(length,)` for a vector.
        cells: `float32`; `unsigned` whole numbers in `[0, 2**bits)`, which a secure sum takes
            modulo `2**bits`; or `signed` ones in `[-2**(bits - 1), 2**(bits - 1))`.
        bits: That a cell takes on the wire: 32 for `float32`, 1 to 62 for whole numbers.
        code: The method's code in the header, 0 to 127, which registered methods have. None for
            a hash of the name, 128 to 255: both sides of a wire agree on it without a registry,
            and two methods that are mistaken for each other are told apart, unless they are among
            the one in 128 pairs that share a code.

    >>> MessageFormat("sketch", dim=7850, shape=(7, 22), cells="float32", bits=32).wire_bytes
    620
    >>> MessageFormat("cpsgd", dim=7850, shape=(7850,), cells="unsigned", bits=4).wire_bytes
    3929
    """

    method: str
    dim: int
    shape: tuple[int, ...]
    cells: Cells
    bits: int
    code: int | None = None

    def __post_init__(self) -> None:
        check(self.dim >= 1, "dim", "be >= 1", self.dim)
        sizes = 1 <= len(self.shape) <= 2 and all(size >= 1 for size in self.shape)
        check(sizes, "shape", "be (length,) or (rows, cols)", self.shape)
        kinds = get_args(Cells)
        check(self.cells in kinds, "cells", f"be one of {', '.join(kinds)}", self.cells)
        if self.cells == "float32":
            check(self.bits == 32, "bits", "be 32 for float32 cells", self.bits)
        check(1 <= self.bits <= 62, "bits", "be in 1..62", self.bits)
        if self.code is not None:
            check(0 <= self.code < _OWN_CODES, "code", "be in 0..127", self.code)

    @cached_property
    def method_code(self) -> int:
        """The method's code in the header.

        >>> MessageFormat("my-method", 9, (9,), "float32", 32).method_code
        130
        """
        if self.code is not None:
            return self.code
        digest = hashlib.blake2b(self.method.encode(), digest_size=1, person=b"ds-method").digest()
        return _OWN_CODES + digest[0] % _OWN_CODES

    @cached_property
    def limits(self) -> tuple[int, int]:
        """Smallest whole number of a cell, and the first one beyond the largest."""
        low = -(1 << (self.bits - 1)) if self.cells == "signed" else 0
        return low, low + (1 << self.bits)

    @cached_property
    def cell_count(self) -> int:
        """Cells of a message."""
        return math.prod(self.shape)

    @cached_property
    def payload_bytes(self) -> int:
        """Bytes of the packed cells."""
        return -(-self.cell_count * self.bits // 8)

    @cached_property
    def full_bytes(self) -> int:
        """Bytes of a message with a full header."""
        return HEADER_BYTES + self.payload_bytes

    @property
    def checksum_bytes(self) -> int:
        """Bytes of the header of a worker's message in an agreed round: its checksum."""
        return 2 if self.payload_bytes <= _SHORT else CHECKSUM_BYTES

    @property
    def wire_bytes(self) -> int:
        """Bytes of a worker's message in an agreed round, header included."""
        return self.checksum_bytes + self.payload_bytes

    @property
    def sum_bytes(self) -> int:
        """Bytes of a sum in an agreed round: that of a message, and how many are in it."""
        return COUNT_BYTES + self.wire_bytes


def payload_within(message_bytes: int) -> int:
    """Bytes of cells that a message of `message_bytes` has room for, in an agreed round.

    >>> payload_within(8), payload_within(66), payload_within(67), payload_within(1000)
    (6, 64, 64, 996)
    """
    return max(min(message_bytes - 2, _SHORT), message_bytes - CHECKSUM_BYTES)


def check_cells(cells: Tensor, layout: MessageFormat) -> None:
    """Raise unless the cells have the format's type and shape."""
    kinds = (torch.float32,) if layout.cells == "float32" else WHOLE_TYPES
    if not isinstance(cells, Tensor) or cells.dtype not in kinds:
        kind = cells.dtype if isinstance(cells, Tensor) else type(cells).__name__
        raise ArgumentError(f"cells must be a tensor of {kinds[-1]} in this format, got {kind}")
    if tuple(cells.shape) != layout.shape:
        raise MismatchError(f"cells must have the shape {layout.shape}, got {tuple(cells.shape)}")


def pack(cells: Tensor, layout: MessageFormat) -> bytes:
    """Pack cells into the payload of a message, if they are finite and within the limits.

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
    # In whole words; the bytes after the last cell are cut off below.
    words = np.empty(-(-layout.payload_bytes // 8), np.uint64)
    pack_words(values.astype(np.int64, copy=False), layout.bits, words)
    return words.astype("<u8", copy=False).tobytes()[: layout.payload_bytes]


def unpack(data: bytes | bytearray, layout: MessageFormat) -> Tensor:
    """Unpack the cells at the end of a message of the right length, into memory of their own.

    Whole numbers are within their `limits`, because that is how many bits are read; signed ones
    are in two's complement. A `WireError` if a cell is not finite, or the last byte is not filled
    up with zeros.
    """
    if layout.cells == "float32":
        start = len(data) - layout.payload_bytes
        floats = np.frombuffer(data, "<f4", offset=start).astype(np.float32)
        if not np.isfinite(floats).all():
            raise WireError("message has cells that are not finite")
        return torch.from_numpy(floats).reshape(layout.shape)
    # Else two different byte strings would stand for one message.
    used = layout.cell_count * layout.bits % 8
    if used and data[-1] >> used:
        raise WireError("message has other bits than zeros after its last cell")
    words = np.zeros(-(-layout.payload_bytes // 8), "<u8")
    payload = np.frombuffer(data, np.uint8, -1, len(data) - layout.payload_bytes)
    words.view(np.uint8)[: layout.payload_bytes] = payload
    cells = np.empty(layout.cell_count, np.int64)
    unpack_words(words.astype(np.uint64, copy=False), layout.bits, cells)
    if layout.cells == "signed":
        # Two's complement of `bits` bits, extended to 64.
        half = layout.limits[1]
        cells = (cells ^ half) - half
    return torch.from_numpy(cells).reshape(layout.shape)

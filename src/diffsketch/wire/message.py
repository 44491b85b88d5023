"""A message as a value, as bytes, and back: a header of 48, 4 or 2 bytes, and the packed cells.

All numbers of the header are unsigned and little-endian; there are no optional parts.

    offset  bytes  what
         0      2  magic: d5 4b
         2      1  version of this layout: 1
         3      1  method: its code
         4      4  checksum: the BLAKE2b of four bytes of all others of the message
         8      6  dim: of the vectors that were encoded, 1 to 2**40
        14      2  rows of a table; 0 for a vector
        16      6  cols of a table, or the length of a vector, 1 to 2**40
        22      1  cells: 0 for float32, 1 for unsigned whole numbers, 2 for signed ones
        23      1  bits of a cell: 32 for float32, 1 to 62
        24      4  round
        28      4  count: messages that are summed in this one; 1 for a worker's own
        32      8  sender: its number; the server's is 2**64 - 1
        40      8  key: fingerprint of the round's hashes

The checksum finds accidents (all but one in 2**32). It is no signature: whoever alters a message on
purpose computes it again.

Within an agreed round, where both sides know all of the header but the checksum, a worker's message
is the checksum and the cells. It is the checksum of the full message, so that whatever differs is
found: the method, a size, the round, the key, the sender. Short messages, up to 64 bytes of cells,
have its first two bytes only (all but one accident in 2**16 is found). A sum is preceded by its
count, 4 bytes.

float32 cells are written as they are, whole numbers in as many bits as they need: bit `k` of cell
`i` is bit `i * bits + k` of the payload, where bit `n` is the `n mod 8`-th lowest bit of byte
`n div 8`. The last byte is filled up with zeros.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.compiled import compiled
from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check, check_whole

VERSION = 1
"""Version of the layout. A message of any other version is refused."""

SERVER = 2**64 - 1
"""The sender's number in what a server sends: the total of a round."""

MAX_COUNT = 2**32 - 1

HEADER_BYTES = 48
"""Size of the full header of a message."""

COUNT_BYTES = 4
"""Size of the number of messages in a sum, in an agreed round."""

CHECKSUM_BYTES = 4
"""Size of the header of a worker's message in an agreed round, except for short messages."""

CHECKSUM = slice(4, 8)
"""Place of the checksum in a full header."""

Cells: TypeAlias = Literal["float32", "unsigned", "signed"]

_MAX_SIZE = 2**40
_MAGIC = b"\xd5K"  # no text begins like this
_STRUCT = struct.Struct("<2sBB4s6sH6sBBIIQ8s")
_CELL_CODES = {"float32": 0, "unsigned": 1, "signed": 2}
_SHORT = 64  # bytes of cells up to which the checksum of an agreed round has two bytes
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

    @property
    def header_shape(self) -> tuple[int, int]:
        """Rows and columns as the header has them: 0 rows for a vector."""
        return (0, *self.shape)[-2], self.shape[-1]

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


@dataclass(frozen=True)
class Header:
    """The numbers of the 48 bytes, as in the table above. `parse` checks magic and version only.

    A server that serves several formats may look here to see which one to expect. `method` and
    `cells` are codes, and `rows` is 0 for a vector.
    """

    method: int
    dim: int
    rows: int
    cols: int
    cells: int
    bits: int
    round_index: int
    count: int
    sender: int
    fingerprint: bytes

    @classmethod
    def of(
        cls, layout: MessageFormat, *, round_index: int, fingerprint: bytes, sender: int,
        count: int = 1,
    ) -> Header:  # fmt: skip
        """Make the header of a message; an `ArgumentError` if a number does not fit its bytes."""
        check_header(layout, round_index, fingerprint, sender=sender, count=count)
        rows, cols = layout.header_shape
        kind, about = _CELL_CODES[layout.cells], (round_index, count, sender, fingerprint)
        return cls(layout.method_code, layout.dim, rows, cols, kind, layout.bits, *about)

    @classmethod
    def parse(cls, data: bytes | bytearray) -> Header:
        """Read the header of bytes that may be a message. The checksum is not looked at.

        Raises:
            WireError: The bytes are too short, not a message, or of another version.
        """
        check_data(data)
        if len(data) < HEADER_BYTES:
            raise WireError(
                f"message is truncated: {len(data)} bytes, and a header takes {HEADER_BYTES}"
            )
        if data[:2] != _MAGIC:
            raise WireError(f"not a message of ours: it begins with {bytes(data[:2]).hex()}")
        if data[2] != VERSION:
            raise WireError(f"message is of version {data[2]}, and only {VERSION} is understood")
        _, _, method, _, dim, rows, cols, *about = _STRUCT.unpack_from(data)
        return cls(
            method, int.from_bytes(dim, "little"), rows, int.from_bytes(cols, "little"), *about
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the message, as in its format."""
        return (self.rows, self.cols) if self.rows else (self.cols,)

    def to_bytes(self) -> bytes:
        """Serialise, with zeros for the checksum."""
        sizes = self.dim.to_bytes(6, "little"), self.rows, self.cols.to_bytes(6, "little")
        about = self.cells, self.bits, self.round_index, self.count, self.sender, self.fingerprint
        return _STRUCT.pack(_MAGIC, VERSION, self.method, bytes(4), *sizes, *about)


@dataclass(frozen=True, eq=False)
class Message:
    """Cells, and what tells whether they are the ones that are waited for.

    Guarantees (`tests/wire/test_message.py`): what `to_bytes` gives, `from_bytes` gives back, bit
    by bit, and `to_bytes` of what `from_bytes` accepts are the very same bytes; it accepts no
    message with a flipped bit, none that is shorter or longer; whatever the bytes, it raises
    nothing but `WireError` and allocates no more than in proportion to them (`test_fuzz.py`).

    Args:
        format: Of the message.
        cells: Of the format's shape; float32, or int64 for whole numbers.
        round_index: The round, below `2**32`.
        fingerprint: Of the round's hashes: `HashSeed.fingerprint`.
        sender: The worker's number, below `2**64`, or `SERVER`.
        count: Messages that are summed in this one: 1 for a worker's own.

    >>> import torch
    >>> sketched = MessageFormat("sketch", dim=9, shape=(1, 2), cells="float32", bits=32)
    >>> table, key = torch.tensor([[1.0, -2.0]]), bytes(8)
    >>> data = Message(sketched, table, round_index=3, fingerprint=key, sender=4).to_bytes()
    >>> len(data), data[-8:].hex()
    (56, '0000803f000000c0')
    >>> Message.from_bytes(data, sketched, round_index=3, fingerprint=key).cells
    tensor([[ 1., -2.]])
    >>> Message.from_bytes(data, sketched, round_index=2, fingerprint=key)
    Traceback (most recent call last):
        ...
    diffsketch.wire.message.WireError: message is of round 3, and round 2 is expected
    """

    format: MessageFormat
    cells: Tensor
    _: KW_ONLY
    round_index: int
    fingerprint: bytes
    sender: int
    count: int = 1
    header: Header = field(init=False, repr=False)

    def __post_init__(self) -> None:
        header = Header.of(
            self.format, round_index=self.round_index, fingerprint=self.fingerprint,
            sender=self.sender, count=self.count,
        )  # fmt: skip
        object.__setattr__(self, "header", header)
        check_cells(self.cells, self.format)

    @classmethod
    def _read(cls, header: Header, expected: MessageFormat, data: bytes | bytearray) -> Message:
        """Make the message of a header that was checked, and of the cells at the end of `data`."""
        # Without `__post_init__`: header and cells were checked when they were read.
        message = object.__new__(cls)
        message.__dict__.update(
            format=expected, cells=unpack(data, expected), round_index=header.round_index,
            fingerprint=header.fingerprint, sender=header.sender, count=header.count, header=header,
        )  # fmt: skip
        return message

    def to_bytes(self, *, agreed: bool = False) -> bytes:
        """Serialise to `format.full_bytes` bytes.

        Args:
            agreed: For a receiver who knows all of the header: to `format.wire_bytes` bytes, or
                `format.sum_bytes` for what the server sends.

        Raises:
            ArgumentError: A cell is not finite, or beyond the format's `limits`.
        """
        data = bytearray(self.header.to_bytes())
        data += pack(self.cells, self.format)
        data[CHECKSUM] = checksum(data)
        if not agreed:
            return bytes(data)
        count = self.count.to_bytes(COUNT_BYTES, "little") if self.sender == SERVER else b""
        short = data[CHECKSUM][: self.format.checksum_bytes]
        return bytes(count + short + data[HEADER_BYTES:])

    @classmethod
    def from_agreed(
        cls, data: bytes | bytearray, expected: MessageFormat, *, round_index: int,
        fingerprint: bytes, sender: int, most: int = MAX_COUNT,
    ) -> Message:  # fmt: skip
        """Read what `to_bytes(agreed=True)` wrote, of a known sender in an agreed round.

        A sum says itself how many messages are in it: from 1 to `most`.

        Raises:
            WireError: It is not that sender's message of this round, or was altered.
            ArgumentError: No message could be what is expected, or `data` is not bytes.
        """
        check_data(data)
        summed = sender == SERVER
        _check_length(data, expected.sum_bytes if summed else expected.wire_bytes)
        count = int.from_bytes(data[:COUNT_BYTES], "little") if summed else 1
        if not 1 <= count <= most:
            raise WireError(f"message is the sum of {count} messages, and 1 to {most} are expected")
        # The checksum is of the full message: whatever both sides agreed on is checked by it.
        cells, end = len(data) - expected.payload_bytes, expected.checksum_bytes
        header = Header.of(
            expected, round_index=round_index, fingerprint=fingerprint, sender=sender, count=count
        )
        if data[cells - end : cells] != checksum(header.to_bytes() + data[cells:])[:end]:
            raise WireError(
                f"message is not that of sender {sender} in round {round_index} as agreed, or was "
                "altered on its way: its checksum does not fit"
            )
        return cls._read(header, expected, data)

    @classmethod
    def from_bytes(
        cls, data: bytes | bytearray, expected: MessageFormat, *, round_index: int,
        fingerprint: bytes, count: int | None = None,
    ) -> Message:  # fmt: skip
        """Read the message in bytes that somebody sent.

        The format, and so the length, must be the expected one before anything is allocated.

        Args:
            data: All bytes of one message.
            expected: The format that the receiver knows.
            round_index: The round that it must be of.
            fingerprint: Of the hashes that it must be made with.
            count: Messages that must be summed in it; None for any number but 0.

        Raises:
            WireError: It is not such a message.
            ArgumentError: No message could be what is expected, or `data` is not bytes.
        """
        # The caller's mistakes first, so that none of them looks like a sender's.
        check_header(expected, round_index, fingerprint)
        header = Header.parse(data)
        for name, value, right in (
            ("method code", header.method, expected.method_code),
            ("cells of code", header.cells, _CELL_CODES[expected.cells]),
            ("bits", header.bits, expected.bits),
            ("dim", header.dim, expected.dim),
            ("shape", header.shape, expected.shape),
        ):
            if value != right:
                raise WireError(
                    f"message has {name} {value}, and {right} is expected for method "
                    f"{expected.method}"
                )
        _check_length(data, expected.full_bytes)
        if data[CHECKSUM] != checksum(data):
            raise WireError("message was altered on its way: its checksum does not fit")
        many = "1 or more" if count is None else count
        for right, what in (
            (header.round_index == round_index,
             f"of round {header.round_index}, and round {round_index} is expected"),
            (header.fingerprint == fingerprint,
             f"made with another key: fingerprint {header.fingerprint.hex()}, and "
             f"{fingerprint.hex()} is expected"),
            (header.count >= 1 and count in (None, header.count),
             f"the sum of {header.count} messages, and {many} is expected"),
        ):  # fmt: skip
            if not right:
                raise WireError(f"message is {what}")
        return cls._read(header, expected, data)


def check_header(
    layout: MessageFormat, round_index: int, fingerprint: bytes, *, sender: int = 0, count: int = 1
) -> None:
    """Raise an `ArgumentError` for numbers that do not fit the bytes of a header."""
    rows, cols = layout.header_shape
    for name, value, least, most in (
        ("dim", layout.dim, 1, _MAX_SIZE),
        ("rows", rows, 0, 2**16 - 1),
        ("cols", cols, 1, _MAX_SIZE),
        ("round_index", round_index, 0, 2**32 - 1),
        ("sender", sender, 0, SERVER),
        ("count", count, 1, MAX_COUNT),
    ):
        if type(value) is not int or not least <= value <= most:  # it has the words for it
            check_whole(name, value, least=least, most=most)
    if not isinstance(fingerprint, bytes) or len(fingerprint) != 8:
        raise ArgumentError("fingerprint must be the 8 bytes of HashSeed.fingerprint")


def _check_length(data: bytes | bytearray, length: int) -> None:
    if len(data) != length:
        what = "truncated" if len(data) < length else "too long"
        raise WireError(f"message is {what}: {len(data)} bytes, and {length} are expected")


def check_data(data: object) -> None:
    """Raise for what is not bytes: a mistake of the caller, not of a sender."""
    if not isinstance(data, bytes | bytearray):
        raise ArgumentError(f"data must be bytes, got {type(data).__name__}")


def checksum(
    data: bytes | bytearray, *, place: slice = CHECKSUM, person: bytes = b"ds-wire"
) -> bytes:
    """Compute the checksum of a message, which leaves out the bytes at its place.

    Secure sums have messages of another layout, with one of their own.
    """
    view, size = memoryview(data), place.stop - place.start
    digest = hashlib.blake2b(view[: place.start], digest_size=size, person=person)
    digest.update(view[place.stop :])
    return digest.digest()


def check_cells(cells: Tensor, layout: MessageFormat) -> None:
    """Raise unless the cells have the format's type and shape."""
    whole_types = (torch.int8, torch.int16, torch.int32, torch.int64)
    kinds = (torch.float32,) if layout.cells == "float32" else whole_types
    if not isinstance(cells, Tensor) or cells.dtype not in kinds:
        kind = cells.dtype if isinstance(cells, Tensor) else type(cells).__name__
        raise ArgumentError(f"cells must be a tensor of {kinds[-1]} in this format, got {kind}")
    if tuple(cells.shape) != layout.shape:
        raise MismatchError(f"cells must have the shape {layout.shape}, got {tuple(cells.shape)}")


def checked_values(cells: Tensor, layout: MessageFormat) -> npt.NDArray[Any]:
    """Return all cells in a row; raise unless they are finite and within the format's limits."""
    check_cells(cells, layout)
    values: npt.NDArray[Any] = cells.detach().cpu().contiguous().numpy().reshape(-1)
    if layout.cells == "float32":
        if not np.isfinite(values).all():
            raise ArgumentError("cells must be finite, got NaN or infinity among them")
        return values
    least, most, (low, end) = int(values.min()), int(values.max()), layout.limits
    if least < low or most >= end:
        wrong = least if least < low else most
        raise ArgumentError(f"cells must be in [{low}, {end}), got {wrong} among them")
    return values


def pack(cells: Tensor, layout: MessageFormat) -> bytes:
    """Pack cells into the payload of a message, if they are finite and within the limits.

    >>> layout = MessageFormat("cpsgd", dim=3, shape=(3,), cells="unsigned", bits=5)
    >>> pack(torch.tensor([1, 2, 31]), layout).hex()
    '417c'
    """
    values = checked_values(cells, layout)
    if layout.cells == "float32":
        return values.astype("<f4", copy=False).tobytes()
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


@compiled
def pack_words(cells: Any, bits: Any, words: Any) -> None:
    """Pack the lowest `bits` of each cell into 64-bit words, lowest first."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    word, used, place = np.uint64(0), np.uint64(0), 0
    for i in range(cells.size):
        cell = np.uint64(cells[i]) & mask
        word |= cell << used
        used += np.uint64(bits)
        if used >= np.uint64(64):
            words[place] = word
            place += 1
            used -= np.uint64(64)
            # The rest of a cell that crosses the border of two words.
            word = cell >> (np.uint64(bits) - used)
    if used:
        words[place] = word


@compiled
def unpack_words(words: Any, bits: Any, cells: Any) -> None:
    """Unpack cells of `bits` bits from 64-bit words."""
    mask = (np.uint64(1) << np.uint64(bits)) - np.uint64(1)
    for i in range(cells.size):
        first = np.uint64(i) * np.uint64(bits)
        place, shift = first >> np.uint64(6), first & np.uint64(63)
        value = words[place] >> shift
        if shift + np.uint64(bits) > np.uint64(64):
            value |= words[place + np.uint64(1)] << (np.uint64(64) - shift)
        cells[i] = value & mask

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
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import KW_ONLY, dataclass, field

from torch import Tensor

from diffsketch.errors import ArgumentError, check_whole
from diffsketch.wire.formats import (
    COUNT_BYTES,
    HEADER_BYTES,
    MessageFormat,
    WireError,
    check_cells,
    pack,
    unpack,
)

VERSION = 1
"""Version of the layout. A message of any other version is refused."""

SERVER = 2**64 - 1
"""The sender's number in what a server sends: the total of a round."""

MAX_COUNT = 2**32 - 1
CHECKSUM = slice(4, 8)

_MAX_SIZE = 2**40
_MAGIC = b"\xd5K"  # no text begins like this
_STRUCT = struct.Struct("<2sBB4s6sH6sBBIIQ8s")
_CELL_CODES = {"float32": 0, "unsigned": 1, "signed": 2}


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
        rows, cols = _rows_and_cols(layout)
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
    diffsketch.wire.formats.WireError: message is of round 3, and round 2 is expected
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
    rows, cols = _rows_and_cols(layout)
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


def _rows_and_cols(layout: MessageFormat) -> tuple[int, int]:
    return (0, layout.shape[0]) if len(layout.shape) == 1 else (layout.shape[0], layout.shape[1])


def _check_length(data: bytes | bytearray, length: int) -> None:
    if len(data) != length:
        what = "truncated" if len(data) < length else "too long"
        raise WireError(f"message is {what}: {len(data)} bytes, and {length} are expected")


def check_data(data: object) -> None:
    """Raise for what is not bytes: a mistake of the caller, not of a sender."""
    if not isinstance(data, bytes | bytearray):
        raise ArgumentError(f"data must be bytes, got {type(data).__name__}")


def checksum(data: bytes | bytearray) -> bytes:
    """Compute the checksum of a message, which leaves out the bytes at `CHECKSUM`."""
    view = memoryview(data)
    digest = hashlib.blake2b(view[: CHECKSUM.start], digest_size=4, person=b"ds-wire")
    digest.update(view[CHECKSUM.stop :])
    return digest.digest()

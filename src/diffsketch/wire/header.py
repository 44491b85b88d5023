"""The 48 bytes before the cells: what a message is, whose it is, and a checksum.

All numbers are unsigned and little-endian; there are no optional parts.

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
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from diffsketch.errors import ArgumentError, check
from diffsketch.wire.errors import WireError
from diffsketch.wire.formats import HEADER_BYTES, MessageFormat

__all__ = ["METHOD_CODES", "SERVER", "VERSION", "Header", "method_code"]

VERSION = 1
"""Of the layout. A message of any other version is refused."""

SERVER = 2**64 - 1
"""The sender's number in what a server sends: the total of a round."""

METHOD_CODES: Mapping[str, int] = MappingProxyType(
    {
        "none": 0,
        "sketch": 1,
        "diffsketch": 2,
        "diffsketch-proven": 3,
        "laplace": 4,
        "sketch-laplace": 5,
        "cpsgd": 6,
        "sketch-gaussian": 7,
        "sketch-skellam": 8,
        "projunit": 9,
        "gaussian": 10,
        "skellam": 11,
    }
)
"""Codes of our own methods. They never change; 12 to 127 are kept for more of them."""

MAX_SIZE = 2**40
MAX_ROWS = 2**16 - 1
MAX_COUNT = 2**32 - 1
MAX_ROUND = 2**32 - 1
FINGERPRINT_BYTES = 8

_MAGIC = b"\xd5K"  # no text begins like this
_STRUCT = struct.Struct("<2sBB4s6sH6sBBIIQ8s")
CHECKSUM = slice(4, 8)
_CELL_CODES = {"float32": 0, "unsigned": 1, "signed": 2}
_OWN_CODES = 128


def method_code(name: str) -> int:
    """The code of a method in the header.

    Ours have those of `METHOD_CODES`. A user's own method gets one of 128 to 255 from a hash of its
    name: both sides of a wire agree on it without a registry, and two methods that are mistaken for
    each other are told apart, unless they are among the one in 128 pairs that share a code.

    >>> method_code("sketch"), method_code("my-method")
    (1, 130)
    """
    if name in METHOD_CODES:
        return METHOD_CODES[name]
    digest = hashlib.blake2b(name.encode(), digest_size=1, person=b"ds-method").digest()
    return _OWN_CODES + digest[0] % _OWN_CODES


@dataclass(frozen=True)
class Header:
    """What stands in the 48 bytes, as numbers. `parse` promises no more than magic and version.

    A server that serves several formats may look here to see which one to expect.

    Attributes:
        method: The method's code.
        cells: The code of the kind of cells.
        bits: Of a cell.
        dim: Of the vectors that were encoded.
        rows: 0 for a vector.
        cols: The length, for a vector.
        round_index: The round.
        count: Messages that are summed in this one.
        sender: Its number.
        fingerprint: Of the round's hashes.
    """

    method: int
    cells: int
    bits: int
    dim: int
    rows: int
    cols: int
    round_index: int
    count: int
    sender: int
    fingerprint: bytes

    @classmethod
    def of(
        cls,
        layout: MessageFormat,
        *,
        round_index: int,
        fingerprint: bytes,
        sender: int,
        count: int = 1,
    ) -> Header:
        """The header of a message.

        Raises:
            ArgumentError: A number does not fit in its bytes.
        """
        rows, cols = layout.shape if len(layout.shape) == 2 else (0, layout.shape[0])
        _check_number("dim", layout.dim, 1, MAX_SIZE)
        _check_number("rows", rows, 0, MAX_ROWS)
        _check_number("cols", cols, 1, MAX_SIZE)
        _check_number("round_index", round_index, 0, MAX_ROUND)
        _check_number("sender", sender, 0, SERVER)
        _check_number("count", count, 1, MAX_COUNT)
        if not isinstance(fingerprint, bytes) or len(fingerprint) != FINGERPRINT_BYTES:
            raise ArgumentError("fingerprint must be the 8 bytes of HashSeed.fingerprint")
        return cls(
            method=method_code(layout.method),
            cells=_CELL_CODES[layout.cells],
            bits=layout.bits,
            dim=layout.dim,
            rows=rows,
            cols=cols,
            round_index=round_index,
            count=count,
            sender=sender,
            fingerprint=fingerprint,
        )

    @classmethod
    def parse(cls, data: bytes | bytearray) -> Header:
        """The header of bytes that may be a message. The checksum is not looked at.

        Raises:
            WireError: Too short, not ours, or of another version.
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
        (_, _, method, _, dim, rows, cols, cells, bits, round_index, count, sender, key) = (
            _STRUCT.unpack_from(data)
        )
        return cls(
            method=method,
            cells=cells,
            bits=bits,
            dim=int.from_bytes(dim, "little"),
            rows=rows,
            cols=int.from_bytes(cols, "little"),
            round_index=round_index,
            count=count,
            sender=sender,
            fingerprint=key,
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the message, as in its format."""
        return (self.rows, self.cols) if self.rows else (self.cols,)

    def to_bytes(self) -> bytes:
        """The 48 bytes, with zeros for the checksum: `seal` puts it in."""
        return _STRUCT.pack(
            _MAGIC,
            VERSION,
            self.method,
            bytes(4),
            self.dim.to_bytes(6, "little"),
            self.rows,
            self.cols.to_bytes(6, "little"),
            self.cells,
            self.bits,
            self.round_index,
            self.count,
            self.sender,
            self.fingerprint,
        )

    def check_format(self, expected: MessageFormat) -> None:
        """Refuse a message of any other format than the expected one.

        Raises:
            WireError: It names the first difference.
        """
        found: tuple[tuple[str, object, object], ...] = (
            ("method code", self.method, method_code(expected.method)),
            ("cells of code", self.cells, _CELL_CODES[expected.cells]),
            ("bits", self.bits, expected.bits),
            ("dim", self.dim, expected.dim),
            ("shape", self.shape, expected.shape),
        )
        for name, value, wanted in found:
            if value != wanted:
                raise WireError(
                    f"message has {name} {value}, and {wanted} is expected for method "
                    f"{expected.method}"
                )


def seal(header: Header, payload: bytes) -> bytes:
    """The whole message, with its checksum."""
    data = bytearray(header.to_bytes())
    data += payload
    data[CHECKSUM] = checksum(data)
    return bytes(data)


def check_seal(data: bytes | bytearray) -> None:
    """Refuse a message whose checksum does not fit.

    Raises:
        WireError: It was altered.
    """
    if data[CHECKSUM] != checksum(data):
        raise WireError("message was altered on its way: its checksum does not fit")


def check_data(data: object) -> None:
    """Refuse what is not bytes: a mistake of the caller, not of a sender."""
    if not isinstance(data, bytes | bytearray):
        raise ArgumentError(f"data must be bytes, got {type(data).__name__}")


def checksum(data: bytes | bytearray) -> bytes:
    """What stands at `CHECKSUM` in a message with these other bytes."""
    view = memoryview(data)
    digest = hashlib.blake2b(view[: CHECKSUM.start], digest_size=4, person=b"ds-wire")
    digest.update(view[CHECKSUM.stop :])
    return digest.digest()


def _check_number(name: str, value: int, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")
    check(least <= value <= most, name, f"be in {least}..{most} to fit in a header", value)

"""A message as a value, to bytes and back."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from torch import Tensor

from diffsketch.wire.errors import WireError
from diffsketch.wire.formats import MessageFormat
from diffsketch.wire.header import Header, check_seal, seal
from diffsketch.wire.packing import check_cells, pack, unpack

__all__ = ["Message"]


@dataclass(frozen=True, eq=False)
class Message:
    """Cells, and what tells whether they are the ones that are waited for.

    Guarantees (`tests/wire/`): what `to_bytes` gives, `from_bytes` gives back, bit by bit, and
    `to_bytes` of what `from_bytes` accepts are the very same bytes (`test_message.py`); it accepts
    no message with a flipped bit, none that is shorter or longer (`test_damage.py`); whatever the
    bytes, it raises nothing but `WireError` and allocates no more than in proportion to them
    (`test_fuzz.py`).

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
    diffsketch.wire.errors.WireError: message is of round 3, and round 2 is expected
    """

    format: MessageFormat
    cells: Tensor
    _: KW_ONLY
    round_index: int
    fingerprint: bytes
    sender: int
    count: int = 1

    def __post_init__(self) -> None:
        _ = self.header  # checks the numbers
        check_cells(self.cells, self.format)

    @property
    def header(self) -> Header:
        """Its header."""
        return Header.of(
            self.format,
            round_index=self.round_index,
            fingerprint=self.fingerprint,
            sender=self.sender,
            count=self.count,
        )

    def to_bytes(self) -> bytes:
        """The message on the wire: `format.wire_bytes` bytes.

        Raises:
            ArgumentError: A cell is not finite, or beyond the format's `limits`.
        """
        return seal(self.header, pack(self.cells, self.format))

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray,
        expected: MessageFormat,
        *,
        round_index: int,
        fingerprint: bytes,
        count: int | None = None,
    ) -> Message:
        """The message in bytes that somebody sent.

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
        Header.of(expected, round_index=round_index, fingerprint=fingerprint, sender=0)
        header = Header.parse(data)
        header.check_format(expected)
        if len(data) != expected.wire_bytes:
            what = "truncated" if len(data) < expected.wire_bytes else "too long"
            raise WireError(
                f"message is {what}: {len(data)} bytes, and {expected.wire_bytes} are expected"
            )
        check_seal(data)
        if header.round_index != round_index:
            raise WireError(
                f"message is of round {header.round_index}, and round {round_index} is expected"
            )
        if header.fingerprint != fingerprint:
            raise WireError(
                "message was made with another key: fingerprint "
                f"{header.fingerprint.hex()}, and {fingerprint.hex()} is expected"
            )
        if header.count < 1 or (count is not None and header.count != count):
            wanted = "1 or more" if count is None else count
            raise WireError(
                f"message is the sum of {header.count} messages, and {wanted} is expected"
            )
        return cls(
            expected,
            unpack(data, expected),
            round_index=round_index,
            fingerprint=fingerprint,
            sender=header.sender,
            count=header.count,
        )

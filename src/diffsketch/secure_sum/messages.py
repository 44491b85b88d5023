"""Messages as bytes, and their strict parser. Nothing is unpickled.

Every message begins with the same 52 bytes; numbers are unsigned and little-endian.

    offset  bytes  what
         0      2  magic: d5 53
         2      1  version of this layout: 2
         3      1  kind
         4      8  sender: a member's number; the server's is 2**64 - 1
        12     32  context: of the round (`Params.context`)
        44      8  checksum: the BLAKE2b of eight bytes of all others of the message

The body that follows has a length that the kind and the round fix, or is a list of records: their
count (4 bytes), then each one's member (8 bytes, ascending) and a value of a fixed length. So what
is read is bounded by the number of members before anything is allocated. The checksum finds
accidents; what must not be forged is signed or encrypted inside.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from diffsketch.secure_sum.errors import RefusedError
from diffsketch.secure_sum.params import PUBLIC_BYTES, Params
from diffsketch.secure_sum.primitives import TAG_BYTES
from diffsketch.secure_sum.shamir import SHARE_BYTES
from diffsketch.secure_sum.stages import Stage
from diffsketch.wire.message import SERVER, check_data

__all__ = [
    "ENVELOPE_BYTES",
    "SEALED_BYTES",
    "SIGNATURE_BYTES",
    "Fate",
    "Kind",
    "PublicKeys",
    "close",
    "open_records",
    "open_sized",
    "records",
    "sender_of",
    "stage_of",
]

SIGNATURE_BYTES = 64
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
"""The two shares of a member for another one, encrypted."""

_STRUCT = struct.Struct("<2sBBQ32s8s")
ENVELOPE_BYTES = _STRUCT.size
_MAGIC = b"\xd5S"
_VERSION = 2
_SENDER = slice(4, 12)
_CHECKSUM = slice(44, 52)
_COUNT_BYTES = 4
_INDEX_BYTES = 8


class Kind(IntEnum):
    """What a message is: below 128 from a member, from 128 on from the server."""

    KEYS = 1
    SHARES = 2
    MASKED = 3
    CONSISTENCY = 4
    UNMASK = 5
    STATE = 100
    OPENING = 129
    KEY_LIST = 130
    SHARE_LIST = 131
    SURVIVORS = 132
    SIGNATURES = 133


class Fate(IntEnum):
    """Of a member that shared its keys, and so which of its secrets is uncovered."""

    DROPPED = 0  # its mask key: what others added for it
    PRESENT = 1  # its seed: its own mask


@dataclass(frozen=True)
class PublicKeys:
    """What a member advertises for one round.

    Attributes:
        cipher: With which shares for it are encrypted.
        mask: From which the masks of pairs come.
        commitment: To the seed of its own mask (`masks.commitment`): whatever shares give back
            must fit it.
        signature: Of all three, the context and the member; empty where members do not sign.
    """

    cipher: bytes
    mask: bytes
    commitment: bytes
    signature: bytes

    @staticmethod
    def size(params: Params) -> int:
        """Bytes of it."""
        return 3 * PUBLIC_BYTES + (SIGNATURE_BYTES if params.signed else 0)

    @classmethod
    def parse(cls, data: bytes) -> PublicKeys:
        """Of bytes that have the right length."""
        first, second, third = (at * PUBLIC_BYTES for at in (1, 2, 3))
        return cls(data[:first], data[first:second], data[second:third], data[third:])

    def to_bytes(self) -> bytes:
        """The way back."""
        return self.cipher + self.mask + self.commitment + self.signature


def close(kind: Kind, body: bytes, *, sender: int, params: Params) -> bytes:
    """A message with this body."""
    data = bytearray(
        _STRUCT.pack(_MAGIC, _VERSION, kind, sender, params.context, bytes(8)) + body,
    )
    data[_CHECKSUM] = _checksum(data)
    return bytes(data)


def open_sized(data: bytes, kind: Kind, *, params: Params, size: int | None) -> tuple[int, bytes]:
    """The sender and the body of a message, whose length must be `size` where it is given.

    Raises:
        RefusedError: Not such a message of this round, or altered.
        ArgumentError: `data` is not bytes.
    """
    check_data(data)
    if len(data) < ENVELOPE_BYTES:
        raise RefusedError(f"message is truncated: {len(data)} bytes of {ENVELOPE_BYTES} or more")
    magic, version, found, sender, context, _ = _STRUCT.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise RefusedError(f"not a message of a secure sum of version {_VERSION}")
    if found != kind:
        raise RefusedError(f"message is of kind {found}, and {kind.name} ({kind}) is expected")
    if size is not None and len(data) != ENVELOPE_BYTES + size:
        raise RefusedError(
            f"message has a body of {len(data) - ENVELOPE_BYTES} bytes, and {size} are expected"
        )
    if bytes(data[_CHECKSUM]) != _checksum(data):
        raise RefusedError("message was altered on its way: its checksum does not fit")
    if context != params.context:
        raise RefusedError("message is of another run, round or agreement: its context differs")
    known = sender == SERVER if kind >= Kind.OPENING else sender in params.points
    if not known:
        raise RefusedError(f"sender {sender} is not one who sends {kind.name} in this round")
    return sender, bytes(data[ENVELOPE_BYTES:])


def sender_of(reply: bytes) -> int:
    """Whom a message says that it is of. Nothing else is looked at.

    Raises:
        RefusedError: It is too short to say.
        ArgumentError: `reply` is not bytes.
    """
    check_data(reply)
    if len(reply) < ENVELOPE_BYTES:
        raise RefusedError(f"message is truncated: {len(reply)} bytes of {ENVELOPE_BYTES} or more")
    return int.from_bytes(reply[_SENDER], "little")


def stage_of(request: bytes, params: Params) -> Stage:
    """Of a request of the server. No more than its kind is looked at.

    Raises:
        RefusedError: It is of no kind that a server sends.
        ArgumentError: `request` is not bytes.
    """
    check_data(request)
    stages = {
        Kind.OPENING: Stage.KEYS,
        Kind.KEY_LIST: Stage.SHARES,
        Kind.SHARE_LIST: Stage.MASKED,
        Kind.SURVIVORS: Stage.CONSISTENCY if params.signed else Stage.UNMASK,
        Kind.SIGNATURES: Stage.UNMASK,
    }
    kind = request[3] if len(request) >= ENVELOPE_BYTES else None
    if kind not in stages:
        raise RefusedError(f"not a request of a secure sum: its kind is {kind}")
    return stages[Kind(kind)]


def records(values: Mapping[int, bytes]) -> bytes:
    """A list of values of members, as a body."""
    parts = [len(values).to_bytes(_COUNT_BYTES, "little")]
    for index in sorted(values):
        parts += [index.to_bytes(_INDEX_BYTES, "little"), values[index]]
    return b"".join(parts)


def open_records(
    data: bytes, kind: Kind, *, params: Params, size: int
) -> tuple[int, dict[int, bytes]]:
    """The sender and the list in a message: values of `size` bytes by their members.

    Raises:
        RefusedError: Not such a message of this round, or not a list of members, each once.
        ArgumentError: `data` is not bytes.
    """
    check_data(data)
    step = _INDEX_BYTES + size
    most = ENVELOPE_BYTES + _COUNT_BYTES + step * len(params.members)
    if len(data) > most:
        raise RefusedError(f"message is too long: {len(data)} bytes, and at most {most} can be")
    sender, body = open_sized(data, kind, params=params, size=None)
    count = int.from_bytes(body[:_COUNT_BYTES], "little")
    if len(body) != _COUNT_BYTES + count * step:
        raise RefusedError(f"message has a body of {len(body)} bytes, which is not {count} records")
    found: dict[int, bytes] = {}
    last = -1
    for at in range(_COUNT_BYTES, len(body), step):
        index = int.from_bytes(body[at : at + _INDEX_BYTES], "little")
        if index not in params.points or index <= last:
            raise RefusedError(f"message lists {index}, which is no member, a repetition or late")
        found[index] = body[at + _INDEX_BYTES : at + step]
        last = index
    return sender, found


def _checksum(data: bytes | bytearray) -> bytes:
    view = memoryview(data)
    digest = hashlib.blake2b(view[: _CHECKSUM.start], digest_size=8, person=b"ds-sum")
    digest.update(view[_CHECKSUM.stop :])
    return digest.digest()

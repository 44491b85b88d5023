"""Agreement of a round, and its messages as bytes with a strict parser. Nothing is unpickled.

Every message begins with the same 52 bytes; numbers are unsigned and little-endian.

    offset  bytes  content
         0      2  magic: d5 53
         2      1  version of this layout: 2
         3      1  kind
         4      8  sender: a member's number; the server's is 2**64 - 1
        12     32  context of the round (`Params.context`)
        44      8  checksum: BLAKE2b of eight bytes of all others of the message

The body that follows has a length that the kind and the round fix, or is a list: its count (4
bytes), then each entry's member (8 bytes, ascending) and a value of a fixed length. So what is read
is bounded by the number of members before anything is allocated. The checksum finds accidents; what
must not be forged is signed or encrypted inside.

An invitation, by which a member hears of a round, has 20 bytes (magic d5 49, version 2, length of
the run's name, and as 4 bytes each round, threshold, min_present and count of members), the run's
name, 8 bytes for each member, and a checksum of 8 bytes.
"""

from __future__ import annotations

import hashlib
import struct
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from enum import Enum, IntEnum
from functools import cached_property, partial
from types import MappingProxyType

from diffsketch.errors import ArgumentError, DiffSketchError, check
from diffsketch.secure_sum import primitives
from diffsketch.secure_sum.primitives import PUBLIC_BYTES, SIGNATURE_BYTES, RefusedError
from diffsketch.wire import SERVER, Header, MessageFormat
from diffsketch.wire.message import check_data, checksum

# The two shares of a member for another one.
ENCRYPTED_BYTES = 2 * primitives.SHARE_BYTES + primitives.TAG_BYTES
_ENVELOPE = struct.Struct("<2sBBQ32s8s")
ENVELOPE_BYTES = _ENVELOPE.size
_MAGIC, _VERSION = b"\xd5S", 2
_SENDER, _CHECKSUM = slice(4, 12), slice(44, 52)
_checksum = partial(checksum, place=_CHECKSUM, person=b"ds-sum")
_INVITATION = struct.Struct("<3sB4I")
_INVITATION_MAGIC = b"\xd5I\x02"


class Stage(Enum):
    """Steps of a round, by what the server waits for; `CONSISTENCY` only where members sign."""

    KEYS = "keys"
    SHARES = "shares"
    MASKED = "masked"
    CONSISTENCY = "consistency"
    UNMASK = "unmask"
    DONE = "done"
    VOID = "void"


class VoidError(DiffSketchError):
    """The round is void: it has no sum, and never will.

    Attributes:
        stage: Stage in which it failed.
        dropped: Members that stopped replying, and the stage in which each did.
    """

    def __init__(self, reason: str, *, stage: Stage, dropped: Mapping[int, Stage] = {}) -> None:
        self.stage, self.dropped = stage, dict(dropped)
        who = ", ".join(f"{index} ({stage.value})" for index, stage in sorted(dropped.items()))
        super().__init__(
            f"the round is void: {reason}, in stage {stage.value}; dropped: {who or 'nobody'}"
        )


def default_threshold(count: int) -> int:
    """Compute the smallest threshold above two thirds of the members.

    With it, a malicious server and fewer than a third of the members together cannot have both
    secrets of an honest member: `2 threshold > members + corrupt`.

    >>> default_threshold(3), default_threshold(10), default_threshold(100)
    (3, 7, 67)
    """
    check(count >= 2, "count", "be >= 2", count)
    return 2 * count // 3 + 1


@dataclass(frozen=True)
class RoundParams(ABC):
    """Parameters of a round that one server's sum and that of two aggregators have in common."""

    layout: MessageFormat
    _: KW_ONLY
    run: bytes
    round_index: int
    fingerprint: bytes
    min_present: int

    def __post_init__(self) -> None:
        check(self.layout.cells == "unsigned", "layout", "have unsigned cells", self.layout.cells)
        if not isinstance(self.run, bytes) or not 16 <= len(self.run) <= 64:
            raise ArgumentError("run must be 16 to 64 bytes")

    @property
    @abstractmethod
    def context(self) -> bytes:
        """Digest of 32 bytes of all parameters."""

    def _digest(self, name: bytes, *texts: bytes, count: int, end: bytes) -> bytes:
        """Digest of the header of a message, of texts with their lengths, and of the end."""
        header = Header.of(
            self.layout, round_index=self.round_index, fingerprint=self.fingerprint,
            sender=SERVER, count=count,
        )  # fmt: skip
        parts = [name, header.to_bytes()]
        for text in (self.layout.method.encode(), self.run, *texts):
            parts += [len(text).to_bytes(4, "little"), text]
        return hashlib.sha256(b"".join([*parts, end])).digest()


@dataclass(frozen=True)
class Params(RoundParams):
    """Parameters of a round, equal for all members: else no message is accepted.

    All of them go into `context`, which is part of every message, every signature and every key
    that is derived. So a message of another run or round, or of a server that tells members
    different thresholds, is refused or cannot be decrypted.

    `threshold` must exceed half of the members. Otherwise a server could tell one half that a
    member is in the sum and the other half that it dropped out, and would have enough shares of
    both of its secrets, which together reveal its input. Above half, two such groups overlap in a
    member that answers once.

    Args:
        layout: Format of the inputs: unsigned cells. Sums are taken modulo `2**bits`.
        run: Identifies the run: 16 to 64 bytes that no other run has, such as a random number.
        round_index: The round.
        fingerprint: Fingerprint of the round's hashes.
        members: Numbers of those who take part, ascending.
        threshold: Number of members that must be left at every stage; more than half of them. See
            `default_threshold`.
        min_present: Number of inputs that must be in the sum, at least `threshold`: with fewer, too
            little noise would be in it. Members refuse to unmask such a sum, whatever the server
            says.
        identities: Public Ed25519 keys of the members, not obtained from the server. With them,
            members sign, and one more stage makes sure that all were told the same. Without, the
            protocol is secure only against a server that follows it.

    Raises:
        ArgumentError: A value is out of range.

    >>> layout = MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8)
    >>> about = {"run": bytes(16), "round_index": 0, "fingerprint": bytes(8), "min_present": 3}
    >>> Params(layout, **about, members=(1, 2, 3, 4), threshold=3).signed
    False
    >>> Params(layout, **about, members=(1, 2, 3, 4), threshold=2)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: threshold must be in 3..4 for 4 members, got threshold=2
    """

    members: tuple[int, ...]
    threshold: int
    identities: Mapping[int, bytes] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        members = tuple(self.members)
        object.__setattr__(self, "members", members)
        numbers = all(type(index) is int and 0 <= index < SERVER for index in members)
        check(numbers, "members", "be numbers in [0, 2**64 - 1)", members)
        check(members == tuple(sorted(set(members))), "members", "be ascending, each once", members)
        count = len(members)
        check(count >= 2, "members", "be two or more", members)
        for name, least in (("threshold", count // 2 + 1), ("min_present", self.threshold)):
            value = getattr(self, name)
            check(type(value) is int, name, "be an int", value)
            check(least <= value <= count, name, f"be in {least}..{count} for {count} members",
                  value)  # fmt: skip
        if self.identities is not None:
            keys = list(self.identities.values())
            if set(self.identities) != set(members):
                raise ArgumentError("identities must have exactly the members' keys")
            if not all(isinstance(key, bytes) and len(key) == PUBLIC_BYTES for key in keys):
                raise ArgumentError(f"identities must be public keys of {PUBLIC_BYTES} bytes")
            if len(set(keys)) != len(keys):
                raise ArgumentError("identities must differ: two members have the same key")
            object.__setattr__(self, "identities", MappingProxyType(dict(self.identities)))
        _ = self.context  # checks the other numbers

    @property
    def signed(self) -> bool:
        """Whether members sign."""
        return self.identities is not None

    @cached_property
    def context(self) -> bytes:
        """Digest of 32 bytes of all parameters."""
        known, numbers = self.identities or {}, (self.threshold, self.min_present, self.signed)
        end = struct.pack("<3Q", *numbers)
        end += b"".join(i.to_bytes(8, "little") + known.get(i, b"") for i in self.members)
        return self._digest(b"diffsketch secure sum 1", count=len(self.members), end=end)

    @cached_property
    def points(self) -> Mapping[int, int]:
        """Points of the members' shares on a polynomial: 1, 2, ...; the secrets are at 0."""
        return MappingProxyType({index: at for at, index in enumerate(self.members, start=1)})


def invite(params: Params) -> bytes:
    """Serialise the invitation to a round, the same for all of its members.

    The format of the cells, the hashes and the identities are not in it: a member knows them
    already, or must not take them from the server.
    """
    numbers = (params.round_index, params.threshold, params.min_present, len(params.members))
    data = _INVITATION.pack(_INVITATION_MAGIC, len(params.run), *numbers) + params.run
    data += struct.pack(f"<{len(params.members)}Q", *params.members)
    return data + hashlib.blake2b(data, digest_size=8, person=b"ds-invite").digest()


def accept(
    data: bytes,
    layout: MessageFormat,
    *,
    fingerprint: bytes,
    least_present: int,
    identities: Mapping[int, bytes] | None = None,
    corrupt: int = 0,
) -> Params:
    """Parse an invitation, and check that its round meets the member's conditions.

    The caller checks that run and round are those that the member is in.

    Args:
        data: The invitation.
        layout: Format of the inputs.
        fingerprint: Fingerprint of the round's hashes.
        least_present: Number of inputs that the claim promised to the member needs in the sum.
        identities: Public keys of all possible members, not obtained from this server; None for a
            server that is trusted to follow the protocol.
        corrupt: Number of members who may collude with a malicious server:
            `2 threshold > members + corrupt` is required.

    Raises:
        RefusedError: Not an invitation, or the round does not meet the conditions.
        ArgumentError: `data` is not bytes.

    >>> layout = MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8)
    >>> params = Params(
    ...     layout, run=bytes(16), round_index=0, fingerprint=bytes(8), members=(1, 2, 3),
    ...     threshold=2, min_present=2,
    ... )
    >>> accept(invite(params), layout, fingerprint=bytes(8), least_present=2) == params
    True
    >>> accept(invite(params), layout, fingerprint=bytes(8), least_present=3)
    Traceback (most recent call last):
        ...
    diffsketch.secure_sum.primitives.RefusedError: invitation is refused: min_present is 2, below 3
    """
    check_data(data)
    if len(data) < _INVITATION.size + 8 or not data.startswith(_INVITATION_MAGIC):
        raise RefusedError("not an invitation to a secure sum of version 2")
    if data[-8:] != hashlib.blake2b(data[:-8], digest_size=8, person=b"ds-invite").digest():
        raise RefusedError("invitation was altered on its way: its checksum does not fit")
    _, run_bytes, round_index, threshold, min_present, count = _INVITATION.unpack_from(data)
    start = _INVITATION.size + run_bytes
    listed = len(data) - start - 8
    if listed != 8 * count:
        raise RefusedError(f"invitation lists {listed} bytes of {count} members")
    members = struct.unpack_from(f"<{count}Q", data, start)
    if min_present < least_present:
        raise RefusedError(
            f"invitation is refused: min_present is {min_present}, below {least_present}"
        )
    # Two groups of honest members, each with all corrupt ones, must not both reach the threshold.
    if 2 * threshold <= count + corrupt:
        raise RefusedError(
            f"invitation is refused: a threshold of {threshold} for {count} members does not "
            f"withstand {corrupt} who collude with the server"
        )
    if identities is not None:
        if strangers := [index for index in members if index not in identities]:
            raise RefusedError(f"invitation is refused: {strangers[0]} has no known identity")
        identities = {index: identities[index] for index in members}
    try:
        return Params(
            layout, run=bytes(data[_INVITATION.size : start]), round_index=round_index,
            fingerprint=fingerprint, members=members, threshold=threshold,
            min_present=min_present, identities=identities,
        )  # fmt: skip
    except ArgumentError as error:
        raise RefusedError(f"invitation is refused: {error}") from error


class MessageKind(IntEnum):
    """Kind of a message: below 128 from a member, from 128 on from the server or the helper."""

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
    SEEDS = 134
    SEED_SUM = 135


class Presence(IntEnum):
    """Whether a member that sent shares is in the sum: decides which of its secrets is revealed."""

    DROPPED = 0  # its mask key: what others added for it
    PRESENT = 1  # its seed: its own mask


@dataclass(frozen=True)
class PublicKeys:
    """Keys that a member advertises for one round."""

    cipher: bytes  # with which shares for it are encrypted
    mask: bytes  # from which the masks of pairs come
    commitment: bytes  # to the seed of its own mask, which recovered shares must fit
    signature: bytes  # of all three, the context and the member; empty where members do not sign

    @staticmethod
    def size(params: Params) -> int:
        """Length in bytes."""
        return 3 * PUBLIC_BYTES + (SIGNATURE_BYTES if params.signed else 0)

    @classmethod
    def parse(cls, data: bytes) -> PublicKeys:
        """Parse bytes that have the right length."""
        first, second, third = (at * PUBLIC_BYTES for at in (1, 2, 3))
        return cls(data[:first], data[first:second], data[second:third], data[third:])

    def to_bytes(self) -> bytes:
        """Serialise."""
        return self.cipher + self.mask + self.commitment + self.signature

    def signed_bytes(self, index: int, params: Params) -> bytes:
        """Bytes that a member signs when it advertises these keys."""
        keys = self.cipher + self.mask + self.commitment
        return b"keys" + params.context + index.to_bytes(8, "little") + keys


def signed_presence(presence: Mapping[int, Presence], params: Params) -> bytes:
    """Bytes that a member signs to confirm who it was told is in the sum."""
    return b"fate" + params.context + pack_presence(presence)


def check_keys(keys: PublicKeys, index: int, params: Params) -> None:
    """Raise a `RefusedError` if keys are not signed by the member, where members sign."""
    if params.identities is not None:
        try:
            signed = keys.signed_bytes(index, params)
            primitives.verify(params.identities[index], keys.signature, signed)
        except RefusedError as error:
            raise RefusedError(f"the keys of {index} are not signed by it") from error


def check_distinct(keys: Iterable[PublicKeys]) -> None:
    """Raise a `RefusedError` if two keys are the same: masks of pairs must be unrelated."""
    public = [key for pair in keys for key in (pair.cipher, pair.mask)]
    if len(set(public)) != len(public):
        raise RefusedError("two public keys are the same")


def pack_message(kind: MessageKind, body: bytes, *, context: bytes, sender: int = SERVER) -> bytes:
    """Serialise a message with this body."""
    data = bytearray(_ENVELOPE.pack(_MAGIC, _VERSION, kind, sender, context, bytes(8)))
    data += body
    data[_CHECKSUM] = _checksum(data)
    return bytes(data)


def parse_message(
    data: bytes, kind: MessageKind, *, params: Params, size: int | None
) -> tuple[int, bytes]:
    """Return sender and body of a message, whose length must be `size` where it is given."""
    sender, body = open_envelope(data, kind, context=params.context, size=size)
    if not (sender == SERVER if kind >= MessageKind.OPENING else sender in params.points):
        raise RefusedError(f"sender {sender} is not one who sends {kind.name} in this round")
    return sender, body


def open_envelope(
    data: bytes, kind: MessageKind, *, context: bytes, size: int | None = None
) -> tuple[int, bytes]:
    """Return sender and body of a message of this kind and context, from anybody."""
    sender_of(data)
    magic, version, code, sender, named, checksum = _ENVELOPE.unpack_from(data)
    if magic != _MAGIC or version != _VERSION:
        raise RefusedError(f"not a message of a secure sum of version {_VERSION}")
    if code != kind:
        raise RefusedError(f"message is of kind {code}, and {kind.name} ({kind}) is expected")
    if size is not None and len(data) != ENVELOPE_BYTES + size:
        raise RefusedError(
            f"message has a body of {len(data) - ENVELOPE_BYTES} bytes, and {size} are expected"
        )
    if checksum != _checksum(data):
        raise RefusedError("message was altered on its way: its checksum does not fit")
    if named != context:
        raise RefusedError("message is of another run, round or agreement: its context differs")
    return sender, bytes(data[ENVELOPE_BYTES:])


def sender_of(data: bytes) -> int:
    """Read the sender that a message names, and nothing else."""
    check_data(data)
    if len(data) < ENVELOPE_BYTES:
        raise RefusedError(f"message is truncated: {len(data)} bytes of {ENVELOPE_BYTES} or more")
    return int.from_bytes(data[_SENDER], "little")


def stage_of(request: bytes, params: Params) -> Stage:
    """Read the stage of a server's request from its kind, and nothing else.

    Raises:
        RefusedError: It is of no kind that a server sends.
        ArgumentError: `request` is not bytes.
    """
    check_data(request)
    stages = {
        MessageKind.OPENING: Stage.KEYS,
        MessageKind.KEY_LIST: Stage.SHARES,
        MessageKind.SHARE_LIST: Stage.MASKED,
        MessageKind.SURVIVORS: Stage.CONSISTENCY if params.signed else Stage.UNMASK,
        MessageKind.SIGNATURES: Stage.UNMASK,
    }
    kind = request[3] if len(request) >= ENVELOPE_BYTES else None
    if kind not in stages:
        raise RefusedError(f"not a request of a secure sum: its kind is {kind}")
    return stages[MessageKind(kind)]


def pack_list(values: Mapping[int, bytes]) -> bytes:
    """Serialise members' values as the body of a message."""
    entries = (index.to_bytes(8, "little") + values[index] for index in sorted(values))
    return len(values).to_bytes(4, "little") + b"".join(entries)


def pack_presence(presence: Mapping[int, Presence]) -> bytes:
    """Serialise who is in the sum as the body of a message."""
    return pack_list({index: bytes([value]) for index, value in presence.items()})


def parse_list(
    data: bytes, kind: MessageKind, *, params: Params, size: int
) -> tuple[int, dict[int, bytes]]:
    """Return sender and list of a message: values of `size` bytes by their members."""
    check_data(data)
    step = 8 + size
    most = ENVELOPE_BYTES + 4 + step * len(params.members)
    # Before anything is hashed or allocated.
    if len(data) > most:
        raise RefusedError(f"message is too long: {len(data)} bytes, and at most {most} can be")
    sender, body = parse_message(data, kind, params=params, size=None)
    values = read_list(body, size)
    if strangers := values.keys() - params.points.keys():
        raise RefusedError(f"message lists {min(strangers)}, which is no member")
    return sender, values


def read_list(body: bytes, size: int) -> dict[int, bytes]:
    """Read values of `size` bytes by their members, which must ascend."""
    count = int.from_bytes(body[:4], "little")
    if len(body) != 4 + count * (8 + size):
        raise RefusedError(f"message has a body of {len(body)} bytes, which is not {count} records")
    values, last = dict[int, bytes](), -1
    for index, value in struct.iter_unpack(f"<Q{size}s", body[4:]):
        if index <= last:
            raise RefusedError(f"message lists {index}, which is a repetition or late")
        values[index], last = value, index
    return values

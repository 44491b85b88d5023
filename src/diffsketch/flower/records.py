"""What server and client write into each other's messages: one `ConfigRecord`, checked on arrival.

Nothing here is trusted: a record with a missing or odd value is refused with a `WireError`. The
messages of the methods themselves are bytes of `diffsketch.wire` inside.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from diffsketch.wire import WireError

__all__ = [
    "PROTOCOL",
    "RECORD",
    "SUM_RECORD",
    "Reply",
    "Request",
    "SumReply",
    "SumRequest",
    "content_bytes",
    "record_in",
]

PROTOCOL = 2
"""Another number for another meaning of the records. Both sides refuse any other."""

RECORD = "diffsketch"
"""The record's name in a message."""

SUM_RECORD = "diffsketch.sum"
"""Name of the record in which a secure sum of the server and its clients talk to each other."""

NO_MODEL = -1
"""The version of a model that is not there."""

_MOST_TEXT = 2000
_MOST_STATEMENT = 1 << 16
_T = TypeVar("_T", bound="_Record")


@dataclass(frozen=True)
class _Record:
    """Values by name, to a `ConfigRecord` and back."""

    limits: ClassVar[dict[str, int]] = {}

    def to_record(self) -> ConfigRecord:
        """As Flower sends it."""
        return ConfigRecord({"protocol": PROTOCOL, **asdict(self)})

    @classmethod
    def of(cls: type[_T], record: ConfigRecord) -> _T:
        """What somebody sent.

        Raises:
            WireError: It is of another version, or not such a record.
        """
        found = record.get("protocol")
        if found != PROTOCOL:
            raise WireError(
                f"the other side speaks version {found!r} of the protocol, and only {PROTOCOL} is "
                "understood: install the same version of diffsketch on both"
            )
        values: dict[str, Any] = {}
        for one in fields(cls):
            value: Any = record.get(one.name)
            _check_type(one.name, value, str(one.type))
            if one.name in cls.limits and len(value) > cls.limits[one.name]:
                raise WireError(f"{one.name} is too long: {len(value)}")
            values[one.name] = value
        return cls(**values)


@dataclass(frozen=True)
class Request(_Record):
    """What the server asks a client for, and what the client needs to have the model.

    Attributes:
        series: Eight random bytes of the strategy: rounds and versions are counted in it.
        nonce: Of the round, random: a reply has to repeat it.
        round_index: The round, for the hashes. Void rounds count.
        plan: What the server's plan is, in words.
        key_check: Fingerprint of the first round's hashes; empty if the server has no key.
        arrays: Name of the record that the client's app expects the model in.
        base: Version of the dense model that is in the message; -1 if there is none.
        version: That the client should have after it has applied the totals.
        first: Version that the first of the totals makes.
        totals: What rounds have published, as messages on the wire.
        rounds: Which rounds these are.
        digest: Of the model of that version; empty if the server does not know it.
        statement: The client's own account, as it has sent it before; empty if there is none.
        known: Digests of eight bytes of members whose statements the server has, for a node that
            it has not heard of yet.
        clip: For methods whose clip moves: that of the first of the totals, or of this round if
            there are none; later ones follow from the totals. 0 for other methods.
    """

    series: bytes
    nonce: bytes
    round_index: int
    plan: str
    key_check: bytes
    arrays: str
    base: int
    version: int
    first: int
    totals: list[bytes]
    rounds: list[int]
    digest: bytes
    statement: bytes
    known: bytes
    clip: float


@dataclass(frozen=True)
class Reply(_Record):
    """What a client says.

    Attributes:
        nonce: The request's.
        member: Who it is, over restarts: a name that stays.
        version: Of the model that it now has; -1 for none.
        code: Empty if the message is there; else why not, in a word.
        reason: The same in a sentence.
        message: The method's message on the wire.
        statement: The client's account, sealed with a key of its own.
    """

    nonce: bytes
    member: str
    version: int
    code: str
    reason: str
    message: bytes
    statement: bytes
    limits: ClassVar[dict[str, int]] = {
        "member": 200,
        "code": 40,
        "reason": _MOST_TEXT,
        "statement": _MOST_STATEMENT,
    }


@dataclass(frozen=True)
class SumRequest(_Record):
    """What the server's side of a secure sum asks.

    Attributes:
        round_index: The round.
        plan: What the server's plan is, in words.
        dim: Length of the vectors: a client may not have the model yet.
        invitation: To the secure sum; empty but in its first exchange.
        request: Of the secure sum's stage; empty for the question who the client is, and which
            hashes it has.
    """

    round_index: int
    plan: str
    dim: int
    invitation: bytes
    request: bytes


@dataclass(frozen=True)
class SumReply(_Record):
    """What a client's side of a secure sum answers.

    Attributes:
        code: Empty if it does; else why not, in a word.
        reason: The same in a sentence.
        member: Its number in the secure sum, in eight bytes.
        fingerprint: Of the round's hashes.
        reply: Of the secure sum's stage.
    """

    code: str
    reason: str
    member: bytes
    fingerprint: bytes
    reply: bytes
    limits: ClassVar[dict[str, int]] = {
        "code": 40,
        "reason": _MOST_TEXT,
        "member": 8,
        "fingerprint": 8,
    }


def record_in(content: RecordDict) -> ConfigRecord | None:
    """Our record in a message, if there is one."""
    found = content.config_records.get(RECORD)
    return found if isinstance(found, ConfigRecord) else None


def content_bytes(content: Any, known: dict[int, int] | None = None) -> int:
    """What a message's records take as Flower serialises them, without what HTTP adds.

    Args:
        content: A record, or all of a message's.
        known: Sizes of arrays that several messages share, by `id`: filled and used.
    """
    if known is not None and id(content) in known:
        return known[id(content)]
    children = (content.children or {}).values()
    size = len(content.deflate()) + sum(content_bytes(child, known) for child in children)
    if known is not None and isinstance(content, ArrayRecord):  # which the caller keeps alive
        known[id(content)] = size
    return size


def _check_type(name: str, value: object, kind: str) -> None:
    """By the annotation: `int`, `float`, `str`, `bytes`, or a list of one of them."""
    inner = kind.removeprefix("list[").removesuffix("]")
    plain = {"int": int, "float": float, "str": str, "bytes": bytes}[inner]
    values = value if kind.startswith("list[") and isinstance(value, list) else [value]
    if kind.startswith("list[") != isinstance(value, list) or not all(
        isinstance(one, plain) and not isinstance(one, bool) for one in values
    ):
        raise WireError(f"{name} must be {kind} in the record, got {type(value).__name__}")

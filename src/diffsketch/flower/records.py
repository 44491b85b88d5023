"""Records that server and clients exchange, and arrays as one vector."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError
from diffsketch.privacy.claim import Claim, NoClaim, Trust
from diffsketch.wire import WireError


class Refusal(DiffSketchError):  # noqa: N818 - it says what happened
    """A client does not take part in a round. Nothing was sent.

    Attributes:
        code: Why, in a word, for the server's counts.
    """

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


def check_trust(claim: Claim, *, trusted_server: bool) -> None:
    """Refuse a claim that holds only if nobody sees single messages, where a server does.

    Central trust is trust in the server, which a plan with it says.

    Raises:
        Refusal: It is under distributed trust, and the server is not trusted.
    """
    distributed = claim.scope.trust is Trust.DISTRIBUTED and not isinstance(claim, NoClaim)
    if distributed and not trusted_server:
        raise Refusal(
            "trust",
            "the method's claim is under distributed trust: it needs a secure sum, and this server "
            "sees every message. trusted_server=True says that it will not look",
        )


def member_digest(member: str) -> bytes:
    """Eight bytes that stand for a member's name."""
    return hashlib.blake2b(member.encode(), digest_size=8, person=b"ds-flwr-member").digest()


_DIGEST_BYTES = 16
_STATISTICS = frozenset(
    {"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance"}
)


def local_names(keep_local: Collection[str]) -> frozenset[str]:
    """Names of arrays that clients keep to themselves, as an argument has them."""
    if isinstance(keep_local, str) or not all(isinstance(one, str) for one in keep_local):
        raise ArgumentError(f"keep_local must be a collection of names, got {keep_local!r}")
    return frozenset(keep_local)


def is_local(name: str, keep_local: Collection[str]) -> bool:
    """Whether an array is one of those: by its name, or by what follows the last dot of it.

    >>> is_local("layers.2.running_var", {"running_var"}), is_local("2.weight", {"running_var"})
    (True, False)
    """
    return name in keep_local or name.rpartition(".")[2] in keep_local


def without_words(keep_local: Collection[str]) -> str:
    """What a plan's text says of them."""
    return f", without {', '.join(sorted(keep_local))}" if keep_local else ""


def length_of(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> int:
    """How long the vector is.

    Raises:
        ArgumentError: There is no floating-point array; or there are running statistics, as those
            of batch normalisation, which are not kept to themselves.
    """
    shared = {name: one for name, one in arrays.items() if _is_shared(name, one, keep_local)}
    odd = [name for name in shared if is_local(name, _STATISTICS)]
    if odd:
        raise ArgumentError(
            f"arrays must not have running statistics, got {', '.join(odd[:4])}: noise would make "
            "them useless. Give keep_local=('running_mean', 'running_var') to sketch_mod and to "
            "SketchStrategy, so that clients keep their own; or use a layer without (GroupNorm)"
        )
    length = sum(math.prod(one.shape) for one in shared.values())
    if length < 1:
        raise ArgumentError("arrays must have floating-point values, got none")
    return length


def flat(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> Tensor:
    """The vector.

    >>> record = ArrayRecord({"a": Array(np.float32([[1, 2]])), "steps": Array(np.array([7]))})
    >>> flat(record)
    tensor([1., 2.])
    """
    shared = (one for name, one in arrays.items() if _is_shared(name, one, keep_local))
    parts = [_values(one).reshape(-1) for one in shared]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def moved(arrays: ArrayRecord, step: Tensor, keep_local: Collection[str] = ()) -> ArrayRecord:
    """New arrays: the vector plus a step of its length. Server and clients compute it alike."""
    found, start, values = dict[str, Array](), 0, step.numpy()
    for name, one in arrays.items():
        old = _values(one)
        if _is_shared(name, one, keep_local):
            part = values[start : start + old.size].reshape(old.shape)
            start += old.size
            with np.errstate(over="ignore"):  # whoever calls looks for what is not finite
                old = (old.astype(np.float32) + part).astype(old.dtype)
        found[name] = Array(old)
    return ArrayRecord(found)


def with_own(arrays: ArrayRecord, own: ArrayRecord | None) -> ArrayRecord:
    """The arrays, with a client's own in place of those that it keeps to itself."""
    if own is None:
        return arrays
    return ArrayRecord({name: own.get(name, one) for name, one in arrays.items()})


def cast_like(arrays: ArrayRecord, like: ArrayRecord) -> ArrayRecord:
    """The arrays with the types and in the order of others.

    Flower's means turn whole numbers into floats, and a vector must not become longer by that.
    """
    check_layout(arrays, like)
    return ArrayRecord(
        {name: Array(_values(arrays[name]).astype(one.dtype)) for name, one in like.items()}
    )


def check_layout(arrays: ArrayRecord, like: ArrayRecord) -> None:
    """Raise a `MismatchError` unless both have the same names and shapes."""
    if set(arrays) != set(like):
        odd = sorted(set(arrays) ^ set(like))
        raise MismatchError(f"arrays must have the same names as the model, got {odd} in one only")
    for name, one in like.items():
        found, wanted = tuple(arrays[name].shape), tuple(one.shape)
        if found != wanted:
            raise MismatchError(f"array {name!r} must have the shape {wanted}, got {found}")


def digest_of(arrays: ArrayRecord) -> bytes:
    """Of names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"ds-flwr-model")
    for name, one in arrays.items():
        values = np.ascontiguousarray(_values(one))
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.digest()


def _is_shared(name: str, array: Array, keep_local: Collection[str]) -> bool:
    floating = np.issubdtype(np.dtype(array.dtype), np.floating)
    return floating and not is_local(name, keep_local)


def _values(array: Array) -> npt.NDArray[np.generic]:
    return array.numpy()


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

"""The model as one vector, its history at the server, and the records that both sides exchange."""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, ClassVar, Self

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.methods import Method
from diffsketch.privacy.claim import Claim, NoClaim, Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError


class Refusal(DiffSketchError):  # noqa: N818 - it says what happened
    """A client takes no part in a round and sends nothing; `code` says why, in a word."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


NEEDS_TRUST = (
    "the method's claim is under distributed trust: it needs a secure sum, and this server sees "
    "every message. trusted_server=True says that it will not look"
)


def needs_trust(claim: Claim) -> bool:
    """Whether a claim holds only if the server sees no single message, or does not look."""
    return claim.scope.trust is Trust.DISTRIBUTED and not isinstance(claim, NoClaim)


def member_digest(member: str) -> bytes:
    """Digest of eight bytes of a client's name."""
    return hashlib.blake2b(member.encode(), digest_size=8, person=b"ds-flwr-member").digest()


_STATISTICS = frozenset(
    {"running_mean", "running_var", "num_batches_tracked", "moving_mean", "moving_variance"}
)


def local_names(keep_local: Collection[str]) -> frozenset[str]:
    """Check the names of arrays that clients keep to themselves."""
    names = not isinstance(keep_local, str) and all(isinstance(name, str) for name in keep_local)
    check(names, "keep_local", "be a collection of names", keep_local)
    return frozenset(keep_local)


def is_local(name: str, keep_local: Collection[str]) -> bool:
    """Whether an array is among these names, by its own or by what follows its last dot.

    >>> is_local("layers.2.running_var", {"running_var"}), is_local("2.weight", {"running_var"})
    (True, False)
    """
    return name in keep_local or name.rpartition(".")[2] in keep_local


def length_of(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> int:
    """Length of the vector that the arrays make, which must not have running statistics."""
    sizes = dict(sizes_of(arrays, keep_local))
    statistics = [name for name in sizes if is_local(name, _STATISTICS)]
    if statistics:
        raise ArgumentError(
            f"arrays must not have running statistics, got {', '.join(statistics[:4])}: noise "
            "would make them useless. Give keep_local=('running_mean', 'running_var') to "
            "sketch_mod and to SketchStrategy, so that clients keep their own; or use a layer "
            "without (GroupNorm)"
        )
    length = sum(sizes.values())
    if length < 1:
        raise ArgumentError("arrays must have floating-point values, got none")
    return length


def sizes_of(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> list[tuple[str, int]]:
    """Names and sizes of the arrays that the vector is made of, in its order."""
    return [(name, math.prod(a.shape)) for name, a in _shared(arrays, keep_local).items()]


def flat(arrays: ArrayRecord, keep_local: Collection[str] = ()) -> Tensor:
    """Concatenate the shared arrays to one float32 vector.

    >>> record = ArrayRecord({"a": Array(np.float32([[1, 2]])), "steps": Array(np.array([7]))})
    >>> flat(record)
    tensor([1., 2.])
    """
    parts = [array.numpy().reshape(-1) for array in _shared(arrays, keep_local).values()]
    return torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))


def moved(arrays: ArrayRecord, step: Tensor, keep_local: Collection[str] = ()) -> ArrayRecord:
    """Return the arrays after a step of their vector. Server and clients compute the same bits."""
    new, start, values = dict(arrays), 0, step.numpy()
    for name, array in _shared(arrays, keep_local).items():
        old = array.numpy()
        part = values[start : start + old.size].reshape(old.shape)
        start += old.size
        with np.errstate(over="ignore"):  # callers look for values that are not finite
            new[name] = Array((old.astype(np.float32) + part).astype(old.dtype))
    return ArrayRecord(new)


def cast_like(arrays: ArrayRecord, like: ArrayRecord) -> ArrayRecord:
    """Cast arrays to the types and the order of others.

    Flower's means turn whole numbers into floats, which would make the vector longer.
    """
    check_layout(arrays, like)
    return ArrayRecord(
        {name: Array(arrays[name].numpy().astype(model.dtype)) for name, model in like.items()}
    )


def check_layout(arrays: ArrayRecord, like: ArrayRecord) -> None:
    """Raise a `MismatchError` unless both have the same names and shapes."""
    if unmatched := sorted(set(arrays) ^ set(like)):
        raise MismatchError(
            f"arrays must have the same names as the model, got {unmatched} in one only"
        )
    for name, model in like.items():
        shape, wanted = tuple(arrays[name].shape), tuple(model.shape)
        if shape != wanted:
            raise MismatchError(f"array {name!r} must have the shape {wanted}, got {shape}")


def digest_of(arrays: ArrayRecord) -> bytes:
    """Digest of names, types, shapes and values."""
    digest = hashlib.blake2b(digest_size=16, person=b"ds-flwr-model")
    for name, array in arrays.items():
        values = np.ascontiguousarray(array.numpy())
        digest.update(f"{name} {values.dtype} {values.shape}\n".encode())
        digest.update(values.tobytes())
    return digest.digest()


def _shared(arrays: ArrayRecord, keep_local: Collection[str]) -> dict[str, Array]:
    """Arrays that messages are about: floating-point ones that clients do not keep."""
    return {
        name: array for name, array in arrays.items()
        if np.issubdtype(np.dtype(array.dtype), np.floating) and not is_local(name, keep_local)
    }  # fmt: skip


def decode_total(
    total: bytes, round_index: int, *, method: Method, key: SketchKey
) -> tuple[Tensor, Method]:
    """Decode the mean that a round has published; also return the method of the next round."""
    seed, form = key.seed(round_index), method.total_format
    weight = total[form.full_bytes :]  # of all messages together; empty if clients count alike
    message = WireMessage.from_bytes(
        total[: form.full_bytes], form, round_index=round_index, fingerprint=seed.fingerprint
    )
    mean = method.decode(message.cells, seed, count=message.count)
    if weight:
        if len(weight) != _WEIGHT.size or not any(weight):
            raise WireError(f"total must end with the weight of its messages, got {weight.hex()}")
        mean.mul_(message.count / _WEIGHT.unpack(weight)[0])
    return mean, method.after(message.cells, count=message.count)


def weighted_total(total: bytes, weight: int) -> bytes:
    """Append the weight of all messages to a published total; 0 if clients count alike."""
    return total + _WEIGHT.pack(weight) if weight else total


def replay_totals(
    model: ArrayRecord,
    totals: Sequence[tuple[int, bytes]],
    *,
    method: Method,
    key: SketchKey,
    keep_local: Collection[str] = (),
    skip: int = 0,
) -> tuple[ArrayRecord, Method]:
    """Add the means of published rounds to a model, one after another.

    Guarantees (`tests/flower/test_server.py`): the bits that a server with the key has.

    Args:
        model: The model before them.
        totals: Rounds and what each has published: `SketchStrategy.totals`.
        method: The method of the first of these rounds.
        key: The clients' common key.
        keep_local: As in the run: arrays with these names stay as they are in the model.
        skip: How many of the totals are in the model already.

    Returns:
        The model after these rounds, and the method of the round that comes then.

    Raises:
        WireError: A total is not that of its round.
    """
    for place, (round_index, total) in enumerate(totals):
        if place < skip and method.round_clip is None:
            continue  # a clip that moves follows from all totals, those in the model as well
        mean, method = decode_total(total, round_index, method=method, key=key)
        if place >= skip:
            model = moved(model, mean, keep_local)
    return model, method


class ModelHistory:
    """The dense model that the server has, and totals published since, for nodes that lack them.

    With a key (`keyed`) the dense model is the current one, without a key it stays the first.

    Guarantees (`tests/flower/test_server.py`): a node that applies a download has the server's
    model; the smaller of the two ways is taken.
    """

    def __init__(self, arrays: ArrayRecord, *, keyed: bool) -> None:
        self._keyed = keyed
        self.arrays, self.base = arrays, 0
        self._first = 1  # version that the first kept total makes
        self._totals: list[tuple[int, bytes]] = []
        self._dense_bytes = sum(len(array.data) for array in arrays.values())
        self.digest = digest_of(arrays)

    @property
    def version(self) -> int:
        """Rounds that changed the model."""
        return self._first - 1 + len(self._totals)

    def add(self, total: bytes, round_index: int, arrays: ArrayRecord | None) -> None:
        """Add a round whose mean was added to the model: `arrays`, if the server can know it."""
        self._totals.append((round_index, total))
        if arrays is not None:
            self._set(arrays)
        while self._keyed and not self._is_smaller(self._totals):  # the model would be sent instead
            del self._totals[0]
            self._first += 1

    def replace(self, arrays: ArrayRecord) -> None:
        """Set a model that nodes cannot compute from totals; nothing changes if it is the same."""
        if digest_of(arrays) == self.digest:
            return
        if not self._keyed:
            raise ArgumentError("arrays must stay as they are where the server has no key")
        # A version of its own, which no total makes: the next total makes the one after it.
        self._first, self._totals = self.version + 2, []
        self._set(cast_like(arrays, self.arrays))

    def download(self, version: int) -> tuple[ArrayRecord | None, int, list[tuple[int, bytes]]]:
        """Choose what to send to a node that has this version (-1: none), the smaller of two ways.

        Returns the dense model, or None if it is not sent; the version that the totals begin at;
        and the totals, with their rounds.
        """
        skip = version - (self._first - 1)
        if version != NO_MODEL and 0 <= skip <= len(self._totals):
            totals = self._totals[skip:]
            if not self._keyed or self._is_smaller(totals):
                return None, version, totals
        return self.arrays, self.base, self._totals[self.base - (self._first - 1) :]

    def _is_smaller(self, totals: list[tuple[int, bytes]]) -> bool:
        return sum(len(total) for _, total in totals) < self._dense_bytes

    def _set(self, arrays: ArrayRecord) -> None:
        self.arrays, self.base, self.digest = arrays, self.version, digest_of(arrays)


_WEIGHT = struct.Struct("<Q")
MOST_WEIGHT = 1 << 40  # of a message
PROTOCOL = 5  # another number for another meaning of the records; both sides refuse any other
RECORD = "diffsketch"  # name of our record in a message
SUM_RECORD = "diffsketch.sum"  # name of the record of a secure sum's own exchanges
NO_MODEL = -1  # version of a model that is not there
_TYPES = {"int": int, "float": float, "str": str, "bytes": bytes}


@dataclass(frozen=True)
class _Record:
    """Named values that travel in a `ConfigRecord`, each of the type of its field.

    `name` is that of the record in a message; `limits` are the longest texts and bytes.
    """

    name: ClassVar[str] = RECORD
    limits: ClassVar[dict[str, int]] = {}

    def to_record(self) -> ConfigRecord:
        """Convert to what Flower sends."""
        return ConfigRecord({"protocol": PROTOCOL, **asdict(self)})

    @classmethod
    def find(cls, message: Message) -> Self:
        """Read the record of a message; raise a `WireError` if there is none."""
        if not message.has_content():
            raise WireError(f"error: {str(message.error.reason)[:1000]}")
        record = message.content.config_records.get(cls.name)
        if record is None:
            raise WireError(f"reply has no record {cls.name!r}: its client does not use sketch_mod")
        return cls.of(record)

    @classmethod
    def of(cls, record: ConfigRecord) -> Self:
        """Read an untrusted record; raise a `WireError` if it is not one of this kind."""
        version = record.get("protocol")
        if version != PROTOCOL:
            raise WireError(
                f"the other side speaks version {version!r} of the protocol, and only {PROTOCOL} "
                "is understood: install the same version of diffsketch on both"
            )
        values: dict[str, Any] = {}
        for name, kind in ((field.name, str(field.type)) for field in fields(cls)):
            value = values[name] = record.get(name)
            plain = _TYPES[kind.removeprefix("list[").removesuffix("]")]
            parts = value if isinstance(value, list) else [value]
            fits = set(map(type, parts)) <= {plain}  # the type itself: a bool is no int here
            if not fits or isinstance(value, list) != kind.startswith("list["):
                raise WireError(f"{name} must be {kind} in the record, got {type(value).__name__}")
            if name in cls.limits and len(values[name]) > cls.limits[name]:
                raise WireError(f"{name} is too long: {len(values[name])}")
        return cls(**values)


@dataclass(frozen=True)
class Request(_Record):
    """Request of the server for a message, with what the client lacks of the model."""

    series: bytes  # random, of the strategy: rounds and versions are counted in it
    nonce: bytes  # random, of the round: a reply has to repeat it
    round_index: int  # for the hashes; void rounds count
    plan: str  # the server's, as `FlowerPlan.describe` has it
    key_check: bytes  # fingerprint of the first round's hashes; empty if the server has no key
    arrays: str  # name of the record that the client's app expects the model in
    base: int  # version of the dense model that is in the message; -1 if there is none
    version: int  # that the client has after it has applied the totals
    first: int  # version that the first of the totals makes
    totals: list[bytes]  # published ones, as messages on the wire
    rounds: list[int]  # of these totals
    digest: bytes  # of the model of that version; empty if the server does not know it
    statement: bytes  # the client's own account, as it has sent it before; or empty
    known: bytes  # digests of clients whose statements there are, for a node that is not known yet
    # For methods whose clip moves: that of the first of the totals, or of this round if there are
    # none; later ones follow from the totals. 0 for other methods.
    clip: float
    weight: str = ""  # name of the metric that clients count by; empty if they count alike
    counted: int = -1  # last round that this node's message is in; -1 for none


@dataclass(frozen=True)
class Reply(_Record):
    """Reply of a client."""

    nonce: bytes  # the request's
    member: str  # name of the client, which stays over restarts
    version: int  # of the model that it now has; -1 for none
    code: str = ""  # empty if the message is there; else why not, in a word
    reason: str = ""  # the same in a sentence
    message: bytes = b""  # the method's, on the wire
    statement: bytes = b""  # the client's account, authenticated with a key of its own
    weight: int = 0  # factor of the vector in the message, where the request has a metric for it
    metrics: bytes = b""  # message of the plan's metrics, on the wire
    limits: ClassVar[dict[str, int]] = {
        "member": 200, "code": 40, "reason": 2000, "statement": 1 << 16,
    }  # fmt: skip


@dataclass(frozen=True)
class SumRequest(_Record):
    """Request of the server in a secure sum's own exchange."""

    name: ClassVar[str] = SUM_RECORD
    round_index: int
    plan: str  # the server's, as `FlowerPlan.describe` has it
    dim: int  # of the vectors: a client may not have the model yet
    invitation: bytes = b""  # to the secure sum; empty but in its first exchange
    request: bytes = b""  # of a stage; empty to ask who the client is, and which hashes it has


@dataclass(frozen=True)
class SumReply(_Record):
    """Reply of a client in a secure sum's own exchange."""

    name: ClassVar[str] = SUM_RECORD
    code: str = ""  # empty if it answers; else why not, in a word
    reason: str = ""  # the same in a sentence
    member: bytes = b""  # its number in the secure sum, in eight bytes
    fingerprint: bytes = b""  # of the round's hashes
    reply: bytes = b""  # of the secure sum's stage
    limits: ClassVar[dict[str, int]] = {"code": 40, "reason": 2000, "member": 8, "fingerprint": 8}


def content_bytes(content: Any, sizes: dict[int, int] | None = None) -> int:
    """Size of a message's records as Flower serialises them, without what HTTP adds.

    `sizes` caches those of arrays that several messages share, by `id`.
    """
    sizes = {} if sizes is None else sizes
    if id(content) in sizes:
        return sizes[id(content)]
    children = (content.children or {}).values()
    size = len(content.deflate()) + sum(content_bytes(child, sizes) for child in children)
    if isinstance(content, ArrayRecord):  # which the caller keeps alive, and with it its id
        sizes[id(content)] = size
    return size

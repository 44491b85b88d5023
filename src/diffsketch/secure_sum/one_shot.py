"""One-shot secure sums with two aggregators that do not collude: one message from each client.

A client subtracts the expansion of a fresh seed from its cells, modulo `2**bits`, and sends the
result to the *leader* (a server) with the seed sealed to the key of the *helper* (run by another
operator). The leader adds the masked cells of those who came, and passes their sealed seeds on; the
helper opens these, adds their expansions and returns one sum. The two sums together are the total.
Nothing goes down to the clients, and who does not come is simply in neither sum.

| | has | sees |
| --- | --- | --- |
| leader | masked cells, sealed seeds | the total, and who is in it |
| helper | seeds | who is in the total |

A message of a client is a `diffsketch.wire.Message` of the masked cells and its seal: the public
half of its channel key (32 bytes), the signature of that by its identity (64, where clients sign),
a nonce (12), and the encrypted seed with its tag (48). The channel key of client and helper is made
by X25519; with HKDF it gives a new key in every round. The helper verifies the signature and
computes the channel's secret once for each client, and remembers both.

`docs/secure-sum.md` says what is assumed, and what a client or an operator can do.
"""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import Tensor

from diffsketch.errors import ArgumentError, check_whole
from diffsketch.secure_sum import masks, messages, primitives
from diffsketch.secure_sum.client import ReplyGuard
from diffsketch.secure_sum.masks import Words
from diffsketch.secure_sum.messages import MessageKind, RoundParams, Stage
from diffsketch.secure_sum.primitives import PUBLIC_BYTES, SECRET_BYTES, KeyPair, RefusedError
from diffsketch.secure_sum.server import Total
from diffsketch.wire import SERVER, DuplicateError, MessageFormat
from diffsketch.wire.message import check_data, pack, unpack

_MASK = "one-shot mask"
_BATCH = struct.Struct("<IB")  # number of a request in its round, and whether it is the last
_SET = struct.Struct("<I32s")  # clients in the sum: their number and digest


class SealFault(StrEnum):
    """Why the helper leaves a client out of the sum; their places, from 1, are the codes."""

    UNKNOWN = "its identity is not one that the helper knows"
    UNSIGNED = "its identity has not signed its channel key"
    ALTERED = "its seed was altered, or is not of this round, plan, client and helper"
    REPEATED = "its seed is in the sum already"


_REASONS = {bytes([code]): str(fault) for code, fault in enumerate(SealFault, start=1)}
_CODES = {reason: code for code, reason in _REASONS.items()}


@dataclass(frozen=True)
class OneShotParams(RoundParams):
    """Parameters of a round, equal for the clients and the helper: else no seed can be opened.

    All of them go into `context`, from which every key is derived. So a seed of another run, round,
    method or plan is refused, and nobody's `min_present` can be lowered for the others.

    Args:
        layout: Format of the inputs: unsigned cells. Sums are taken modulo `2**bits`.
        run: Identifies the run or round: 16 to 64 bytes that no other has.
        round_index: The round.
        fingerprint: Fingerprint of the round's hashes.
        min_present: Number of inputs that must be in the sum; the helper gives no smaller one.
        helper: The helper's public key, not obtained from the server.
        plan: Text of all else that clients and helper agree on.
        signed: Whether clients sign, by identities that the helper knows. Without, a server may
            invent clients around a single real one: it must follow the protocol.

    Raises:
        ArgumentError: A value is out of range.
    """

    helper: bytes
    plan: str = ""
    signed: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("min_present", self.min_present, least=2)
        if not isinstance(self.helper, bytes) or len(self.helper) != PUBLIC_BYTES:
            raise ArgumentError(f"helper must be a public key of {PUBLIC_BYTES} bytes")
        _ = self.context  # checks the other numbers

    @property
    def seal_bytes(self) -> int:
        """Bytes that a client's message has beside those of a plain one."""
        return _seal_bytes(self.signed)

    @cached_property
    def context(self) -> bytes:
        """Digest of 32 bytes of all parameters."""
        end = struct.pack("<2Q", self.min_present, self.signed)
        texts = self.plan.encode(), self.helper
        return self._digest(b"diffsketch one-shot sum 1", *texts, count=1, end=end)


class OneShotClient:
    """A client: masks its cells, once a round, and seals the seed of the mask to the helper.

    Masks are independent even if a client, set back to an older state, masks other cells in the
    same round: each message has a seed of its own, and the helper puts one of them into a sum.

    Guarantees (`tests/secure_sum/test_one_shot.py`): masked cells are uniform and independent of
    the input, and so is all that the helper sees; a seal opens for its own round, plan, client and
    helper only.

    Args:
        index: Number of the client, below `2**64 - 1`.
        helper: The helper's public key, not obtained from the server.
        identity: The client's long-term key, where clients sign.
        randomness: Function from a size to that many secret random bytes. Only tests with known
            answers replace the operating system's.
    """

    def __init__(
        self,
        index: int,
        helper: bytes,
        *,
        identity: primitives.SigningIdentity | None = None,
        randomness: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self.index, self._helper, self._randomness = index, helper, randomness
        pair = KeyPair(randomness(SECRET_BYTES))
        self._secret, self._ends = pair.agree(helper), _ends(index, pair.public, helper)
        signature = b"" if identity is None else identity.sign(b"seal" + self._ends)
        self._signed, self._channel = identity is not None, pair.public + signature

    def mask(self, cells: Tensor, params: OneShotParams) -> bytes:
        """Return the message: masked cells, and the sealed seed.

        Args:
            cells: The input with its noise: of the format's shape, int64 below `2**bits`.
            params: Parameters of the round, on which this client insists.

        Raises:
            ArgumentError: The cells do not fit the format; or another helper or no identity is
                in the parameters.
        """
        if params.helper != self._helper or params.signed != self._signed:
            raise ArgumentError("params must have the helper of this client, and sign as it does")
        words, seed = masks.input_words(cells, params.layout), self._randomness(SECRET_BYTES)
        words -= masks.seed_mask(seed, self.index, params, _MASK)
        return masks.pack_masked(words, self.index, params) + self.seal(seed, params)

    def seal(self, seed: bytes, params: OneShotParams) -> bytes:
        """Encrypt a seed for the helper."""
        # Drawn, as a channel may seal more than once in a round.
        nonce = self._randomness(primitives.NONCE_BYTES)
        key, bound = _seal_key(self._secret, self._ends, params)
        return self._channel + nonce + primitives.encrypt(key, seed, bound, nonce=nonce)


class OneShotHelper:
    """The helper: opens the seeds of those who came, and answers one set of clients in a round.

    The difference of two sums would be a single client's mask. So the digest of the answer is
    written to `memory` before it is given, and for another set of the same round there is none,
    over restarts and in all processes with this memory. Its files must never be removed or set
    back; they have 64 bytes a round.

    A set may come in several requests, for more clients than fit into one. At a restart in between
    they are forgotten, and the round is void.

    Guarantees (`tests/secure_sum/test_one_shot.py`): no second set, none below `min_present`, no
    client that is unknown, repeated, of another round or altered; the same answer to a repeated
    request, also of another process.

    Args:
        secret: Its long-term X25519 key, 32 bytes.
        memory: A directory of the helper alone, kept for ever. Made if it does not exist.
        identities: Public keys of all clients by their numbers, not obtained from the server. None
            for a server that is trusted to follow the protocol.
    """

    def __init__(
        self, secret: bytes, memory: str | Path, *, identities: Mapping[int, bytes] | None = None
    ) -> None:
        self._pair, self._memory = KeyPair(secret), ReplyGuard(memory)
        self._identities = identities
        self.public = self._pair.public
        self._channels: dict[int, tuple[bytes, bytes]] = {}  # key and secret, of known clients
        self._open: _OpenSet | None = None

    def answer(self, request: bytes, params: OneShotParams) -> bytes:
        """Answer a request of the leader: who is left out, and the sum of masks in the last one.

        Args:
            request: The leader's request.
            params: Parameters of the round. Method, plan, `min_present` and identities are those
                that the helper itself knows, whatever the server says.

        Raises:
            RefusedError: Not a request of this round, or out of order; or it is the last one, and
                too few are in the sum, or another set was answered in this round.
            ArgumentError: The parameters have another helper, or clients sign and it knows none.
        """
        if params.helper != self.public or params.signed != (self._identities is not None):
            raise ArgumentError("params must have this helper's key, and sign if it knows clients")
        sender, body = messages.open_envelope(request, MessageKind.SEEDS, context=params.context)
        greeting, start = _BATCH.size, _BATCH.size + _seal_bytes(False)
        if sender != SERVER or len(body) < start + 4:
            raise RefusedError("not a request of a leader")
        number, last = _BATCH.unpack_from(body)
        key = self._opened(SERVER, body[greeting:start], params, signed=False)
        seals = messages.read_list(body[start:], params.seal_bytes)
        if number == 0:
            self._open = _OpenSet(params.context, params.layout)
        opened = self._open
        if opened is None or (opened.context, opened.number) != (params.context, number):
            raise RefusedError(f"request {number} of the round is out of order")
        refused = {}
        for index, seal in seals.items():
            try:
                seed = self._seed(index, seal, params)
                if index in opened.indices:  # twice would count it double
                    raise _LeftOutError(SealFault.REPEATED)
                opened.add(index, masks.seed_mask(seed, index, params, _MASK))
            except _LeftOutError as error:
                refused[index] = _CODES[str(error)]
        opened.number += 1
        answer = body[: _BATCH.size] + messages.pack_list(refused)
        if last:
            self._open = None
            answer += self._settled(opened, params)
        tag = _tag(key, answer, params)
        return messages.pack_message(MessageKind.SEED_SUM, tag + answer, context=params.context)

    def _settled(self, opened: _OpenSet, params: OneShotParams) -> bytes:
        """Serialise the sum, once it is settled that this is the round's only set."""
        count = len(opened.indices)
        if count < params.min_present:
            raise RefusedError(
                f"{count} clients are in the sum, and {params.min_present} are needed"
            )
        total = _SET.pack(count, _digest(opened.indices))
        total += pack(opened.cells, params.layout)
        # One name for all answers of a round; the tag and who was left out may differ.
        self._memory.bind(total, Stage.UNMASK, index=SERVER, context=params.context)
        return total

    def _seed(self, index: int, seal: bytes, params: OneShotParams) -> bytes:
        """Open a seed; raise `_LeftOutError` if it is not a real client's of this round."""
        if index == SERVER or (self._identities is not None and index not in self._identities):
            raise _LeftOutError(SealFault.UNKNOWN)
        try:
            return self._opened(index, seal, params, signed=params.signed)
        except _LeftOutError:
            raise
        except RefusedError as error:
            raise _LeftOutError(SealFault.ALTERED) from error

    def _opened(self, index: int, seal: bytes, params: OneShotParams, *, signed: bool) -> bytes:
        """Decrypt a seal; a channel's signature and secret are computed once."""
        public, start = seal[:PUBLIC_BYTES], PUBLIC_BYTES + primitives.SIGNATURE_BYTES * signed
        ends = _ends(index, public, self.public)
        known, secret = self._channels.get(index, (b"", b""))
        if known != public:
            secret = self._pair.agree(public)
            if signed and self._identities is not None:
                signature = seal[PUBLIC_BYTES:start]
                try:
                    primitives.verify(self._identities[index], signature, b"seal" + ends)
                except RefusedError as error:
                    raise _LeftOutError(SealFault.UNSIGNED) from error
                # As many as there are identities: of invented clients nothing is remembered.
                self._channels[index] = public, secret
        key, bound = _seal_key(secret, ends, params)
        nonce = seal[start : start + primitives.NONCE_BYTES]
        return primitives.decrypt(key, seal[start + primitives.NONCE_BYTES :], bound, nonce=nonce)


class OneShotLeader:
    """The leader: adds masked cells, and has the helper's sum in exchange for their sealed seeds.

    `collect` takes clients' messages, `request` makes the helper's request, and `take` its answer.
    For more clients than fit into memory that is repeated, with `request(last=False)` but for the
    last time. A message whose seed the helper cannot open is left out.

    Guarantees (`tests/secure_sum/test_one_shot.py`): the total is the sum of the inputs of those
    present, whoever is lost or refused; an answer of anybody but the helper is refused.

    Args:
        params: Parameters of the round.

    >>> import tempfile
    >>> import torch
    >>> secret = secrets.token_bytes(32)
    >>> helper = OneShotHelper(secret, tempfile.mkdtemp())
    >>> params = OneShotParams(
    ...     MessageFormat("sketch-skellam", 9, (1, 2), "unsigned", 8), run=bytes(16),
    ...     round_index=0, fingerprint=bytes(8), min_present=2, helper=helper.public, signed=False,
    ... )
    >>> leader = OneShotLeader(params)
    >>> for index in (1, 2, 3):
    ...     message = OneShotClient(index, helper.public).mask(torch.tensor([[index, 255]]), params)
    ...     _ = leader.collect(message)
    >>> leader.take(helper.answer(leader.request(), params))
    {}
    >>> leader.total()
    Total(cells=tensor([[  6, 253]]), present=(1, 2, 3))
    """

    def __init__(
        self, params: OneShotParams, *, randomness: Callable[[int], bytes] = secrets.token_bytes
    ) -> None:
        self.params = params
        # The answer has a tag under this key, which nobody but the helper can open.
        self._key = randomness(SECRET_BYTES)
        self._greeting = OneShotClient(SERVER, params.helper, randomness=randomness).seal(
            self._key, params
        )
        self._waiting: dict[int, tuple[Words, bytes]] = {}
        self._asked: dict[int, tuple[Words, bytes]] = {}
        self._request = b""
        self._set = _OpenSet(params.context, params.layout)
        self._total: Total | None = None

    def collect(self, data: bytes, *, sent_by: int | None = None) -> int:
        """Take in a client's message; return whose it is.

        Args:
            data: Bytes that have come.
            sent_by: The client that it came from, where the transport knows.

        Raises:
            DuplicateError: The client has sent one before: the first one stays.
            WireError: Not a message of this round, or of another client.
        """
        check_data(data)
        params, end = self.params, self.params.layout.full_bytes
        if len(data) != end + params.seal_bytes:
            raise RefusedError(
                f"message has {len(data)} bytes, and {end + params.seal_bytes} are expected"
            )
        sender, words = masks.read_masked(data[:end], params)
        if sent_by not in (None, sender) or sender == SERVER:
            raise RefusedError(f"{sent_by} has sent a message of {sender}")
        if any(sender in taken for taken in (self._waiting, self._asked, self._set.indices)):
            raise DuplicateError(f"{sender} has sent a message in this round before")
        self._waiting[sender] = words, data[end:]
        return sender

    def request(self, *, last: bool = True) -> bytes:
        """Serialise the request for the clients that came since the last one; repeated until taken.

        Args:
            last: Whether all clients have come.
        """
        if not self._request:
            self._asked, self._waiting = self._waiting, {}
            seals = {index: seal for index, (_, seal) in self._asked.items()}
            body = _BATCH.pack(self._set.number, last) + self._greeting + messages.pack_list(seals)
            context = self.params.context
            self._request = messages.pack_message(MessageKind.SEEDS, body, context=context)
        return self._request

    def take(self, answer: bytes) -> dict[int, str]:
        """Take in the helper's answer; return who is left out of the sum, and why.

        Raises:
            RefusedError: It is not the helper's answer to the last request.
        """
        params, batch = self.params, self._request[messages.ENVELOPE_BYTES :][: _BATCH.size]
        _, body = messages.open_envelope(answer, MessageKind.SEED_SUM, context=params.context)
        tag, body = body[:SECRET_BYTES], body[SECRET_BYTES:]
        if not secrets.compare_digest(tag, _tag(self._key, body, params)):
            raise RefusedError("the answer is not the helper's")
        if not batch or body[: _BATCH.size] != batch:
            raise RefusedError("the answer is to another request")
        start, last = _BATCH.size, _BATCH.unpack(batch)[1]
        end = start + 4 + 9 * int.from_bytes(body[start : start + 4], "little")
        refused = messages.read_list(body[start:end], 1)
        size = end + last * (_SET.size + params.layout.payload_bytes)
        listed = refused.keys() <= self._asked.keys() and {*refused.values()} <= _REASONS.keys()
        if len(body) != size or not listed:
            raise RefusedError("the answer has another form than those of helpers")
        accepted = {i: words for i, (words, _) in self._asked.items() if i not in refused}
        if last:
            indices = self._set.indices | accepted.keys()
            count, digest = _SET.unpack_from(body, end)
            if (count, digest) != (len(indices), _digest(indices)):
                raise RefusedError("the helper's sum is not of the clients that were asked for")
            if count < params.min_present:  # else a helper could have one input published
                raise RefusedError(f"the helper leaves {count} clients in the sum")
            summed = masks.to_words(unpack(body[end:], params.layout), params.layout)
        for index, words in accepted.items():
            self._set.add(index, words)
        self._set.number += 1
        self._request, self._asked = b"", {}
        if last:
            self._set.words += summed
            self._total = Total(self._set.cells, tuple(sorted(self._set.indices)))
        return {index: _REASONS[code] for index, code in refused.items()}

    def total(self) -> Total:
        """Return the sum; an `ArgumentError` before the last answer."""
        if self._total is None:
            raise ArgumentError("total must be asked for after the answer to the last request")
        return self._total


class _LeftOutError(RefusedError):
    """A client is left out of the sum, for a `SealFault`."""


class _OpenSet:
    """Clients of a round so far, and the sum of their masks or masked cells."""

    def __init__(self, context: bytes, layout: MessageFormat) -> None:
        self.context, self._layout = context, layout
        self.number = 0  # of the next request
        self.indices: set[int] = set()
        # A server may claim any size: only a client's words, sealed for that, take memory.
        self.words: Words = np.zeros(0, np.uint64)

    def add(self, index: int, words: Words) -> None:
        """Add the mask or the masked cells of a client that is not yet in the sum."""
        if self.indices:
            self.words += words
        else:
            self.words = words.copy()
        self.indices.add(index)

    @property
    def cells(self) -> Tensor:
        """The sum as cells; there must be a client in it."""
        return masks.to_cells(self.words, self._layout)


def _seal_bytes(signed: bool) -> int:
    sealed = primitives.NONCE_BYTES + SECRET_BYTES + primitives.TAG_BYTES
    return PUBLIC_BYTES + primitives.SIGNATURE_BYTES * signed + sealed


def _ends(index: int, channel: bytes, helper: bytes) -> bytes:
    """Both ends of a channel: what its keys are derived from, and its identity signs."""
    return index.to_bytes(8, "little") + channel + helper


def _seal_key(secret: bytes, ends: bytes, params: OneShotParams) -> tuple[bytes, bytes]:
    """Return the key of a channel for one round, and what a sealed seed is bound to."""
    key = primitives.derive(secret, context=params.context, label="seal", about=ends)
    return key, params.context + ends


def _tag(key: bytes, answer: bytes, params: OneShotParams) -> bytes:
    digest = hashlib.sha256(answer).digest()
    return primitives.derive(key, context=params.context, label="answer", about=digest)


def _digest(indices: Iterable[int]) -> bytes:
    """Digest of a set of clients."""
    return hashlib.sha256(np.array(sorted(indices), "<u8").tobytes()).digest()

"""Summation of a round's messages: plain sums, and the interface of secure ones."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from diffsketch.flower.plan import Plan
from diffsketch.flower.records import (
    SUM_RECORD,
    Reply,
    SumReply,
    SumRequest,
    content_bytes,
    record_in,
)
from diffsketch.flower.server import RoundReport
from diffsketch.methods import Method
from diffsketch.privacy.claim import Claim, Trust
from diffsketch.secure_sum import VoidError
from diffsketch.sketch import SketchKey
from diffsketch.wire import Header, Inbox, WireError
from diffsketch.wire import Message as WireMessage


@dataclass(frozen=True, eq=False)
class SumRound:
    """What a sum is about.

    Attributes:
        plan: The strategy's.
        method: Of the plan, for the model's length.
        round_index: The round.
        fingerprint: Of its hashes; None if the server has no key.
        nonce: Sixteen random bytes of the round's own.
        limit: Largest norm of a message, besides what the method itself says of honest ones.
    """

    plan: Plan
    method: Method
    round_index: int
    fingerprint: bytes | None
    nonce: bytes
    limit: float = math.inf


@dataclass(frozen=True, eq=False)
class Summed:
    """A round's total.

    Attributes:
        total: Before the server adds anything; None if there is nothing to sum.
        present: Nodes whose message is in it.
        refused: Nodes whose message is not, and why.
        void: Why there is no total, where a sum was begun and failed.
    """

    total: WireMessage | None
    present: frozenset[int]
    refused: Mapping[int, str]
    void: str = ""


@dataclass(frozen=True, eq=False)
class Prepared:
    """What comes before the messages.

    Attributes:
        told: More for the nodes that are asked for a message, by node. Others are not asked. None
            if there is nothing to tell, and all are.
        left: The others, and why.
    """

    told: Mapping[int, ConfigRecord] | None = None
    left: Mapping[int, str] = field(default_factory=dict)


class Summation(Protocol):
    """What the strategy needs."""

    trusts: ClassVar[frozenset[Trust]]
    """Claims under which trust hold with it."""

    def prepare(self, nodes: Collection[int], about: SumRound, *, exchange: Exchange) -> Prepared:
        """Before messages are asked for.

        Raises:
            VoidError: There will be no sum in this round.
        """

    def total(self, parts: Mapping[int, bytes], about: SumRound, *, exchange: Exchange) -> Summed:
        """The sum of what the nodes sent: untrusted bytes by the node that they came from."""


@dataclass(frozen=True, eq=False)
class Own:
    """What a client has of its own.

    Attributes:
        context: Flower's. Its state is kept from message to message.
        plan: The client's.
        key: The clients' common key; None if it is not there.
        node: Its id.
    """

    context: Context
    plan: Plan
    key: SketchKey | None
    node: int


class Sealing(Protocol):
    """The client's side of a secure sum."""

    trusts: ClassVar[frozenset[Trust]]
    """Claims under which trust hold with it."""

    def answered(self, message: Message, own: Own) -> Message | None:
        """The reply to a message of the secure sum's own; None if it is none of them."""

    def expect(self, told: ConfigRecord | None, round_index: int, *, own: Own) -> None:
        """Before the app trains and anything is paid.

        Args:
            told: What `Summation.prepare` has for this node.
            round_index: The round.
            own: What the client has.

        Raises:
            Refusal: A message of this round could not be sealed.
            WireError: The record is not one of the secure sum.
        """

    def sealed(self, message: WireMessage, told: ConfigRecord | None, *, own: Own) -> bytes:
        """What is sent instead of the message.

        Raises:
            Refusal: It must not be sent.
            WireError: The record is not one of the secure sum.
        """


class PlainSum:
    """Messages that the server sees, added.

    Without a key the server does not know the round's hashes. It then takes the fingerprint that
    most messages have, and refuses the others; a draw is nobody's round.

    Guarantees (`tests/flower/test_flower_hostile.py`): bytes that are not a message of the round
    by the node they came from change nothing but a count; nor do messages that are longer than
    honest clients make them (`Method.check_honest`).
    """

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.LOCAL, Trust.CENTRAL})

    def prepare(self, nodes: Collection[int], about: SumRound, *, exchange: Exchange) -> Prepared:
        """Nothing."""
        del nodes, about, exchange
        return Prepared()

    def total(self, parts: Mapping[int, bytes], about: SumRound, *, exchange: Exchange) -> Summed:
        """The exact sum, the same for every order."""
        del exchange
        method, chosen = about.method, about.fingerprint
        if chosen is None:
            chosen = most_common(map(_fingerprint, parts.values()))
        inbox = Inbox(
            method.message_format,
            round_index=about.round_index,
            fingerprint=chosen,
            senders=parts,
            total_format=method.total_format,
            check=lambda one: method.check_honest(one.cells, limit=about.limit),
        )
        refused: dict[int, str] = {}
        for node, data in parts.items():
            try:
                if Header.parse(data).sender != node:
                    raise WireError("message has another sender than the node it came from")
                inbox.add(data)
            except WireError as error:
                refused[node] = str(error)
        total = None
        if inbox.count:
            try:
                total = inbox.total()
            except WireError as error:  # a sum that does not fit: somebody sent what nobody may
                refused = {node: str(error) for node in parts}
                return Summed(None, frozenset(), refused)
        return Summed(total, frozenset(inbox.heard), refused)


def most_common(fingerprints: Iterable[bytes | None]) -> bytes:
    """The one that most have; one that none has if there is no such."""
    found = Counter(one for one in fingerprints if one is not None)
    first = found.most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return bytes(8)
    return first[0][0]


def _fingerprint(data: bytes) -> bytes | None:
    try:
        return Header.parse(data).fingerprint
    except WireError:
        return None


_LOG = logging.getLogger("flwr.diffsketch")


@dataclass
class OpenRound:
    """What was asked, and what has come so far.

    Attributes:
        about: The round. Replies have to repeat its nonce.
        nodes: Who was asked.
        claim: What was planned.
        arrays_key: Name of the model's record in messages.
        bytes_down: Of what was sent.
        exchange: That a secure sum has used.
        left: Nodes that a secure sum has lost before messages were asked for, and why.
        replies: The first of each node that is in order.
        contents: What came with these.
        refused: Nodes that do not count, and why.
        bytes_up: Of all that came.
    """

    about: SumRound
    nodes: tuple[int, ...]
    claim: Claim
    arrays_key: str
    bytes_down: int
    exchange: Exchange
    left: dict[int, str] = field(default_factory=dict)
    replies: dict[int, Reply] = field(default_factory=dict)
    contents: dict[int, Message] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: int = 0

    @property
    def index(self) -> int:
        """The round's."""
        return self.about.round_index

    @property
    def parts(self) -> dict[int, bytes]:
        """The bytes that should be messages, by node."""
        return {node: one.message for node, one in self.replies.items() if not one.code}

    def take(self, message: Message) -> Reply | None:
        """One reply; None if it is not in order."""
        node = message.metadata.src_node_id
        if not message.has_content():
            reason = str(message.error.reason)
            _LOG.warning("node %d did not answer: %s", node, reason)
            if node in self.nodes and node not in self.replies:  # else the server's own, for one
                self.refused[node] = f"error: {reason[:1000]}"
            return None
        self.bytes_up += content_bytes(message.content)
        try:
            if node not in self.nodes:
                raise WireError("reply is of a node that was not asked")
            reply = reply_in(message.content, self.about.nonce)
            if node in self.replies:
                raise WireError("reply is the node's second one")
        except WireError as error:
            if node not in self.replies:  # a second reply does not spoil the first one
                self.refused[node] = str(error)
            _LOG.warning("reply of node %d refused: %s", node, error)
            return None
        self.refused.pop(node, None)
        self.replies[node], self.contents[node] = reply, message
        if reply.code:
            self.refused[node] = f"{reply.code}: {reply.reason}"
        return reply

    def report(self, present: frozenset[int], claim: Claim, void: str) -> RoundReport:
        """What became of it."""
        heard = set(self.replies) | set(self.refused)
        return RoundReport(
            round_index=self.index,
            asked=(*self.nodes, *self.left),
            present=tuple(sorted(present)),
            refused=self.left | self.refused,
            silent=tuple(node for node in self.nodes if node not in heard),
            bytes_down=self.bytes_down + self.exchange.bytes_down,
            bytes_up=self.bytes_up + self.exchange.bytes_up,
            message_bytes=sum(len(one.message) for one in self.replies.values()),
            claim=claim,
            void=void,
        )


def unopened(
    about: SumRound, nodes: tuple[int, ...], exchange: Exchange, error: VoidError
) -> RoundReport:
    """A round that failed before a message was asked for. So nobody pays for it."""
    return RoundReport(
        round_index=about.round_index,
        asked=nodes,
        present=(),
        refused={node: f"dropped out: {stage.value}" for node, stage in error.dropped.items()},
        bytes_down=exchange.bytes_down,
        bytes_up=exchange.bytes_up,
        void=str(error),
    )


def reply_in(content: RecordDict, nonce: bytes) -> Reply:
    """What a node says in its reply to the request with this nonce.

    Raises:
        WireError: It is no reply of ours, or to another request.
    """
    record = record_in(content)
    if record is None:
        raise WireError("reply is not of a client with sketch_mod")
    reply = Reply.of(record)
    if reply.nonce != nonce:
        raise WireError("reply is to another request")
    return reply


class Exchange:
    """Counts what passes.

    Args:
        grid: The strategy's.
        timeout: Seconds that one question waits for its answers.

    Attributes:
        bytes_up: Sent by nodes so far, as Flower serialises it.
        bytes_down: Sent to nodes so far.
    """

    def __init__(self, grid: Grid, *, timeout: float) -> None:
        self.grid, self._timeout = grid, timeout
        self.bytes_up = self.bytes_down = 0

    def ask(self, requests: Mapping[int, SumRequest]) -> tuple[dict[int, SumReply], dict[int, str]]:
        """Send to each node what is for it, and wait.

        Returns:
            The first answer of each node that gave one; and why others did not, of those that
            said so. Who is in neither was silent.
        """
        messages = []
        for node, request in requests.items():
            content = RecordDict({SUM_RECORD: request.to_record()})
            self.bytes_down += content_bytes(content)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        found: dict[int, SumReply] = {}
        refused: dict[int, str] = {}
        for message in self.grid.send_and_receive(messages, timeout=self._timeout):
            node = message.metadata.src_node_id
            if node not in requests or node in found:
                _LOG.warning("secure sum: node %d was not asked, or has answered before", node)
                continue
            try:
                reply = self._read(message)
            except WireError as error:
                refused[node] = str(error)
                continue
            if reply.code:
                refused[node] = f"{reply.code}: {reply.reason}"
                continue
            refused.pop(node, None)
            found[node] = reply
        return found, refused

    def _read(self, message: Message) -> SumReply:
        if not message.has_content():
            raise WireError(f"error: {str(message.error.reason)[:1000]}")
        self.bytes_up += content_bytes(message.content)
        record = message.content.config_records.get(SUM_RECORD)
        if record is None:
            raise WireError("reply is not of a client with a secure sum")
        return SumReply.of(record)

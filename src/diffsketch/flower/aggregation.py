"""Aggregation of a round: replies of nodes, their plain sum, and the interface of secure sums."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from diffsketch.flower.plan import FlowerPlan
from diffsketch.flower.records import (
    SUM_RECORD,
    Reply,
    SumReply,
    SumRequest,
    content_bytes,
    reply_in,
)
from diffsketch.methods import Method
from diffsketch.privacy.claim import Claim, Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire import Header, Inbox, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round that is aggregated.

    Attributes:
        plan: The strategy's plan.
        method: The plan's method, for the model's length.
        round_index: The round.
        fingerprint: Fingerprint of its hashes; None if the server has no key.
        nonce: Sixteen random bytes of the round.
        limit: Largest norm of a message, besides what the method itself says of honest ones.
    """

    plan: FlowerPlan
    method: Method
    round_index: int
    fingerprint: bytes | None
    nonce: bytes
    limit: float = math.inf


@dataclass(frozen=True, eq=False)
class AggregationResult:
    """Total of a round.

    Attributes:
        total: The sum before the server adds anything; None if there is nothing to sum.
        present: Nodes whose message is in it.
        refused: Nodes whose message is not, and why.
        void: Why there is no total, where a sum was begun and failed.
    """

    total: WireMessage | None
    present: frozenset[int]
    refused: Mapping[int, str]
    void: str = ""


@dataclass(frozen=True, eq=False)
class Preparation:
    """Outcome of the exchanges before messages are requested.

    Attributes:
        instructions: A record for each node that a message is requested of; others are left out.
            None if there is none, and all are asked.
        left: Nodes that are left out, and why.
    """

    instructions: Mapping[int, ConfigRecord] | None = None
    left: Mapping[int, str] = field(default_factory=dict)


class Aggregation(Protocol):
    """Server's side of an aggregation, for `SketchStrategy`."""

    trusts: ClassVar[frozenset[Trust]]
    """Trusts whose claims hold with it."""

    def prepare(self, nodes: Collection[int], about: RoundContext, *, exchange: Exchange
                ) -> Preparation:  # fmt: skip
        """Prepare the round before messages are requested.

        Raises:
            VoidError: There will be no sum in this round.
        """

    def total(self, parts: Mapping[int, bytes], about: RoundContext, *, exchange: Exchange
              ) -> AggregationResult:  # fmt: skip
        """Sum what the nodes sent: untrusted bytes by the node that they came from."""


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client that takes part.

    Attributes:
        context: Flower's context. Its state is kept from message to message.
        plan: The client's plan.
        key: The clients' common key; None if it is not there.
        node: Its node id.
    """

    context: Context
    plan: FlowerPlan
    key: SketchKey | None
    node: int


class ClientAggregation(Protocol):
    """Client's side of an aggregation that is not plain, for `sketch_mod`."""

    trusts: ClassVar[frozenset[Trust]]
    """Trusts whose claims hold with it."""

    def answer(self, message: Message, client: ClientContext) -> Message | None:
        """Reply to a message of the aggregation's own exchanges; None if it is none of them."""

    def check(
        self, instructions: ConfigRecord | None, round_index: int, *, client: ClientContext
    ) -> None:
        """Check that a message of the round can be protected, before training and payment.

        Raises:
            Refusal: It cannot.
            WireError: The record, which `Aggregation.prepare` has for this node, is not readable.
        """

    def protect(
        self, message: WireMessage, instructions: ConfigRecord | None, *, client: ClientContext
    ) -> bytes:
        """Make the bytes that are sent instead of the message. Raises what `check` does."""


class PlainAggregation:
    """Adds messages that the server sees.

    Without a key the server does not know the round's hashes. It then takes the fingerprint that
    most messages have, and refuses the others; if two are as frequent, it refuses all.

    Guarantees (`tests/flower/test_hostile.py`): bytes that are not a message of the round by the
    node they came from change nothing but a count; nor do messages that are longer than honest
    clients make them (`Method.check_honest`).
    """

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.LOCAL, Trust.CENTRAL})

    def prepare(self, nodes: Collection[int], about: RoundContext, *, exchange: Exchange
                ) -> Preparation:  # fmt: skip
        """Do nothing: all nodes are asked."""
        del nodes, about, exchange
        return Preparation()

    def total(self, parts: Mapping[int, bytes], about: RoundContext, *, exchange: Exchange
              ) -> AggregationResult:  # fmt: skip
        """Compute the exact sum, the same for every order."""
        del exchange
        method, refused, headers = about.method, dict[int, str](), dict[int, Header]()
        for node, data in parts.items():
            try:
                headers[node] = Header.parse(data)
                if headers[node].sender != node:
                    raise WireError("message has another sender than the node it came from")
            except WireError as error:
                refused[node] = str(error)
        fingerprint = about.fingerprint
        if fingerprint is None:
            fingerprint = most_common(one.fingerprint for one in headers.values())
        inbox = Inbox(
            method.message_format,
            round_index=about.round_index,
            fingerprint=fingerprint,
            senders=parts,
            total_format=method.total_format,
            check=lambda one: method.check_honest(one.cells, limit=about.limit),
        )
        for node, data in parts.items():
            try:
                if node not in refused:
                    inbox.add(data)
            except WireError as error:
                refused[node] = str(error)
        total = None
        if inbox.count:
            try:
                total = inbox.total()
            except WireError as error:  # a sum that does not fit: somebody sent what nobody may
                return AggregationResult(None, frozenset(), dict.fromkeys(parts, str(error)))
        return AggregationResult(total, frozenset(inbox.heard), refused)


def most_common(fingerprints: Iterable[bytes]) -> bytes:
    """Find the most frequent one; if there is no such, one that none has."""
    first = Counter(fingerprints).most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return bytes(8)
    return first[0][0]


class Exchange:
    """Requests and replies of a secure sum, outside of those for messages; counts their bytes.

    Args:
        grid: The strategy's grid.
        timeout: Seconds to wait for the replies to one request.

    Attributes:
        bytes_up: Bytes sent by nodes so far, as Flower serialises them.
        bytes_down: Bytes sent to nodes so far.
    """

    def __init__(self, grid: Grid, *, timeout: float) -> None:
        self.grid, self._timeout = grid, timeout
        self.bytes_up = self.bytes_down = 0

    def send(
        self, requests: Mapping[int, SumRequest]
    ) -> tuple[dict[int, SumReply], dict[int, str]]:
        """Send each node its request, and wait.

        Returns:
            The first reply of each node that gave one; and why others did not, of those that
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
            else:
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


@dataclass(frozen=True, eq=False)
class RoundReport:
    """Report of one round.

    Attributes:
        round_index: The round, as hashes count them; Flower's own rounds begin at 1.
        selected: Nodes that a message was requested of.
        present: Nodes whose message is in the sum.
        refused: Other nodes that answered, and why they do not count.
        silent: Nodes that did not answer in time.
        bytes_down: Bytes sent to the nodes, as Flower serialises them.
        bytes_up: Bytes that came back, of whatever kind.
        message_bytes: Bytes of the methods' messages in `bytes_up`.
        claim: The round's guarantee for those who were selected.
        void: Why the model did not change; empty if it did.
    """

    round_index: int
    selected: tuple[int, ...]
    present: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    message_bytes: int = 0
    claim: Claim | None = None
    void: str = ""

    def __str__(self) -> str:
        """Format in a line."""
        fate = f"VOID: {self.void}; the model is unchanged" if self.void else "counts"
        return (
            f"round {self.round_index} {fate} ({len(self.present)} of {len(self.selected)} nodes, "
            f"{len(self.refused)} refused, {len(self.silent)} silent; {self.bytes_up:,} bytes up, "
            f"{self.bytes_down:,} bytes down)"
        )


@dataclass
class OpenRound:
    """A round whose messages were requested, and the replies so far.

    Attributes:
        about: The round. Replies have to repeat its nonce.
        nodes: Nodes that a message was requested of.
        claim: Planned claim.
        arrays_key: Name of the model's record in messages.
        bytes_down: Bytes of the requests.
        exchange: Exchange that a secure sum has used.
        left: Nodes that a secure sum has lost before messages were requested, and why.
        replies: The first valid reply of each node.
        contents: Messages of these replies.
        refused: Nodes that do not count, and why.
        bytes_up: Bytes of all replies.
    """

    about: RoundContext
    nodes: tuple[int, ...]
    claim: Claim
    arrays_key: str
    bytes_down: int
    exchange: Exchange
    left: Mapping[int, str]
    replies: dict[int, Reply] = field(default_factory=dict)
    contents: dict[int, Message] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    bytes_up: int = 0

    def add(self, message: Message) -> Reply | None:
        """Take in one reply; return None if it is not valid."""
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
        """Report what became of the round."""
        heard = set(self.replies) | set(self.refused)
        return RoundReport(
            round_index=self.about.round_index,
            selected=(*self.nodes, *self.left),
            present=tuple(sorted(present)),
            refused={**self.left, **self.refused},
            silent=tuple(node for node in self.nodes if node not in heard),
            bytes_down=self.bytes_down + self.exchange.bytes_down,
            bytes_up=self.bytes_up + self.exchange.bytes_up,
            message_bytes=sum(len(one.message) for one in self.replies.values()),
            claim=claim,
            void=void,
        )

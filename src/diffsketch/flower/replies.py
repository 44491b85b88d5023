"""A round whose replies are waited for: what comes is sorted into what may count and what not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from diffsketch.flower.exchange import Exchange
from diffsketch.flower.records import Reply, content_bytes, record_in
from diffsketch.flower.report import RoundReport
from diffsketch.flower.summing import SumRound
from diffsketch.privacy.claim import Claim
from diffsketch.secure_sum import VoidError
from diffsketch.wire import WireError

__all__ = ["OpenRound", "reply_in", "unopened"]

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

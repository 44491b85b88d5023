"""How a round's messages are summed: the seam for secure sums.

The strategy hands a `Summation` whatever bytes nodes sent, and takes a total. `PlainSum` adds
messages that it sees. A secure sum has exchanges of its own before and after the messages: it gets
the grid for that, and nodes find what it wants to tell them in the request's message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context
from flwr.app import Message as FlowerMessage
from flwr.serverapp import Grid

from diffsketch.methods import Method
from diffsketch.privacy.claim import Trust
from diffsketch.wire import Header, Inbox, Message, WireError

__all__ = ["SUM_RECORD", "PlainSum", "Sealing", "Summation", "Summed"]

SUM_RECORD = "diffsketch.sum"
"""Name of the record in which a secure sum of the server and its clients talk to each other."""


@dataclass(frozen=True, eq=False)
class Summed:
    """A round's total.

    Attributes:
        total: Before the server adds anything; None if there is nothing to sum.
        present: Nodes whose message is in it.
        refused: Nodes whose message is not, and why.
    """

    total: Message | None
    present: frozenset[int]
    refused: Mapping[int, str]


class Summation(Protocol):
    """What the strategy needs."""

    trusts: ClassVar[frozenset[Trust]]
    """Claims under which trust hold with it."""

    def prepare(
        self, grid: Grid, nodes: frozenset[int], *, nonce: bytes
    ) -> dict[int, ConfigRecord]:
        """Before messages are asked for: more to tell the nodes, by node."""

    def total(
        self,
        parts: Mapping[int, bytes],
        *,
        method: Method,
        round_index: int,
        fingerprint: bytes | None,
        grid: Grid | None,
    ) -> Summed:
        """The sum of what the nodes sent.

        Args:
            parts: Untrusted bytes by the node that they came from.
            method: That they should be messages of.
            round_index: The round.
            fingerprint: Of its hashes; None if the server has no key.
            grid: For exchanges with nodes.
        """


class Sealing(Protocol):
    """The client's side of a secure sum."""

    trusts: ClassVar[frozenset[Trust]]
    """Claims under which trust hold with it."""

    def answered(self, message: FlowerMessage, context: Context) -> FlowerMessage | None:
        """The reply to a message of the secure sum's own; None if it is none of them."""

    def sealed(self, message: Message, told: ConfigRecord | None, context: Context) -> bytes:
        """What is sent instead of the message.

        Args:
            message: The method's.
            told: What `Summation.prepare` has for this node.
            context: The node's own.

        Raises:
            Refusal: It must not be sent.
        """


class PlainSum:
    """Messages that the server sees, added.

    Without a key the server does not know the round's hashes. It then takes the fingerprint that
    most messages have, and refuses the others; a draw is nobody's round.

    Guarantees (`tests/engines/test_flower_hostile.py`): bytes that are not a message of the round
    by the node they came from change nothing but a count.
    """

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.LOCAL, Trust.CENTRAL})

    def prepare(
        self, grid: Grid, nodes: frozenset[int], *, nonce: bytes
    ) -> dict[int, ConfigRecord]:
        """Nothing."""
        del grid, nodes, nonce
        return {}

    def total(
        self,
        parts: Mapping[int, bytes],
        *,
        method: Method,
        round_index: int,
        fingerprint: bytes | None,
        grid: Grid | None,
    ) -> Summed:
        """The exact sum, the same for every order."""
        del grid
        chosen = _most_common(parts) if fingerprint is None else fingerprint
        inbox = Inbox(
            method.message_format,
            round_index=round_index,
            fingerprint=chosen,
            senders=parts,
            total_format=method.total_format,
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


def _most_common(parts: Mapping[int, bytes]) -> bytes:
    """The fingerprint of most messages; one that none has if there is no such."""
    found: Counter[bytes] = Counter()
    for data in parts.values():
        try:
            found[Header.parse(data).fingerprint] += 1
        except WireError:
            continue
    first = found.most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return bytes(8)
    return first[0][0]

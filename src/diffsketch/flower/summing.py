"""How a round's messages are summed: the seam for secure sums.

The strategy hands a `Summation` whatever bytes nodes sent, and takes a total. `PlainSum` adds
messages that it sees. A secure sum (`secure`, `sealing`) has exchanges of its own before and after
the messages, and nodes find what it wants to tell them in the request's message.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from flwr.app import ConfigRecord, Context
from flwr.app import Message as FlowerMessage

from diffsketch.flower.exchange import Exchange
from diffsketch.flower.plan import Plan
from diffsketch.methods import Method
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire import Header, Inbox, Message, WireError

__all__ = [
    "Own",
    "PlainSum",
    "Prepared",
    "Sealing",
    "SumRound",
    "Summation",
    "Summed",
    "most_common",
]


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

    total: Message | None
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

    def answered(self, message: FlowerMessage, own: Own) -> FlowerMessage | None:
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

    def sealed(self, message: Message, told: ConfigRecord | None, *, own: Own) -> bytes:
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

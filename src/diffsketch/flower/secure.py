"""The server's side of a secure sum: `diffsketch.secure_sum` over messages of Flower.

A round has three exchanges more than without: keys and shares before the messages, and unmasking
after them. Where members sign there is one more after them; and one before, as there is for a
server without a key: who are you, and which hashes do you have?
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from diffsketch.flower.exchange import Exchange
from diffsketch.flower.records import SumRequest
from diffsketch.flower.sealing import by_number
from diffsketch.flower.summing import Prepared, Summed, SumRound, most_common
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Trust
from diffsketch.secure_sum import Params, Server, Stage, VoidError, invite
from diffsketch.wire import SERVER, Message, WireError

__all__ = ["SecureSum"]

_LOG = logging.getLogger("flwr.diffsketch")
_BARRED = "secure-sum: most others could not read its shares of an earlier round"


@dataclass
class _Open:
    """A sum that has begun: the server's machine, nodes by members' numbers, and why some left."""

    server: Server
    nodes: Mapping[int, int]
    text: str
    dim: int
    left: dict[int, str] = field(default_factory=dict)

    def told(self, invitation: bytes = b"") -> dict[int, SumRequest]:
        """What the nodes are to be told in this stage."""
        index = self.server.params.round_index
        return {
            self.nodes[member]: SumRequest(index, self.text, self.dim, invitation, request)
            for member, request in self.server.requests().items()
        }

    def take(self, replies: Mapping[int, bytes]) -> None:
        """Replies of this stage, by node; and on with those who have sent one."""
        stage = self.server.stage
        for member in self.server.missing:
            node = self.nodes[member]
            try:
                if node in replies:
                    self.server.collect(replies[node], sent_by=member)
            except WireError as error:
                self.left[node] = str(error)
        for member in self.server.missing:
            self.left.setdefault(self.nodes[member], f"silent in stage {stage.value}")
        self.server.close()


class SecureSum:
    """Sums that show the server nothing but themselves; for plans with `secure_sum`.

    Dropouts: as long as `plan.min_replies` masked messages come, and `plan.threshold` of their
    senders stay until the end, the sum is that of all who sent one. With fewer the round is void:
    a `VoidError` before messages are asked for, `Summed.void` after.

    A sum that is longer than that of so many honest messages is void: somebody sent what nobody
    may, and who did is not to be seen.

    A member whose shares of keys others cannot read is named. If most others cannot, its node is
    left out of later rounds: it could make every one of them void.

    Guarantees (`tests/flower/test_flower_secure.py`): the total of a plain sum over those present,
    for dropouts at every stage within the threshold; no total beyond it; no message in anything
    that the server is sent; replies that are not a member's own change nothing but a count.

    Args:
        identities: Public keys of all who may be members, for plans with identities. Members check
            them against their own list; the server's is only to know whom to invite.
    """

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.LOCAL, Trust.DISTRIBUTED})

    def __init__(self, *, identities: Iterable[bytes] | None = None) -> None:
        self._known = None if identities is None else by_number(identities)
        self._open: _Open | None = None
        self._barred: set[int] = set()

    @property
    def signed(self) -> bool:
        """Whether members sign."""
        return self._known is not None

    def prepare(self, nodes: Collection[int], about: SumRound, *, exchange: Exchange) -> Prepared:
        """Keys and shares.

        Raises:
            VoidError: Too few nodes are left for a sum.
        """
        self._open = None
        text, dim = about.plan.text(about.method.dim), about.method.dim
        members, fingerprint, left = self._members(nodes, about, exchange, text)
        least = about.plan.min_replies
        if len(members) < least:
            reason = f"{len(members)} nodes can take part in the secure sum, and {least} are needed"
            gone = dict.fromkeys(sorted(set(nodes) - set(members.values())), Stage.KEYS)
            raise VoidError(reason, stage=Stage.KEYS, dropped=gone)
        params = Params(
            about.method.message_format,
            run=about.nonce,
            round_index=about.round_index,
            fingerprint=fingerprint,
            members=tuple(sorted(members)),
            threshold=about.plan.threshold(len(members)),
            min_present=least,
            identities=self._known and {one: self._known[one] for one in members},
        )
        current = _Open(Server(params), members, text, dim, left)
        for invitation in (invite(params), b""):  # keys, shares
            self._step(current, exchange, invitation)
        self._open = current
        told = {node: request.to_record() for node, request in current.told().items()}
        return Prepared(told, dict(current.left))

    def total(self, parts: Mapping[int, bytes], about: SumRound, *, exchange: Exchange) -> Summed:
        """Take the masks off the sum."""
        current, self._open = self._open, None
        if current is None or current.server.params.run != about.nonce:
            raise ArgumentError("prepare must come before total, once for each round")
        server = current.server
        before = dict(current.left)
        try:
            current.take(parts)
            refused = _since(before, current, parts)
            while server.stage is not Stage.DONE:
                self._step(current, exchange)
            found = server.total()
        except VoidError as error:
            self._blame(current)
            return Summed(None, frozenset(), _since(before, current, parts), str(error))
        self._blame(current)
        count = len(found.present)
        try:
            about.method.check_honest(found.cells, count, limit=about.limit)
        except WireError as error:  # whose fault it is, a sum does not tell
            return Summed(None, frozenset(), refused, str(error))
        total = Message(
            about.method.total_format,
            found.cells,
            round_index=about.round_index,
            fingerprint=server.params.fingerprint,
            sender=SERVER,
            count=count,
        )
        # Who dropped out after its message is in the sum all the same.
        return Summed(total, frozenset(current.nodes[one] for one in found.present), refused)

    def _step(self, current: _Open, exchange: Exchange, invitation: bytes = b"") -> None:
        """One exchange."""
        replies, refused = exchange.ask(current.told(invitation))
        current.left.update(refused)
        current.take({node: reply.reply for node, reply in replies.items()})

    def _blame(self, current: _Open) -> None:
        """Say whose shares were wrong or could not be read, and leave out who is to blame."""
        server = current.server
        for member, givers in server.wrong.items():
            node, others = current.nodes[member], sorted(current.nodes[one] for one in givers)
            why = f"shares of its secret do not fit: its fault, or that of one of nodes {others}"
            _LOG.warning("secure sum: node %d: %s", node, why)
            if server.stage is Stage.VOID:
                current.left[node] = why
        for member, by in server.unreadable.items():
            node = current.nodes[member]
            why = f"its shares could not be read by {len(by)} of the others"
            _LOG.warning("secure sum: node %d: %s", node, why)
            if server.stage is Stage.VOID:
                current.left[node] = why
        self._barred.update(server.suspects)

    def _members(
        self, nodes: Collection[int], about: SumRound, exchange: Exchange, text: str
    ) -> tuple[dict[int, int], bytes, dict[int, str]]:
        """Nodes by their members' numbers, the fingerprint, and why others are not among them."""
        if self._known is None and about.fingerprint is not None:
            left = dict.fromkeys(self._barred & set(nodes), _BARRED)
            return {node: node for node in nodes if node not in left}, about.fingerprint, left
        hello = SumRequest(about.round_index, text, about.method.dim, b"", b"")
        replies, left = exchange.ask(dict.fromkeys(sorted(nodes), hello))
        fingerprint = about.fingerprint
        if fingerprint is None:
            fingerprint = most_common(one.fingerprint for one in replies.values())
        members: dict[int, int] = {}
        for node, reply in replies.items():
            number = int.from_bytes(reply.member, "little") if self._known is not None else node
            if reply.fingerprint != fingerprint:
                left[node] = "key: its hashes are not those of the round"
            elif self._known is not None and number not in self._known:
                left[node] = "identity: it is not one of those that are known"
            elif number in members:
                left[node] = "identity: another node has the same one"
            elif number in self._barred:
                left[node] = _BARRED
            else:
                members[number] = node
        for node in set(nodes) - set(members.values()):
            left.setdefault(node, "silent before the secure sum")
        return members, fingerprint, left


def _since(before: Mapping[int, str], current: _Open, parts: Mapping[int, bytes]) -> dict[int, str]:
    """Why nodes are gone that sent a message. Why others sent none, the strategy knows better."""
    return {node: why for node, why in current.left.items() if node in parts and node not in before}

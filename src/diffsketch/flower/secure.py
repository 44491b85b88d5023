"""Secure sums over Flower's messages: the client's and the server's side."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from flwr.app import ConfigRecord, Message, RecordDict
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower.aggregation import Exchange, Own, Prepared, Summed, SumRound, most_common
from diffsketch.flower.plan import find_identities, find_identity
from diffsketch.flower.records import RECORD, SUM_RECORD, Refusal, SumReply, SumRequest
from diffsketch.privacy.claim import Trust
from diffsketch.secure_sum import (
    Client,
    Identity,
    Once,
    Params,
    Server,
    Stage,
    VoidError,
    accept,
    invite,
)
from diffsketch.secure_sum.messages import stage_of
from diffsketch.wire import SERVER, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")
_STATE = "diffsketch.sum"


class SecureSealing:
    """Masks a client's message, once in a round, if the round is one that the plan promises.

    It refuses an invitation to a sum of fewer than `plan.min_replies` messages, with a lower
    threshold than the plan's, of another plan or of other hashes, or that would not withstand
    `plan.corrupt` members; and it refuses to uncover a sum of fewer than `plan.min_replies`,
    whatever the server says.

    Its memory is the node's state, which Flower hands to each process and takes back at its end.
    So a node that works on two messages at once, or whose state is set back, needs a guard.

    Guarantees (`tests/flower/test_flower_secure.py`): no reply has the message itself; the state
    goes through bytes between any two messages; the refusals above.
    `tests/flower/test_flower_secure_corrupt.py`: what is said here of the plan's `corrupt`, of
    guards and of a request that is repeated.

    With identities, which plans have unless they say otherwise, members sign, and the server may do
    anything; without, it is trusted to follow the protocol. A client that has none refuses then.

    Args:
        identity: The client's lasting key; else it is looked up, as are the others'
            (`diffsketch.flower.plan`).
        identities: Public keys of all who may be members, not from the server. The client's own is
            among them.
        guard: A directory of this node's own for `diffsketch.secure_sum.Once`; else
            `diffsketch-guard` of the node's configuration, or none.

    Raises:
        ArgumentError: Only one of the two is given, or the own key is not known to the others.
    """

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.LOCAL, Trust.DISTRIBUTED})

    def __init__(
        self,
        *,
        identity: Identity | None = None,
        identities: Iterable[bytes] | None = None,
        guard: str | Path | None = None,
    ) -> None:
        if (identity is None) != (identities is None):
            raise ArgumentError("identity and identities must be given together, or neither")
        self._identity, self._guard = identity, guard
        self._known = None
        if identity is not None and identities is not None:
            self._known = _known(identity, identities)

    def answered(self, message: Message, own: Own) -> Message | None:
        """The reply to a message of the secure sum's own; None if it is none of them."""
        told = message.content.config_records.get(SUM_RECORD)
        if told is None or RECORD in message.content.config_records:
            return None
        try:
            reply = self._answer(SumRequest.of(told), own)
        except (Refusal, WireError, ArgumentError, DataError) as error:
            _LOG.warning("secure sum refused: %s", error)
            code = error.code if isinstance(error, Refusal) else "secure-sum"
            reply = SumReply(code, str(error)[:1000], b"", b"", b"")
        return Message(RecordDict({SUM_RECORD: reply.to_record()}), reply_to=message)

    def expect(self, told: ConfigRecord | None, round_index: int, *, own: Own) -> None:
        """See that the member is in a secure sum of this round."""
        self._member(told, round_index, own)

    def sealed(self, message: WireMessage, told: ConfigRecord | None, *, own: Own) -> bytes:
        """The masked message. The state is written first."""
        member, request = self._member(told, message.round_index, own)
        if message.format != member.params.layout:
            raise Refusal("secure-sum", "the model has another length than the secure sum")
        try:
            reply = member.answer(request, lambda: message.cells)
        except ArgumentError as error:
            raise Refusal("secure-sum", str(error)) from error
        self._bind(reply, Stage.MASKED, member, own)
        self._keep(member, own)
        return reply

    def _answer(self, request: SumRequest, own: Own) -> SumReply:
        fingerprint = self._agreed(request, own)
        member = self._number(own).to_bytes(8, "little")
        if not request.request:
            return SumReply("", "", member, fingerprint, b"")
        if (again := _repeated(request, own)) is not None:
            return SumReply("", "", member, fingerprint, again)
        if request.invitation:
            client = self._invited(request, own)
        else:
            client = self._restored(own)
            if client.params.round_index != request.round_index:
                raise Refusal("secure-sum", "this client is in the secure sum of another round")
        reply = client.answer(request.request, _no_input)
        stage = stage_of(request.request, client.params)
        self._bind(reply, stage, client, own)
        if stage is Stage.UNMASK:
            _forget(reply, request, own)
        else:
            self._keep(client, own, request)
        return SumReply("", "", member, fingerprint, reply)

    def _agreed(self, request: SumRequest, own: Own) -> bytes:
        """The fingerprint of the round's hashes, if it is a round of the client's own plan."""
        if own.key is None:
            raise Refusal("key", "this client has no key (DIFFSKETCH_KEY)")
        text = own.plan.text(request.dim)
        if text != request.plan:
            raise Refusal("plan", f"the server's plan is another one: {request.plan}, not {text}")
        return own.key.seed(request.round_index).fingerprint

    def _invited(self, request: SumRequest, own: Own) -> Client:
        """A new member; or the one that was invited before, by the same bytes."""
        kept = _kept(own)
        if kept is not None and kept["invitation"] == request.invitation:
            return self._restored(own)
        params = self._params(request.invitation, request.dim, request.round_index, own)
        return Client(self._number(own), params, identity=self._signing(own)[0])

    def _restored(self, own: Own) -> Client:
        kept = _kept(own)
        if kept is None:
            raise Refusal("secure-sum", "this client is in no secure sum, or has no memory of it")
        if "state" not in kept:
            raise Refusal(
                "secure-sum",
                "this client has helped to uncover the sum, and has forgotten its secrets",
            )
        params = self._params(kept["invitation"], kept["dim"], kept["round_index"], own)
        return Client.restore(
            kept["state"], self._number(own), params=params, identity=self._signing(own)[0]
        )

    def _params(self, invitation: bytes, dim: int, round_index: int, own: Own) -> Params:
        """What the client is invited to, if that is what its plan promises."""
        plan = own.plan
        if own.key is None:
            raise Refusal("key", "this client has no key (DIFFSKETCH_KEY)")
        params = accept(
            invitation,
            plan.build(dim).message_format,
            fingerprint=own.key.seed(round_index).fingerprint,
            least_present=plan.min_replies,
            identities=self._signing(own)[1],
            corrupt=plan.corrupt,
        )
        count = len(params.members)
        if params.round_index != round_index:
            raise Refusal("secure-sum", "the invitation is to another round")
        if count > plan.cohort or params.threshold < plan.threshold(count):
            raise Refusal(
                "secure-sum",
                f"the invitation is to {count} members with a threshold of {params.threshold}, and "
                f"the plan has at most {plan.cohort} and {plan.threshold(count)}",
            )
        return params

    def _member(
        self, told: ConfigRecord | None, round_index: int, own: Own
    ) -> tuple[Client, bytes]:
        """The member that is to mask a message of this round, and what it is asked."""
        if told is None:
            raise Refusal("secure-sum", "the plan has a secure sum, and the server asks without")
        request, client = SumRequest.of(told), self._restored(own)
        if client.params.round_index != round_index:
            raise Refusal("secure-sum", "this client is in the secure sum of another round")
        if stage_of(request.request, client.params) is not Stage.MASKED:
            raise Refusal("secure-sum", "the request is not for a masked message")
        return client, request.request

    def _number(self, own: Own) -> int:
        identity = self._signing(own)[0]
        return own.node if identity is None else number_of_key(identity.public)

    def _signing(self, own: Own) -> tuple[Identity | None, dict[int, bytes] | None]:
        """The own identity and all members' by their numbers, if the plan has members sign."""
        if not own.plan.identities:
            if self._identity is not None:
                raise Refusal(
                    "identity", "this client signs, and its plan is one without identities"
                )
            return None, None
        if self._identity is not None:
            return self._identity, self._known
        config = own.context.node_config
        identity, identities = find_identity(config), find_identities(config)
        if identity is None or identities is None:
            raise Refusal(
                "identity",
                "the plan has identities, and this client has none, or does not know the others' "
                "(DIFFSKETCH_IDENTITY, DIFFSKETCH_IDENTITIES_FILE)",
            )
        return identity, _known(identity, identities)

    def _bind(self, reply: bytes, stage: Stage, client: Client, own: Own) -> None:
        """Before a reply leaves: no other process of this node may have given another one."""
        path = self._guard or own.context.node_config.get("diffsketch-guard")
        if path:
            Once(str(path)).bind(reply, stage, index=client.index, params=client.params)

    def _keep(self, client: Client, own: Own, request: SumRequest | None = None) -> None:
        kept = _kept(own) or {}
        if request is not None and request.invitation:
            kept = {
                "invitation": request.invitation,
                "dim": request.dim,
                "round_index": request.round_index,
            }
        own.context.state[_STATE] = ConfigRecord({**kept, "state": client.save()})


def number_of_key(public: bytes) -> int:
    """A member's number in a secure sum, from its public key. Ids of nodes are the server's."""
    digest = hashlib.blake2b(public, digest_size=8, person=b"ds-flwr-sum").digest()
    return int.from_bytes(digest, "little") >> 1


def by_number(identities: Iterable[bytes]) -> dict[int, bytes]:
    """Public keys by their members' numbers."""
    return {number_of_key(one): one for one in identities}


def _known(identity: Identity, identities: Iterable[bytes]) -> dict[int, bytes]:
    known = by_number(identities)
    if identity.public not in known.values():
        raise ArgumentError("identities must have the public key of the client's own identity")
    return known


def _kept(own: Own) -> dict[str, Any] | None:
    record = own.context.state.config_records.get(_STATE)
    return None if record is None else dict(record)


def _forget(reply: bytes, request: SumRequest, own: Own) -> None:
    """Keep the last reply, which the server has, in place of the secrets, for if it is lost."""
    kept = {name: value for name, value in (_kept(own) or {}).items() if name != "state"}
    asked = hashlib.sha256(request.request).digest()
    own.context.state[_STATE] = ConfigRecord({**kept, "asked": asked, "reply": reply})


def _repeated(request: SumRequest, own: Own) -> bytes | None:
    """The last reply of a secure sum, if the request for it has come before."""
    kept = _kept(own) or {}
    same = (
        not request.invitation
        and kept.get("round_index") == request.round_index
        and kept.get("asked") == hashlib.sha256(request.request).digest()
    )
    reply = kept.get("reply")
    return reply if same and isinstance(reply, bytes) else None


def _no_input() -> Tensor:
    raise Refusal("secure-sum", "a message is sent only in reply to a request for training")


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
        total = WireMessage(
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

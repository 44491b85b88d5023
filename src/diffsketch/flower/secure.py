"""Secure sums over Flower's messages: the client's and the server's side."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower.aggregation import (
    AggregationResult,
    Exchange,
    RoundContext,
    most_common,
)
from diffsketch.flower.plan import FlowerPlan, find_identities, find_identity
from diffsketch.flower.records import RECORD, SUM_RECORD, Refusal, SumReply, SumRequest
from diffsketch.secure_sum import (
    Params,
    ReplyGuard,
    SecureSumClient,
    SecureSumServer,
    SigningIdentity,
    Stage,
    VoidError,
    accept,
    invite,
    stage_of,
)
from diffsketch.sketch import SketchKey
from diffsketch.wire import SERVER, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")
_STATE = "diffsketch.sum"
_EXCLUDED = "secure-sum: most others could not read its shares of an earlier round"


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client that takes part in a secure sum."""

    context: Context  # Flower's, whose state is kept from message to message
    plan: FlowerPlan
    key: SketchKey | None
    node: int


def member_number(public: bytes) -> int:
    """A member's number in a secure sum, from its public key. Ids of nodes are the server's."""
    digest = hashlib.blake2b(public, digest_size=8, person=b"ds-flwr-sum").digest()
    return int.from_bytes(digest, "little") >> 1


class SecureClientAggregation:
    """Masks a client's message, once in a round, if the round is one that the plan promises.

    It refuses an invitation to a sum of fewer than `plan.min_replies` messages, with a lower
    threshold than the plan's, of another plan or of other hashes, or that would not withstand
    `plan.corrupt` members; and it refuses to unmask a sum of fewer than `plan.min_replies`,
    whatever the server says.

    Its memory is the node's state, which Flower hands to each process and takes back at its end.
    So a node that works on two messages at once, or whose state is set back, needs a guard.

    With identities, which plans have unless they say otherwise, members sign, and the server may do
    anything; without, it is trusted to follow the protocol. A client that has none refuses then.

    Guarantees (`tests/flower/test_secure.py`): no reply has the message itself; the state goes
    through bytes between any two messages; the refusals above.
    `tests/flower/test_secure_hostile.py`: the plan's `corrupt`, guards, and a repeated request.

    Args:
        identity: The client's long-term key; else it is looked up, as are the others'
            (`find_identity`, `find_identities`).
        identities: Public keys of all who may be members, not from the server. The client's own is
            among them.
        guard: A directory of this node's own for `diffsketch.secure_sum.ReplyGuard`; else
            `diffsketch-guard` of the node's configuration, or none.

    Raises:
        ArgumentError: Only one of the two is given, or the own key is not known to the others.
    """

    def __init__(
        self,
        *,
        identity: SigningIdentity | None = None,
        identities: Iterable[bytes] | None = None,
        guard: str | Path | None = None,
    ) -> None:
        if (identity is None) != (identities is None):
            raise ArgumentError("identity and identities must be given together, or neither")
        self._guard = guard
        self._signing: tuple[SigningIdentity, dict[int, bytes]] | None = None
        if identity is not None and identities is not None:
            self._signing = identity, _known_members(identity, identities)

    def answer(self, message: Message, client: ClientContext) -> Message | None:
        """Reply to a message of the secure sum's own exchanges; None if it is none of them."""
        record = message.content.config_records.get(SUM_RECORD)
        if record is None or RECORD in message.content.config_records:
            return None
        try:
            reply = self._answer(SumRequest.of(record), client)
        except (Refusal, WireError, ArgumentError, DataError) as error:
            _LOG.warning("secure sum refused: %s", error)
            code = error.code if isinstance(error, Refusal) else "secure-sum"
            reply = SumReply(code, str(error)[:1000], b"", b"", b"")
        return Message(RecordDict({SUM_RECORD: reply.to_record()}), reply_to=message)

    def check(
        self, instructions: ConfigRecord | None, round_index: int, *, client: ClientContext
    ) -> None:
        """Check that this client is a member of a secure sum of this round."""
        self._member(instructions, round_index, client)

    def protect(
        self, message: WireMessage, instructions: ConfigRecord | None, *, client: ClientContext
    ) -> bytes:
        """Mask the message. The state is written first."""
        member, request = self._member(instructions, message.round_index, client)
        if message.format != member.params.layout:
            raise Refusal("secure-sum", "the model has another length than the secure sum")
        reply = member.answer(request, lambda: message.cells)
        self._bind(reply, Stage.MASKED, member, client)
        self._keep(member, client)
        return reply

    def _answer(self, request: SumRequest, client: ClientContext) -> SumReply:
        if client.key is None:
            raise Refusal("key", "this client has no key (DIFFSKETCH_KEY)")
        own = client.plan.describe(request.dim)
        if own != request.plan:
            raise Refusal("plan", f"the server's plan is another one: {request.plan}, not {own}")
        fingerprint = client.key.seed(request.round_index).fingerprint
        number = self._number(client).to_bytes(8, "little")
        if not request.request:
            return SumReply("", "", number, fingerprint, b"")
        kept, digest = _kept(client), hashlib.sha256(request.request).digest()
        about = {name: kept.get(name) for name in ("invitation", "dim", "round_index")}
        if (
            not request.invitation
            and kept.get("round_index") == request.round_index
            and kept.get("request") == digest
        ):
            return SumReply("", "", number, fingerprint, kept["reply"])  # the last one, again
        if request.invitation and kept.get("invitation") != request.invitation:
            about = {
                "invitation": request.invitation,
                "dim": request.dim,
                "round_index": request.round_index,
            }
            identity = self._identities(client)[0]
            params = self._params(about, client)
            member = SecureSumClient(self._number(client), params, identity=identity)
        else:
            member = self._restored(client)
            if member.params.round_index != request.round_index:
                raise Refusal("secure-sum", "this client is in the secure sum of another round")
        reply = member.answer(request.request, _no_input)
        stage = stage_of(request.request, member.params)
        self._bind(reply, stage, member, client)
        if stage is Stage.UNMASK:
            # The last reply, for if it is lost, takes the place of the secrets.
            last: dict[str, Any] = {**about, "request": digest, "reply": reply}
            client.context.state[_STATE] = ConfigRecord(last)
        else:
            self._keep(member, client, about)
        return SumReply("", "", number, fingerprint, reply)

    def _restored(self, client: ClientContext) -> SecureSumClient:
        kept = _kept(client)
        if not kept:
            raise Refusal("secure-sum", "this client is in no secure sum, or has no memory of it")
        if "state" not in kept:
            raise Refusal(
                "secure-sum",
                "this client has helped to uncover the sum, and has forgotten its secrets",
            )
        return SecureSumClient.restore(
            kept["state"],
            self._number(client),
            params=self._params(kept, client),
            identity=self._identities(client)[0],
        )

    def _params(self, about: Mapping[str, Any], client: ClientContext) -> Params:
        """Accept an invitation, if it is to a round that the plan promises."""
        plan, round_index = client.plan, about["round_index"]
        if client.key is None:
            raise Refusal("key", "this client has no key (DIFFSKETCH_KEY)")
        params = accept(
            about["invitation"],
            plan.build(about["dim"]).message_format,
            fingerprint=client.key.seed(round_index).fingerprint,
            least_present=plan.min_replies,
            identities=self._identities(client)[1],
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
        self, instructions: ConfigRecord | None, round_index: int, client: ClientContext
    ) -> tuple[SecureSumClient, bytes]:
        """Restore the member that is to mask a message of this round, and read its request."""
        if instructions is None:
            raise Refusal("secure-sum", "the plan has a secure sum, and the server asks without")
        request, member = SumRequest.of(instructions), self._restored(client)
        if member.params.round_index != round_index:
            raise Refusal("secure-sum", "this client is in the secure sum of another round")
        if stage_of(request.request, member.params) is not Stage.MASKED:
            raise Refusal("secure-sum", "the request is not for a masked message")
        return member, request.request

    def _number(self, client: ClientContext) -> int:
        identity = self._identities(client)[0]
        return client.node if identity is None else member_number(identity.public)

    def _identities(
        self, client: ClientContext
    ) -> tuple[SigningIdentity | None, dict[int, bytes] | None]:
        """The own identity and all members' by their numbers, if the plan has members sign."""
        if not client.plan.identities:
            if self._signing is not None:
                raise Refusal(
                    "identity", "this client signs, and its plan is one without identities"
                )
            return None, None
        if self._signing is not None:
            return self._signing
        config = client.context.node_config
        identity, identities = find_identity(config), find_identities(config)
        if identity is None or identities is None:
            raise Refusal(
                "identity",
                "the plan has identities, and this client has none, or does not know the others' "
                "(DIFFSKETCH_IDENTITY, DIFFSKETCH_IDENTITIES_FILE)",
            )
        return identity, _known_members(identity, identities)

    def _bind(
        self, reply: bytes, stage: Stage, member: SecureSumClient, client: ClientContext
    ) -> None:
        """Make sure that no other process of this node gives another reply."""
        path = self._guard or client.context.node_config.get("diffsketch-guard")
        if path:
            ReplyGuard(str(path)).bind(reply, stage, index=member.index, params=member.params)

    def _keep(
        self, member: SecureSumClient, client: ClientContext, about: Mapping[str, Any] | None = None
    ) -> None:
        kept = {**(_kept(client) if about is None else about), "state": member.save()}
        client.context.state[_STATE] = ConfigRecord(kept)


def _known_members(identity: SigningIdentity, identities: Iterable[bytes]) -> dict[int, bytes]:
    """Public keys by their members' numbers."""
    known = {member_number(public): public for public in identities}
    if identity.public not in known.values():
        raise ArgumentError("identities must have the public key of the client's own identity")
    return known


def _kept(client: ClientContext) -> dict[str, Any]:
    return dict(client.context.state.config_records.get(_STATE) or {})


def _no_input() -> Tensor:
    raise Refusal("secure-sum", "a message is sent only in reply to a request for training")


@dataclass
class _OpenSum:
    """A sum that has begun: the server's machine, nodes by members' numbers, and why some left."""

    server: SecureSumServer
    nodes: Mapping[int, int]
    plan: str
    dim: int
    left: dict[int, str] = field(default_factory=dict)

    def requests(self, invitation: bytes = b"") -> dict[int, SumRequest]:
        """Requests of this stage, by node."""
        index = self.server.params.round_index
        return {
            self.nodes[member]: SumRequest(index, self.plan, self.dim, invitation, request)
            for member, request in self.server.requests().items()
        }

    def step(self, exchange: Exchange, invitation: bytes = b"") -> None:
        """One exchange of the secure sum's own."""
        replies, refused = exchange.send(self.requests(invitation))
        self.left.update(refused)
        self.close({node: reply.reply for node, reply in replies.items()})

    def close(self, replies: Mapping[int, bytes]) -> None:
        """Collect the replies of this stage, by node, and go on with those who sent one."""
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

    def blame(self) -> None:
        """Name the nodes whose shares were wrong or could not be read."""
        reasons = []
        for member, givers in self.server.wrong.items():
            others = sorted(self.nodes[one] for one in givers)
            why = f"shares of its secret do not fit: its fault, or that of one of nodes {others}"
            reasons.append((self.nodes[member], why))
        for member, by in self.server.unreadable.items():
            why = f"its shares could not be read by {len(by)} of the others"
            reasons.append((self.nodes[member], why))
        for node, why in reasons:
            _LOG.warning("secure sum: node %d: %s", node, why)
            if self.server.stage is Stage.VOID:
                self.left[node] = why


class SecureAggregation:
    """Sums that show the server nothing but themselves; for plans with `secure_sum`.

    Dropouts: as long as `plan.min_replies` masked messages come, and `plan.threshold` of their
    senders stay until the end, the sum is that of all who sent one. With fewer the round is void:
    a `VoidError` before messages are requested, `AggregationResult.void` after.

    A sum that is longer than that of so many honest messages is void: somebody sent what nobody
    may, and a sum does not show who.

    A member whose shares of keys others cannot read is named. If most others cannot, its node is
    left out of later rounds: it could make every one of them void.

    Guarantees (`tests/flower/test_secure.py`): the total of a plain sum over those present, for
    dropouts at every stage within the threshold; no total beyond it; no message in anything that
    the server is sent. `tests/flower/test_secure_hostile.py`: replies that are not a member's own
    change nothing but a count.

    Args:
        identities: Public keys of all who may be members, for plans with identities. Members check
            them against their own list; the server's is only to know whom to invite.
    """

    def __init__(self, *, identities: Iterable[bytes] | None = None) -> None:
        self._known = None if identities is None else {member_number(i): i for i in identities}
        self._open: _OpenSum | None = None
        self._excluded: set[int] = set()

    @property
    def signed(self) -> bool:
        """Whether members sign."""
        return self._known is not None

    def prepare(
        self, nodes: Collection[int], about: RoundContext, *, exchange: Exchange
    ) -> tuple[dict[int, ConfigRecord], dict[int, str]]:
        """Exchange keys and shares, before messages are requested.

        Returns:
            A record for each node that a message is to be requested of; and why others are not.

        Raises:
            VoidError: Too few nodes are left for a sum.
        """
        self._open = None
        plan, dim = about.plan.describe(about.method.dim), about.method.dim
        members, fingerprint, left = self._members(nodes, about, exchange, plan)
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
        current = _OpenSum(SecureSumServer(params), members, plan, dim, left)
        for invitation in (invite(params), b""):  # keys, shares
            current.step(exchange, invitation)
        self._open = current
        requests = {node: request.to_record() for node, request in current.requests().items()}
        return requests, dict(current.left)

    def total(
        self, parts: Mapping[int, bytes], about: RoundContext, *, exchange: Exchange
    ) -> AggregationResult:
        """Unmask the sum of the messages."""
        current, self._open = self._open, None
        if current is None or current.server.params.run != about.nonce:
            raise ArgumentError("prepare must come before total, once for each round")
        server, before = current.server, dict(current.left)

        def refused() -> dict[int, str]:
            """Why nodes are gone that sent a message. Of others, the strategy knows better."""
            return {n: why for n, why in current.left.items() if n in parts and n not in before}

        void = ""
        try:
            current.close(parts)
            # Who drops out after its message is in the sum all the same.
            lost = refused()
            while server.stage is not Stage.DONE:
                current.step(exchange)
        except VoidError as error:
            void = str(error)
        current.blame()
        self._excluded.update(server.suspects)
        if void:
            return AggregationResult(None, frozenset(), refused(), void)
        found = server.total()
        count = len(found.present)
        try:
            about.method.check_honest(found.cells, count, limit=about.limit)
        except WireError as error:
            return AggregationResult(None, frozenset(), lost, str(error))
        total = WireMessage(
            about.method.total_format,
            found.cells,
            round_index=about.round_index,
            fingerprint=server.params.fingerprint,
            sender=SERVER,
            count=count,
        )
        present = frozenset(current.nodes[one] for one in found.present)
        return AggregationResult(total, present, lost)

    def _members(
        self, nodes: Collection[int], about: RoundContext, exchange: Exchange, plan: str
    ) -> tuple[dict[int, int], bytes, dict[int, str]]:
        """Find nodes by their members' numbers, the fingerprint, and why others are left out."""
        if self._known is None and about.fingerprint is not None:
            left = dict.fromkeys(self._excluded & set(nodes), _EXCLUDED)
            return {node: node for node in nodes if node not in left}, about.fingerprint, left
        hello = SumRequest(about.round_index, plan, about.method.dim, b"", b"")
        replies, left = exchange.send(dict.fromkeys(sorted(nodes), hello))
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
            elif number in self._excluded:
                left[node] = _EXCLUDED
            else:
                members[number] = node
        for node in set(nodes) - set(members.values()):
            left.setdefault(node, "silent before the secure sum")
        return members, fingerprint, left

"""Secure sums over Flower's messages: the client's and the server's side."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower.aggregation import AggregationResult, Exchange, RoundContext, most_common
from diffsketch.flower.plan import MAKE_A_KEY, FlowerPlan, find_identities, find_identity
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
_ABOUT = ("invitation", "dim", "round_index")  # of the sum that a client is in
_EXCLUDED = "secure-sum: most others could not read its shares of an earlier round"


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client that answers a message: Flower's context, whose state is kept, and its own plan."""

    context: Context
    plan: FlowerPlan
    key: SketchKey | None
    node: int

    def require_key(self) -> SketchKey:
        """Return the key; raise a `Refusal` if there is none."""
        if self.key is None:
            raise Refusal("key", f"this client has no key: {MAKE_A_KEY}")
        return self.key

    def check_plan(self, wanted: str, dim: int, keep_local: Collection[str] = ()) -> None:
        """Raise a `Refusal` if the server's plan is another one than the client's."""
        own = self.plan.describe(dim, keep_local)
        if own != wanted:
            raise Refusal("plan", f"the server's plan is another one: {wanted}, not {own}")


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
            request = SumRequest.of(record)
            fingerprint = client.require_key().seed(request.round_index).fingerprint
            client.check_plan(request.plan, request.dim)
            member = _SumMember(client, self._signing, self._guard)
            data = member.answer(request) if request.request else b""
            number = member.number.to_bytes(8, "little")
            reply = SumReply(member=number, fingerprint=fingerprint, reply=data)
        except (Refusal, WireError, ArgumentError, DataError) as error:
            _LOG.warning("secure sum refused: %s", error)
            code = error.code if isinstance(error, Refusal) else "secure-sum"
            reply = SumReply(code, str(error)[:1000])
        return Message(RecordDict({SUM_RECORD: reply.to_record()}), reply_to=message)

    def check(
        self, instructions: ConfigRecord | None, round_index: int, *, client: ClientContext
    ) -> tuple[_SumMember, SecureSumClient, bytes]:
        """Find this client's part in a secure sum of this round, and the request to mask."""
        if instructions is None:
            raise Refusal("secure-sum", "the plan has a secure sum, and the server asks without")
        request = SumRequest.of(instructions).request
        member = _SumMember(client, self._signing, self._guard)
        machine = member.restored(round_index)
        if stage_of(request, machine.params) is not Stage.MASKED:
            raise Refusal("secure-sum", "the request is not for a masked message")
        return member, machine, request

    def protect(
        self, message: WireMessage, instructions: ConfigRecord | None, *, client: ClientContext
    ) -> bytes:
        """Mask the message. The state is written first."""
        member, machine, request = self.check(instructions, message.round_index, client=client)
        if message.format != machine.params.layout:
            raise Refusal("secure-sum", "the model has another length than the secure sum")
        return member.reply(machine, request, lambda: message.cells)


class _SumMember:
    """A client in a secure sum, for one message: its identity, and what it remembers of the sum."""

    def __init__(
        self,
        client: ClientContext,
        signing: tuple[SigningIdentity, dict[int, bytes]] | None,
        guard: str | Path | None,
    ) -> None:
        self._client, config = client, client.context.node_config
        self._guard = guard or config.get("diffsketch-guard")
        self._kept: dict[str, Any] = dict(client.context.state.config_records.get(_STATE) or {})
        self._identity: SigningIdentity | None = None
        self._known: dict[int, bytes] | None = None
        self.number = client.node
        if not client.plan.identities:
            if signing is not None:
                raise Refusal(
                    "identity", "this client signs, and its plan is one without identities"
                )
            return
        if signing is None:
            identity, identities = find_identity(config), find_identities(config)
            if identity is None or identities is None:
                raise Refusal(
                    "identity",
                    "the plan has identities, and this client has none, or does not know the "
                    "others' (DIFFSKETCH_IDENTITY, DIFFSKETCH_IDENTITIES_FILE)",
                )
            signing = identity, _known_members(identity, identities)
        self._identity, self._known = signing
        self.number = member_number(self._identity.public)

    def answer(self, request: SumRequest) -> bytes:
        """Answer a request of any stage but that for a masked message."""
        kept, digest = self._kept, hashlib.sha256(request.request).digest()
        same_round = kept.get("round_index") == request.round_index
        if not request.invitation and same_round and kept.get("request") == digest:
            again: bytes = kept["reply"]  # the last one was lost
            return again
        if request.invitation and kept.get("invitation") != request.invitation:
            self._kept = {name: getattr(request, name) for name in _ABOUT}
            machine = SecureSumClient(self.number, self._params(), identity=self._identity)
        else:
            machine = self.restored(request.round_index)
        return self.reply(machine, request.request, _no_input)

    def reply(self, machine: SecureSumClient, request: bytes, cells: Callable[[], Tensor]) -> bytes:
        """Answer once, whichever process of this node does; the state is written first."""
        reply, stage = machine.answer(request, cells), stage_of(request, machine.params)
        if self._guard:
            guard = ReplyGuard(str(self._guard))
            guard.bind(reply, stage, index=machine.index, params=machine.params)
        state: dict[str, Any] = {name: self._kept[name] for name in _ABOUT}
        if stage is Stage.UNMASK:
            # The last reply, for if it is lost, takes the place of the secrets.
            state |= {"request": hashlib.sha256(request).digest(), "reply": reply}
        else:
            state["state"] = machine.save()
        self._client.context.state[_STATE] = ConfigRecord(state)
        return reply

    def restored(self, round_index: int) -> SecureSumClient:
        """Restore the protocol's state of this round."""
        if not self._kept:
            raise Refusal("secure-sum", "this client is in no secure sum, or has no memory of it")
        if "state" not in self._kept:
            raise Refusal(
                "secure-sum",
                "this client has helped to uncover the sum, and has forgotten its secrets",
            )
        machine = SecureSumClient.restore(
            self._kept["state"], self.number, params=self._params(), identity=self._identity
        )
        if machine.params.round_index != round_index:
            raise Refusal("secure-sum", "this client is in the secure sum of another round")
        return machine

    def _params(self) -> Params:
        """Accept the invitation, if it is to a round that the plan promises."""
        plan, round_index = self._client.plan, self._kept["round_index"]
        params = accept(
            self._kept["invitation"],
            plan.build(self._kept["dim"]).message_format,
            fingerprint=self._client.require_key().seed(round_index).fingerprint,
            least_present=plan.min_replies,
            identities=self._known,
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


def _known_members(identity: SigningIdentity, identities: Iterable[bytes]) -> dict[int, bytes]:
    """Public keys by their members' numbers."""
    known = {member_number(public): public for public in identities}
    if identity.public not in known.values():
        raise ArgumentError("identities must have the public key of the client's own identity")
    return known


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

        Returns a record for each node that a message is to be requested of, and why others are not;
        raises a `VoidError` if too few nodes are left for a sum.
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
        hello = SumRequest(about.round_index, plan, about.method.dim)
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

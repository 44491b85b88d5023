"""Secure sums over Flower's messages: the client's and the server's side."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower.aggregation import Round, most_common
from diffsketch.flower.plan import (
    ClientContext,
    find_helper,
    find_helper_secret,
    find_identities,
    find_identity,
    member_number,
    numbered,
)
from diffsketch.flower.records import RECORD, SUM_RECORD, Refusal, SumReply, SumRequest
from diffsketch.flower.two import answer_as_helper
from diffsketch.secure_sum import (
    OneShotClient,
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
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_STATE = "diffsketch.sum"
_ABOUT = ("invitation", "dim", "round_index")  # of the sum that a client is in
_EXCLUDED = "secure-sum: most others could not read its shares of an earlier round"


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

    *With two aggregators* there is nothing to exchange: it seals a seed to the helper's key, which
    it knows from the helper's operator, and sends the masked message. A node that has the helper's
    own key in its configuration answers for the helper instead, and never trains.

    Guarantees (`tests/flower/test_secure.py`): no reply has the message itself; the state goes
    through bytes between any two messages; the refusals above.
    `tests/flower/test_secure_hostile.py`: the plan's `corrupt`, guards, and a repeated request.
    `tests/flower/test_two.py`: two aggregators.

    Args:
        identity: The client's long-term key; else it is looked up, as are the others'
            (`find_identity`, `find_identities`).
        identities: Public keys of all who may be members, not from the server. The client's own is
            among them. Not needed with two aggregators.
        helper: Public key of the helper; else it is looked up (`find_helper`).
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
        helper: bytes | None = None,
        guard: str | Path | None = None,
    ) -> None:
        if (identity is None) != (identities is None) and not (identity and helper):
            raise ArgumentError("identity and identities must be given together, or neither")
        self.guard, self.helper = guard, helper
        self.signing: tuple[SigningIdentity, dict[int, bytes]] | None = None
        if identity is not None:
            self.signing = identity, _numbered(identity, identities or [identity.public])

    def answer(self, message: Message, client: ClientContext) -> Message | None:
        """Reply to a message of the secure sum's own exchanges; None if it is none of them."""
        record = message.content.config_records.get(SUM_RECORD)
        if record is None or RECORD in message.content.config_records:
            return None
        try:
            request = SumRequest.of(record)
            reply = answer_as_helper(request, client) or self._answered(request, client)
        except (Refusal, WireError, ArgumentError, DataError) as error:
            _LOG.warning("secure sum refused: %s", error)
            code = error.code if isinstance(error, Refusal) else "secure-sum"
            reply = SumReply(code, str(error)[:1000])
        return Message(RecordDict({SUM_RECORD: reply.to_record()}), reply_to=message)

    def _answered(self, request: SumRequest, client: ClientContext) -> SumReply:
        """Reply as a client: who it is, and to a request of a stage."""
        fingerprint = client.require_key().seed(request.round_index).fingerprint
        client.check_plan(request.plan, request.dim)
        member, data = _SumMember(client, self), b""
        if request.request and client.plan.has_helper:
            raise Refusal("secure-sum", "two aggregators have no exchanges with clients")
        if request.request:
            data = member.answer(request)
        return SumReply(
            member=member.number.to_bytes(8, "little"), fingerprint=fingerprint, reply=data
        )

    def masking(
        self,
        instructions: ConfigRecord | None,
        round_index: int,
        *,
        run: bytes,
        client: ClientContext,
    ) -> Callable[[WireMessage], bytes]:
        """Check the request for a masked message; return what masks this round's message once."""
        if client.plan.has_helper:
            return self._one_shot(run, round_index, client)
        if instructions is None:
            raise Refusal("secure-sum", "the plan has a secure sum, and the server asks without")
        request = SumRequest.of(instructions).request
        member = _SumMember(client, self)
        machine = member.restored(round_index)
        if stage_of(request, machine.params) is not Stage.MASKED:
            raise Refusal("secure-sum", "the request is not for a masked message")

        def mask(message: WireMessage) -> bytes:
            if message.format != machine.params.layout:
                raise Refusal("secure-sum", "the model has another length than the secure sum")
            return member.reply(machine, request, lambda: message.cells)

        return mask

    def _one_shot(
        self, run: bytes, round_index: int, client: ClientContext
    ) -> Callable[[WireMessage], bytes]:
        """Return what masks a message for two aggregators."""
        context, plan = client.context, client.plan
        if not 16 <= len(run) <= 64:  # before the app trains, and anything is charged
            raise Refusal("request", f"the round's nonce must have 16 to 64 bytes, not {len(run)}")
        if find_helper_secret(context.node_config) is not None:
            raise Refusal("helper", "this node is the helper, and sends no messages of its own")
        helper = self.helper or find_helper(context.node_config, run_id=context.run_id)
        if helper is None:
            reason = "the plan has two aggregators, and this client lacks the helper's public key"
            raise Refusal("helper", f"{reason} (DIFFSKETCH_HELPER_FILE)")
        member = _SumMember(client, self)
        sealer = OneShotClient(member.number, helper, identity=member.identity)

        def mask(message: WireMessage) -> bytes:
            place = round_index, message.fingerprint
            params = plan.one_shot(message.format, run=run, place=place, helper=helper)
            return sealer.mask(message.cells, params)

        return mask


class _SumMember:
    """A client in a secure sum, for one message: its identity, and what it remembers of the sum."""

    def __init__(self, client: ClientContext, options: SecureClientAggregation) -> None:
        self._client, config, signing = client, client.context.node_config, options.signing
        self._guard = options.guard or config.get("diffsketch-guard")
        self._kept: dict[str, Any] = dict(client.context.state.config_records.get(_STATE) or {})
        self.identity, self._members, self.number = None, None, client.node
        if not client.plan.identities:
            if signing is not None:
                raise Refusal("identity", "this client signs, and its plan is without identities")
            return
        if signing is None:
            identity, identities = find_identity(config), find_identities(config)
            if identity is not None and client.plan.has_helper:
                identities = [identity.public]  # the helper knows the others
            if identity is None or identities is None:
                raise Refusal(
                    "identity", "the plan has identities, and this client has none, or does not "
                    "know the others' (DIFFSKETCH_IDENTITY, DIFFSKETCH_IDENTITIES_FILE)",
                )  # fmt: skip
            signing = identity, _numbered(identity, identities)
        self.identity, self._members = signing
        self.number = member_number(self.identity.public)

    def answer(self, request: SumRequest) -> bytes:
        """Answer a request of any stage but that for a masked message."""
        if request.invitation and self._kept.get("invitation") != request.invitation:
            self._kept = {name: getattr(request, name) for name in _ABOUT}
            machine = SecureSumClient(self.number, self._params(), identity=self.identity)
        else:
            machine = self.restored(request.round_index)
        return self.reply(machine, request.request, _no_input)

    def reply(self, machine: SecureSumClient, request: bytes, cells: Callable[[], Tensor]) -> bytes:
        """Answer once, whichever process of this node does; the state is written first."""
        reply, stage = machine.answer(request, cells), stage_of(request, machine.params)
        if self._guard:
            guard = ReplyGuard(str(self._guard))
            guard.bind(reply, stage, index=machine.index, context=machine.params.context)
        state: dict[str, Any] = {name: self._kept[name] for name in _ABOUT}
        if stage is not Stage.UNMASK:  # which is the last one: then no secret is needed any more
            state["state"] = machine.save()
        self._client.context.state[_STATE] = ConfigRecord(state)
        return reply

    def restored(self, round_index: int) -> SecureSumClient:
        """Restore the protocol's state of this round."""
        if not self._kept:
            raise Refusal("secure-sum", "this client is in no secure sum, or has no memory of it")
        if "state" not in self._kept:
            reason = "this client has helped to uncover the sum, and has forgotten its secrets"
            raise Refusal("secure-sum", reason)
        machine = SecureSumClient.restore(
            self._kept["state"], self.number, params=self._params(), identity=self.identity
        )
        if machine.params.round_index != round_index:
            raise Refusal("secure-sum", "this client is in the secure sum of another round")
        return machine

    def _params(self) -> Params:
        """Accept the invitation, if it is to a round that the plan promises."""
        plan, round_index = self._client.plan, self._kept["round_index"]
        params = accept(
            self._kept["invitation"], plan.build(self._kept["dim"]).message_format,
            fingerprint=self._client.require_key().seed(round_index).fingerprint,
            least_present=plan.min_replies, identities=self._members, corrupt=plan.corrupt,
        )  # fmt: skip
        count = len(params.members)
        if params.round_index != round_index:
            raise Refusal("secure-sum", "the invitation is to another round")
        if count > plan.cohort or params.threshold < plan.threshold(count):
            raise Refusal(
                "secure-sum", f"the invitation is to {count} members with a threshold of "
                f"{params.threshold}, and the plan has at most {plan.cohort} and "
                f"{plan.threshold(count)}",
            )  # fmt: skip
        return params


def _numbered(identity: SigningIdentity, identities: Iterable[bytes]) -> dict[int, bytes]:
    """Public keys by their members' numbers; they must include the client's own."""
    members = numbered(identities)
    if identity.public not in members.values():
        raise ArgumentError("identities must have the public key of the client's own identity")
    return members


def _no_input() -> Tensor:
    raise Refusal("secure-sum", "a message is sent only in reply to a request for training")


@dataclass
class _OpenSum:
    """A secure sum that has begun: its protocol at the server, and nodes by members' numbers."""

    server: SecureSumServer
    nodes: Mapping[int, int]
    current: Round
    left: dict[int, str]  # why nodes are gone

    def requests(self, invitation: bytes = b"") -> dict[int, SumRequest]:
        """Requests of this stage, by node."""
        return {
            self.nodes[member]: self.current.question(invitation, request)
            for member, request in self.server.requests().items()
        }

    def step(self, invitation: bytes = b"") -> None:
        """Do one exchange of the secure sum's own."""
        replies = self.current.exchange(self.requests(invitation), refused=self.left)
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
            others = sorted(self.nodes[giver] for giver in givers)
            why = f"shares of its secret do not fit: its fault, or that of one of nodes {others}"
            reasons.append((self.nodes[member], why))
        for member, readers in self.server.unreadable.items():
            why = f"its shares could not be read by {len(readers)} of the others"
            reasons.append((self.nodes[member], why))
        for node, why in reasons:
            _LOG.warning("secure sum: node %d: %s", node, why)
            if self.server.stage is Stage.VOID:
                self.left[node] = why


class SecureAggregation:
    """Sums that show the server nothing but themselves; for plans with `secure_sum`.

    Dropouts: as long as `plan.min_replies` masked messages come, and `plan.threshold` of their
    senders stay until the end, the sum is that of all who sent one. With fewer the round is void:
    a `VoidError` before messages are requested, `Round.void` after.

    A sum that is longer than honest messages make it is void: somebody sent what nobody may, and a
    sum does not show who.

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
        self._public = None if identities is None else numbered(identities)
        self._open: _OpenSum | None = None
        self._excluded: set[int] = set()

    @property
    def signed(self) -> bool:
        """Whether members sign."""
        return self._public is not None

    def clients(self, lookup: Round) -> Grid:
        """Return the grid: all of its nodes are clients."""
        return lookup.grid

    def prepare(self, current: Round) -> dict[int, ConfigRecord]:
        """Exchange keys and shares, before messages are requested.

        Returns a record for each node that a message is to be requested of, which are the round's
        nodes from then on; its `left` says why others are not. Raises a `VoidError` if too few
        nodes are left for a sum.
        """
        self._open = None
        nodes, least = current.nodes, current.plan.min_replies
        try:
            members, fingerprint = self._members(current)
            if len(members) < least:
                raise VoidError(
                    f"{len(members)} nodes can take part in the secure sum, and {least} are needed",
                    stage=Stage.KEYS, dropped={},
                )  # fmt: skip
            params = Params(
                current.method.message_format, run=current.nonce, round_index=current.round_index,
                fingerprint=fingerprint, members=tuple(sorted(members)),
                threshold=current.plan.threshold(len(members)), min_present=least,
                identities=self._public and {number: self._public[number] for number in members},
            )  # fmt: skip
            opened = _OpenSum(SecureSumServer(params), members, current, current.left)
            for invitation in (invite(params), b""):  # keys, shares
                opened.step(invitation)
        finally:
            current.nodes = tuple(node for node in nodes if node not in current.left)
        self._open = opened
        return {node: request.to_record() for node, request in opened.requests().items()}

    def total(self, current: Round, parts: Mapping[int, bytes]) -> None:
        """Unmask the sum of the messages: the round's `total`, `present`, `refused` and `void`."""
        opened, self._open = self._open, None
        if opened is None or opened.current is not current:
            raise ArgumentError("prepare must come before total, once for each round")
        server, opened.left = opened.server, {}
        try:
            opened.close(parts)
            left = dict(opened.left)  # who drops out later is in the sum all the same
            while server.stage is not Stage.DONE:
                opened.step()
        except VoidError as error:
            current.void, left = str(error), opened.left
        opened.blame()
        self._excluded.update(server.suspects)
        # Of nodes without a message the strategy knows better why they are gone.
        current.refused.update({node: why for node, why in left.items() if node in parts})
        if current.void:
            return
        total = server.total()
        nodes = [opened.nodes[member] for member in total.present]
        current.publish(total.cells, nodes, server.params.fingerprint)

    def _members(self, current: Round) -> tuple[dict[int, int], bytes]:
        """Find nodes by their members' numbers, and the fingerprint; why others are `left` out."""
        nodes, fingerprint, left = current.nodes, current.fingerprint, current.left
        if self._public is None and fingerprint is not None:
            left.update(dict.fromkeys(self._excluded & set(nodes), _EXCLUDED))
            return {node: node for node in nodes if node not in left}, fingerprint
        requests = dict.fromkeys(sorted(nodes), current.question())
        replies = current.exchange(requests, refused=left)
        if fingerprint is None:
            fingerprint = most_common(reply.fingerprint for reply in replies.values())
        members: dict[int, int] = {}
        for node, reply in replies.items():
            number = node if self._public is None else int.from_bytes(reply.member, "little")
            if reply.fingerprint != fingerprint:
                left[node] = "key: its hashes are not those of the round"
            elif self._public is not None and number not in self._public:
                left[node] = "identity: it is not one of those that are known"
            elif number in members:
                left[node] = "identity: another node has the same one"
            elif number in self._excluded:
                left[node] = _EXCLUDED
            else:
                members[number] = node
        for node in set(nodes) - set(members.values()):
            left.setdefault(node, "silent before the secure sum")
        return members, fingerprint

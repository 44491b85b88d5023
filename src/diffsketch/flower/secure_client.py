"""The client's side of secure sums over Flower's messages, and the helper, which is a node too."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower.keys import MAKE_A_KEY, NodeKeys, member_number, numbered
from diffsketch.flower.plan import FlowerPlan
from diffsketch.flower.records import RECORD, SUM_RECORD, Refusal, SumReply, SumRequest
from diffsketch.secure_sum import (
    KeyPair,
    OneShotClient,
    OneShotHelper,
    Params,
    ReplyGuard,
    SecureSumClient,
    SigningIdentity,
    Stage,
    accept,
    stage_of,
)
from diffsketch.secure_sum.primitives import derive
from diffsketch.sketch import SketchKey
from diffsketch.wire import Message as WireMessage
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_STATE = "diffsketch.sum"
_ABOUT = ("invitation", "dim", "round_index")  # of the sum that a client is in


@dataclass(frozen=True, eq=False)
class ClientContext:
    """A client that answers a message: Flower's context, whose state is kept, and its own plan."""

    context: Context
    plan: FlowerPlan
    key: SketchKey | None
    node: int

    @property
    def keys(self) -> NodeKeys:
        """Keys of this node."""
        return NodeKeys(self.context.node_config, self.context.run_id)

    def require_key(self) -> SketchKey:
        """Return the key; raise a `Refusal` if there is none."""
        if self.key is None:
            raise Refusal("key", f"this client has no key: {MAKE_A_KEY}")
        return self.key

    def check_plan(self, wanted: str, dim: int, keep_local: Collection[str] = ()) -> None:
        """Raise a `Refusal` if the server's plan is another one than the client's."""
        plan = self.plan.describe(dim, keep_local)
        if plan != wanted:
            raise Refusal("plan", f"the server's plan is another one: {wanted}, not {plan}")


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
            (`NodeKeys`).
        identities: Public keys of all who may be members, not from the server. The client's own is
            among them. Not needed with two aggregators.
        helper: Public key of the helper; else it is looked up.
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
        self.identity, self.helper, self.guard = identity, helper, guard
        self.members = None if identities is None else numbered(identities)
        _check_listed(identity, self.members)

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
        plan = client.plan
        if not 16 <= len(run) <= 64:  # before the app trains, and anything is charged
            raise Refusal("request", f"the round's nonce must have 16 to 64 bytes, not {len(run)}")
        if client.keys.helper_secret is not None:
            raise Refusal("helper", "this node is the helper, and sends no messages of its own")
        helper = self.helper or client.keys.helper
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
        self._client, plan = client, client.plan
        self._guard = options.guard or client.context.node_config.get("diffsketch-guard")
        self._kept: dict[str, Any] = dict(client.context.state.config_records.get(_STATE) or {})
        self.identity, self._members, self.number = options.identity, options.members, client.node
        if not plan.identities:
            if self.identity is not None:
                raise Refusal("identity", "this client signs, and its plan is without identities")
            return
        self.identity = self.identity or client.keys.identity
        if self._members is None and not plan.has_helper:  # which knows the others
            self._members = client.keys.identities
        if self.identity is None or (self._members is None and not plan.has_helper):
            raise Refusal(
                "identity", "the plan has identities, and this client has none, or does not know "
                "the others' (DIFFSKETCH_IDENTITY, DIFFSKETCH_IDENTITIES_FILE)",
            )  # fmt: skip
        _check_listed(self.identity, self._members)
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


def _check_listed(identity: SigningIdentity | None, members: Mapping[int, bytes] | None) -> None:
    """Raise an `ArgumentError` if a client's identity is not in the list of all members'."""
    if identity and members is not None and identity.public not in members.values():
        raise ArgumentError("identities must have the public key of the client's own identity")


def _no_input() -> Tensor:
    raise Refusal("secure-sum", "a message is sent only in reply to a request for training")


def answer_as_helper(request: SumRequest, client: ClientContext) -> SumReply | None:
    """Answer a request of the server if this node is the helper; None if it is a client.

    Without seeds the server asks who this is, and is given a proof. What it says of the round is
    what clients have sealed their seeds for, or none can be opened; all else is of the helper's own
    plan.

    Raises:
        Refusal: The helper has no memory that outlives it, or does not know the clients.
        RefusedError: It gives no sum (`OneShotHelper.answer`).
    """
    config, plan = client.context.node_config, client.plan
    key = client.keys.helper_secret if plan.has_helper else None
    if key is None:
        return None
    client.check_plan(request.plan, request.dim)
    memory = config.get("diffsketch-helper-memory") or os.environ.get("DIFFSKETCH_HELPER_MEMORY")
    if not memory:
        reason = "the helper has no folder to remember its answers in (diffsketch-helper-memory)"
        raise Refusal("helper", reason)
    members = client.keys.identities if plan.identities else None
    if plan.identities and members is None:
        reason = "the helper does not know the clients' public keys (DIFFSKETCH_IDENTITIES_FILE)"
        raise Refusal("identity", reason)
    helper = OneShotHelper(key.secret, str(memory), identities=members)
    if not request.request:
        return SumReply(reply=helper_proof(key, request.invitation, question=request.invitation))
    run, fingerprint = request.invitation[:-8], request.invitation[-8:]
    layout, place = plan.build(request.dim).message_format, (request.round_index, fingerprint)
    params = plan.one_shot(layout, run=run, place=place, helper=helper.public)
    return SumReply(reply=helper.answer(request.request, params))


def helper_proof(own: KeyPair, public: bytes, *, question: bytes) -> bytes:
    """Compute what only the owners of both keys can: the helper, and who has asked for it."""
    return derive(own.agree(public), context=question, label="helper")

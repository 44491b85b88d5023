"""Two aggregators on a Flower network: the server, and a helper that is one of the nodes.

The helper belongs to another operator. Its node has the helper's key in its configuration, and
answers one question of the server a round, through the SuperLink like any other: the sum of the
masks of the clients that arrived. So there is no further service or port.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any, cast

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from diffsketch.errors import ArgumentError
from diffsketch.flower.aggregation import Round, voted_fingerprint
from diffsketch.flower.plan import (
    ClientContext,
    find_helper,
    find_helper_secret,
    find_identities,
    numbered,
)
from diffsketch.flower.records import Refusal, SumReply, SumRequest
from diffsketch.secure_sum import (
    KeyPair,
    OneShotHelper,
    OneShotLeader,
    OneShotParams,
    Stage,
    VoidError,
)
from diffsketch.secure_sum.primitives import SECRET_BYTES, derive
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_PATIENCE = 60.0  # seconds: SuperLinks take a killed node for lost after as many
_PAUSE = 0.5  # seconds between looks for the helper
_TRIES = 3  # exchanges for a sum: with one that is killed in it, and those that take its place


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
    key = find_helper_secret(config) if plan.has_helper else None
    if key is None:
        return None
    client.check_plan(request.plan, request.dim)
    memory = config.get("diffsketch-helper-memory") or os.environ.get("DIFFSKETCH_HELPER_MEMORY")
    if not memory:
        reason = "the helper has no folder to remember its answers in (diffsketch-helper-memory)"
        raise Refusal("helper", reason)
    identities = find_identities(config) if plan.identities else None
    if plan.identities and identities is None:
        reason = "the helper does not know the clients' public keys (DIFFSKETCH_IDENTITIES_FILE)"
        raise Refusal("identity", reason)
    members = None if identities is None else numbered(identities)
    helper = OneShotHelper(key.secret, str(memory), identities=members)
    if not request.request:
        return SumReply(reply=_proof(key, request.invitation, question=request.invitation))
    run, fingerprint = request.invitation[:-8], request.invitation[-8:]
    layout, place = plan.build(request.dim).message_format, (request.round_index, fingerprint)
    params = plan.one_shot(layout, run=run, place=place, helper=helper.public)
    return SumReply(reply=helper.answer(request.request, params))


class TwoAggregators:
    """Sums by the server and a helper that do not collude; for plans with `secure_sum="two"`.

    The server asks nodes who they are until one answers for the helper, and never asks that one to
    train. A round takes no exchange beside the request for training, and one with the helper.
    A helper that is gone, or has come back under another node id, is looked for again; if there is
    none, the round is void, before messages are requested if that is known by then.

    Clients that the helper does not know, or whose seed it cannot open, are left out.

    Guarantees (`tests/flower/test_two.py`): the total of a plain sum over those present, whoever is
    silent; a helper that is killed, forgets or is another one makes no wrong total; a node without
    its key is not taken for it.

    Args:
        helper: Public key of the helper; else it is looked up (`find_helper`). Or the helper
            itself, in a simulation: then nothing is hidden from whoever runs that.
        patience: Seconds to wait for a helper that is gone.
    """

    def __init__(
        self, helper: bytes | OneShotHelper | None = None, *, patience: float = _PATIENCE
    ) -> None:
        self._local = helper if isinstance(helper, OneShotHelper) else None
        public = helper.public if isinstance(helper, OneShotHelper) else helper or find_helper()
        self.public, self._patience = public, patience
        self._node: int | None = None
        self._others: set[int] = set()  # nodes that have said that they are not the helper

    def clients(self, lookup: Round) -> Grid:
        """Wrap the grid without the helper, for strategies that pick nodes; `lookup` looks for it.

        Again whenever it is asked for nodes: the helper may be among those that come last.
        """
        return lookup.grid if self._local else cast(Grid, _ClientGrid(self, lookup))

    def client_ids(self, lookup: Round) -> list[int]:
        """Ids of the nodes that are clients.

        While the helper is not found, those that have said that they are: a strategy that has
        counted the helper as a client would wait for it for ever.
        """
        nodes, helper = list(lookup.grid.get_node_ids()), self.find(lookup)
        known = self._others if helper is None else {*nodes} - {helper}
        return [node for node in nodes if node in known]

    def find(self, lookup: Round) -> int | None:
        """Find the node that has the helper's key, among those that have not shown otherwise."""
        nodes = set(lookup.grid.get_node_ids())
        if self._local is None and self.public is not None and self._node not in nodes:
            pair = KeyPair(secrets.token_bytes(SECRET_BYTES))
            asked = dict.fromkeys(sorted(nodes - self._others), lookup.question(pair.public))
            refused: dict[int, str] = {}
            replies = lookup.exchange(asked, refused=refused) if asked else {}
            proof = _proof(pair, self.public, question=pair.public)
            helpers = [node for node, reply in replies.items() if reply.reply == proof]
            self._others = (self._others & nodes | replies.keys() | refused.keys()) - {*helpers}
            self._node = helpers[0] if helpers else None
            for node, reason in refused.items():
                _LOG.warning("node %d does not say whether it is the helper: %s", node, reason)
        return self._node

    def prepare(self, current: Round) -> dict[int, ConfigRecord]:
        """See that the helper is there, before messages are requested; else raise a `VoidError`."""
        if self._local is None and self._awaited(current) is None:
            raise VoidError("no node is the helper", stage=Stage.MASKED, dropped={})
        return {}

    def total(self, current: Round, parts: Mapping[int, bytes]) -> None:
        """Sum the messages: the round's `total`, `present`, `refused` and `void`."""
        if self.public is None:
            raise ArgumentError("helper must be given, or be found, before there is a total")
        plan, by_node = current.plan, not current.plan.identities
        fingerprint = current.fingerprint or voted_fingerprint(parts, by_node=by_node)
        params = plan.one_shot(
            current.method.message_format, run=current.nonce, helper=self.public,
            place=(current.round_index, fingerprint),
        )  # fmt: skip
        leader, nodes = OneShotLeader(params), dict[int, int]()
        for node, data in parts.items():
            try:
                nodes[leader.collect(data, sent_by=node if by_node else None)] = node
            except WireError as error:
                current.refused[node] = str(error)
        if len(nodes) < plan.min_replies:
            current.void = f"{len(nodes)} messages, and {plan.min_replies} are needed"
            return
        try:
            refused = self._asked(current, leader, params)
        except WireError as error:
            current.void = f"the helper gives no sum: {error}"
            return
        current.refused.update({nodes[member]: f"helper: {why}" for member, why in refused.items()})
        total = leader.total()
        current.publish(total.cells, [nodes[member] for member in total.present], fingerprint)

    def _asked(
        self, current: Round, leader: OneShotLeader, params: OneShotParams
    ) -> dict[int, str]:
        """Have the helper's answer; return the clients that it leaves out, and why."""
        request = leader.request()
        if self._local is not None:
            return leader.take(self._local.answer(request, params))
        reasons, place = dict[int, str](), params.run + params.fingerprint
        question = current.question(place, request)
        for _ in range(_TRIES):
            if (node := self._awaited(current)) is None:
                break
            replies = current.exchange({node: question}, refused=reasons)
            if node in replies:
                return leader.take(replies[node].reply)
            self._node = None  # killed, perhaps: it may come back under another id
            if not reasons.get(node, "error").startswith("error"):
                break
        raise WireError("; ".join(reasons.values()) or "it is silent")

    def _awaited(self, lookup: Round) -> int | None:
        """Wait for the helper; None if `patience` is over."""
        end = time.monotonic() + self._patience
        while (node := self.find(lookup)) is None and time.monotonic() <= end:
            time.sleep(_PAUSE)
        return node


def _proof(own: KeyPair, public: bytes, *, question: bytes) -> bytes:
    """Compute what only the owners of both keys can: the helper, and who has asked for it."""
    return derive(own.agree(public), context=question, label="helper")


class _ClientGrid:
    """A grid whose nodes are the clients."""

    def __init__(self, aggregators: TwoAggregators, lookup: Round) -> None:
        self._aggregators, self._lookup = aggregators, lookup

    def get_node_ids(self) -> Iterable[int]:
        return self._aggregators.client_ids(self._lookup)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup.grid, name)

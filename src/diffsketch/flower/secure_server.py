"""The server's side of secure sums over Flower's messages: one server, or two aggregators.

The second aggregator, the helper, belongs to another operator and is one of the nodes. It answers
one question of the server a round, through the SuperLink like any other: the sum of the masks of
the clients that arrived. So there is no further service or port.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from flwr.app import ConfigRecord
from flwr.serverapp import Grid

from diffsketch.errors import ArgumentError
from diffsketch.flower.aggregation import Round, most_common, voted_fingerprint
from diffsketch.flower.keys import NodeKeys, numbered
from diffsketch.flower.records import Reply, SumRequest
from diffsketch.flower.secure_client import helper_proof
from diffsketch.secure_sum import (
    KeyPair,
    OneShotHelper,
    OneShotLeader,
    OneShotParams,
    Params,
    SecureSumServer,
    Stage,
    VoidError,
    invite,
)
from diffsketch.secure_sum.primitives import SECRET_BYTES
from diffsketch.wire import WireError

_LOG = logging.getLogger("flwr.diffsketch")
_EXCLUDED = "secure-sum: most others could not read its shares of an earlier round"
_PATIENCE = 60.0  # seconds: SuperLinks take a killed node for lost after as many
_PAUSE = 0.5  # seconds between looks for the helper
_TRIES = 3  # exchanges for a sum: with one that is killed in it, and those that take its place


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
            count = len(members)
            if count < least:
                few = f"{count} nodes can take part in the secure sum, and {least} are needed"
                raise VoidError(few, stage=Stage.KEYS)
            params = Params(
                current.method.message_format, run=current.nonce, round_index=current.round_index,
                fingerprint=fingerprint, members=tuple(sorted(members)),
                threshold=current.plan.threshold(count), min_present=least,
                identities=self._public and {number: self._public[number] for number in members},
            )  # fmt: skip
            opened = _OpenSum(SecureSumServer(params), members, current, current.left)
            for invitation in (invite(params), b""):  # keys, shares
                opened.step(invitation)
        finally:
            current.nodes = tuple(node for node in nodes if node not in current.left)
        self._open = opened
        return {node: request.to_record() for node, request in opened.requests().items()}

    def total(self, current: Round, replies: Mapping[int, Reply]) -> None:
        """Unmask the sum of the messages: the round's `total`, `present`, `refused` and `void`."""
        opened, self._open = self._open, None
        if opened is None or opened.current is not current:
            raise ArgumentError("prepare must come before total, once for each round")
        server, opened.left = opened.server, {}
        try:
            opened.close({node: reply.message for node, reply in replies.items()})
            left = dict(opened.left)  # who drops out later is in the sum all the same
            while server.stage is not Stage.DONE:
                opened.step()
        except VoidError as error:
            current.void, left = str(error), opened.left
        opened.blame()
        self._excluded.update(server.suspects)
        # Of nodes without a message the strategy knows better why they are gone.
        current.refused.update({node: why for node, why in left.items() if node in replies})
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
        fingerprint = fingerprint or most_common(reply.fingerprint for reply in replies.values())
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
        helper: Public key of the helper; else it is looked up. Or the helper
            itself, in a simulation: then nothing is hidden from whoever runs that.
        patience: Seconds to wait for a helper that is gone.
    """

    def __init__(
        self, helper: bytes | OneShotHelper | None = None, *, patience: float = _PATIENCE
    ) -> None:
        self._local = helper if isinstance(helper, OneShotHelper) else None
        public = helper.public if isinstance(helper, OneShotHelper) else helper or NodeKeys().helper
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
        members = self._others if helper is None else {*nodes} - {helper}
        return [node for node in nodes if node in members]

    def find(self, lookup: Round) -> int | None:
        """Find the node that has the helper's key, among those that have not shown otherwise."""
        nodes = set(lookup.grid.get_node_ids())
        if self._local is None and self.public is not None and self._node not in nodes:
            pair = KeyPair(secrets.token_bytes(SECRET_BYTES))
            asked = dict.fromkeys(sorted(nodes - self._others), lookup.question(pair.public))
            refused: dict[int, str] = {}
            replies = lookup.exchange(asked, refused=refused) if asked else {}
            proof = helper_proof(pair, self.public, question=pair.public)
            helpers = [node for node, reply in replies.items() if reply.reply == proof]
            self._others = (self._others & nodes | replies.keys() | refused.keys()) - {*helpers}
            self._node = helpers[0] if helpers else None
            for node, reason in refused.items():
                _LOG.warning("node %d does not say whether it is the helper: %s", node, reason)
        return self._node

    def prepare(self, current: Round) -> dict[int, ConfigRecord]:
        """See that the helper is there, before messages are requested; else raise a `VoidError`."""
        if self._local is None and self._awaited(current) is None:
            raise VoidError("no node is the helper", stage=Stage.MASKED)
        return {}

    def total(self, current: Round, replies: Mapping[int, Reply]) -> None:
        """Sum the messages: the round's `total`, `present`, `refused` and `void`."""
        assert self.public is not None  # noqa: S101 (for the type checker: no run begins without)
        plan, by_node = current.plan, not current.plan.identities
        fingerprint = current.fingerprint or voted_fingerprint(replies, by_node=by_node)
        params = plan.one_shot(
            current.method.message_format, run=current.nonce, helper=self.public,
            place=(current.round_index, fingerprint),
        )  # fmt: skip
        leader, nodes = OneShotLeader(params), dict[int, int]()
        for node, reply in replies.items():
            try:
                nodes[leader.collect(reply.message, sent_by=node if by_node else None)] = node
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


class _ClientGrid:
    """A grid whose nodes are the clients."""

    def __init__(self, aggregators: TwoAggregators, lookup: Round) -> None:
        self._aggregators, self._lookup = aggregators, lookup

    def get_node_ids(self) -> Iterable[int]:
        return self._aggregators.client_ids(self._lookup)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lookup.grid, name)

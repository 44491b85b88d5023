"""A round at the server: its exchanges, replies, the plain sum of messages, and its report."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median_low
from typing import Any

import torch
from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from diffsketch.errors import ArgumentError, check_type
from diffsketch.flower.plan import FlowerPlan
from diffsketch.flower.records import (
    MOST_WEIGHT,
    SUM_RECORD,
    Reply,
    SumReply,
    SumRequest,
    content_bytes,
)
from diffsketch.methods import Method
from diffsketch.methods.gate import release
from diffsketch.privacy.claim import Claim, Epsilon
from diffsketch.silos.messages import release_records
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire import SERVER, Header, Inbox, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")
ANY_SEED = HashSeed(bytes(32))
"""Seed where the hashes do not matter: for claims of methods that are sent, zeros, and metrics."""
_UNFIT = {
    "it chooses among the clients' models, and a sum has none: use FedAvg, and leave messages that "
    "no honest client sends to SketchStrategy, which refuses them": (
        "Krum", "MultiKrum", "Bulyan", "FedMedian", "FedTrimmedAvg",
    ),
    "it weighs clients by their losses, which are not sent: use FedAvg, or the importance of "
    "sketch_mod": ("QFedAvg",),
    "it clips the clients' models or adds noise for their number, and would do so to one mean: use "
    "a plan with a private method, such as sketch-gaussian or sketch-skellam, around FedAvg": (
        "DifferentialPrivacyFixedClippingBase", "DifferentialPrivacyAdaptiveBase",
    ),
    "it collects trees, which have no mean: run it without SketchStrategy": (
        "FedXgbBagging", "FedXgbCyclic",
    ),
}  # fmt: skip
_ENOUGH = 3  # sizes of which a single false one does not move the median


class UsualSize:
    """Usual size of what clients send in a round, and a bound on what is far beyond it.

    It is the lower median of the round, which half of the clients together cannot raise. Zeros do
    not count; where fewer than three others are left, it is that of the last round before.

    Guarantees (`tests/flower/test_hostile.py`): clients whose sizes are within the multiple of the
    median are never refused; others are, from the first round on that has three messages.

    Args:
        multiple: Of the median, that nothing may exceed; infinite for no bound.
    """

    def __init__(self, multiple: float) -> None:
        self._multiple, self._usual = multiple, math.inf

    def bound(self, sizes: Iterable[float]) -> float:
        """Bound for a round with these sizes; infinite as long as there is no median."""
        positive = [size for size in sizes if size > 0]
        if len(positive) >= _ENOUGH:
            self._usual = median_low(positive)
        bound = self._multiple * self._usual
        # Of few messages, those within the bound say where the next round's should be.
        within = [size for size in positive if size <= bound < math.inf]
        self._usual = median_low(within) if within else self._usual
        return bound


@dataclass(frozen=True, eq=False)
class RoundReport:
    """Report of one round.

    Attributes:
        round_index: The round, as hashes count them; Flower's own rounds begin at 1.
        selected: Nodes that a message was requested of.
        present: Nodes whose message is in the sum.
        refused: Other nodes that answered, and why they do not count.
        silent: Nodes that did not answer in time.
        bytes_down: Bytes sent to the nodes, as Flower serialises them.
        bytes_up: Bytes that came back, of whatever kind.
        claim: The round's guarantee for those who were selected; None if no message was requested.
        epsilon: Cost of all rounds so far for the client who paid most.
        void: Why the model did not change; empty if it did.
    """

    round_index: int
    selected: tuple[int, ...]
    present: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    claim: Claim | None = None
    epsilon: Epsilon | None = None
    void: str = ""

    def __str__(self) -> str:
        """Format in a line."""
        fate = f"VOID: {self.void}; the model is unchanged" if self.void else "counts"
        cost = "" if self.epsilon is None else f"; {self.epsilon.text('short')} so far"
        return (
            f"round {self.round_index} {fate} ({len(self.present)} of {len(self.selected)} nodes, "
            f"{len(self.refused)} refused, {len(self.silent)} silent; {self.bytes_up:,} bytes up, "
            f"{self.bytes_down:,} bytes down{cost})"
        )


@dataclass(eq=False)
class Round:
    """A round at the server, from the choice of its nodes to its report."""

    plan: FlowerPlan
    method: Method  # the plan's, for the model's length
    claim: Claim  # that is planned
    round_index: int
    fingerprint: bytes | None  # of the round's hashes; None if the server has no key
    grid: Grid
    timeout: float
    nonce: bytes  # sixteen random bytes, which a reply has to repeat
    nodes: tuple[int, ...] = ()  # that a message is requested of
    weight: str = ""  # name of the metric that clients count by; empty if they count alike
    limit: float = math.inf  # of a message's norm, besides the method's own for honest ones
    usual: UsualSize = field(default_factory=lambda: UsualSize(math.inf))  # of messages' norms
    # Where only the sum's noise hides a client, a message that is too long counts as zeros: to
    # refuse it would tell about data.
    substitutes: bool = False
    arrays_key: str = ""  # name of the model's record in messages
    left: dict[int, str] = field(default_factory=dict)  # nodes that a secure sum lost before
    replies: dict[int, Reply] = field(default_factory=dict)  # the first valid one of each node
    messages: dict[int, Message] = field(default_factory=dict)  # that these replies came in
    refused: dict[int, str] = field(default_factory=dict)  # nodes that do not count, and why
    bytes_down: int = 0
    bytes_up: int = 0
    present: frozenset[int] = frozenset()  # nodes whose message is in the total
    total: WireMessage | None = None  # before the server adds noise; None if there is none
    metrics: WireMessage | None = None  # sum of the plan's metrics, of the same nodes
    void: str = ""  # why the model does not change

    def question(self, invitation: bytes = b"", request: bytes = b"") -> SumRequest:
        """Request of a secure sum's own exchange; if empty, it asks who a node is."""
        dim = self.method.dim
        return SumRequest(self.round_index, self.plan.describe(dim), dim, invitation, request)

    def exchange(
        self, requests: Mapping[int, SumRequest], *, refused: dict[int, str]
    ) -> dict[int, SumReply]:
        """Send requests of a secure sum; return the first reply of each node.

        Why others gave none is added to `refused`; nodes that are in neither were silent.
        """
        messages = []
        for node, request in requests.items():
            content = RecordDict({SUM_RECORD: request.to_record()})
            self.bytes_down += content_bytes(content)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        replies: dict[int, SumReply] = {}
        for message in self.grid.send_and_receive(messages, timeout=self.timeout):
            node = message.metadata.src_node_id
            if node not in requests or node in replies:
                _LOG.warning("secure sum: node %d was not asked, or has answered before", node)
                continue
            try:
                reply = SumReply.find(self._counted(message))
                if reply.code:
                    raise WireError(f"{reply.code}: {reply.reason}")
            except WireError as error:
                refused[node] = str(error)
            else:
                refused.pop(node, None)
                replies[node] = reply
        return replies

    def add(self, message: Message) -> Reply | None:
        """Take in a reply; return None if it is not valid."""
        node = message.metadata.src_node_id
        try:
            reply = Reply.find(self._counted(message))
            if node not in self.nodes:
                raise WireError("reply is of a node that was not asked")
            if reply.nonce != self.nonce:
                raise WireError("reply is to another request")
            if node in self.replies:
                raise WireError("reply is the node's second one")
            if self.weight and not (reply.code or 1 <= reply.weight <= MOST_WEIGHT):
                raise WireError(f"weight must be in 1..2**40, got weight={reply.weight}")
        except WireError as error:
            _LOG.warning("reply of node %d refused: %s", node, error)
            # A second reply does not spoil the first; errors of strangers may be the SuperLink's.
            if node not in self.replies and (node in self.nodes or message.has_content()):
                self.refused[node] = str(error)
            return None
        self.refused.pop(node, None)
        self.replies[node], self.messages[node] = reply, message
        if reply.code:
            self.refused[node] = f"{reply.code}: {reply.reason}"
        return reply

    def _counted(self, message: Message) -> Message:
        """Count the bytes of a message that has come back."""
        if message.has_content():
            self.bytes_up += content_bytes(message.content)
        return message

    def publish(self, cells: Tensor, nodes: Iterable[int], fingerprint: bytes) -> None:
        """Take the total of a secure sum; void if it is longer than honest messages make it."""
        present = frozenset(nodes)
        try:
            self.method.check_honest(cells, len(present), limit=self.limit)
        except WireError as error:  # a sum does not show whose message is too long
            self.void = str(error)
            return
        self.present = present
        self.total = WireMessage(
            self.method.total_format, cells, round_index=self.round_index,
            fingerprint=fingerprint, sender=SERVER, count=len(present),
        )  # fmt: skip

    def weight_of(self, node: int) -> int:
        """Weight by which a node's message counts; 1 if all count alike."""
        return self.replies[node].weight if self.weight else 1

    def report(self, claim: Claim | None, epsilon: Epsilon | None) -> RoundReport:
        """Report the round with the claim that is paid for; None if no message was requested."""
        silent = [n for n in self.nodes if n not in self.replies and n not in self.refused]
        return RoundReport(
            self.round_index,
            selected=(*self.nodes, *self.left),
            present=tuple(sorted(self.present)),
            refused={**self.left, **self.refused},
            silent=() if claim is None else tuple(silent),
            bytes_down=self.bytes_down, bytes_up=self.bytes_up,
            claim=claim, epsilon=epsilon, void=self.void,
        )  # fmt: skip


def plain_sum(current: Round, replies: Mapping[int, Reply]) -> None:
    """Add messages that the server sees, with the plan's metrics: untrusted bytes by their nodes.

    Sets the round's `total`, `metrics` and `present`, and adds to its `refused`. Where clients do
    not count alike, a message is of the node's vector times its weight.

    The sum is exact, the same for every order. Without a key the server does not know the round's
    hashes. It then takes the fingerprint that most messages have, and refuses the others; if two
    are as frequent, it refuses all.

    Guarantees (`tests/flower/test_hostile.py`): bytes that are not a message of the round by the
    node they came from change nothing but a count. Messages that are longer than honest clients
    make them (`Method.check_honest`), or far longer than the others, are refused as well; or, where
    the round `substitutes`, count as zeros, and nobody can tell them from others.
    """
    method, second = current.method, current.plan.metric_method
    fingerprint = current.fingerprint or voted_fingerprint(replies)
    place: dict[str, Any] = {"round_index": current.round_index, "fingerprint": fingerprint}
    norms, parts = dict[int, float](), dict[int, list[bytes]]()
    for node, reply in replies.items():
        weight = current.weight_of(node)
        try:
            limit = current.limit * weight
            honest, norm = _honest(reply.message, node, method, place, current, limit)
            pair = [honest]
            if second is not None:
                pair.append(_honest(reply.metrics, node, second, place, current)[0])
            norms[node], parts[node] = norm / weight, pair
        except WireError as error:
            current.refused[node] = str(error)
    bound = current.usual.bound(norms.values())
    inboxes = [
        Inbox(kind.message_format, **place, total_format=kind.total_format)
        for kind in (method, second) if kind is not None
    ]  # fmt: skip
    for node, pair in parts.items():
        if norms[node] > bound:
            current.refused[node] = (
                f"message has a norm of {norms[node]:.4g}, far beyond the others': at most "
                f"{bound:.4g} is taken, a multiple of the median (set by SketchStrategy(limit=...))"
            )
            continue
        # Both or neither, as the claim is about both: all parts are checked by now.
        for inbox, data in zip(inboxes, pair, strict=True):
            inbox.add(data)
    if not inboxes[0].count:
        return
    try:
        current.total, current.metrics, *_ = (*(inbox.total() for inbox in inboxes), None)
    except WireError as error:  # a sum that does not fit: somebody sent what no honest client does
        current.refused.update(dict.fromkeys(replies, str(error)))
    else:
        current.present = frozenset(inboxes[0].heard)


def _honest(
    data: bytes, node: int, method: Method, place: Mapping[str, Any], current: Round,
    limit: float = math.inf,
) -> tuple[bytes, float]:  # fmt: skip
    """Return a message that an honest client could have sent and its norm; or zeros for it."""
    message = WireMessage.from_bytes(data, method.message_format, **place, count=1)
    if message.sender != node:
        raise WireError("message has another sender than the node it came from")
    try:
        return data, method.check_honest(message.cells, limit=limit)
    except WireError as error:
        if not current.substitutes:
            raise
        _LOG.debug("node %d counts as zeros: %s", node, error)
        return replace(message, cells=noised_zeros(method, current.claim)).to_bytes(), 0.0


def noised_zeros(method: Method, claim: Claim) -> Tensor:
    """Message of a vector of zeros, with the noise that a client adds to its own."""
    if method.takes_records:
        return release_records((), method, ANY_SEED, claim, charge=None)
    encoded = release(torch.zeros(1, method.dim), method, ANY_SEED, claim, charge=None).encoded
    assert encoded is not None  # noqa: S101 (for the type checker: zeros are finite)
    return encoded.messages[0]


def voted_fingerprint(replies: Mapping[int, Reply], *, by_node: bool = True) -> bytes:
    """Fingerprint of most messages, for a server that cannot know that of the round.

    Only messages whose sender is their node count, unless senders are not nodes.
    """
    fingerprints = []
    for node, reply in replies.items():
        with suppress(WireError):  # refused when it is read
            header = Header.parse(reply.message)
            fingerprints += [header.fingerprint] if header.sender == node or not by_node else []
    return most_common(fingerprints)


def most_common(fingerprints: Iterable[bytes]) -> bytes:
    """Find the most frequent fingerprint; zeros, which nobody has, if two are as frequent."""
    (first, count), (_, runner_up), *_ = [*Counter(fingerprints).most_common(2), (b"", 0), (b"", 0)]
    return first if count > runner_up else bytes(8)


def check_strategy(strategy: Strategy) -> None:
    """Raise unless the strategy can work on one reply that stands for all.

    That is so for one whose `aggregate_train` depends on nothing but the mean of the clients'
    models and its own memory, as in FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad and FedYogi.
    Those of Flower for which it is not, and whatever derives from them or has one in its
    `strategy`, are refused; of others it cannot be told.
    """
    check_type("strategy", strategy, Strategy)
    name = type(strategy).__name__
    bases = {base.__name__ for base in type(strategy).__mro__ if base.__module__.startswith("flwr")}
    for why, names in _UNFIT.items():
        if bases.intersection(names):
            raise ArgumentError(f"strategy must work on one mean of all clients, got {name}: {why}")
    within = getattr(strategy, "strategy", None)
    if isinstance(within, Strategy):
        check_strategy(within)


def mean_metrics(current: Round) -> dict[str, float]:
    """Average each number that all replies in the sum report, by their nodes' weights.

    The metric that clients count by, lists, and values that are not finite are left out.
    """
    nodes = sorted(current.present)
    reported = [
        {
            name: float(value)
            for record in current.messages[node].content.metric_records.values()
            for name, value in record.items()
            if isinstance(value, int | float) and math.isfinite(value) and name != current.weight
        }
        for node in nodes
    ]
    weights = [current.weight_of(node) for node in nodes]
    pairs = list(zip(weights, reported, strict=True))
    return {
        name: sum(weight * values[name] for weight, values in pairs) / sum(weights)
        for name in set.intersection(*map(set, reported))
    }

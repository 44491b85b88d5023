"""Aggregation of a round: replies of nodes, exchanges with them, and their plain sum."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any

from flwr.app import Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from torch import Tensor

from diffsketch.errors import ArgumentError
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
from diffsketch.privacy.claim import Claim
from diffsketch.wire import Header, Inbox, WireError
from diffsketch.wire import Message as WireMessage

_LOG = logging.getLogger("flwr.diffsketch")
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


_ENOUGH = 3  # sizes of which one that is false does not move the median


class UsualSize:
    """The usual size of what clients send in a round, and a bound on what is far beyond it.

    It is the lower median of the round, which half of the clients together cannot raise. Zeros do
    not count; where fewer than three others are left, it is that of the last round before.

    Guarantees (`tests/flower/test_hostile.py`): clients whose sizes are within the multiple of the
    median are never refused; others are, from the first round on that has three messages.

    Args:
        multiple: Of the median, that nothing may exceed.
    """

    def __init__(self, multiple: float) -> None:
        self._multiple, self._usual = multiple, math.inf

    def bound(self, sizes: Iterable[float]) -> float:
        """Bound for a round with these sizes; infinite if nothing is known yet."""
        positive = [size for size in sizes if size > 0]
        if len(positive) >= _ENOUGH:
            self._usual = median_low(positive)
        bound = self._multiple * self._usual
        # Of few messages, those within the bound say where the next round's should be.
        within = [size for size in positive if size <= bound < math.inf]
        self._usual = median_low(within) if within else self._usual
        return bound


@dataclass(frozen=True, eq=False)
class RoundContext:
    """A round that is aggregated."""

    plan: FlowerPlan
    method: Method  # the plan's, for the model's length
    round_index: int
    fingerprint: bytes | None  # of the round's hashes; None if the server has no key
    nonce: bytes  # sixteen random bytes of the round
    limit: float = math.inf  # of a message's norm, besides the method's own of honest ones
    usual: UsualSize | None = None  # of messages' norms, where these may bound each other
    # What takes the place of a message that is too long, where its refusal would tell about data
    # that only the sum's noise hides; None where it is refused.
    substitute: Callable[[], Tensor] | None = None


@dataclass(frozen=True, eq=False)
class AggregationResult:
    """Total of a round."""

    total: WireMessage | None  # before the server adds anything; None if there is nothing to sum
    present: frozenset[int]  # nodes whose message is in it
    refused: Mapping[int, str]  # nodes whose message is not, and why
    void: str = ""  # why there is no total, where a sum was begun and failed


class _TooLongError(WireError):
    """A message is whole, and longer than that of an honest client."""


def plain_sum(
    parts: Mapping[int, bytes], about: RoundContext, weights: Mapping[int, int] | None = None
) -> AggregationResult:
    """Add messages that the server sees: untrusted bytes by the node that they came from.

    With `weights`, a node's message is of its vector times its weight.

    The sum is exact, the same for every order. Without a key the server does not know the round's
    hashes. It then takes the fingerprint that most messages have, and refuses the others; if two
    are as frequent, it refuses all.

    Guarantees (`tests/flower/test_hostile.py`): bytes that are not a message of the round by the
    node they came from change nothing but a count. Messages that are longer than honest clients
    make them (`Method.check_honest`), or far longer than the others, are refused as well; or, with
    a `substitute`, count as zeros, and nobody can tell them from others.
    """
    method, refused, headers = about.method, dict[int, str](), dict[int, Header]()
    for node, data in parts.items():
        try:
            headers[node] = Header.parse(data)
            if headers[node].sender != node:
                raise WireError("message has another sender than the node it came from")
        except WireError as error:
            refused[node] = str(error)
    fingerprint = about.fingerprint
    if fingerprint is None:
        fingerprint = most_common(header.fingerprint for header in headers.values())
    place: dict[str, Any] = {"round_index": about.round_index, "fingerprint": fingerprint}
    good = {node: data for node, data in parts.items() if node not in refused}
    usual, substituted = _usual_bound(good, about, place, weights or {}), set[int]()

    def check(message: WireMessage) -> None:
        if message.sender in substituted:
            return
        weight = (weights or {}).get(message.sender, 1)
        norm = method.norm_of(message.cells) / weight
        if not norm <= usual:
            raise _TooLongError(
                f"message has a norm of {norm:.4g}, far beyond the others': at most {usual:.4g} is "
                "taken, a multiple of the median (SketchStrategy(limit=...) sets it)"
            )
        try:
            method.check_honest(message.cells, limit=about.limit * weight)
        except WireError as error:
            raise _TooLongError(str(error)) from error

    layout, total_layout = method.message_format, method.total_format
    inbox = Inbox(layout, **place, senders=parts, total_format=total_layout, check=check)
    for node, data in good.items():
        try:
            try:
                inbox.add(data)
            except _TooLongError as error:
                if about.substitute is None:
                    raise
                _LOG.debug("node %d counts as zeros: %s", node, error)
                substituted.add(node)
                zeros = WireMessage(layout, about.substitute(), **place, sender=node)
                inbox.add(zeros.to_bytes())
        except WireError as error:
            refused[node] = str(error)
    try:
        total = inbox.total() if inbox.count else None
    except WireError as error:  # a sum that does not fit: somebody sent what nobody may
        return AggregationResult(None, frozenset(), dict.fromkeys(parts, str(error)))
    return AggregationResult(total, frozenset(inbox.heard), refused)


def _usual_bound(
    parts: Mapping[int, bytes],
    about: RoundContext,
    place: Mapping[str, Any],
    weights: Mapping[int, int],
) -> float:
    """Bound of the norm of a message, over its weight, that the others of the round give."""
    if about.usual is None:
        return math.inf
    norms = []
    for node, data in parts.items():
        try:
            message = WireMessage.from_bytes(data, about.method.message_format, **place)
        except WireError:  # refused with the reason when it is added
            continue
        norms.append(about.method.norm_of(message.cells) / weights.get(node, 1))
    return about.usual.bound(norms)


def most_common(fingerprints: Iterable[bytes]) -> bytes:
    """Find the most frequent one; if there is no such, one that none has."""
    first = Counter(fingerprints).most_common(2)
    if not first or (len(first) == 2 and first[0][1] == first[1][1]):
        return bytes(8)
    return first[0][0]


class Exchange:
    """Requests and replies of a secure sum, besides those for messages; counts their bytes."""

    def __init__(self, grid: Grid, *, timeout: float) -> None:
        self.grid, self._timeout = grid, timeout
        self.bytes_up = self.bytes_down = 0

    def send(
        self, requests: Mapping[int, SumRequest]
    ) -> tuple[dict[int, SumReply], dict[int, str]]:
        """Send each node its request; return the first reply of each, and why others gave none.

        Whoever is in neither was silent.
        """
        messages = []
        for node, request in requests.items():
            content = RecordDict({SUM_RECORD: request.to_record()})
            self.bytes_down += content_bytes(content)
            messages.append(Message(content, dst_node_id=node, message_type=MessageType.TRAIN))
        found, refused = dict[int, SumReply](), dict[int, str]()
        for message in self.grid.send_and_receive(messages, timeout=self._timeout):
            node = message.metadata.src_node_id
            if node not in requests or node in found:
                _LOG.warning("secure sum: node %d was not asked, or has answered before", node)
                continue
            try:
                if not message.has_content():
                    raise WireError(f"error: {str(message.error.reason)[:1000]}")
                self.bytes_up += content_bytes(message.content)
                record = message.content.config_records.get(SUM_RECORD)
                if record is None:
                    raise WireError("reply is not of a client with a secure sum")
                reply = SumReply.of(record)
                if reply.code:
                    raise WireError(f"{reply.code}: {reply.reason}")
            except WireError as error:
                refused[node] = str(error)
                continue
            refused.pop(node, None)
            found[node] = reply
        return found, refused


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
        message_bytes: Bytes of the methods' messages in `bytes_up`.
        claim: The round's guarantee for those who were selected.
        void: Why the model did not change; empty if it did.
    """

    round_index: int
    selected: tuple[int, ...]
    present: tuple[int, ...]
    refused: Mapping[int, str] = field(default_factory=dict)
    silent: tuple[int, ...] = ()
    bytes_down: int = 0
    bytes_up: int = 0
    message_bytes: int = 0
    claim: Claim | None = None
    void: str = ""

    def __str__(self) -> str:
        """Format in a line."""
        fate = f"VOID: {self.void}; the model is unchanged" if self.void else "counts"
        return (
            f"round {self.round_index} {fate} ({len(self.present)} of {len(self.selected)} nodes, "
            f"{len(self.refused)} refused, {len(self.silent)} silent; {self.bytes_up:,} bytes up, "
            f"{self.bytes_down:,} bytes down)"
        )


@dataclass
class OpenRound:
    """A round whose messages were requested, and the replies so far."""

    about: RoundContext
    nodes: tuple[int, ...]  # that a message was requested of
    claim: Claim  # that was planned
    arrays_key: str  # name of the model's record in messages
    bytes_down: int
    exchange: Exchange  # of a secure sum
    left: Mapping[int, str]  # nodes that a secure sum has lost before, and why
    replies: dict[int, Reply] = field(default_factory=dict)  # the first valid one of each node
    contents: dict[int, Message] = field(default_factory=dict)  # messages of these replies
    refused: dict[int, str] = field(default_factory=dict)  # nodes that do not count, and why
    weight: str = ""  # name of the metric that clients count by; empty if they count alike
    metrics: WireMessage | None = None  # sum of the plan's metrics
    bytes_up: int = 0

    def add(self, message: Message) -> Reply | None:
        """Take in one reply; return None if it is not valid."""
        node = message.metadata.src_node_id
        if not message.has_content():
            reason = str(message.error.reason)
            _LOG.warning("node %d did not answer: %s", node, reason)
            if node in self.nodes and node not in self.replies:  # else the server's own, for one
                self.refused[node] = f"error: {reason[:1000]}"
            return None
        self.bytes_up += content_bytes(message.content)
        try:
            if node not in self.nodes:
                raise WireError("reply is of a node that was not asked")
            reply = Reply.find(message.content, self.about.nonce)
            if node in self.replies:
                raise WireError("reply is the node's second one")
            if self.weight and not (reply.code or 1 <= reply.weight <= MOST_WEIGHT):
                raise WireError(f"weight must be in 1..2**40, got weight={reply.weight}")
        except WireError as error:
            if node not in self.replies:  # a second reply does not spoil the first one
                self.refused[node] = str(error)
            _LOG.warning("reply of node %d refused: %s", node, error)
            return None
        self.refused.pop(node, None)
        self.replies[node], self.contents[node] = reply, message
        if reply.code:
            self.refused[node] = f"{reply.code}: {reply.reason}"
        return reply

    @property
    def weights(self) -> dict[int, int]:
        """Weights of the nodes' messages, where clients do not count alike."""
        return {node: one.weight for node, one in self.replies.items()} if self.weight else {}

    def report(self, present: frozenset[int], claim: Claim, void: str) -> RoundReport:
        """Report what became of the round."""
        heard = set(self.replies) | set(self.refused)
        return RoundReport(
            round_index=self.about.round_index,
            selected=(*self.nodes, *self.left),
            present=tuple(sorted(present)),
            refused={**self.left, **self.refused},
            silent=tuple(node for node in self.nodes if node not in heard),
            bytes_down=self.bytes_down + self.exchange.bytes_down,
            bytes_up=self.bytes_up + self.exchange.bytes_up,
            message_bytes=sum(len(one.message) for one in self.replies.values()),
            claim=claim,
            void=void,
        )


def check_strategy(strategy: Strategy) -> None:
    """Raise unless the strategy can work on one reply that stands for all.

    That is so for one whose `aggregate_train` depends on nothing but the mean of the clients'
    models and its own memory, as in FedAvg, FedProx, FedAvgM, FedAdam, FedAdagrad and FedYogi.
    Those of Flower for which it is not, and whatever derives from them or has one in its
    `strategy`, are refused; of others it cannot be told.
    """
    name = type(strategy).__name__
    if not isinstance(strategy, Strategy):
        raise ArgumentError(f"strategy must be a Strategy of flwr.serverapp, got {name}")
    bases = {base.__name__ for base in type(strategy).__mro__ if base.__module__.startswith("flwr")}
    for why, names in _UNFIT.items():
        if bases.intersection(names):
            raise ArgumentError(f"strategy must work on one mean of all clients, got {name}: {why}")
    within = getattr(strategy, "strategy", None)
    if isinstance(within, Strategy):
        check_strategy(within)


def mean_metrics(
    contents: Sequence[RecordDict], weights: Sequence[int], weight: str = ""
) -> MetricRecord | None:
    """Average each number that all replies have; None if there is none.

    The one called `weight`, lists, and what is not finite are left out.
    """
    found: list[dict[str, float]] = []
    for content in contents:
        values = [pair for record in content.metric_records.values() for pair in record.items()]
        found.append(
            {
                name: float(value)
                for name, value in values
                if isinstance(value, int | float) and math.isfinite(value) and name != weight
            }
        )
    common = set.intersection(*(set(one) for one in found)) if found else set()
    if not common:
        return None
    whole = sum(weights)
    return MetricRecord(
        {
            name: sum(part * one[name] for part, one in zip(weights, found, strict=True)) / whole
            for name in common
        }
    )

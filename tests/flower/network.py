"""A Flower network in one process: nodes with a `ClientApp` each, and a grid that may be hostile.

Everything passes through Flower's own serialisation, as it would on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from diffsketch.flower import FlowerPlan, SketchStrategy, replay_totals, sketch_mod
from diffsketch.flower.records import RECORD, SUM_RECORD
from diffsketch.sketch import SketchKey

DIM = 21
RUN = 7
Train = Callable[[int, Tensor, int], Tensor]
"""What a node learns: its number, the weights and the server's round give new weights."""

Mod = Callable[[Message, Context, Any], Message]
Tamper = Callable[[list[Message]], list[Message]]


def record_of(weights: Tensor) -> ArrayRecord:
    """A model of two arrays and a counter."""
    parts = {"weight": weights[:18].reshape(3, 6), "bias": weights[18:], "steps": torch.tensor([3])}
    return ArrayRecord({name: Array(part.numpy().copy()) for name, part in parts.items()})


def weights_of(arrays: ArrayRecord) -> Tensor:
    weight, bias = arrays["weight"].numpy(), arrays["bias"].numpy()
    return torch.from_numpy(np.concatenate([weight.reshape(-1), bias]))


def towards(number: int, weights: Tensor, server_round: int) -> Tensor:
    """Half-way to a point of the node's own."""
    del server_round
    return weights + 0.5 * (point(number) - weights)


def point(number: int) -> Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(number))


def client_app(mod: Mod | None, train: Train, seen: list[Message]) -> ClientApp:
    """An app as its user wrote it, and the one line that changes it."""
    app = ClientApp(mods=[] if mod is None else [mod])

    @app.train()
    def _train(message: Message, context: Context) -> Message:
        seen.append(message)
        arrays = message.content.array_records["arrays"]
        config = message.content.config_records["config"]
        number, server_round = context.node_config["partition-id"], config["server-round"]
        new = train(cast(int, number), weights_of(arrays), cast(int, server_round))
        # A power of two leaves the bits of a mean as they are, weighted or not.
        examples = cast(int, context.node_config.get("examples", 8))
        return reply_of(message, {"num-examples": examples, "loss": 0.5}, record_of(new))

    @app.evaluate()
    def _evaluate(message: Message, _: Context) -> Message:
        norm = float(weights_of(message.content.array_records["arrays"]).norm())
        return reply_of(message, {"num-examples": 1, "norm": norm})

    return app


def reply_of(
    message: Message, metrics: dict[str, Any], arrays: ArrayRecord | None = None
) -> Message:
    """An app's reply with these metrics, and with arrays if it has trained."""
    content: dict[str, Any] = {} if arrays is None else {"arrays": arrays}
    return Message(RecordDict({**content, "metrics": MetricRecord(metrics)}), reply_to=message)


@dataclass
class Node:
    """A SuperNode. Its state is lost if it is made anew."""

    number: int
    app: ClientApp
    node_id: int
    config: dict[str, Any] = field(default_factory=dict)
    seen: list[Message] = field(default_factory=list)

    def __post_init__(self) -> None:
        config = {"partition-id": self.number, **self.config}
        self.context = Context(RUN, self.node_id, config, RecordDict(), {})


def carried(thing: Any) -> Any:
    """Through Flower's own serialisation."""
    contents = {name: one.deflate() for name, one in get_all_nested_objects(thing).items()}
    return inflate_object_from_contents(thing.object_id, contents)


class Network(Grid):
    """A grid whose nodes answer at once.

    Attributes:
        nodes: By id.
        dead: Ids of nodes that never answer.
        tamper: Changes all replies of an exchange.
        sent: All messages to nodes, as they arrived there.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self.dead: set[int] = set()
        self.tamper: Tamper = list
        self.sent: list[Message] = []
        self._count = 0
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = RUN, 1, 1

    def join(
        self,
        number: int,
        plan: FlowerPlan | None,
        *,
        train: Train = towards,
        node_id: int | None = None,
        config: dict[str, Any] | None = None,
        **options: Any,
    ) -> Node:
        """A node with the mod; without, if there is no plan."""
        mod, seen = None if plan is None else sketch_mod(plan, **options), list[Message]()
        node = Node(
            number, client_app(mod, train, seen), node_id or 1000 + number, config or {}, seen
        )
        self.nodes[node.node_id] = node
        return node

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        del timeout
        replies = []
        for message in messages:
            node_id = message.metadata.dst_node_id
            if node_id in self.dead or node_id not in self.nodes:
                continue
            arrived = self._carried(message)
            self.sent.append(self._carried(message))
            node = self.nodes[node_id]
            replies.append(self._carried(node.app(arrived, node.context)))
        return self.tamper(replies)

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def _carried(self, message: Message) -> Message:
        """The message as it is on the other side."""
        other = cast(Message, carried(message))
        self._count += 1
        other.metadata.__dict__["_message_id"] = f"message-{self._count}"
        return other

    # Parts of a grid that no strategy uses.
    run = set_run = create_message = push_messages = pull_messages = cast(Any, None)


def one_round(
    strategy: Any, network: Network, arrays: ArrayRecord, server_round: int
) -> ArrayRecord:
    """A round as `Strategy.start` runs it: the new arrays, or the old ones."""
    requests = strategy.configure_train(server_round, arrays, ConfigRecord(), network)
    new, _ = strategy.aggregate_train(server_round, network.send_and_receive(requests))
    return arrays if new is None else new


def our_record(message: Message) -> ConfigRecord:
    return message.content.config_records[RECORD]


KEY = SketchKey.from_integer(3)
FIRST = record_of(torch.zeros(DIM))
BAD = 1002  # the node that misbehaves, where one does
DENSE = FlowerPlan("none")
SKETCH = FlowerPlan("sketch", {"rows": 3, "cols": 16})
PRIVATE = {"rows": 2, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0}
GAUSSIAN = FlowerPlan("sketch-gaussian", PRIVATE)
CENTRAL = FlowerPlan("sketch-gaussian", {**PRIVATE, "trust": "central"})


def fed_avg(kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
    return kind(
        **{"fraction_evaluate": 0.0, "min_train_nodes": 1, "min_available_nodes": 1, **options}
    )


def strategy_of(plan: FlowerPlan, kind: type[FedAvg] = FedAvg, **options: Any) -> SketchStrategy:
    return SketchStrategy(fed_avg(kind), plan, **{"key": KEY, **options})


def network_of(plan: FlowerPlan, nodes: int = 3, **options: Any) -> Network:
    network = Network()
    for number in range(nodes):
        network.join(number, plan, **{"key": KEY, **options})
    return network


def replayed(totals: Any, plan: FlowerPlan, **options: Any) -> ArrayRecord:
    """The model of whoever has the totals and the key."""
    return replay_totals(FIRST, totals, method=plan.build(DIM), key=KEY, **options)[0]


class Caught(list[Message]):
    """All replies of a network, as they come: to be its `tamper`."""

    def __call__(self, replies: list[Message]) -> list[Message]:
        self.extend(replies)
        return replies


KEYS, SHARES, MASKED, UNMASK = range(4)
"""The exchanges of a round."""


class Losses:
    """Replies of some nodes are lost, from an exchange on.

    Args:
        silent: The first exchange in which a node's reply is lost, by node.
        until: From which exchange on nothing is lost.
    """

    def __init__(self, silent: Mapping[int, int], *, until: int = 10**9) -> None:
        self._silent, self._until, self._count = silent, until, -1

    def __call__(self, replies: list[Message]) -> list[Message]:
        self._count += bool(replies)  # nobody is asked to evaluate: that is no exchange
        if self._count >= self._until:
            return replies
        first = {one.metadata.src_node_id: 10**9 for one in replies} | dict(self._silent)
        return [one for one in replies if self._count < first[one.metadata.src_node_id]]


class RestartingNetwork(Network):
    """Each message is answered by an app of its own, with a state that was bytes in between.

    Args:
        forgets: The exchange before which a node's state is lost, by node.
    """

    def __init__(self, forgets: Mapping[int, int] | None = None) -> None:
        super().__init__()
        self._forgets, self._exchange = forgets or {}, -1
        self._made: dict[int, tuple[FlowerPlan, dict[str, Any]]] = {}

    def join(self, number: int, plan: FlowerPlan | None, **options: Any) -> Node:
        node = super().join(number, plan, **options)
        assert plan is not None
        mod = {name: value for name, value in options.items() if name not in ("node_id", "config")}
        self._made[node.node_id] = plan, mod
        return node

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._exchange += 1
        for node_id, node in self.nodes.items():
            plan, options = self._made[node_id]
            node.app = client_app(sketch_mod(plan, **options), towards, node.seen)
            forgets = self._forgets.get(node_id) == self._exchange
            state = RecordDict() if forgets else carried(node.context.state)
            node.context = Context(RUN, node_id, node.context.node_config, state, {})
        return super().send_and_receive(messages, timeout=timeout)


def key_file(path: Path, *keys: bytes) -> str:
    """Write keys to a file, one in a line; return its name."""
    path.write_text("\n".join(key.hex() for key in keys), encoding="ascii")
    return str(path)


def all_bytes(message: Message) -> bytes:
    """All that a message has on the wire."""
    return b"".join(one.deflate() for one in get_all_nested_objects(message).values())


def outside_cells(reply: Message) -> list[Any]:
    """All that a server sees of a reply, but for noised cells, their checksum, nonce and times."""
    values: dict[str, Any] = dict(our_record(reply))
    del values["nonce"]
    messages = [values.pop(name) for name in ("message", "metrics")]
    headers = [(len(data), data[:4] + data[8:48]) for data in messages]
    changing = ("_created_at", "_ttl", "_message_id", "_reply_to_message_id")
    metadata = {name: each for name, each in vars(reply.metadata).items() if name not in changing}
    return [list(reply.content), values, headers, metadata, reply.has_error()]


def is_sum_reply(message: Message) -> bool:
    """Whether it is a reply in a secure sum's own exchange."""
    return SUM_RECORD in message.content.config_records


def bytes_of(message: Message) -> bytes:
    """What a node has sent: the reply of a stage of the secure sum."""
    sums = message.content.config_records.get(SUM_RECORD)
    data = our_record(message)["message"] if sums is None else sums["reply"]
    assert isinstance(data, bytes)
    return data


def set_bytes(message: Message, data: bytes) -> Message:
    """Replace what a node has sent."""
    if is_sum_reply(message):
        message.content.config_records[SUM_RECORD]["reply"] = data
    else:
        our_record(message)["message"] = data
    return message


def of_bad(change: Callable[[Message], object], node: int = BAD) -> Tamper:
    """Change what one node sends, in every exchange."""

    def tamper(replies: list[Message]) -> list[Message]:
        for reply in replies:
            if reply.metadata.src_node_id == node:
                change(reply)
        return replies

    return tamper


def started(plan: FlowerPlan, network: Network, rounds: int = 1, **options: Any) -> SketchStrategy:
    """A strategy after these rounds."""
    strategy = strategy_of(plan, **options)
    strategy.start(network, FIRST, rounds)
    return strategy


def reasons(strategy: SketchStrategy) -> list[str]:
    """Why nodes were refused, round by round."""
    return [reason for report in strategy.reports for reason in report.refused.values()]

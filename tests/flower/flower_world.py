"""A Flower network in one process: nodes with a `ClientApp` each, and a grid that may be hostile.

Everything passes through Flower's own serialisation, as it would on a network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from torch import Tensor

from diffsketch.flower import FlowerPlan, replay_totals, sketch_mod
from diffsketch.flower.records import RECORD

DIM = 21
RUN = 7
Train = Callable[[int, Tensor, int], Tensor]
"""What a node learns: its number, the weights and the server's round give new weights."""

Mod = Callable[[Message, Context, Any], Message]


def record_of(weights: Tensor) -> ArrayRecord:
    """A model of two arrays and a counter."""
    return ArrayRecord(
        {
            "weight": Array(weights[:18].reshape(3, 6).numpy().copy()),
            "bias": Array(weights[18:].numpy().copy()),
            "steps": Array(np.array([3], np.int64)),
        }
    )


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
        metrics = MetricRecord({"num-examples": 10 + cast(int, number), "loss": 0.5})
        reply = RecordDict({"arrays": record_of(new), "metrics": metrics})
        return Message(reply, reply_to=message)

    @app.evaluate()
    def _evaluate(message: Message, _: Context) -> Message:
        arrays = message.content.array_records["arrays"]
        norm = float(weights_of(arrays).norm())
        metrics = MetricRecord({"num-examples": 1, "norm": norm})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


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


class World(Grid):
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
        self.tamper: Callable[[list[Message]], list[Message]] = list
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
        mod = None if plan is None else sketch_mod(plan, **options)
        seen: list[Message] = []
        app = client_app(mod, train, seen)
        node = Node(number, app, node_id or 1000 + number, config or {}, seen)
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
        objects = get_all_nested_objects(message)
        contents = {name: one.deflate() for name, one in objects.items()}
        other = cast(Message, inflate_object_from_contents(message.object_id, contents))
        self._count += 1
        other.metadata.__dict__["_message_id"] = f"message-{self._count}"
        return other

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


def one_round(strategy: Any, world: World, arrays: ArrayRecord, server_round: int) -> ArrayRecord:
    """A round as `Strategy.start` runs it: the new arrays, or the old ones."""
    asked = strategy.configure_train(server_round, arrays, ConfigRecord(), world)
    new, _ = strategy.aggregate_train(server_round, world.send_and_receive(asked))
    return arrays if new is None else new


def our_record(message: Message) -> ConfigRecord:
    return message.content.config_records[RECORD]


def followed(model, totals, rounds, **options):
    return replay_totals(model, list(zip(rounds, totals)), **options)[0]

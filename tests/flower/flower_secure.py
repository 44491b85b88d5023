"""Networks for the tests of secure sums: replies that are lost, and nodes that restart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from flwr.app import Context, Message, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from diffsketch.flower import FlowerPlan, sketch_mod
from diffsketch.flower.records import SUM_RECORD
from tests.flower.flower_world import RUN, Node, World, client_app, our_record, towards

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
        return [
            one
            for one in replies
            if self._count < self._silent.get(one.metadata.src_node_id, 10**9)
        ]


class Restarting(World):
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
        self._made[node.node_id] = plan, options
        return node

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        self._exchange += 1
        for node_id, node in self.nodes.items():
            plan, options = self._made[node_id]
            node.app = client_app(sketch_mod(plan, **options), towards, node.seen)
            state = _copied(node.context.state)
            if self._forgets.get(node_id) == self._exchange:
                state = RecordDict()
            node.context = Context(RUN, node_id, node.context.node_config, state, {})
        return super().send_and_receive(messages, timeout=timeout)


def _copied(state: RecordDict) -> RecordDict:
    contents = {name: one.deflate() for name, one in get_all_nested_objects(state).items()}
    return cast(RecordDict, inflate_object_from_contents(state.object_id, contents))


def all_bytes(message: Message) -> bytes:
    """All that a message has on the wire."""
    return b"".join(one.deflate() for one in get_all_nested_objects(message).values())


def is_own(message: Message) -> bool:
    """Whether it is a reply of a secure sum's own."""
    return SUM_RECORD in message.content.config_records


def bytes_of(message: Message) -> bytes:
    """What a node has sent: the reply of a stage of the secure sum."""
    if is_own(message):
        data = message.content.config_records[SUM_RECORD]["reply"]
    else:
        data = our_record(message)["message"]
    assert isinstance(data, bytes)
    return data

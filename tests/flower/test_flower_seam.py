"""The seam for secure sums: exchanges before and after the messages, and messages that are sealed.

The sum here hides nothing from anybody: it only has the shape of one that does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from tests.helpers.silent import silence

pytest.importorskip("flwr")

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

from diffsketch.flower import FlowerPlan, SketchStrategy, AggregationResult
from diffsketch.flower.aggregation import Preparation
from diffsketch.flower.records import SUM_RECORD, digest_of
from diffsketch.privacy import Trust
from diffsketch.sketch import SketchKey
from diffsketch.wire import SERVER
from diffsketch.wire import Message as WireMessage
from tests.flower.flower_world import DIM, World, record_of

KEY = SketchKey.from_integer(3)
PLAN = FlowerPlan(
    "sketch-skellam",
    {"rows": 2, "cols": 6, "clip": 1.0, "noise_multiplier": 1.0},
    cohort=3,
    min_replies=2,
)
BITS = PLAN.build(DIM).message_format.bits


@pytest.fixture(autouse=True)
def _silent() -> Iterator[None]:
    """Rounds without noise, which can be compared."""
    with silence():
        yield


def mask_of(seed: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << BITS, shape, generator=generator)


class ToySealing:
    """Adds the mask that the server has asked for."""

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.DISTRIBUTED})

    def answer(self, message: Message, client: Any) -> Message | None:
        record = message.content.config_records.get("toy")
        if record is None:
            return None
        reply = ConfigRecord({"hello": int(client.context.node_config["partition-id"])})
        return Message(RecordDict({"toy": reply}), reply_to=message)

    def check(self, told: Any, round_index: int, *, client: Any) -> None:
        del round_index, client
        assert told is not None

    def protect(self, message: WireMessage, told: Any, *, client: Any) -> bytes:
        del client
        mask = mask_of(int(told["seed"]), tuple(message.cells.shape))
        hidden = (message.cells + mask) & ((1 << BITS) - 1)
        return WireMessage(
            message.format,
            hidden,
            round_index=message.round_index,
            fingerprint=message.fingerprint,
            sender=message.sender,
        ).to_bytes()


class ToySum:
    """Asks all nodes for a number, makes masks of them, and takes the masks off the sum."""

    trusts: ClassVar[frozenset[Trust]] = frozenset({Trust.DISTRIBUTED})

    def __init__(self) -> None:
        self.seeds: dict[int, int] = {}

    def prepare(self, nodes: Any, about: Any, *, exchange: Any) -> Preparation:
        del about
        asked = [
            Message(RecordDict({"toy": ConfigRecord()}), dst_node_id=node, message_type="train")
            for node in sorted(nodes)
        ]
        for reply in exchange.grid.send_and_receive(asked):
            number = reply.content.config_records["toy"]["hello"]
            self.seeds[reply.metadata.src_node_id] = 100 + number
        return Preparation({node: ConfigRecord({"seed": one}) for node, one in self.seeds.items()})

    def total(self, parts: Mapping[int, bytes], about_round: Any, *, exchange: Any) -> AggregationResult:
        assert exchange.grid is not None
        method, fingerprint = about_round.method, about_round.fingerprint
        form, total = method.message_format, torch.zeros(method.message_format.shape).long()
        about: dict[str, Any] = {"round_index": about_round.round_index, "fingerprint": fingerprint}
        for node, data in parts.items():
            cells = WireMessage.from_bytes(data, form, **about).cells
            total += cells - mask_of(self.seeds[node], form.shape)
        message = WireMessage(
            method.total_format,
            total & ((1 << BITS) - 1),
            **about,
            sender=SERVER,
            count=len(parts),
        )
        return AggregationResult(message, frozenset(parts), {})


def result(summation: Any, sealing: Any, **trust: Any) -> Any:
    world = World()
    for number in range(3):
        world.join(number, PLAN, key=KEY, aggregation=sealing, **trust)
    inside = FedAvg(fraction_evaluate=0.0)
    strategy = SketchStrategy(inside, PLAN, key=KEY, aggregation=summation, **trust)
    return strategy, strategy.start(world, record_of(torch.zeros(DIM)), 2).arrays


def test_a_secure_sum_goes_in_without_a_trusted_server() -> None:
    strategy, arrays = result(ToySum(), ToySealing())
    _, expected = result(None, None, trusted_server=True)
    assert digest_of(arrays) == digest_of(expected)
    assert [len(report.present) for report in strategy.reports] == [3, 3]
    assert strategy.epsilon(1e-5).scope.trust is Trust.DISTRIBUTED


def test_the_messages_are_sealed() -> None:
    # Negative control: without taking the masks off, the sum is something else.
    summation = ToySum()
    prepared = summation.prepare

    def wrong(*args: Any, **kwargs: Any) -> Any:
        told = prepared(*args, **kwargs)
        summation.seeds = {node: 7 for node in summation.seeds}  # noqa: C420
        return told

    summation.prepare = wrong  # type: ignore[method-assign]
    _, arrays = result(summation, ToySealing())
    _, expected = result(None, None, trusted_server=True)
    assert digest_of(arrays) != digest_of(expected)


def test_the_app_does_not_see_the_sums_records() -> None:
    world = World()
    node = world.join(0, PLAN, key=KEY, aggregation=ToySealing())
    for number in (1, 2):
        world.join(number, PLAN, key=KEY, aggregation=ToySealing())
    strategy = SketchStrategy(FedAvg(fraction_evaluate=0.0), PLAN, key=KEY, aggregation=ToySum())
    strategy.start(world, record_of(torch.zeros(DIM)), 1)
    assert len(node.seen) == 1
    assert SUM_RECORD not in node.seen[0].content

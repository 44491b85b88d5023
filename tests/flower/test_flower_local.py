"""Arrays that clients keep to themselves: running statistics are never sketched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SketchStrategy, sketch_mod
from tests.flower.flower_world import followed
from diffsketch.flower.records import flat, length_of
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import Node, World

KEY = SketchKey.from_integer(3)
PLAN = FlowerPlan("sketch-gaussian", {"rows": 1, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0})
LOCAL = ("running_mean", "running_var", "num_batches_tracked")
WIDTH, WEIGHTS = 16, 24


def model(variance: str = "bn.running_var") -> ArrayRecord:
    """A layer, and the statistics of batch normalisation after it."""
    return ArrayRecord(
        {
            "fc.weight": Array(np.zeros(WEIGHTS, np.float32)),
            "bn.running_mean": Array(np.zeros(WIDTH, np.float32)),
            variance: Array(np.ones(WIDTH, np.float32)),
            "bn.num_batches_tracked": Array(np.array(0, np.int64)),
        }
    )


def join(world: World, number: int, variance: str = "bn.running_var", **options: Any) -> Node:
    """A node whose app adds its own to all of its arrays."""
    app, seen = ClientApp(mods=[sketch_mod(PLAN, key=KEY, **options)]), list[Message]()

    def train(message: Message, _: Context) -> Message:
        seen.append(message)
        old = message.content.array_records["arrays"]
        steps = {"fc.weight": 0.01, "bn.running_mean": 0.5, variance: 1 + number}
        new = {
            name: Array(np.asarray(one.numpy() + steps.get(name, 1)).astype(one.dtype))
            for name, one in old.items()
        }
        metrics = MetricRecord({"num-examples": 1})
        return Message(
            RecordDict({"arrays": ArrayRecord(new), "metrics": metrics}), reply_to=message
        )

    app.train()(train)
    world.nodes[1000 + number] = Node(number, app, 1000 + number, {}, seen)
    return world.nodes[1000 + number]


def strategy_of(key: SketchKey | None = KEY, **options: Any) -> SketchStrategy:
    own = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    return SketchStrategy(own, PLAN, key=key, **options)


def seen_by(node: Node, name: str) -> list[float]:
    return [
        float(one.content.array_records["arrays"][name].numpy().reshape(-1)[0]) for one in node.seen
    ]


def test_running_statistics_are_refused_unless_they_are_kept() -> None:
    world = World()
    node = join(world, 0, keep_local=LOCAL)
    with pytest.raises(ArgumentError, match=r"running statistics, got bn\.running_mean, bn\.run"):
        strategy_of().start(world, model(), 1)
    assert node.seen == []
    with pytest.raises(ArgumentError, match="keep_local must be a collection of names"):
        sketch_mod(PLAN, keep_local="running_mean")
    with pytest.raises(ArgumentError, match="keep_local must be a collection of names"):
        strategy_of(keep_local="running_mean")
    assert length_of(model(), LOCAL) == WEIGHTS == len(flat(model(), LOCAL))


@pytest.mark.parametrize("key", [KEY, None])
def test_clients_keep_their_own_and_share_the_rest(key: SketchKey | None) -> None:
    world, caught, first = World(), list[Message](), model()
    nodes = [join(world, number, keep_local=LOCAL) for number in range(2)]
    world.tamper = lambda replies: caught.extend(replies) or list(replies)  # type: ignore[func-returns-value]
    strategy = strategy_of(key, keep_local=LOCAL)
    result = strategy.start(world, first, 3)
    assert not any(report.void for report in strategy.reports)
    for number, node in enumerate(nodes):
        step = 1 + number
        assert seen_by(node, "bn.running_var") == [1, 1 + step, 1 + 2 * step]
        assert seen_by(node, "bn.running_mean") == [0.0, 0.5, 1.0]
        assert seen_by(node, "bn.num_batches_tracked") == [0, 1, 2]
    assert all(not reply.content.array_records for reply in caught)
    rounds, totals = zip(*strategy.totals, strict=True)
    method = PLAN.build(WEIGHTS)
    after = followed(first, totals, rounds, method=method, key=KEY, keep_local=LOCAL)
    assert np.abs(after["fc.weight"].numpy()).max() > 0
    for name in list(first)[1:]:
        assert np.array_equal(after[name].numpy(), first[name].numpy())
    if key is not None:
        assert np.array_equal(result.arrays["fc.weight"].numpy(), after["fc.weight"].numpy())
        assert np.array_equal(result.arrays["bn.running_var"].numpy(), np.ones(WIDTH))


def test_under_a_name_that_says_nothing_a_variance_becomes_negative() -> None:
    """What the refusal is for. 16 variances of about 2, with noise of standard deviation 2 each."""
    world, name = World(), "bn.spread"
    join(world, 0, name, keep_local=("running_mean",))
    strategy = strategy_of(keep_local=("running_mean",))
    arrays = strategy.start(world, model(name), 5).arrays
    assert (arrays[name].numpy() < 0).any()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "model: arrays must not have running statistics"),
        ({"keep_local": LOCAL[:2]}, "plan: the server's plan is another one"),
    ],
)
def test_both_sides_keep_the_same(options: dict[str, Any], word: str) -> None:
    world = World()
    node = join(world, 0, **options)
    strategy = strategy_of(keep_local=LOCAL)
    strategy.start(world, model(), 1)
    (reason,) = strategy.reports[0].refused.values()
    assert reason.startswith(word)
    assert node.seen == []

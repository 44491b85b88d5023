"""Adaptive clipping in Flower: servers and clients have the same clip, whatever they missed."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("flwr")

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedAvgM

from diffsketch.flower import FlowerPlan, SketchStrategy
from tests.flower.flower_world import followed
from diffsketch.flower.records import digest_of
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import DIM, World, one_round, our_record, record_of

KEY = SketchKey.from_integer(3)
NODES = 5
SETTINGS = {"rows": 1, "cols": 16, "clip": 0.2, "noise_multiplier": 1e-3, "clip_quantile": 0.5}
LOCAL = FlowerPlan("sketch-gaussian", SETTINGS, NODES)
CENTRAL = FlowerPlan("sketch-gaussian", {**SETTINGS, "trust": "central"}, NODES)
SECURE = FlowerPlan("sketch-skellam", SETTINGS, NODES, NODES - 1, secure_sum=True, identities=False)
FIRST = record_of(torch.zeros(DIM))


def world_of(plan: FlowerPlan) -> World:
    world = World()
    for number in range(NODES):
        world.join(number, plan, key=KEY)
    return world


def rounds(strategy: SketchStrategy, world: World, count: int) -> list[float]:
    """Clips before each round and after the last."""
    arrays, clips = FIRST, []
    for server_round in range(1, count + 1):
        arrays = one_round(strategy, world, arrays, server_round)
        clips.append(strategy.clip or 0.0)
    assert not any(report.void or report.refused for report in strategy.reports)
    return clips


def strategy_of(plan: FlowerPlan, key: SketchKey | None = KEY) -> SketchStrategy:
    return SketchStrategy(FedAvg(fraction_evaluate=0.0), plan, key=key)


@pytest.mark.parametrize("plan", [LOCAL, CENTRAL, SECURE], ids=["local", "central", "secure"])
@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_the_clip_moves_and_all_follow(plan: FlowerPlan, key: SketchKey | None) -> None:
    """All updates are longer than the clip, which grows by a factor of exp(0.1) a round.

    Noise is 0.01 in the share at most, so 0.004 in the logarithm after four rounds: 3% is 7 times
    that, with a chance below 1e-11.
    """
    strategy = strategy_of(plan, key)
    clips = rounds(strategy, world_of(plan), 4)
    for place, clip in enumerate(clips, start=1):
        assert clip == pytest.approx(0.2 * math.exp(0.1 * place), rel=0.03)
    # Whoever has the totals and the key has the clips as well, and with them the model.
    indices, totals = zip(*strategy.totals, strict=True)
    model = followed(FIRST, totals, indices, method=plan.build(DIM), key=KEY)
    if key is not None:
        desk: Any = strategy._started
        assert digest_of(model) == digest_of(desk.history.arrays)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_nodes_that_missed_rounds_have_the_clip(momentum: float) -> None:
    """By the totals that they missed; or with the dense model, where the strategy has its own rule.

    A client that decoded a total with another clip would not have the server's model, and refuse.
    """
    inside = FedAvgM(fraction_evaluate=0.0, server_momentum=momentum)
    strategy, world = SketchStrategy(inside, LOCAL, key=KEY), world_of(LOCAL)
    arrays = one_round(strategy, world, FIRST, 1)
    for server_round in (2, 3):
        world.dead = {1000, 1001}
        arrays = one_round(strategy, world, arrays, server_round)
    world.dead = set()
    world.join(2, LOCAL, key=KEY)  # lost all that it had
    one_round(strategy, world, arrays, 4)
    last = strategy.reports[-1]
    assert len(last.present) + len(last.refused) == NODES
    assert set(last.present) >= {1000, 1001, 1003, 1004}
    assert last.refused.keys() <= {1002}
    requests = [our_record(one) for one in world.sent[-NODES:]]
    shown = {float(str(one["clip"])) for one in requests}
    assert len(shown) == (1 if momentum else 2)  # of the first missed round, or of this one


def test_a_client_uses_the_clip_that_it_is_told() -> None:
    """Noise is in proportion to the clip, so that the claim holds for any."""
    world, strategy = world_of(LOCAL), strategy_of(LOCAL)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    for one in asked:
        our_record(one)["clip"] = 1e-3
    strategy.aggregate_train(1, world.send_and_receive(asked))
    ((_, total),) = strategy.totals
    method = LOCAL.build(DIM)
    tiny, usual = (
        followed(FIRST, [total], [0], method=method.at_clip(clip), key=KEY) for clip in (1e-3, 0.2)
    )
    assert norm(tiny) < 0.01
    assert norm(usual) == pytest.approx(200 * norm(tiny), rel=1e-3)


def norm(arrays: ArrayRecord) -> float:
    return float(sum((arrays[name].numpy() ** 2).sum() for name in ("weight", "bias")) ** 0.5)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan, 1e300, 3, "1"])
def test_clips_that_are_none_are_refused(clip: Any) -> None:
    world, strategy = world_of(LOCAL), strategy_of(LOCAL)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    for one in asked:
        our_record(one)["clip"] = clip
    for reply in world.send_and_receive(asked):
        assert our_record(reply)["code"] == "request"
        assert "clip" in str(our_record(reply)["reason"])


def test_a_plan_without_a_quantile_takes_no_clip() -> None:
    fixed = {name: value for name, value in SETTINGS.items() if name != "clip_quantile"}
    plan = FlowerPlan("sketch-gaussian", fixed, NODES)
    world, strategy = world_of(plan), strategy_of(plan)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    assert our_record(asked[0])["clip"] == 0.0
    our_record(asked[0])["clip"] = 0.1
    first, *others = world.send_and_receive(asked)
    assert "has no clip that changes" in str(our_record(first)["reason"])
    assert all(our_record(one)["code"] == "" for one in others)
    assert strategy.clip is None

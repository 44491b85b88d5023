"""The Flower engine: the same rounds as the others, models that follow, and void rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SketchStrategy
from tests.flower.flower_world import followed
from diffsketch.flower.records import digest_of
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import (
    DIM,
    World,
    one_round,
    our_record,
    point,
    record_of,
    weights_of,
)
from tests.helpers import contract
from tests.helpers.silent import silence

KEY = SketchKey.from_integer(3)
SKETCH = FlowerPlan("sketch", {"rows": 3, "cols": 16})
DENSE = FlowerPlan("none")
GAUSSIAN = FlowerPlan("sketch-gaussian", {"rows": 2, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0})


def fed_avg(kind: type[FedAvg] = FedAvg, **options: Any) -> FedAvg:
    return kind(fraction_evaluate=0.0, **options)


def world_of(plan: FlowerPlan, nodes: int = 3, **options: Any) -> World:
    world = World()
    for number in range(nodes):
        world.join(number, plan, key=options.pop("key", KEY), **options)
    return world


class Descent(FedAvg):
    """A strategy of a user's own: the mean is a gradient, and it takes a step against it."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        found: Any = super().aggregate_train(server_round, replies)
        arrays, metrics = found
        old, rate = self.model, contract.ALGORITHM.learning_rate
        return ArrayRecord(
            {
                name: Array(old[name].numpy() - rate * (one.numpy() - old[name].numpy()))
                for name, one in arrays.items()
            }
        ), metrics


@pytest.mark.parametrize("case", contract.CASES, ids=lambda case: case.name)
def test_all_engines_run_the_same_rounds(case: contract.Case) -> None:
    name, settings = contract.SETTINGS[case.name]
    plan = FlowerPlan(name, settings, contract.WORKERS, contract.WORKERS)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        return weights + contract.gradient(weights, number, server_round - 1)

    options: dict[str, Any] = {"key": case.key, "trusted_server": True}
    world = World()
    for number in range(contract.WORKERS):
        world.join(number, plan, train=train, **options)
    strategy = SketchStrategy(fed_avg(Descent), plan, **options)
    with silence():
        result = strategy.start(world, record_of(contract.first_weights()), contract.ROUNDS)
        expected = contract.simulated(case)
    # A vector here is the difference of two float32 models: an error of 1e-7 of the weights.
    torch.testing.assert_close(weights_of(result.arrays), expected, atol=2e-5, rtol=1e-4)
    assert not any(report.void for report in strategy.reports)
    # The comparison would see noise; these two draw none.
    same = torch.allclose(contract.simulated(case), expected, atol=1e-2)
    assert same == (case.name in ("none", "sketch"))


@pytest.mark.parametrize("name", ["diffsketch-proven", "projunit"])
def test_methods_without_an_exact_form_are_refused(name: str) -> None:
    settings: dict[str, dict[str, Any]] = {
        "diffsketch-proven": {"rows": 1, "cols": 4, "clip": 1.0, "padding": 99, "std": 1.0},
        "projunit": {"size": 5, "per_round": 8.0, "clip": 2.0},
    }
    plan = FlowerPlan(name, settings[name])
    strategy = SketchStrategy(fed_avg(), plan, key=KEY)
    with pytest.raises(ArgumentError, match=f"method='{name}' must not be sent"):
        strategy.start(world_of(plan), record_of(torch.zeros(DIM)), 1)


def test_without_compression_it_is_the_mean() -> None:
    world = world_of(DENSE)
    strategy = SketchStrategy(fed_avg(), DENSE, key=KEY)
    start = torch.zeros(DIM)
    result = strategy.start(world, record_of(start), 1)
    expected = 0.5 * torch.stack([point(number) for number in range(3)]).mean(dim=0)
    torch.testing.assert_close(weights_of(result.arrays), expected)
    assert result.arrays["steps"].numpy().tolist() == [3]
    assert result.arrays["steps"].dtype == "int64"


@pytest.mark.parametrize("kind", [FedAdam, FedAvgM])
def test_the_strategy_inside_has_its_own_rule(kind: type[FedAvg]) -> None:
    start = record_of(torch.ones(DIM))
    plain_world = World()
    for number in range(3):
        plain_world.join(number, None)
    options: dict[str, Any] = {"initial_arrays": start} if kind is FedAvgM else {}
    try:
        plain = fed_avg(kind, **options)
        ours = fed_avg(kind, **options)
    except TypeError:
        plain, ours = fed_avg(kind), fed_avg(kind)
    # All clients count alike with us, so they have to in the plain one.
    plain.weighted_by_key = "loss"
    expected = plain.start(plain_world, start, 3)
    strategy = SketchStrategy(ours, DENSE, key=KEY)
    result = strategy.start(world_of(DENSE), start, 3)
    torch.testing.assert_close(
        weights_of(result.arrays).float(), weights_of(expected.arrays).float(), atol=1e-4, rtol=1e-4
    )


def test_nodes_follow_by_totals_and_have_the_servers_bits() -> None:
    world = world_of(SKETCH)
    strategy = SketchStrategy(fed_avg(), SKETCH, key=KEY)
    arrays = record_of(torch.zeros(DIM))
    for server_round in (1, 2, 3):
        before = digest_of(arrays)
        arrays = one_round(strategy, world, arrays, server_round)
        for node in world.nodes.values():
            model = node.seen[-1].content.array_records["arrays"]
            assert digest_of(model) == before
    dense = [bool(message.content.array_records) for message in world.sent]
    assert dense == [True] * 3 + [False] * 6
    # A total of 3 x 16 cells would be larger than this small model, were it not the only one.
    totals: Any = our_record(world.sent[-1])["totals"]
    assert len(totals) == 1


def test_a_node_that_missed_rounds_catches_up() -> None:
    plan = FlowerPlan("sketch", {"rows": 1, "cols": 2})  # 56 bytes a total, and 464 the model
    world = world_of(plan)
    strategy = SketchStrategy(fed_avg(min_train_nodes=1), plan, key=KEY)
    arrays = one_round(strategy, world, record_of(torch.zeros(DIM)), 1)
    away = world.nodes.pop(1002)
    for server_round in (2, 3, 4):
        arrays = one_round(strategy, world, arrays, server_round)
    world.nodes[1002] = away
    before = digest_of(arrays)
    one_round(strategy, world, arrays, 5)
    assert digest_of(away.seen[-1].content.array_records["arrays"]) == before
    record = our_record(next(one for one in world.sent[-3:] if one.metadata.dst_node_id == 1002))
    assert record["rounds"] == [0, 1, 2, 3]
    assert record["base"] == -1


def test_a_rule_that_nodes_cannot_follow_sends_the_model() -> None:
    world = world_of(SKETCH)
    strategy = SketchStrategy(fed_avg(FedAdam), SKETCH, key=KEY)
    strategy.start(world, record_of(torch.zeros(DIM)), 3)
    assert all(message.content.array_records for message in world.sent)
    assert not any(report.void for report in strategy.reports)


def test_a_server_without_a_key_sums_and_the_owner_has_the_model() -> None:
    first = record_of(torch.zeros(DIM))
    with_key = SketchStrategy(fed_avg(), SKETCH, key=KEY).start(world_of(SKETCH), first, 4)
    strategy = SketchStrategy(FedAvg(), SKETCH)
    world = world_of(SKETCH)
    result = strategy.start(world, first, 4)
    assert not result.arrays
    totals = [total for _, total in strategy.totals]
    rounds = [index for index, _ in strategy.totals]
    model = followed(first, totals, rounds, method=SKETCH.build(DIM), key=KEY)
    assert digest_of(model) == digest_of(with_key.arrays)
    # Clients evaluate the model that the server does not have.
    norm: Any = result.evaluate_metrics_clientapp[4]["norm"]
    assert norm == pytest.approx(float(weights_of(model).norm()), rel=1e-6)
    with pytest.raises(ArgumentError, match="evaluate_fn needs the model"):
        strategy.start(world, first, 1, evaluate_fn=lambda *_: None)


def test_too_few_replies_make_a_round_void(caplog: pytest.LogCaptureFixture) -> None:
    plan = FlowerPlan(GAUSSIAN.method, GAUSSIAN.settings, min_replies=2)
    world = world_of(plan)
    strategy = SketchStrategy(fed_avg(), plan, key=KEY)
    arrays = one_round(strategy, world, record_of(torch.zeros(DIM)), 1)
    world.dead = {1000, 1001}
    caplog.set_level("INFO", logger="flwr.diffsketch")
    same = one_round(strategy, world, arrays, 2)
    assert digest_of(same) == digest_of(arrays)
    report = strategy.reports[-1]
    assert report.void == "1 messages, and 2 are needed"
    assert report.silent == (1000, 1001) or set(report.silent) == {1000, 1001}
    assert "VOID" in caplog.text
    assert strategy.epsilon(1e-5).rounds == 2  # paid for
    world.dead = set()
    after = one_round(strategy, world, same, 3)
    assert digest_of(after) != digest_of(same)
    assert strategy.reports[-1].round_index == 2  # hashes are never used twice


def test_a_round_with_no_reply_at_all_is_void() -> None:
    world = world_of(SKETCH)
    world.dead = set(world.nodes)
    strategy = SketchStrategy(fed_avg(), SKETCH, key=KEY)
    result = strategy.start(world, record_of(torch.zeros(DIM)), 1)
    assert not result.arrays
    assert strategy.reports[0].void


def test_bytes_are_counted_and_shrink() -> None:
    plan = FlowerPlan("sketch", {"rows": 1, "cols": 4})
    world = world_of(plan)
    strategy = SketchStrategy(fed_avg(), plan, key=KEY)
    strategy.start(world, record_of(torch.zeros(DIM)), 2)
    first, second = strategy.reports
    assert first.message_bytes == 3 * plan.build(DIM).wire_bytes
    assert first.bytes_up > first.message_bytes
    assert second.bytes_down < first.bytes_down
    assert strategy.bytes_up == first.bytes_up + second.bytes_up


def test_the_budget_stops_the_run_and_keeps_its_result() -> None:
    world = world_of(GAUSSIAN)
    strategy = SketchStrategy(fed_avg(), GAUSSIAN, key=KEY, budget=Budget(6.0, 1e-5))
    result = strategy.start(world, record_of(torch.zeros(DIM)), 12)
    spent = strategy.epsilon(1e-5)
    assert "above the budget" in strategy.ended
    assert 0 < len(strategy.reports) < 12
    assert float(spent) <= 6.0
    assert spent.rounds == len(strategy.reports)
    assert result.arrays


@pytest.mark.parametrize(("plan", "match"), [(SKETCH, "nothing is proven"), (DENSE, "proven")])
def test_a_budget_needs_a_proof(plan: FlowerPlan, match: str) -> None:
    strategy = SketchStrategy(fed_avg(), plan, key=KEY, budget=Budget(1.0, 1e-5))
    with pytest.raises(ArgumentError, match=match):
        strategy.start(world_of(plan), record_of(torch.zeros(DIM)), 1)


def test_distributed_trust_needs_a_secure_sum() -> None:
    plan = FlowerPlan(
        "sketch-skellam", {"rows": 2, "cols": 6, "clip": 1.0, "noise_multiplier": 1.0}, cohort=3
    )
    start = record_of(torch.zeros(DIM))
    with pytest.raises(ArgumentError, match="needs a secure sum"):
        SketchStrategy(fed_avg(), plan, key=KEY).start(world_of(plan), start, 1)
    # A server that says that it will not look does not convince clients that did not agree.
    strategy = SketchStrategy(fed_avg(), plan, key=KEY, trusted_server=True)
    strategy.start(world_of(plan), start, 1)
    assert all(reason.startswith("trust:") for reason in strategy.reports[0].refused.values())


def test_fewer_members_weaken_a_shared_noise_and_the_claim_says_so() -> None:
    settings = {"rows": 2, "cols": 6, "clip": 1.0, "noise_multiplier": 1.0}
    plan = FlowerPlan("sketch-skellam", settings, cohort=3, min_replies=2)
    start = record_of(torch.zeros(DIM))
    epsilons = []
    for dead in (set[int](), {1002}):
        world = world_of(plan, trusted_server=True)
        world.dead = dead
        strategy = SketchStrategy(fed_avg(), plan, key=KEY, trusted_server=True)
        strategy.start(world, start, 1)
        assert not strategy.reports[0].void
        epsilons.append(float(strategy.epsilon(1e-5)))
    assert epsilons[1] > epsilons[0]
    # Where the weaker claim is beyond the budget, nothing is published.
    middle = sum(epsilons) / 2
    strategy = SketchStrategy(
        fed_avg(), plan, key=KEY, trusted_server=True, budget=Budget(middle, 1e-5)
    )
    result = strategy.start(world, start, 1)
    assert "exceed the budget" in strategy.reports[0].void
    assert not result.arrays


def test_diverging_rounds_are_void() -> None:
    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        del number, server_round
        return weights + 3e38

    world = World()
    for number in range(2):
        world.join(number, DENSE, train=train, key=KEY)
    strategy = SketchStrategy(fed_avg(), DENSE, key=KEY)
    arrays = record_of(torch.full((DIM,), 1e38))
    result = strategy.start(world, arrays, 1)
    assert strategy.reports[0].void
    assert not result.arrays


def test_central_noise_is_the_servers() -> None:
    settings = {**GAUSSIAN.settings, "trust": "central"}
    plan = FlowerPlan("sketch-gaussian", settings)

    def started() -> Tensor:
        strategy = SketchStrategy(fed_avg(), plan, key=KEY)
        result = strategy.start(world_of(plan), record_of(torch.zeros(DIM)), 1)
        return weights_of(result.arrays)

    assert not torch.allclose(started(), started(), atol=1e-3)
    with silence():
        assert torch.equal(started(), started())


def test_metrics_stay_unless_they_are_named() -> None:
    world = World()
    for number in range(2):
        world.join(number, SKETCH, key=KEY, keep_metrics=("loss",))
    strategy = SketchStrategy(fed_avg(), SKETCH, key=KEY)
    result = strategy.start(world, record_of(torch.zeros(DIM)), 1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 0.5}


def test_two_models_in_a_message_are_refused() -> None:
    class Two(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> list[Message]:
            messages = list(super().configure_train(*args, **kwargs))
            for message in messages:
                message.content["more"] = record_of(torch.zeros(DIM))
            return messages

    strategy = SketchStrategy(fed_avg(Two), SKETCH, key=KEY)
    with pytest.raises(ValueError, match="one ArrayRecord"):
        strategy.configure_train(1, record_of(torch.zeros(DIM)), ConfigRecord(), world_of(SKETCH))


def test_metric_records_of_the_inside_have_their_weight() -> None:
    kept: list[MetricRecord] = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            kept.extend(one.content.metric_records["metrics"] for one in replies)
            return super().aggregate_train(server_round, replies)

    strategy = SketchStrategy(fed_avg(Watching), SKETCH, key=KEY)
    strategy.start(world_of(SKETCH), record_of(torch.zeros(DIM)), 1)
    assert [dict(one) for one in kept] == [{"num-examples": 3}]

"""The strategy: the same rounds as other engines, models that nodes replay, and void rounds."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

import flwr.serverapp.strategy as flower
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.flower import FlowerPlan, SketchStrategy
from diffsketch.flower.records import (
    ModelHistory,
    cast_like,
    decode_total,
    digest_of,
    flat,
    length_of,
    moved,
)
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting.account import Account
from paper.methods import ProvenDiffSketch
from tests.flower import network as net
from tests.flower.network import CENTRAL, DENSE, DIM, FIRST, GAUSSIAN, KEY, PRIVATE, SKETCH, Network
from tests.helpers import contract
from tests.helpers.refusals import refused
from tests.helpers.silent import silence

SKELLAM = {"rows": 2, "cols": 6, "clip": 1.0, "noise_multiplier": 1.0}
SHARED = FlowerPlan("sketch-skellam", SKELLAM, cohort=3, min_replies=2)
SUM = replace(SHARED, secure_sum=True, identities=False)
OPEN = FlowerPlan("sketch-gaussian", PRIVATE, open_doors=("evaluation", "metrics", "queries"))


class Descent(FedAvg):
    """A strategy of a user's own: the mean is a gradient, and it takes a step against it."""

    def configure_train(self, server_round: int, arrays: Any, config: Any, grid: Any) -> Any:
        self.model = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Any) -> Any:
        mean: Any = super().aggregate_train(server_round, replies)
        rate = contract.ALGORITHM.learning_rate
        new = {
            n: a.numpy() - rate * (mean[0][n].numpy() - a.numpy()) for n, a in self.model.items()
        }
        return ArrayRecord({name: Array(array) for name, array in new.items()}), mean[1]


@pytest.mark.parametrize("case", contract.CASES, ids=lambda case: case.name)
def test_all_engines_run_the_same_rounds(case: contract.Case) -> None:
    name, settings = contract.SETTINGS[case.name]
    plan = FlowerPlan(name, settings, contract.WORKERS, contract.WORKERS)

    def train(number: int, weights: Tensor, server_round: int) -> Tensor:
        return weights + contract.gradient(weights, number, server_round - 1)

    options: dict[str, Any] = {"key": case.key, "trusted_server": True}
    network = net.network_of(plan, contract.WORKERS, train=train, **options)
    strategy = net.strategy_of(plan, Descent, **options)
    with silence():
        result = strategy.start(network, net.record_of(contract.first_weights()), contract.ROUNDS)
        expected = contract.simulated(case)
    # A vector here is the difference of two float32 models: an error of 1e-7 of the weights.
    torch.testing.assert_close(net.weights_of(result.arrays), expected, atol=2e-5, rtol=1e-4)
    assert not any(report.void for report in strategy.reports)
    # The comparison would see noise; these two draw none.
    same = torch.allclose(contract.simulated(case), expected, atol=1e-2)
    assert same == (case.name in ("none", "sketch"))


PROVEN = ProvenDiffSketch.name
INEXACT = {"rows": 1, "cols": 4, "clip": 1.0, "padding": 99, "std": 1.0}


@pytest.mark.parametrize(
    ("plan", "options", "words"),
    [
        (FlowerPlan(PROVEN, INEXACT), {}, f"method='{PROVEN}' must not be sent"),
        (SKETCH, {"budget": Budget(1.0, 1e-5)}, "nothing is proven"),
        (SHARED, {}, "needs a secure sum"),
    ],
)
def test_claims_that_cannot_be_held_are_refused(plan: Any, options: Any, words: str) -> None:
    refused(ArgumentError, words, net.started, plan, net.network_of(plan), **options)


@pytest.mark.parametrize("kind", [FedAdam, FedAvgM])
def test_the_wrapped_strategy_has_its_own_rule(kind: type[FedAvg]) -> None:
    start, plain_network = net.record_of(torch.ones(DIM)), Network()
    for number in range(3):
        plain_network.join(number, None)
    plain = net.fed_avg(kind)
    # All clients count alike with us, so they have to in the plain one.
    plain.weighted_by_key = "loss"
    expected = plain.start(plain_network, start, 3)
    result = net.strategy_of(DENSE, kind).start(net.network_of(DENSE), start, 3)
    ours, theirs = (net.weights_of(each.arrays).float() for each in (result, expected))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_nodes_replay_totals_and_have_the_servers_bits() -> None:
    network, strategy, arrays = net.network_of(SKETCH), net.strategy_of(SKETCH), FIRST
    for server_round in (1, 2, 3):
        before = digest_of(arrays)
        arrays = net.one_round(strategy, network, arrays, server_round)
        for node in network.nodes.values():
            assert digest_of(node.seen[-1].content.array_records["arrays"]) == before
    dense = [bool(message.content.array_records) for message in network.sent]
    assert dense == [True] * 3 + [False] * 6
    # A total of 3 x 16 cells would be larger than this small model, were it not the only one.
    totals: Any = net.our_record(network.sent[-1])["totals"]
    assert len(totals) == 1
    # A rule that nodes cannot replay sends the model.
    strategy = net.started(SKETCH, network := net.network_of(SKETCH), 3, kind=FedAdam)
    assert all(message.content.array_records for message in network.sent)
    assert not any(report.void for report in strategy.reports)


def test_a_node_that_missed_rounds_catches_up() -> None:
    plan = FlowerPlan("sketch", {"rows": 1, "cols": 2})  # 56 bytes a total, and 464 the model
    network, strategy = net.network_of(plan), net.strategy_of(plan)
    arrays = net.one_round(strategy, network, FIRST, 1)
    away = network.nodes.pop(1002)
    for server_round in (2, 3, 4):
        arrays = net.one_round(strategy, network, arrays, server_round)
    network.nodes[1002] = away
    before = digest_of(arrays)
    net.one_round(strategy, network, arrays, 5)
    assert digest_of(away.seen[-1].content.array_records["arrays"]) == before
    record = net.our_record(
        next(one for one in network.sent[-3:] if one.metadata.dst_node_id == 1002)
    )
    assert record["rounds"] == [0, 1, 2, 3]
    assert record["base"] == -1


def test_a_server_without_a_key_sums_and_the_owner_has_the_model() -> None:
    with_key = net.strategy_of(SKETCH).start(net.network_of(SKETCH), FIRST, 4)
    strategy, network = SketchStrategy(FedAvg(), SKETCH), net.network_of(SKETCH)
    result = strategy.start(network, FIRST, 4)
    assert not result.arrays
    model = net.replayed(strategy.totals, SKETCH)
    assert digest_of(model) == digest_of(with_key.arrays)
    # Clients evaluate the model that the server does not have.
    norm: Any = result.evaluate_metrics_clientapp[4]["norm"]
    assert norm == pytest.approx(float(net.weights_of(model).norm()), rel=1e-6)


def test_too_few_replies_make_a_round_void(caplog: pytest.LogCaptureFixture) -> None:
    plan = FlowerPlan("sketch-gaussian", PRIVATE, min_replies=2)
    network, strategy = net.network_of(plan), net.strategy_of(plan)
    arrays = net.one_round(strategy, network, FIRST, 1)
    network.dead = {1000, 1001}
    caplog.set_level("INFO", logger="flwr.diffsketch")
    same = net.one_round(strategy, network, arrays, 2)
    assert digest_of(same) == digest_of(arrays)
    report = strategy.reports[-1]
    assert report.void == "1 messages, and 2 are needed"
    assert set(report.silent) == {1000, 1001}
    assert "VOID" in caplog.text
    assert strategy.epsilon(1e-5).rounds == 2  # paid for
    network.dead = set(network.nodes)
    same = net.one_round(strategy, network, same, 3)
    assert strategy.reports[-1].void
    network.dead = set()
    after = net.one_round(strategy, network, same, 4)
    assert digest_of(after) != digest_of(same)
    assert strategy.reports[-1].round_index == 3  # hashes are never used twice


def test_bytes_are_counted_and_shrink() -> None:
    plan = FlowerPlan("sketch", {"rows": 1, "cols": 4})
    strategy = net.started(plan, net.network_of(plan), 2)
    first, second = strategy.reports
    assert first.bytes_up > 3 * plan.build(DIM).message_format.full_bytes
    assert second.bytes_down < first.bytes_down


def test_the_budget_stops_the_run_and_keeps_its_result() -> None:
    strategy = net.strategy_of(GAUSSIAN, budget=Budget(6.0, 1e-5))
    result = strategy.start(net.network_of(GAUSSIAN), FIRST, 12)
    spent = strategy.epsilon(1e-5)
    assert "above the budget" in strategy.ended
    assert 0 < len(strategy.reports) < 12
    assert float(spent) <= 6.0
    assert spent.rounds == len(strategy.reports)
    assert result.arrays


def test_a_server_that_will_not_look_does_not_convince_clients_that_did_not_agree() -> None:
    found = net.reasons(net.started(SHARED, net.network_of(SHARED), trusted_server=True))
    assert len(found) == 3
    assert all(reason.startswith("trust:") for reason in found)


def test_fewer_clients_weaken_a_shared_noise_and_the_claim_says_so() -> None:
    epsilons = []
    for dead in (set[int](), {1002}):
        network = net.network_of(SHARED, trusted_server=True)
        network.dead = dead
        strategy = net.started(SHARED, network, trusted_server=True)
        assert not strategy.reports[0].void
        epsilons.append(float(strategy.epsilon(1e-5)))
    assert epsilons[1] > epsilons[0]
    # Where the weaker claim is beyond the budget, nothing is published.
    budget = Budget(sum(epsilons) / 2, 1e-5)
    strategy = net.started(SHARED, network, trusted_server=True, budget=budget)
    assert "exceed the budget" in strategy.reports[0].void
    assert strategy.totals == ()


def test_diverging_rounds_are_void() -> None:
    network = net.network_of(DENSE, 2, train=lambda _, weights, __: weights + 3e38)
    strategy = net.strategy_of(DENSE)
    result = strategy.start(network, net.record_of(torch.full((DIM,), 1e38)), 1)
    assert strategy.reports[0].void
    assert not result.arrays


def test_central_noise_is_the_servers() -> None:
    def result() -> Tensor:
        return net.weights_of(
            net.strategy_of(CENTRAL).start(net.network_of(CENTRAL), FIRST, 1).arrays
        )

    assert not torch.allclose(result(), result(), atol=1e-3)
    with silence():
        assert torch.equal(result(), result())


def test_metrics_stay_unless_their_door_is_open() -> None:
    kept: list[MetricRecord] = []

    class Watching(FedAvg):
        def aggregate_train(self, server_round: int, replies: Any) -> Any:
            kept.extend(one.content.metric_records["metrics"] for one in replies)
            return super().aggregate_train(server_round, replies)

    result = net.strategy_of(OPEN, Watching).start(net.network_of(OPEN), FIRST, 1)
    assert dict(result.train_metrics_clientapp[1]) == {"loss": 0.5}
    net.strategy_of(GAUSSIAN, Watching).start(net.network_of(GAUSSIAN), FIRST, 1)
    assert [dict(one) for one in kept] == [{"loss": 0.5, "num-examples": 3}, {"num-examples": 3}]


def test_two_models_in_a_message_are_refused() -> None:
    class Two(FedAvg):
        def configure_train(self, *args: Any, **kwargs: Any) -> list[Message]:
            messages = list(super().configure_train(*args, **kwargs))
            for message in messages:
                message.content["more"] = net.record_of(torch.zeros(DIM))
            return messages

    with pytest.raises(ValueError, match="one ArrayRecord"):
        net.strategy_of(SKETCH, Two).configure_train(
            1, FIRST, ConfigRecord(), net.network_of(SKETCH)
        )


# Whoever is selected has paid before.


def rounds_in(path: Path) -> list[int]:
    texts: dict[str, str] = json.loads(path.read_text())["accounts"]
    return [Account.from_text(text).rounds for text in texts.values()]


def test_two_servers_with_one_record_lose_no_round(tmp_path: Path) -> None:
    path, network = tmp_path / "record.json", net.network_of(GAUSSIAN, 1)
    servers = [net.strategy_of(GAUSSIAN, record_file=path) for _ in range(2)]
    for server_round in range(1, 4):
        for server in servers:
            net.one_round(server, network, FIRST, server_round)
    assert sum(rounds_in(path)) >= 6  # negative control: the last one to write has asked 3 times
    assert len(servers[1].reports) == 3


def test_a_round_is_on_record_before_anything_is_requested(tmp_path: Path) -> None:
    path, network = tmp_path / "record" / "file.json", net.network_of(GAUSSIAN, 1)
    strategy = net.strategy_of(GAUSSIAN, record_file=path)
    arrays = net.one_round(strategy, network, FIRST, 1)
    assert rounds_in(path) == [1]
    strategy.configure_train(2, arrays, ConfigRecord(), network)  # and the server dies
    assert rounds_in(path) == [2]
    assert strategy.epsilon(1e-5).rounds == 2
    network, again = net.network_of(GAUSSIAN, 1), net.strategy_of(GAUSSIAN, record_file=path)
    net.one_round(again, network, FIRST, 1)
    assert again.epsilon(1e-5).rounds == 3
    # A round whose replies were never looked at is settled by the next one.
    again.configure_train(2, FIRST, ConfigRecord(), network)
    net.one_round(again, network, FIRST, 3)
    assert again.epsilon(1e-5).rounds == 5
    # So is a secure sum.
    path = tmp_path / "sum.json"
    net.strategy_of(SUM, record_file=path).configure_train(
        1, FIRST, ConfigRecord(), net.network_of(SUM)
    )
    assert rounds_in(path)[:3] == [1, 1, 1]


@pytest.mark.parametrize("others", [True, False])
def test_a_client_back_at_its_budget_does_not_count(others: bool, tmp_path: Path) -> None:
    path, network, budget = tmp_path / "record.json", Network(), Budget(3.5, 1e-5)  # two rounds
    network.join(0, GAUSSIAN, key=KEY, node_id=1)
    strategy, arrays = net.strategy_of(GAUSSIAN, budget=budget, record_file=path), FIRST
    for server_round in (1, 2):
        arrays = net.one_round(strategy, network, arrays, server_round)
    assert not any(report.void for report in strategy.reports)
    network.nodes.clear()
    network.join(0, GAUSSIAN, key=KEY, node_id=2)  # the SuperNode was started again
    if others:
        network.join(1, GAUSSIAN, key=KEY, node_id=3)  # and a new client has come
    result = strategy.start(network, arrays, 2)
    # With others the run goes on without it, and ends where nobody is left.
    assert len(strategy.reports) == (4 if others else 3)
    assert strategy.reports[-1].selected == ((3,) if others else (2,))
    report = strategy.reports[2]
    assert report.present == ((3,) if others else ())
    assert report.void == ("" if others else "0 messages, and 1 are needed")
    assert report.refused[2].startswith("budget: ")
    assert sorted(rounds_in(path))[-1] == 3  # paid, since it was asked
    assert strategy.epsilon(1e-5).rounds == 3
    assert float(strategy.epsilon(1e-5)) > budget.epsilon
    assert ("above the budget" in strategy.ended) == (not others)
    assert list(result.arrays) == (list(FIRST) if others else [])


def test_clients_whose_budget_is_spent_are_left_out_and_the_others_go_on() -> None:
    """Half of six in each round: each in at most two rounds, until too few are left.

    A run that ended with the first client at its budget would end in the third or fourth round.
    """
    plan, budget = FlowerPlan("sketch-gaussian", PRIVATE, min_replies=2), Budget(3.5, 1e-5)
    network, wrapped = net.network_of(plan, 6), net.fed_avg(fraction_train=0.5)
    strategy = SketchStrategy(wrapped, plan, key=KEY, budget=budget)
    strategy.start(network, FIRST, 60)
    trained = [len(node.seen) for node in network.nodes.values()]
    assert max(trained) == 2
    assert sum(count < 2 for count in trained) <= 1  # not two are left with a round to pay
    assert strategy.epsilon(1e-5).rounds == 2
    assert float(strategy.epsilon(1e-5)) <= budget.epsilon
    assert "1 of 3 nodes can pay" in strategy.ended or "0 of 3 nodes can pay" in strategy.ended


def test_in_a_secure_sum_a_client_over_its_budget_has_dropped_out() -> None:
    # Two rounds of two messages each, as they are planned, and no third one.
    claim = SUM.build(DIM).claim_for(2, KEY.seed(0))
    paid = [float(claim.epsilon(delta=1e-5, rounds=n)) for n in (2, 3)]
    assert paid[0] < paid[1]
    strategy, arrays = net.strategy_of(SUM, budget=Budget(sum(paid) / 2, 1e-5)), FIRST
    network = net.network_of(SUM, 2)
    for server_round in (1, 2):
        arrays = net.one_round(strategy, network, arrays, server_round)
    network.nodes.clear()
    for number in (0, 3, 4):  # one that was started again, and two that are new
        network.join(number, SUM, key=KEY, node_id=2000 + number)
    net.one_round(strategy, network, arrays, 3)
    report = strategy.reports[-1]
    assert (report.present, set(report.refused), report.void) == ((2003, 2004), {2000}, "")
    assert strategy.epsilon(1e-5).rounds == 3


def test_of_more_nodes_than_the_cohort_all_have_the_same_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """150 choices of 3 of 5: each node is in 90, standard deviation 6.

    Outside of 90 +- 36 (six of them) by chance: less than 1e-7 for the five together. A choice of
    the first three always, the planted error, is outside.
    """
    strategy = net.strategy_of(SUM)
    strategy.start(net.network_of(SUM, 4), FIRST, 2)
    assert [len(report.selected) for report in strategy.reports] == [3, 3]
    assert not any(report.void for report in strategy.reports)
    source = random.Random(5)
    monkeypatch.setattr(secrets, "SystemRandom", lambda: source)
    network, strategy = net.network_of(SHARED, 5), net.strategy_of(SHARED, trusted_server=True)
    strategy._begin(FIRST)
    messages = list(strategy.strategy.configure_train(1, FIRST, ConfigRecord(), network))
    assert len(messages) == 5

    def is_fair(counts: Counter[int]) -> bool:
        return all(54 < counts[node] < 126 for node in network.nodes)

    counts: Counter[int] = Counter()
    for _ in range(150):
        chosen = list(strategy._select(messages))
        assert len(chosen) == 3
        counts.update(chosen)
    assert is_fair(counts)
    assert not is_fair(Counter(dict.fromkeys(list(network.nodes)[:3], 150)))


def test_central_sums_are_never_larger_than_their_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """An overflow before the noise is added would tell whose message made it."""
    network, strategy = net.network_of(CENTRAL, 5), net.strategy_of(CENTRAL)
    strategy._begin(FIRST)
    messages = list(strategy.strategy.configure_train(1, FIRST, ConfigRecord(), network))
    assert len(strategy._select(messages)) == 5
    monkeypatch.setattr(type(strategy._method), "max_summands", 4)
    assert len(strategy._select(messages)) == 4
    strategy = net.strategy_of(GAUSSIAN)  # where messages have their noise, more may come
    strategy._begin(FIRST)
    assert len(strategy._select(messages)) == 5


# Strategies that need single clients' replies are refused, and those that need a mean are not.


class OwnKrum(flower.Krum):
    """A strategy of somebody who changed a line."""


class OwnWrapper(FedAvg):
    """A wrapper that this package knows nothing of."""

    def __init__(self, wrapped: Strategy) -> None:
        super().__init__()
        self.strategy = wrapped


PRIVACY = "DifferentialPrivacy{}Side{}Clipping"
REFUSED: dict[str, Any] = {
    "Krum": flower.Krum(num_malicious_nodes=1),
    "MultiKrum": flower.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2),
    "Bulyan": flower.Bulyan(num_malicious_nodes=1),
    "FedMedian": flower.FedMedian(),
    "FedTrimmedAvg": flower.FedTrimmedAvg(),
    "QFedAvg": flower.QFedAvg(client_learning_rate=0.1),
    "FedXgbBagging": flower.FedXgbBagging(),
    "FedXgbCyclic": flower.FedXgbCyclic(),
    "OwnKrum": OwnKrum(num_malicious_nodes=1),
    **{
        PRIVACY.format(side, kind): getattr(flower, PRIVACY.format(side, kind))(FedAvg(), *values)
        for side in ("Server", "Client")
        for kind, values in (("Fixed", (0.5, 1.0, 4)), ("Adaptive", (0.5, 100)))
    },
}
FINE = {"FedAvg", "FedProx", "FedAvgM", "FedAdam", "FedAdagrad", "FedYogi"}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name_and_with_what_to_use_instead(name: str) -> None:
    refused(ArgumentError, f"got {name}: it .*: (use|run) ", SketchStrategy, REFUSED[name], SKETCH)


def test_all_strategies_of_flower_are_known() -> None:
    """A new version of Flower has a look taken at what it brings."""
    kinds = {name for name in flower.__all__ if issubclass(getattr(flower, name), Strategy)}
    assert kinds - {"Strategy"} == FINE | (REFUSED.keys() - {"OwnKrum"})
    for name in FINE:
        options = {"proximal_mu": 0.1} if name == "FedProx" else {}
        assert SketchStrategy(getattr(flower, name)(**options), SKETCH)
    refused(ArgumentError, "got FedMedian", SketchStrategy, OwnWrapper(flower.FedMedian()), SKETCH)
    assert SketchStrategy(OwnWrapper(FedAvg()), SKETCH)
    with pytest.raises(ArgumentError, match="strategy must be of type Strategy, got strategy='Fed"):
        SketchStrategy(cast(Any, "FedAvg"), SKETCH)


# Adaptive clipping: server and clients have the same clip, whatever they missed.

NODES = 5
MOVING = {"rows": 1, "cols": 16, "clip": 0.2, "noise_multiplier": 1e-3, "clip_quantile": 0.5}
LOCAL_CLIP = FlowerPlan("sketch-gaussian", MOVING, NODES)
CENTRAL_CLIP = FlowerPlan("sketch-gaussian", {**MOVING, "trust": "central"}, NODES)
SUM_CLIP = FlowerPlan("sketch-skellam", MOVING, NODES, NODES - 1, secure_sum=True, identities=False)


@pytest.mark.parametrize("plan", [LOCAL_CLIP, CENTRAL_CLIP, SUM_CLIP], ids=["l", "c", "sum"])
@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_the_clip_moves_and_all_have_it(plan: FlowerPlan, key: Any) -> None:
    """All updates are longer than the clip, which grows by a factor of exp(0.1) a round.

    Noise is 0.01 in the share at most, so 0.004 in the logarithm after four rounds: 3% is 7 times
    that, with a chance below 1e-11.
    """
    strategy, network, arrays = net.strategy_of(plan, key=key), net.network_of(plan, NODES), FIRST
    for index in range(1, 5):
        arrays = net.one_round(strategy, network, arrays, index)
        assert strategy.clip == pytest.approx(0.2 * math.exp(0.1 * index), rel=0.03)
    assert not any(report.void or report.refused for report in strategy.reports)
    # Whoever has the totals and the key has the clips as well, and with them the model.
    model = net.replayed(strategy.totals, plan)
    if key is not None:
        assert digest_of(model) == digest_of(arrays)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_nodes_that_missed_rounds_have_the_clip(momentum: float) -> None:
    """By the totals that they missed; or with the dense model, where the strategy has its own rule.

    A client that decoded a total with another clip would not have the server's model, and refuse.
    """
    wrapped = net.fed_avg(FedAvgM, server_momentum=momentum)
    strategy = SketchStrategy(wrapped, LOCAL_CLIP, key=KEY)
    network = net.network_of(LOCAL_CLIP, NODES)
    arrays = net.one_round(strategy, network, FIRST, 1)
    network.dead = {1000, 1001}
    for server_round in (2, 3):
        arrays = net.one_round(strategy, network, arrays, server_round)
    network.dead = set()
    network.join(2, LOCAL_CLIP, key=KEY)  # lost all that it had
    net.one_round(strategy, network, arrays, 4)
    last = strategy.reports[-1]
    assert len(last.present) + len(last.refused) == NODES
    assert set(last.present) >= {1000, 1001, 1003, 1004}
    assert last.refused.keys() <= {1002}
    shown = {float(str(net.our_record(one)["clip"])) for one in network.sent[-NODES:]}
    assert len(shown) == (1 if momentum else 2)  # of the first missed round, or of this one


FIXED_CLIP = replace(LOCAL_CLIP, settings={n: MOVING[n] for n in MOVING if n != "clip_quantile"})


def told(plan: FlowerPlan, clip: Any) -> tuple[SketchStrategy, list[Message]]:
    """A strategy, and what clients reply that are told another clip."""
    network, strategy = net.network_of(plan, NODES), net.strategy_of(plan)
    requests = list(strategy.configure_train(1, FIRST, ConfigRecord(), network))
    for one in requests:
        net.our_record(one)["clip"] = clip
    return strategy, list(network.send_and_receive(requests))


def test_a_client_uses_the_clip_that_it_is_told() -> None:
    """Noise is in proportion to the clip, so that the claim holds for any."""
    strategy, replies = told(LOCAL_CLIP, 1e-3)
    strategy.aggregate_train(1, replies)
    ((index, total),) = strategy.totals
    method = LOCAL_CLIP.build(DIM)
    tiny, usual = (
        float(decode_total(total, index, method=method.at_clip(clip), key=KEY)[0].norm())
        for clip in (1e-3, 0.2)
    )
    assert tiny < 0.01
    assert usual == pytest.approx(200 * tiny, rel=1e-3)


@pytest.mark.parametrize("clip", [0.0, -1.0, math.inf, math.nan, 1e300, 3, "1", "fixed"])
def test_clips_that_are_none_are_refused(clip: Any) -> None:
    """As is any for a plan without a quantile, but for zero."""
    plan, value = (FIXED_CLIP, 0.1) if clip == "fixed" else (LOCAL_CLIP, clip)
    for reply in told(plan, value)[1]:
        assert net.our_record(reply)["code"] == "request"
        wanted = "has no clip that changes" if clip == "fixed" else "clip"
        assert wanted in str(net.our_record(reply)["reason"])
    strategy, replies = told(FIXED_CLIP, 0.0)
    assert strategy.clip is None
    assert all(net.our_record(one)["code"] == "" for one in replies)


# The model's history, and arrays as one vector.


def arrays_of(value: float) -> ArrayRecord:
    return net.record_of(torch.full((DIM,), value))


def test_a_history_sends_totals_while_they_are_smaller() -> None:
    history = ModelHistory(FIRST, keyed=True)
    total = bytes(sum(len(one.data) for one in FIRST.values()) // 3)
    for index in range(5):
        history.add(total, 2 * index, arrays_of(float(index)))
    assert history.version == 5
    assert history.download(4) == (None, 4, [(8, total)])
    model = arrays_of(4.0)
    for version in (1, -1):  # too far behind, and none at all
        arrays, start, totals = history.download(version)
        assert (digest_of(arrays or FIRST), start, totals) == (digest_of(model), 5, [])
    history.replace(arrays_of(9.0))  # nodes cannot replay it: the model is sent
    assert history.version == 6
    assert history.download(5)[1] == 6
    history.add(b"3", 11, arrays_of(3.0))
    assert history.download(6) == (None, 6, [(11, b"3")])
    assert history.download(7) == (None, 7, [])


def test_a_history_without_a_key_keeps_everything() -> None:
    history = ModelHistory(FIRST, keyed=False)
    for index in range(40):
        history.add(bytes(1000), index, None)
    arrays, start, totals = history.download(-1)
    assert (arrays, start, len(totals)) == (FIRST, 0, 40)
    assert [index for index, _ in history.download(38)[2]] == [38, 39]
    refused(ArgumentError, "has no key", history.replace, arrays_of(1.0))


def test_vectors_keep_types_and_leave_whole_numbers_alone() -> None:
    parts: Any = {"half": np.ones((2, 2), np.float16), "count": np.array(5), "double": np.zeros(3)}
    record = ArrayRecord({name: Array(part) for name, part in parts.items()})
    assert length_of(record) == 7
    after = moved(record, torch.arange(7.0))
    assert after["half"].numpy().tolist() == [[1, 2], [3, 4]]
    assert (after["half"].dtype, after["double"].dtype) == ("float16", "float64")
    assert int(after["count"].numpy()) == 5
    assert flat(after).tolist() == [1, 2, 3, 4, 4, 5, 6]
    odd = ArrayRecord({"count": Array(np.array(5.0)), **{n: record[n] for n in ("double", "half")}})
    assert list(cast_like(odd, record)) == ["half", "count", "double"]
    assert cast_like(odd, record)["count"].dtype == "int64"
    refused(MismatchError, "same names", cast_like, ArrayRecord({"half": record["half"]}), record)
    refused(ArgumentError, "floating-point", length_of, ArrayRecord({"count": record["count"]}))

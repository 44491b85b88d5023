"""Doors beside the messages: closed by default, opened by name; failures of apps; metrics."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SketchStrategy, sketch_mod
from diffsketch.flower.plan import DOORS
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Basis, OpenClaim, ProvenClaim
from tests.flower import network as net
from tests.flower.network import DIM, FIRST, GAUSSIAN, KEY, PRIVATE, SKETCH, Caught, Network, Node
from tests.flower.test_accounts import BUDGET, allowed
from tests.helpers.refusals import refused

OPEN = FlowerPlan("sketch-gaussian", PRIVATE, open_doors=DOORS)
Answer = Callable[[Message, Context], Message]


def node_of(plan: FlowerPlan, train: Answer, **options: Any) -> tuple[Network, Node]:
    """A network of one node, whose app trains like this and answers anything else in full."""
    app, network = ClientApp(mods=[sketch_mod(plan, key=KEY, **options)]), Network()
    node = Node(0, app, 1000)

    def tell(message: Message, _: Context) -> Message:
        node.seen.append(message)
        return net.reply_of(message, {"secret": 0.887591})

    app.train()(train)
    app.evaluate()(tell)
    app.query()(tell)
    network.nodes[node.node_id] = node
    return network, node


def asked(network: Network, kind: str, plan: FlowerPlan) -> Message:
    """The only node's reply to a message of this kind, with all that a round's request has."""
    requests = list(net.strategy_of(plan).configure_train(1, FIRST, ConfigRecord(), network))
    message = Message(requests[0].content, dst_node_id=1000, message_type=kind)
    (reply,) = network.send_and_receive([message])
    return reply


METRICS = {"num-examples": 8, "accuracy": 0.75, "loss": 0.5}


def trained(message: Message, _: Context) -> Message:
    return net.reply_of(message, METRICS, net.record_of(torch.full((DIM,), 0.1)))


# What is closed, and what opens it.


@pytest.mark.parametrize("kind", ["evaluate", "query", "query.secret"])
@pytest.mark.parametrize("plan", [GAUSSIAN, OPEN, SKETCH], ids=["closed", "open", "bare"])
def test_only_open_doors_let_replies_out(kind: str, plan: FlowerPlan) -> None:
    network, node = node_of(plan, trained)
    node.app.query("secret")(lambda message, _: trained(message, _))
    reply = asked(network, kind, plan)
    if plan is GAUSSIAN:
        assert node.seen == []
        if kind == "evaluate":
            assert net.our_record(reply)["code"] == "evaluation"
            assert "open_doors=('evaluation',)" in str(net.our_record(reply)["reason"])
            assert list(reply.content) == ["diffsketch"]
        else:
            assert "open_doors=('queries',)" in str(reply.error.reason)
    else:
        assert reply.content.metric_records["metrics"]


def test_the_strategy_asks_for_no_evaluation_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger="flwr.diffsketch")
    for plan, evaluated in ((GAUSSIAN, False), (OPEN, True), (SKETCH, True)):
        caplog.clear()
        strategy = SketchStrategy(FedAvg(), plan, key=KEY)  # which evaluates by default
        result = strategy.start(net.network_of(plan), FIRST, 3)
        assert bool(result.evaluate_metrics_clientapp) == evaluated
        assert caplog.text.count("clients are not asked to evaluate") == (not evaluated)
        assert not any(report.void for report in strategy.reports)
    caplog.clear()
    net.strategy_of(GAUSSIAN).start(net.network_of(GAUSSIAN), FIRST, 1)  # would not have evaluated
    assert "not asked to evaluate" not in caplog.text


def test_metrics_need_their_door() -> None:
    no_metrics = FlowerPlan("sketch-gaussian", PRIVATE, open_doors=("evaluation",))
    for plan, leave in ((GAUSSIAN, False), (no_metrics, False), (OPEN, True), (SKETCH, True)):
        network, _ = node_of(plan, trained)
        sent = asked(network, "train", plan).content.metric_records
        assert [dict(record) for record in sent.values()] == leave * [METRICS]


def test_an_open_door_is_in_the_claim_and_in_every_epsilon() -> None:
    strategy = net.started(OPEN, net.network_of(OPEN, budget=BUDGET), allowed() + 2, budget=BUDGET)
    assert isinstance(strategy.claim, OpenClaim)
    spent = strategy.epsilon(1e-5)
    assert spent.basis is Basis.CLAIMED
    assert "claimed, without evaluation and metrics and queries" in str(spent)
    # Noised, charged and stopped like a proven one.
    closed = net.started(GAUSSIAN, net.network_of(GAUSSIAN), allowed())
    assert spent.rounds == allowed()
    assert float(spent) == float(closed.epsilon(1e-5))
    assert closed.epsilon(1e-5).basis is Basis.PROVEN
    assert "above the budget" in strategy.ended


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"open_doors": ("back",)}, "open_doors must be a tuple of evaluation, metrics, queries"),
        ({"open_doors": "metrics"}, "open_doors must be a tuple"),
        ({"metrics": {"a": (0, 1)}}, "metric_noise must be given with metrics"),
        ({"metric_noise": 1.0}, "metric_noise must be given with metrics"),
        ({"metrics": {"a": (1, 0)}, "metric_noise": 1.0}, "finite numbers for 'a', the lower"),
        ({"metrics": {"a": (0, math.inf)}, "metric_noise": 1.0}, "finite numbers for 'a'"),
        ({"metrics": {"a": (0, 1)}, "metric_noise": 0.0}, "metric_noise must be"),
    ],
)
def test_doors_and_metrics_are_checked(options: dict[str, Any], words: str) -> None:
    refused(ArgumentError, words, FlowerPlan, "sketch-gaussian", PRIVATE, **options)


def test_plans_that_have_no_doors_or_metrics_refuse_them() -> None:
    with pytest.raises(ArgumentError, match="promises no privacy"):
        FlowerPlan("sketch", {"rows": 1, "cols": 4}, open_doors=("metrics",))
    metrics: Any = {"metrics": {"accuracy": (0, 1)}, "metric_noise": 1.0}
    with pytest.raises(ArgumentError, match="metrics must be empty but for"):
        FlowerPlan("diffsketch", {"rows": 1, "cols": 4, "per_round": 1.0}, **metrics)
    shared = {**PRIVATE, "trust": "distributed"}
    with pytest.raises(ArgumentError, match="evaluate_fn"):
        FlowerPlan("sketch-gaussian", shared, 3, 2, secure_sum=True, **metrics)
    plan = FlowerPlan("sketch-gaussian", PRIVATE, metrics={"num-examples": (0, 9)}, metric_noise=1)
    refused(ArgumentError, "metrics must not have 'num-examples'", net.strategy_of, plan)


# An app that fails is one of many.


def failing(raised: BaseException) -> Answer:
    def train(message: Message, _: Context) -> Message:
        message.content["arrays"] = net.record_of(torch.ones(DIM))  # half-way
        raise raised

    return train


def replying(content: RecordDict | Error | None) -> Answer:
    def train(message: Message, _: Context) -> Message:
        return None if content is None else Message(content, reply_to=message)

    return train


def arrays_with(**changes: Any) -> RecordDict:
    arrays = {**net.record_of(torch.ones(DIM)), **{n: Array(v) for n, v in changes.items()}}
    return RecordDict({"arrays": ArrayRecord(arrays)})


FAILURES: dict[str, Answer] = {
    "raises": failing(ValueError("the loss is not finite")),
    "exits": failing(SystemExit(3)),
    "is interrupted": failing(KeyboardInterrupt()),
    "error": replying(Error(0, "the loss is not finite")),
    "empty": replying(RecordDict()),
    "nothing": replying(None),
    "two models": replying(
        RecordDict({"a": net.record_of(torch.ones(DIM)), "b": net.record_of(torch.ones(DIM))})
    ),
    "other names": replying(arrays_with(more=np.ones(3, np.float32))),
    "other shape": replying(arrays_with(bias=np.ones(5, np.float32))),
    "other type": replying(arrays_with(bias=np.ones(3, np.int64))),
    "NaN": replying(arrays_with(bias=np.full(3, np.nan, np.float32))),
    "huge": replying(arrays_with(bias=np.full(3, 3e38, np.float32))),
    "infinite": replying(arrays_with(bias=np.full(3, np.inf, np.float32))),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_app_counts_as_zeros(name: str, caplog: pytest.LogCaptureFixture) -> None:
    plan = FlowerPlan("sketch-gaussian", PRIVATE, metrics={"loss": (0, 1)}, metric_noise=2.0)
    seen = []
    for train in (trained, FAILURES[name]):
        network, _ = node_of(plan, train)
        network.tamper = caught = Caught()
        strategy = net.strategy_of(plan)
        net.one_round(strategy, network, FIRST, 1)
        (report,) = strategy.reports
        assert (report.present, report.refused) == ((1000,), {})
        (reply,) = caught
        seen.append(net.outside_cells(reply))
    assert seen[0] == seen[1]
    if name not in ("NaN", "huge", "infinite"):
        assert "the app has failed" in caplog.text


@pytest.mark.parametrize("name", ["raises", "exits", "error", "empty", "other type"])
def test_where_nothing_is_claimed_failures_pass(name: str) -> None:
    network, _ = node_of(SKETCH, FAILURES[name])
    if name in ("raises", "exits"):
        with pytest.raises((ValueError, SystemExit)):
            asked(network, "train", SKETCH)
        return
    reply = asked(network, "train", SKETCH)
    assert reply.has_error() or net.our_record(reply)["code"] == "app"


# Metrics with noise.


def measured(plan: FlowerPlan, values: list[dict[str, Any]], rounds: int) -> list[dict[str, float]]:
    """Means that a strategy has of what its clients report."""
    network = Network()
    for number, reported in enumerate(values):

        def train(message: Message, _: Context, reported: Any = reported) -> Message:
            return net.reply_of(message, reported, message.content.array_records["arrays"])

        _, node = node_of(plan, train)
        network.nodes[1000 + number] = Node(number, node.app, 1000 + number)
    strategy = net.strategy_of(plan)
    result = strategy.start(network, FIRST, rounds)
    assert not any(report.void or report.refused for report in strategy.reports)
    return [{name: float(value) for name, value in one.items()}
            for one in result.train_metrics_clientapp.values()]  # fmt: skip


BOUNDS = {"accuracy": (0.0, 1.0), "count": (0.0, 50.0)}


@pytest.mark.parametrize("trust", ["local", "central"])
def test_means_of_metrics_are_right_to_the_stated_error(trust: str) -> None:
    """150 rounds of four clients, of which one reports too much and one nothing.

    The mean of the means is wrong by more than five of its standard deviations with a probability
    below 1e-6; so is their spread by more than 30%, which is over five of its own (6%). Metrics
    without noise, or with that of the wrong trust, are outside.
    """
    settings = {**PRIVATE, "trust": trust}
    plan = FlowerPlan("sketch-gaussian", settings, metrics=BOUNDS, metric_noise=0.5)
    values: Any = [
        {"accuracy": 0.9, "count": 10}, {"accuracy": 0.1, "count": 20.0},
        {"accuracy": 7.0, "count": 1e9}, {},
    ]  # fmt: skip
    found = measured(plan, values, 150)
    expected = {"accuracy": (0.9 + 0.1 + 1.0 + 0.5) / 4, "count": (10 + 20 + 50 + 25) / 4}
    for name, (low, high) in BOUNDS.items():
        error = 0.5 * (high - low) * math.sqrt(2) / (2 if trust == "local" else 4)
        means = np.array([one[name] for one in found])
        assert abs(means.mean() - expected[name]) < 5 * error / math.sqrt(150)
        assert means.std() == pytest.approx(error, rel=0.3)


def test_distributed_metrics_share_their_noise() -> None:
    """Noise of a thousandth: the means are exact to 1%, seven standard deviations."""
    shared = {**PRIVATE, "trust": "distributed"}
    plan = FlowerPlan("sketch-gaussian", shared, 3, 3, metrics=BOUNDS, metric_noise=1e-3)
    network = net.network_of(plan, trusted_server=True)
    strategy = net.strategy_of(plan, trusted_server=True)
    result = strategy.start(network, FIRST, 1)
    assert set(result.train_metrics_clientapp[1]) == set(BOUNDS)
    accuracy: Any = result.train_metrics_clientapp[1]["accuracy"]  # nobody reports one
    assert accuracy == pytest.approx(0.5, abs=0.01)


@given(
    st.dictionaries(
        st.sampled_from(["accuracy", "count", "other"]),
        st.one_of(
            st.floats(), st.integers(), st.text(max_size=3), st.none(),
            st.lists(st.floats(), max_size=2),
        ),
    )
)  # fmt: skip
@settings(max_examples=200, deadline=None, derandomize=True)
def test_no_report_moves_a_metric_beyond_its_bounds(reported: dict[str, Any]) -> None:
    """So replacing a client moves the message by twice the clip at most: what is charged for."""
    plan = FlowerPlan("gaussian", {"clip": 1.0, "noise_multiplier": 1.0}, metrics=BOUNDS,
                      metric_noise=1.0)  # fmt: skip
    method: Any = plan.metric_method
    scaled = plan.scaled_metrics(reported)
    assert float(scaled.abs().max()) <= 1
    assert float(scaled.norm()) <= method.clip * (1 + 1e-6)
    back = plan.restored_metrics(scaled)
    for name, (low, high) in BOUNDS.items():
        value: Any = reported.get(name)
        good = isinstance(value, int | float) and math.isfinite(value)
        expected = min(max(value, low), high) if good else (low + high) / 2
        assert back[name] == pytest.approx(expected, abs=1e-5 * (high - low))


def test_metrics_are_charged_with_the_round() -> None:
    """Messages with a multiplier of 2 and metrics with one of 3, composed: on both sides."""
    plan = FlowerPlan("sketch-gaussian", PRIVATE, metrics=BOUNDS, metric_noise=3.0)
    claim = plan.claim_for(plan.build(DIM), 1, KEY.seed(0))
    assert isinstance(claim, ProvenClaim)
    epsilon = float(claim.epsilon(delta=1e-5, rounds=4))
    both = events.composed(events.gaussian(2.0), events.gaussian(3.0))
    assert epsilon == pytest.approx(events.epsilon_for(events.repeated(both, 4), 1e-5), rel=1e-3)
    alone = GAUSSIAN.claim_for(GAUSSIAN.build(DIM), 1, KEY.seed(0))
    assert epsilon > 1.1 * float(alone.epsilon(delta=1e-5, rounds=4))
    # Messages alone would leave room for a fifth round.
    budget = Budget(1.0001 * epsilon, 1e-5)
    assert float(alone.epsilon(delta=1e-5, rounds=5)) < epsilon
    network = net.network_of(plan, 1, budget=budget)
    assert float(net.started(plan, network, 6).epsilon(1e-5)) > epsilon
    assert len(network.nodes[1000].seen) == 4
    stopped = net.started(plan, net.network_of(plan, 2), 6, budget=budget)
    assert float(stopped.epsilon(1e-5)) == pytest.approx(epsilon, rel=1e-9)


def test_metrics_that_are_no_message_take_their_node_out() -> None:
    plan = FlowerPlan("sketch-gaussian", PRIVATE, metrics=BOUNDS, metric_noise=1e-3)
    for key in (KEY, None):
        network = net.network_of(plan)
        network.tamper = net.of_bad(lambda reply: net.our_record(reply).update(metrics=b"garbage"))
        strategy = net.strategy_of(plan, key=key)
        result = strategy.start(network, FIRST, 1)
        (report,) = strategy.reports
        assert (len(report.present), len(report.refused)) == (2, 1)
        found: Any = result.train_metrics_clientapp[1]["count"]
        assert found == pytest.approx(25.0, abs=0.5)

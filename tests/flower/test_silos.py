"""Records in silos on a Flower network: claims about an example or a person."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.helpers.refusals import refused
from tests.helpers.silent import silence

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg, FedAvgM

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SiloReply, SketchStrategy, sketch_mod
from diffsketch.silos import RecordGradients, Records
from tests.flower import network as net
from tests.flower.network import KEY, RUN, Caught, Network, Node

FEATURES, CLASSES, SILOS = 6, 3, 4
SETTINGS: dict[str, Any] = {
    "clip": 1.0, "noise_multiplier": 1.0, "relation": "add-or-remove", "trust": "distributed",
    "unit": "example", "rate": 0.5, "records": 20.0,
}  # fmt: skip
SECURE: dict[str, Any] = {"secure_sum": "one", "identities": False}
PLAN = FlowerPlan("gaussian", SETTINGS, SILOS, 3, **SECURE)
LOCAL = FlowerPlan("gaussian", {**SETTINGS, "trust": "local"}, SILOS)
ALL = FlowerPlan("gaussian", {**SETTINGS, "rate": 1.0, "records": 40.0, "trust": "local"}, SILOS)


def model() -> nn.Linear:
    layer = nn.Linear(FEATURES, CLASSES)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


FIRST = ArrayRecord(model().state_dict())


def records_of(number: int, count: int = 40, persons: Tensor | None = None) -> Records:
    inputs = torch.randn(count, FEATURES, generator=torch.Generator().manual_seed(number))
    return Records(inputs, inputs[:, :CLASSES].argmax(1), persons)


def replying(records: Records, layer: Callable[[], nn.Module] = model) -> Callable[..., Message]:
    return lambda message: SiloReply(message, RecordGradients(layer()), records)


def app_of(plan: FlowerPlan, reply: Callable[[Message], Any], **options: Any) -> ClientApp:
    """An app whose train function replies with `reply(message)`."""
    app = ClientApp(mods=[sketch_mod(plan, key=KEY, **options)])
    app.train()(lambda message, _: reply(message))
    return app


def network_of(
    plan: FlowerPlan = PLAN, replies: Mapping[int, Callable[[Message], Any]] = {}, **options: Any
) -> Network:
    """Silos with records of their own, but for those with a reply in `replies`."""
    network = Network()
    for number in range(SILOS):
        reply = replies.get(number, replying(records_of(number)))
        node = Node(number, app_of(plan, reply, **options), 1000 + number)
        network.nodes[node.node_id] = node
    return network


def run(
    network: Network, rounds: int = 1, plan: FlowerPlan = PLAN, inner: FedAvg | None = None,
    **options: Any,
) -> tuple[SketchStrategy, Tensor]:  # fmt: skip
    """A run, and its weights."""
    strategy = SketchStrategy(inner or net.fed_avg(), plan, **{"key": KEY, **options})
    arrays = strategy.start(network, FIRST, rounds).arrays
    parts = [torch.tensor(part).flatten() for part in arrays.to_numpy_ndarrays()]
    return strategy, torch.cat(parts or [torch.zeros(0)])


def accuracy(weights: Tensor) -> float:
    matrix, bias = weights[: FEATURES * CLASSES].reshape(CLASSES, FEATURES), weights[-CLASSES:]
    everyone = [records_of(number) for number in range(SILOS)]
    hits = [(part.inputs @ matrix.T + bias).argmax(1) == part.labels for part in everyone]
    return float(torch.cat(hits).double().mean())


def clipped_step(records: Iterable[Records]) -> Tensor:
    """Sum of the clipped steps of all records, by plain autograd."""
    total = torch.zeros((FEATURES + 1) * CLASSES)
    for part in records:
        for x, y in zip(part.inputs, part.labels, strict=True):
            layer = model()
            torch.autograd.backward(nn.functional.cross_entropy(layer(x[None]), y[None]))
            step = -torch.cat([p.grad.flatten() for p in layer.parameters() if p.grad is not None])
            total += step / max(1.0, float(step.norm()))
    return total


def test_silos_learn_with_momentum_at_the_server(caplog: pytest.LogCaptureFixture) -> None:
    plan = FlowerPlan("gaussian", SETTINGS | {"noise_multiplier": 0.2}, SILOS, 3, **SECURE)
    inner = net.fed_avg(FedAvgM, server_learning_rate=1.0, server_momentum=0.5)
    with caplog.at_level(logging.INFO, "flwr.diffsketch"):
        strategy, weights = run(network_of(plan), 8, plan, inner)
    # Noise of 0.2 clips beside 80 records of at most one: 0.9 and more in 100 runs.
    assert accuracy(weights) > 0.7
    lines = [text for text in caplog.messages if text.startswith("round ")]
    assert len(lines) == 8
    assert all("bytes up" in line for line in lines)
    spent = [report.epsilon for report in strategy.reports]
    assert all(str(e and e.text("short")) in line for e, line in zip(spent, lines, strict=True))
    assert "example unit, add-or-remove, distributed trust" in str(strategy.epsilon(1e-5))


@pytest.mark.parametrize("method", ["gaussian", "sketch-skellam"])
def test_the_step_is_the_mean_of_clipped_gradients(method: str) -> None:
    """All records, without noise: divided by the number that is expected, not by that drawn."""
    table = {"rows": 1, "cols": 4000} if "sketch" in method else {}
    settings = {**SETTINGS, **table, "rate": 1.0, "records": 30.0, "noise_multiplier": 0.5}
    plan = FlowerPlan(method, settings, SILOS, 3, **SECURE)
    sizes = (40, 0, 5, 70)
    silos = [records_of(number, size) for number, size in enumerate(sizes)]
    with silence():
        _, weights = run(network_of(plan, dict(enumerate(map(replying, silos)))), 1, plan)
    wanted = clipped_step(silos) / (SILOS * 30)
    # A step of Skellam noise is a 256th of a clip, and records of a silo are rounded alike.
    assert float((weights - wanted).norm()) < 0.03 * float(wanted.norm())


def persons_crossed() -> Records:
    return records_of(1, persons=torch.arange(40) // 2)


def mixing() -> nn.Module:
    return nn.Sequential(nn.Linear(FEATURES, CLASSES), nn.BatchNorm1d(CLASSES))


def failing(message: Message) -> Message:
    raise ValueError(f"0.887591 {message}")


def broken_records() -> Records:
    records = records_of(1)
    records.inputs[:10] = math.nan
    records.labels[10:20] = 99
    return records


BEHAVIOURS: dict[str, Callable[[Message], Any]] = {
    "usual": replying(records_of(1)),
    "none": replying(records_of(1, 0)),
    "one": replying(records_of(1, 1)),
    "many": replying(records_of(1, 80)),
    "broken": replying(broken_records()),
    "persons": replying(persons_crossed()),
    "other width": replying(Records(torch.zeros(3, 2), torch.zeros(3, dtype=torch.int64))),
    "other model": replying(records_of(1), lambda: nn.Linear(FEATURES, CLASSES + 1)),
    "frozen": replying(records_of(1), lambda: model().requires_grad_(False)),
    "mixing": replying(records_of(1), mixing),
    "raises": failing,
    "nothing": lambda _: None,
    "arrays": lambda message: net.reply_of(message, {"loss": 0.887}, FIRST),
}


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_whatever_the_records_are_nothing_else_shows(name: str) -> None:
    caught = [Caught(), Caught()]
    for replies, behaviour in zip(caught, ("usual", name), strict=True):
        network = network_of(LOCAL, {1: BEHAVIOURS[behaviour]})
        network.tamper = replies
        strategy, weights = run(network, 1, LOCAL)
        assert strategy.reports[0].present == tuple(range(1000, 1000 + SILOS))
        assert bool(torch.isfinite(weights).all())
    pairs = [[m for m in c if m.metadata.src_node_id == 1001] for c in caught]
    assert len(pairs[0]) == len(pairs[1]) == 1
    seen = [net.outside_cells(message) for (message,) in pairs]
    assert seen[0] == seen[1]


@pytest.mark.parametrize("name", ["none", "one", "broken", "raises", "frozen"])
def test_what_fails_counts_as_zeros(name: str) -> None:
    kept = {"one": [records_of(1, 1)], "broken": [Records(*(v[20:] for v in pair_of(1)))]}
    with silence():
        _, weights = run(network_of(ALL, {1: BEHAVIOURS[name]}), 1, ALL)
    others = [records_of(number) for number in (0, 2, 3)]
    wanted = clipped_step([*others, *kept.get(name, [])]) / (SILOS * 40)
    assert float((weights - wanted).norm()) < 0.01 * float(wanted.norm())


@pytest.mark.parametrize(("trust", "present"), [("local", 3), ("central", 4), ("distributed", 0)])
def test_a_batch_far_beyond_what_is_expected(trust: str, present: int) -> None:
    """A hundred times as many, all alike: refused by its size, cut off, or the sum is void."""
    alike = Records(torch.ones(4000, FEATURES), torch.zeros(4000, dtype=torch.int64))
    plan = FlowerPlan("gaussian", {**SETTINGS, "trust": trust}, SILOS)
    options = {} if trust == "local" else {"trusted_server": True}
    if trust == "distributed":
        plan, options = PLAN, {}
    network = network_of(plan, {1: replying(alike)}, **options)
    network.tamper = caught = Caught()
    strategy, weights = run(network, 1, plan, **options)
    assert len(strategy.reports[0].present) == present
    assert not any(message.has_error() for message in caught)
    assert len(weights) == (21 if present else 0)
    assert "over 1 round" in str(strategy.epsilon(1e-5))


def pair_of(number: int) -> tuple[Tensor, Tensor]:
    return records_of(number).inputs, records_of(number).labels


def test_persons_have_one_step_each() -> None:
    plan = FlowerPlan("gaussian", {**ALL.settings, "unit": "person", "records": 20.0}, SILOS)
    persons = torch.arange(40) // 2
    silos = [records_of(number, persons=persons) for number in range(SILOS)]
    with silence():
        strategy, weights = run(network_of(plan, dict(enumerate(map(replying, silos)))), 1, plan)
    # Gradients at zero weights are about as long as the clip: means of two are seldom clipped.
    assert float(weights.norm()) > 0.1
    assert "person unit" in str(strategy.epsilon(1e-5))
    single = {1: replying(records_of(1))}  # whose records have no persons: zeros
    with silence():
        _, fewer = run(network_of(plan, dict(enumerate(map(replying, silos))) | single), 1, plan)
    assert not torch.equal(weights, fewer)


def test_central_trust_substitutes_a_batch_of_none() -> None:
    plan = FlowerPlan("gaussian", {**SETTINGS, "trust": "central"}, SILOS)
    network = network_of(plan, trusted_server=True)
    strategy, weights = run(network, 1, plan, trusted_server=True, limit=1e-3)
    assert len(strategy.reports[0].present) == SILOS  # all too long: zeros, and the server's noise
    assert weights.abs().max() > 0


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("lost", lambda: FlowerPlan("gaussian", {**SETTINGS, "lost": 1}, SILOS, 3, **SECURE)),
        ("metrics", lambda: FlowerPlan(
            "gaussian", {**SETTINGS, "trust": "local"}, metrics={"a": (0, 1)}, metric_noise=1.0)),
        ("relation", lambda: FlowerPlan("gaussian", {**SETTINGS, "relation": "replace"}, SILOS)
            .build(21)),
        ("BatchNorm1d at '1'.*GroupNorm", lambda: RecordGradients(mixing())),
    ],
)  # fmt: skip
def test_bad_plans(text: str, make: Callable[[], Any]) -> None:
    refused(ArgumentError, text, make)


def test_error_feedback_is_refused() -> None:
    plan = FlowerPlan("sketch-gaussian", {**LOCAL.settings, "rows": 1, "cols": 8})
    strategy, _ = run(network_of(plan, error_feedback=True), 1, plan)
    assert any("error_feedback must be off for records" in text for text in net.reasons(strategy))


def test_without_the_mod_a_reply_is_empty() -> None:
    app = ClientApp()
    app.train()(lambda message, _: replying(records_of(0))(message))
    content = RecordDict({"arrays": FIRST, "config": ConfigRecord()})
    message = Message(content, dst_node_id=1000, message_type="train")
    answer = app(message, Context(RUN, 1000, {}, RecordDict(), {}))
    assert list(answer.content) == []

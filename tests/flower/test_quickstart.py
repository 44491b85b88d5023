"""Flower's quickstart with two lines: its simulation, weights, metrics, and error feedback."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.clientapp import ClientApp
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from diffsketch.errors import ArgumentError
from diffsketch.flower import FlowerPlan, SketchStrategy, find_sketch_key, sketch_mod
from diffsketch.flower.keys import NodeKeys
from diffsketch.logs import RoundSummary
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.sketch import SketchKey
from diffsketch.wire import WireError
from tests.flower import network as net
from tests.flower.network import DENSE, DIM, FIRST, GAUSSIAN, KEY, SKETCH, Network

EXAMPLES = (30, 10, 20, 40)  # of the nodes
LOSSES = (0.5, 1.0, 2.0, 0.25)


class OneProcess(Backend):
    """Flower's simulation without Ray: messages are answered one by one, in this process."""

    num_workers = 1

    def build(self, app_fn: Any) -> None:
        self._app = app_fn()

    def is_worker_idle(self) -> bool:
        return True

    def terminate(self) -> None:
        """Nothing was started."""

    def process_message(self, message: Message, context: Context) -> tuple[Message, Context]:
        return self._app(message, context), context


def quickstart(plan: FlowerPlan) -> tuple[ServerApp, ClientApp, dict[str, Any]]:
    """Apps as quickstart-pytorch has them, with the README's lines, and what they found."""
    server_app, found = ServerApp(), dict[str, Any]()
    client_app = ClientApp(mods=[sketch_mod(plan)])

    @client_app.train()
    def _train(message: Message, context: Context) -> Message:
        model, number = nn.Linear(3, 2), cast(int, context.node_config["partition-id"])
        model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        with torch.no_grad():
            model.weight += number + 1
        metrics = {"train_loss": LOSSES[number], "num-examples": EXAMPLES[number]}
        return net.reply_of(message, metrics, ArrayRecord(model.state_dict()))

    @client_app.evaluate()
    def _evaluate(message: Message, context: Context) -> Message:
        number = cast(int, context.node_config["partition-id"])
        return net.reply_of(message, {"eval_loss": 1.0, "num-examples": EXAMPLES[number]})

    @server_app.main()
    def _main(grid: Grid, _: Context) -> None:
        found["files"] = lambda: list(Path(tempfile.gettempdir()).glob("diffsketch-simulation-*"))
        torch.manual_seed(1)
        model = nn.Linear(3, 2)
        # Nodes join while this runs: it waits for all of them.
        inside = FedAvg(fraction_evaluate=0.5, min_train_nodes=4, min_available_nodes=4)
        strategy = SketchStrategy(inside, plan, key=find_sketch_key())
        found["told"] = told = list[RoundSummary]()
        strategy.on_round = told.append
        found["first"] = model.weight.detach().clone()
        found["result"] = strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(model.state_dict()),
            train_config=ConfigRecord({"lr": 0.1}),
            num_rounds=2,
            evaluate_fn=lambda _round, _arrays: MetricRecord({"seen": len(found["files"]())}),
        )
        found["reports"], found["epsilon"] = strategy.reports, strategy.epsilon(1e-5)

    return server_app, client_app, found


@pytest.fixture
def _no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DIFFSKETCH_KEY", "DIFFSKETCH_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("_no_key")
@pytest.mark.parametrize("plan", [DENSE, GAUSSIAN], ids=["bare", "private"])
def test_the_quickstart_needs_two_lines(
    plan: FlowerPlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: Any
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    runtime = sys.modules["flwr.simulation.run_simulation"]
    monkeypatch.setattr(runtime, "event", lambda *_, **__: None)  # no telemetry
    ray = "flwr.server.superlink.fleet.vce.backend.raybackend"
    monkeypatch.setitem(sys.modules, ray, SimpleNamespace(RayBackend=OneProcess))
    before = set(threading.enumerate())
    server_app, client_app, found = quickstart(plan)
    run_simulation(server_app, client_app, num_supernodes=4, backend_name="one process")
    for thread in set(threading.enumerate()) - before:
        thread.join()
    result, log = found["result"], caplog.text
    assert [len(one.present) for one in found["reports"]] == [4, 4]
    first, second = found["reports"]
    assert [(summary.round, summary.bytes_up) for summary in found["told"]] == [
        (1, first.bytes_up), (2, first.bytes_up + second.bytes_up),
    ]  # fmt: skip
    assert found["told"][1].epsilon == second.epsilon
    # The key is lent to the clients while the run lasts.
    assert "this simulation has made a key for itself" in log
    assert [one["seen"] for one in result.evaluate_metrics_serverapp.values()] == [1, 1, 1]
    assert found["files"]() == []
    evaluated = [dict(one) for one in result.evaluate_metrics_clientapp.values()]
    assert evaluated == ([] if plan is GAUSSIAN else [{"eval_loss": 1.0}] * 2)
    assert ("clients are not asked to evaluate" in log) == (plan is GAUSSIAN)
    if plan is GAUSSIAN:
        assert "clients count alike: weights would tell how many examples each has" in log
        assert "Weighted by: 'nothing: all clients count alike'" in log
        assert not any(result.train_metrics_clientapp.values())
        assert f"at most {found['epsilon']}" in log
        assert str(found["epsilon"]).startswith("epsilon = ")
        return
    assert "epsilon" not in log
    assert "Weighted by: 'num-examples'" in log
    assert [dict(one) for one in result.train_metrics_clientapp.values()] == [
        {"train_loss": pytest.approx(0.75)}
    ] * 2
    moved = result.arrays.to_torch_state_dict()["weight"] - found["first"]
    torch.testing.assert_close(moved, torch.full((2, 3), 2 * 2.7))


@pytest.mark.usefixtures("_no_key")
def test_a_deployment_without_a_key_says_how_to_make_one() -> None:
    how = "`diffsketch key sketch.key` makes one; then set DIFFSKETCH_KEY_FILE"
    with pytest.raises(ArgumentError, match=f"evaluate_fn needs the model.*{how}"):
        net.strategy_of(SKETCH, key=None).start(
            net.network_of(SKETCH), FIRST, 1, evaluate_fn=lambda *_: None
        )
    refused = net.reasons(net.started(SKETCH, net.network_of(SKETCH, key=None)))
    assert len(refused) == 3
    assert all(reason.startswith("key: this client has no key") for reason in refused)
    assert all(how in reason for reason in refused)


def test_somebody_elses_simulation_lends_no_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = tmp_path / "diffsketch-simulation-5.key"
    path.write_text(KEY.secret.hex())
    assert NodeKeys(run_id=5).sketch == KEY
    assert NodeKeys(run_id=6).sketch is None
    monkeypatch.setattr("os.getuid", lambda: path.stat().st_uid + 1)
    assert NodeKeys(run_id=5).sketch is None


def uneven(plan: FlowerPlan | None, **options: Any) -> Network:
    """Nodes with 30, 10 and 20 examples."""
    network = Network()
    for number in range(3):
        config = {"examples": EXAMPLES[number]}
        network.join(number, plan, config=config, **({"key": KEY, **options} if plan else {}))
    return network


@pytest.mark.parametrize("key", [KEY, None], ids=["key", "no key"])
def test_clients_count_by_their_examples(key: SketchKey | None) -> None:
    expected = net.fed_avg().start(uneven(None), FIRST, 3)
    strategy = net.strategy_of(DENSE, key=key)
    result = strategy.start(uneven(DENSE), FIRST, 3)
    arrays = net.replayed(strategy.totals, DENSE) if key is None else result.arrays
    torch.testing.assert_close(net.weights_of(arrays), net.weights_of(expected.arrays))
    assert [dict(one) for one in result.train_metrics_clientapp.values()] == [
        pytest.approx(dict(one)) for one in expected.train_metrics_clientapp.values()
    ]


def test_with_few_bits_too() -> None:
    """All want the same step, which 16 bits hold: so a wrong weight would be off by its factor."""
    plan = FlowerPlan("sketch", {"rows": 1, "cols": 20, "bits": 16, "cell_limit": 2.0**12}, 3)

    def step(_number: int, weights: Tensor, _round: int) -> Tensor:
        return weights + torch.arange(DIM)

    network = uneven(plan, train=step)
    arrays = net.strategy_of(plan).start(network, FIRST, 1).arrays
    even = net.strategy_of(plan).start(net.network_of(plan, train=step), FIRST, 1).arrays
    torch.testing.assert_close(net.weights_of(arrays), net.weights_of(even), atol=0.1, rtol=0)


@pytest.mark.parametrize("weight", [0, -4, 2**40 + 1])
def test_weights_that_are_none_are_refused(weight: int) -> None:
    network = uneven(DENSE)
    network.tamper = net.of_bad(lambda reply: net.our_record(reply).update(weight=weight), 1000)
    strategy = net.strategy_of(DENSE)
    arrays = strategy.start(network, FIRST, 1).arrays
    assert strategy.reports[0].present == (1001, 1002)
    assert "weight must be in 1..2**40" in strategy.reports[0].refused[1000]
    expected = (10 * net.point(1) + 20 * net.point(2)) / 60
    torch.testing.assert_close(net.weights_of(arrays), expected)


@pytest.mark.parametrize("examples", [0, 2.5, "none"])
def test_an_app_has_to_say_how_many_examples(examples: Any) -> None:
    network = Network()
    network.join(0, SKETCH, key=KEY, config={"examples": examples} if examples != "none" else {})
    strategy = net.strategy_of(SKETCH)
    if examples == "none":
        inside: Any = strategy.strategy
        inside.weighted_by_key = "samples"
    strategy.start(network, FIRST, 1)
    (reason,) = strategy.reports[0].refused.values()
    assert "must be a whole number in 1..2**40, by which this client counts" in reason


def test_a_limit_is_of_a_single_example() -> None:
    norms = [float(0.5 * net.point(number).norm()) for number in range(3)]
    strategy = net.started(DENSE, uneven(DENSE), limit=sorted(norms)[1] * 1.001)
    assert len(strategy.reports[0].present) == 2


def test_private_methods_take_no_weights() -> None:
    network, strategy = net.network_of(GAUSSIAN), net.strategy_of(GAUSSIAN)
    strategy._begin(FIRST)
    strategy._counts_by = "num-examples"  # a server that wants to know
    strategy.start(network, FIRST, 1)
    assert {one.partition(":")[0] for one in strategy.reports[0].refused.values()} == {"weight"}
    assert not network.nodes[1000].seen


def test_totals_end_with_a_weight_or_nothing() -> None:
    ((index, total),) = net.started(SKETCH, net.network_of(SKETCH)).totals
    for bad in (total[:-1], total + b"x", total[:-8] + bytes(8)):
        with pytest.raises(WireError):
            net.replayed([(index, bad)], SKETCH)


def steps(number: int, weights: Tensor, server_round: int) -> Tensor:
    """A step that no one can foresee."""
    return weights + net.point(100 * number + server_round)


FEEDBACK = {
    "sketch": FlowerPlan("sketch", {"rows": 1, "cols": 7}),
    "4 bits": FlowerPlan("sketch", {"rows": 1, "cols": 7, "bits": 4, "cell_limit": 64.0}, 2),
    "private": FlowerPlan(
        "sketch-gaussian",
        {"rows": 1, "cols": 7, "clip": 2.0, "noise_multiplier": 1e-4, "trust": "central"},
    ),
}


@pytest.mark.parametrize("name", FEEDBACK)
def test_with_error_feedback_nothing_is_lost(name: str) -> None:
    """Applied steps and the mean of the memories add up to all steps, whichever rounds count."""
    plan, rounds, arrays, wanted = FEEDBACK[name], 5, FIRST, torch.zeros(DIM)
    network = net.network_of(plan, 2, train=steps, error_feedback=True)
    strategy = net.strategy_of(plan)
    for server_round in range(1, rounds + 1):
        network.tamper = (lambda _: []) if server_round in (2, 4) else list
        arrays = net.one_round(strategy, network, arrays, server_round)
        wanted += (net.point(server_round) + net.point(100 + server_round)) / 2
    assert [bool(report.void) for report in strategy.reports] == [False, True, False, True, False]
    method = plan.build(DIM)
    later = ErrorFeedback(method, method.claim_for(1, KEY.seed(0))).later
    weight = 1 if name == "private" else 8
    memories = [
        node.context.state.array_records["diffsketch.unsent"]["memory"].numpy() / later / weight
        for node in network.nodes.values()
    ]
    kept = torch.from_numpy(memories[0] + memories[1]) / 2
    assert float(kept.norm()) > 1
    torch.testing.assert_close(net.weights_of(arrays) + kept, wanted, atol=2e-3, rtol=0)


def test_error_feedback_is_refused_where_a_claim_forbids_it() -> None:
    plan = FlowerPlan("diffsketch", {"rows": 2, "cols": 6, "per_round": 4.0})
    (reason,) = set(net.reasons(net.started(plan, net.network_of(plan, error_feedback=True))))
    assert "feedback: error_feedback must be off for method='diffsketch'" in reason

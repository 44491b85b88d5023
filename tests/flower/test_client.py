"""The client's side: what it never sends, what it refuses, and an account of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message
from flwr.clientapp import ClientApp

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower import FlowerPlan, replay_totals, sketch_mod
from diffsketch.flower.plan import DOORS
from diffsketch.flower.records import PROTOCOL, flat, length_of
from diffsketch.sketch import SketchKey
from tests.flower import network as net
from tests.flower.network import (
    DENSE,
    DIM,
    FIRST,
    GAUSSIAN,
    KEY,
    PRIVATE,
    SKETCH,
    Caught,
    Network,
    Node,
)
from tests.flower.test_accounts import BUDGET, allowed
from tests.helpers.refusals import refused


def rounds(count: int, network: Network, plan: FlowerPlan = GAUSSIAN, **options: Any) -> Any:
    return net.started(plan, network, count, **options)


def asked_once(network: Network, plan: FlowerPlan = GAUSSIAN, **values: Any) -> Message:
    """The reply of the only node to a request of which some values are others."""
    requests = list(net.strategy_of(plan).configure_train(1, FIRST, ConfigRecord(), network))
    net.our_record(requests[0]).update(values)
    (reply,) = network.send_and_receive(requests)
    return reply


def test_nothing_leaves_but_the_message_and_its_noise_is_new() -> None:
    sent = []
    for _ in range(2):
        network = net.network_of(GAUSSIAN, 1)
        network.tamper = caught = Caught()
        rounds(1, network)
        (reply,) = caught
        assert list(reply.content) == ["diffsketch"]
        assert not reply.content.array_records
        assert not reply.content.metric_records
        data: Any = net.our_record(reply)["message"]
        assert len(data) == GAUSSIAN.build(DIM).message_format.full_bytes
        sent.append(data)
    assert sent[0] != sent[1]


def test_the_app_sees_what_it_always_saw_and_nothing_without_our_strategy() -> None:
    network = net.network_of(GAUSSIAN, 1)
    rounds(2, network)
    for server_round, message in enumerate(network.nodes[1000].seen, 1):
        assert sorted(message.content) == ["arrays", "config"]
        assert message.content.config_records["config"]["server-round"] == server_round
        assert list(message.content.array_records["arrays"]) == ["weight", "bias", "steps"]
    network.tamper = caught = Caught()
    net.fed_avg().start(network, FIRST, 1)
    (reply,) = caught
    assert "does not use SketchStrategy" in str(reply.error.reason)
    assert len(network.nodes[1000].seen) == 2


OPEN = FlowerPlan("sketch-gaussian", PRIVATE, open_doors=DOORS)
WEAKER = FlowerPlan("sketch-gaussian", {**PRIVATE, "noise_multiplier": 0.01})


@pytest.mark.parametrize(
    ("key", "plan", "word"),
    [
        (SketchKey.from_integer(4), GAUSSIAN, "key: the server's key is another one"),
        (KEY, WEAKER, "plan: the server's plan is another"),
        (KEY, OPEN, "plan: the server's plan is another"),
    ],
)
def test_other_keys_and_plans_are_refused(key: Any, plan: FlowerPlan, word: str) -> None:
    network = net.network_of(GAUSSIAN, 1, key=key)
    assert net.reasons(rounds(1, network, plan))[0].startswith(word)
    assert network.nodes[1000].seen == []


@pytest.mark.parametrize(
    ("values", "code", "word"),
    [
        ({"protocol": PROTOCOL + 1}, "request", f"speaks version {PROTOCOL + 1}"),
        ({"round_index": 2**40}, "statement", "no memory of 1099511627776 rounds"),
        ({"version": 1}, "request", "totals do not lead to its version"),
        ({"rounds": [0]}, "request", "not those of its rounds"),
        ({"base": -1}, "model", "no model to go on from"),
        ({"arrays": "other"}, "request", "and there is none"),
        ({"digest": b"other"}, "model", "not the server's"),
        ({"clip": 1.0}, "request", "has no clip that changes"),
        ({"totals": "text"}, "request", r"totals must be list\[bytes\]"),
    ],
)
def test_odd_requests_are_refused(values: dict[str, Any], code: str, word: str) -> None:
    network = net.network_of(GAUSSIAN, 1)
    reply = net.our_record(asked_once(network, **values))
    assert (reply["code"], reply["message"]) == (code, b"")
    assert word.replace("\\", "") in str(reply["reason"])
    assert network.nodes[1000].seen == []


def test_a_round_is_answered_once() -> None:
    network = net.network_of(GAUSSIAN, 1)
    requests = list(net.strategy_of(GAUSSIAN).configure_train(1, FIRST, ConfigRecord(), network))
    (first,), (second,) = (list(network.send_and_receive(requests)) for _ in range(2))
    assert net.our_record(first)["code"] == ""
    assert net.our_record(second)["code"] == "answered"
    assert net.our_record(second)["message"] == b""


def test_keys_are_found_in_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY.secret.hex()}\n")
    network = net.network_of(GAUSSIAN, 1, key=None, config={"diffsketch-key-file": str(path)})
    assert not rounds(1, network).reports[0].void
    monkeypatch.setenv("DIFFSKETCH_KEY", KEY.secret.hex())
    network = net.network_of(GAUSSIAN, 1, key=None)
    assert not rounds(1, network).reports[0].void
    monkeypatch.setenv("DIFFSKETCH_KEY", "secret words")
    with pytest.raises(ArgumentError, match="64 hexadecimal digits") as error:
        rounds(1, network)
    assert "secret words" not in str(error.value)


def not_finite(number: int, weights: Tensor, server_round: int) -> Tensor:
    del server_round
    return weights * (torch.nan, torch.inf, 1.0)[number] + 1


def test_without_a_claim_vectors_that_are_not_finite_sit_the_round_out() -> None:
    """With a proven one they count as zeros: `test_doors.FAILURES`."""
    strategy = rounds(1, net.network_of(SKETCH, train=not_finite), SKETCH)
    assert strategy.reports[0].present == (1002,)
    assert net.reasons(strategy) == ["not-finite: the vector has NaN or infinite values"] * 2


def test_importance_scales_the_vector() -> None:
    results = []
    for importance in (1.0, 3.0):
        network = net.network_of(DENSE, 1, importance=importance)
        arrays = net.one_round(net.strategy_of(DENSE), network, FIRST, 1)
        results.append(torch.from_numpy(arrays["bias"].numpy()))
    torch.testing.assert_close(results[1], 3 * results[0])


def test_a_clients_budget_holds_whatever_the_server_thinks() -> None:
    network = net.network_of(GAUSSIAN, 1, budget=BUDGET)
    strategy = rounds(allowed() + 2, network)
    assert 1 <= allowed() == len(network.nodes[1000].seen)
    assert all(reason.startswith("budget:") for reason in net.reasons(strategy))
    assert len(net.reasons(strategy)) == 2


@pytest.mark.parametrize("statements", [True, False])
def test_the_account_survives_restarts_within_a_run(
    statements: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the statement that the server keeps; or all earlier rounds count, where nothing is known.

    Two rounds with each node id: the first asks for the statement, the second has it.
    """
    if statements:
        monkeypatch.setenv("DIFFSKETCH_CLIENT_KEY", "ab" * 32)
    network, strategy, arrays, trained = Network(), net.strategy_of(GAUSSIAN), FIRST, 0
    each = 2 if statements else 1
    for server_round in range(1, each * allowed() + 4):
        node_id = 2000 + server_round // each
        if node_id not in network.nodes:
            network.nodes.clear()
            node = network.join(0, GAUSSIAN, key=KEY, budget=BUDGET, node_id=node_id)
        before = len(node.seen)
        arrays = net.one_round(strategy, network, arrays, server_round)
        trained += len(node.seen) - before
    assert trained == allowed()
    found = [reason.partition(":")[0] for reason in net.reasons(strategy)]
    assert ("statement" in found) == statements
    assert found[-1] == "budget"


def test_the_account_survives_from_run_to_run_by_the_servers_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFSKETCH_CLIENT_KEY", "ab" * 32)
    path, trained, found = tmp_path / "record.json", 0, list[str]()
    account = tmp_path / "account.json"
    for run in range(allowed() + 2):  # a new server, a new node without state, and its file is lost
        account.unlink(missing_ok=True)
        network = Network()
        options: dict[str, Any] = {"budget": BUDGET, "account_file": account}
        node = network.join(0, GAUSSIAN, key=KEY, node_id=3000 + run, **options)
        strategy = rounds(2, network, record_file=path)
        trained += len(node.seen)
        found += net.reasons(strategy)
    assert trained == allowed()
    assert found[0].startswith("statement:")
    assert found[-1].startswith("budget:")
    assert strategy.epsilon(1e-5).rounds == 2 * (allowed() + 2)  # all that it was asked for
    path.write_text("[]")
    refused(DataError, "record must be", rounds, 1, network, record_file=path)


def test_a_node_that_lost_its_model_gets_it_again() -> None:
    network, strategy = net.network_of(SKETCH, 1), net.strategy_of(SKETCH)
    arrays = net.one_round(strategy, network, FIRST, 1)
    network.join(0, SKETCH, key=KEY)  # the same id, and no state
    arrays = net.one_round(strategy, network, arrays, 2)
    assert net.reasons(strategy) == ["model: this client has no model to go on from"]
    net.one_round(strategy, network, arrays, 3)
    assert not strategy.reports[-1].void


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="plan must be a FlowerPlan"):
        sketch_mod("sketch")  # type: ignore[arg-type]
    refused(ArgumentError, "importance must", sketch_mod, SKETCH, importance=0.0)
    refused(ArgumentError, "method sketch has no setting clip", FlowerPlan, "sketch", {"clip": 1.0})
    refused(ArgumentError, "did you mean rows", FlowerPlan, "sketch", {"row": 2, "cols": 8})
    with pytest.raises(ArgumentError, match="settings must be a mapping from names"):
        FlowerPlan("sketch", ["rows"])  # type: ignore[arg-type]
    refused(ArgumentError, "method sketch needs cols", FlowerPlan, "sketch", {"rows": 2})
    with pytest.raises(ArgumentError, match="cohort must be 2 or more for distributed trust"):
        FlowerPlan("gaussian", {"clip": 1.0, "noise_multiplier": 1.0, "trust": "distributed"}, 1)
    with pytest.raises(ArgumentError, match="cohort must be 2 or more for distributed trust"):
        FlowerPlan("skellam", {"clip": 1.0, "noise_multiplier": 1.0})  # which it has by default
    refused(ArgumentError, "name=value", FlowerPlan.parse, "sketch", "rows cols")
    assert FlowerPlan.parse("sketch", "rows=2 cols=3", cohort=3).cohort == 3


# Arrays that clients keep to themselves: running statistics are never sketched.

SMALL = FlowerPlan("sketch-gaussian", {**PRIVATE, "rows": 1})
LOCAL = ("running_mean", "running_var", "num_batches_tracked")
WIDTH, WEIGHTS = 16, 24


def model(variance: str = "bn.running_var") -> ArrayRecord:
    """A layer, and the statistics of batch normalisation after it."""
    sizes = {"fc.weight": WEIGHTS, "bn.running_mean": WIDTH, variance: WIDTH}
    arrays = {name: Array(np.zeros(size, np.float32)) for name, size in sizes.items()}
    arrays[variance] = Array(np.ones(WIDTH, np.float32))
    return ArrayRecord({**arrays, "bn.num_batches_tracked": Array(np.array(0, np.int64))})


def join(network: Network, number: int, variance: str = "bn.running_var", **options: Any) -> Node:
    """A node whose app adds its own to all of its arrays."""
    app, seen = ClientApp(mods=[sketch_mod(SMALL, key=KEY, **options)]), list[Message]()

    def train(message: Message, _: Context) -> Message:
        seen.append(message)
        old = message.content.array_records["arrays"]
        steps = {"fc.weight": 0.01, "bn.running_mean": 0.5, variance: 1 + number}
        new = {
            name: Array(np.asarray(one.numpy() + steps.get(name, 1)).astype(one.dtype))
            for name, one in old.items()
        }
        return net.reply_of(message, {"num-examples": 1}, ArrayRecord(new))

    app.train()(train)
    network.nodes[1000 + number] = Node(number, app, 1000 + number, {}, seen)
    return network.nodes[1000 + number]


def seen_by(node: Node, name: str) -> list[float]:
    return [
        float(one.content.array_records["arrays"][name].numpy().reshape(-1)[0]) for one in node.seen
    ]


def test_running_statistics_are_refused_unless_they_are_kept() -> None:
    network = Network()
    node = join(network, 0, keep_local=LOCAL)
    with pytest.raises(ArgumentError, match=r"running statistics, got bn\.running_mean, bn\.run"):
        net.strategy_of(SMALL).start(network, model(), 1)
    assert node.seen == []
    for make in (sketch_mod, net.strategy_of):
        with pytest.raises(ArgumentError, match="keep_local must be a collection of names"):
            make(SMALL, keep_local="running_mean")
    assert length_of(model(), LOCAL) == WEIGHTS == len(flat(model(), LOCAL))


@pytest.mark.parametrize("key", [KEY, None])
def test_clients_keep_their_own_and_share_the_rest(key: SketchKey | None) -> None:
    network, first = Network(), model()
    nodes = [join(network, number, keep_local=LOCAL) for number in range(2)]
    network.tamper = caught = Caught()
    strategy = net.strategy_of(SMALL, key=key, keep_local=LOCAL)
    result = strategy.start(network, first, 3)
    assert not any(report.void for report in strategy.reports)
    for number, node in enumerate(nodes):
        step = 1 + number
        assert seen_by(node, "bn.running_var") == [1, 1 + step, 1 + 2 * step]
        assert seen_by(node, "bn.running_mean") == [0.0, 0.5, 1.0]
        assert seen_by(node, "bn.num_batches_tracked") == [0, 1, 2]
    assert all(not reply.content.array_records for reply in caught)
    method = SMALL.build(WEIGHTS)
    after, _ = replay_totals(first, strategy.totals, method=method, key=KEY, keep_local=LOCAL)
    assert np.abs(after["fc.weight"].numpy()).max() > 0
    for name in list(first)[1:]:
        assert np.array_equal(after[name].numpy(), first[name].numpy())
    if key is not None:
        assert np.array_equal(result.arrays["fc.weight"].numpy(), after["fc.weight"].numpy())
        assert np.array_equal(result.arrays["bn.running_var"].numpy(), np.ones(WIDTH))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({}, "model: arrays must not have running statistics"),
        ({"keep_local": LOCAL[:2]}, "plan: the server's plan is another one"),
    ],
)
def test_both_sides_keep_the_same(options: dict[str, Any], word: str) -> None:
    network = Network()
    node = join(network, 0, **options)
    strategy = net.strategy_of(SMALL, keep_local=LOCAL)
    strategy.start(network, model(), 1)
    assert net.reasons(strategy)[0].startswith(word)
    assert node.seen == []

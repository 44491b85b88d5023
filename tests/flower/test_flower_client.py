"""The client's side: what it never sends, what it refuses, and books of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("flwr")

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from diffsketch.errors import ArgumentError, DataError
from diffsketch.flower import ClientAccount, FlowerPlan, SketchStrategy, sketch_mod
from diffsketch.flower.records import PROTOCOL
from diffsketch.privacy import Budget
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import DIM, World, one_round, our_record, record_of

KEY, OTHER = SketchKey.from_integer(3), SketchKey.from_integer(4)
GAUSSIAN = FlowerPlan("sketch-gaussian", {"rows": 2, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0})
SKETCH = FlowerPlan("sketch", {"rows": 3, "cols": 16})
FIRST = record_of(torch.zeros(DIM))
SECRET = "ab" * 32


def rounds(
    count: int, world: World, plan: FlowerPlan = GAUSSIAN, **options: Any
) -> tuple[SketchStrategy, World]:
    strategy = SketchStrategy(_inside(), plan, **{"key": KEY, **options})
    strategy.start(world, FIRST, count)
    return strategy, world


def _inside() -> FedAvg:
    return FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)


def reasons(strategy: SketchStrategy) -> list[str]:
    return [reason for report in strategy.reports for reason in report.refused.values()]


def test_nothing_leaves_but_the_message() -> None:
    world, caught = World(), []
    world.join(0, GAUSSIAN, key=KEY)
    world.tamper = lambda replies: caught.extend(replies) or list(replies)  # type: ignore[func-returns-value]
    rounds(1, world)
    (reply,) = caught
    assert list(reply.content) == ["diffsketch"]
    assert not reply.content.array_records
    assert not reply.content.metric_records
    data: Any = our_record(reply)["message"]
    assert len(data) == GAUSSIAN.build(DIM).wire_bytes


def test_the_app_sees_what_it_always_saw() -> None:
    world = World()
    node = world.join(0, GAUSSIAN, key=KEY)
    rounds(2, world)
    for server_round, message in enumerate(node.seen, 1):
        assert sorted(message.content) == ["arrays", "config"]
        assert message.content.config_records["config"]["server-round"] == server_round
        assert list(message.content.array_records["arrays"]) == ["weight", "bias", "steps"]


def test_without_our_strategy_nothing_is_sent() -> None:
    world, caught = World(), []
    world.join(0, GAUSSIAN, key=KEY)
    world.tamper = lambda replies: caught.extend(replies) or list(replies)  # type: ignore[func-returns-value]
    _inside().start(world, FIRST, 1)
    (reply,) = caught
    assert reply.has_error()
    assert "does not use SketchStrategy" in str(reply.error.reason)
    assert world.nodes[1000].seen == []


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"key": OTHER}, "key: the server's key is another one"),
        ({"key": None}, "key: this client has no key"),
    ],
)
def test_other_keys_are_refused(
    options: dict[str, Any], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DIFFSKETCH_KEY", raising=False)
    world = World()
    world.join(0, GAUSSIAN, **options)
    strategy, _ = rounds(1, world)
    assert reasons(strategy)[0].startswith(word)


def test_a_server_cannot_choose_less_noise() -> None:
    weaker = FlowerPlan(GAUSSIAN.method, {**GAUSSIAN.settings, "noise_multiplier": 0.01})
    world = World()
    node = world.join(0, GAUSSIAN, key=KEY)
    strategy, _ = rounds(1, world, weaker)
    assert reasons(strategy)[0].startswith("plan: the server's plan is another one")
    assert node.seen == []


def test_a_request_of_another_version_is_refused() -> None:
    world = World()
    node = world.join(0, GAUSSIAN, key=KEY)
    strategy = SketchStrategy(_inside(), GAUSSIAN, key=KEY)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    our_record(asked[0])["protocol"] = PROTOCOL + 1
    (reply,) = world.send_and_receive(asked)
    assert f"speaks version {PROTOCOL + 1}" in str(our_record(reply)["reason"])
    assert node.seen == []


def test_a_round_is_answered_once() -> None:
    world = World()
    world.join(0, GAUSSIAN, key=KEY)
    strategy = SketchStrategy(_inside(), GAUSSIAN, key=KEY)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    (first,) = world.send_and_receive(asked)
    (second,) = world.send_and_receive(asked)
    assert our_record(first)["code"] == ""
    assert our_record(second)["code"] == "answered"
    assert our_record(second)["message"] == b""


def test_keys_are_found_in_files_and_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "key"
    path.write_text(f"{KEY.secret.hex()}\n")
    world = World()
    world.join(0, GAUSSIAN, config={"diffsketch-key-file": str(path)})
    strategy, _ = rounds(1, world)
    assert not strategy.reports[0].void
    monkeypatch.setenv("DIFFSKETCH_KEY", KEY.secret.hex())
    world = World()
    world.join(0, GAUSSIAN)
    strategy, _ = rounds(1, world)
    assert not strategy.reports[0].void
    monkeypatch.setenv("DIFFSKETCH_KEY", "secret words")
    with pytest.raises(ArgumentError, match="64 hexadecimal digits") as error:
        rounds(1, world)
    assert "secret words" not in str(error.value)


def not_finite(number: int, weights: Tensor, server_round: int) -> Tensor:
    del server_round
    return weights * torch.nan if number == 0 else weights + 1


def test_vectors_that_are_not_finite_count_as_zeros_where_it_is_proven() -> None:
    world = World()
    for number in range(2):
        world.join(number, GAUSSIAN, train=not_finite, key=KEY)
    strategy, _ = rounds(1, world)
    assert strategy.reports[0].present == (1000, 1001)


def test_vectors_that_are_not_finite_are_left_out_elsewhere() -> None:
    world = World()
    for number in range(2):
        world.join(number, SKETCH, train=not_finite, key=KEY)
    strategy, _ = rounds(1, world, SKETCH)
    assert strategy.reports[0].present == (1001,)
    assert reasons(strategy) == ["not-finite: the vector has NaN or infinite values"]


def test_noise_is_new_in_every_message() -> None:
    messages = []
    for _ in range(2):
        world = World()
        world.join(0, GAUSSIAN, key=KEY)
        world.tamper = lambda replies: messages.extend(replies) or list(replies)  # type: ignore[func-returns-value]
        rounds(1, world)
    one, two = (our_record(message)["message"] for message in messages)
    assert one != two


def test_importance_scales_the_vector() -> None:
    plan, results = FlowerPlan("none"), []
    for importance in (1.0, 3.0):
        world = World()
        world.join(0, plan, key=KEY, importance=importance)
        arrays = one_round(SketchStrategy(_inside(), plan, key=KEY), world, FIRST, 1)
        results.append(torch.from_numpy(arrays["bias"].numpy()))
    torch.testing.assert_close(results[1], 3 * results[0])


BUDGET = Budget(6.0, 1e-5)  # three rounds of GAUSSIAN


def allowed() -> int:
    account, count = ClientAccount.new(BUDGET), 0
    claim = GAUSSIAN.build(DIM).claim_for(1, KEY.seed(0))
    while True:
        try:
            account = account.after(claim)
        except Exception:
            return count
        count += 1


def test_a_clients_budget_holds_whatever_the_server_thinks() -> None:
    world = World()
    node = world.join(0, GAUSSIAN, key=KEY, budget=BUDGET)
    strategy, _ = rounds(allowed() + 2, world)
    assert 1 <= allowed() == len(node.seen)
    assert all(reason.startswith("budget:") for reason in reasons(strategy))
    assert len(reasons(strategy)) == 2


def test_the_account_survives_a_restart_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "books" / "account.json"
    trained = 0
    for start in range(allowed() + 1):  # each with a new node id, no state, and a server anew
        world = World()
        node = world.join(
            0, GAUSSIAN, key=KEY, budget=BUDGET, account_file=path, node_id=2000 + start
        )
        rounds(1, world)
        trained += len(node.seen)
    assert trained == allowed()
    path.write_text("{}")
    with pytest.raises(DataError, match="must be the account of this client"):
        rounds(1, world)


def test_the_account_survives_a_restart_by_the_servers_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("DIFFSKETCH_CLIENT_KEY", SECRET)
    world, trained = World(), 0
    strategy = SketchStrategy(_inside(), GAUSSIAN, key=KEY)
    arrays = FIRST
    for server_round in range(1, 2 * allowed() + 4):
        # Two rounds with each node id: the first asks for the statement, the second has it.
        node_id = 2000 + server_round // 2
        if node_id not in world.nodes:
            world.nodes.clear()
            node = world.join(0, GAUSSIAN, key=KEY, budget=BUDGET, node_id=node_id)
        before = len(node.seen)
        arrays = one_round(strategy, world, arrays, server_round)
        trained += len(node.seen) - before
    assert trained == allowed()
    found = [reason.partition(":")[0] for reason in reasons(strategy)]
    assert "statement" in found
    assert found[-1] == "budget"


def test_a_client_that_knows_nothing_counts_all_earlier_rounds() -> None:
    world, trained = World(), 0
    strategy = SketchStrategy(_inside(), GAUSSIAN, key=KEY)
    arrays = FIRST
    for server_round in range(1, allowed() + 3):
        world.nodes.clear()
        node = world.join(0, GAUSSIAN, key=KEY, budget=BUDGET, node_id=2000 + server_round)
        arrays = one_round(strategy, world, arrays, server_round)
        trained += len(node.seen)
    assert trained == allowed()


def test_a_node_that_lost_its_model_gets_it_again() -> None:
    world = World()
    world.join(0, SKETCH, key=KEY)
    strategy = SketchStrategy(_inside(), SKETCH, key=KEY)
    arrays = one_round(strategy, world, FIRST, 1)
    world.join(0, SKETCH, key=KEY)  # the same id, and no state
    arrays = one_round(strategy, world, arrays, 2)
    assert reasons(strategy) == ["model: this client has no model to go on from"]
    one_round(strategy, world, arrays, 3)
    assert not strategy.reports[-1].void


def test_arguments_are_checked() -> None:
    with pytest.raises(ArgumentError, match="plan must be a FlowerPlan"):
        sketch_mod("sketch")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="importance must"):
        sketch_mod(SKETCH, importance=0.0)
    with pytest.raises(ArgumentError, match="settings must be of"):
        FlowerPlan("sketch", {"clip": 1.0})
    with pytest.raises(ArgumentError, match="name=value"):
        FlowerPlan.parse("sketch", "rows cols")


def test_the_account_survives_from_run_to_run_by_the_servers_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DIFFSKETCH_CLIENT_KEY", SECRET)
    path, trained, found = tmp_path / "record.json", 0, list[str]()
    for run in range(allowed() + 2):  # a new server, and a new node without state
        world = World()
        node = world.join(0, GAUSSIAN, key=KEY, budget=BUDGET, node_id=3000 + run)
        strategy, _ = rounds(2, world, record_file=path)
        trained += len(node.seen)
        found += reasons(strategy)
    assert trained == allowed()
    assert found[0].startswith("statement:")
    assert found[-1].startswith("budget:")
    assert strategy.epsilon(1e-5).rounds == 2 * (allowed() + 2)  # all that it was asked for
    path.write_text("[]")
    with pytest.raises(DataError, match="record must be"):
        rounds(1, world, record_file=path)


def test_a_client_without_a_memory_does_not_count_for_ever() -> None:
    world = World()
    world.join(0, SKETCH, key=KEY)
    strategy = SketchStrategy(_inside(), SKETCH, key=KEY)
    asked = list(strategy.configure_train(1, FIRST, ConfigRecord(), world))
    our_record(asked[0])["round_index"] = 2**40
    (reply,) = world.send_and_receive(asked)
    assert our_record(reply)["code"] == "statement"

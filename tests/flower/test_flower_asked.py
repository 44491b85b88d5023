"""The server's side of a round from when it is asked for: paid, whatever becomes of it."""

from __future__ import annotations

import json
import random
import secrets
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ConfigRecord
from flwr.serverapp.strategy import FedAvg

from diffsketch.flower import FlowerPlan, SketchStrategy
from diffsketch.flower.accounts import ClientRegistry
from diffsketch.privacy import Budget
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.sketch import SketchKey
from tests.flower.flower_world import DIM, World, one_round, record_of

KEY = SketchKey.from_integer(3)
PLAN = FlowerPlan("sketch-gaussian", {"rows": 2, "cols": 8, "clip": 1.0, "noise_multiplier": 2.0})
SKELLAM = {"rows": 1, "cols": 16, "clip": 0.5, "noise_multiplier": 2.0}
SUM = FlowerPlan("sketch-skellam", SKELLAM, cohort=3, min_replies=2, secure_sum=True, identities=False)
FIRST = record_of(torch.zeros(DIM))
CLAIM = PLAN.build(DIM).claim_for(1, KEY.seed(0))
BUDGET = Budget(3.5, 1e-5)  # two rounds of PLAN


def strategy_of(plan: FlowerPlan = PLAN, **options: Any) -> SketchStrategy:
    own = FedAvg(fraction_evaluate=0.0, min_train_nodes=1, min_available_nodes=1)
    return SketchStrategy(own, plan, key=KEY, **options)


def rounds_in(path: Path) -> list[int]:
    found: list[int] = json.loads(path.read_text())["accounts"]["rounds"]
    return found


def test_a_round_is_on_record_before_anything_is_asked(tmp_path: Path) -> None:
    path, world = tmp_path / "record" / "file.json", World()
    world.join(0, PLAN, key=KEY)
    strategy = strategy_of(record_file=path)
    arrays = one_round(strategy, world, FIRST, 1)
    assert rounds_in(path) == [1]
    strategy.configure_train(2, arrays, ConfigRecord(), world)  # and the server dies
    assert rounds_in(path) == [2]
    assert strategy.epsilon(1e-5).rounds == 2
    world = World()
    world.join(0, PLAN, key=KEY)
    again = strategy_of(record_file=path)
    one_round(again, world, FIRST, 1)
    assert again.epsilon(1e-5).rounds == 3
    # A round whose replies were never looked at is settled by the next one.
    again.configure_train(2, FIRST, ConfigRecord(), world)
    one_round(again, world, FIRST, 3)
    assert again.epsilon(1e-5).rounds == 5


def test_a_secure_sum_that_is_asked_for_is_on_record(tmp_path: Path) -> None:
    path, world = tmp_path / "record.json", World()
    for number in range(3):
        world.join(number, SUM, key=KEY)
    strategy = strategy_of(SUM, record_file=path)
    strategy.configure_train(1, FIRST, ConfigRecord(), world)
    assert rounds_in(path)[:3] == [1, 1, 1]


def test_a_member_that_comes_back_at_its_budget_does_not_count(tmp_path: Path) -> None:
    path, world = tmp_path / "record.json", World()
    world.join(0, PLAN, key=KEY, node_id=1)
    strategy, arrays = strategy_of(budget=BUDGET, record_file=path), FIRST
    for server_round in (1, 2):
        arrays = one_round(strategy, world, arrays, server_round)
    assert not any(report.void for report in strategy.reports)
    world.nodes.clear()
    world.join(0, PLAN, key=KEY, node_id=2)  # the SuperNode was started again
    world.join(1, PLAN, key=KEY, node_id=3)  # and a new member has come
    result = strategy.start(world, arrays, 2)
    report = strategy.reports[2]
    assert (report.present, set(report.refused), report.void) == ((3,), {2}, "")
    assert report.refused[2].startswith("budget: ")
    assert sorted(rounds_in(path))[-2:] == [1, 3]  # paid, since it was asked
    assert strategy.epsilon(1e-5).rounds == 3
    assert float(strategy.epsilon(1e-5)) > BUDGET.epsilon
    assert len(strategy.reports) == 3
    assert "above the budget" in strategy.ended
    assert list(result.arrays) == list(FIRST)


def test_if_nobody_else_is_there_the_round_is_void() -> None:
    world = World()
    world.join(0, PLAN, key=KEY, node_id=1)
    strategy, arrays = strategy_of(budget=BUDGET), FIRST
    for server_round in (1, 2):
        arrays = one_round(strategy, world, arrays, server_round)
    world.nodes.clear()
    world.join(0, PLAN, key=KEY, node_id=2)
    strategy.start(world, arrays, 2)
    assert strategy.reports[-1].void == "0 messages, and 1 are needed"
    assert strategy.epsilon(1e-5).rounds == 3


def test_members_that_are_beyond_do_not_keep_others_from_being_told_apart() -> None:
    one = ClientRegistry(BUDGET, CLAIM)
    one.charge(CLAIM, [1])
    one.update(1, member="a", version=0, statement=b"")
    one.charge(CLAIM, [1])
    one.charge(CLAIM, [2])  # a restarted "a" that is silent, and paid by its id
    one.begin_round(CLAIM, [2, 3])
    assert one.over_budget(CLAIM) == frozenset()
    one.update(2, member="a", version=0, statement=b"")
    one.update(3, member="b", version=0, statement=b"")
    assert one.over_budget(CLAIM) == {2}
    assert one.rounds_of("a") == 4
    one.settle_round(CLAIM)
    assert (one.rounds_of("a"), one.rounds_of("b")) == (4, 1)
    with pytest.raises(BudgetExceeded):
        one.begin_round(CLAIM, [3])
    assert one.rounds_of("b") == 1


def test_two_nodes_of_one_member_pay_twice() -> None:
    one = ClientRegistry(None, CLAIM)
    for node in (1, 2, 3):
        one.update(node, member="b" if node == 3 else "a", version=0, statement=b"")
    one.charge(CLAIM, [1, 2, 3])
    assert (one.rounds_of("a"), one.rounds_of("b")) == (2, 1)


def test_of_more_nodes_than_the_cohort_some_are_asked() -> None:
    world = World()
    for number in range(4):
        world.join(number, SUM, key=KEY)
    strategy = strategy_of(SUM)
    result = strategy.start(world, FIRST, 2)
    assert [len(report.selected) for report in strategy.reports] == [3, 3]
    assert not any(report.void for report in strategy.reports)
    assert list(result.arrays) == list(FIRST)


def test_all_nodes_have_the_same_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 choices of 3 of 5: each node is in 90, standard deviation 6.

    Outside of 90 +- 36 (six of them) by chance: less than 1e-7 for the five together. A choice of
    the first three always, the planted error, is outside.
    """
    source = random.Random(5)
    monkeypatch.setattr(secrets, "SystemRandom", lambda: source)
    plan = FlowerPlan("sketch-skellam", SKELLAM, cohort=3)
    world = World()
    for number in range(5):
        world.join(number, plan, key=KEY)
    strategy = strategy_of(plan, trusted_server=True)
    strategy.configure_train(1, FIRST, ConfigRecord(), world)
    desk = strategy._started
    assert desk is not None
    messages = list(strategy.strategy.configure_train(1, FIRST, ConfigRecord(), world))
    assert len(messages) == 5

    def is_fair(counts: Counter[int]) -> bool:
        return all(54 < counts[node] < 126 for node in world.nodes)

    counts: Counter[int] = Counter()
    for _ in range(150):
        chosen = [one.metadata.dst_node_id for one in desk.select(messages)]
        assert len(set(chosen)) == 3
        counts.update(chosen)
    assert is_fair(counts)
    assert not is_fair(Counter(dict.fromkeys(list(world.nodes)[:3], 150)))


def test_in_a_secure_sum_a_member_beyond_its_budget_has_dropped_out() -> None:
    # Two rounds of two messages each, as they are planned, and no third one.
    method = SUM.build(DIM)
    paid = [float(method.claim_for(2, KEY.seed(0)).epsilon(delta=1e-5, rounds=n)) for n in (2, 3)]
    budget = Budget((paid[0] + paid[1]) / 2, 1e-5)
    strategy, arrays, world = strategy_of(SUM, budget=budget), FIRST, World()
    assert paid[0] < paid[1]
    for number in range(2):
        world.join(number, SUM, key=KEY)
    for server_round in (1, 2):
        arrays = one_round(strategy, world, arrays, server_round)
    world.nodes.clear()
    for number in (0, 3, 4):  # one that was started again, and two that are new
        world.join(number, SUM, key=KEY, node_id=2000 + number)
    one_round(strategy, world, arrays, 3)
    report = strategy.reports[-1]
    assert (report.present, set(report.refused), report.void) == ((2003, 2004), {2000}, "")
    assert strategy.epsilon(1e-5).rounds == 3

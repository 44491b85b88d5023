"""Simulated silos: claims about examples, budgets, and what goes with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.methods import GaussianMean
from diffsketch.training.rounds import DistributedSGD
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Task, load_task
from tests.helpers.refusals import refused


def config(**changes: Any) -> RunConfig:
    settings: dict[str, Any] = {
        "task": "mnist", "workers": 4, "samples": 50, "batch_size": 10, "rounds": 3,
        "learning_rate": 0.5, "method": "gaussian", "unit": "example", "trust": "distributed",
        "relation": "add-or-remove", "clip": 1.0, "budget": 2.0,
    }  # fmt: skip
    return RunConfig(**(settings | changes))


@pytest.mark.parametrize(
    ("changes", "trust"),
    [
        ({}, "distributed"),
        ({"lost": 1}, "distributed"),
        ({"trust": "local"}, "local"),
        ({"trust": "central"}, "central"),
        ({"method": "sketch-skellam", "rows": 1, "cols": 400, "momentum": 0.9}, "distributed"),
    ],
)
def test_the_budget_is_spent_on_examples(changes: dict[str, Any], trust: str) -> None:
    simulation = build(config(**changes)).simulation
    assert simulation.method.rate == 0.2  # type: ignore[attr-defined]
    assert simulation.run() == ""
    epsilon = simulation.epsilon(1e-5)
    assert 1.95 < float(epsilon) <= 2.0
    assert str(epsilon.scope) == f"example unit, add-or-remove, {trust} trust"
    assert epsilon.simulated
    assert torch.isfinite(simulation.weights).all()


def test_more_noise_for_silos_that_may_be_lost() -> None:
    every, fewer = (build(config(lost=lost)).simulation.method for lost in (0, 2))
    assert every.noise_multiplier == fewer.noise_multiplier  # type: ignore[attr-defined]
    shares = [method.noise._share for method in (every, fewer)]  # type: ignore[union-attr]
    assert shares[1] / shares[0] == pytest.approx(2**0.5, rel=1e-2)


def test_resolved_settings_build_the_same_and_a_state_continues() -> None:
    first = build(config())
    again = build(first.config)
    assert again.simulation.identity == first.simulation.identity
    first.simulation.step()
    again.simulation.load_state_dict(first.simulation.state_dict())
    first.simulation.step()
    again.simulation.step()
    assert torch.equal(first.simulation.weights, again.simulation.weights)


def persons_simulation(persons: Tensor) -> Simulation:
    task = load_task("mnist", workers=3, samples=20)
    devices = replace(task.devices, persons=persons)
    method = GaussianMean(
        dim=7850, clip=1.0, noise_multiplier=1.0, unit="person", relation="add-or-remove",
        trust="distributed", cohort=3, rate=0.5, records=2.5,
    )  # fmt: skip
    own = Task("own", devices, task.test, task.model)
    return Simulation(own, method=method, algorithm=DistributedSGD(0.5, 10), rounds=2)


def test_persons_are_in_one_silo_each() -> None:
    simulation = persons_simulation(torch.arange(60) // 4)
    assert [records.members for records in simulation._records] == [5, 5, 5]
    assert simulation.run() == ""
    assert "person unit, add-or-remove, distributed trust" in str(simulation.epsilon(1e-5))
    others = persons_simulation(torch.arange(60) // 5)
    assert others.identity != simulation.identity
    with pytest.raises(ArgumentError, match=r"one party each, got 2 in 'worker-0' and 'worker-1'"):
        persons_simulation(torch.arange(60) // 8)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"algorithm": "fedavg", "cohort": 4}, "DistributedSGD"),
        ({"batch_size": 51}, "batch_size"),
        ({"relation": "replace"}, "relation must be add-or-remove"),
        ({"correction": "shared"}, "correction"),
        ({"lost": 4}, "lost"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], text: str) -> None:
    refused(ArgumentError, text, build, config(**changes))

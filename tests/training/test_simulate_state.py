"""A state that is loaded continues bit-identically, whatever the options."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.errors import MismatchError
from diffsketch.methods.base import build_method
from diffsketch.privacy.accounting.accountant import Budget
from diffsketch.training.rounds import DistributedSGD, FedAvg
from diffsketch.training.sampling import (
    PoissonDevices,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.server import FetchSGD, ServerOptimizer
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Task
from tests.training.reference import DIM, ReferenceTrainer, make_task

SIZES = (6, 9, 4, 5, 7, 6, 3, 8)
DEVICES = len(SIZES)
TABLE = {"rows": 3, "cols": 5}
CENTRAL = {"clip": 0.5, "noise_multiplier": 1.0, "relation": "add-or-remove", "trust": "central"}
EVERY_OPTION = ServerOptimizer(
    server_step=0.5, schedule="cosine", momentum=0.9, update_clip=0.5, averaging=0.9
)

# The method and its settings, and the simulation's options.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd": ("none", {}, {"algorithm": DistributedSGD(0.1, 4)}),
    "every server option": (
        "sketch",
        TABLE,
        {"algorithm": DistributedSGD(0.1, 4), "server": EVERY_OPTION, "hashes": "fixed"},
    ),
    "shared": ("sketch", TABLE, {"algorithm": DistributedSGD(0.1, 4, correction="shared")}),
    "drift": (
        "sketch",
        TABLE,
        {"algorithm": DistributedSGD(0.1, 4, correction="drift"), "server": EVERY_OPTION},
    ),
    "fetch": (
        "sketch",
        TABLE,
        {
            "algorithm": DistributedSGD(0.1, 4),
            "server": FetchSGD(4, table_momentum=0.9, averaging=0.5, update_clip=1.0),
            "hashes": "fixed",
        },
    ),
    "weighted": (
        "none",
        {},
        {
            "sampler": WeightedSampler(torch.tensor([float(size) for size in SIZES]), 3, seed=5),
            "importance": torch.arange(1.0, 9.0),
        },
    ),
    "claimed": (
        "diffsketch",
        {**TABLE, "per_round": 1.0},
        {"sampler": UniformSampler(DEVICES, 3, seed=5)},
    ),
    "local": (
        "sketch-gaussian",
        {**TABLE, "clip": 0.5, "noise_multiplier": 2.0},
        {"sampler": UniformSampler(DEVICES, 3, seed=5), "budget": Budget(30.0, 1e-5)},
    ),
    "distributed": (
        "sketch-skellam",
        {**TABLE, "clip": 0.5, "noise_multiplier": 2.0},
        {"sampler": ShuffledSampler(DEVICES, 4, seed=5), "budget": Budget(30.0, 1e-5)},
    ),
    "central": (
        "sketch-gaussian",
        {**TABLE, **CENTRAL},
        {"sampler": PoissonDevices.of(DEVICES, 2.0, seed=5), "budget": Budget(30.0, 1e-5)},
    ),
    "adaptive": (
        "sketch-skellam",
        {**TABLE, "clip": 0.5, "noise_multiplier": 2.0, "clip_quantile": 0.5},
        {"sampler": ShuffledSampler(DEVICES, 4, seed=5), "budget": Budget(30.0, 1e-5)},
    ),
    "adaptive central": (
        "sketch-gaussian",
        {**TABLE, **CENTRAL, "clip_quantile": 0.3},
        {"sampler": PoissonDevices.of(DEVICES, 2.0, seed=5), "budget": Budget(30.0, 1e-5)},
    ),
    "adaptive fetch": (
        "sketch-gaussian",
        {**TABLE, "clip": 0.5, "noise_multiplier": 0.1, "clip_quantile": 0.5},
        {
            "algorithm": DistributedSGD(0.1, 4),
            "server": FetchSGD(4, table_momentum=0.9),
            "hashes": "fixed",
        },
    ),
}


def simulate(name: str, task: Task | None = None, **changes: Any) -> Simulation:
    method, settings, options = RUNS[name]
    settings = {**settings, **changes.pop("settings", {})}
    sampler = options.get("sampler")
    cohort = DEVICES if sampler is None else round(sampler.expected)
    arguments: dict[str, Any] = {
        "trainer": ReferenceTrainer(),
        "algorithm": FedAvg(0.1, 4),
        "rounds": 8,
        "seed": 5,
        **options,
        **changes,
    }
    return Simulation(
        make_task(*SIZES) if task is None else task,
        method=build_method(method, dim=DIM, cohort=cohort, settings=settings),
        **arguments,
    )


def stored(state: dict[str, Any]) -> dict[str, Any]:
    """What comes back from a file: tensors as they are, the rest through JSON."""
    rest = {name: value for name, value in state.items() if not isinstance(value, Tensor)}
    tensors = {name: value.clone() for name, value in state.items() if isinstance(value, Tensor)}
    return {**tensors, **json.loads(json.dumps(rest))}


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    if one.keys() != other.keys():
        return False
    return all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in one.items()
    )


@pytest.mark.parametrize("name", RUNS)
def test_continues_to_the_same_bits(name: str) -> None:
    whole = simulate(name)
    results = [whole.step() for _ in range(8)]
    part = simulate(name)
    for _ in range(3):
        part.step()
    continued = simulate(name)
    continued.load_state(stored(part.state()))
    assert same(continued.state(), part.state())
    for result in results[3:]:
        again = continued.step()
        assert again.round_index == result.round_index
        assert torch.equal(again.cohort, result.cohort)
        assert torch.equal(again.published.total, result.published.total)
        assert (again.bytes_up, again.bytes_down) == (result.bytes_up, result.bytes_down)
        assert (again.claim, again.drift) == (result.claim, result.drift)
    assert same(continued.state(), whole.state())
    assert continued.evaluate() == whole.evaluate()
    assert continued.epsilon(1e-5) == whole.epsilon(1e-5)


def test_comparison_is_not_blind() -> None:
    """Negative control: another seed's states differ in all that rounds change."""
    one, other = simulate("local"), simulate("local", seed=6)
    assert same(one.state(), simulate("local").state())
    one.step()
    other.step()
    assert not same(one.state(), other.state())
    assert not torch.equal(one.weights, other.weights)


def test_state_is_a_copy() -> None:
    simulation = simulate("every server option")
    simulation.step()
    state = simulation.state()
    kept = stored(state)
    for value in state.values():
        if isinstance(value, Tensor):
            value.zero_()
    assert same(simulation.state(), kept)
    simulation.load_state(kept)
    for value in kept.values():
        if isinstance(value, Tensor):
            value.zero_()
    assert not same(simulation.state(), kept)


def test_state_is_small() -> None:
    simulation = simulate("local")
    for _ in range(8):
        simulation.step()
    state = simulation.state()
    size = sum(value.numel() for value in state.values() if isinstance(value, Tensor))
    assert size <= DIM + 4 * DEVICES  # weights, rounds synced and taken part in, an account


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        ("claimed", {}),
        ("sgd", {"seed": 6}),
        ("sgd", {"algorithm": DistributedSGD(0.2, 4)}),
        ("sgd", {"hashes": "fixed"}),
        ("sgd", {"server": ServerOptimizer(momentum=0.5)}),
        ("sgd", {"importance": torch.arange(1.0, 9.0)}),
    ],
)
def test_states_of_other_simulations_are_refused(other: str, changes: dict[str, Any]) -> None:
    simulation = simulate("sgd")
    with pytest.raises(MismatchError, match="the state must be that of the same simulation"):
        simulation.load_state(simulate(other, **changes).state())


def test_more_rounds_may_be_planned_unless_a_schedule_depends_on_them() -> None:
    state = simulate("sgd").state()
    simulate("sgd", rounds=20).load_state(state)
    state = simulate("every server option").state()
    with pytest.raises(MismatchError, match="same simulation"):
        simulate("every server option", rounds=20).load_state(state)


@pytest.mark.parametrize("name", ["weights", "memory.momentum", "average", "synced", "round_index"])
def test_incomplete_states_are_refused(name: str) -> None:
    simulation = simulate("every server option")
    state = simulation.state()
    del state[name]
    with pytest.raises(MismatchError, match=f"the state must have {name}"):
        simulation.load_state(state)


def test_states_of_other_shapes_are_refused() -> None:
    simulation = simulate("sgd")
    for name in ("weights", "synced", "participation.rounds"):
        state = simulation.state()
        state[name] = state[name][:-1]
        with pytest.raises(MismatchError, match="must have the shape"):
            simulation.load_state(state)
    assert simulation.round_index == 0

"""States continue bit-identically; other runs have states, noise and clips of their own."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import MismatchError
from diffsketch.methods.base import build_method
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.training.rounds import DistributedSGD, FedAvg, ServerOptimizer
from diffsketch.training.sampling import (
    PoissonDevices,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from diffsketch.training.simulation import Simulation
from diffsketch.training.state import tensor_digest
from diffsketch.training.tasks import Devices, Examples, Task
from tests.helpers.refusals import refused
from tests.training.reference import (
    DEVICES,
    DIM,
    SIZES,
    ReferenceTrainer,
    make_model,
    make_task,
    simulate,
)

TABLE = {"rows": 3, "cols": 5}
CENTRAL = {"clip": 0.5, "noise_multiplier": 1.0, "relation": "add-or-remove", "trust": "central"}
EVERY_OPTION = ServerOptimizer(server_step=0.5, schedule="cosine", momentum=0.9, update_clip=0.5)

SGD = DistributedSGD(0.1, 4)
FIXED = {"algorithm": SGD, "hashes": "fixed"}
NOISY = {**TABLE, "clip": 0.5, "noise_multiplier": 2.0}
BUDGET = Budget(30.0, 1e-5)
UNIFORM = UniformSampler(DEVICES, 3, seed=5)
SHUFFLED = {"sampler": ShuffledSampler(DEVICES, 4, seed=5), "budget": BUDGET}
POISSON = {"sampler": PoissonDevices.of(DEVICES, 2.0, seed=5), "budget": BUDGET}

# The method and its settings, and the simulation's options.
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sgd": ("none", {}, {"algorithm": SGD}),
    "every server option": ("sketch", TABLE, {**FIXED, "server": EVERY_OPTION}),
    "shared": ("sketch", TABLE, {"algorithm": DistributedSGD(0.1, 4, correction="shared")}),
    "drift": ("sketch", TABLE, {
        "algorithm": DistributedSGD(0.1, 4, correction="drift"), "server": EVERY_OPTION,
    }),
    "weighted": ("none", {}, {
        "sampler": WeightedSampler(torch.tensor([float(size) for size in SIZES]), 3, seed=5),
    }),
    "claimed": ("diffsketch", {**TABLE, "per_round": 1.0}, {"sampler": UNIFORM}),
    "local": ("sketch-gaussian", NOISY, {"sampler": UNIFORM, "budget": BUDGET}),
    "distributed": ("sketch-skellam", NOISY, SHUFFLED),
    "central": ("sketch-gaussian", {**TABLE, **CENTRAL}, POISSON),
    "adaptive": ("sketch-skellam", {**NOISY, "clip_quantile": 0.5}, SHUFFLED),
    "adaptive central": ("sketch-gaussian", {**TABLE, **CENTRAL, "clip_quantile": 0.3}, POISSON),
}  # fmt: skip


def run(name: str, task: Task | None = None, **changes: Any) -> Simulation:
    method, settings, options = RUNS[name]
    settings = {**settings, **changes.pop("settings", {})}
    sampler = options.get("sampler")
    cohort = DEVICES if sampler is None else round(sampler.expected)
    chosen = build_method(method, dim=DIM, cohort=cohort, settings=settings)
    return simulate(chosen, task, **{"sampler": None, "rounds": 8, **options, **changes})


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
    whole = run(name)
    results = [whole.step() for _ in range(8)]
    part = run(name)
    for _ in range(3):
        part.step()
    continued = run(name)
    continued.load_state_dict(stored(part.state_dict()))
    assert same(continued.state_dict(), part.state_dict())
    for result in results[3:]:
        again = continued.step()
        assert again.round_index == result.round_index
        assert torch.equal(again.cohort, result.cohort)
        assert torch.equal(again.published.total, result.published.total)
        assert (again.bytes_up, again.bytes_down) == (result.bytes_up, result.bytes_down)
        assert (again.claim, again.drift) == (result.claim, result.drift)
    assert same(continued.state_dict(), whole.state_dict())
    assert continued.evaluate() == whole.evaluate()
    assert continued.epsilon(1e-5) == whole.epsilon(1e-5)


def test_comparison_is_not_blind() -> None:
    """Negative control: another seed's states differ in all that rounds change."""
    one, other = run("local"), run("local", seed=6)
    assert same(one.state_dict(), run("local").state_dict())
    one.step()
    other.step()
    assert not same(one.state_dict(), other.state_dict())
    assert not torch.equal(one.weights, other.weights)


def test_state_is_a_copy() -> None:
    simulation = run("every server option")
    simulation.step()
    state = simulation.state_dict()
    kept = stored(state)
    for value in state.values():
        if isinstance(value, Tensor):
            value.zero_()
    assert same(simulation.state_dict(), kept)
    simulation.load_state_dict(kept)
    for value in kept.values():
        if isinstance(value, Tensor):
            value.zero_()
    assert not same(simulation.state_dict(), kept)


@pytest.mark.parametrize(
    ("other", "changes"),
    [
        ("claimed", {}),
        ("sgd", {"seed": 6}),
        ("sgd", {"algorithm": DistributedSGD(0.2, 4)}),
        ("sgd", {"hashes": "fixed"}),
        ("sgd", {"server": ServerOptimizer(momentum=0.5)}),
    ],
)
def test_states_of_other_simulations_are_refused(other: str, changes: dict[str, Any]) -> None:
    simulation = run("sgd")
    with pytest.raises(MismatchError, match="the state must be that of the same simulation"):
        simulation.load_state_dict(run(other, **changes).state_dict())


def test_more_rounds_may_be_planned_unless_a_schedule_depends_on_them() -> None:
    run("sgd", rounds=20).load_state_dict(run("sgd").state_dict())
    with pytest.raises(MismatchError, match="same simulation"):
        run("every server option", rounds=20).load_state_dict(
            run("every server option").state_dict()
        )


@pytest.mark.parametrize(
    "name",
    ["weights", "memory.momentum", "synced", "participation.rounds", "round_index"],
)
def test_incomplete_states_are_refused(name: str) -> None:
    simulation = run("every server option")
    state = simulation.state_dict()
    if name != "round_index":
        with pytest.raises(MismatchError, match=f"{name} must have the shape"):
            simulation.load_state_dict({**state, name: state[name][:-1]})
    del state[name]
    refused(MismatchError, f"the state must have {name}", simulation.load_state_dict, state)
    assert simulation.round_index == 0


def noise_of(simulation: Simulation) -> Tensor:
    """What a round of zeros publishes: noise alone."""
    result = simulation.step()
    return result.summed.total


class Zeros(ReferenceTrainer):
    """Whatever the data and the settings, nothing is learnt."""

    def updates(self, *args: Any, **options: Any) -> Tensor:
        return torch.zeros_like(super().updates(*args, **options))


def changed_task(part: str) -> Task:
    """The task, with one thing different."""
    task = make_task(*SIZES)
    inputs, labels = task.devices.examples.inputs.clone(), task.devices.examples.labels.clone()
    starts = task.devices.starts.clone()
    if part == "input":
        inputs[-1, -1] += 1e-3
    elif part == "label":
        labels[0] = (labels[0] + 1) % 3
    elif part == "owner":
        starts[1] += 1
    devices = Devices(Examples(inputs, labels), starts, task.devices.names)
    return Task(task.name, devices, task.test, task.model)


@pytest.mark.parametrize("part", ["input", "label", "owner"])
def test_other_data_is_another_run(part: str) -> None:
    """Neither its state nor its noise is the same."""
    simulation, other = run("local"), run("local", task=changed_task(part))
    simulation.step()
    with pytest.raises(MismatchError, match="the state must be that of the same simulation"):
        other.load_state_dict(simulation.state_dict())
    run("local", task=changed_task("nothing")).load_state_dict(simulation.state_dict())
    noise = [
        noise_of(run("local", task=changed_task(one), trainer=Zeros()))
        for one in ("nothing", "nothing", part)
    ]
    assert torch.equal(noise[0], noise[1])
    assert not bool((noise[0] == noise[2]).any())


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": FedAvg(0.2, 4)},
        {"algorithm": FedAvg(0.1, 4, local_epochs=2)},
        {"server": ServerOptimizer(server_step=0.5)},
        {"hashes": "fixed"},
        {"settings": {"clip": 0.6, "noise_multiplier": 0.5 * 2.0 / 0.6}},  # the same deviation
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_runs_of_one_seed_have_noise_of_their_own(changes: dict[str, Any]) -> None:
    """And the same devices. If the noise were the same, differences would show the vectors."""
    one, same_one = run("local", trainer=Zeros()), run("local", trainer=Zeros())
    other = run("local", trainer=Zeros(), **changes)
    first = noise_of(one)
    assert torch.equal(first, noise_of(same_one))
    assert not bool((first == noise_of(other)).any())
    assert torch.equal(one.step().cohort, other.step().cohort)


def test_more_rounds_or_a_budget_do_not_change_the_noise() -> None:
    """The first rounds are the same release then, and not another one."""
    runs = [run("local"), run("local", rounds=20), run("local", budget=None)]
    totals = [one.step().published.total for one in runs]
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


def test_models_count() -> None:
    """Their architecture for both, their first weights for the noise."""

    def louder(seed: int) -> nn.Module:
        model = make_model(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + 2**-20)
        return model

    task = make_task(*SIZES)
    models = (make_model, make_model, louder, lambda seed: nn.Sequential(make_model(seed)))
    plain, again, weights, other = (
        run("local", task=Task(task.name, task.devices, task.test, model)) for model in models
    )
    assert (plain.identity, plain.noise_key) == (again.identity, again.noise_key)
    assert plain.identity == weights.identity != other.identity
    assert len({plain.noise_key, weights.noise_key, other.noise_key}) == 3


def test_digests_are_of_types_shapes_and_values() -> None:
    values = torch.arange(6.0)
    different = [
        (values,), (values.double(),), (values.bfloat16(),), (values - 1e-6,), (torch.zeros(0),),
        (values.reshape(2, 3),), (values.reshape(3, 2),), (),
        (values[:3], values[3:]), (values[:2], values[2:]),
    ]  # fmt: skip
    assert len({tensor_digest(*one) for one in different}) == len(different)
    sliced = torch.arange(12.0)[::2] / 2  # the same values, and not as they lie in memory
    table = values.reshape(2, 3)
    assert tensor_digest(sliced) == tensor_digest(values)
    assert tensor_digest(table.T.contiguous().T) == tensor_digest(table)
    assert not table.T.contiguous().T.is_contiguous()


ADAPTIVE = [name for name in RUNS if name.startswith("adaptive")]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_clip_moves_as_the_published_sums_say(name: str) -> None:
    simulation = run(name)
    method, model = simulation.method, simulation.state.model
    clips = [simulation.state.clip]
    for _ in range(6):
        published = simulation.step().published
        assert published.clip == clips[-1]
        method = method.after(published.total, count=published.count)
        assert simulation.state.clip == method.round_clip
        clips.append(simulation.state.clip)
        model = simulation.advance(model, published)  # as a device that follows does
        assert torch.equal(model.weights, simulation.weights)
    assert len(set(clips)) == 7
    assert clips[0] == 0.5
    assert simulation.method.round_clip == 0.5

"""Other settings, data or models: another run, whose state and noise are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diffsketch.errors import MismatchError
from diffsketch.privacy.noise import NoiseKey
from diffsketch.training.rounds import FedAvg
from diffsketch.training.server import ServerOptimizer
from diffsketch.training.simulation import Simulation, tensor_digest
from diffsketch.training.tasks import Devices, Examples, Task
from tests.training.reference import ReferenceTrainer, make_model, make_task
from tests.training.test_simulate_state import SIZES, simulate


def noise_of(simulation: Simulation) -> Tensor:
    """What a round of zeros publishes: noise alone."""
    result = simulation.step()
    assert result.summed.total is not None
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
    simulation, other = simulate("local"), simulate("local", task=changed_task(part))
    simulation.step()
    with pytest.raises(MismatchError, match="the state must be that of the same simulation"):
        other.load_state(simulation.state())
    simulate("local", task=changed_task("nothing")).load_state(simulation.state())
    noise = [
        noise_of(simulate("local", task=changed_task(one), trainer=Zeros()))
        for one in ("nothing", "nothing", part)
    ]
    assert torch.equal(noise[0], noise[1])
    assert not bool((noise[0] == noise[2]).any())


@pytest.mark.parametrize(
    "changes",
    [
        {"algorithm": FedAvg(0.2, 4)},
        {"algorithm": FedAvg(0.1, 5)},
        {"algorithm": FedAvg(0.1, 4, local_epochs=2)},
        {"server": ServerOptimizer(server_step=0.5)},
        {"hashes": "fixed"},
        {"importance": torch.arange(1.0, 9.0)},
        {"settings": {"clip": 0.6, "noise_multiplier": 0.5 * 2.0 / 0.6}},  # the same deviation
    ],
    ids=lambda changes: str(next(iter(changes))),
)
def test_runs_of_one_seed_have_noise_of_their_own(changes: dict[str, Any]) -> None:
    """And the same devices. If the noise were the same, differences would show the vectors."""
    one, same_one = simulate("local", trainer=Zeros()), simulate("local", trainer=Zeros())
    other = simulate("local", trainer=Zeros(), **changes)
    first = noise_of(one)
    assert torch.equal(first, noise_of(same_one))
    assert not bool((first == noise_of(other)).any())
    assert torch.equal(one.step().cohort, other.step().cohort)


def test_more_rounds_or_a_budget_do_not_change_the_noise() -> None:
    """The first rounds are the same release then, and not another one."""
    runs = [simulate("local"), simulate("local", rounds=20), simulate("local", budget=None)]
    totals = [run.step().published.total for run in runs]
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])


def test_given_noise_keys() -> None:
    """One key has the same noise whatever else is different: that is what it must not be used for.

    A state belongs to its key.
    """
    key, other = NoiseKey.from_integer(1), NoiseKey.from_integer(2)
    first, second = (
        noise_of(simulate("local", trainer=Zeros(), noise_key=key, algorithm=FedAvg(rate, 4)))
        for rate in (0.1, 0.2)
    )
    assert torch.equal(first, second)
    simulation = simulate("local", noise_key=key)
    simulate("local", noise_key=key).load_state(simulation.state())
    for wrong in (None, other):
        with pytest.raises(MismatchError, match="same simulation"):
            simulate("local", noise_key=wrong).load_state(simulation.state())
    assert key.secret.hex() not in simulation.state()["settings"]


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
        simulate("local", task=Task(task.name, task.devices, task.test, model)) for model in models
    )
    assert (plain.identity, plain.noise_key) == (again.identity, again.noise_key)
    assert plain.identity == weights.identity
    assert plain.noise_key != weights.noise_key
    assert plain.identity != other.identity
    assert plain.noise_key != other.noise_key


def test_digests_are_of_types_shapes_and_values() -> None:
    values = torch.arange(6.0)
    different = [
        (values,),
        (values.double(),),
        (values.reshape(2, 3),),
        (values.reshape(3, 2),),
        (values + 0.0 * values[0] - 1e-6,),
        (values[:3], values[3:]),
        (values[:2], values[2:]),
        (values.bfloat16(),),
        (torch.zeros(0),),
        (),
    ]
    assert len({tensor_digest(*one) for one in different}) == len(different)
    sliced = torch.arange(12.0)[::2] / 2  # the same values, and not as they lie in memory
    table = values.reshape(2, 3)
    assert tensor_digest(sliced) == tensor_digest(values)
    assert tensor_digest(table.T.contiguous().T) == tensor_digest(table)
    assert not table.T.contiguous().T.is_contiguous()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_digests_are_the_same_on_cuda() -> None:
    values = torch.arange(6.0)
    assert tensor_digest(values.cuda()) == tensor_digest(values)

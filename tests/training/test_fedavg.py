"""FedAvg is the textbook's, if nothing is compressed; devices catch up; bytes by hand."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.training.rounds import device_batches
from diffsketch.training.rounds import FedAvg
from diffsketch.training.sampling import UniformSampler
from diffsketch.training.server import FetchSGD, ModelState, ServerOptimizer
from diffsketch.training.simulation import RoundResult, Simulation
from diffsketch.training.tasks import Batches
from tests.training.reference import DIM, ReferenceTrainer, make_task


def simulate(method: Method, **options: object) -> Simulation:
    settings: dict[str, object] = {
        "algorithm": FedAvg(0.1, 4, local_epochs=2),
        "rounds": 30,
        "seed": 3,
        "sampler": UniformSampler(6, 2, seed=3),
        **options,
    }
    task = make_task(6, 9, 4, 5, 7, 6)
    return Simulation(task, method=method, trainer=ReferenceTrainer(), **settings)  # type: ignore[arg-type]


def test_is_the_textbook() -> None:
    """Every device trains a copy of the model on its own, and the copies are averaged."""
    simulation = simulate(Uncompressed(DIM))
    devices, trainer = simulation.task.devices, ReferenceTrainer()
    weights = simulation.weights
    for index in range(8):
        result = simulation.step()
        copies = []
        for device in result.cohort.tolist():
            batches: Batches = device_batches(
                devices, torch.tensor([device]), seed=3, round_index=index, batch_size=4, epochs=2
            )
            moved = trainer.updates(weights, devices.examples, batches, learning_rate=0.1)
            copies.append(weights + moved[0])
        weights = torch.stack(copies).mean(dim=0)
        assert len(copies) == 2
        assert torch.allclose(simulation.weights, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "server", [ServerOptimizer(), ServerOptimizer(momentum=0.9, update_clip=0.1, schedule="cosine")]
)
def test_device_that_missed_rounds_has_the_servers_model(server: ServerOptimizer) -> None:
    """It applies what it missed, message by message, and has the same bits."""
    simulation = simulate(PlainSketch(DIM, 3, 5), server=server)
    at_device: Model = simulation.model
    kept: list[RoundResult] = []
    caught_up = 0
    for _ in range(20):
        index = simulation.round_index
        result = simulation.step()
        if 0 in result.cohort.tolist():
            for missed in kept:
                at_device = simulation.advance(at_device, missed.published)
            caught_up += len(kept)
            kept = []
            # What it holds is what the server held when the round began.
            replay = simulate(PlainSketch(DIM, 3, 5), server=server)
            for _ in range(index):
                replay.step()
            assert torch.equal(at_device.weights, replay.weights)
        kept.append(result)
    assert caught_up > 8


def test_extracted_coordinates_are_all_that_a_device_needs() -> None:
    """FetchSGD: the model before plus `top_k` numbers is the model after, to the bit."""
    simulation = simulate(PlainSketch(DIM, 3, 5), server=FetchSGD(4), hashes="fixed")
    for _ in range(5):
        before = simulation.model
        result = simulation.step()
        followed = simulation.advance(before, result.published)
        assert torch.equal(followed.weights, simulation.weights)
        assert int((followed.weights != before.weights).sum()) <= 4


def test_bytes_by_hand() -> None:
    """Up: two tables of 2 * 3 cells. Down: per device what it missed, or 48 + 4 * 21 bytes."""
    simulation = simulate(PlainSketch(DIM, 2, 3))
    table, model, synced = 48 + 4 * 6, 48 + 4 * 21, [0] * 6
    downloads = set()
    for index in range(30):
        result = simulation.step()
        expected = 0
        for device in result.cohort.tolist():
            missed = index - synced[device]
            downloads.add(min(missed * table, model))
            expected += min(missed * table, model)
            synced[device] = index
        assert (result.bytes_up, result.bytes_down) == (2 * table, expected)
    assert downloads == {0, table, model}  # two rounds cost more than the model here
    with pytest.raises(ArgumentError, match="round_index must be below rounds=30"):
        simulation.step()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": -1.0}, "learning_rate must be a number > 0"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"local_epochs": 0}, "local_epochs must be"),
        ({"local_epochs": 1.5}, "local_epochs must be an int"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        FedAvg(**{"learning_rate": 0.1, "batch_size": 10, **options})  # type: ignore[arg-type]

"""Distributed SGD is the textbook's, if nothing is compressed."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from diffsketch.errors import ArgumentError
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.training.clients import Downloads
from diffsketch.training.rounds import one_batch
from diffsketch.training.rounds import DistributedSGD
from diffsketch.training.simulation import Simulation
from tests.training.reference import DIM, ReferenceTrainer, make_model, make_task


def test_is_the_textbook() -> None:
    """One optimiser steps on the mean of the workers' losses, on the union of their batches."""
    task, rounds = make_task(6, 9, 3), 12
    simulation = Simulation(
        task,
        method=Uncompressed(DIM),
        trainer=ReferenceTrainer(),
        algorithm=DistributedSGD(0.3, 4),
        rounds=rounds,
        seed=7,
    )
    model = make_model(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for index in range(rounds):
        batches = one_batch(task.devices, torch.arange(3), seed=7, round_index=index, batch_size=4)
        assert batches.present is not None
        losses = []
        for worker in range(3):
            chosen = batches.indices[worker, 0][batches.present[worker, 0]]
            scores = model(task.devices.examples.inputs[chosen])
            losses.append(cross_entropy(scores, task.devices.examples.labels[chosen]))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        simulation.step()
        expected = nn.utils.parameters_to_vector(model.parameters()).detach()
        assert torch.allclose(simulation.weights, expected, rtol=1e-5, atol=1e-6)


def test_sketched_gradients_train() -> None:
    task = make_task(20, 20, 20)
    simulation = Simulation(
        task,
        method=PlainSketch(DIM, 3, 5),
        trainer=ReferenceTrainer(),
        algorithm=DistributedSGD(0.1, 10),
        rounds=150,
    )
    before = simulation.evaluate()
    for _ in range(150):
        simulation.step()
    after = simulation.evaluate()
    assert after[0] < before[0] / 2
    assert after[1] > 0.9


def test_bytes_by_hand() -> None:
    """Three workers send a table of 5 * 7 cells each, and all of them get the sum back."""
    simulation = Simulation(
        make_task(4, 4, 4),
        method=PlainSketch(DIM, 5, 7),
        trainer=ReferenceTrainer(),
        algorithm=DistributedSGD(0.1, 4),
        rounds=2,
    )
    table = 48 + 4 * 5 * 7
    first, second = simulation.step(), simulation.step()
    assert (first.bytes_up, first.bytes_down) == (3 * table, 3 * table)
    assert (second.bytes_up, second.bytes_down) == (3 * table, 3 * table)
    assert (simulation.bytes_up, simulation.bytes_down) == (6 * table, 6 * table)


def test_bytes_of_shared_masks() -> None:
    algorithm = DistributedSGD(0.1, 4, correction="shared")
    downloads = Downloads(100, 1000)
    synced = torch.zeros(3, dtype=torch.int64).numpy()
    # A bit a coordinate, 21 in 3 bytes; the sum of three masks takes 2 bits each, 42 in 6 bytes.
    assert algorithm.bytes_up(100, 3, 21) == 3 * (100 + 48 + 3)
    down, _ = algorithm.bytes_down(downloads, synced, cohort=torch.arange(3), round_index=5, dim=21)
    assert down == 3 * (100 + 48 + 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate must be a number > 0"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"batch_size": 2.5}, "batch_size must be an int"),
        ({"correction": "on"}, "correction must be one of"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DistributedSGD(**{"learning_rate": 0.1, "batch_size": 10, **options})  # type: ignore[arg-type]

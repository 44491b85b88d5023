"""Rounds: the textbook's without compression, batches, bytes, error correction, the server."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.privacy.claim import NoClaim
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.rounds import (
    Correction,
    DistributedSGD,
    FedAvg,
    ModelState,
    Published,
    Schedule,
    ServerOptimizer,
    corrected,
    kept_half,
    relative_drift,
    scaled,
)
from diffsketch.training.sampling import UniformSampler, draw_batches
from diffsketch.training.simulation import Simulation
from diffsketch.training.state import RoundResult
from tests.helpers.refusals import refused
from tests.training.reference import (
    DEVICES,
    DIM,
    ReferenceTrainer,
    make_model,
    make_task,
    simulate,
    updates_of,
)

SKETCH = PlainSketch(DIM, 3, 5)
SEED = SketchKey.from_integer(5).seed(0)
WIDE = 40  # weights of the server's rules
PLAIN = Uncompressed(WIDE)


def sgd(*sizes: int, method: Method = SKETCH, **options: Any) -> Simulation:
    settings: dict[str, Any] = {"algorithm": DistributedSGD(0.1, 10), "sampler": None, **options}
    return simulate(method, make_task(*sizes), **settings)


def test_sgd_is_the_textbook() -> None:
    """One optimiser steps on the mean of the workers' losses, on the union of their batches."""
    simulation = sgd(6, 9, 3, method=Uncompressed(DIM), algorithm=DistributedSGD(0.3, 4), seed=7)
    devices, model = simulation.task.devices, make_model(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for index in range(12):
        batches = draw_batches(
            devices, torch.arange(3), seed=7, round_index=index, batch_size=4, epochs=None
        )
        assert batches.present is not None
        losses = []
        for worker in range(3):
            chosen = batches.indices[worker, 0][batches.present[worker, 0]]
            scores = model(devices.examples.inputs[chosen])
            losses.append(cross_entropy(scores, devices.examples.labels[chosen]))
        optimizer.zero_grad()
        torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        simulation.step()
        expected = nn.utils.parameters_to_vector(model.parameters()).detach()
        assert torch.allclose(simulation.weights, expected, rtol=1e-5, atol=1e-6)


def test_fedavg_is_the_textbook() -> None:
    """Every device trains a copy of the model on its own, and the copies are averaged."""
    simulation = simulate(algorithm=FedAvg(0.1, 4, local_epochs=2))
    weights = simulation.weights
    for index in range(8):
        result = simulation.step()
        own = [updates_of(simulation, weights, [one], index)[0] for one in result.cohort.tolist()]
        assert len(own) == 3
        weights = weights + torch.stack(own).mean(dim=0)
        assert torch.allclose(simulation.weights, weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server": ServerOptimizer(momentum=0.9, update_clip=0.1, schedule="cosine")},
    ],
)
def test_device_that_missed_rounds_has_the_servers_model(options: dict[str, Any]) -> None:
    """It applies what it missed, message by message, and has the same bits."""
    simulation = simulate(SKETCH, **options)
    at_device, kept, caught_up = simulation.state.model, list[RoundResult](), 0
    for _ in range(20):
        before = simulation.state.model
        result = simulation.step()
        if 0 in result.cohort.tolist():
            for missed in kept:
                at_device = simulation.advance(at_device, missed.published)
            caught_up, kept = caught_up + len(kept), []
            assert torch.equal(at_device.weights, before.weights)
        kept.append(result)
    assert caught_up > 8


def test_bytes_of_fedavg_by_hand() -> None:
    """Up: three tables of 2 * 3 cells. Down: per device what it missed, or 8 + 4 * 21 bytes."""
    simulation = simulate(PlainSketch(DIM, 2, 3), rounds=30)
    table, model, synced = 6 + 4 * 6, 8 + 4 * 21, [0] * DEVICES
    costs = set()
    for index in range(30):
        result = simulation.step()
        missed = [index - synced[device] for device in result.cohort.tolist()]
        down = [min(rounds * table, model) for rounds in missed]
        assert (result.bytes_up, result.bytes_down) == (3 * (table - 4), sum(down))
        assert result.downloads == sum(rounds > 0 for rounds in missed)
        for device in result.cohort.tolist():
            synced[device] = index
        costs |= set(down)
    assert costs == {0, table, 2 * table, 3 * table, model}  # four rounds cost more than it
    refused(ArgumentError, "round_index must be below rounds=30", simulation.step)


@pytest.mark.parametrize(("correction", "up", "down"), [("off", 0, 0), ("shared", 4 + 3, 8 + 6)])
def test_bytes_of_sgd_by_hand(correction: Correction, up: int, down: int) -> None:
    """Three workers send a table of 5 * 7 cells each, and all of them get the sum back.

    A mask has a bit a coordinate, 21 in 3 bytes; a sum of three takes 2 bits each, 42 in 6 bytes.
    """
    algorithm = DistributedSGD(0.1, 4, correction=correction)
    simulation = sgd(4, 4, 4, method=PlainSketch(DIM, 5, 7), algorithm=algorithm)
    table = 4 + 4 * 5 * 7
    for rounds in (1, 2):
        result = simulation.step()
        assert (result.bytes_up, result.bytes_down) == (3 * (table + up), 3 * (table + 4 + down))
        assert (simulation.bytes_up, simulation.bytes_down) == (
            rounds * result.bytes_up, rounds * result.bytes_down,
        )  # fmt: skip
        assert result.downloads == 3


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (DistributedSGD, {"learning_rate": 0.0}, "learning_rate must be a number > 0"),
        (DistributedSGD, {"batch_size": 2.5}, "batch_size must be an int"),
        (DistributedSGD, {"correction": "on"}, "correction must be one of off, shared, drift, got"),
        (FedAvg, {"batch_size": 0}, "batch_size must be"),
        (FedAvg, {"local_epochs": 0}, "local_epochs must be"),
        (FedAvg, {"local_epochs": 1.5}, "local_epochs must be an int"),
        (ServerOptimizer, {"server_step": 0.0}, "server_step must be a number > 0"),
        (
            ServerOptimizer,
            {"schedule": "step"},
            "schedule must be one of constant, sqrt, linear, cosine, got",
        ),
        (ServerOptimizer, {"momentum": 1.0}, "momentum must be in"),
        (ServerOptimizer, {"momentum": math.nan}, "momentum must be in"),
        (ServerOptimizer, {"update_clip": -1.0}, "update_clip must be a number > 0"),
    ],
)
def test_bad_options(kind: Any, options: dict[str, object], message: str) -> None:
    usual = {} if kind is ServerOptimizer else {"learning_rate": 0.1, "batch_size": 10}
    refused(ArgumentError, message, kind, **{**usual, **options})


ROUNDS = 120


def correcting(correction: Correction, method: Method = SKETCH, **options: Any) -> Simulation:
    algorithm = DistributedSGD(0.1, 10, correction=correction)
    return sgd(
        *[20] * 6, method=method, algorithm=algorithm, **{"rounds": ROUNDS, "seed": 0, **options}
    )


def accuracy_of(simulation: Simulation) -> float:
    for _ in range(ROUNDS):
        simulation.step()
    return simulation.evaluate()[1]


def test_half_is_kept_by_hand() -> None:
    mean = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    vectors = torch.tensor([[1.0, 9.0, 3.5, -4.0, 5.1], [0.0, 2.0, 3.0, 9.0, 5.0]])
    kept = kept_half(mean, vectors)
    assert kept.tolist() == [[True, False, True, False, True], [False, True, True, False, True]]
    # Of equal gaps the first ones are dropped.
    assert kept_half(torch.zeros(5), torch.ones(1, 5)).tolist() == [[False] * 2 + [True] * 3]
    shared = corrected(mean, vectors, "shared")
    assert shared.tolist() == [0.5, 1.0, 3.0, 0.0, 5.0]
    assert corrected(mean, vectors, "drift").tolist() == [
        [1.0, 0.0, 3.0, 0.0, 5.0],
        [0.0, 2.0, 3.0, 0.0, 5.0],
    ]


def test_worker_without_a_mask() -> None:
    mean = torch.tensor([1.0, 2.0, 3.0, 4.0])
    vectors = torch.tensor([[1.0, 9.0, 3.5, -4.0], [float("nan"), 2.0, 3.0, 9.0]])
    assert corrected(mean, vectors, "shared").tolist() == [1.0, 0.0, 3.0, 0.0]
    assert corrected(mean, vectors, "drift").tolist() == [[1.0, 0.0, 3.0, 0.0], mean.tolist()]


def test_models_drift_apart_with_own_masks() -> None:
    simulation = correcting("drift")
    first = simulation.step()
    early = simulation.state.model.weights
    drifts = [simulation.step().drift for _ in range(ROUNDS - 1)]
    late = simulation.state.model.weights
    assert late.shape == (6, DIM)
    assert torch.equal(simulation.weights, late.mean(dim=0))
    assert first.drift == relative_drift(early) not in (0.0, None)
    assert drifts[-1] == relative_drift(late)
    distances = [float((one - one.mean(dim=0)).norm()) for one in (early, late)]
    assert distances[1] > 5 * distances[0]
    each = [ReferenceTrainer().evaluate(own, simulation.task.test)[1] for own in late]
    assert simulation.evaluate()[1] == pytest.approx(sum(each) / 6)


def test_models_stay_in_sync_with_shared_masks() -> None:
    simulation = correcting("shared")
    assert accuracy_of(simulation) > 0.6
    assert simulation.drift is None
    assert simulation.state.model.weights.shape == (DIM,)
    with pytest.raises(
        ArgumentError, match="vectors must be given with correction=shared"
    ):  # masks are needed as well
        simulation.advance(simulation.state.model, Published(torch.zeros(3, 5), 1, SEED, 0))


def test_relative_drift_by_hand() -> None:
    models = torch.tensor([[3.0, 4.0 + 1.0], [3.0, 4.0 - 1.0]])  # each 1 away from a norm of 5
    assert relative_drift(models) == pytest.approx(0.2)
    assert relative_drift(torch.zeros(3, 2)) == 0.0


@pytest.mark.parametrize("correction", ["shared", "drift"])
def test_no_claim_is_left(correction: Correction) -> None:
    private = SketchGaussian(DIM, 3, 5, clip=1.0, noise_multiplier=2.0)
    assert not isinstance(correcting("off", private).step().claim, NoClaim)
    simulation = correcting(correction, private)
    claim = simulation.step().claim
    assert isinstance(claim, NoClaim)
    assert "raw gradients" in str(claim)
    assert float(simulation.epsilon(1e-5)) == float("inf")


def test_corrections_that_are_refused() -> None:
    with pytest.raises(ArgumentError, match="sampler must be of all devices"):
        correcting("shared", sampler=UniformSampler(6, 2, seed=0))


def vectors(count: int) -> Tensor:
    return torch.randn(count, WIDE, generator=torch.Generator().manual_seed(1))


def published(total: Tensor, count: int | float = 1, round_index: int = 0) -> Published:
    return Published(total, count, SEED, round_index)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_momentum_is_that_of_torch(momentum: float) -> None:
    start, *gradients = vectors(6)
    parameter = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    rule = ServerOptimizer(momentum=momentum)
    model = rule.start(start)
    assert bool(model.memory) == bool(momentum)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        model = rule.advance(model, published(gradient), method=PLAIN, step=-0.1)
    assert torch.allclose(model.weights, parameter.detach(), rtol=1e-6, atol=1e-6)


def test_nothing_is_changed_in_place() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer(momentum=0.9, update_clip=0.1)
    first = rule.start(weights)
    copies = weights.clone(), total.clone(), first.memory["momentum"].clone()
    rule.advance(first, published(total), method=PLAIN, step=1.0)
    assert torch.equal(weights, copies[0])
    assert torch.equal(total, copies[1])
    assert torch.equal(first.memory["momentum"], copies[2])


def test_clip_limits_the_mean() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer(update_clip=0.5)
    moved = rule.advance(ModelState(weights), published(total, 2), method=PLAIN, step=1.0)
    change = moved.weights - weights
    assert float(change.norm()) == pytest.approx(0.5, rel=1e-5)
    assert torch.allclose(change / change.norm(), total / total.norm(), atol=1e-5)
    small = 0.01 * total
    moved = rule.advance(ModelState(weights), published(small), method=PLAIN, step=1.0)
    assert torch.equal(moved.weights, weights + small)


@dataclass(frozen=True)
class Signs(ServerOptimizer):
    """A rule that moves every weight by the step."""

    def apply(self, model: ModelState, mean: Tensor, *, step: float) -> ModelState:
        return ModelState(model.weights + step * mean.sign())


def test_a_new_rule_is_one_function() -> None:
    """It gets the mean as others do: decoded, corrected and clipped."""
    weights, total = vectors(2)
    moved = Signs(update_clip=0.1).advance(
        ModelState(weights), published(total, 4), method=PLAIN, step=0.5, correct=torch.neg
    )
    assert torch.equal(moved.weights, weights - 0.5 * total.sign())


def test_scaled_rows_on_their_own() -> None:
    both = scaled(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    assert torch.allclose(both, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    refused(ArgumentError, "finite", scaled, torch.tensor([1.0, math.nan]), 1.0)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("constant", [2.0, 2.0, 2.0, 2.0]),
        ("sqrt", [2.0, 2 / math.sqrt(2), 2 / math.sqrt(3), 1.0]),
        ("linear", [2.0, 1.5, 1.0, 0.5]),
        ("cosine", [2.0, 1 + math.sqrt(0.5), 1.0, 1 - math.sqrt(0.5)]),
    ],
)
def test_schedules(schedule: Schedule, expected: list[float]) -> None:
    rule = ServerOptimizer(server_step=2.0, schedule=schedule)
    assert [rule.factor(index, 4) for index in range(4)] == pytest.approx(expected)
    if schedule in ("linear", "cosine"):
        refused(ArgumentError, "below rounds=4", rule.factor, 4, 4)


def test_expected_counts_divide_the_sum() -> None:
    total, rule, start = vectors(1)[0], ServerOptimizer(), ModelState(torch.zeros(WIDE))
    moved = rule.advance(start, published(total, 2.5), method=PLAIN, step=1.0)
    assert torch.allclose(moved.weights, total / 2.5)
    sketch = PlainSketch(WIDE, 3, 5, combine="median")
    table = sketch.sketch.encode(total, SEED)
    moved = rule.advance(start, published(table, 2.5), method=sketch, step=1.0)
    assert torch.equal(moved.weights, sketch.decode(table, SEED, count=1) / 2.5)


def test_bytes() -> None:
    assert ServerOptimizer().model_bytes(7850) == 8 + 4 * 7850
    # Without the momentum a device that takes the model could not apply what comes after it.
    assert ServerOptimizer(momentum=0.9).model_bytes(7850) == 2 * (8 + 4 * 7850)

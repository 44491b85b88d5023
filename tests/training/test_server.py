"""The server's step: the textbook's with the defaults, and each option on its own."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.server import ModelState, Published, Schedule, ServerOptimizer, scaled

DIM = 12
METHOD = Uncompressed(DIM)
SEED = SketchKey.from_integer(0).seed(0)


def vectors(count: int) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(0))


def published(total: Tensor, count: int | float = 1, round_index: int = 0) -> Published:
    return Published(total, count, SEED, round_index)


def test_plain_step_is_the_mean() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer()
    model = rule.advance(rule.start(weights, METHOD), published(total, 4), method=METHOD, step=1.0)
    assert torch.equal(model.weights, weights + total / 4)
    assert not model.memory
    assert rule.factor(17, 20) == 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
def test_momentum_is_that_of_torch(momentum: float) -> None:
    start, *gradients = vectors(6)
    parameter = start.clone().requires_grad_()
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=momentum)
    rule = ServerOptimizer(momentum=momentum)
    model = rule.start(start, METHOD)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
        model = rule.advance(model, published(gradient), method=METHOD, step=-0.1)
    assert torch.allclose(model.weights, parameter.detach(), rtol=1e-6, atol=1e-6)


def test_nothing_is_changed_in_place() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer(momentum=0.9, update_clip=0.1)
    first = rule.start(weights, METHOD)
    copies = weights.clone(), total.clone(), first.memory["momentum"].clone()
    rule.advance(first, published(total), method=METHOD, step=1.0)
    assert torch.equal(weights, copies[0])
    assert torch.equal(total, copies[1])
    assert torch.equal(first.memory["momentum"], copies[2])


def test_clip_limits_the_mean() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer(update_clip=0.5)
    moved = rule.advance(Model(weights), published(total, 2), method=METHOD, step=1.0)
    change = moved.weights - weights
    assert float(change.norm()) == pytest.approx(0.5, rel=1e-5)
    assert torch.allclose(change / change.norm(), total / total.norm(), atol=1e-5)
    small = 0.01 * total
    moved = rule.advance(Model(weights), published(small), method=METHOD, step=1.0)
    assert torch.equal(moved.weights, weights + small)


def test_scaled_rows_on_their_own() -> None:
    both = scaled(torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]), 1.0)
    assert torch.allclose(both, torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))
    with pytest.raises(ArgumentError, match="finite"):
        scaled(torch.tensor([1.0, math.nan]), 1.0)


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


def test_schedules_end() -> None:
    for schedule in ("linear", "cosine"):
        with pytest.raises(ArgumentError, match="below rounds=4"):
            ServerOptimizer(schedule=schedule).factor(4, 4)


def test_expected_counts_divide_the_sum() -> None:
    total = vectors(1)[0]
    assert torch.allclose(published(total, 2.5).mean(METHOD), total / 2.5)
    sketch = PlainSketch(DIM, 3, 5, combine="median")
    table = sketch.sketch.encode(total, SEED)
    expected = sketch.decode(table, SEED, count=1) / 2.5
    assert torch.equal(published(table, 2.5).mean(sketch), expected)


def test_bytes() -> None:
    sketch = PlainSketch(7850, 7, 22)
    assert ServerOptimizer().round_bytes(sketch) == 48 + 4 * 7 * 22
    assert ServerOptimizer().model_bytes(7850) == 48 + 4 * 7850
    # Without the momentum a device that takes the model could not apply what comes after it.
    assert ServerOptimizer(momentum=0.9).model_bytes(7850) == 2 * (48 + 4 * 7850)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"server_step": 0.0}, "server_step must be a number > 0"),
        ({"schedule": "step"}, "schedule must be one of"),
        ({"momentum": 1.0}, "momentum must be in"),
        ({"momentum": math.nan}, "momentum must be in"),
        ({"update_clip": -1.0}, "update_clip must be a number > 0"),
        ({"averaging": 1.0}, "averaging must be in"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        ServerOptimizer(**options)  # type: ignore[arg-type]

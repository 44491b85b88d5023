"""Server rules: the textbook's step, each option on its own, and FetchSGD on plain vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.plain import PlainSketch, Uncompressed
from diffsketch.privacy.simulated_noise import CohortNoise, NoiseKey
from diffsketch.sketch.hashing import SketchKey, columns_and_signs
from diffsketch.training.rounds import (
    SERVER_RULES,
    FetchSGD,
    ModelState,
    Published,
    Schedule,
    ServerOptimizer,
    scaled,
)

DIM = 40
WIDE = PlainSketch(DIM, 1, 64)  # no two coordinates share a cell, so queries are exact
SMALL = PlainSketch(DIM, 3, 16)
METHOD = Uncompressed(DIM)
SEED = SketchKey.from_integer(5).seed(0)


def vectors(count: int) -> Tensor:
    return torch.randn(count, DIM, generator=torch.Generator().manual_seed(1))


def published(total: Tensor, count: int | float = 1, round_index: int = 0) -> Published:
    return Published(total, count, SEED, round_index)


def test_plain_step_is_the_mean() -> None:
    weights, total = vectors(2)
    rule = ServerOptimizer()
    model = rule.advance(rule.start(weights, METHOD), published(total, 4), method=METHOD, step=1.0)
    assert torch.equal(model.weights, weights + total / 4)
    assert not model.memory
    assert rule.factor(17, 20) == 1.0


@pytest.mark.parametrize("momentum", [0.0, 0.9])
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
    moved = rule.advance(ModelState(weights), published(total, 2), method=METHOD, step=1.0)
    change = moved.weights - weights
    assert float(change.norm()) == pytest.approx(0.5, rel=1e-5)
    assert torch.allclose(change / change.norm(), total / total.norm(), atol=1e-5)
    small = 0.01 * total
    moved = rule.advance(ModelState(weights), published(small), method=METHOD, step=1.0)
    assert torch.equal(moved.weights, weights + small)


@dataclass(frozen=True)
class Signs(ServerOptimizer):
    """A rule that moves every weight by the step."""

    def apply(self, model: ModelState, mean: Tensor, *, step: float, **_: Any) -> ModelState:
        return ModelState(model.weights + step * mean.sign())


def test_a_new_rule_is_one_function() -> None:
    """It gets the mean as others do: decoded, corrected and clipped."""
    weights, total = vectors(2)
    moved = Signs(update_clip=0.1).advance(
        ModelState(weights), published(total, 4), method=METHOD, step=0.5, correct=torch.neg
    )
    assert torch.equal(moved.weights, weights - 0.5 * total.sign())
    assert issubclass(SERVER_RULES["momentum"], ServerOptimizer)


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
    total, rule, start = vectors(1)[0], ServerOptimizer(), ModelState(torch.zeros(DIM))
    moved = rule.advance(start, published(total, 2.5), method=METHOD, step=1.0)
    assert torch.allclose(moved.weights, total / 2.5)
    sketch = PlainSketch(DIM, 3, 5, combine="median")
    table = sketch.sketch.encode(total, SEED)
    moved = rule.advance(start, published(table, 2.5), method=sketch, step=1.0)
    assert torch.equal(moved.weights, sketch.decode(table, SEED, count=1) / 2.5)


def test_bytes() -> None:
    sketch = PlainSketch(7850, 7, 22)
    assert ServerOptimizer().round_bytes(sketch) == 8 + 4 * 7 * 22
    assert ServerOptimizer().model_bytes(7850) == 8 + 4 * 7850
    # Without the momentum a device that takes the model could not apply what comes after it.
    assert ServerOptimizer(momentum=0.9).model_bytes(7850) == 2 * (8 + 4 * 7850)
    assert FetchSGD(10).round_bytes(SMALL) == 8 + 10 * 8
    assert FetchSGD(10).model_bytes(DIM) == 8 + 4 * DIM


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


def sketched(method: PlainSketch, vector: Tensor, count: int = 1) -> Published:
    return Published(method.sketch.encode(vector * count, SEED), count, SEED, 0)


def dense_reference(
    rounds: list[Tensor], *, top_k: int, momentum: float, step: float
) -> tuple[Tensor, Tensor]:
    """The same on vectors: momentum, accumulated error, top-k, and forgetting what was sent."""
    weights, error, velocity = torch.zeros(DIM), torch.zeros(DIM), torch.zeros(DIM)
    for mean in rounds:
        velocity = momentum * velocity + mean
        error = error + step * velocity
        chosen = error.abs().topk(top_k).indices
        weights[chosen] += error[chosen]
        error[chosen], velocity[chosen] = 0.0, 0.0
    return weights, error


@pytest.mark.parametrize(("momentum", "top_k"), [(0.0, 1), (0.9, 7), (0.9, DIM)])
def test_fetch_agrees_with_plain_vectors(momentum: float, top_k: int) -> None:
    rule = FetchSGD(top_k, table_momentum=momentum)
    model = rule.start(torch.zeros(DIM), WIDE)
    rounds = list(vectors(8))
    for mean in rounds:
        model = rule.advance(model, sketched(WIDE, mean, 5), method=WIDE, step=-0.1)
    weights, error = dense_reference(rounds, top_k=top_k, momentum=momentum, step=-0.1)
    assert torch.allclose(model.weights, weights, atol=1e-5)
    assert torch.allclose(model.memory["error"], WIDE.sketch.encode(error, SEED), atol=1e-5)


def test_zeroes_exactly_the_hit_cells() -> None:
    rule, mean = FetchSGD(3, table_momentum=0.5), vectors(1)[0]
    first = rule.start(torch.zeros(DIM), SMALL)
    model = rule.advance(first, sketched(SMALL, mean), method=SMALL, step=1.0)
    table = SMALL.sketch.encode(mean, SEED)
    estimates = SMALL.decode(table, SEED, count=1)
    chosen = model.weights.nonzero().flatten()
    assert set(chosen.tolist()) == set(estimates.abs().topk(3).indices.tolist())
    assert torch.equal(model.weights[chosen], estimates[chosen])
    columns, _ = columns_and_signs(chosen.numpy(), SEED, layout=SMALL.sketch.layout)
    hit = torch.zeros(3, 16, dtype=torch.bool)
    for row in range(3):
        hit[row, torch.from_numpy(columns[row])] = True
    for name in ("error", "velocity"):
        assert bool((model.memory[name][hit] == 0).all())
        assert torch.equal(model.memory[name][~hit], table[~hit])
    assert bool((table[~hit] != 0).any())
    assert bool((first.memory["error"] == 0).all())  # not changed in place


def test_what_is_not_extracted_is_kept() -> None:
    """A coordinate that is second each time comes through in the end."""
    rule, mean = FetchSGD(1), torch.zeros(DIM)
    mean[3], mean[8] = 1.0, 0.6
    model = rule.start(torch.zeros(DIM), WIDE)
    for _ in range(2):
        model = rule.advance(model, sketched(WIDE, mean), method=WIDE, step=1.0)
    assert model.weights[[3, 8]].tolist() == pytest.approx([1.0, 1.2])


def test_fetch_clips_by_the_estimated_norm() -> None:
    rule, mean = FetchSGD(DIM, update_clip=0.5), vectors(1)[0]
    model = rule.advance(
        rule.start(torch.zeros(DIM), WIDE), sketched(WIDE, mean), method=WIDE, step=1.0
    )
    assert float(model.weights.norm()) == pytest.approx(0.5, rel=1e-5)


def test_fetch_refusals() -> None:
    with pytest.raises(ArgumentError, match="method whose messages are tables, got method='none'"):
        FetchSGD(3).check_options(Uncompressed(DIM), step=1.0, fresh=False)
    with pytest.raises(ArgumentError, match="hashes='fixed'"):
        FetchSGD(3).check_options(SMALL, step=1.0, fresh=True)
    with pytest.raises(ArgumentError, match="top_k must be at most dim=40"):
        FetchSGD(41).check_options(SMALL, step=1.0, fresh=False)
    with pytest.raises(ArgumentError, match="top_k must be >= 1"):
        FetchSGD(0)
    with pytest.raises(ArgumentError, match="table_momentum must be in"):
        FetchSGD(1, table_momentum=1.0)
    FetchSGD(3).check_options(SMALL, step=1.0, fresh=False)


@pytest.mark.parametrize("trust", ["local", "central", "distributed"])
def test_whole_numbers_are_the_tables_that_they_stand_for(trust: str) -> None:
    """With hardly any noise: what is extracted is that of the bare tables."""
    settings = {"clip": 50.0, "noise_multiplier": 1e-4, "cohort": 4, "trust": trust}
    noisy = SketchGaussian(DIM, 3, 16, **settings)  # type: ignore[arg-type]
    bare = PlainSketch(DIM, 3, 16)
    vectors = torch.randn(4, DIM, generator=torch.Generator().manual_seed(1))
    seed, rule = SketchKey.from_integer(2).seed(0), FetchSGD(5)
    found = []
    for method in (bare, noisy):
        noise = CohortNoise(NoiseKey.from_integer(1), range(4), round_index=0)
        server = CohortNoise(NoiseKey.from_integer(1), [9], round_index=0)
        total = method.publish(method.encode(vectors, seed, noise).messages.sum(dim=0), server)
        rule.check_options(method, step=1.0, fresh=False)
        model = rule.start(torch.zeros(DIM), method)
        found.append(rule.advance(model, Published(total, 4, seed, 0), method=method, step=1.0))
    torch.testing.assert_close(found[1].weights, found[0].weights, atol=0.3, rtol=0.1)
    assert float(found[0].weights.abs().max()) > 1

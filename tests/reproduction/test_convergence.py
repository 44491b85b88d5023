"""The convex run beside Theorem 2."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
import torch

from diffsketch.pages.exhibits import check_exhibit
from diffsketch.privacy.theorems import ConvexProblem, expected_gap, theorem2
from diffsketch.reproduction.drawings.convergence import draw, slope
from diffsketch.reproduction.experiment import Experiment, Measurement
from diffsketch.reproduction.measurements.convergence import comparator, descend, measure
from diffsketch.training.local import trainer_for
from diffsketch.training.models import LogisticRegression
from diffsketch.training.tasks import Devices, Examples

SETTINGS = {"rounds": 20, "step": 0.2, "rows": 3, "cols": 40, "failure": 0.1,
            "comparator_steps": 3}  # fmt: skip


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found = measure(SETTINGS, seed=0, on_progress=lambda _: None)
    json.dumps(found, allow_nan=False)
    return found


def small() -> Devices:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(12, 4, generator=generator)
    labels = (inputs[:, 0] > inputs[:, 1]).long()
    parts = {f"w{i}": Examples(inputs[4 * i : 4 * i + 4], labels[4 * i : 4 * i + 4])
             for i in range(3)}  # fmt: skip
    return Devices.of(parts)


def test_gap_starts_at_the_untrained_loss_and_falls(measured: dict[str, Any]) -> None:
    assert measured["gap"][0] + measured["reference"] == pytest.approx(2.302585, abs=1e-4)
    assert measured["gap"][-1] < measured["gap"][0]
    assert measured["rounds"][0] == 1
    assert measured["rounds"][-1] == 20


def test_bounds_are_those_of_the_measured_constants(measured: dict[str, Any]) -> None:
    problem = ConvexProblem(7850, measured["gradient_norm"], measured["distance"], 0.2)
    assert measured["theorem2"][-1] == pytest.approx(theorem2(problem, 20, error=measured["error"]))
    assert measured["proven"][-1] == pytest.approx(
        expected_gap(problem, 20, variance=measured["variance"])
    )
    assert measured["gradient_norm"] < measured["gradient_norm_always"]
    assert all(g <= b for g, b in zip(measured["gap"], measured["proven"], strict=True))


def test_iterates_are_plain_sgd_with_batches_from_each_own_examples() -> None:
    """With whole batches of one example each, the steps are those of a loop by hand."""
    devices = small()
    trainer = trainer_for(LogisticRegression(4, 2))
    found = list(
        descend(trainer, devices, None, rounds=3, step=0.5, combine="mean", batch_size=2, seed=4)
    )
    assert torch.equal(found[0].weights, torch.zeros(trainer.dim))
    assert all(each.squares.shape == (3,) for each in found)
    moved = [float((b.weights - a.weights).norm()) for a, b in pairwise(found)]
    # A step is c / sqrt(i) times a mean gradient, which is at most as long as the longest.
    for i, (size, each) in enumerate(zip(moved, found, strict=False), start=1):
        assert 0 < size <= 0.5 / i**0.5 * float(each.squares.max()) ** 0.5 + 1e-6


def test_gradients_of_random_batches_are_unbiased() -> None:
    """The mean of 4,000 first gradients is that of all examples, within 5 standard errors.

    At 10 coordinates: false with a probability below 1e-5; the seeds are fixed. The control drops
    one example, and is found.
    """
    devices = small()
    trainer = trainer_for(LogisticRegression(4, 2))
    drawn = []
    for seed in range(4000):
        (first, second) = descend(
            trainer, devices, None, rounds=2, step=1.0, combine="mean", batch_size=1, seed=seed
        )
        drawn.append(first.weights - second.weights)
    stacked = torch.stack(drawn).double()
    error = stacked.std(dim=0) / len(stacked) ** 0.5

    def away(examples: Examples) -> float:
        weights = torch.zeros(trainer.dim, requires_grad=True)
        scores = examples.inputs @ weights[:8].view(2, 4).T + weights[8:]
        loss = torch.nn.functional.cross_entropy(scores, examples.labels)
        (gradient,) = torch.autograd.grad(loss, weights)
        return float(((stacked.mean(dim=0) - gradient.double()).abs() / error).max())

    whole = devices.examples
    assert away(whole) < 5
    assert away(Examples(whole.inputs[1:], whole.labels[1:])) > 5


def test_comparator_is_better_the_longer_it_is_sought() -> None:
    examples = small().examples
    trainer = trainer_for(LogisticRegression(4, 2))
    losses = [
        trainer.evaluate(comparator(examples, steps=steps).float(), examples)[0]
        for steps in (1, 5, 20)
    ]
    assert losses[0] > losses[1] > losses[2]


def test_slope_of_a_power() -> None:
    rounds = [1, 10, 100, 1000]
    assert slope(rounds, [3 * r**-0.5 for r in rounds]) == pytest.approx(-0.5)
    assert slope(rounds, [1.0, 1.0, 0.0, 1.0]) is None


def test_drawing_counts_gaps_above_the_bound(measured: dict[str, Any]) -> None:
    sketched = Measurement("3 x 40", "convergence", SETTINGS)
    plain = Measurement("uncompressed", "convergence", {**SETTINGS, "rows": 0})
    experiment = Experiment("convergence", "t", "Theorem 2", "s", "convergence", {}, seeds=1,
                            measurements=(plain, sketched))  # fmt: skip
    bare = {k: v for k, v in measured.items() if k not in ("theorem2", "error", "variance")}
    results = {experiment.measured(sketched)[0]: measured, experiment.measured(plain)[0]: bare}
    drawn = draw(experiment, results)
    assert drawn.facts["bound-holds"] == 1
    assert drawn.facts["gap"] == pytest.approx(measured["gap"][-1])
    assert "every round looked at" in drawn.lead
    check_exhibit(drawn.exhibits[0])
    broken = {**measured, "theorem2": [*measured["theorem2"][:-1], 0.0]}
    drawn = draw(experiment, {**results, experiment.measured(sketched)[0]: broken})
    places = len(measured["gap"])
    assert drawn.facts["bound-holds"] == pytest.approx(1 - 1 / places)
    assert "every" not in drawn.lead

"""Theorem 2 beside what it is about: a convex problem, solved by SGD on sketched gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from diffsketch.errors import check
from diffsketch.privacy.theorems import (
    ConvexProblem,
    expected_gap,
    lemma1_error,
    query_variance,
    theorem2,
)
from diffsketch.reproduction.measurements.options import check_known, number, text, whole
from diffsketch.sketch.count_sketch import Combine, CountSketch
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training.local import trainer_for
from diffsketch.training.local.base import LocalTrainer
from diffsketch.training.models import LogisticRegression
from diffsketch.training.tasks import Batches, Devices, Examples, load_task

__all__ = ["Iterate", "comparator", "descend", "measure"]

_OWN = ("rounds", "step", "rows", "cols", "combine", "batch_size", "failure", "comparator_steps")
_POINTS = 40


@dataclass(frozen=True, eq=False)
class Iterate:
    """A round of SGD.

    Attributes:
        weights: `x_i`, before the step.
        squares: `||g_k||^2` of each worker's gradient there.
    """

    weights: Tensor
    squares: Tensor


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """The gap `F(average of x_1..x_i) - F(comparator)` beside the bounds on it.

    F is the mean loss of a logistic regression on all workers' images of the task `mnist`, which is
    convex. Each worker draws its batch at random, with replacement, so that its gradient is
    unbiased as the theorem assumes; hashes are fresh; steps are `step / sqrt(i)`. The theorem's G
    and D are not known but measured along the run: G^2 as the largest mean over the workers of
    `||g||^2` in any round, D as the largest distance from the comparator. The images are linearly
    separable, so that F has no minimum but 0 at infinity; but the bound's proof never uses that the
    comparator is the minimum: it holds for any point. Here it is the one that L-BFGS reaches.

    Args:
        settings: `rounds`; `step`, c in the theorem; `rows`, `cols` and `combine` of the sketch,
            `rows = 0` for none; `batch_size`; `failure` of Lemma 1, which Theorem 2 is computed
            for; `comparator_steps` of L-BFGS.
        seed: Of the task, the batches and the hashes.
        on_progress: Told the share that is done.
    """
    check_known(settings, _OWN)
    rounds, step = whole(settings, "rounds"), number(settings, "step")
    check(rounds >= 2, "rounds", "be >= 2", rounds)
    task = load_task("mnist", seed=seed)
    model = task.model(seed)
    trainer = trainer_for(model)
    best = comparator(task.devices.examples, steps=whole(settings, "comparator_steps"))
    sketch = _sketch(settings, trainer.dim)
    combine: Combine = "mean" if text(settings, "combine", default="median") == "mean" else "median"
    chosen = set(np.unique(np.geomspace(1, rounds, _POINTS).astype(int)).tolist())
    reference, _ = trainer.evaluate(best.float(), task.devices.examples)
    total, places, gaps = torch.zeros(trainer.dim, dtype=torch.float64), [], []
    largest, farthest = 0.0, 0.0
    iterates = descend(
        trainer, task.devices, sketch, rounds=rounds, step=step, combine=combine, seed=seed,
        batch_size=whole(settings, "batch_size", default=10),
    )  # fmt: skip
    for i, iterate in enumerate(iterates, start=1):
        total += iterate.weights
        largest = max(largest, float(iterate.squares.mean()))
        farthest = max(farthest, float((iterate.weights.double() - best).norm()))
        if i in chosen:
            loss, _ = trainer.evaluate((total / i).float(), task.devices.examples)
            places.append(i)
            gaps.append(loss - reference)
        on_progress(i / rounds)
    problem = ConvexProblem(trainer.dim, math.sqrt(largest), farthest, step)
    return {
        "dim": trainer.dim,
        "reference": reference,
        "reference_norm": float(best.norm()),
        "gradient_norm": problem.gradient_norm,
        "gradient_norm_always": _largest_gradient(task.devices.examples),
        "distance": problem.distance,
        "rounds": places,
        "gap": gaps,
        **_bounds(problem, places, sketch, combine=combine, settings=settings),
    }


def descend(
    trainer: LocalTrainer,
    devices: Devices,
    sketch: CountSketch | None,
    *,
    rounds: int,
    step: float,
    combine: Combine,
    batch_size: int,
    seed: int,
) -> Iterator[Iterate]:
    """SGD from zero on the mean of the workers' sketched gradients, as Theorem 2 has it.

    Every worker's batch is drawn uniformly and with replacement from its examples.
    """
    generator, key = torch.Generator().manual_seed(seed), SketchKey.from_integer(seed)
    weights = torch.zeros(trainer.dim)
    sizes, starts = devices.sizes[:, None, None], devices.starts[:-1, None, None]
    shape = (len(devices), 1, batch_size)
    for index in range(rounds):
        drawn = (torch.rand(shape, generator=generator, dtype=torch.float64) * sizes).long()
        gradients = trainer.gradients(weights, devices.examples, Batches(drawn + starts))
        yield Iterate(weights, gradients.double().square().sum(dim=1))
        mean = gradients.mean(dim=0)
        if sketch is not None:
            seed_now = key.seed(index)
            mean = sketch.query(sketch.encode(mean, seed_now), seed_now, combine=combine)
        weights = weights - step / math.sqrt(index + 1) * mean


def comparator(examples: Examples, *, steps: int) -> Tensor:
    """Weights of a logistic regression, float64, after so many steps of L-BFGS from zero."""
    inputs, labels = examples.inputs.double(), examples.labels
    model = LogisticRegression(inputs.shape[1], int(labels.max()) + 1).double()
    parameters = list(model.parameters())
    with torch.no_grad():
        for each in parameters:
            each.zero_()
    solver = torch.optim.LBFGS(
        parameters, max_iter=steps, history_size=20, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    solver.step(closure)  # type: ignore[no-untyped-call]
    return torch.cat([each.detach().reshape(-1) for each in parameters])


def _sketch(settings: Mapping[str, Any], dim: int) -> CountSketch | None:
    rows = whole(settings, "rows")
    return CountSketch(dim, rows, whole(settings, "cols")) if rows else None


def _largest_gradient(examples: Examples) -> float:
    """No gradient of the loss is longer, whatever the weights: `sqrt(2) ||(input, 1)||`.

    The scores' gradient is a difference of two distributions, of norm sqrt(2) at most.
    """
    squares = examples.inputs.double().square().sum(dim=1) + 1
    return math.sqrt(2 * float(squares.max()))


def _bounds(
    problem: ConvexProblem,
    places: list[int],
    sketch: CountSketch | None,
    *,
    combine: Combine,
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    if sketch is None:
        return {"proven": [expected_gap(problem, i, variance=0.0) for i in places]}
    error = lemma1_error(sketch.rows, sketch.cols, failure=number(settings, "failure"))
    variance = query_variance(sketch, combine=combine)
    return {
        "error": error,
        "variance": variance,
        "theorem2": [theorem2(problem, i, error=error) for i in places],
        "proven": [expected_gap(problem, i, variance=variance) for i in places],
    }

"""Models, examples and the plain loop with `torch.optim.SGD` that trainers are compared with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.training.local import ClosedForm, Functional, LocalTrainer, WorkerLoop
from diffsketch.training.models import CharLSTM, LogisticRegression, flatten, load
from diffsketch.training.tasks import Batches, Examples

FEATURES, CLASSES, COUNT = 7, 4, 60


def perceptron(seed: int = 0) -> nn.Module:
    """With a buffer that stays, a frozen layer and a layer that is used twice."""

    class Perceptron(nn.Module):
        scale: Tensor

        def __init__(self) -> None:
            super().__init__()
            with torch.device("meta"):
                self.first = nn.Linear(FEATURES, 6)
                self.twice = nn.Linear(6, 6)
                self.last = nn.Linear(6, CLASSES)
                self.unused = nn.Linear(2, 2)
            self.to_empty(device="cpu")
            self.register_buffer("scale", torch.tensor(0.5))
            self.last.bias.requires_grad_(False)

        def forward(self, inputs: Tensor) -> Tensor:
            hidden = torch.tanh(self.first(inputs.flatten(1)) * self.scale)
            scores: Tensor = self.last(torch.relu(self.twice(torch.relu(self.twice(hidden)))))
            return scores

    return with_weights(Perceptron(), seed)


def with_weights(model: nn.Module, seed: int = 0) -> nn.Module:
    generator = torch.Generator().manual_seed(seed)
    load(model, 0.4 * torch.randn(len(flatten(model)), generator=generator))
    return model


def logistic() -> nn.Module:
    return with_weights(LogisticRegression(FEATURES, CLASSES))


def convolutional() -> nn.Module:
    layers = nn.Unflatten(1, (1, 28)), nn.Conv2d(1, 4, 5, stride=4), nn.ReLU(), nn.Flatten()
    return with_weights(nn.Sequential(*layers, nn.Linear(4 * 6 * 6, 10)))


def vectors(count: int = COUNT) -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return Examples(inputs, torch.randint(CLASSES, (count,), generator=generator))


def images() -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.rand(COUNT, 28, 28, generator=generator)
    return Examples(inputs, torch.randint(10, (COUNT,), generator=generator))


def windows() -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randint(80, (COUNT, 12), generator=generator)
    return Examples(inputs, torch.randint(80, (COUNT,), generator=generator))


Case = tuple[Callable[[], nn.Module], Callable[[], Examples], Callable[[Any], LocalTrainer]]
CASES: dict[str, Case] = {
    "logistic closed": (logistic, vectors, ClosedForm),
    "logistic batched": (logistic, vectors, Functional),
    "perceptron batched": (perceptron, vectors, Functional),
    "perceptron loop": (perceptron, vectors, WorkerLoop),
    "cnn batched": (convolutional, images, Functional),
    "lstm loop": (CharLSTM, windows, WorkerLoop),
}


def batches(
    examples: Examples, workers: int, steps: int, size: int, *, ragged: bool = False
) -> Batches:
    """Any examples; ragged ones have short batches, steps without examples and an empty worker."""
    generator = torch.Generator().manual_seed(2)
    indices = torch.randint(COUNT, (workers, steps, size), generator=generator)
    if not ragged:
        return Batches(examples, indices)
    present = torch.rand(indices.shape, generator=generator) < 0.6
    present[0, 0] = False  # the first step of a worker
    present[1, -1] = False  # the last one
    present[2] = False  # nothing at all
    present[3] = True
    return Batches(examples, indices * present, present)


def plain(model: nn.Module, batches: Batches, learning_rate: float | None) -> Tensor:
    """The obvious loop: updates, or gradients if there is no learning rate."""
    rows, examples = [], batches.examples
    for worker, steps in enumerate(batches.indices):
        local = copy.deepcopy(model)
        before = flatten(local)
        optimizer = torch.optim.SGD(local.parameters(), lr=learning_rate or 0.0)
        for step, indices in enumerate(steps):
            chosen = indices if batches.present is None else indices[batches.present[worker, step]]
            if len(chosen):
                optimizer.zero_grad()
                loss = cross_entropy(local(examples.inputs[chosen]), examples.labels[chosen])
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in local.parameters()]
        gradient = torch.cat([each.flatten() for each in found])
        rows.append(gradient if learning_rate is None else flatten(local) - before)
    return torch.stack(rows)


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    assert not found.requires_grad
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=2e-6 * max(scale, 1.0))

"""Slow and obvious: a linear model trained by autograd, one worker after another."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.methods.base import Method
from diffsketch.methods.plain import Uncompressed
from diffsketch.training.rounds import FedAvg
from diffsketch.training.sampling import UniformSampler
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Batches, Devices, Examples, Task

INPUTS, CLASSES = 6, 3
DIM = CLASSES * (INPUTS + 1)
SIZES = (6, 9, 4, 5, 7, 6, 3, 8)  # examples of the devices
DEVICES = len(SIZES)


class ReferenceTrainer:
    """`torch.optim.SGD` on `nn.Linear`, for each worker on its own."""

    def __init__(self, *, inputs: int = INPUTS, classes: int = CLASSES) -> None:
        self._model = _linear(inputs, classes)
        self.dim = classes * (inputs + 1)

    def to(self, device: str) -> None:
        self._model.to(device)

    def gradients(self, weights: Tensor, examples: Examples, batches: Batches) -> Tensor:
        assert batches.indices.shape[1] == 1
        rows = []
        for worker in range(len(batches.indices)):
            self._load(weights)
            self._backward(examples, *_step(batches, worker, 0))
            rows.append(torch.cat([_gradient(one) for one in self._model.parameters()]))
        return torch.stack(rows)

    def updates(
        self, weights: Tensor, examples: Examples, batches: Batches, *, learning_rate: float
    ) -> Tensor:
        rows = []
        for worker in range(len(batches.indices)):
            self._load(weights)
            optimizer = torch.optim.SGD(self._model.parameters(), lr=learning_rate)
            for step in range(batches.indices.shape[1]):
                indices, present = _step(batches, worker, step)
                if bool(present.any()):
                    self._backward(examples, indices, present)
                    optimizer.step()
            parameters = [one.detach().reshape(-1) for one in self._model.parameters()]
            rows.append(torch.cat(parameters) - weights)
        return torch.stack(rows)

    def evaluate(self, weights: Tensor, examples: Examples) -> tuple[float, float]:
        self._load(weights)
        with torch.no_grad():
            scores = self._model(examples.inputs)
        hits = scores.argmax(dim=1) == examples.labels
        return float(cross_entropy(scores, examples.labels)), float(hits.double().mean())

    def _load(self, weights: Tensor) -> None:
        nn.utils.vector_to_parameters(weights.clone(), self._model.parameters())

    def _backward(self, examples: Examples, indices: Tensor, present: Tensor) -> None:
        chosen = indices[present]
        self._model.zero_grad()
        loss = cross_entropy(self._model(examples.inputs[chosen]), examples.labels[chosen])
        loss.backward()  # type: ignore[no-untyped-call]


def _step(batches: Batches, worker: int, step: int) -> tuple[Tensor, Tensor]:
    indices = batches.indices[worker, step]
    if batches.present is None:
        return indices, torch.ones_like(indices, dtype=torch.bool)
    return indices, batches.present[worker, step]


def _gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad.reshape(-1).clone()


def make_task(*sizes: int, seed: int = 0, spread: float = 1.0) -> Task:
    """Gaussian clusters, one for each class, shared out to devices with so many examples each."""
    generator = torch.Generator().manual_seed(seed)
    centres = 2 * torch.randn(CLASSES, INPUTS, generator=generator)

    def draw(count: int) -> Examples:
        labels = torch.randint(CLASSES, (count,), generator=generator)
        noise = spread * torch.randn(count, INPUTS, generator=generator)
        return Examples(centres[labels] + noise, labels)

    devices = Devices.of({f"device-{i}": draw(size) for i, size in enumerate(sizes)})
    return Task("clusters", devices, draw(200), make_model)


def _linear(inputs: int, classes: int) -> nn.Linear:
    """Without the usual first weights, which would come from a global generator."""
    with torch.device("meta"):
        model = nn.Linear(inputs, classes)
    return model.to_empty(device="cpu")


def make_model(seed: int) -> nn.Module:
    model = _linear(INPUTS, CLASSES)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    return model


def simulate(method: Method | None = None, task: Task | None = None, **options: Any) -> Simulation:
    """FedAvg on `SIZES` with three devices a round, uncompressed, unless told otherwise."""
    settings: dict[str, Any] = {
        "trainer": ReferenceTrainer(),
        "algorithm": FedAvg(0.1, 4),
        "rounds": 100,
        "seed": 5,
        "sampler": UniformSampler(DEVICES, 3, seed=5),
        **options,
    }
    task = make_task(*SIZES) if task is None else task
    return Simulation(task, method=Uncompressed(DIM) if method is None else method, **settings)


def updates_of(simulation: Simulation, weights: Tensor, devices: list[int], index: int) -> Tensor:
    """Contributions of some devices to a round of `simulate`, by the reference."""
    return simulation.algorithm.vectors(
        weights, torch.tensor(devices), trainer=ReferenceTrainer(),
        devices=simulation.task.devices, seed=simulation.seed, round_index=index,
    )  # fmt: skip

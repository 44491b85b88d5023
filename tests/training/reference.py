"""A small task with a linear model, and simulations of it."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diffsketch.methods.base import Method
from diffsketch.methods.plain import Uncompressed
from diffsketch.training.local import WorkerLoop
from diffsketch.training.rounds import FedAvg
from diffsketch.training.sampling import UniformSampler
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Batches, Devices, Examples, Task

INPUTS, CLASSES = 6, 3
DIM = CLASSES * (INPUTS + 1)
SIZES = (6, 9, 4, 5, 7, 6, 3, 8)  # examples of the devices
DEVICES = len(SIZES)


class ReferenceTrainer(WorkerLoop):
    """One worker after another, which `test_local.py` compares with `torch.optim.SGD`."""

    def __init__(self) -> None:
        super().__init__(make_model(0))


class FixedTrainer(ReferenceTrainer):
    """Returns the vectors that it is told, whatever the data."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.rows = rows

    def updates(self, weights: Tensor, batches: Batches, **options: Any) -> Tensor:
        del weights, options
        return self.rows[: len(batches.indices)]


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


def make_model(seed: int) -> nn.Module:
    """A linear model with first weights that come from no global generator."""
    with torch.device("meta"):
        model = nn.Linear(INPUTS, CLASSES)
    model = model.to_empty(device="cpu")
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


def idx_bytes(shape: tuple[int, ...], data: bytes) -> bytes:
    """An idx file of unsigned bytes, the format of MNIST."""
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + data


def write_images(directory: Path, *, size: int = 4, count: int = 12, test_size: int = 4) -> None:
    """Idx files of a data set of one's own, in the format of MNIST."""
    labels = idx_bytes((count,), bytes(i % 3 for i in range(count)))
    for prefix, side in (("train", size), ("t10k", test_size)):
        images = idx_bytes((count, side, side), bytes(count * side**2))
        (directory / f"{prefix}-images-idx3-ubyte").write_bytes(images)
        (directory / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)

"""Time and memory of a silo's private step, beside Opacus and a step without privacy.

    pip install opacus==1.6.0                 # in an environment of its own, with this package
    python -m benchmarks.silo_gradients

All compute one step on the same records, with one thread, and take turns. Opacus clips and adds
noise from a generator; ours is the message that leaves a silo, with the operating system's noise.
Without Opacus its lines are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.report import print_table
from benchmarks.timing import Job, extra_memory, measure
from diffsketch.methods import build_method
from diffsketch.privacy import SecureNoise
from diffsketch.silos import RecordGradients
from diffsketch.silos.messages import encode_records
from diffsketch.sketch import SketchKey

CPU = torch.device("cpu")
MODELS: dict[str, Callable[[], nn.Module]] = {
    "MLP": lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
    "CNN": lambda: nn.Sequential(  # that of Opacus's MNIST example
        nn.Conv2d(1, 16, 8, 2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(512, 32), nn.ReLU(),
        nn.Linear(32, 10),
    ),
}  # fmt: skip


def plain_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Make a step of SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(model(images), labels))
        optimizer.step()

    return step


def opacus_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Make a step of Opacus: per-record gradients, clipped, with Gaussian noise."""
    from opacus import GradSampleModule  # type: ignore[import-not-found]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-not-found]

    wrapped: Any = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0,
        expected_batch_size=len(images),
    )  # fmt: skip

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(cross_entropy(wrapped(images), labels))
        optimizer.step()

    return step


def our_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    """Make a message of these records, and the optimizer's step with it."""
    gradients, optimizer = RecordGradients(model), torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {
        "clip": 1.0, "noise_multiplier": 1.0, "unit": "example", "relation": "add-or-remove",
        "trust": "local", "rate": 0.1, "records": float(len(images)),
    }  # fmt: skip
    method = build_method("gaussian", dim=gradients.dim, cohort=1, settings=settings)
    seed, trained = SketchKey.from_integer(0).seed(0), list(model.parameters())

    def step() -> None:
        message = encode_records(method, gradients.pieces(images, labels), seed, SecureNoise())
        mean = method.decode(message, seed, count=1)
        parts = torch.split(mean, [parameter.numel() for parameter in trained])
        for parameter, part in zip(trained, parts, strict=True):
            parameter.grad = part.view_as(parameter)
        optimizer.step()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description="A private step beside others.")
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--repeat", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ways = {"no privacy": plain_step, "ours": our_step}
    if find_spec("opacus"):
        ways["Opacus"] = opacus_step
    images = torch.rand(options.batch, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(options.batch) % 10
    lines = []
    for name, make in MODELS.items():
        steps = {way: build(make(), images, labels) for way, build in ways.items()}
        jobs = [Job(way, "step", run, ours=way == "ours") for way, run in steps.items()]
        timings = measure(jobs, device=CPU, repeat=options.repeat)
        dim = sum(parameter.numel() for parameter in make().parameters())
        for timing in timings:
            # After others have run: what the first call keeps is not counted.
            memory = extra_memory(steps[timing.job.name], device=CPU) or 0
            lines.append(
                [name, f"{dim:,}", timing.job.name, f"{1e3 * timing.median:.1f} ms",
                 f"{memory / 2**20:.1f} MiB"]
            )  # fmt: skip
        piece = f"{4 * 64 * dim / 2**20:.1f} MiB"
        lines.append([name, f"{dim:,}", "a piece of 64 gradients", "", piece])
    headers = ["model", "parameters", "step", "time", "memory at its peak"]
    print_table(f"A step with {options.batch} records", headers, lines)


if __name__ == "__main__":
    main()

"""One process of `benchmarks/ddp.py`: trains with one hook, and writes down what it took."""

from __future__ import annotations

import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from benchmarks.links import counted_bytes
from diffsketch.ddp.hook import sketch_hook, sketch_state
from diffsketch.training.data import load_mnist

__all__ = ["HOOKS", "Job", "perceptron", "pixels", "work"]

WARM_UP = 4  # steps: buckets are rebuilt after the first, PowerSGD begins with the third


@dataclass(frozen=True)
class Job:
    """What a group of processes does.

    Attributes:
        hook: One of `HOOKS`.
        world: Processes.
        widths: Of the hidden layers.
        batch: Examples of a rank's step.
        steps: That are timed, after the first few; or trained, if there is a learning rate.
        learning_rate: To train with; None to time only.
        momentum: Of SGD.
        seed: Of weights, batches and hashes.
        folder: Where processes meet, and the result goes.
    """

    hook: str
    world: int
    widths: tuple[int, int]
    batch: int
    steps: int
    folder: str
    learning_rate: float | None = None
    momentum: float = 0.0
    seed: int = 0

    def to_json(self) -> str:
        """As text, for a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """What `to_json` gave."""
        data = json.loads(text)
        return cls(**{**data, "widths": tuple(data["widths"])})


def _nothing(model: DistributedDataParallel) -> None:
    del model


def _fp16(model: DistributedDataParallel) -> None:
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)


def _power(rank: int) -> Callable[[DistributedDataParallel], None]:
    def register(model: DistributedDataParallel) -> None:
        state = powerSGD_hook.PowerSGDState(
            None, matrix_approximation_rank=rank, start_powerSGD_iter=2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)

    return register


def _ours(compression: float, **options: Any) -> Callable[[DistributedDataParallel], None]:
    def register(model: DistributedDataParallel) -> None:
        state = sketch_state(model, "sketch", compression=compression, seed=7, **options)
        model.register_comm_hook(state, sketch_hook)

    return register


HOOKS: dict[str, Callable[[DistributedDataParallel], None]] = {
    "no hook": _nothing,
    "fp16": _fp16,
    "PowerSGD rank 1": _power(1),
    "PowerSGD rank 4": _power(4),
    "sketch 50x": _ours(50),
    "sketch 500x": _ours(500),
    "sketch 50x, feedback": _ours(50, error_feedback=True),
    "sketch 500x, feedback": _ours(500, error_feedback=True),
}


def work(rank: int, text: str) -> None:
    """What a process does: the job is JSON; rank 0 leaves `result.json` in its folder."""
    job = Job.from_json(text)
    warnings.simplefilter("ignore")
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // job.world))
    dist.init_process_group(
        "gloo", init_method=f"file://{job.folder}/init", rank=rank, world_size=job.world,
        timeout=timedelta(seconds=300),
    )  # fmt: skip
    try:
        model = DistributedDataParallel(
            perceptron(job.widths, job.seed),
            bucket_cap_mb=1000 if job.hook.startswith("PowerSGD") else None,
        )  # several buckets abort PowerSGD on gloo
        HOOKS[job.hook](model)
        found = (
            _timed(job, model, rank) if job.learning_rate is None else _trained(job, model, rank)
        )
        found["parameters"] = sum(one.numel() for one in model.parameters())
        if rank == 0:
            (Path(job.folder) / "result.json").write_text(json.dumps(found))
    finally:
        dist.destroy_process_group()


def _timed(job: Job, model: nn.Module, rank: int) -> dict[str, Any]:
    """Seconds of a step, and bytes of all ranks together."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(job.batch, 784, generator=generator)
    labels = torch.randint(10, (job.batch,), generator=generator)
    interface = os.environ["GLOO_SOCKET_IFNAME"]
    seconds = []
    before = (0, 0)
    for step in range(WARM_UP + job.steps):
        if step == WARM_UP:
            dist.barrier()
            before = counted_bytes(interface)
        start = time.perf_counter()
        _step(model, optimizer, inputs, labels)
        seconds.append(time.perf_counter() - start)
    dist.barrier()
    received, sent = (
        now - then for now, then in zip(counted_bytes(interface), before, strict=True)
    )
    total = sent if interface == "lo" else sent + received
    timed = seconds[WARM_UP:]
    return {
        "median_s": statistics.median(timed),
        "min_s": min(timed),
        "bytes_per_step": total / job.steps,
    }


def _trained(job: Job, model: DistributedDataParallel, rank: int) -> dict[str, Any]:
    """The loss after so many steps on MNIST; the same batches for every hook."""
    train, test = load_mnist(None, split="train"), load_mnist(None, split="test")
    optimizer = torch.optim.SGD(
        model.parameters(), lr=job.learning_rate or 0.0, momentum=job.momentum
    )
    generator = torch.Generator().manual_seed(1000 + job.seed)
    for _ in range(job.steps):
        drawn = torch.randint(len(train), (job.world, job.batch), generator=generator)[rank]
        _step(model, optimizer, pixels(train.inputs[drawn]), train.labels[drawn].long())
    found = {}
    with torch.no_grad():
        for name, data in (("train", train), ("test", test)):
            scores = model.module(pixels(data.inputs[:10_000]))
            labels = data.labels[:10_000].long()
            found[f"{name}_loss"] = float(cross_entropy(scores, labels))
            found[f"{name}_accuracy"] = float((scores.argmax(dim=1) == labels).double().mean())
    return found


def _step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, labels: Tensor
) -> None:
    optimizer.zero_grad()
    loss: Any = cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()


def pixels(images: Tensor) -> Tensor:
    """Images as rows of numbers from 0 to 1."""
    flat = images.flatten(1)
    return flat.float() / 255 if flat.dtype == torch.uint8 else flat


def perceptron(widths: tuple[int, int], seed: int) -> nn.Module:
    """For MNIST, with two hidden layers; the weights follow from the seed."""
    first, second = widths
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(784, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
            nn.Linear(second, 10),
        )  # fmt: skip

"""Distributed SGD with `DistributedDataParallel`, and messages that are 50 times smaller.

    python examples/ddp.py

starts two processes on this machine. In a script of your own, which `torchrun` starts, only the two
lines in `train` are new. `docs/guides/ddp.md` has the settings for a proof.
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp.hook import sketch_hook, sketch_state
from diffsketch.training.data import load_mnist

PROCESSES, STEPS, BATCH, LEARNING_RATE = 2, 300, 32, 0.5


def train(steps: int) -> float:
    """Train in a process group that is there; the accuracy on the test images."""
    torch.manual_seed(0)  # the same first weights everywhere
    network = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(network)

    state = sketch_state(model, "sketch", compression=50, seed=7)
    model.register_comm_hook(state, sketch_hook)

    images, test = load_mnist(None, split="train"), load_mnist(None, split="test")
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        drawn = torch.randint(len(images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        scores = model(images.inputs[drawn] / 255)
        cross_entropy(scores, images.labels[drawn]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    with torch.no_grad():
        accuracy = float((network(test.inputs / 255).argmax(dim=1) == test.labels).float().mean())
    if dist.get_rank() == 0:
        dense = 4 * sum(parameter.numel() for parameter in model.parameters())
        print(f"accuracy {accuracy:.1%} after {steps} steps")
        print(f"{state.bytes_per_step.sent:,.0f} bytes a step each way, not {dense:,}")
        print(state.claim)
    return accuracy


def work(rank: int, folder: str) -> None:
    """What each process does."""
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/init", rank=rank, world_size=PROCESSES
    )
    try:
        train(STEPS)
        dist.barrier()  # no process leaves while another still receives
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as meeting:
        mp.spawn(work, (meeting,), nprocs=PROCESSES)  # type: ignore[attr-defined,no-untyped-call]

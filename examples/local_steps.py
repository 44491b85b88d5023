"""Local steps in a plain loop: processes that train alone and exchange every 15th step.

    python examples/local_steps.py

starts two processes on this machine. In a script of your own, which `torchrun` starts, only the
lines with `local` are new; the model is not in `DistributedDataParallel`.

Machines of several GPUs train as one inside, by `fully_shard` or DDP, and exchange between them:

    mesh = init_device_mesh("cuda", (machines, 8), mesh_dim_names=("between", "inside"))
    fully_shard(model, mesh=mesh["inside"])
    local = LocalSteps(model, every=15, seed=7, group=mesh["between"].get_group())

Machines that may be late, or go and come back, meet in a store; two of them are enough here:

    store = TCPStore(host, port, is_master=False)
    group = StoreGroup(store, rank=machine, world=machines, min_ranks=2, wait=30)
    local = LocalSteps(model, every=15, seed=7, group=group)

Silos that must not see each other's data send noise with their weights, within a budget. Each keeps
its account with its data, and an error in a guarded step tells the others nothing:

    local = LocalSteps(model, every=50, seed=7, method="sketch-gaussian", compression=4, clip=1.0,
                       noise_multiplier=5.0, budget=Budget(8.0, 1e-5), account_file="account.json")
    with local.guard():  # in place of local.step()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
"""

from __future__ import annotations

import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.functional import cross_entropy

from diffsketch.ddp import LocalSteps
from diffsketch.training.data import load_mnist

PROCESSES, STEPS, BATCH, LEARNING_RATE = 2, 300, 32, 1e-3


def train(steps: int) -> float:
    """Train in a process group that is there; the accuracy on the test images."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    local = LocalSteps(model, every=15, compression=32, seed=7)  # the weights of rank 0 for all

    images, test = load_mnist(None, split="train"), load_mnist(None, split="test")
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    for _ in range(steps):
        drawn = torch.randint(len(images), (BATCH,), generator=generator)
        optimizer.zero_grad()
        scores = model(images.inputs[drawn] / 255)
        cross_entropy(scores, images.labels[drawn]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        local.step()
    local.finish()  # all processes have the same weights now
    with torch.no_grad():
        accuracy = float((model(test.inputs / 255).argmax(dim=1) == test.labels).float().mean())
    if dist.get_rank() == 0:
        dense = 4 * sum(parameter.numel() for parameter in model.parameters())
        print(f"accuracy {accuracy:.1%} after {steps} steps")
        print(f"{local.bytes_per_step.sent:,.0f} bytes a step each way, not {dense:,}")
        print(local.claim)
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

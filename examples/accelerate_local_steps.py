"""Hugging Face Accelerate with local steps between the processes.

    pip install accelerate
    python examples/accelerate_local_steps.py

starts two processes on this machine. In a script of your own, which `accelerate launch` starts,
only the lines with `local` are new.
"""

from __future__ import annotations

import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from diffsketch.ddp.integrations.accelerate import AccelerateLocalSteps

PROCESSES, EPOCHS, EXAMPLES, WIDTH = 2, 10, 2048, 32


def examples() -> TensorDataset:
    """A function of random numbers; `prepare` gives each process a part of them."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].prod(dim=1, keepdim=True).tanh() + inputs[:, 4:5])


def train() -> None:
    """Train in a process that Accelerate knows about."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1)).to(accelerator.device)
    data = examples()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, loader = accelerator.prepare(
        model, optimizer, DataLoader(data, batch_size=16, shuffle=True)
    )
    local = AccelerateLocalSteps(accelerator, model, every=15, compression=8, seed=7)
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                accelerator.backward(mse_loss(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()
                local.step()
    local.finish()
    inputs, targets = data.tensors
    loss = torch.tensor([mse_loss(model(inputs), targets).item()])
    same = len(set(accelerator.gather(loss).tolist())) == 1
    dense = 4 * sum(one.numel() for one in model.parameters())
    accelerator.print(f"loss {loss.item():.4f} after {local.steps} steps, the same in all: {same}")
    accelerator.print(f"{local.bytes_per_step.sent:,.0f} bytes a step, not {dense:,}")


def work(rank: int, port: int) -> None:
    """What each process does; `accelerate launch` sets these variables otherwise."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    try:
        train()
        dist.barrier()  # no process leaves while another still receives
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as found:
        free = found.getsockname()[1]
    mp.spawn(work, (free,), nprocs=PROCESSES)  # type: ignore[attr-defined,no-untyped-call]

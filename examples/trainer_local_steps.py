"""Hugging Face's Trainer with local steps between the processes.

    pip install transformers accelerate
    python examples/trainer_local_steps.py

starts two processes on this machine; a script of your own is started by `torchrun`.
"""

from __future__ import annotations

import os
import socket
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from diffsketch.ddp.integrations.trainer import TrainerLocalSteps

PROCESSES, STEPS, EXAMPLES, WIDTH = 2, 300, 2048, 32


class Regression(nn.Module):
    """A model as the Trainer wants it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def forward(self, inputs: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Predictions and their loss."""
        found = self.network(inputs)
        return {"loss": mse_loss(found, labels), "logits": found}


class Examples(Dataset[dict[str, Tensor]]):
    """A function of random numbers; the Trainer gives each process a part of them."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(EXAMPLES, WIDTH, generator=generator)
        product = self.inputs[:, :4].prod(dim=1, keepdim=True).tanh()
        self.labels = product + self.inputs[:, 4:5]

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


def train(folder: str) -> None:
    """Train in a process of a group that `TrainingArguments` starts."""
    args = TrainingArguments(
        output_dir=folder, max_steps=STEPS, per_device_train_batch_size=16, learning_rate=3e-3,
        lr_scheduler_type="constant", use_cpu=True, ddp_backend="gloo", report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, seed=0,
        ddp_find_unused_parameters=False,
    )  # fmt: skip
    torch.manual_seed(0)
    data = Examples()
    trainer = Trainer(model=Regression(), args=args, train_dataset=data)
    callback = TrainerLocalSteps(trainer, every=15, compression=8, seed=7)
    trainer.add_callback(callback)
    trainer.train()
    model = trainer.model
    with torch.no_grad():
        loss = model(data.inputs, data.labels)["loss"].reshape(1)
    losses = [torch.zeros(1) for _ in range(PROCESSES)]
    dist.all_gather(losses, loss)
    if args.process_index == 0:
        dense = 4 * sum(one.numel() for one in model.parameters())
        same = len({one.item() for one in losses}) == 1
        print(f"loss {loss.item():.4f} after {STEPS} steps, the same in all processes: {same}")
        print(f"{callback.local.bytes_per_step.sent:,.0f} bytes a step, not {dense:,}")


def work(rank: int, port: int, folder: str) -> None:
    """What each process does; `torchrun` sets these variables otherwise."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in places.items()})
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    try:
        train(folder)
        dist.barrier()  # no process leaves while another still receives
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    with socket.create_server(("127.0.0.1", 0)) as found:
        free = found.getsockname()[1]
    with tempfile.TemporaryDirectory() as output:
        mp.spawn(work, (free, output), nprocs=PROCESSES)  # type: ignore[attr-defined,no-untyped-call]

"""PyTorch Lightning with local steps between the processes, or with a sketched DDP.

    pip install lightning
    python examples/lightning_local_steps.py           # weights every 15 steps
    python examples/lightning_local_steps.py --hook    # gradients in every step

Only the line with `callback` is new in a script of your own; both work with `strategy="ddp"`.
"""

from __future__ import annotations

import argparse
from typing import Any

import lightning
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from diffsketch.ddp.integrations.lightning import LightningLocalSteps, LightningSketchHook

PROCESSES, EPOCHS, EXAMPLES, WIDTH = 2, 6, 2048, 32


class Regression(lightning.LightningModule):
    """A model of the user's, with nothing about communication in it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(nn.Linear(WIDTH, 64), nn.Tanh(), nn.Linear(64, 1))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The loss of a batch."""
        del index
        inputs, targets = batch
        return mse_loss(self.network(inputs), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Any optimizer will do."""
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def examples() -> TensorDataset:
    """A function of random numbers; Lightning gives each process a part of them."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(EXAMPLES, WIDTH, generator=generator)
    return TensorDataset(inputs, inputs[:, :4].prod(dim=1, keepdim=True).tanh() + inputs[:, 4:5])


def main(*, hook: bool) -> None:
    """Train, and say what came of it."""
    lightning.seed_everything(0, verbose=False)
    callback: Any = (
        LightningSketchHook("sketch", compression=4, seed=7)
        if hook
        else LightningLocalSteps(every=15, compression=8, seed=7)
    )
    trainer = lightning.Trainer(
        accelerator="cpu", devices=PROCESSES, strategy="ddp", max_epochs=EPOCHS,
        callbacks=[callback], logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    model, data = Regression(), examples()
    trainer.fit(model, DataLoader(data, batch_size=16, shuffle=True))
    inputs, targets = data.tensors
    loss = torch.tensor([mse_loss(model.network(inputs), targets).item()])
    losses = [torch.zeros(1) for _ in range(PROCESSES)]
    dist.all_gather(losses, loss)
    if trainer.is_global_zero:
        steps, dense = trainer.global_step, 4 * sum(one.numel() for one in model.parameters())
        sent = (callback.state if hook else callback.local).bytes_per_step.sent
        same = len({one.item() for one in losses}) == 1
        print(f"loss {loss.item():.4f} after {steps} steps, the same in all processes: {same}")
        print(f"{sent:,.0f} bytes a step, not {dense:,}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--hook", action="store_true", help="sketch the gradients of every step")
    main(hook=parser.parse_args().hook)

"""PyTorch Lightning with local steps between the processes, or with a sketched DDP.

    pip install lightning
    python examples/lightning_local_steps.py           # weights every 15 steps
    python examples/lightning_local_steps.py --hook    # gradients in every step

Copy one of the two callbacks. Both work with `strategy="ddp"`, on any device. Lightning's own
`DDPStrategy(ddp_comm_state=...)` cannot be used: the state needs the process group, which Lightning
starts later.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

from diffsketch.ddp import LocalSteps, own_gradients, sketch_hook, sketch_state

PROCESSES, EPOCHS, EXAMPLES, WIDTH = 2, 6, 2048, 32


class LocalStepsCallback(lightning.Callback):
    """Exchange of the weights every few steps.

    Args:
        folder: Where each process keeps what it needs to go on, whenever Lightning saves a
            checkpoint: Lightning itself keeps the weights and the optimizer of rank 0 alone.
        **settings: Those of `LocalSteps`.
    """

    def __init__(self, folder: str | Path | None = None, **settings: Any) -> None:
        self.local: Any = None  # LocalSteps, once there is a process group
        self._folder, self._settings, self._seen = folder, settings, 0

    def on_fit_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """DDP is there now: let it average nothing."""
        del pl_module
        model = trainer.strategy.model
        model.register_comm_hook(None, own_gradients)
        self.local = LocalSteps(model, **self._settings)

    def on_train_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Go on from this process's own file, if it belongs to the checkpoint that was loaded."""
        self._seen = trainer.global_step
        path = self._path(trainer)
        if trainer.global_step == 0 or path is None or not path.exists():
            return
        state = torch.load(path, weights_only=True)
        pl_module.load_state_dict(state["model"])
        for optimizer, own in zip(trainer.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(own)
        self.local.load_state_dict(state["local"])

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """One call of `step` for each step of the optimizer, also where gradients accumulate."""
        if trainer.global_step != self._seen:
            self._seen = trainer.global_step
            self.local.step()

    def on_train_end(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """Give all processes the same weights."""
        del trainer, pl_module
        self.local.finish()

    def on_save_checkpoint(
        self,
        trainer: lightning.Trainer,
        pl_module: lightning.LightningModule,
        checkpoint: dict[str, Any],
    ) -> None:
        """Keep this process's own weights, optimizer and local steps."""
        del checkpoint
        if (path := self._path(trainer)) is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            optimizers = [one.state_dict() for one in trainer.optimizers]
            state = {"model": pl_module.state_dict(), "optimizers": optimizers}
            torch.save({**state, "local": self.local.state_dict()}, path)

    def _path(self, trainer: lightning.Trainer) -> Path | None:
        if self._folder is None:
            return None
        return Path(self._folder) / f"step-{trainer.global_step}-rank-{trainer.global_rank}.pt"


class SketchHookCallback(lightning.Callback):
    """Gradients that are sketched in every step. The settings are those of `sketch_state`."""

    def __init__(self, method: str, **settings: Any) -> None:
        self.state: Any = None
        self._method, self._settings = method, settings

    def on_fit_start(
        self, trainer: lightning.Trainer, pl_module: lightning.LightningModule
    ) -> None:
        """DDP and its process group are there now."""
        del pl_module
        model = trainer.strategy.model
        self.state = sketch_state(model, self._method, **self._settings)
        model.register_comm_hook(self.state, sketch_hook)


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
        SketchHookCallback("sketch", compression=4, seed=7)
        if hook
        else LocalStepsCallback(every=15, compression=8, seed=7)
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

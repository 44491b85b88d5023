"""Callbacks for PyTorch Lightning with `strategy="ddp"`, on any device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning

from diffsketch.ddp.hook import HookState, sketch_hook, sketch_state
from diffsketch.ddp.integrations import load, save, unaveraged
from diffsketch.ddp.local_steps import LocalSteps


class LightningLocalSteps(lightning.Callback):
    """Exchange of the weights every few steps.

    Args:
        folder: Where each process keeps what it needs to go on, whenever Lightning saves a
            checkpoint: Lightning itself keeps the weights and the optimizer of rank 0 alone.
        **settings: Those of `LocalSteps`.

    Attributes:
        local: The `LocalSteps`, once Lightning has started the processes.
    """

    local: LocalSteps

    def __init__(self, folder: str | Path | None = None, **settings: Any) -> None:
        self._folder, self._settings, self._seen = folder, settings, 0

    def on_fit_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Let DDP, which is there now, average nothing."""
        self.local = LocalSteps(unaveraged(trainer.strategy.model), **self._settings)

    def on_train_start(self, trainer: lightning.Trainer, pl_module: Any) -> None:
        """Go on from this process's own file, if it belongs to the checkpoint that was loaded."""
        self._seen, path = trainer.global_step, self._path(trainer)
        if self._seen and path is not None and path.exists():
            load(path, self.local, pl_module, trainer.optimizers)

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Count a step of the optimizer, also where gradients accumulate."""
        if trainer.global_step != self._seen:
            self._seen = trainer.global_step
            self.local.step()

    def on_train_end(self, *_: Any) -> None:
        """Give all processes the same weights."""
        self.local.finish()

    def on_save_checkpoint(self, trainer: lightning.Trainer, pl_module: Any, *_: Any) -> None:
        """Keep this process's own weights, optimizers and local steps."""
        if (path := self._path(trainer)) is not None:
            save(path, self.local, pl_module, trainer.optimizers)

    def _path(self, trainer: lightning.Trainer) -> Path | None:
        if self._folder is None:
            return None
        return Path(self._folder) / f"step-{trainer.global_step}-rank-{trainer.global_rank}.pt"


class LightningSketchHook(lightning.Callback):
    """Gradients that are sketched in every step.

    Lightning's own `DDPStrategy(ddp_comm_state=...)` cannot be used: the state needs the process
    group, which Lightning starts later.

    Args:
        method: As in `sketch_state`.
        **settings: Those of `sketch_state`.

    Attributes:
        state: The `HookState`, once Lightning has started the processes.
    """

    state: HookState

    def __init__(self, method: str, **settings: Any) -> None:
        self._method, self._settings = method, settings

    def on_fit_start(self, trainer: lightning.Trainer, *_: Any) -> None:
        """Register the hook with DDP, which is there now."""
        model = trainer.strategy.model
        self.state = sketch_state(model, self._method, **self._settings)
        model.register_comm_hook(self.state, sketch_hook)

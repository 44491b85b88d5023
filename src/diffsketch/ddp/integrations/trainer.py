"""Callback for the Trainer of Hugging Face's `transformers`, started by `torchrun`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from diffsketch.ddp.integrations import load, save, unaveraged
from diffsketch.ddp.local_steps import LocalSteps


class TrainerLocalSteps(TrainerCallback):
    """Exchange of the weights every few steps.

    Args:
        trainer: The one that trains; add the callback with `trainer.add_callback`.
        **settings: Those of `LocalSteps`.

    Attributes:
        local: The `LocalSteps`, or None before the first step.
    """

    local: Any = None

    def __init__(self, trainer: Trainer, **settings: Any) -> None:
        self._trainer, self._settings = trainer, settings

    def on_step_begin(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Let DDP average nothing. Go on from this process's file, if there is one."""
        if self.local is None:  # DDP is there after `on_train_begin`
            self.local = LocalSteps(unaveraged(self._trainer.model_wrapped), **self._settings)
            path = self._path(args, state)
            if state.global_step > 0 and path.exists():
                load(path, self.local, self._trainer.model, [self._trainer.optimizer])

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Count a step of the optimizer, of however many batches."""
        if self.local is not None:
            self.local.step()

    def on_save(self, args: Any, state: Any, *_: Any, **__: Any) -> None:
        """Keep this process's weights, optimizer and local steps: the Trainer keeps rank 0's."""
        if self.local is not None:
            path = self._path(args, state)
            save(path, self.local, self._trainer.model, [self._trainer.optimizer])

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Give all processes the same weights."""
        if self.local is not None:  # not where a finished run is resumed
            self.local.finish()

    def _path(self, args: Any, state: Any) -> Path:
        folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        return folder / f"local-steps-{args.process_index}.pt"

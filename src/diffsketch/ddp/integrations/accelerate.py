"""Local steps in a training loop with Hugging Face's `accelerate`."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import nn

from diffsketch.ddp.integrations import unaveraged
from diffsketch.ddp.local_steps import LocalSteps


class AccelerateLocalSteps(LocalSteps):
    """Exchange of the weights every few steps: `LocalSteps` that knows of accumulated gradients.

    Call `step` after every `optimizer.step` of the loop. In a checkpoint, each process keeps its
    `state_dict` itself: `register_for_checkpointing` keeps that of rank 0 alone.

    Args:
        accelerator: The one that prepared the model.
        model: The model as `prepare` returned it, in DDP.
        **settings: Those of `LocalSteps`.
    """

    def __init__(self, accelerator: Accelerator, model: nn.Module, **settings: Any) -> None:
        self._accelerator = accelerator
        super().__init__(unaveraged(model), **settings)

    def step(self) -> None:
        """Count a step, unless Accelerate only accumulates gradients in it."""
        if self._accelerator.sync_gradients:
            super().step()

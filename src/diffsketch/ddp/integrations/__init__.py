"""Callbacks for Lightning, Accelerate and the Hugging Face Trainer, in a module each.

Where the library is not installed its module cannot be imported, and says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from diffsketch.ddp.hook import own_gradients
from diffsketch.ddp.local_steps import LocalSteps
from diffsketch.errors import ArgumentError


def unaveraged(model: nn.Module) -> nn.Module:
    """Let the DDP that a framework has wrapped a model in average nothing; return the model.

    Raises:
        ArgumentError: The model is not in DDP: the processes were not started together.
    """
    if not isinstance(model, DistributedDataParallel):
        kind = type(model).__name__
        raise ArgumentError(f"model must be in DDP, of several processes, got a {kind}")
    model.register_comm_hook(None, own_gradients)
    return model


def save(path: Path, local: LocalSteps, model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Keep what this process needs to go on: frameworks keep weights and optimizer of rank 0."""
    path.parent.mkdir(parents=True, exist_ok=True)
    states = [optimizer.state_dict() for optimizer in optimizers]
    torch.save(
        {"model": model.state_dict(), "optimizers": states, "local": local.state_dict()}, path
    )


def load(path: Path, local: LocalSteps, model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Go on from a file of `save`. All processes load theirs together."""
    kept = torch.load(path, weights_only=True)
    model.load_state_dict(kept["model"])
    for optimizer, state in zip(optimizers, kept["optimizers"], strict=True):
        optimizer.load_state_dict(state)
    local.load_state_dict(kept["local"])

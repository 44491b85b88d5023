"""A task: devices with their examples, a test set and a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from diffsketch.learning.devices import Devices, Examples

__all__ = ["Task"]


@dataclass(frozen=True, eq=False)
class Task:
    """What is to be learnt, by whom, and how well it is.

    Args:
        name: For reports.
        devices: Who trains on what.
        test: What accuracy is measured on.
        model: Makes the model with its first weights from a seed, without global random state.
            It maps inputs `(batch, ...)` to scores `(batch, classes)`; the loss is cross-entropy.
    """

    name: str
    devices: Devices
    test: Examples
    model: Callable[[int], nn.Module]

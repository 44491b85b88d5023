"""A task: devices with their examples, a test set and a model."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, DataError
from diffsketch.training.devices import Devices, Examples

__all__ = ["Task", "check_task"]


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


def check_task(task: Task, model: nn.Module) -> None:
    """Raise unless the model takes the examples, and has a score for each of their labels.

    Tries the model, a copy of it, with one example.

    Raises:
        ArgumentError: The model does not take the inputs, or gives no scores.
        DataError: A label has no score, or test inputs have another shape.
    """
    devices, test = task.devices.examples, task.test
    if devices.inputs.shape[1:] != test.inputs.shape[1:]:
        raise DataError(
            f"test inputs must have the shape of the devices', {tuple(devices.inputs.shape[1:])} "
            f"each, got {tuple(test.inputs.shape[1:])}"
        )
    classes = _scores(model, devices.inputs[:1].cpu()).shape[1]
    for part, examples in (("the devices", devices), ("the test set", test)):
        if len(examples) == 0:
            continue  # whoever evaluates says so
        low, high = (int(value) for value in examples.labels.aminmax())
        if low < 0 or high >= classes:
            raise DataError(
                f"labels of {part} must be in [0, {classes}), the scores of the model, got "
                f"{low if low < 0 else high}"
            )


def _scores(model: nn.Module, inputs: Tensor) -> Tensor:
    """What the model says of one example, if that is a row of scores."""
    tried, shape = copy.deepcopy(model).cpu().eval(), tuple(inputs.shape[1:])
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            scores = tried(inputs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(
            f"model must take inputs of the shape {shape} and type {inputs.dtype}, as the data "
            f"has: {type(model).__name__} says: {said}"
        ) from error
    if not isinstance(scores, Tensor):
        raise ArgumentError(
            "model must give a tensor of scores (batch, classes), got a "
            f"{type(scores).__name__} from {type(model).__name__}"
        )
    if scores.dim() != 2 or len(scores) != 1 or not scores.is_floating_point():
        raise ArgumentError(
            f"model must give scores (batch, classes), floating point, got {scores.dtype} of the "
            f"shape {tuple(scores.shape)} for a batch of 1 from {type(model).__name__}"
        )
    return scores

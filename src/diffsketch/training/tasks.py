"""Tasks: devices with their examples, a test set and a model."""

from __future__ import annotations

import copy
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, DataError, check, check_whole


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with a label each."""

    inputs: Tensor  # `(count, ...)`, of whatever type the model takes
    labels: Tensor  # `(count,)`, int64

    def __post_init__(self) -> None:
        check(self.labels.dtype == torch.int64, "labels", "be int64", self.labels.dtype)
        count = len(self.inputs)
        good = self.labels.shape == (count,)
        check(good, "labels", f"have the shape ({count},)", tuple(self.labels.shape))

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def label_range(self) -> tuple[int, int]:
        """The smallest and the largest label; of no examples, 0 and -1. Computed once."""
        if not len(self):
            return 0, -1
        low, high = self.labels.aminmax()
        return int(low), int(high)


@dataclass(frozen=True, eq=False)
class Devices:
    """The examples of all devices (or workers), one after another, and where each one's begin."""

    examples: Examples
    starts: Tensor  # `(devices + 1,)`, int64: device `i` has `starts[i]` to `starts[i + 1]`
    names: tuple[str, ...]

    def __post_init__(self) -> None:
        good = self.starts.dtype == torch.int64 and self.starts.shape == (len(self.names) + 1,)
        check(good, "starts", "be int64 with one entry more than names", tuple(self.starts.shape))
        if not self.names:
            raise DataError("there are no devices: training needs one at least")
        sizes = self.starts.diff()
        if int(self.starts[0]) != 0 or int(self.starts[-1]) != len(self.examples):
            raise ArgumentError("starts must begin with 0 and end with the number of examples")
        if bool((sizes <= 0).any()):
            empty = self.names[int((sizes <= 0).nonzero()[0])]
            raise DataError(f"device {empty!r} has no examples: every device needs one at least")

    @classmethod
    def of(cls, parts: Mapping[str, Examples]) -> Devices:
        """From any map of device to examples.

        >>> one = Examples(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> devices = Devices.of({"alice": one, "bob": one})
        >>> len(devices), devices.sizes.tolist()
        (2, [2, 2])
        """
        if not parts:
            raise DataError("there are no devices: training needs one at least")
        inputs = torch.cat([part.inputs for part in parts.values()])
        labels = torch.cat([part.labels for part in parts.values()])
        sizes = torch.tensor([0, *(len(part) for part in parts.values())])
        return cls(Examples(inputs, labels), sizes.cumsum(0), tuple(parts))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> Tensor:
        """Examples of each device, int64."""
        return self.starts.diff()

    def to(self, device: torch.device) -> Devices:
        """Copy with the examples on another device of the machine; `starts` stays on the CPU."""
        inputs, labels = self.examples.inputs.to(device), self.examples.labels.to(device)
        return Devices(Examples(inputs, labels), self.starts, self.names)


@dataclass(frozen=True, eq=False)
class Batches:
    """Examples that each worker of a cohort takes, step by step.

    Workers with fewer examples have empty places: index 0 and `present` False there. A step
    without any example present changes nothing.
    """

    indices: Tensor  # `(workers, steps, batch_size)`, int64, into the examples of all devices
    present: Tensor | None = None  # of the same shape, bool; None if there are no empty places


@dataclass(frozen=True, eq=False)
class Task:
    """A model, the devices that train it, and the examples that test it.

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
    """
    devices, test = task.devices.examples, task.test
    if devices.inputs.shape[1:] != test.inputs.shape[1:]:
        raise DataError(
            f"test inputs must have the shape of the devices', {tuple(devices.inputs.shape[1:])} "
            f"each, got {tuple(test.inputs.shape[1:])}"
        )
    inputs, kind = devices.inputs[:1].cpu(), type(model).__name__
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            scores = copy.deepcopy(model).cpu().eval()(inputs)
    except (RuntimeError, IndexError, ValueError, TypeError) as error:
        said = (str(error).splitlines() or [type(error).__name__])[0]
        raise ArgumentError(
            f"model must take inputs of the shape {tuple(inputs.shape[1:])} and type "
            f"{inputs.dtype}, as the data has: {kind} says: {said}"
        ) from error
    if not isinstance(scores, Tensor):
        raise ArgumentError(
            "model must give a tensor of scores (batch, classes), got a "
            f"{type(scores).__name__} from {kind}"
        )
    if scores.dim() != 2 or len(scores) != 1 or not scores.is_floating_point():
        raise ArgumentError(
            f"model must give scores (batch, classes), floating point, got {scores.dtype} of the "
            f"shape {tuple(scores.shape)} for a batch of 1 from {kind}"
        )
    for part, examples in (("the devices", devices), ("the test set", test)):
        low, high = examples.label_range  # of no examples, none: whoever evaluates says so
        if low < 0 or high >= scores.shape[1]:
            raise DataError(
                f"labels of {part} must be in [0, {scores.shape[1]}), the scores of the model, "
                f"got {low if low < 0 else high}"
            )


@dataclass(frozen=True)
class TaskKind:
    """A named task that comes along: a data set, who holds it, and the models for it.

    Args:
        name: As in settings.
        title: For reports.
        models: Names of its models; the first is the default.
        defaults: Settings of a run on it, where none are given.
        load: Makes the task from the name of a model, the numbers of workers and samples, the
            user's directory (each may be None) and the seed.
    """

    name: str
    title: str
    models: tuple[str, ...]
    defaults: Mapping[str, str | int | float]
    load: Callable[..., Task]


@cache
def task_kinds() -> Mapping[str, TaskKind]:
    """The tasks by name: those in `TASKS` of each module of `diffsketch.training.data`."""
    from diffsketch.training import data  # it imports this module

    modules = sorted(info.name for info in pkgutil.iter_modules(data.__path__))
    found = (import_module(f"{data.__name__}.{module}") for module in modules)
    return MappingProxyType({kind.name: kind for one in found for kind in one.TASKS})


def load_task(
    name: str,
    *,
    model: str | None = None,
    workers: int | None = None,
    samples: int | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
) -> Task:
    """A task with its data, ready to be trained.

    Guarantees (`tests/training/test_tasks.py`): the paper's sizes; no image in two workers; the
    same seed gives the same task.

    Args:
        name: One of `task_kinds`.
        model: One of the task's models; None takes the first.
        workers: How many devices hold data; None takes the paper's number (for a user's Shakespeare
            at most that many).
        samples: Of each device, for the MNIST tasks.
        data_dir: The user's own files of the same format (idx, or LEAF's JSON); None takes the
            embedded ones. A directory with LEAF's own division into train and test keeps it.
        seed: Which images, and who has them.

    Raises:
        ArgumentError: A name is unknown, a number out of range, or there are fewer examples than
            the devices need.
        DataError: A file is missing, damaged or not in the format.

    >>> task = load_task("mnist", workers=5, samples=20)
    >>> len(task.devices), task.devices.examples.inputs.shape, len(task.test)
    (5, torch.Size([100, 784]), 10000)
    """
    kinds = task_kinds()
    check(name in kinds, "name", f"be one of {', '.join(kinds)}", name)
    kind = kinds[name]
    chosen = kind.models[0] if model is None else model
    check(chosen in kind.models, "model", f"be one of {', '.join(kind.models)} for {name}", chosen)
    for argument, number in (("workers", workers), ("samples", samples)):
        if number is not None:
            check_whole(argument, number, least=1)
    directory = None if data_dir is None else Path(data_dir)
    return kind.load(chosen, workers, samples, directory, seed)

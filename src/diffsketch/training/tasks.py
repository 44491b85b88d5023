"""Tasks: devices with their examples, a test set and a model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor, nn

from diffsketch.errors import ArgumentError, DataError, check
from diffsketch.training.data import (
    ImageDataset,
    RoleSamples,
    load_mnist,
    load_shakespeare,
    select_roles,
    split_roles,
)
from diffsketch.training.models import CharGRU, CharLSTM, LogisticRegression, SmallCNN


@dataclass(frozen=True, eq=False)
class Examples:
    """Inputs with a label each.

    Attributes:
        inputs: `(count, ...)`, of whatever type the model takes.
        labels: `(count,)`, int64.
    """

    inputs: Tensor
    labels: Tensor

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
    """The examples of all devices (or workers), and where each one's begin.

    Attributes:
        examples: Of all devices, one after another.
        starts: `(devices + 1,)`, int64: device `i` has the examples `starts[i]` to `starts[i+1]`.
        names: Of the devices.
    """

    examples: Examples
    starts: Tensor
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
        """With the examples on another device of the machine; `starts` stays on the CPU."""
        inputs, labels = self.examples.inputs.to(device), self.examples.labels.to(device)
        return Devices(Examples(inputs, labels), self.starts, self.names)

    def take(self, devices: Sequence[int]) -> dict[str, Examples]:
        """The examples of some devices, by name."""
        return {
            self.names[i]: Examples(
                self.examples.inputs[self.starts[i] : self.starts[i + 1]],
                self.examples.labels[self.starts[i] : self.starts[i + 1]],
            )
            for i in devices
        }


@dataclass(frozen=True, eq=False)
class Batches:
    """Which examples each worker of a cohort takes, step by step.

    Workers with fewer examples have empty places: index 0 and `present` False there. A step
    without any example present changes nothing.

    Attributes:
        indices: `(workers, steps, batch_size)`, int64, into the examples of all devices.
        present: Of the same shape, bool; None if there are no empty places.
    """

    indices: Tensor
    present: Tensor | None = None


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


TASKS = MappingProxyType(
    {
        "mnist": ("logistic", "cnn"),
        "mnist-devices": ("logistic", "cnn"),
        "shakespeare": ("lstm", "gru"),
    }
)
"""The tasks, each with the names of its models; the first is the default."""

_WORKERS = {"mnist": (10, 200), "mnist-devices": (6000, 10)}  # workers, and samples of each
_ROLES = 46
_SMALLEST, _LARGEST = 64, 2200  # samples of a role: `select_roles` says why


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

    - `mnist`: 10 workers with 200 training images each, drawn at random without replacement, so
      that all workers have the same distribution.
    - `mnist-devices` (the paper's MNIST*): the same with 6,000 devices of 10 images each.
    - `shakespeare`: the first 46 roles with 64 to 2,200 samples, each divided into its earlier text
      for training and its later text for testing (`split_roles`).

    Accuracy is on all test images (10,000 for MNIST), and on all test samples of the chosen roles
    (evaluating those takes about a second on a CPU). Images are float32 in [0, 1], flat; they are
    converted once, since converting each batch took longer than the memory saves (188 MB).
    Windows of characters are int64.

    Guarantees (`tests/training/test_tasks.py`): the paper's sizes; no image in two workers; the
    same seed gives the same task.

    Args:
        name: One of `TASKS`.
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
    check(name in TASKS, "name", f"be one of {', '.join(TASKS)}", name)
    models = TASKS[name]
    chosen = models[0] if model is None else model
    check(chosen in models, "model", f"be one of {', '.join(models)} for {name}", chosen)
    for argument, number in (("workers", workers), ("samples", samples)):
        if number is not None:
            whole = isinstance(number, int) and not isinstance(number, bool)
            check(whole and number >= 1, argument, "be a whole number >= 1", number)
    directory = None if data_dir is None else Path(data_dir)
    if name == "shakespeare":
        check(samples is None, "samples", "not be given: a role's text decides", samples)
        return _shakespeare(chosen, workers, directory)
    default_workers, default_samples = _WORKERS[name]
    workers = default_workers if workers is None else workers
    samples = default_samples if samples is None else samples
    return _mnist(name, chosen, sizes=(workers, samples), directory=directory, seed=seed)


def _mnist(
    name: str, model: str, *, sizes: tuple[int, int], directory: Path | None, seed: int
) -> Task:
    train = load_mnist(directory, split="train")
    test = load_mnist(directory, split="test")
    if train.images.shape[1:] != test.images.shape[1:] or len(test) == 0:
        raise DataError(
            f"{directory}: expected test images of the size of the training images, "
            f"{tuple(train.images.shape[1:])}, found {tuple(test.images.shape)}"
        )
    workers, samples = sizes
    if workers * samples > len(train):
        raise ArgumentError(
            f"workers * samples must be <= {len(train)}, the training images there are, "
            f"got workers={workers}, samples={samples}"
        )
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    taken = order[: workers * samples]
    examples = Examples(_pixels(train.images[taken]), train.labels[taken])
    starts = torch.arange(0, workers * samples + 1, samples)
    names = tuple(f"worker-{number}" for number in range(workers))
    return Task(
        name,
        Devices(examples, starts, names),
        Examples(_pixels(test.images), test.labels),
        _image_model(model, train, test),
    )


def _pixels(images: Tensor) -> Tensor:
    """Flat, float32, from 0 to 1."""
    return images.flatten(1).to(torch.float32).div_(255)


def _image_model(model: str, train: ImageDataset, test: ImageDataset) -> Callable[[int], nn.Module]:
    height, width = train.images.shape[1:]
    labels = (part.labels for part in (train, test) if len(part))
    classes = max(2, *(int(part.max()) + 1 for part in labels))
    if model == "logistic":
        return lambda seed: LogisticRegression(height * width, classes)  # noqa: ARG005
    if (height, width) != (28, 28):
        raise DataError(f"model cnn needs images of 28 x 28 pixels, found {height} x {width}")
    return lambda seed: SmallCNN(classes=classes, seed=seed)


def _shakespeare(model: str, workers: int | None, directory: Path | None) -> Task:
    train, test = _roles(directory, workers)
    held = {role.name: Examples(role.inputs.long(), role.labels) for role in train}
    inputs = torch.cat([role.inputs for role in test]).long()
    labels = torch.cat([role.labels for role in test])
    if len(labels) == 0:
        raise DataError(f"{directory or 'embedded'}: the chosen roles have no test samples")
    make: Callable[..., nn.Module] = CharLSTM if model == "lstm" else CharGRU
    return Task(
        "shakespeare", Devices.of(held), Examples(inputs, labels), lambda seed: make(seed=seed)
    )


def _roles(
    directory: Path | None, workers: int | None
) -> tuple[tuple[RoleSamples, ...], tuple[RoleSamples, ...]]:
    """Training and test samples of the chosen roles."""
    if directory is None:
        all_roles = load_shakespeare()
        fitting = sum(_SMALLEST <= len(role) <= _LARGEST for role in all_roles)
        wanted = _ROLES if workers is None else workers
        requirement = f"be <= {fitting}, the roles with {_SMALLEST} to {_LARGEST} samples"
        check(wanted <= fitting, "workers", requirement, wanted)
        return split_roles(select_roles(all_roles, count=wanted))
    if not any((directory / half).is_dir() for half in ("train", "test")):
        roles = load_shakespeare(directory)
        sizes = {role.name: len(role) for role in roles}
        names = _first_roles(sizes, workers, directory)
        return split_roles([role for role in roles if role.name in names])
    train = load_shakespeare(directory, split="train")
    test = {role.name: role for role in load_shakespeare(directory, split="test")}
    sizes = {r.name: len(r) + len(test.get(r.name, ())) for r in train if len(r)}
    names = _first_roles(sizes, workers, directory)
    kept = tuple(role for role in train if role.name in names)
    return kept, tuple(test[role.name] for role in kept if role.name in test)


def _first_roles(sizes: dict[str, int], workers: int | None, directory: Path) -> set[str]:
    fitting = [name for name, size in sizes.items() if _SMALLEST <= size <= _LARGEST]
    wanted = min(_ROLES, len(fitting)) if workers is None else workers
    if not fitting or wanted > len(fitting):
        raise DataError(
            f"{directory}: expected {max(wanted, 1)} roles with {_SMALLEST} to {_LARGEST} samples, "
            f"found {len(fitting)}"
        )
    return set(fitting[:wanted])

"""Tasks: devices with their examples, a test set and a model."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from diffsketch.errors import ArgumentError, DataError, check, check_whole, nearest
from diffsketch.training.defaults import TASK_DEFAULTS
from diffsketch.training.models import WeightLayout, working_copy

Array: TypeAlias = Tensor | npt.ArrayLike
Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
_NAMED = 5  # rows that an error lists
_READ = 1024  # examples that are read from a Dataset at a time


@dataclass(frozen=True, eq=False, init=False)
class Examples:
    """Labelled inputs, from NumPy arrays or tensors, whose memory is shared where possible.

    Args:
        inputs: `(count, ...)`, whole numbers of any type, or real ones, which become float32.
        labels: `(count,)`: classes, which become int64. For a custom loss `(count, ...)`, and real
            numbers as well, which become float32.

    >>> Examples(np.zeros((2, 3)), np.array([0, 1], np.uint8)).labels
    tensor([0, 1])
    """

    inputs: Tensor
    labels: Tensor

    def __init__(self, inputs: Array, labels: Array) -> None:
        inputs, labels = _tensor("inputs", inputs), _tensor("labels", labels)
        # Cross-entropy takes int64 only; small types of files are widened once.
        if not labels.is_floating_point():
            labels = labels.long()
        count = len(inputs)
        requirement = f"have an entry for each of the {count} inputs"
        check(len(labels) == count, "labels", requirement, tuple(labels.shape))
        object.__setattr__(self, "inputs", inputs)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Examples:
        """Copy the examples to another device of the machine."""
        return Examples(self.inputs.to(device), self.labels.to(device))

    @cached_property
    def label_range(self) -> tuple[int, int]:
        """Smallest and largest class; 0 and -1 if there are no examples. Computed once."""
        labels, requirement = self.labels, "be whole numbers (count,) for cross-entropy"
        classes = labels.dtype == torch.int64 and labels.dim() == 1
        check(classes, "labels", requirement, f"{labels.dtype} {tuple(labels.shape)}")
        return (int(labels.min()), int(labels.max())) if len(self) else (0, -1)


Part: TypeAlias = "Examples | tuple[Array, Array] | Dataset[Any] | DataLoader[Any]"
"""Examples of a device or a test set, as `Task` takes them."""


@dataclass(frozen=True, eq=False)
class Devices:
    """Examples of all devices (or workers), one device after another.

    Args:
        examples: Of all of them.
        starts: `(devices + 1,)`, int64: device `i` has `starts[i]` to `starts[i + 1]`.
        names: Of the devices.
        persons: `(examples,)`, whole numbers: whose each is, for methods with `unit="person"`.
    """

    examples: Examples
    starts: Tensor
    names: tuple[str, ...]
    persons: Tensor | None = None

    def __post_init__(self) -> None:
        starts, count = self.starts, len(self.names)
        shaped = starts.dtype == torch.int64 and starts.shape == (count + 1,)
        check(shaped, "starts", "be int64 with one entry more than names", tuple(starts.shape))
        if not count:
            raise DataError("there are no devices: training needs one at least")
        # Every example belongs to exactly one device: none is shared, none is left over.
        if int(starts[0]) != 0 or int(starts[-1]) != len(self.examples):
            raise ArgumentError("starts must begin with 0 and end with the number of examples")
        if empty := (self.sizes <= 0).nonzero().flatten().tolist():
            name = self.names[empty[0]]
            raise DataError(f"device {name!r} has no examples: every device needs one at least")

    @classmethod
    def of(cls, parts: Mapping[str, Part]) -> Devices:
        """Make devices from a map of device to its finite examples, in any form of `Part`.

        >>> part = Examples(torch.zeros(2, 3), torch.tensor([0, 1]))
        >>> devices = Devices.of({"alice": part, "bob": part})
        >>> len(devices), devices.sizes.tolist()
        (2, [2, 2])
        """
        wanted = "be a map of device to a pair of inputs and labels"
        check(isinstance(parts, Mapping), "devices", wanted, type(parts).__name__)
        if not parts:
            raise DataError("there are no devices: training needs one at least")
        named = {name: _examples(part) for name, part in parts.items()}
        for name, part in named.items():
            _check_finite(part, f" of device {name!r}")
        joined = []
        # Shapes are compared here, since torch's own error would not name the device.
        for what in ("inputs", "labels"):
            values = {name: getattr(part, what) for name, part in named.items()}
            shape = next(iter(values.values())).shape[1:]
            for name, value in values.items():
                if value.shape[1:] != shape:
                    raise DataError(
                        f"{what} of device {name!r} must have the shape of the first device's, "
                        f"{tuple(shape)} each, got {tuple(value.shape[1:])}"
                    )
            joined.append(torch.cat(list(values.values())))
        # One tensor for all devices: batches are then picked by index, for a whole cohort at once.
        starts = torch.tensor([0, *map(len, named.values())]).cumsum(0)
        return cls(Examples(*joined), starts, tuple(parts))

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def sizes(self) -> Tensor:
        """Number of examples of each device, int64."""
        return self.starts.diff()

    def to(self, device: torch.device) -> Devices:
        """Copy the examples to another device of the machine; `starts` stays on the CPU."""
        return replace(self, examples=self.examples.to(device))


@dataclass(frozen=True, eq=False)
class Batches:
    """Examples that each worker of a cohort takes, step by step.

    Workers with fewer examples have empty places: index 0 and `present` False there. A step
    without any example present changes nothing.
    """

    examples: Examples  # of all devices
    indices: Tensor  # `(workers, steps, batch_size)`, int64, into the examples
    present: Tensor | None = None  # of the same shape, bool; None if there are no empty places
    seeds: Callable[[], Tensor] | None = None  # `(workers,)`, int64: for models that draw numbers


@dataclass(frozen=True, eq=False, init=False)
class Task:
    """A model, the devices that train it, and the examples that test it.

    Args:
        name: Name in reports.
        devices: Training data: `Devices`, or a map of device to a pair of inputs and labels, or to
            a `Dataset` or `DataLoader` of PyTorch, which is read once, batches and all; finite.
        test: Test data, in the same forms; finite.
        model: A module with its first weights; or a function that makes one from a seed, without
            global random state. It maps inputs `(batch, ...)` to scores, `(batch, classes)` for
            cross-entropy, or to something with `logits`, as Hugging Face's models do. Weights in
            float16 or bfloat16 are trained in float32 (`working_copy`).
        loss: Loss of scores and labels, a mean over the batch, such as
            `torch.nn.functional.mse_loss`; cross-entropy if None.
        keep_local: For models whose layers keep running statistics, such as BatchNorm: those never
            leave a device. Every batch is normalised by its own statistics, in training and in
            prediction: so give batches of several examples. (GroupNorm has no such limit, and
            needs no `keep_local`.) The layers' weights are averaged as all others.

    >>> task = Task("own", {"alice": (np.zeros((2, 3)), [0, 1])}, (np.zeros((1, 3)), [0]),
    ...             nn.Linear(3, 2))
    >>> len(task.devices), task.dim
    (1, 8)
    """

    name: str
    devices: Devices
    test: Examples
    model: Callable[[int], nn.Module]
    loss: Loss | None
    keep_local: bool

    def __init__(
        self,
        name: str,
        devices: Devices | Mapping[str, Part],
        test: Part,
        model: nn.Module | Callable[[int], nn.Module],
        *,
        loss: Loss | None = None,
        keep_local: bool = False,
    ) -> None:
        devices = devices if isinstance(devices, Devices) else Devices.of(devices)
        test, kind = _examples(test), devices.examples.inputs.dtype
        # A model that was trained on pixels in 0..1 must not be tested on 0..255.
        if test.inputs.is_floating_point() != kind.is_floating_point:
            raise DataError(f"test inputs must be {kind}, as the devices', got {test.inputs.dtype}")
        _check_finite(test, " of the test set")
        wanted = "be a module with its weights, or a function that makes one from a seed"
        # A class of modules is the likeliest mistake.
        check(callable(model) and not isinstance(model, type), "model", wanted, model)
        if isinstance(model, nn.Module):
            # Seeds have no meaning for given weights: every run starts from them.
            first = copy.deepcopy(model)  # whatever becomes of the caller's

            def model(seed: int) -> nn.Module:  # noqa: ARG001
                return copy.deepcopy(first)

        values = (name, devices, test, model, loss, keep_local)
        for field, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, field.name, value)

    @cached_property
    def dim(self) -> int:
        """Number of weights of the model: the length of what devices send, uncompressed."""
        return WeightLayout.of(self.model(0)).dim


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type where there is none."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _tensor(name: str, values: Array) -> Tensor:
    if not isinstance(values, Tensor):
        try:
            array = np.asarray(values)
            # PyTorch warns of memory that may not be written, and has no negative strides.
            plain = array.flags.writeable and min(array.strides, default=0) >= 0
            values = torch.from_numpy(array if plain else array.copy())
        except (TypeError, ValueError) as error:
            raise ArgumentError(
                f"{name} must be an array of numbers: {first_line(error)}"
            ) from error
    check(values.dim() >= 1, name, "be (count, ...)", tuple(values.shape))
    return values.float() if values.is_floating_point() else values


def _examples(part: Part) -> Examples:
    if isinstance(part, Examples):
        return part
    if isinstance(part, Dataset):
        # Workers or pinned memory would cost more than this one pass takes.
        part = DataLoader(part, batch_size=_READ)
    if isinstance(part, DataLoader):
        batches, kind = list(part), type(part.dataset).__name__
        pairs = all(isinstance(batch, tuple | list) and len(batch) == 2 for batch in batches)
        check(pairs and bool(batches), "examples", "be pairs of inputs and labels", kind)
        part = tuple(map(torch.cat, zip(*batches, strict=True)))  # type: ignore[assignment]
    pair = isinstance(part, tuple | list) and len(part) == 2
    wanted = "be a pair of inputs and labels, a Dataset or a DataLoader"
    check(pair, "examples", wanted, type(part).__name__)
    return Examples(*part)


def _check_finite(examples: Examples, whose: str) -> None:
    """Raise unless examples are finite: one NaN would make a loss NaN in every round."""
    for name, values in (("inputs", examples.inputs), ("labels", examples.labels)):
        rows = sorted(set((~torch.isfinite(values)).nonzero()[:, 0].tolist()))
        if rows:
            more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
            raise DataError(
                f"{name}{whose} must be finite, got NaN or infinity in rows "
                f"{', '.join(map(str, rows[:_NAMED]))}{more}"
            )


def scores_of(output: Any) -> Tensor:
    """Return a model's scores: its output, or the output's `logits`."""
    scores = output
    if not isinstance(output, Tensor):
        named = isinstance(output, Mapping)
        scores = output.get("logits") if named else getattr(output, "logits", None)
    if not isinstance(scores, Tensor):
        raise ArgumentError(
            "model must give a tensor of scores, or something with logits, got a "
            f"{type(output).__name__}"
        )
    return scores


@contextmanager
def _said_by(requirement: str) -> Iterator[None]:
    """Turn what a model or a loss of the user raises into an `ArgumentError`."""
    try:
        yield
    except ArgumentError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError, UserWarning) as error:
        raise ArgumentError(f"{requirement}: it says: {first_line(error)}") from error


def check_task(task: Task, model: nn.Module) -> None:
    """Raise unless the model takes the examples, and the loss its scores and their labels.

    Tries a copy of the model with one example, twice in a batch.
    """
    devices, test = task.devices.examples, task.test
    if devices.inputs.shape[1:] != test.inputs.shape[1:]:
        raise DataError(
            f"test inputs must have the shape of the devices', {tuple(devices.inputs.shape[1:])} "
            f"each, got {tuple(test.inputs.shape[1:])}"
        )
    inputs = devices.inputs[:1].cpu().repeat_interleave(2, 0)  # BatchNorm refuses a batch of one
    shown = f"inputs of the shape {tuple(inputs.shape[1:])} and type {inputs.dtype}"
    # On the CPU, whose errors say what is wrong; after one on CUDA the process can compute no more.
    copied = working_copy(model, keep_local=task.keep_local).cpu().eval()
    drawing = torch.random.fork_rng(devices=[])  # what the model draws is not missed elsewhere
    with _said_by(f"model must take {shown}, as the data has"), torch.no_grad(), drawing:
        scores = scores_of(copied(inputs))
    if task.loss is not None:
        labels = devices.labels[:1].repeat_interleave(2, 0)
        scores = scores.to(labels.device)
        shown = f"scores {tuple(scores.shape)} and labels {tuple(labels.shape)}, {labels.dtype}"
        with _said_by(f"loss must take {shown}"), warnings.catch_warnings():
            # A target that is broadcast is a mistake.
            warnings.filterwarnings("error", message="Using a target size")
            loss = task.loss(scores, labels)
        if not isinstance(loss, Tensor) or loss.dim() or not loss.is_floating_point():
            kind = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
            raise ArgumentError(f"loss must give one number, a mean over the batch, got {kind}")
        return
    if scores.dim() != 2 or len(scores) != 2 or not scores.is_floating_point():
        raise ArgumentError(
            f"model must give scores (batch, classes), floating point, got {scores.dtype} of the "
            f"shape {tuple(scores.shape)} for a batch of 2 from {type(model).__name__}"
        )
    for part, examples in (("the devices", devices), ("the test set", test)):
        low, high = examples.label_range  # an empty test set passes: evaluation refuses it
        if low < 0 or high >= scores.shape[1]:
            raise DataError(
                f"labels of {part} must be in [0, {scores.shape[1]}), the scores of the model, "
                f"got {low if low < 0 else high}"
            )


def load_task(
    name: str,
    *,
    model: str | None = None,
    workers: int | None = None,
    samples: int | None = None,
    data_dir: str | Path | None = None,
    seed: int = 0,
) -> Task:
    """Load a task with its data, ready to be trained.

    Guarantees (`tests/training/test_tasks.py`): the paper's sizes; no image in two workers; the
    same seed gives the same task.

    Args:
        name: `mnist`, `mnist-devices` or `shakespeare`.
        model: The task's model, if given.
        workers: Number of devices that hold data; None takes the paper's number (for a user's
            Shakespeare at most that number).
        samples: Number of examples of each device, for the MNIST tasks.
        data_dir: Directory of the user's files in the same format (idx, or LEAF's JSON); None takes
            the embedded ones. LEAF's division into train and test is kept where it is there.
        seed: Seed of the choice of images and of who has them.

    Raises:
        ArgumentError: A name is unknown, a number out of range, or there are fewer examples than
            the devices need.
        DataError: A file is missing, damaged or not in the format.

    >>> task = load_task("mnist", workers=5, samples=20)
    >>> len(task.devices), task.devices.examples.inputs.shape, len(task.test)
    (5, torch.Size([100, 784]), 10000)
    """
    from diffsketch.training.data import TASKS  # which imports this module

    if name not in TASKS:
        hint = nearest(name, TASKS)
        raise ArgumentError(f"name must be that of a task, got name={name!r}; {hint}")
    usual = TASK_DEFAULTS[name]["model"]
    check(model in (None, usual), "model", f"be {usual} for {name}", model)
    for argument, number in (("workers", workers), ("samples", samples)):
        if number is not None:
            check_whole(argument, number, least=1)
    directory = None if data_dir is None else Path(data_dir)
    return TASKS[name](workers, samples, directory, seed)

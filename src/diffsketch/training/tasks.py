"""The tasks of the paper: MNIST over workers, MNIST* over devices, Shakespeare by role."""

from __future__ import annotations

from collections.abc import Callable
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
from diffsketch.training.devices import Devices, Examples
from diffsketch.training.models import CharGRU, CharLSTM, LogisticRegression, SmallCNN
from diffsketch.training.task import Task

__all__ = ["TASKS", "load_task"]

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

"""The data sets that training runs on: MNIST and Shakespeare, shipped inside the package.

Each loader reads the embedded files by default (verified by checksum, no download) or the user's
own directory: idx files for MNIST, LEAF's JSON for Shakespeare. What a user's file gets wrong is a
`DataError` that names the file, what was expected and what was found.
"""

from collections.abc import Callable, Mapping
from functools import partial

from diffsketch.training.data.mnist import load_images, load_mnist
from diffsketch.training.data.shakespeare import load_plays, load_shakespeare
from diffsketch.training.tasks import Task

__all__ = ["TASKS", "load_mnist", "load_shakespeare"]

TASKS: Mapping[str, Callable[..., Task]] = {
    "mnist": partial(load_images, "mnist"),
    "mnist-devices": partial(load_images, "mnist-devices"),
    "shakespeare": load_plays,
}
"""Loaders of the tasks: of workers, samples, a directory (each may be None) and a seed."""

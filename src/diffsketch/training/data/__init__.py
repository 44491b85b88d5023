"""The data sets that training runs on: MNIST and Shakespeare, shipped inside the package.

Each loader reads the embedded files by default (verified by checksum, no download) or the user's
own directory: idx files for MNIST, LEAF's JSON for Shakespeare. What a user's file gets wrong is a
`DataError` that names the file, what was expected and what was found. A module here is a data set
with its tasks, in `TASKS`.
"""

from diffsketch.training.data.mnist import ImageDataset, load_mnist
from diffsketch.training.data.shakespeare import (
    LETTERS,
    WINDOW,
    encode_text,
    load_role_texts,
    load_shakespeare,
    role_samples,
    split_roles,
)

__all__ = [
    "LETTERS",
    "WINDOW",
    "ImageDataset",
    "encode_text",
    "load_mnist",
    "load_role_texts",
    "load_shakespeare",
    "role_samples",
    "split_roles",
]

"""The data sets that training runs on: MNIST and Shakespeare, shipped inside the package.

Each loader reads the embedded files by default (verified by checksum, no download) or the user's
own directory: idx files for MNIST, LEAF's JSON for Shakespeare. What a user's file gets wrong is a
`DataError` that names the file, what was expected and what was found. A module here is a data set
with its tasks, in `TASKS`.
"""

from diffsketch.training.data.mnist import load_mnist
from diffsketch.training.data.shakespeare import load_shakespeare

__all__ = ["load_mnist", "load_shakespeare"]

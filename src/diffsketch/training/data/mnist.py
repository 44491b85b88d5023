"""MNIST: the embedded copy, or idx files in the user's directory.

Imports nothing of ours but `errors` and this folder's `embedded` and `idx`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from diffsketch.errors import DataError, check
from diffsketch.training.data.embedded import embedded_file
from diffsketch.training.data.idx import read_idx

__all__ = ["ImageDataset", "load_mnist"]

_PREFIX = {"train": "train", "test": "t10k"}

# Of the unpacked bytes, so that packing a file anew does not change them.
_SHA256 = {
    "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


@dataclass(frozen=True, eq=False)
class ImageDataset:
    """Images with one label each.

    Attributes:
        images: Pixels, uint8, shape (count, height, width).
        labels: Classes, int64, shape (count,).

    Raises:
        ArgumentError: A tensor has another dtype or shape, or the counts differ.

    >>> len(ImageDataset(torch.zeros(3, 28, 28, dtype=torch.uint8), torch.tensor([7, 2, 1])))
    3
    """

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        check(images.dtype == torch.uint8, "images.dtype", "be torch.uint8", images.dtype)
        check(images.ndim == 3, "images.ndim", "be 3", images.ndim)
        check(labels.dtype == torch.int64, "labels.dtype", "be torch.int64", labels.dtype)
        count = len(images)
        check(labels.shape == (count,), "labels.shape", f"be ({count},)", tuple(labels.shape))

    def __len__(self) -> int:
        return len(self.labels)


def load_mnist(
    directory: Path | str | None = None, *, split: Literal["train", "test"]
) -> ImageDataset:
    """Load one split of MNIST, or of a data set in its format.

    In a directory of the user's, a file may be plain or gzipped and be spelt
    `train-images-idx3-ubyte` or `train-images.idx3-ubyte`; plain goes before gzipped. Images may
    have any size, and labels any value of one byte.

    Guarantees:
        The embedded files are exactly the published ones
        (`test_flipped_bit_in_embedded_images_is_found`); whatever a user's file holds, the result
        is a valid data set or a `DataError` (`test_mutated_files_never_crash`).

    Args:
        directory: Where to look; None takes the embedded files and verifies their checksums.
        split: `"train"` (60,000 images) or `"test"` (10,000, files called `t10k-...`).

    Raises:
        ArgumentError: `split` is something else.
        DataError: A file is missing, damaged or not in the format, or the counts differ.

    References:
        Y. LeCun, C. Cortes, C. J. C. Burges, The MNIST database of handwritten digits.

    >>> test = load_mnist(split="test")
    >>> test.images.shape, test.labels[:3]
    (torch.Size([10000, 28, 28]), tensor([7, 2, 1]))
    """
    check(split in ("train", "test"), "split", "be 'train' or 'test'", split)
    prefix = _PREFIX[split]
    if directory is None:
        return _load_embedded(prefix)
    images_file, labels_file = _find_files(Path(directory), prefix)
    images, labels = read_idx(images_file, ndim=3), read_idx(labels_file, ndim=1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_file} and {labels_file.name} do not belong together: "
            f"expected as many labels as images, found {len(images)} images, {len(labels)} labels"
        )
    return ImageDataset(images, labels.long())


def _load_embedded(prefix: str) -> ImageDataset:
    """Load the embedded images and labels, refusing bytes that are not the published ones."""
    images, labels = (
        read_idx(
            embedded_file(f"{prefix}-{kind}-idx{ndim}-ubyte.gz"),
            ndim=ndim,
            sha256=_SHA256[f"{prefix}-{kind}"],
        )
        for kind, ndim in (("images", 3), ("labels", 1))
    )
    return ImageDataset(images, labels.long())


def _find_files(directory: Path, prefix: str) -> tuple[Path, Path]:
    """The image file and the label file of one split in a user's directory."""
    found: list[Path] = []
    missing: list[str] = []
    try:
        present = {entry.name for entry in directory.iterdir() if entry.is_file()}
    except (OSError, ValueError) as error:
        raise DataError(f"{directory}: cannot be read as a directory: {error}") from error
    for stem, ending in ((f"{prefix}-images", "idx3-ubyte"), (f"{prefix}-labels", "idx1-ubyte")):
        spellings = [f"{stem}{dash}{ending}{gz}" for gz in ("", ".gz") for dash in "-."]
        names = [name for name in spellings if name in present]
        if names:
            found.append(directory / names[0])
        else:
            missing.append(spellings[0])
    if missing:
        raise DataError(
            f"{directory}: missing {' and '.join(missing)} "
            "(looked for each plain or with .gz, and with '.idx' for '-idx')"
        )
    return found[0], found[1]

"""MNIST: the embedded copy, or idx files in the user's directory."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from functools import cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Literal

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError, check
from diffsketch.training.data.embedded import embedded_file, require, verify_sha256
from diffsketch.training.defaults import TASK_DEFAULTS
from diffsketch.training.models import LogisticRegression
from diffsketch.training.tasks import Devices, Examples, Task

MAX_BYTES = 2**31
"""Largest number of data bytes in a header; the largest relatives of MNIST need a third of it."""

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_PIECE = 2**20


def read_idx(file: Path | Traversable, *, ndim: int, sha256: str | None = None) -> Tensor:
    """Read an idx file of unsigned bytes, gzipped or plain, into a uint8 tensor of its shape.

    Whether the file is gzipped is told from its content, because browsers unpack downloads without
    renaming them.

    Guarantees: reads back what was written (`test_idx_round_trip`); any damage is a `DataError` or
    leaves a valid data set (`test_mutated_files_never_crash`); memory stays within what the file
    holds and the header promises (`test_memory_is_bounded`).
    """
    try:
        with file.open("rb") as raw:
            content, shape = _unpack(raw, ndim, origin=file)
    except DataError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{file}: damaged or unreadable: {error}") from error
    if sha256 is not None:
        verify_sha256(content, sha256, origin=file)
    # frombuffer shares the bytearray, so 47 MB of images exist once.
    return torch.frombuffer(content, dtype=torch.uint8, offset=4 + 4 * ndim).reshape(shape)


def _unpack(raw: IO[bytes], ndim: int, *, origin: object) -> tuple[bytearray, tuple[int, ...]]:
    """Read a file, header included, and the shape that its header states, checked."""
    # By its first two bytes; an idx file begins with two zeros.
    packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    stream = gzip.GzipFile(fileobj=raw) if packed else raw
    header = 4 + 4 * ndim
    content = bytearray(stream.read(header))
    magic, start = bytes([0, 0, _UNSIGNED_BYTE, ndim]), content[:4]
    problem = (
        f"not an idx file of unsigned bytes in {ndim} dimension(s): expected it to start with "
        f"{magic.hex(' ')}, found {start.hex(' ') or 'nothing'}"
    )
    require(start == magic, origin, problem)
    problem = f"the header is cut short: expected {header} bytes, found {len(content)}"
    require(len(content) == header, origin, problem)
    shape: tuple[int, ...] = struct.unpack_from(f">{ndim}I", content, 4)
    require(0 not in shape, origin, f"expected dimensions of at least 1, found {shape}")
    size = math.prod(shape)
    problem = f"the header promises {size} bytes (shape {shape}), expected at most {MAX_BYTES}"
    require(size <= MAX_BYTES, origin, problem)
    end = header + size
    # One byte beyond the promised end: enough to see that there is too much, and, in a gzipped
    # file, what makes the last read verify the stored CRC.
    while len(content) <= end and (piece := stream.read(min(_PIECE, end + 1 - len(content)))):
        content += piece
    length = "more" if len(content) > end else f"only {len(content)}"
    problem = f"expected {end} bytes (header and data of shape {shape}), found {length}"
    require(len(content) == end, origin, problem)
    return content, shape


# Of the unpacked bytes, so that another compressor does not change them.
_SHA256 = {
    "train-images": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}


def load_mnist(directory: Path | str | None = None, *, split: Literal["train", "test"]) -> Examples:
    """Load one split of MNIST, or of a data set in its format.

    In a user's directory, a file may be plain or gzipped and be called `train-images-idx3-ubyte`
    or `train-images.idx3-ubyte`; plain goes before gzipped. Images may have any size, and labels
    any value of one byte. Inputs are pixels, uint8, of the shape (count, height, width); labels
    int64.

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
    >>> test.inputs.shape, test.labels[:3]
    (torch.Size([10000, 28, 28]), tensor([7, 2, 1]))
    """
    check(split in ("train", "test"), "split", "be 'train' or 'test'", split)
    prefix = {"train": "train", "test": "t10k"}[split]
    parts = ((f"{prefix}-images", 3), (f"{prefix}-labels", 1))  # names, and dimensions
    if directory is None:
        return Examples(*(_embedded(name, ndim).clone() for name, ndim in parts))
    folder = Path(directory)
    try:
        present = {entry.name for entry in folder.iterdir() if entry.is_file()}
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: cannot be read as a directory: {error}") from error
    paths, missing = list[Path](), list[str]()
    for name, ndim in parts:
        spellings = [f"{name}{dash}idx{ndim}-ubyte{gz}" for gz in ("", ".gz") for dash in "-."]
        present_names = [spelling for spelling in spellings if spelling in present]
        paths += [folder / spelling for spelling in present_names[:1]]
        missing += [] if present_names else spellings[:1]
    problem = f"missing {' and '.join(missing)} (looked for each plain or with .gz, and with '.idx'"
    require(not missing, folder, f"{problem} for '-idx')")
    images, labels = read_idx(paths[0], ndim=3), read_idx(paths[1], ndim=1)
    if len(images) != len(labels):
        raise DataError(
            f"{paths[0]} and {paths[1].name} do not belong together: "
            f"expected as many labels as images, found {len(images)} images, {len(labels)} labels"
        )
    return Examples(images, labels)


@cache  # hundreds of runs in one process would unpack them again, a quarter of a second each
def _embedded(name: str, ndim: int) -> Tensor:
    file = embedded_file(f"{name}-idx{ndim}-ubyte.gz")
    return read_idx(file, ndim=ndim, sha256=_SHA256[name])


def load_images(
    name: str, workers: int | None, samples: int | None, directory: Path | None, seed: int
) -> Task:
    """Give images to workers, drawn at random without replacement, and keep all test images.

    Images are float32 in [0, 1], flat; they are converted once, since converting each batch took
    longer than the memory saves (188 MB).
    """
    usual = TASK_DEFAULTS[name]
    workers = int(usual["workers"]) if workers is None else workers
    samples = int(usual["samples"]) if samples is None else samples
    train, test = load_mnist(directory, split="train"), load_mnist(directory, split="test")
    height, width = train.inputs.shape[1:]
    problem = (
        f"expected test images of the size of the training images, {(height, width)}, found "
        f"{tuple(test.inputs.shape)}"
    )
    require(test.inputs.shape[1:] == (height, width) and len(test) > 0, directory, problem)
    if workers * samples > len(train):
        raise ArgumentError(
            f"workers * samples must be <= {len(train)}, the number of training images, "
            f"got workers={workers}, samples={samples}"
        )
    # From both halves: a class that only the test set has must not be out of the model's range.
    classes = max(2, int(train.labels.max()) + 1, int(test.labels.max()) + 1)
    model = LogisticRegression(height * width, classes)

    def examples(images: Tensor, labels: Tensor) -> Examples:
        return Examples(images.flatten(1).to(torch.float32).div_(255), labels)

    # Dealt out at random: the files are in no order, but a user's may be sorted by label.
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))
    taken = order[: workers * samples]
    starts = torch.arange(0, workers * samples + 1, samples)
    names = tuple(f"worker-{number}" for number in range(workers))
    held = examples(train.inputs[taken], train.labels[taken])
    return Task(name, Devices(held, starts, names), examples(test.inputs, test.labels), model)

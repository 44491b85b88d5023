"""MNIST: the embedded copy, or idx files in the user's directory."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Literal

import torch
from torch import Tensor

from diffsketch.errors import DataError, check


def embedded_file(name: str) -> Traversable:
    """The embedded file called `name`; reading one that does not exist fails on opening it."""
    return files("diffsketch.training.data") / "files" / name


def verify_sha256(content: bytes | bytearray, expected: str, *, origin: object) -> None:
    """Raise unless `content` has the SHA-256 `expected`.

    Guarantees: one flipped bit is found (`test_flipped_bit_in_embedded_images_is_found`).

    Args:
        content: The unpacked bytes of a file.
        expected: The SHA-256 as 64 hexadecimal digits.
        origin: Where the bytes came from, for the message.

    Raises:
        DataError: The checksum is another one.

    >>> verify_sha256(b"", "00", origin="nothing")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    diffsketch.errors.DataError: nothing: checksum failure: expected SHA-256 00, found e3b0c4...
    """
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise DataError(f"{origin}: checksum failure: expected SHA-256 {expected}, found {found}")


MAX_BYTES = 2**31
"""The most data bytes a file may promise; the largest relatives of MNIST need a third of it."""

_GZIP_MAGIC = b"\x1f\x8b"
_UNSIGNED_BYTE = 0x08
_PIECE = 2**20


def read_idx(file: Path | Traversable, *, ndim: int, sha256: str | None = None) -> Tensor:
    """Read an idx file of unsigned bytes, gzipped or plain.

    Whether the file is gzipped is told from its content, because browsers unpack downloads without
    renaming them.

    Guarantees:
        Reads back what was written (`test_idx_round_trip`); any damage is a `DataError` or leaves
        a valid data set (`test_mutated_files_never_crash`); memory stays within what the file
        holds and the header promises (`test_huge_header_is_refused`, `test_gzip_bomb_is_bounded`).

    Args:
        file: The file, of which only `open` is used.
        ndim: The number of dimensions it must have.
        sha256: The checksum that its unpacked bytes must have; None accepts any content.

    Returns:
        A uint8 tensor of the shape in the header.

    Raises:
        DataError: The file cannot be read, is not idx, has another type or number of dimensions,
            a dimension of 0, more or fewer bytes than its shape needs, or another checksum.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "labels"
    ...     _ = path.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
    ...     read_idx(path, ndim=1)
    tensor([7, 2, 1], dtype=torch.uint8)
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
    """Read the whole file, header included, and the shape that its header states."""
    packed = raw.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    raw.seek(0)
    stream = gzip.GzipFile(fileobj=raw) if packed else raw
    content = bytearray(stream.read(4 + 4 * ndim))
    shape = _parse_header(content, ndim, origin=origin)
    end = len(content) + math.prod(shape)
    # One byte beyond the promised end: enough to see that there is too much, and, in a gzipped
    # file, what makes the last read verify the stored CRC.
    while len(content) <= end:
        piece = stream.read(min(_PIECE, end + 1 - len(content)))
        if not piece:
            break
        content += piece
    if len(content) != end:
        found = "more" if len(content) > end else f"only {len(content)}"
        raise DataError(
            f"{origin}: expected {end} bytes (header and data of shape {shape}), found {found}"
        )
    return content, shape


def _parse_header(header: bytearray, ndim: int, *, origin: object) -> tuple[int, ...]:
    """The shape that an idx header states, checked."""
    magic = bytes([0, 0, _UNSIGNED_BYTE, ndim])
    if header[:4] != magic:
        raise DataError(
            f"{origin}: not an idx file of unsigned bytes in {ndim} dimension(s): "
            f"expected it to start with {magic.hex(' ')}, found {header[:4].hex(' ') or 'nothing'}"
        )
    if len(header) != 4 + 4 * ndim:
        raise DataError(
            f"{origin}: the header is cut short: expected {4 + 4 * ndim} bytes, found {len(header)}"
        )
    shape: tuple[int, ...] = struct.unpack_from(f">{ndim}I", header, 4)
    if 0 in shape:
        raise DataError(f"{origin}: expected dimensions of at least 1, found {shape}")
    if math.prod(shape) > MAX_BYTES:
        raise DataError(
            f"{origin}: the header promises {math.prod(shape)} bytes (shape {shape}), "
            f"expected at most {MAX_BYTES}"
        )
    return shape


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

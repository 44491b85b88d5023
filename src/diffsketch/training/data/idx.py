"""Reading idx files, the format of MNIST: a header with the shape, then one byte per entry.

An idx file starts with two zero bytes, a type byte and the number of dimensions; each dimension
follows as a big-endian 32-bit integer, then the data. The header comes from a stranger, so nothing
is allocated on its word: data is read piece by piece, and never past what the header promises.
Imports nothing of ours but `errors` and `embedded`; the loaders of this folder import it.
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor

from diffsketch.errors import DataError
from diffsketch.training.data.embedded import verify_sha256

__all__ = ["MAX_BYTES", "read_idx"]

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

"""Kernels for CPU tensors: how the work is cut; the loops are in `cpu_blocked`, `cpu_scattered`.

The bits of a result depend on the vector and the sketch only, never on the number of threads. An
encode either adds into the table itself, the rows shared out among the threads, or, where they
are small enough, into a fixed number of partial tables, added in order at the end.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffsketch.sketch.hashing import HashSeed, Layout
from diffsketch.sketch.kernels import cpu_blocked, cpu_scattered

__all__ = ["INPUT_TYPES", "encode", "is_finite", "query"]

INPUT_TYPES = (torch.float32, torch.float64)

_SERIAL = 1 << 15  # coordinates under which starting threads costs more than it gains
_SPARE = 1 << 18  # bytes of scratch that are always allowed; else 1% of the vector
_MAX_PARTS = 8
_SHORT_ROW = 1024  # columns up to which consecutive blocks get in each other's way
_MAX_COPIES = 8
_STREAM = 1 << 24  # bytes of output from which on it is written past the caches


def encode(vectors: Tensor, seed: HashSeed, *, layout: Layout, offset: int) -> Tensor:
    """Tables of vectors `(..., length)`, which start at coordinate `offset`."""
    length, cols = vectors.shape[-1], layout.cols
    shape = (*vectors.shape[:-1], layout.rows, cols)
    if not vectors.numel():
        return torch.zeros(shape, dtype=vectors.dtype)
    source = vectors.numpy().reshape(-1, length)
    items, threads = source.shape[0], _threads(source.size)
    runs, words, block = layout.geometry.runs, seed.words, layout.geometry.block
    in_vectors = _in_vectors(layout)
    width = cols + (min(block, cpu_blocked.CHUNK) if in_vectors else 0)
    parts, copies = _parts(length, layout, width, source.itemsize)
    out = (torch.empty if copies else torch.zeros)(shape, dtype=vectors.dtype)
    table = out.numpy().reshape(items, layout.rows, cols)
    if in_vectors and copies and length < _SERIAL:
        short = cpu_blocked.encode_short if threads == 1 else cpu_blocked.encode_short_parallel
        short(source, offset, table, copies, cols, block, runs, words)
        return out
    tables = table[:, None]
    if copies:
        tables = np.zeros((items, parts * copies, layout.rows, width), dtype=source.dtype)
    shares = -(-threads // (items * parts))
    if in_vectors:
        run = cpu_blocked.encode_long if threads == 1 else cpu_blocked.encode_long_parallel
        bands = -(-shares // layout.rows)
        run(source, offset, tables, parts, shares, bands, cols, block, runs, words, table)
    else:
        run = cpu_scattered.encode if threads == 1 else cpu_scattered.encode_parallel
        shares = min(shares, layout.rows)
        run(source, offset, tables, shares, cols, _block(layout), runs, words, table)
    return out


def query(
    tables: Tensor,
    seed: HashSeed,
    out: Tensor,
    *,
    layout: Layout,
    offset: int,
    mean: bool,
    validate: bool,
) -> bool:
    """Write estimates of the coordinates from `offset` on to `out`, `(..., length)`.

    False, and nothing is written, if the tables are to be validated and not finite.
    """
    length, cols = out.shape[-1], layout.cols
    if not out.numel():
        return True
    result = out.numpy().reshape(-1, length)
    table = tables.numpy().reshape(-1, layout.rows, cols)
    items, threads = result.shape[0], _threads(result.size)
    parts, per_row = -(-threads // items), (None,) * layout.rows
    runs, words = layout.geometry.runs, seed.words
    if not _in_vectors(layout):
        run = cpu_scattered.query if threads == 1 else cpu_scattered.query_parallel
        block = _block(layout)
        return bool(
            run(table, cols, result, offset, parts, block, runs, words, per_row, mean, validate)
        )
    block = layout.geometry.block
    pad = min(block, cpu_blocked.CHUNK)
    if layout.rows * (cols + pad) * table.itemsize > _SPARE // 4:
        pad = 0
    stream = False
    if result.nbytes >= _STREAM:
        place = out.data_ptr() - offset * table.itemsize
        stream = place % 64 == 0 and (items == 1 or length % 16 == 0)
    run = cpu_blocked.query if threads == 1 else cpu_blocked.query_parallel
    return bool(
        run(
            table, cols, result, offset, parts, pad, block, runs, words, per_row, mean, stream,
            validate,
        )
    )  # fmt: skip


def is_finite(table: Tensor) -> bool:
    """Whether no cell is NaN or infinite."""
    return bool(torch.isfinite(table).all())


def _in_vectors(layout: Layout) -> bool:
    """Whether blocks are a whole number of 64-byte vectors."""
    return layout.family == "blocked" and layout.geometry.block >= 16


def _block(layout: Layout) -> int:
    return layout.geometry.block if layout.family == "blocked" else 0


def _threads(work: int) -> int:
    return 1 if work < _SERIAL else torch.get_num_threads()


def _parts(length: int, layout: Layout, width: int, itemsize: int) -> tuple[int, int]:
    """How many parts a vector is cut into, and how many partial tables each has, if any.

    Both are powers of two and follow from the sizes alone, as the order of additions does.
    """
    room = max(_SPARE, length * itemsize // 100) // (layout.rows * width * itemsize)
    if not room:
        return 1, 0
    room = 1 << (room.bit_length() - 1)
    if width == layout.cols:
        parts = 1 if length < _SERIAL else min(room, _MAX_PARTS)
        return parts, int(parts > 1)
    copies = min(room, _MAX_COPIES if layout.cols <= _SHORT_ROW else 1)
    return (1 if length < _SERIAL else min(room // copies, _MAX_PARTS)), copies

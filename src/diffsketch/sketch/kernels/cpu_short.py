"""The blocked family for short vectors, where everything but the arithmetic has to go.

Compiled by Numba; sizes and types are checked by the caller. Blocks are one chunk each. The hashes
of a vector's blocks come ready-made: they are few, and the vectors of a round share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from diffsketch.sketch.kernels.cpu_adding import add_signed_blocks
from diffsketch.sketch.kernels.cpu_combining import mean_blocks, median_blocks
from diffsketch.sketch.kernels.cpu_hashes import (
    address,
    finite,
    fold,
    hash_signs,
    hash_starts,
    pad_rows,
)


@njit(cache=True, nogil=True)
def hash_blocks(
    first: Any, count: Any, rows: Any, cols: Any, block: Any, runs: Any, words: Any
) -> Any:
    """Starts of blocks in each row, `(rows, count)`, then steps and starts of their signs."""
    hashes = np.empty((rows + 2, count), np.uint32)
    for j in range(rows):
        hash_starts(first, runs, cols, block, j, words, hashes[j])
    hash_signs(first, words, hashes[rows], hashes[rows + 1])
    return hashes


@njit
def _encode(
    vector: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, per_row: Any
) -> None:
    """The vector begins `before` coordinates into its first block.

    Blocks take turns on `copies` tables with longer rows: a load that overlaps a store made just
    before, as happens all the time in short rows, would have to wait for it.
    """
    rows, cols, size, count = out.shape[0], out.shape[1], vector.itemsize, hashes.shape[1]
    width, vectors = cols + block, block * vector.itemsize // 64
    tables = np.zeros((copies, rows, width), vector.dtype)
    at, by, of = address(hashes), address(hashes[rows]), address(hashes[rows + 1])
    whole = 0 if before else vector.size // block
    stride, apart, source = width * size, rows * width * size, address(vector)
    add_signed_blocks(
        address(tables), source, whole, vectors, per_row, stride, at, count, by, of, copies - 1,
        apart, vector[0],
    )  # fmt: skip
    if whole < count:  # what fills its blocks only in part is copied first
        rest, skip = np.zeros((count - whole) * block, vector.dtype), 4 * whole
        rest[before : before + vector.size - whole * block] = vector[whole * block :]
        at, by, of = at + skip, by + skip, of + skip
        add_signed_blocks(
            address(tables) + (whole & (copies - 1)) * apart, address(rest), count - whole,
            vectors, per_row, stride, at, count, by, of, copies - 1, apart, vector[0],
        )  # fmt: skip
    fold(tables, out)


@njit(cache=True, nogil=True)
def encode(
    vectors: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, per_row: Any
) -> None:
    """One thread."""
    for item in range(vectors.shape[0]):
        _encode(vectors[item], before, out[item], copies, block, hashes, per_row)


@njit(cache=True, parallel=True, nogil=True)
def encode_parallel(
    vectors: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, per_row: Any
) -> None:
    """The same with all threads, a vector at a time for each."""
    for item in prange(vectors.shape[0]):
        _encode(vectors[item], before, out[item], copies, block, hashes, per_row)


@njit
def _query(
    table: Any, out: Any, before: Any, block: Any, hashes: Any, per_row: Any, mean: Any
) -> None:
    rows, cols, size, count = table.shape[0], table.shape[1], table.itemsize, hashes.shape[1]
    width, vectors = cols + block, block * table.itemsize // 64
    longer = pad_rows(table, block)
    whole = 0 if before else out.size // block
    room = np.empty((count - whole) * block, table.dtype)
    at, by, of = address(hashes), address(hashes[rows]), address(hashes[rows + 1])
    cell, apart, one = address(longer), width * size, table[0, 0]
    to, more, left, skip = address(out), address(room), count - whole, 4 * whole
    if mean:
        mean_blocks(to, cell, apart, per_row, whole, vectors, at, count, by, of, one)
        at, by, of = at + skip, by + skip, of + skip
        mean_blocks(more, cell, apart, per_row, left, vectors, at, count, by, of, one)
    else:
        median_blocks(to, cell, apart, per_row, whole, vectors, at, count, by, of, one)
        at, by, of = at + skip, by + skip, of + skip
        median_blocks(more, cell, apart, per_row, left, vectors, at, count, by, of, one)
    done = whole * block  # blocks that are only in part asked for went to a room of their own
    out[done:] = room[before : before + out.size - done]


@njit(cache=True, nogil=True)
def query(
    tables: Any, outs: Any, before: Any, block: Any, hashes: Any, per_row: Any, mean: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite."""
    if validate and not finite(tables):
        return False
    for item in range(tables.shape[0]):
        _query(tables[item], outs[item], before, block, hashes, per_row, mean)
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, outs: Any, before: Any, block: Any, hashes: Any, per_row: Any, mean: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads, a table at a time for each."""
    if validate and not finite(tables):
        return False
    for item in prange(tables.shape[0]):
        _query(tables[item], outs[item], before, block, hashes, per_row, mean)
    return True

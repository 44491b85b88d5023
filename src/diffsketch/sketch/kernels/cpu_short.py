"""The blocked family for short vectors, where everything but the arithmetic has to go.

Compiled by Numba; sizes and types are checked by the caller. Blocks are one chunk each. The hashes
of a vector's blocks come ready-made: they are few, and the vectors of a round share them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from diffsketch.sketch.kernels.cpu_adding import add_blocks
from diffsketch.sketch.kernels.cpu_functions import call
from diffsketch.sketch.kernels.cpu_hashes import (
    REST,
    TOP,
    address,
    copy,
    finite,
    fold,
    hash_signs,
    hash_starts,
    keep,
    pad_rows,
)

SPREAD = 1 << 14  # bytes of a wide table that are allowed: half of a small first-level cache


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


@njit(cache=True, nogil=True)
def spread_blocks(hashes: Any, cols: Any, line: Any, factors: Any) -> Any:
    """Where blocks of `line` bytes go, if a row has one for each place that they may start at.

    Returns the offsets in bytes, `(rows, count)`, the signs in `factors`, and all of the places.
    """
    rows, count = factors.shape
    offsets = np.empty((rows, count), np.uint32)
    for j in range(rows):
        for k in range(count):
            word = hashes[j, k]
            offsets[j, k] = (j * cols + (word & REST)) * line
            factors[j, k] = -1 if word & TOP else 1
    return offsets, factors, np.arange(cols).astype(np.uint32)


@njit
def _in_part(vector: Any, before: Any, whole: Any, count: Any, block: Any) -> Any:
    """A copy of what comes after `whole` blocks: blocks that the vector fills only in part."""
    rest = np.zeros((count - whole) * block, vector.dtype)
    left = vector.size - whole * block
    if left:
        copy(vector[whole * block :], rest[before : before + left])
    return rest


@njit
def _encode_spread(
    vector: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, spread: Any,
    add: Any,
) -> None:  # fmt: skip
    """For few columns: a row first has a block of its own for each place that blocks start at.

    So they are added to whole lines of the cache, and no load overlaps a store made just before
    (for which it would have to wait) but one of the same line.
    """
    offsets, factors, starts = spread
    rows, cols, size, count = out.shape[0], out.shape[1], vector.itemsize, hashes.shape[1]
    line, vectors = block * size, block * size // 64
    by, of = address(hashes[rows]), address(hashes[rows + 1])
    wide = np.zeros(rows * cols * block + 64 // size, vector.dtype)
    to, at, signs = (address(wide) + 63) & ~63, address(offsets), address(factors)
    whole = 0 if before else vector.size // block
    rest = _in_part(vector, before, whole, count, block)
    source, first, many = address(vector), 0, whole
    for _ in range(2):
        call(
            add,
            (
                to, source, many, vectors, at + 4 * first, signs + first * size, count,
                by + 4 * first, of + 4 * first, vector.nbytes,
            ),
        )  # fmt: skip
        source, first, many = address(rest), whole, count - whole
    keep(rest)
    tables = np.zeros((copies, rows, cols + block), vector.dtype)
    apart = rows * (cols + block) * size
    for j in range(rows):
        add_blocks(
            address(tables[0, j]), to + j * cols * line, cols, vectors, 1, 0, address(starts), 0,
            copies - 1, apart, vector[0],
        )  # fmt: skip
    keep(wide)
    fold(tables, out)


@njit
def _encode_turns(
    vector: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, add: Any
) -> None:
    """Blocks take turns on `copies` tables with longer rows, for the same reason."""
    rows, cols, size, count = out.shape[0], out.shape[1], vector.itemsize, hashes.shape[1]
    width, vectors = cols + block, block * vector.itemsize // 64
    tables = np.zeros((copies, rows, width), vector.dtype)
    at, by, of = address(hashes), address(hashes[rows]), address(hashes[rows + 1])
    whole = 0 if before else vector.size // block
    stride, apart, source = width * size, rows * width * size, address(vector)
    rest = _in_part(vector, before, whole, count, block)
    first, many = 0, whole
    for _ in range(2):
        table = address(tables) + (first & (copies - 1)) * apart
        call(
            add,
            (
                table, source, many, vectors, stride, at + 4 * first, count, by + 4 * first,
                of + 4 * first, copies - 1, apart,
            ),
        )  # fmt: skip
        source, first, many = address(rest), whole, count - whole
    keep(rest)
    fold(tables, out)


@njit
def _encode(
    vector: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, spread: Any,
    add: Any,
) -> None:  # fmt: skip
    """The vector begins `before` coordinates into its first block."""
    if spread[0].size:
        _encode_spread(vector, before, out, copies, block, hashes, spread, add)
    else:
        _encode_turns(vector, before, out, copies, block, hashes, add)


@njit(cache=True, nogil=True)
def encode(
    vectors: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, spread: Any,
    add: Any,
) -> None:  # fmt: skip
    """One thread. `add` is the address of a `spread_adder`, without spread of a `signed_adder`."""
    for item in range(vectors.shape[0]):
        _encode(vectors[item], before, out[item], copies, block, hashes, spread, add)


@njit(cache=True, parallel=True, nogil=True)
def encode_parallel(
    vectors: Any, before: Any, out: Any, copies: Any, block: Any, hashes: Any, spread: Any,
    add: Any,
) -> None:  # fmt: skip
    """The same with all threads, a vector at a time for each."""
    for item in prange(vectors.shape[0]):
        _encode(vectors[item], before, out[item], copies, block, hashes, spread, add)


@njit
def _query(table: Any, out: Any, before: Any, block: Any, hashes: Any, combine: Any) -> None:
    rows, cols, size, count = table.shape[0], table.shape[1], table.itemsize, hashes.shape[1]
    width, vectors = cols + block, block * table.itemsize // 64
    longer = pad_rows(table, block)
    whole = 0 if before else out.size // block
    room = np.empty((count - whole) * block, table.dtype)
    at, by, of = address(hashes), address(hashes[rows]), address(hashes[rows + 1])
    cell, apart = address(longer), width * size
    to, first, many = address(out), 0, whole
    for _ in range(2):
        call(
            combine,
            (
                to, cell, apart, many, vectors, at + 4 * first, count, by + 4 * first,
                of + 4 * first,
            ),
        )  # fmt: skip
        to, first, many = address(room), whole, count - whole
    keep(longer)
    done = whole * block  # blocks that are only in part asked for went to a room of their own
    copy(room[before:], out[done:])


@njit(cache=True, nogil=True)
def query(
    tables: Any, outs: Any, before: Any, block: Any, hashes: Any, combine: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite.

    `combine` is the address of a `blocks_combiner`.
    """
    if validate and not finite(tables):
        return False
    for item in range(tables.shape[0]):
        _query(tables[item], outs[item], before, block, hashes, combine)
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, outs: Any, before: Any, block: Any, hashes: Any, combine: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads, a table at a time for each."""
    if validate and not finite(tables):
        return False
    for item in prange(tables.shape[0]):
        _query(tables[item], outs[item], before, block, hashes, combine)
    return True

"""Coordinate by coordinate: the pairwise family, and blocks shorter than a vector.

Compiled by Numba; sizes and types are checked by the caller. `block` is 0 for the pairwise family.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, uint32, uint64

from diffsketch.sketch.kernels.cpu_combining import mean_lanes, median_lanes
from diffsketch.sketch.kernels.cpu_hashes import (
    REST,
    address,
    finite,
    fold,
    hash_bits,
    hash_columns,
    hash_signs,
    hash_starts,
    keep,
    share,
)

COPIES = 4
_PIECE = 1024  # coordinates hashed at once


@njit
def _hash_signs(
    first: Any, cols: Any, block: Any, runs: Any, words: Any, bits: Any, blocks: Any
) -> None:
    """Sign bits of consecutive coordinates, bit `j` for row `j`.

    `blocks` has room for where the coordinates' blocks start in each row, which is kept there, and
    for two more rows.
    """
    if block == 0:
        hash_bits(first, words, bits)
        return
    rows, begin = blocks.shape[0] - 2, first // block
    steps, phases = blocks[rows], blocks[rows + 1]
    hash_signs(begin, words, steps, phases)
    for j in range(rows):
        hash_starts(begin, runs, cols, block, j, words, blocks[j])
    into, k = first % block, 0
    for i in range(blocks.shape[1]):
        flips = uint64(0)
        for j in range(rows):
            flips |= uint64(blocks[j, i] >> uint32(31)) << uint64(j)
        end = min(bits.size, k + block - into)
        for at in range(k, end):
            turn = uint32(phases[i] + steps[i] * uint32(at - k + into))
            bits[at] = flips ^ (uint64(0) - uint64(turn >> uint32(31)))
        into, k = 0, end


@njit
def _hash_row(
    first: Any, row: Any, cols: Any, block: Any, words: Any, blocks: Any, columns: Any
) -> None:
    """Columns of consecutive coordinates in a row, after `_hash_signs`."""
    if block == 0:
        hash_columns(first, row, cols, words, columns)
        return
    starts, shift = blocks[row], uint32(0)
    while block >> shift > 1:  # blocks are a power of two
        shift += uint32(1)
    wide, last, before = uint32(cols), uint32(block - 1), uint32(first % block)
    for k in range(columns.size):
        place = uint32(before + uint32(k))
        column = uint32((starts[place >> shift] & REST) + (place & last))
        columns[k] = min(column, uint32(column - wide))  # past the end only if that is not below 0


@njit
def _flip(source: Any, bits: Any, bit: Any, like: Any, to: Any) -> None:
    """Copy values, their signs flipped where a bit is set; `like` has the integer type for that."""
    origin, target = source.view(like.dtype), to.view(like.dtype)
    if source.itemsize == 4:
        for k in range(source.size):
            target[k] = origin[k] ^ (uint32(bits[k] >> uint64(bit)) << uint32(31))
    else:
        for k in range(source.size):
            target[k] = origin[k] ^ ((bits[k] >> uint64(bit)) << uint64(63))


@njit
def _encode_task(
    task: Any, vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any,
    block: Any, runs: Any, words: Any, like: Any,
) -> None:  # fmt: skip
    """A task is a vector, a part of it (each part has its tables) and a share of the rows.

    Coordinates take turns on `COPIES` tables, if a part has them: in a short row, an addition
    would often have to wait for the one before.
    """
    copies, rows = tables.shape[1] // parts, tables.shape[2]
    item, rest = task // (parts * shares), task % (parts * shares)
    part, piece = rest // shares, rest % shares
    begin, end = share(vectors.shape[1], part, parts)
    first_row, last_row = share(rows, piece, shares)
    own = part * copies
    columns, bits = np.empty(_PIECE, np.uint32), np.empty(_PIECE, np.uint64)
    room = np.empty((rows + 2) * _PIECE if block else 0, np.uint32)
    signed = np.empty(_PIECE, vectors.dtype)
    for first in range(begin, end, _PIECE):
        count = min(_PIECE, end - first)
        at = offset + first
        met = 0 if block == 0 else (at + count - 1) // block - at // block + 1
        blocks = room[: (rows + 2) * met].reshape(rows + 2, met)
        _hash_signs(at, cols, block, runs, words, bits[:count], blocks)
        for j in range(first_row, last_row):
            _hash_row(at, j, cols, block, words, blocks, columns[:count])
            _flip(vectors[item, first : first + count], bits, j, like, signed)
            done = 0
            if copies == COPIES:
                one, two = tables[item, own, j], tables[item, own + 1, j]
                three, four = tables[item, own + 2, j], tables[item, own + 3, j]
                done = count // COPIES * COPIES
                for k in range(0, done, COPIES):
                    one[columns[k]] += signed[k]
                    two[columns[k + 1]] += signed[k + 1]
                    three[columns[k + 2]] += signed[k + 2]
                    four[columns[k + 3]] += signed[k + 3]
            row = tables[item, own, j]
            for k in range(done, count):
                row[columns[k]] += signed[k]


@njit(cache=True, nogil=True)
def encode(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any, block: Any,
    runs: Any, words: Any, like: Any, out: Any,
) -> None:  # fmt: skip
    """One thread. `tables` is `out` itself, or several partial tables to be added."""
    for task in range(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, cols, block, runs, words, like)
    if tables.shape[1] > 1:
        for item in range(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(cache=True, parallel=True, nogil=True)
def encode_parallel(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any, block: Any,
    runs: Any, words: Any, like: Any, out: Any,
) -> None:  # fmt: skip
    """The same with all threads."""
    for task in prange(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, cols, block, runs, words, like)
    if tables.shape[1] > 1:
        for item in prange(vectors.shape[0]):
            fold(tables[item], out[item])


@njit
def _query_task(
    task: Any, tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any,
    words: Any, per_row: Any, like: Any, mean: Any,
) -> None:  # fmt: skip
    table, out = tables[task // parts], outs[task // parts]
    begin, end = share(outs.shape[1], task % parts, parts)
    rows, size = table.shape[0], table.itemsize
    columns, bits = np.empty(_PIECE, np.uint32), np.empty(_PIECE, np.uint64)
    room = np.empty((rows + 2) * _PIECE if block else 0, np.uint32)
    values, result = np.zeros((rows, _PIECE), table.dtype), np.empty(_PIECE, table.dtype)
    gathered = np.empty(_PIECE, table.dtype)
    cells = address(values) + np.arange(rows) * _PIECE * size
    flips = np.zeros(rows, np.uint32)
    vectors, zero, one = _PIECE * size // 64, uint32(0), table[0, 0]
    to, origin, turns = address(result), address(cells), address(flips)
    for first in range(begin, end, _PIECE):
        count = min(_PIECE, end - first)
        at = offset + first
        met = 0 if block == 0 else (at + count - 1) // block - at // block + 1
        blocks = room[: (rows + 2) * met].reshape(rows + 2, met)
        _hash_signs(at, cols, block, runs, words, bits[:count], blocks)
        for j in range(rows):
            _hash_row(at, j, cols, block, words, blocks, columns[:count])
            row = table[j]
            for k in range(count):
                gathered[k] = row[columns[k]]
            _flip(gathered[:count], bits, j, like, values[j, :count])
        if mean:
            mean_lanes(to, origin, turns, per_row, vectors, zero, zero, one)
        else:
            median_lanes(to, origin, turns, per_row, vectors, zero, zero, one)
        out[first : first + count] = result[:count]
    keep(cells)
    keep(flips)


@njit(cache=True, nogil=True)
def query(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    per_row: Any, like: Any, mean: Any, validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite."""
    if validate and not finite(tables):
        return False
    for task in range(tables.shape[0] * parts):
        _query_task(
            task, tables, cols, outs, offset, parts, block, runs, words, per_row, like, mean
        )
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    per_row: Any, like: Any, mean: Any, validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads."""
    if validate and not finite(tables):
        return False
    for task in prange(tables.shape[0] * parts):
        _query_task(
            task, tables, cols, outs, offset, parts, block, runs, words, per_row, like, mean
        )
    return True

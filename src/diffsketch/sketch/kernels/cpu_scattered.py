"""Coordinate by coordinate, compiled by Numba: the pairwise family, and blocks shorter than a vector.

Sizes and types are checked by the caller. `block` is 0 for the pairwise family.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, uint32, uint64

from diffsketch.sketch.kernels.cpu_hashes import (
    REST,
    TOP,
    address,
    finite,
    fold,
    hash_bits,
    hash_columns,
    mix64,
    share,
)
from diffsketch.sketch.kernels.cpu_lanes import mean_lanes, median_lanes

_PIECE = 256  # coordinates hashed at once


@njit  # type: ignore[untyped-decorator]
def _hash_piece(
    first: Any, row: Any, cols: Any, block: Any, runs: Any, words: Any, bits: Any, columns: Any
) -> None:
    """Columns of consecutive coordinates in a row, with the sign in the top bit."""
    if block == 0:
        hash_columns(first, row, cols, words, columns)
        for k in range(columns.size):
            columns[k] |= uint32(bits[k] >> uint64(row)) << uint32(31)
        return
    for k in range(columns.size):
        b = (first + k) // block
        into = first + k - b * block
        h = mix64(uint64(b % runs), words[2 + 3 * row], words[3 + 3 * row])
        column = (b // runs) * block + into
        column += np.int64(((h >> uint64(32)) * uint64(cols)) >> uint64(32))
        column -= cols if column >= cols else 0
        weyl = mix64(uint64(b), words[0], words[1])
        turn = uint32(weyl) + uint32(weyl >> uint64(32)) * uint32(into) + (uint32(h) << uint32(31))
        columns[k] = uint32(column) | (turn & TOP)


@njit  # type: ignore[untyped-decorator]
def _encode_task(
    task: Any, vectors: Any, offset: Any, tables: Any, shares: Any, cols: Any, block: Any,
    runs: Any, words: Any,
) -> None:  # fmt: skip
    """A task is a vector, a part of it (each part has a table) and a share of the rows."""
    parts, rows = tables.shape[1], tables.shape[2]
    item, rest = task // (parts * shares), task % (parts * shares)
    part, piece = rest // shares, rest % shares
    begin, end = share(vectors.shape[1], part, parts)
    first_row, last_row = share(rows, piece, shares)
    vector = vectors[item]
    columns, bits = np.empty(_PIECE, np.uint32), np.empty(_PIECE, np.uint64)
    for first in range(begin, end, _PIECE):
        count = min(_PIECE, end - first)
        if block == 0:
            hash_bits(offset + first, words, bits[:count])
        for j in range(first_row, last_row):
            _hash_piece(offset + first, j, cols, block, runs, words, bits, columns[:count])
            row = tables[item, part, j]
            for k in range(count):
                value = vector[first + k]
                row[columns[k] & REST] += -value if columns[k] & TOP else value


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def encode(
    vectors: Any, offset: Any, tables: Any, shares: Any, cols: Any, block: Any, runs: Any,
    words: Any, out: Any,
) -> None:  # fmt: skip
    """One thread. `tables` is `out` itself or several partial tables, to be added."""
    for task in range(vectors.shape[0] * tables.shape[1] * shares):
        _encode_task(task, vectors, offset, tables, shares, cols, block, runs, words)
    if tables.shape[1] > 1:
        for item in range(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(cache=True, parallel=True, nogil=True)  # type: ignore[untyped-decorator]
def encode_parallel(
    vectors: Any, offset: Any, tables: Any, shares: Any, cols: Any, block: Any, runs: Any,
    words: Any, out: Any,
) -> None:  # fmt: skip
    """The same with all threads."""
    for task in prange(vectors.shape[0] * tables.shape[1] * shares):
        _encode_task(task, vectors, offset, tables, shares, cols, block, runs, words)
    if tables.shape[1] > 1:
        for item in prange(vectors.shape[0]):
            fold(tables[item], out[item])


@njit  # type: ignore[untyped-decorator]
def _query_task(
    task: Any, tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any,
    words: Any, like: Any, mean: Any,
) -> None:  # fmt: skip
    table, out = tables[task // parts], outs[task // parts]
    begin, end = share(outs.shape[1], task % parts, parts)
    rows, size = table.shape[0], table.itemsize
    columns, bits = np.empty(_PIECE, np.uint32), np.empty(_PIECE, np.uint64)
    values, result = np.zeros((rows, _PIECE), table.dtype), np.empty(_PIECE, table.dtype)
    cells = address(values) + np.arange(rows) * _PIECE * size
    flips = np.zeros(rows, np.uint32)
    vectors, zero, one = _PIECE * size // 64, uint32(0), table[0, 0]
    to, at, turns = address(result), address(cells), address(flips)
    for first in range(begin, end, _PIECE):
        count = min(_PIECE, end - first)
        if block == 0:
            hash_bits(offset + first, words, bits[:count])
        for j in range(rows):
            _hash_piece(offset + first, j, cols, block, runs, words, bits, columns[:count])
            row, cell = table[j], values[j]
            for k in range(count):
                value = row[columns[k] & REST]
                cell[k] = -value if columns[k] & TOP else value
        if mean:
            mean_lanes(to, at, turns, like, vectors, zero, zero, one)
        else:
            median_lanes(to, at, turns, like, vectors, zero, zero, one)
        out[first : first + count] = result[:count]


@njit(cache=True, nogil=True)  # type: ignore[untyped-decorator]
def query(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    like: Any, mean: Any, validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite."""
    if validate and not finite(tables):
        return False
    for task in range(tables.shape[0] * parts):
        _query_task(task, tables, cols, outs, offset, parts, block, runs, words, like, mean)
    return True


@njit(cache=True, parallel=True, nogil=True)  # type: ignore[untyped-decorator]
def query_parallel(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    like: Any, mean: Any, validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads."""
    if validate and not finite(tables):
        return False
    for task in prange(tables.shape[0] * parts):
        _query_task(task, tables, cols, outs, offset, parts, block, runs, words, like, mean)
    return True

"""Coordinate by coordinate: the pairwise family, and blocks shorter than a vector.

Long vectors and few columns of the pairwise family are in `cpu_joint`.

Compiled by Numba; sizes and types are checked by the caller. `block` is 0 for the pairwise family.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, uint32, uint64

from diffsketch.sketch.kernels.cpu_columns import COPIES, SLACK, gather_row, scatter_row
from diffsketch.sketch.kernels.cpu_functions import call
from diffsketch.sketch.kernels.cpu_hashes import (
    LINEAR,
    REST,
    address,
    copy,
    finite,
    fold,
    hash_halves,
    hash_signs,
    hash_starts,
    keep,
    linear,
    share,
)

_PIECE = 1024  # coordinates hashed at once


@njit
def _hash_blocks(
    first: Any, cols: Any, block: Any, runs: Any, words: Any, halves: Any, blocks: Any
) -> None:
    """Sign bits of consecutive coordinates of the blocked family, as of `hash_halves`.

    `blocks` has room for where the coordinates' blocks start in each row, which is kept there, and
    for two more rows.
    """
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
        end = min(halves.shape[1], k + block - into)
        for at in range(k, end):
            turn = uint32(phases[i] + steps[i] * uint32(at - k + into))
            bits = flips ^ (uint64(0) - uint64(turn >> uint32(31)))
            halves[0, at], halves[1, at] = uint32(bits), uint32(bits >> uint64(32))
        into, k = 0, end


@njit
def _hash_row(first: Any, row: Any, cols: Any, block: Any, blocks: Any, columns: Any) -> None:
    """Columns of consecutive coordinates of the blocked family in a row, after `_hash_blocks`."""
    starts, shift = blocks[row], uint32(0)
    while block >> shift > 1:  # blocks are a power of two
        shift += uint32(1)
    wide, last, before = uint32(cols), uint32(block - 1), uint32(first % block)
    for k in range(columns.size):
        place = uint32(before + uint32(k))
        column = uint32((starts[place >> shift] & REST) + (place & last))
        columns[k] = min(column, uint32(column - wide))  # past the end only if that is not below 0


@njit
def _scatter(signed: Any, columns: Any, tables: Any, copies: Any, row: Any) -> None:
    """Add numbers to their columns of a row, of one table or in turn of `COPIES`."""
    done = 0
    if copies == COPIES:
        one, two, three, four = tables[0, row], tables[1, row], tables[2, row], tables[3, row]
        done = signed.size // COPIES * COPIES
        for k in range(0, done, COPIES):
            one[columns[k]] += signed[k]
            two[columns[k + 1]] += signed[k + 1]
            three[columns[k + 2]] += signed[k + 2]
            four[columns[k + 3]] += signed[k + 3]
    for k in range(done, signed.size):
        tables[0, row, columns[k]] += signed[k]


@njit
def _flip(vector: Any, words: Any, bit: Any, signed: Any) -> None:
    """Numbers, negative where a bit of their words is set."""
    one = vector.dtype.type(1)
    two = one + one
    for k in range(vector.size):
        set_bit = vector.dtype.type(words[k] >> uint32(bit) & uint32(1))
        signed[k] = vector[k] * (one - two * set_bit)


@njit(inline="always")
def _encode_task(
    task: Any, vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any,
    block: Any, runs: Any, words: Any,
) -> None:  # fmt: skip
    """A task is a vector, a part of it (each part has its tables) and a share of the rows.

    Coordinates take turns on `COPIES` tables, if a part has them: in a short row, an addition
    would often have to wait for the one before.
    """
    copies, rows, size = tables.shape[1] // parts, tables.shape[2], vectors.itemsize
    item, rest = task // (parts * shares), task % (parts * shares)
    part, piece = rest // shares, rest % shares
    first, end = share(vectors.shape[1], part, parts)
    first_row, last_row = share(rows, piece, shares)
    own, one, apart = part * copies, vectors[0, 0], rows * cols * size if copies > 1 else 0
    columns, halves = np.empty(_PIECE, np.uint32), np.empty((2, _PIECE + SLACK), np.uint32)
    room = np.empty((rows + 2) * _PIECE if block else 0, np.uint32)
    signed = np.empty(_PIECE if block else 0, vectors.dtype)
    source = address(vectors[item])
    while first < end:
        at = offset + first
        count = min(_PIECE, end - first, LINEAR - at % LINEAR)
        if block == 0:
            hash_halves(at, words, halves, count, rows)
            for j in range(first_row, last_row):
                start, step = linear(at, j, words)
                scatter_row(
                    address(tables[item, own, j]), apart, source + first * size,
                    address(halves[j // 32]), j % 32, count, start, step, uint64(cols), one,
                )  # fmt: skip
        else:
            met = (at + count - 1) // block - at // block + 1
            blocks = room[: (rows + 2) * met].reshape(rows + 2, met)
            _hash_blocks(at, cols, block, runs, words, halves[:, :count], blocks)
            for j in range(first_row, last_row):
                _hash_row(at, j, cols, block, blocks, columns[:count])
                _flip(vectors[item, first : first + count], halves[j // 32], j % 32, signed)
                _scatter(signed[:count], columns, tables[item, own:], copies, j)
        first += count
    keep(halves)


@njit(cache=True, nogil=True)
def encode(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any, block: Any,
    runs: Any, words: Any, out: Any,
) -> None:  # fmt: skip
    """One thread. `tables` is `out` itself, or several partial tables to be added."""
    for task in range(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, cols, block, runs, words)
    if tables.shape[1] > 1:
        for item in range(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(cache=True, parallel=True, nogil=True)
def encode_parallel(
    vectors: Any, offset: Any, tables: Any, parts: Any, shares: Any, cols: Any, block: Any,
    runs: Any, words: Any, out: Any,
) -> None:  # fmt: skip
    """The same with all threads."""
    for task in prange(vectors.shape[0] * parts * shares):
        _encode_task(task, vectors, offset, tables, parts, shares, cols, block, runs, words)
    if tables.shape[1] > 1:
        for item in prange(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(inline="always")
def _query_task(
    task: Any, tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any,
    words: Any, combine: Any,
) -> None:  # fmt: skip
    table, out = tables[task // parts], outs[task // parts]
    first, end = share(outs.shape[1], task % parts, parts)
    rows, size, one = table.shape[0], table.itemsize, table[0, 0]
    columns, halves = np.empty(_PIECE, np.uint32), np.zeros((2, _PIECE + SLACK), np.uint32)
    room = np.empty((rows + 2) * _PIECE if block else 0, np.uint32)
    values, rest = np.zeros((rows, _PIECE), table.dtype), np.empty(_PIECE, table.dtype)
    lower, upper = address(halves), address(halves[1])
    while first < end:
        at = offset + first
        count = min(_PIECE, end - first, LINEAR - at % LINEAR)
        if block == 0:
            hash_halves(at, words, halves, count, rows)
            for j in range(rows):
                start, step = linear(at, j, words)
                gather_row(
                    address(values) + j * _PIECE * size, address(table) + j * cols * size, count,
                    start, step, uint64(cols), one,
                )  # fmt: skip
        else:
            met = (at + count - 1) // block - at // block + 1
            blocks = room[: (rows + 2) * met].reshape(rows + 2, met)
            _hash_blocks(at, cols, block, runs, words, halves[:, :count], blocks)
            for j in range(rows):
                _hash_row(at, j, cols, block, blocks, columns[:count])
                for k in range(count):
                    values[j, k] = table[j, columns[k]]
        whole = count * size % 64 == 0
        to = address(out) + first * size if whole else address(rest)
        vectors, apart = (count * size + 63) // 64, _PIECE * size
        call(combine, (to, address(values), apart, lower, upper, vectors))
        if not whole:
            copy(rest, out[first : first + count])
        first += count
    keep(values)
    keep(halves)


@njit(cache=True, nogil=True)
def query(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    combine: Any, validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite.

    `combine` is the address of a `signed_combiner`.
    """
    if validate and not finite(tables):
        return False
    for task in range(tables.shape[0] * parts):
        _query_task(task, tables, cols, outs, offset, parts, block, runs, words, combine)
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, cols: Any, outs: Any, offset: Any, parts: Any, block: Any, runs: Any, words: Any,
    combine: Any, validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads."""
    if validate and not finite(tables):
        return False
    for task in prange(tables.shape[0] * parts):
        _query_task(task, tables, cols, outs, offset, parts, block, runs, words, combine)
    return True

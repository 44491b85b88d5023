"""The pairwise family with few columns: two rows at a time.

Two rows have so few pairs of columns that a table can have a cell for each. A coordinate is then
looked up once for both rows, and additions to the same cell, which would wait for one another, are
rare. Compiled by Numba; sizes and types are checked by the caller.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange, uint64

from diffsketch.sketch.kernels.cpu_columns import (
    COPIES,
    SLACK,
    gather_pair,
    gather_row,
    scatter_pair,
    scatter_row,
)
from diffsketch.sketch.kernels.cpu_functions import call
from diffsketch.sketch.kernels.cpu_hashes import (
    LINEAR,
    address,
    copy,
    finite,
    fold,
    hash_halves,
    keep,
    linear,
    share,
)

MOST_COLS = 32
_PIECE = 1024  # coordinates hashed at once
_SIGNS = 2  # the same in both rows, or not


def pays(length: int, rows: int, cols: int) -> bool:
    """Whether a vector is long enough for the tables of pairs that it takes."""
    return rows > 1 and cols <= MOST_COLS and length >= 8 * cols * cols


@njit
def _split(joint: Any, first: Any, second: Any) -> None:
    """Add up tables of pairs, `(signs, cols * cols)`, for their two rows, which hold zeros.

    Numbers have the signs of the first row: sums without signs would grow, and their differences,
    which are small, would be off by their roundings.
    """
    cols = first.size
    for a in range(cols):
        for b in range(cols):
            same, other = joint[0, a * cols + b], joint[1, a * cols + b]
            first[a] += same + other
            second[b] += same - other


@njit(inline="always")
def _encode_task(task: Any, vectors: Any, offset: Any, tables: Any, words: Any) -> None:
    """A task is a part of a vector; each part has a table, of zeros at first."""
    parts, rows, cols = tables.shape[1:]
    item, part, size, one = task // parts, task % parts, vectors.itemsize, vectors[0, 0]
    first, end = share(vectors.shape[1], part, parts)
    joint = np.zeros((rows // 2, _SIGNS, cols * cols), vectors.dtype)
    single = np.zeros((COPIES, 1, cols), vectors.dtype)
    halves = np.empty((2, _PIECE + SLACK), np.uint32)
    to, apart, last, wide = address(joint), cols * cols * _SIGNS * size, rows - 1, uint64(cols)
    source = address(vectors) + (item * vectors.shape[1]) * size
    while first < end:
        at = offset + first
        count = min(_PIECE, end - first, LINEAR - at % LINEAR)
        hash_halves(at, words, halves, count, rows)
        values = source + first * size
        for pair in range(rows // 2):
            j = 2 * pair
            start, step = linear(at, j, words)
            other_start, other_step = linear(at, j + 1, words)
            scatter_pair(
                to + pair * apart, values, address(halves[j // 32]), j % 32, count, start,
                step, other_start, other_step, wide, one,
            )  # fmt: skip
        if rows % 2:
            start, step = linear(at, last, words)
            scatter_row(
                address(single), cols * size, values, address(halves[last // 32]), last % 32,
                count, start, step, wide, one,
            )  # fmt: skip
        first += count
    table = tables[item, part]
    for pair in range(rows // 2):
        _split(joint[pair], table[2 * pair], table[2 * pair + 1])
    if rows % 2:
        fold(single, table[last:])
    keep(halves)


@njit(cache=True, nogil=True)
def encode(vectors: Any, offset: Any, tables: Any, words: Any, out: Any) -> None:
    """One thread. `tables` is `out` itself, or partial tables to be added."""
    for task in range(tables.shape[0] * tables.shape[1]):
        _encode_task(task, vectors, offset, tables, words)
    if tables.shape[1] > 1:
        for item in range(vectors.shape[0]):
            fold(tables[item], out[item])


@njit(cache=True, parallel=True, nogil=True)
def encode_parallel(vectors: Any, offset: Any, tables: Any, words: Any, out: Any) -> None:
    """The same with all threads."""
    for task in prange(tables.shape[0] * tables.shape[1]):
        _encode_task(task, vectors, offset, tables, words)
    if tables.shape[1] > 1:
        for item in prange(vectors.shape[0]):
            fold(tables[item], out[item])


@njit
def _join(first: Any, second: Any, joint: Any) -> None:
    """The numbers of two rows for each pair of columns, `(cols, cols, 2)`."""
    for a in range(first.size):
        for b in range(first.size):
            joint[a, b, 0], joint[a, b, 1] = first[a], second[b]


@njit(inline="always")
def _query_task(
    task: Any, tables: Any, outs: Any, offset: Any, parts: Any, words: Any, combine: Any
) -> None:
    table, out = tables[task // parts], outs[task // parts]
    first, end = share(outs.shape[1], task % parts, parts)
    rows, cols, size, one = table.shape[0], table.shape[1], table.itemsize, table[0, 0]
    joint = np.empty((rows // 2, cols, cols, 2), table.dtype)
    for pair in range(rows // 2):
        _join(table[2 * pair], table[2 * pair + 1], joint[pair])
    halves = np.zeros((2, _PIECE + SLACK), np.uint32)
    values, rest = np.zeros((rows, _PIECE), table.dtype), np.empty(_PIECE, table.dtype)
    lower, upper, wide = address(halves), address(halves[1]), uint64(cols)
    apart, last = _PIECE * size, rows - 1
    while first < end:
        at = offset + first
        count = min(_PIECE, end - first, LINEAR - at % LINEAR)
        hash_halves(at, words, halves, count, rows)
        for pair in range(rows // 2):
            j = 2 * pair
            start, step = linear(at, j, words)
            other_start, other_step = linear(at, j + 1, words)
            gather_pair(
                address(values) + j * apart, address(joint) + pair * cols * cols * 2 * size, count,
                start, step, other_start, other_step, wide, one,
            )  # fmt: skip
        if rows % 2:
            start, step = linear(at, last, words)
            gather_row(
                address(values) + last * apart, address(table) + last * cols * size, count, start,
                step, wide, one,
            )  # fmt: skip
        whole = count * size % 64 == 0
        to = address(out) + first * size if whole else address(rest)
        vectors = (count * size + 63) // 64
        call(combine, (to, address(values), apart, lower, upper, vectors))
        if not whole:
            copy(rest, out[first : first + count])
        first += count
    keep(joint)
    keep(values)
    keep(halves)


@njit(cache=True, nogil=True)
def query(
    tables: Any, outs: Any, offset: Any, parts: Any, words: Any, combine: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """One thread. False, and nothing is written, if a table is to be validated and not finite.

    `combine` is the address of a `signed_combiner`, of paired rows.
    """
    if validate and not finite(tables):
        return False
    for task in range(tables.shape[0] * parts):
        _query_task(task, tables, outs, offset, parts, words, combine)
    return True


@njit(cache=True, parallel=True, nogil=True)
def query_parallel(
    tables: Any, outs: Any, offset: Any, parts: Any, words: Any, combine: Any,
    validate: Any,
) -> Any:  # fmt: skip
    """The same with all threads."""
    if validate and not finite(tables):
        return False
    for task in prange(tables.shape[0] * parts):
        _query_task(task, tables, outs, offset, parts, words, combine)
    return True

"""The pairwise family's loops, compiled by Numba. Sizes and types are checked by the caller.

With few columns, two rows have so few pairs of columns that a table can have a cell for each. A
coordinate is then added once for both rows, and additions to the same cell, which would wait for
one another, are rare.
"""

from __future__ import annotations

from typing import Any

from numba import njit, uint32, uint64

from diffsketch.compiled import compiled
from diffsketch.sketch.kernels.cpu_blocked import mix64
from diffsketch.sketch.kernels.cpu_lanes import (
    GROUP,
    address,
    call,
    flip_group,
    hash_group,
    hash_pair,
)

PIECE = 1024  # coordinates whose signs are hashed at once
COPIES = 4  # tables that coordinates take turns on
AHEAD = 3  # groups that are hashed before they are looked up
WIDTH = PIECE + (AHEAD + 1) * GROUP  # with room for those after the last, and a group of zeros
LINEAR = 1 << 32  # up to its next multiple, columns follow from one another by a fixed step


@njit
def _hash_bits(first: Any, count: Any, words: Any, bits: Any) -> None:
    """Sign bits of consecutive coordinates: of the first 32 rows, and of the others."""
    first_key, second_key, lower, upper = words[0], words[1], bits[0, :count], bits[1, :count]
    for k in range(count):
        lower[k] = uint32(mix64(uint64(first + k), first_key, second_key))
    if words.size > 2 + 3 * 32:
        for k in range(count):
            upper[k] = uint32(mix64(uint64(first + k), first_key, second_key) >> uint64(32))


@njit(inline="always")
def _linear(first: Any, row: Any, words: Any) -> Any:
    """The number whose upper half gives the column of a coordinate, and the step to the next."""
    low, high, add = words[2 + 3 * row], words[3 + 3 * row], words[4 + 3 * row]
    i = uint64(first)
    return low * (i & uint64(0xFFFFFFFF)) + high * (i >> uint64(32)) + add, low


@njit
def _scatter(
    first: Any, count: Any, row: Any, paired: Any, cols: Any, words: Any, vectors: Any, begin: Any,
    bits: Any, table: Any, at: Any, apart: Any, cells: Any, values: Any,
) -> None:  # fmt: skip
    """Add coordinates to their columns of a row, or to their pairs of columns in two rows.

    They are in the order of memory from `vectors[begin]` and `table[at]` on, and take turns on
    copies of the row that are `apart`. Hashing takes a processor's arithmetic units, looking up
    takes those for loads and stores: to do both at the same time, it is hashed a few groups ahead.
    """
    start, step = _linear(first, row, words)
    other_start, other_step = _linear(first, row + 1 if paired else row, words)
    to_add, far = uint64(at), uint64(apart)  # unsigned: negative indices need no check
    own, bit, wide = bits[row // 32], uint32(row % 32), uint64(cols)
    for group in range(-AHEAD, (count + GROUP - 1) // GROUP):
        done = (group + AHEAD) * GROUP
        more = uint64(done)
        if paired:
            hash_pair(
                cells, done, start + step * more, step, other_start + other_step * more, other_step,
                wide, own, done, bit,
            )  # fmt: skip
        else:
            hash_group(cells, done, start + step * more, step, wide)
        flip_group(values, done, vectors, begin + done, count - done, own, done, bit)
        if group >= 0:
            ready = uint64(group * GROUP)
            for k in range(uint64(GROUP)):
                place = to_add + (k % uint64(COPIES)) * far + uint64(cells[ready + k])
                table[place] += values[ready + k]


@njit
def _gather(
    first: Any, count: Any, row: Any, paired: Any, cols: Any, words: Any, table: Any, at: Any,
    cells: Any, values: Any, to: Any,
) -> None:  # fmt: skip
    """Copy the cells of coordinates from a row, in the same way; to whole groups of `values`.

    Or both numbers of their pairs of columns in two rows, from a table of pairs: so they alternate.
    A last group of `cells` holds zeros, for bits of no signs.
    """
    start, step = _linear(first, row, words)
    other_start, other_step = _linear(first, row + 1 if paired else row, words)
    origin, wide, target = uint64(at), uint64(cols), uint64(to)
    for group in range(-AHEAD, (count + GROUP - 1) // GROUP):
        done = (group + AHEAD) * GROUP
        more = uint64(done)
        if paired:
            hash_pair(
                cells, done, start + step * more, step, other_start + other_step * more,
                other_step, wide, cells, WIDTH - GROUP, uint32(0),
            )  # fmt: skip
        else:
            hash_group(cells, done, start + step * more, step, wide)
        if group < 0:
            continue
        ready = uint64(group * GROUP)
        next_to = target + ready * (uint64(2) if paired else uint64(1))
        if paired:
            for k in range(uint64(GROUP)):
                place = origin + uint64(2) * uint64(cells[ready + k])
                one, two = table[place], table[place + uint64(1)]
                values[next_to + uint64(2) * k], values[next_to + uint64(2) * k + uint64(1)] = (
                    one,
                    two,
                )
        else:
            for k in range(uint64(GROUP)):
                values[next_to + k] = table[origin + uint64(cells[ready + k])]


@njit
def _add_joint(
    first: Any, count: Any, cols: Any, words: Any, vectors: Any, begin: Any, bits: Any, joint: Any,
    cells: Any, values: Any,
) -> None:  # fmt: skip
    """Add coordinates to tables of pairs, one for two rows, and a last row's to copies of it."""
    rows, size = (words.size - 2) // 3, 2 * cols * cols
    for j in range(0, rows, 2):
        paired = j + 1 < rows
        _scatter(
            first, count, j, paired, cols, words, vectors, begin, bits, joint, j // 2 * size,
            0 if paired else cols, cells, values,
        )  # fmt: skip


@njit
def _split_joint(joint: Any, table: Any) -> None:
    """Sum tables of pairs for their rows, which hold zeros.

    Numbers have the signs of the first row: sums without signs would grow, and their differences,
    which are small, would be off by their roundings.
    """
    rows, cols = table.shape
    for j in range(0, rows, 2):
        at = j * cols * cols
        if j + 1 == rows:
            for c in range(cols):
                table[j, c] = joint[at + c]
                for copy in range(1, COPIES):
                    table[j, c] += joint[at + copy * cols + c]
            continue
        for a in range(cols):
            for b in range(cols):
                same, other = joint[at + a * cols + b], joint[at + (cols + a) * cols + b]
                table[j, a] += same + other
                table[j + 1, b] += same - other


@compiled
def encode(
    task: Any, vectors: Any, offset: Any, tables: Any, table: Any, parts: Any, shares: Any,
    words: Any, bits: Any, scratch: Any,
) -> None:  # fmt: skip
    """Add a part of a vector to a share of the rows of its tables, of zeros at first.

    Coordinates take turns on the tables of a part, if it has `COPIES`: in a short row, an addition
    would often have to wait for the one before. `table` is the memory of all `tables`; `scratch` is
    for `WIDTH` numbers, and for tables of pairs if they are used.
    """
    cells, values, joint = bits[2], scratch[:WIDTH], scratch[WIDTH:]
    (copies, rows, cols), length = tables.shape[1:], vectors.shape[1]
    copies //= parts
    item, part, piece = task // (parts * shares), task // shares % parts, task % shares
    at, end = length * part // parts, length * (part + 1) // parts
    top, bottom = rows * piece // shares, rows * (piece + 1) // shares
    base, apart = (item * parts + part) * copies * rows * cols, rows * cols if copies > 1 else 0
    for i in range(joint.size):
        joint[i] = 0
    while at < end:
        first = offset + at
        count, begin = min(PIECE, end - at, LINEAR - first % LINEAR), item * length + at
        _hash_bits(first, count, words, bits)
        if joint.size:
            _add_joint(first, count, cols, words, vectors, begin, bits, joint, cells, values)
        else:
            for j in range(top, bottom):
                _scatter(
                    first, count, j, False, cols, words, vectors, begin, bits, table,
                    base + j * cols, apart, cells, values,
                )  # fmt: skip
        at += count
    if joint.size:
        _split_joint(joint, tables[item, part])


@compiled
def query(
    task: Any, table: Any, outs: Any, offset: Any, parts: Any, cols: Any, words: Any, combine: Any,
    places: Any, bits: Any, values: Any,
) -> None:  # fmt: skip
    """Estimates of a part of a vector. `places` are where rows of `values` begin, as codes.

    `values` have a last row for results, and after it tables of pairs if they are used.
    """
    rows, length, size = (words.size - 2) // 3, outs.shape[1], table.itemsize
    cells, rest, joint = bits[2], values[rows * PIECE :], values[(rows + 1) * PIECE :]
    cells[WIDTH - GROUP :] = 0
    item, out = task // parts, outs[task // parts]
    at, end = length * (task % parts) // parts, length * (task % parts + 1) // parts
    base, paired = item * rows * cols, 0
    if joint.size:
        paired = rows // 2 * 2
        for j in range(0, paired, 2):
            for a in range(cols):
                for b in range(cols):
                    to = 2 * ((j // 2 * cols + a) * cols + b)
                    joint[to], joint[to + 1] = (
                        table[base + j * cols + a],
                        table[base + (j + 1) * cols + b],
                    )
    while at < end:
        first = offset + at
        count = min(PIECE, end - at, LINEAR - first % LINEAR)
        _hash_bits(first, count, words, bits)
        for j in range(0, paired, 2):
            _gather(
                first, count, j, True, cols, words, joint, j * cols * cols, cells, values,
                j * PIECE,
            )  # fmt: skip
        for j in range(paired, rows):
            _gather(
                first, count, j, False, cols, words, table, base + j * cols, cells, values,
                j * PIECE,
            )  # fmt: skip
        whole = (count + GROUP - 1) // GROUP * GROUP
        to = address(out) + at * size if whole == count else address(rest)
        call(
            combine,
            (to, address(values), address(places), 1, whole, address(bits), address(bits[1])),
        )
        if whole != count:
            for k in range(count):
                out[at + k] = rest[k]
        at += count

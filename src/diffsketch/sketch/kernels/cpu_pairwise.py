"""The pairwise family's loops, compiled by Numba. Sizes and types are checked by the caller."""

from __future__ import annotations

from numba import njit, uint32, uint64

from diffsketch.compiled import compiled
from diffsketch.sketch.kernels.cpu_blocked import add_missed, mix64
from diffsketch.sketch.kernels.cpu_lanes import GROUP, address, call, flip_group, hash_group

PIECE = 1024  # coordinates whose signs are hashed at once
COPIES = 4  # tables that coordinates take turns on
AHEAD = 3  # groups that are hashed before they are looked up
WIDTH = PIECE + AHEAD * GROUP  # with room for those after the last
LINEAR = 1 << 32  # up to its next multiple, columns follow from one another by a fixed step


@njit
def _hash_bits(first, count, words, bits):
    """Sign bits of consecutive coordinates: of the first 32 rows, and of the others."""
    first_key, second_key, lower, upper = words[0], words[1], bits[0, :count], bits[1, :count]
    for k in range(count):
        lower[k] = uint32(mix64(uint64(first + k), first_key, second_key))
    if words.size > 2 + 3 * 32:
        for k in range(count):
            upper[k] = uint32(mix64(uint64(first + k), first_key, second_key) >> uint64(32))


@njit(inline="always")
def _linear(first, row, words):
    """The number whose upper half gives the column of a coordinate, and the step to the next."""
    low, high, add = words[2 + 3 * row], words[3 + 3 * row], words[4 + 3 * row]
    i = uint64(first)
    return low * (i & uint64(0xFFFFFFFF)) + high * (i >> uint64(32)) + add, low


@njit
def _scatter(first, count, row, cols, words, vectors, begin, bits, table, at, apart, cells, values):
    """Add coordinates to their columns of a row.

    They are in the order of memory from `vectors[begin]` and `table[at]` on, and take turns on
    copies of the row that are `apart`. Hashing takes a processor's arithmetic units, looking up
    takes those for loads and stores: to do both at the same time, it is hashed a few groups ahead.
    """
    start, step = _linear(first, row, words)
    to_add, far = uint64(at), uint64(apart)  # unsigned: negative indices need no check
    row_bits, bit, wide = bits[row // 32], uint32(row % 32), uint64(cols)
    for group in range(-AHEAD, (count + GROUP - 1) // GROUP):
        done = (group + AHEAD) * GROUP
        hash_group(cells, done, start + step * uint64(done), step, wide)
        flip_group(values, done, vectors, begin + done, count - done, row_bits, done, bit)
        if group >= 0:
            ready = uint64(group * GROUP)
            for k in range(uint64(GROUP)):
                place = to_add + (k % uint64(COPIES)) * far + uint64(cells[ready + k])
                table[place] += values[ready + k]


@njit
def _gather(first, count, row, cols, words, table, at, cells, values, to):
    """Copy the cells of coordinates from a row, in the same way; to whole groups of `values`."""
    start, step = _linear(first, row, words)
    origin, wide, target = uint64(at), uint64(cols), uint64(to)
    for group in range(-AHEAD, (count + GROUP - 1) // GROUP):
        done = (group + AHEAD) * GROUP
        hash_group(cells, done, start + step * uint64(done), step, wide)
        if group >= 0:
            ready = uint64(group * GROUP)
            for k in range(uint64(GROUP)):
                values[target + ready + k] = table[origin + uint64(cells[ready + k])]


@compiled
def encode(task, vectors, offset, tables, parts, shares, words, bits, values, private):
    """Add a part of a vector to a share of the rows of its tables.

    Coordinates take turns on the tables of a part, if it has `COPIES`: in a short row, an addition
    would often have to wait for the one before. If there is `private` memory, the rows are copied
    there, added to, and copied back.
    """
    (copies, rows, cols), length, cells = tables.shape[1:], vectors.shape[1], bits[2]
    copies //= parts
    item, part, piece = task // (parts * shares), task // shares % parts, task % shares
    at, end = length * part // parts, length * (part + 1) // parts
    top, bottom = rows * piece // shares, rows * (piece + 1) // shares
    table, base = tables.reshape(-1), ((item * parts + part) * copies * rows + top) * cols
    size, apart = (bottom - top) * cols, rows * cols
    if private.size:
        for k in range(copies):
            begin = base + k * apart
            # Copied back at the end, so that no two threads write to one megabyte meanwhile.
            private[k * size : (k + 1) * size] = table[begin : begin + size]
        table, base, apart = private, 0, size
    while at < end:
        first = offset + at
        # Not across a multiple of 2**32, where the upper half of the index changes the step.
        count, begin = min(PIECE, end - at, LINEAR - first % LINEAR), item * length + at
        _hash_bits(first, count, words, bits)
        for j in range(top, bottom):
            _scatter(
                first, count, j, cols, words, vectors, begin, bits, table,
                base + (j - top) * cols, apart if copies > 1 else 0, cells, values,
            )  # fmt: skip
        at += count
    if private.size:
        for k in range(copies):
            block = private[k * size : (k + 1) * size].reshape(bottom - top, cols)
            tables[item, part * copies + k, top:bottom] = block


@compiled
def query(task, tables, outs, offset, parts, words, combine, places, bits, values):
    """Estimates of a part of a vector. `places` are where rows of `values` begin, as codes.

    `values` have a last row for results.
    """
    (rows, cols), length, size = tables.shape[1:], outs.shape[1], tables.itemsize
    cells, last, table = bits[2], values[rows * PIECE :], tables.reshape(-1)
    item, out = task // parts, outs[task // parts]
    at, end = length * (task % parts) // parts, length * (task % parts + 1) // parts
    while at < end:
        first = offset + at
        count = min(PIECE, end - at, LINEAR - first % LINEAR)
        _hash_bits(first, count, words, bits)
        for j in range(rows):
            begin = (item * rows + j) * cols
            _gather(first, count, j, cols, words, table, begin, cells, values, j * PIECE)
        # Estimates come in whole groups: the last ones go through scratch, lest they run over.
        padded = (count + GROUP - 1) // GROUP * GROUP
        to = address(out) + at * size if padded == count else address(last)
        call(
            combine,
            (to, address(values), address(places), 1, padded, address(bits), address(bits[1])),
        )
        if padded != count:
            for k in range(count):
                out[at + k] = last[k]
        at += count


@compiled
def add_residual(task, tables, out, vector, scale, words, combine, places, bits, values, estimates):
    """Add what estimates miss, as the blocked family's."""
    first = task * estimates.size
    part = estimates[: out.size - first]
    query(0, tables, part.reshape(1, part.size), first, 1, words, combine, places, bits, values)
    add_missed(out[first : first + part.size], vector[first : first + part.size], part, scale)

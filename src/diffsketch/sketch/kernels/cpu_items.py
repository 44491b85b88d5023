"""Items (key, value) of both families, compiled by Numba. Sizes and types are checked before.

Keys are taken in chunks: loops that use vector instructions write their columns in one row after
the other, with the sign bits of all rows; then the cells are looked up.
"""

from __future__ import annotations

from numba import int64, njit, uint32, uint64

from diffsketch.compiled import compiled
from diffsketch.sketch.kernels.cpu_blocked import mix64
from diffsketch.sketch.kernels.cpu_lanes import GROUP, address, call
from diffsketch.sketch.kernels.cpu_pairwise import PIECE


@njit
def _hash_signs(keys, block, runs, words, bits, numbers, places):
    """Write the sign bits of keys: of the first 32 rows, and of the others.

    In the blocked family (`block` is not 0) it is one bit for all rows, and each key's run is
    written, and its place in the run.
    """
    first_key, second_key, lower, upper = words[0], words[1], bits[0], bits[1]
    if block:
        size, run_count = uint64(block), uint64(runs)
        for k in range(keys.size):
            number = keys[k] // size
            into, slot = keys[k] - number * size, number // run_count
            numbers[k], places[k] = number - slot * run_count, slot * size + into
            h = mix64(number, first_key, second_key)
            # The top bit of `a * into + c` in 32 bits, as in `hashing.hash_rows`.
            turn = uint32((h >> uint64(32)) * into + h) >> uint32(31)
            # All ones or all zeros: the bit of every row.
            lower[k] = upper[k] = uint32(0) - turn
        return
    for k in range(keys.size):
        h = mix64(keys[k], first_key, second_key)
        lower[k], upper[k] = uint32(h), uint32(h >> uint64(32))


@njit
def _hash_columns(keys, row, cols, block, words, bits, numbers, places, cells):
    """Write the columns of keys in a row; in the blocked family, flip the signs of some runs."""
    low, high, add, wide = words[2 + 3 * row], words[3 + 3 * row], words[4 + 3 * row], uint64(cols)
    if block:
        flips, bit = bits[row // 32], uint32(row % 32)
        for k in range(keys.size):
            h = mix64(numbers[k], low, high)
            place = places[k] + (((h >> uint64(32)) * wide) >> uint64(32))
            cells[k] = uint32(place - wide if place >= wide else place)
            flips[k] ^= uint32(h & uint64(1)) << bit
    else:
        for k in range(keys.size):
            h = low * (keys[k] & uint64(0xFFFFFFFF)) + high * (keys[k] >> uint64(32)) + add
            cells[k] = uint32(((h >> uint64(32)) * wide) >> uint64(32))


@njit
def _sign(values, at, flips, bit, count, signed):
    """Write values, or the only one, with their signs in a row."""
    if values.size == 1:
        for k in range(uint64(count)):
            sign = 1 - 2 * int64((flips[k] >> bit) & uint32(1))
            signed[k] = values[0] * values.dtype.type(sign)
        return
    begin = uint64(at)
    for k in range(uint64(count)):
        sign = 1 - 2 * int64((flips[k] >> bit) & uint32(1))
        signed[k] = values[begin + k] * values.dtype.type(sign)


@njit
def _add(cells, signed, count, table, begin):
    for k in range(uint64(count)):
        table[begin + uint64(cells[k])] += signed[k]


@compiled
def encode(
    task, keys, values, starts, tables, shares, groups, block, runs, words, bits, numbers, places,
    cells, signed, owners,
):  # fmt: skip
    """Add the values of a group of tables to a share of their rows.

    A table has the items from its `starts` to the next one's; a single value is that of all.
    """
    rows, cols = tables.shape[1:]
    group, share, count = task // shares, task % shares, tables.shape[0]
    table, last = count * group // groups, count * (group + 1) // groups
    at, end, flat = starts[table], starts[last], tables.reshape(-1)
    is_own = last - table == 1  # no need to look up whose an item is
    while at < end:
        piece = keys[at : min(at + PIECE, end)]
        _hash_signs(piece, block, runs, words, bits, numbers, places)
        if not is_own:
            for k in range(piece.size):
                # Persons without items are passed over.
                while starts[table + 1] <= at + k:
                    table += 1
                owners[k] = table * rows * cols
        for j in range(rows * share // shares, rows * (share + 1) // shares):
            _hash_columns(piece, j, cols, block, words, bits, numbers, places, cells)
            _sign(values, at, bits[j // 32], uint32(j % 32), piece.size, signed)
            if is_own:
                _add(cells, signed, piece.size, flat, uint64((table * rows + j) * cols))
            else:
                for k in range(uint64(piece.size)):
                    flat[uint64(owners[k] + j * cols) + uint64(cells[k])] += signed[k]
        at += piece.size


@compiled
def query(
    task, tables, outs, keys, parts, block, runs, words, combine, rows_at, bits, numbers, places,
    cells, values,
):  # fmt: skip
    """Estimates of a part of the keys. `rows_at` says, as codes, where rows of `values` begin.

    `values` have a last row for results.
    """
    (rows, cols), count, table = tables.shape[1:], keys.size, tables.reshape(-1)
    item, part = task // parts, task % parts
    at, end = count * part // parts, count * (part + 1) // parts
    last = values[rows * PIECE :]
    while at < end:
        piece = keys[at : min(at + PIECE, end)]
        _hash_signs(piece, block, runs, words, bits, numbers, places)
        for j in range(rows):
            _hash_columns(piece, j, cols, block, words, bits, numbers, places, cells)
            begin, to = uint64((item * rows + j) * cols), uint64(j * PIECE)
            for k in range(uint64(piece.size)):
                values[to + k] = table[begin + uint64(cells[k])]
        padded = (piece.size + GROUP - 1) // GROUP * GROUP
        to_last, from_rows = address(last), address(values)
        call(
            combine,
            (to_last, from_rows, address(rows_at), 1, padded, address(bits), address(bits[1])),
        )
        outs[item, at : at + piece.size] = last[: piece.size]
        at += piece.size

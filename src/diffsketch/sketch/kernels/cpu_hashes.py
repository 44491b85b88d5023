"""The hashes of `diffsketch.sketch.hashing` for Numba, in batches that LLVM vectorises."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, uint32, uint64

from diffsketch.sketch.kernels.cpu_adding import scale_lanes

TOP = uint32(0x80000000)
REST = uint32(0x7FFFFFFF)


@njit(inline="always")
def address(array: Any) -> Any:
    """An array's address, signed: Numba makes a float of an unsigned one plus a signed offset."""
    return np.int64(array.ctypes.data)


@njit
def keep(array: Any) -> Any:
    """Say that an array is still in use, by its address: call it after the last such use.

    Else Numba, which does not see that, gives its memory back at the next branch.
    """
    return array.size


@njit(inline="always")
def mix64(value: Any, first_key: Any, second_key: Any) -> Any:
    """`diffsketch.sketch.hashing.mix64`."""
    z = value + first_key
    z = (z ^ (z >> uint64(30))) * uint64(0xBF58476D1CE4E5B9)
    z = z ^ second_key
    z = (z ^ (z >> uint64(27))) * uint64(0x94D049BB133111EB)
    return z ^ (z >> uint64(31))


@njit
def hash_signs(first: Any, words: Any, steps: Any, phases: Any) -> None:
    """Steps and starts of the sign sequences of the blocks from `first` on."""
    first_key, second_key = words[0], words[1]
    for k in range(steps.size):
        h = mix64(uint64(first + k), first_key, second_key)
        steps[k] = uint32(h >> uint64(32))
        phases[k] = uint32(h)


@njit
def hash_starts(
    first: Any, runs: Any, cols: Any, block: Any, row: Any, words: Any, starts: Any
) -> None:
    """Where the blocks from `first` on start in a row; the flips of their runs in the top bits."""
    slot, run, done = first // runs, first % runs, 0
    first_key, second_key = words[2 + 3 * row], words[3 + 3 * row]
    while done < starts.size:  # a slot after the other: within one, run follows run
        count = min(runs - run, starts.size - done)
        part = starts[done : done + count]
        for k in range(count):
            h = mix64(uint64(run + k), first_key, second_key)
            shift = uint32(((h >> uint64(32)) * uint64(cols)) >> uint64(32))
            part[k] = shift | (uint32(h) << uint32(31))
        at, wide = uint32(slot * block), uint32(cols)
        for k in range(count):  # by itself, because it is vectorised in 32 bits
            start = uint32((part[k] & REST) + at)
            past = uint32(start - wide)
            part[k] = (past if start >= wide else start) | (part[k] & TOP)
        slot, run, done = slot + 1, 0, done + count


LINEAR = 1 << 32
"""Up to the next multiple of this, the columns of consecutive coordinates follow from `linear`."""


@njit(inline="always")
def linear(first: Any, row: Any, words: Any) -> Any:
    """Of the pairwise family: what coordinate `first` hashes to in a row, and the step to the next.

    Columns are the upper halves of these, brought down to `[0, cols)`.
    """
    low, high, add = words[2 + 3 * row], words[3 + 3 * row], words[4 + 3 * row]
    i = uint64(first)
    return low * (i & uint64(0xFFFFFFFF)) + high * (i >> uint64(32)) + add, low


@njit
def hash_columns(first: Any, row: Any, cols: Any, words: Any, columns: Any) -> None:
    """Columns of consecutive coordinates in a row of the pairwise family."""
    done, to = 0, address(columns)
    while done < columns.size:
        start, step = linear(first + done, row, words)
        count = min(columns.size - done, LINEAR - (first + done) % LINEAR)
        scale_lanes(to + done * columns.itemsize, count, start, step, uint64(cols))
        done += count


@njit
def hash_bits(first: Any, words: Any, bits: Any) -> None:
    """Sign bits of consecutive coordinates in the pairwise family, bit `j` for row `j`."""
    first_key, second_key = words[0], words[1]
    for k in range(bits.size):
        bits[k] = mix64(uint64(first + k), first_key, second_key)


@njit
def hash_halves(first: Any, words: Any, halves: Any, count: Any, rows: Any) -> None:
    """The same as 32-bit words: `halves[0]` for the first 32 rows, `halves[1]` for the others."""
    first_key, second_key = words[0], words[1]
    lower, upper = halves[0, :count], halves[1, :count]
    for k in range(lower.size):
        lower[k] = uint32(mix64(uint64(first + k), first_key, second_key))
    if rows > 32:
        for k in range(upper.size):
            upper[k] = uint32(mix64(uint64(first + k), first_key, second_key) >> uint64(32))


@njit(inline="always")
def share(total: Any, piece: Any, pieces: Any) -> Any:
    """The `piece`-th of `pieces` nearly equal parts of `range(total)`."""
    return total * piece // pieces, total * (piece + 1) // pieces


@njit
def finite(tables: Any) -> Any:
    """Whether no cell is NaN or infinite: all bits of such a one's exponent are set."""
    cells = tables.reshape(-1)
    if cells.itemsize == 4:
        words, largest = cells.view(np.int32), np.int32(0)
        for k in range(words.size):
            largest = max(largest, words[k] & np.int32(0x7FFFFFFF))
        return largest < np.int32(0x7F800000)
    longs, most = cells.view(np.int64), np.int64(0)
    for k in range(longs.size):
        most = max(most, longs[k] & np.int64(0x7FFFFFFFFFFFFFFF))
    return most < np.int64(0x7FF0000000000000)


@njit(inline="always")
def copy(source: Any, to: Any) -> None:
    """`to[:] = source`, but for the check of shapes: to compile its message takes two seconds."""
    for k in range(to.size):
        to[k] = source[k]


@njit
def fold(parts: Any, out: Any) -> None:
    """Sum partial tables in order; what lies past the end of a row belongs to its start."""
    cols = out.shape[1]
    for j in range(out.shape[0]):
        copy(parts[0, j, :cols], out[j])
        for p in range(1, parts.shape[0]):
            for c in range(cols):
                out[j, c] += parts[p, j, c]
        for p in range(parts.shape[0]):
            for c in range(cols, parts.shape[2]):
                out[j, c - cols] += parts[p, j, c]


@njit
def pad_rows(table: Any, pad: Any) -> Any:
    """A copy whose rows repeat their start, so that no block has to go around the end."""
    rows, cols = table.shape
    longer = np.empty((rows, cols + pad), table.dtype)
    for j in range(rows):
        for k in range(cols):
            longer[j, k] = table[j, k]
        for k in range(pad):
            longer[j, cols + k] = table[j, k]
    return longer

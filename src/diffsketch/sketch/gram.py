"""Counts of which cells share coordinates: `S S'` of the sketch's matrix, by Numba.

S has a column of `rows` entries +1 or -1 for each coordinate, so `S S'` is made of whole numbers;
they are counted as such. In the blocked family the signs that the rows share cancel, and a run
adds the product of its two flips all along a stretch of one diagonal, from where it starts in the
one row and the other. So only the starts are counted, and a run costs as much as a single
coordinate of the pairwise family.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit, uint64

from diffsketch.compiled import compiled
from diffsketch.sketch.hashing import Geometry, HashSeed, SketchLayout
from diffsketch.sketch.kernels.cpu_blocked import hash_blocks, mix64

Matrix: TypeAlias = npt.NDArray[np.float64]

_CHUNK = 512  # runs or coordinates that are hashed at a time


def gram(layout: SketchLayout, seed: HashSeed, start: int, stop: int) -> Matrix:
    """`S S'` of the coordinates from `start` to `stop`: `(rows * cols, rows * cols)`, exact."""
    cells = layout.rows * layout.cols
    matrix = np.zeros((cells, cells))
    add_gram(matrix, layout, seed, start, stop)
    return np.tril(matrix) + np.tril(matrix, -1).T


def add_gram(matrix: Matrix, layout: SketchLayout, seed: HashSeed, start: int, stop: int) -> None:
    """Add `S S'` to the lower triangle of a matrix, which is all that a factorisation reads.

    Above the diagonal, the squares of a row with itself are filled, too, and nothing else.
    """
    rows, cols, words = layout.rows, layout.cols, seed.words_for(layout.rows)
    # No count is larger than the number of coordinates.
    kind = np.int32 if stop - start < 1 << 31 else np.int64
    # One table for each pair of rows `j >= k`: the matrix is symmetric.
    counts = np.zeros((rows * (rows + 1) // 2, cols, cols), kind)
    out = matrix.reshape(rows, cols, rows, cols)
    codes, signs = np.empty((_CHUNK, rows), np.int64), np.empty((2, _CHUNK), np.uint32)
    if layout.family == "pairwise":
        # A coordinate is a run of length 1: its stretch is a single cell.
        _count_coordinates(start, stop, cols, words, codes, counts)
        _add_stretches(counts, 0, 1, out)
    else:
        for runs, low, size in _stretches(layout.geometry, start, stop):
            _count_runs(
                runs.start, runs.stop, layout.geometry.runs, cols, words, codes, signs, counts
            )
            _add_stretches(counts, low, size, out)
            counts[:] = 0


def products(lower: Matrix, vectors: Matrix) -> Matrix:
    """`lower @ vector` of each of `(items, n)`, for a lower triangular matrix.

    The bits do not depend on how many vectors there are, as those of a library's product would.
    """
    out = np.zeros_like(vectors)
    _multiply(np.ascontiguousarray(lower.T), np.ascontiguousarray(vectors), out)
    return out


def _stretches(geometry: Geometry, start: int, stop: int) -> list[tuple[range, int, int]]:
    """Runs that have the same places between the coordinates, the first place and how many.

    A run's places are all next to each other, since its blocks are in the order of coordinates.
    The runs of the two blocks that may be cut have others than the runs before and after.
    """
    block, runs = geometry.block, geometry.runs
    (first, skipped), (last, more) = divmod(start, block), divmod(stop - 1, block)
    # Between these runs all have equally many blocks, and none of them is cut.
    limits = {0, runs, first % runs, first % runs + 1, last % runs, last % runs + 1}
    stretches = []
    for run, end in pairwise(sorted(limits)):
        slot, last_slot = max(0, -((run - first) // runs)), (last - run) // runs
        low = slot * block + (skipped if slot * runs + run == first else 0)
        high = last_slot * block + (more + 1 if last_slot * runs + run == last else block)
        if low < high:
            stretches.append((range(run, end), low, high - low))
    return stretches


@compiled
def _count_coordinates(start, stop, cols, words, codes, counts):
    """`counts[pair, a, b]`: coordinates in column a of a row and b of another, with their signs."""
    for first in range(start, stop, _CHUNK):
        count = min(_CHUNK, stop - first)
        for i in range(count):
            at = uint64(first + i)
            bits = mix64(at, words[0], words[1])
            low, high = at & uint64(0xFFFFFFFF), at >> uint64(32)
            for j in range(codes.shape[1]):
                # As `hashing.hash_rows`; the products wrap around on purpose.
                h = words[2 + 3 * j] * low + words[3 + 3 * j] * high + words[4 + 3 * j]
                column = ((h >> uint64(32)) * uint64(cols)) >> uint64(32)
                codes[i, j] = (column << uint64(1)) | (bits >> uint64(j) & uint64(1))
        _count_pairs(codes, count, counts)


@compiled
def _count_runs(start, stop, runs, cols, words, codes, signs, counts):
    """`counts[pair, a, b]`: runs that start at column a of a row and b of another, with signs."""
    for first in range(start, stop, _CHUNK):
        count = min(_CHUNK, stop - first)
        hash_blocks(first, count, runs, cols, 0, words, 0, codes.shape[1], 0, codes, signs)
        _count_pairs(codes, count, counts)


@njit
def _count_pairs(codes, count, counts):
    cols, pair = counts.shape[1], 0
    # A loop that the compiler vectorises, then one that only adds: three times faster than one.
    by_row = np.empty((codes.shape[1], count), np.uint32)
    places, products = np.empty(count, np.uint64), np.empty(count, np.int32)
    for j in range(codes.shape[1]):
        for i in range(count):
            by_row[j, i] = codes[i, j]
        for k in range(j + 1):
            table = counts[pair].reshape(-1)
            for i in range(count):
                code, other_code = by_row[j, i], by_row[k, i]
                places[i] = (code >> 1) * cols + (other_code >> 1)
                # The product of two signs is 1 where their lowest bits agree, -1 where not.
                products[i] = 1 - 2 * np.int32((code ^ other_code) & 1)
            for i in range(count):
                table[places[i]] += products[i]
            pair += 1


@compiled
def _add_stretches(counts, low, size, out):
    """Add each count to `size` cells of its diagonal, from `low` after its own on.

    What a cell gets is a sum over a window, which moves along the diagonal: `totals[d]` is that of
    the diagonal that begins in column d. Exact in whole numbers, where sliding a window in floats
    would gather rounding errors.
    """
    rows, cols = out.shape[0], out.shape[1]
    twice = np.empty((cols, 2 * cols), counts.dtype)  # rows that may be read around their end
    totals = np.empty(cols, np.int64)
    end = (cols - low) % cols + 1
    begin = end + cols - size
    for j in range(rows):
        for k in range(j + 1):
            table = counts[j * (j + 1) // 2 + k]
            twice[:, :cols], twice[:, cols:] = table, table
            totals[:] = 0
            for a in range(begin, begin + size):
                totals += twice[a % cols, a % cols : a % cols + cols]
            for a in range(cols):
                cells = out[j, a, k]
                for d in range(cols - a):
                    cells[a + d] += totals[d]
                for d in range(cols - a, cols):
                    cells[a + d - cols] += totals[d]
                first, last = (begin + a) % cols, (end + a) % cols
                enters, leaves = twice[last, last : last + cols], twice[first, first : first + cols]
                for d in range(cols):
                    totals[d] += enters[d] - leaves[d]


@compiled
def _multiply(upper, vectors, out):
    """`vectors @ upper`, a row of the matrix after the other."""
    for item in range(vectors.shape[0]):
        result = out[item]
        for k in range(vectors.shape[1]):
            row, value = upper[k], vectors[item, k]
            for i in range(k, row.size):
                result[i] += value * row[i]

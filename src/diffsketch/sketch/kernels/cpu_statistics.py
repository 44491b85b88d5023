"""Order and spread of the numbers of each vector of a batch, which a worker needs every round.

The loops are compiled by Numba; types are checked by the caller. The bits of a result do not
depend on the number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from diffsketch.sketch.kernels.cpu import Array
from diffsketch.sketch.kernels.cpu_threads import runner, threads_for

__all__ = ["summaries"]

_STEPS = 15  # of a bisection, after which few numbers are left
_PART = 64  # numbers, of which mostly none is among those
_PIECE = 1 << 20


def summaries(vectors: Array, place: int) -> tuple[Array, Array]:
    """Of each vector of `(items, dim)`: the sizes at `place` and the next; the standard deviation.

    Places are those of the absolute values in order, from 0, the smallest; the next one of the
    largest is itself. Numbers are float32 or float64 and finite; squares of float64 may overflow.

    Returns:
        Sizes `(items, 2)` in the vectors' type, and standard deviations `(items,)` in float64.
    """
    values = np.ascontiguousarray(vectors)
    sizes, spreads = np.empty((len(values), 2), values.dtype), np.empty(len(values))
    whole = np.empty(0, np.int32 if values.itemsize == 4 else np.int64)
    run = runner(_summaries, _summaries_parallel, threads_for(values.size))
    run(values, place, whole, sizes, spreads)
    return sizes, spreads


@njit(fastmath={"reassoc"})
def _count(vector: Any, limit: Any) -> Any:
    """How many numbers are at most `limit` in size.

    Counted in float32, since Numba would widen whole numbers, and so in pieces that this can hold.
    """
    found, one, zero = 0, np.float32(1), np.float32(0)
    for start in range(0, vector.size, _PIECE):
        piece, some = vector[start : start + _PIECE], zero
        for i in range(piece.size):
            some += one if abs(piece[i]) <= limit else zero
        found += int(some)
    return found


@njit(fastmath={"nnan", "nsz"})
def _next(vector: Any, limit: Any) -> Any:
    """The smallest size above the limit, or infinity."""
    least = vector.dtype.type(np.inf)
    for i in range(vector.size):
        size = abs(vector[i])
        least = min(least, size if size > limit else vector.dtype.type(np.inf))
    return least


@njit
def _narrow(vector: Any, rank: Any, limits: Any, bits: Any, steps: Any) -> Any:
    """So many steps of a bisection for the size that is larger than `rank` others.

    `bits` are those of the `limits`, the two ends and room for a third number. Positive numbers
    are in the order of their bits. Returns how many sizes are below the lower end.
    """
    below = 0
    for _ in range(steps):
        if bits[0] >= bits[1]:
            break
        bits[2] = bits[0] + ((bits[1] - bits[0]) >> 1)
        count = _count(vector, limits[2])
        if count > rank:
            bits[1] = bits[2]
        else:
            bits[0], below = bits[2] + 1, count
    return below


@njit(fastmath={"reassoc"})
def _are_between(part: Any, low: Any, high: Any) -> Any:
    """Whether any size is in `[low, high]`."""
    some, one, zero = np.float32(0), np.float32(1), np.float32(0)
    for i in range(part.size):
        size = abs(part[i])
        some += one if (size >= low) & (size <= high) else zero
    return some > zero


@njit
def _between(vector: Any, low: Any, high: Any) -> Any:
    """The sizes in `[low, high]`."""
    count, left = 0, np.empty_like(vector)
    for start in range(0, vector.size, _PART):
        part = vector[start : start + _PART]
        if _are_between(part, low, high):
            for i in range(part.size):  # no branches: they would be taken at random
                left[count] = abs(part[i])
                count += (left[count] >= low) & (left[count] <= high)
    return left[:count]


@njit
def _rank(vector: Any, rank: Any, whole: Any, out: Any) -> None:
    """Bisection, where each count is one vectorised pass; soon among the few that are left."""
    limits = np.zeros(3, vector.dtype)
    limits[1] = np.inf
    bits = limits.view(whole.dtype)
    below = _narrow(vector, rank, limits, bits, _STEPS)
    left = _between(vector, limits[0], limits[1])
    _narrow(left, rank - below, limits, bits, 8 * vector.itemsize)
    out[0] = out[1] = limits[0]
    if rank + 1 < vector.size and below + _count(left, limits[0]) == rank + 1:
        out[1] = _next(left, limits[0])
        if out[1] == np.inf:
            out[1] = _next(vector, limits[0])


# Sums are cut into lanes, always in the same way.
@njit(fastmath={"reassoc", "contract"})
def _spread(vector: Any) -> Any:
    total = 0.0
    for i in range(vector.size):
        total += np.float64(vector[i])
    mean, squares = total / vector.size, 0.0
    for i in range(vector.size):
        distance = np.float64(vector[i]) - mean
        squares += distance * distance
    return np.sqrt(squares / vector.size)


@njit(cache=True, nogil=True)
def _summaries(vectors: Any, place: Any, whole: Any, sizes: Any, spreads: Any) -> None:
    """One thread. `whole` is an array of whole numbers with as many bits."""
    for item in range(vectors.shape[0]):
        spreads[item] = _spread(vectors[item])
        _rank(vectors[item], place, whole, sizes[item])


@njit(cache=True, parallel=True, nogil=True)
def _summaries_parallel(vectors: Any, place: Any, whole: Any, sizes: Any, spreads: Any) -> None:
    """The same with all threads."""
    for item in prange(vectors.shape[0]):
        spreads[item] = _spread(vectors[item])
        _rank(vectors[item], place, whole, sizes[item])

"""Order and spread of the numbers of each vector of a batch, which a worker needs every round.

The loops are compiled by Numba; types are checked by the caller. The bits of a result do not
depend on the number of threads.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from numba import njit

from diffsketch.compiled import compiled, run_tasks, threads_for

Array: TypeAlias = npt.NDArray[np.float32 | np.float64]

_STEPS = 15  # of a bisection, after which few numbers are left
_PART = 64  # numbers, of which mostly none is among those
_PIECE = 1 << 20  # numbers that are counted in float32, since Numba would widen whole numbers


def summaries(vectors: Array, place: int) -> tuple[Array, Array]:
    """Two neighbouring order statistics of the sizes in each vector; its standard deviation.

    Places are those of the absolute values in order, from 0, the smallest; the next one of the
    largest is itself. Numbers are float32 or float64 and finite; squares of float64 may overflow.

    Args:
        vectors: `(items, dim)`.
        place: Of the first of the two sizes.

    Returns:
        Sizes `(items, 2)` in the vectors' type, and standard deviations `(items,)` in float64.
    """
    values = np.ascontiguousarray(vectors)
    sizes, spreads = np.empty((len(values), 2), values.dtype), np.empty(len(values))
    threads = threads_for(values.size)
    tasks = min(len(values), 4 * threads) if threads > 1 else 1

    def scratch() -> tuple[Any, ...]:
        limits = np.empty(3, values.dtype)
        bits = limits.view(np.int32 if values.itemsize == 4 else np.int64)
        return limits, bits, np.empty(values.shape[1], values.dtype)

    run_tasks(_summaries, tasks, threads, tasks, values, place, sizes, spreads, scratch=scratch)
    return sizes, spreads


@njit(fastmath={"reassoc", "contract"})  # sums are cut into lanes, always in the same way
def _spread(vector):
    total = 0.0
    for i in range(vector.size):
        total += np.float64(vector[i])
    mean, squares = total / vector.size, 0.0
    for i in range(vector.size):
        distance = np.float64(vector[i]) - mean
        squares += distance * distance
    return np.sqrt(squares / vector.size)


@compiled(fastmath={"reassoc", "nnan", "nsz"})
def _summaries(task, tasks, vectors, place, sizes, spreads, limits, bits, left):
    """Bisect for the size at a place, where each count is one vectorised pass.

    `bits` are those of the `limits`: the two ends, and the middle. Positive numbers are in the
    order of their bits. After a few steps, those that are between the ends go on alone.
    """
    unit, zero, infinite = np.float32(1), np.float32(0), vectors.dtype.type(np.inf)
    for item in range(vectors.shape[0] * task // tasks, vectors.shape[0] * (task + 1) // tasks):
        vector, rank, below = vectors[item], place, 0
        spreads[item] = _spread(vector)
        limits[0], limits[1], among = 0, np.inf, vector
        for steps in (_STEPS, 8 * vectors.itemsize):
            for _ in range(steps):
                if bits[0] >= bits[1]:
                    break
                # Halfway in bits is halfway in the order of floats, and at most 31 (63) steps from
                # the end.
                bits[2] = bits[0] + ((bits[1] - bits[0]) >> 1)
                count, limit = 0, limits[2]
                for start in range(0, among.size, _PIECE):
                    piece, hits = among[start : start + _PIECE], zero
                    for i in range(piece.size):
                        hits += unit if abs(piece[i]) <= limit else zero
                    count += int(hits)
                if count > rank:
                    bits[1] = bits[2]
                else:
                    bits[0], below = bits[2] + 1, count
            if steps == _STEPS:
                # Few numbers are between the ends by now: they are copied, and only they are
                # counted further.
                low, high, kept = limits[0], limits[1], 0
                for start in range(0, vector.size, _PART):
                    part, hits = vector[start : start + _PART], zero
                    for i in range(part.size):
                        hits += unit if (abs(part[i]) >= low) & (abs(part[i]) <= high) else zero
                    if hits > zero:
                        for i in range(part.size):  # no branches: they would be taken at random
                            size = left[kept] = abs(part[i])
                            kept += (size >= low) & (size <= high)
                among, rank, below = left[:kept], rank - below, 0
        ranked = limits[0]
        count, least = 0, infinite
        for i in range(among.size):
            count += abs(among[i]) <= ranked
        if count == rank + 1:  # the next one is another
            for i in range(among.size):
                least = min(least, abs(among[i]) if abs(among[i]) > ranked else infinite)
            if least == infinite:
                for i in range(vector.size):
                    least = min(least, abs(vector[i]) if abs(vector[i]) > ranked else infinite)
        sizes[item, 0], sizes[item, 1] = ranked, ranked if least == infinite else least

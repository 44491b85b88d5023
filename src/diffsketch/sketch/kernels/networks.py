"""Selection networks: comparators that put the middle of a few values in the middle.

Both devices take their median from here. A comparator `(i, j)` leaves the smaller of the two
values at `i` and the larger at `j`; compilers drop the halves that nobody reads afterwards.
"""

from __future__ import annotations

from functools import cache

__all__ = ["Network", "median_network", "middle"]

Network = tuple[tuple[int, int], ...]

# Shorter than any sort: 4, 10, 20 and 30 minima and maxima once unused halves are dropped.
_SELECT: dict[int, Network] = {
    3: ((0, 1), (1, 2), (0, 1)),
    5: ((0, 1), (2, 3), (0, 2), (1, 3), (1, 2), (2, 4), (1, 2)),
    7: (
        (0, 5), (0, 3), (1, 6), (2, 4), (0, 1), (3, 5), (2, 6),
        (2, 3), (3, 6), (4, 5), (1, 4), (1, 3), (3, 4),
    ),
    9: (
        (1, 2), (4, 5), (7, 8), (0, 1), (3, 4), (6, 7), (1, 2), (4, 5), (7, 8), (0, 3),
        (5, 8), (4, 7), (3, 6), (1, 4), (2, 5), (4, 7), (2, 4), (4, 6), (2, 4),
    ),
}  # fmt: skip


@cache
def median_network(rows: int) -> Network:
    """Comparators after which the values at `middle(rows)` are the middle ones.

    >>> len(median_network(5)), len(median_network(10))
    (7, 29)
    """
    if rows in _SELECT:
        return _SELECT[rows]
    wanted = set(middle(rows))
    kept = []
    for i, j in reversed(_batcher(rows)):
        if i in wanted or j in wanted:
            kept.append((i, j))
            wanted |= {i, j}
    return tuple(reversed(kept))


def middle(rows: int) -> tuple[int, int]:
    """Positions of the two middle values; the same one twice if `rows` is odd."""
    return (rows - 1) // 2, rows // 2


def _batcher(rows: int) -> list[tuple[int, int]]:
    """Batcher's odd-even merge sort for any number of values."""
    comparators: list[tuple[int, int]] = []
    p = 1
    while p < rows:
        k = p
        while k >= 1:
            for j in range(k % p, rows - k, 2 * k):
                comparators += [
                    (i, i + k)
                    for i in range(j, j + min(k, rows - j - k))
                    if i // (2 * p) == (i + k) // (2 * p)
                ]
            k //= 2
        p *= 2
    return comparators

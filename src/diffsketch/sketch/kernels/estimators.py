"""Estimators: how the rows' cells of a coordinate become one number.

Every device takes an estimator from here, as data: comparators that put some of the values in
order, and the places whose values are then averaged. So a new one is a case of `estimator`, a name
in `Combine` (and in the options of `run`), and its variance in `privacy.theorems`.

A comparator `(i, j)` leaves the smaller of the two values at `i` and the larger at `j`; compilers
drop the halves that nobody reads afterwards.
"""

from __future__ import annotations

from functools import cache
from typing import Literal, NamedTuple, TypeAlias, get_args

Combine: TypeAlias = Literal["median", "mean"]
COMBINES: tuple[Combine, ...] = get_args(Combine)

Network = tuple[tuple[int, int], ...]


class Estimator(NamedTuple):
    """Comparators, and the places whose values are averaged, in ascending order.

    In values that are sorted as a whole, the same places hold the same values.
    """

    comparators: Network
    places: tuple[int, ...]


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
def estimator(combine: Combine, rows: int) -> Estimator:
    """The estimator of this name for this many rows.

    >>> estimator("mean", 3)
    Estimator(comparators=(), places=(0, 1, 2))
    >>> median = estimator("median", 10)
    >>> len(median.comparators), median.places
    (29, (4, 5))
    """
    if combine == "mean":
        return Estimator((), tuple(range(rows)))
    # One middle value of an odd number, two of an even one.
    places = tuple(sorted({(rows - 1) // 2, rows // 2}))
    return Estimator(_SELECT.get(rows) or _selection(rows, places), places)


def _selection(rows: int, places: tuple[int, ...]) -> Network:
    """The comparators of a sort that have a part in what comes to these places."""
    wanted, kept = set(places), []
    for i, j in reversed(_batcher(rows)):
        if i in wanted or j in wanted:
            kept.append((i, j))
            # From here on back, both inputs of the comparator matter.
            wanted |= {i, j}
    return tuple(reversed(kept))


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

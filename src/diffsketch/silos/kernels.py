"""Compiled loop that bounds, rounds and adds up the tables of records."""

from __future__ import annotations

from typing import Any

import numpy as np

from diffsketch.compiled import compiled


@compiled(fastmath={"reassoc", "contract"})  # type: ignore[untyped-decorator]
def add_bounded(
    tables: Any, length: Any, step: Any, largest: Any, dither: Any, total: Any, scratch: Any
) -> None:
    """Add each row of float32 `tables`, bounded and rounded, to `total` (int64).

    A row is scaled down to a norm of `length`, divided by `step`, and rounded by the dither (int32
    numbers of `scratch`). Where that makes the sum of squares larger than `largest`, it is rounded
    towards zero instead, and where not even that is enough it counts as zeros: so does a row that
    is not finite.
    """
    for row in range(tables.shape[0]):
        table = tables[row]
        square = 0.0
        for i in range(table.size):
            square += np.float64(table[i]) * np.float64(table[i])
        if not square < np.inf:  # squares of float32 do not overflow in float64
            continue
        norm = np.sqrt(square)
        factor = (length / norm if norm > length else 1.0) / step
        norms = np.int64(0)
        for i in range(table.size):
            scratch[i] = np.int32(np.floor(np.float64(table[i]) * factor + dither[i]))
            norms += np.int64(scratch[i]) * np.int64(scratch[i])
        if norms > largest:
            factor *= 1 - 1e-9  # more than the arithmetic can lose
            norms = np.int64(0)
            for i in range(table.size):
                scratch[i] = np.int32(np.float64(table[i]) * factor)
                norms += np.int64(scratch[i]) * np.int64(scratch[i])
        if norms <= largest:
            for i in range(table.size):
                total[i] += scratch[i]

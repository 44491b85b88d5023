"""The covariance that sketched noise has, and its factor.

A span of coordinates with independent noise of variance 1, sketched under known hashes, gives a
table with covariance `G = S S'`, where S has a column of `rows` entries +1 or -1 per coordinate.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed

__all__ = ["Matrix", "factor", "gram", "is_factored"]

Matrix = npt.NDArray[np.float64]

# Nanoseconds, on a processor of 2.5 GHz: what appending numbers costs and what a factor does.
_APPENDED = 12  # to draw a number and to add it to all rows
_COUNTED = 1.1  # to count a coordinate, or a run of them, for two rows
_CELL = 30  # to write a number of G
_FACTORED = 0.012  # of a factorisation, times cells^3
_WORKERS = 10  # of a small cohort, who share a factor


def gram(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> Matrix:
    """`S S'` of the coordinates from `start` to `stop`, dense; whole numbers, hence exact."""
    from diffsketch.sketch import gram  # at first use: it takes Numba

    return gram.gram(seed, sketch.layout, start, stop)


def factor(sketch: CountSketch, seed: HashSeed, start: int) -> Tensor | None:
    """L, lower triangular, with `L L' = G` for the coordinates from `start` on.

    What is factored is G up to `(cells + 1) unit trace(G)`, unit = 2^-53 (Higham, "Accuracy and
    Stability", theorem 10.3). None where G is singular, or so near to it that rounding hides
    whether it is: a pivot of a singular G would be 0 but for rounding. Kept with the seed where
    noise is drawn with it.
    """
    key = "factor", sketch, start
    if key in seed.memo:
        kept: Tensor | None = seed.memo[key]
        return kept
    matrix = torch.from_numpy(gram(sketch, seed, start, sketch.dim))
    lower, info = torch.linalg.cholesky_ex(matrix)
    rounding = 16 * len(lower) * 2.0**-53 * float(matrix.trace())
    regular = info.item() == 0 and float(lower.diagonal().min()) ** 2 > rounding
    result = lower if regular else None
    if is_factored(sketch, start):
        seed.memo[key] = result
    return result


def is_factored(sketch: CountSketch, start: int) -> bool:
    """Whether noise in the coordinates from `start` on is cheaper to draw by a factor of G.

    By the sizes alone, for a cohort of ten, whoever takes part: a worker's noise must not depend
    on how many others there are.
    """
    rows, cells, padding = sketch.rows, sketch.rows * sketch.cols, sketch.dim - start
    if padding < cells:
        return False  # G is singular
    geometry = sketch.layout.geometry
    units = padding if sketch.family == "pairwise" else min(padding, geometry.runs)
    counted = _COUNTED * units * rows * (rows + 1) / 2
    return counted + _CELL * cells**2 + _FACTORED * cells**3 < _WORKERS * _APPENDED * padding

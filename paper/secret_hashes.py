"""Bare sketches whose hashes are secret, all other coordinates unknown and Gaussian: epsilon.

Theorem 1 of the paper takes its probability over the hashes and over Gaussian data, so this is what
it is about. One coordinate is `c` or `d`, both at most `alpha`; the others are independent
`N(0, 1)`; every coordinate has in every row a uniform column and a uniform sign, all independent,
and nobody who sees the table knows them. A table then has a density `p_c`.

`epsilon_bound` is an upper bound. Let `G = S S'` be the others' Gram matrix, `s` the
column of the coordinate (one sign in each row), `b` the table and `y = G^-1 b`. Whoever also sees
`G` learns no less, and for them

    p_c(b) / p_0(b) = E_s exp(c s'y - c^2 s'G^-1 s / 2).

1. By Jensen, this is at least `exp(-c^2 t / (2 low))` everywhere, `low` the least eigenvalue of
   `G` and `t` the number of rows: `p_0 <= exp(c^2 t / (2 low)) p_c`.
2. As `s'G^-1 s >= t / high`, and the signs of the rows are independent, it is at most
   `exp(-c^2 t / (2 high)) prod_r mean_j cosh(c y_rj)`. With `cosh z <= exp(z^2 / 2)`, Jensen and
   `y ~ N(0, G^-1)` under `p_0`, its moment of any order `m < low / c^2` is at most
   `exp(-m c^2 t / (2 high)) (1 - m c^2 / low)^(-t/2)`; and `E (R - e^epsilon)+` is at most
   `E R^m (m - 1)^(m-1) m^-m e^(-(m-1) epsilon)`.
3. `G` is a sum of `n - 1` independent matrices `s s'` of mean `I / k` and norm `t`: matrix Chernoff
   bounds (Tropp 2012, theorem 1.1) give `low` and `high`, but for a part of delta.

So `p_c <= e^epsilon p_d + delta` for the sum of the exponents of 2. and 1.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special

from diffsketch.errors import check

_PART = 0.1  # of delta, for eigenvalues that are out of bounds


def epsilon_bound(dim: int, rows: int, cols: int, *, alpha: float, delta: float) -> float:
    """An epsilon that holds for all values up to `alpha`; infinite where nothing is shown.

    >>> round(epsilon_bound(2000, 5, 2, alpha=1.645, delta=1e-5), 3) < 0.24  # Theorem 1's
    True
    """
    check(dim > rows * cols, "dim", f"be > {rows * cols}, the cells of the table", dim)
    low, high = _eigenvalues(dim - 1, rows, cols, failure=_PART * delta)
    above = excess_bound(low, high, rows, alpha=alpha, delta=(1 - _PART) * delta)
    return above + alpha**2 * rows / (2 * low) if low > 0 else math.inf


def excess_bound(low: float, high: float, rows: int, *, alpha: float, delta: float) -> float:
    """The epsilon of step 2, given the ends of the eigenvalues: `alpha` against 0, that way only.

    The least over orders of the moment; infinite if there are none.
    """
    if not low > alpha**2:
        return math.inf
    each = alpha**2 / low
    orders = 1 + np.geomspace(1e-3, 1 - 1e-9, 4000) * (1 / each - 1)
    moments = -orders * alpha**2 * rows / (2 * high) - rows / 2 * np.log1p(-orders * each)
    tails = (orders - 1) * np.log(orders - 1) - orders * np.log(orders)
    return max(0.0, float(((moments + tails - math.log(delta)) / (orders - 1)).min()))


def _eigenvalues(count: int, rows: int, cols: int, *, failure: float) -> tuple[float, float]:
    """Bounds on the Gram matrix's eigenvalues, both right but with probability `failure`.

    They are the mean times the two roots of `y ln y - y + 1 = needed`, below and above 1: both
    branches of Lambert's function. There is none below 1 if `needed` is not.
    """
    mean, cells = count / cols, rows * cols
    needed = math.log(2 * cells / failure) * rows / mean
    place = (needed - 1) / math.e
    low = math.exp(1 + special.lambertw(place, -1).real) if needed < 1 else 0.0
    high = math.exp(1 + special.lambertw(place).real)
    return low * mean, high * mean

"""Lemma 1 (the error of a sketch's estimates) and Theorem 2 (convergence of training with them).

Hash words are taken to be independent and uniform, as everywhere here.
"""

from __future__ import annotations

import math

import torch

from diffsketch.errors import check, check_positive, check_whole
from diffsketch.privacy.theorems import least_padding
from diffsketch.sketch import CountSketch
from diffsketch.sketch.hashing import MAX_DIM


def lemma1_error(rows: int, cols: int, *, failure: float) -> float:
    """Lemma 1 the other way round: the error that a table of this size keeps.

    For any vector and any coordinate of it, the median of the rows is off by at most
    `error * ||vector||` with probability at least `1 - failure` over the hashes. A row misses with
    probability at most `p = 1 / (error^2 * cols)` (Chebyshev), the median only if half of the rows
    do; p is where the binomial tail of that is `failure`. The paper leaves these constants open.
    For all `dim` coordinates at once, ask for `failure / dim`.

    Guarantees: no vector breaks it, and with one row some reach it
    (`paper/tests/test_bounds.py`).

    >>> round(lemma1_error(9, 2400, failure=0.01), 4)
    0.0494
    """
    from scipy.special import betaincinv

    sketch = CountSketch(1, rows, cols)  # checks the sizes
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    half = (rows + 1) // 2
    # P(at least `half` of `rows` miss) is the distribution function of a beta variable.
    row_miss = float(betaincinv(half, rows - half + 1, failure))
    return 1 / math.sqrt(row_miss * sketch.cols)


def theorem2(dim: int, rounds: int, *, error: float, **constants: float) -> float:
    """Theorem 2 as the paper states it: a bound on `F(average of x_1..x_rounds) - F(optimum)`.

        (D^2 / (2c) + c sqrt((i + 1) / i) (dim * error^2 + 1) G^2) / sqrt(i),    i = rounds

    **What of it is true.** Two slips of the proof cancel: it bounds `sum_j 1/sqrt(j)` by
    `sqrt(i + 1)`, which is false from i = 3 on (it nears `2 sqrt(i)`), but loses a factor of 2 on
    the way by not using that the estimates are unbiased. Its last slip stays: it bounds
    expectations, so the result holds **in expectation**, not with the probability `1 - failure` of
    Lemma 1 (which is for one coordinate in one round, while the proof uses it for all at once).
    So: the expected gap is at most this wherever `dim * error^2 >= query_variance`, and that is so
    for `error = lemma1_error(rows, cols, failure=...)` with any `failure` below 1/2.

    Args:
        dim: Parameters, n in the paper.
        rounds: Rounds so far.
        error: Error of an estimate over the vector's norm, mu in the paper.
        constants: Those of `expected_gap`.
    """
    check_whole("rounds", rounds, least=1)
    check(0 <= error < math.inf, "error", "be >= 0 and finite", error)
    slack = math.sqrt((rounds + 1) / rounds)
    # The slack is a factor of `1 + variance`, the estimates' second moment.
    return expected_gap(rounds, variance=slack * (1 + dim * error**2) - 1, **constants)


def expected_gap(
    rounds: int,
    *,
    variance: float,
    gradient_norm: float = 1.0,
    distance: float = 1.0,
    step: float = 1.0,
) -> float:
    """The proven bound: the *expected* `F(average of x_1..x_rounds) - F(optimum)` is at most this.

        (D^2 / (2c) + c (1 + variance) G^2) / sqrt(rounds)

    From `2 sum_j (F(x_j) - F*) <= D^2 / step_i + sum_j step_j (1 + variance) G^2`, where the
    second factor is `E||estimate||^2`, and `sum_j 1/sqrt(j) <= 2 sqrt(i)`. It assumes:

    * The objective F is the plain average of the workers' objectives, each of them convex.
    * In round `i` each worker computes a gradient whose expectation is that of its objective at
      `x_i`; `x_(i+1) = x_i - step / sqrt(i) * estimate`, where `estimate` is queried from the mean
      of the workers' tables (or is the mean of what is queried from each). No noise is added.
    * Every round has hashes of its own, independent of all that happened before.
    * `x_(i+1)` may be projected onto a convex set that holds the optimum, which is the easy way to
      keep D.

    Args:
        rounds: Rounds so far.
        variance: `query_variance` of the sketch, or 0 without one.
        gradient_norm: G, with `E||gradient||^2 <= G^2` for every worker and round.
        distance: D, with `E||x_i - optimum||^2 <= D^2` for every round.
        step: c, the size of the first step.
    """
    check_whole("rounds", rounds, least=1)
    check(0 <= variance < math.inf, "variance", "be >= 0 and finite", variance)
    for name, value in (("gradient_norm", gradient_norm), ("distance", distance), ("step", step)):
        check_positive(name, value)
    growth = step * (1 + variance) * gradient_norm**2
    return (distance**2 / (2 * step) + growth) / math.sqrt(rounds)


def padding_for(target: float, dim: int, rows: int, cols: int, *, ratio: float) -> int | None:
    """The least appended noise with which Theorem 1 claims the target; `ratio` is alpha / sigma.

    None where no vector that a sketch could take is long enough.
    """
    alpha, most = torch.tensor([ratio], dtype=torch.float64), MAX_DIM - dim
    lengths, claimed = least_padding(
        target, dim, rows, cols, alpha=alpha, sigma=torch.ones_like(alpha), most=most
    )
    return int(lengths) if float(claimed) <= target else None

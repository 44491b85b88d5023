"""Formulas by name: numbers that claims are judged by, calculated and not measured.

Each takes numbers and gives one. `claims.toml` uses them by the names of `FORMULAS`. Behind them
are Lemma 1 (the error of a sketch's estimates), Theorem 2 (convergence of training with them), and
what is true of Theorem 1 while hashes are secret. Hash words are taken to be independent and
uniform, as everywhere here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from scipy import special
from torch import Tensor

from diffsketch.errors import check, check_positive, check_whole
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.theorems import least_padding, query_variance, theorem1
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import MAX_DIM

ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
DELTA = 1e-5
_KEY = SketchKey.from_integer(5)
_PART = 0.1  # of delta, for eigenvalues that are out of bounds


# --- Lemma 1 and Theorem 2 -------------------------------------------------------------------


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
    sketch = CountSketch(1, rows, cols)  # checks the sizes
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    half = (rows + 1) // 2
    # P(at least `half` of `rows` miss) is the distribution function of a beta variable.
    row_miss = float(special.betaincinv(half, rows - half + 1, failure))
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


# --- Theorem 1 while hashes are secret -------------------------------------------------------


def epsilon_bound(dim: int, rows: int, cols: int, *, alpha: float, delta: float) -> float:
    """An epsilon that holds for all values up to `alpha`; infinite where nothing is shown.

    Theorem 1 of the paper takes its probability over the hashes and over Gaussian data, so this is
    what it is about. One coordinate is `c` or `d`, both at most `alpha`; the others are independent
    `N(0, 1)`; every coordinate has in every row a uniform column and a uniform sign, all
    independent, and nobody who sees the table knows them. A table then has a density `p_c`.

    Let `G = S S'` be the others' Gram matrix, `s` the column of the coordinate (one sign in each
    row), `b` the table and `y = G^-1 b`. Whoever also sees `G` learns no less, and for them

        p_c(b) / p_0(b) = E_s exp(c s'y - c^2 s'G^-1 s / 2).

    1. By Jensen, this is at least `exp(-c^2 t / (2 low))` everywhere, `low` the least eigenvalue of
       `G` and `t` the number of rows: `p_0 <= exp(c^2 t / (2 low)) p_c`.
    2. As `s'G^-1 s >= t / high`, and the signs of the rows are independent, it is at most
       `exp(-c^2 t / (2 high)) prod_r mean_j cosh(c y_rj)`. With `cosh z <= exp(z^2 / 2)`, Jensen
       and `y ~ N(0, G^-1)` under `p_0`, its moment of any order `m < low / c^2` is at most
       `exp(-m c^2 t / (2 high)) (1 - m c^2 / low)^(-t/2)`; and `E (R - e^epsilon)+` is at most
       `E R^m (m - 1)^(m-1) m^-m e^(-(m-1) epsilon)`.
    3. `G` is a sum of `n - 1` independent matrices `s s'` of mean `I / k` and norm `t`: matrix
       Chernoff bounds (Tropp 2012, theorem 1.1) give `low` and `high`, but for a part of delta.

    So `p_c <= e^epsilon p_d + delta` for the sum of the exponents of 2. and 1.

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


# --- Theorem 1, and noise --------------------------------------------------------------------


def theorem_1(dim: int, rows: int, cols: int) -> float:
    """The epsilon of a Gaussian vector by Theorem 1."""
    return float(theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0).epsilon(delta=0.0, rounds=1))


def theorem_1_padded(lengths: int, dim: int, rows: int, cols: int) -> float:
    """The same with noise appended, so many lengths of the vector."""
    return theorem_1(dim * (1 + lengths), rows, cols)


def noise_ratio(dim: int, rows: int, cols: int, epsilon: float) -> float:
    """The variance that appended noise adds to a cell over that of Laplace noise.

    With the least noise for which Theorem 1 claims the epsilon, for a Gaussian vector; Laplace
    noise has the scale `2 alpha t / epsilon`.
    """
    length = padding_for(epsilon, dim, rows, cols, ratio=ALPHA)
    laplace = 2 * (2 * ALPHA * rows / epsilon) ** 2
    return math.inf if length is None else length / cols / laplace


def _cpsgd(levels: int, trials: int, cohort: int) -> BinomialMechanism:
    """The mechanism of cpSGD on the paper's vectors."""
    return BinomialMechanism(dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials,
                             cohort=cohort, delta=DELTA)  # fmt: skip


def cpsgd_epsilon(cohort: int, levels: int, trials: int) -> float:
    """The epsilon that cpSGD's theorem proves; infinite if none."""
    return float(_cpsgd(levels, trials, cohort).claim.epsilon(delta=DELTA, rounds=1))


def cpsgd_bits(cohort: int, levels: int, trials: int) -> int:
    """The bits that hold cpSGD's k and m."""
    return _cpsgd(levels, trials, cohort).bits


# --- the Count Sketch itself, on vectors with fixed seeds ------------------------------------


def _gaussian(dim: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(dim))


def compression(dim: int, rows: int, cols: int) -> float:
    """Parameters over cells."""
    return CountSketch(dim, rows, cols).compression


def told_apart(dim: int, rows: int, cols: int, change: float) -> bool:
    """Whether the tables of two vectors that differ in one coordinate differ."""
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(dim).seed(0)
    first, second = torch.ones(2, dim)
    second[0] += change
    return not torch.equal(sketch.encode(first, seed), sketch.encode(second, seed))


def beyond_bound(dim: int, rows: int, cols: int) -> float:
    """The share of cells beyond 2 alpha, for a Gaussian vector."""
    table = CountSketch(dim, rows, cols).encode(_gaussian(dim), _KEY.seed(0))
    return float((table.abs() > 2 * ALPHA).double().mean())


def relative_error(dim: int, rows: int, cols: int) -> float:
    """The L2 error of one estimate over the norm."""
    vector, sketch, seed = _gaussian(dim), CountSketch(dim, rows, cols), _KEY.seed(0)
    estimate = sketch.query(sketch.encode(vector, seed), seed)
    return float((estimate - vector).norm() / vector.norm())


def convergence_bound(rows: int, cols: int, dim: int, rounds: int = 1000) -> float:
    """Theorem 2's bound, for G = D = c = 1 and a failure of 5%."""
    return theorem2(dim, rounds, error=lemma1_error(rows, cols, failure=0.05))


def proven_gap(rows: int, cols: int, dim: int, rounds: int = 1000) -> float:
    """The proven bound on the expected gap then; without a sketch if it has no rows."""
    sketched = rows and query_variance(CountSketch(dim, rows, cols), combine="median")
    return expected_gap(rounds, variance=sketched)


FORMULAS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        beyond_bound, compression, convergence_bound, cpsgd_bits, cpsgd_epsilon, noise_ratio,
        proven_gap, relative_error, theorem_1, theorem_1_padded, told_apart,
    )
}  # fmt: skip

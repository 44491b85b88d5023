"""How wrong a sketch's estimates are (Lemma 1), and how fast training with them goes (Theorem 2).

Hash words are taken to be independent and uniform, as everywhere in this package.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.stats import beta

from diffsketch.errors import ArgumentError, check
from diffsketch.sketch.count_sketch import Combine, CountSketch

__all__ = [
    "ConvexProblem",
    "expected_gap",
    "gap_with_probability",
    "lemma1_error",
    "query_variance",
    "theorem2",
]


def lemma1_error(rows: int, cols: int, *, failure: float) -> float:
    """Lemma 1 the other way round: the error that a table of this size keeps.

    For any vector and any coordinate of it, the median of the rows is off by at most
    `error * ||vector||` with probability at least `1 - failure` over the hashes. A row misses with
    probability at most `p = 1 / (error^2 * cols)` (Chebyshev), the median only if half of the rows
    do; p is where the binomial tail of that is `failure`. The paper leaves these constants open
    (`cols = O(e / error^2)`, `rows = O(ln(1 / failure))`). It is per coordinate: for all `dim` of
    them at once, ask for `failure / dim`.

    Guarantees: no vector breaks it, and with one row some reach it
    (`tests/privacy/test_convergence.py`).

    >>> sketch = CountSketch.from_error(1_000_000, 0.05, failure=0.01)
    >>> round(lemma1_error(sketch.rows, sketch.cols, failure=0.01), 4)
    0.0494
    """
    sketch = CountSketch(1, rows, cols)  # checks the sizes
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    half = (rows + 1) // 2
    # P(at least `half` of `rows` miss) is the distribution function of a beta variable.
    row_miss = float(beta.ppf(failure, half, rows - half + 1))
    return 1 / math.sqrt(row_miss * sketch.cols)


def query_variance(sketch: CountSketch, *, combine: Combine) -> float:
    """The largest `E||estimate - vector||^2 / ||vector||^2` over all vectors, or a bound on it.

    A row's estimate of a coordinate has a variance of at most `||others||^2 / cols`, which adds up
    to `(dim - 1) / cols`. The mean of the rows divides it by `rows`. The median's square is at most
    that of `rows // 2 + 1` of the rows, hence at most their sum over `rows // 2 + 1`. Either is
    unbiased: a row's error is as likely as its opposite.
    """
    check(combine in ("median", "mean"), "combine", "be 'median' or 'mean'", combine)
    row = (sketch.dim - 1) / sketch.cols
    if combine == "mean":
        return row / sketch.rows
    return row * sketch.rows / (sketch.rows // 2 + 1)


@dataclass(frozen=True)
class ConvexProblem:
    """What Theorem 2 assumes of the problem and of how it is solved.

    * The objective F is the plain average of the workers' objectives, each of them convex.
    * In round `i` each worker computes a gradient whose expectation is that of its objective at
      `x_i`; `x_(i+1) = x_i - step / sqrt(i) * estimate`, where `estimate` is queried from the mean
      of the workers' tables (or is the mean of what is queried from each). No noise is added.
    * Every round has hashes of its own, independent of all that happened before.
    * `x_(i+1)` may be projected onto a convex set that holds the optimum, which is the easy way to
      make the two bounds below true.

    Args:
        dim: Number of parameters.
        gradient_norm: G, with `E||gradient||^2 <= G^2` for every worker and round.
        distance: D, with `E||x_i - optimum||^2 <= D^2` for every round.
        step: c, the size of the first step.
    """

    dim: int
    gradient_norm: float
    distance: float
    step: float

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise ArgumentError(f"dim must be an int, got dim={self.dim!r}")
        check(self.dim >= 1, "dim", "be >= 1", self.dim)
        for name in ("gradient_norm", "distance", "step"):
            value = getattr(self, name)
            check(0 < value < math.inf, name, "be > 0 and finite", value)


def theorem2(problem: ConvexProblem, rounds: int, *, error: float) -> float:
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
        problem: The theorem's assumptions.
        rounds: How many points are averaged, the first being the start.
        error: Lemma 1's relative error of a coordinate.
    """
    _check_rounds(rounds)
    check(0 <= error < math.inf, "error", "be >= 0 and finite", error)
    start, noise = _terms(problem, problem.dim * error**2)
    return (start + math.sqrt((rounds + 1) / rounds) * noise) / math.sqrt(rounds)


def expected_gap(problem: ConvexProblem, rounds: int, *, variance: float) -> float:
    """What is proven: the *expected* `F(average of x_1..x_rounds) - F(optimum)` is at most this.

        (D^2 / (2c) + c (1 + variance) G^2) / sqrt(rounds)

    From `2 sum_j (F(x_j) - F*) <= D^2 / step_i + sum_j step_j (1 + variance) G^2`, where the
    second factor is `E||estimate||^2`, and `sum_j 1/sqrt(j) <= 2 sqrt(i)`.

    Args:
        problem: The theorem's assumptions.
        rounds: How many points are averaged, the first being the start.
        variance: `query_variance` of the sketch, or 0 without one.
    """
    _check_rounds(rounds)
    check(0 <= variance < math.inf, "variance", "be >= 0 and finite", variance)
    return sum(_terms(problem, variance)) / math.sqrt(rounds)


def gap_with_probability(
    problem: ConvexProblem, rounds: int, *, variance: float, failure: float
) -> float:
    """A bound on the gap itself that holds with probability `1 - failure`: Markov's inequality."""
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    return expected_gap(problem, rounds, variance=variance) / failure


def _terms(problem: ConvexProblem, variance: float) -> tuple[float, float]:
    start = problem.distance**2 / (2 * problem.step)
    return start, problem.step * (1 + variance) * problem.gradient_norm**2


def _check_rounds(rounds: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int):
        raise ArgumentError(f"rounds must be an int, got rounds={rounds!r}")
    check(rounds >= 1, "rounds", "be >= 1", rounds)

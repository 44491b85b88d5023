"""Formulas by name: numbers that claims are judged by, calculated and not measured.

Each takes numbers and gives one. `claims.toml` uses them by the names of `FORMULAS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.theorems import query_variance, theorem1
from diffsketch.sketch import CountSketch, SketchKey
from paper.bounds import expected_gap, lemma1_error, padding_for, theorem2

ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
DELTA = 1e-5
_KEY = SketchKey.from_integer(5)


# --- Theorem 1, and noise --------------------------------------------------------------------


def theorem_1(dim: int, rows: int, cols: int) -> float:
    """The epsilon of a Gaussian vector by Theorem 1."""
    claim = theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0)
    return float(claim.epsilon(delta=0.0, rounds=1))


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
    claim = _cpsgd(levels, trials, cohort).claim
    return float(claim.epsilon(delta=DELTA, rounds=1))


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

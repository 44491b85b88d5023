"""Formulas by name: numbers that claims are judged by, calculated and not measured.

Each takes numbers and gives one. `claims.toml` uses them by the names of `FORMULAS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diffsketch.privacy.claim import Relation
from diffsketch.privacy.clipping import CoordinateBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.theorems import query_variance, theorem1
from diffsketch.sketch import CountSketch, SketchKey
from paper.bounds import expected_gap, lemma1_error, padding_for, theorem2

_ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
_DELTA = 1e-5
_KEY = SketchKey.from_integer(5)


# --- Theorem 1, and noise --------------------------------------------------------------------


def theorem_1(dim: int, rows: int, cols: int) -> float:
    """The epsilon of a Gaussian vector by Theorem 1."""
    claim = theorem1(dim, rows, cols, alpha=_ALPHA, sigma=1.0)
    return float(claim.epsilon(delta=0.0, rounds=1))


def theorem_1_padded(lengths: int, dim: int, rows: int, cols: int) -> float:
    """The same with noise appended, so many lengths of the vector."""
    return theorem_1(dim * (1 + lengths), rows, cols)


def proven_padded(lengths: int, dim: int, rows: int, cols: int) -> float:
    """The epsilon that is proven for such noise, if coordinates are clipped to alpha.

    The noise is what a cell gets on average, and taken to be independent in each cell.
    """
    bound = CoordinateBound(_ALPHA, rows)
    multiplier = math.sqrt(lengths * dim / cols) / bound.sensitivity(Relation.REPLACE)
    mechanism = GaussianMechanism(bound, multiplier, Relation.REPLACE)
    return float(mechanism.claim.epsilon(delta=_DELTA, rounds=1))


def noise_ratio(dim: int, rows: int, cols: int, epsilon: float) -> float:
    """The variance that appended noise adds to a cell over that of Laplace noise.

    With the least noise for which Theorem 1 claims the epsilon, for a Gaussian vector; Laplace
    noise has the scale `2 alpha t / epsilon`.
    """
    length = padding_for(epsilon, dim, rows, cols, ratio=_ALPHA)
    laplace = 2 * (2 * _ALPHA * rows / epsilon) ** 2
    return math.inf if length is None else length / cols / laplace


def client_epsilon(dim: int, rows: int, cols: int) -> float:
    """A lower bound for a client under the noise that gives one coordinate an epsilon of 1.

    For Laplace noise, epsilon is the L1 distance of two tables over the scale. The tables of a
    vector that has the signs of the first row's hash and of its negative are farthest apart there.
    """
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(0).seed(0)
    first_row = torch.zeros(rows, cols)
    first_row[0] = 1.0
    vector = sketch.query(first_row, seed, combine="mean").sign()
    distance = float((sketch.encode(vector, seed) - sketch.encode(-vector, seed)).abs().sum())
    return distance / (2 * rows)


def _cpsgd(levels: int, trials: int, cohort: int) -> BinomialMechanism:
    """The mechanism of cpSGD on the paper's vectors."""
    return BinomialMechanism(dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials,
                             cohort=cohort, delta=_DELTA)  # fmt: skip


def cpsgd_epsilon(cohort: int, levels: int, trials: int) -> float:
    """The epsilon that cpSGD's theorem proves; infinite if none."""
    claim = _cpsgd(levels, trials, cohort).claim
    return float(claim.epsilon(delta=_DELTA, rounds=1))


def cpsgd_bits(cohort: int, levels: int, trials: int) -> int:
    """The bits that hold cpSGD's k and m."""
    return _cpsgd(levels, trials, cohort).bits


# --- the Count Sketch itself, on vectors with fixed seeds ------------------------------------


def _gaussian(dim: int) -> Tensor:
    return torch.randn(dim, generator=torch.Generator().manual_seed(dim))


def compression(dim: int, rows: int, cols: int) -> float:
    """Parameters over cells."""
    return CountSketch(dim, rows, cols).compression


def additive(dim: int, rows: int, cols: int, count: int) -> float:
    """The largest difference of the table of a sum and the sum of the tables.

    Of vectors of whole numbers, of which sums are exact in any order.
    """
    sketch, seed = CountSketch(dim, rows, cols), _KEY.seed(0)
    vectors = _gaussian(count * dim).mul(100).round().reshape(count, dim)
    table = sketch.encode(vectors.sum(0), seed)
    return float((sketch.encode(vectors, seed).sum(0) - table).abs().max())


def told_apart(dim: int, rows: int, cols: int, change: float) -> bool:
    """Whether the tables of two vectors that differ in one coordinate differ."""
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(dim).seed(0)
    first, second = torch.ones(2, dim)
    second[0] += change
    return not torch.equal(sketch.encode(first, seed), sketch.encode(second, seed))


def beyond_bound(dim: int, rows: int, cols: int) -> float:
    """The share of cells beyond 2 alpha, for a Gaussian vector."""
    table = CountSketch(dim, rows, cols).encode(_gaussian(dim), _KEY.seed(0))
    return float((table.abs() > 2 * _ALPHA).double().mean())


def _errors(vector: Tensor, sketch: CountSketch, seeds: int) -> Tensor:
    """Estimates less the vector, a row for each seed."""
    estimates = [sketch.query(sketch.encode(vector, seed), seed)
                 for seed in map(_KEY.seed, range(seeds))]  # fmt: skip
    return torch.stack(estimates) - vector


def relative_error(dim: int, rows: int, cols: int) -> float:
    """The L2 error of one estimate over the norm."""
    vector = _gaussian(dim)
    return float(_errors(vector, CountSketch(dim, rows, cols), 1).norm() / vector.norm())


def missed(dim: int, rows: int, cols: int, every: int, failure: float) -> float:
    """The share of coordinates beyond Lemma 1's error; of the vector each `every`th is not 0."""
    vector = _gaussian(dim) * (torch.arange(dim) % every == 0)
    bound = lemma1_error(rows, cols, failure=failure) * vector.norm()
    errors = _errors(vector, CountSketch(dim, rows, cols), 20)
    return float((errors.abs() > bound).double().mean())


def bias(dim: int, rows: int, cols: int, seeds: int) -> float:
    """The largest mean error of a coordinate over the seeds, in standard errors."""
    errors = _errors(_gaussian(dim), CountSketch(dim, rows, cols, "pairwise"), seeds)
    return float((errors.mean(0) / errors.std(0)).abs().max()) * math.sqrt(seeds)


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
        additive, beyond_bound, bias, theorem_1, theorem_1_padded, client_epsilon, compression,
        convergence_bound, cpsgd_bits, cpsgd_epsilon, missed, noise_ratio, proven_gap,
        proven_padded, relative_error, told_apart,
    )
}  # fmt: skip

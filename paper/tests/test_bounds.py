"""Lemma 1 and Theorem 2 by brute force on real sketches."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.theorems import query_variance
from diffsketch.sketch.hashing import FAMILIES, Family
from diffsketch.sketch.kernels.estimators import Combine
from paper.calculations import expected_gap, lemma1_error, theorem2
from tests.privacy.test_theorems import lower_end, upper_end

PROBLEM = {"gradient_norm": 2.0, "distance": 3.0, "step": 0.5}


@pytest.mark.parametrize("rows", [1, 2, 5, 10])
def test_lemma1_solves_for_the_binomial_tail(rows: int) -> None:
    for failure in (0.3, 0.01, 1e-9):
        error = lemma1_error(rows, 50, failure=failure)
        tail = binom.sf(math.ceil(rows / 2) - 1, rows, 1 / (error**2 * 50))
        assert tail == pytest.approx(failure, rel=1e-8)


def share_of_misses(
    vector: Tensor, sketch: CountSketch, error: float, *, seeds: int
) -> list[float]:
    limit = error * float(vector.norm())
    shares = []
    for number in range(seeds):
        seed = SketchKey.from_integer(number).seed(0)
        estimate = sketch.query(sketch.encode(vector, seed), seed)
        shares.append(float(((estimate - vector).abs() > limit).double().mean()))
    return shares


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [1, 3])
def test_lemma1_is_nearly_reached_by_a_single_large_coordinate(family: Family, rows: int) -> None:
    """Another coordinate misses where half of its rows share the large one's column and sign."""
    sketch = CountSketch(4000, rows, 10, family)
    vector = torch.zeros(4000, dtype=torch.float64)
    vector[1234] = 1.0
    failure = float(binom.sf(rows // 2, rows, 1.01 / 10))  # where the error is just below 1
    error = lemma1_error(rows, 10, failure=failure)
    assert 0.99 < error < 1
    misses = share_of_misses(vector, sketch, error, seeds=500)
    exact = 3999 / 4000 * 2 * float(binom.sf(rows // 2, rows, 1 / 20))
    assert lower_end(misses) <= exact <= upper_end(misses)
    assert exact <= failure <= 2.1 * exact
    # Control: a lemma that promised a fifth fewer misses would be caught.
    assert lower_end(misses) > 0.8 * exact


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("rows", [2, 5, 6])
def test_lemma1_holds_for_dense_vectors(family: Family, rows: int) -> None:
    vector = torch.from_numpy(np.random.default_rng(5).standard_normal(3000))
    sketch = CountSketch(3000, rows, 40, family)
    for failure in (0.2, 0.01):
        error = lemma1_error(rows, 40, failure=failure)
        misses = share_of_misses(vector, sketch, error, seeds=100)
        assert upper_end(misses) <= failure
        # Control: Chebyshev's inequality is loose here, but a twelfth of the error is too little.
        assert lower_end(share_of_misses(vector, sketch, error / 12, seeds=100)) > failure


@given(
    dim=st.integers(1, 10**6), big_g=st.floats(0.1, 10), big_d=st.floats(0.1, 10),
    step=st.floats(0.01, 10), rounds=st.integers(1, 10**6), error=st.floats(0, 1),
)  # fmt: skip
def test_theorem2_term_by_term(
    dim: int, big_g: float, big_d: float, step: float, rounds: int, error: float
) -> None:
    problem = {"gradient_norm": big_g, "distance": big_d, "step": step}
    start = Fraction(big_d) ** 2 / (2 * Fraction(step))
    growth = Fraction(step) * (dim * Fraction(error) ** 2 + 1) * Fraction(big_g) ** 2
    slack = Fraction(math.sqrt((rounds + 1) / rounds))
    stated = float((start + slack * growth) / Fraction(math.sqrt(rounds)))
    assert theorem2(dim, rounds, error=error, **problem) == pytest.approx(stated, rel=1e-12)
    proven = expected_gap(rounds, variance=dim * error**2, **problem)
    assert proven == pytest.approx(float((start + growth) / Fraction(math.sqrt(rounds))), rel=1e-12)
    assert proven <= stated * (1 + 1e-12)


def test_the_bound_follows_from_the_recursion() -> None:
    """Sums the inequality of every round, as the proof does, and checks its two slips."""
    variance = 7.0
    steps = PROBLEM["step"] / np.sqrt(np.arange(1, 2001))
    second_moment = (1 + variance) * PROBLEM["gradient_norm"] ** 2
    for rounds in (1, 2, 3, 10, 100, 2000):
        used = steps[:rounds]
        inverse = 1 / used
        distances = inverse[0] + np.diff(inverse).sum()  # times D^2: telescopes to 1 / last step
        total = distances * PROBLEM["distance"] ** 2 + second_moment * used.sum()
        exact = total / (2 * rounds)
        proven = expected_gap(rounds, variance=variance, **PROBLEM)
        assert exact <= proven * (1 + 1e-12)
        assert proven <= exact * (1 + 1 / math.sqrt(rounds))  # and little is given away
        assert (used.sum() <= PROBLEM["step"] * math.sqrt(rounds + 1)) == (rounds < 3)


def test_the_stated_bound_covers_the_proven_one_with_lemma1() -> None:
    for rows in (1, 2, 3, 7, 10):
        sketch = CountSketch(100, rows, 9)
        for failure in (0.49, 0.1, 1e-6):
            error = lemma1_error(rows, 9, failure=failure)
            for combine in ("mean", "median"):
                variance = query_variance(sketch, combine=combine)
                proven = expected_gap(50, variance=variance, **PROBLEM)
                assert proven <= theorem2(100, 50, error=error, **PROBLEM)


REFUSED: list[tuple[str, Callable[..., object], list[Any]]] = [
    # the argument, what is called, and the values for which it has to raise
    (
        "gradient_norm",
        lambda bad: expected_gap(1, variance=1.0, gradient_norm=bad),
        [0.0, math.nan, math.inf],
    ),
    (
        "distance",
        lambda bad: expected_gap(1, variance=1.0, distance=bad),
        [0.0, math.nan, math.inf],
    ),
    ("step", lambda bad: expected_gap(1, variance=1.0, step=bad), [0.0, math.nan, math.inf]),
    ("rounds", lambda bad: expected_gap(bad, variance=1.0), [0, 1.5, True]),
    ("rounds", lambda bad: theorem2(9, bad, error=1.0), [0, 1.5, True]),
    ("variance", lambda bad: expected_gap(1, variance=bad), [-1.0, math.nan, math.inf]),
    ("error", lambda bad: theorem2(9, 1, error=bad), [-1.0, math.nan, math.inf]),
    ("failure", lambda bad: lemma1_error(3, 10, failure=bad), [-1.0, math.nan, math.inf]),
    ("rows", lambda bad: lemma1_error(bad, 10, failure=0.1), [0]),
]


@pytest.mark.parametrize(("name", "call", "every"), REFUSED)
def test_bad_problems_and_bounds_raise(
    name: str, call: Callable[..., object], every: list[Any]
) -> None:
    for bad in every:
        with pytest.raises(ArgumentError, match=name):
            call(bad)


Gradients = Callable[[Tensor], Tensor]


def descend(
    gradients: Gradients, optimum: Tensor, start: Tensor, *, sketch: CountSketch, combine: Combine,
    problem: dict[str, float], rounds: int, number: int, fresh: bool = True,
) -> Tensor:  # fmt: skip
    """The average point; all points are kept within `distance` of the optimum."""
    key, point, total = SketchKey.from_integer(number), start, torch.zeros_like(start)
    for index in range(1, rounds + 1):
        total += point
        seed = key.seed(index if fresh else 0)
        local = gradients(point)
        assert float(local.norm(dim=1).max()) <= problem["gradient_norm"] * (1 + 1e-12)
        table = sketch.encode(local, seed).mean(dim=0)
        estimate = sketch.query(table, seed, combine=combine)
        offset = point - problem["step"] / math.sqrt(index) * estimate - optimum
        point = optimum + offset * min(1.0, problem["distance"] / max(1e-9, float(offset.norm())))
    return total / rounds


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("rows", "combine"), [(1, "median"), (3, "median"), (3, "mean")])
def test_absolute_deviations_obey_the_bound_and_need_its_variance(
    family: Family, rows: int, combine: Combine
) -> None:
    """Medians of three workers' points: gradients do not shrink near the optimum, so the noise of
    the sketch stays. Steps are so large that this noise is what counts."""
    dim, rounds = 128, 100
    points = 0.003 * torch.from_numpy(np.random.default_rng(1).standard_normal((3, dim)))
    optimum = points.median(dim=0).values
    start = optimum + 0.5 / math.sqrt(dim)

    def objective(x: Tensor) -> float:
        return float((x - points).abs().sum(dim=1).mean()) / math.sqrt(dim)

    sketch = CountSketch(dim, rows, 4, family)
    variance = query_variance(sketch, combine=combine)
    problem = {"gradient_norm": 1.0, "distance": 1.0, "step": 3 / math.sqrt(1 + variance)}
    gaps = []
    for number in range(20):
        average = descend(
            lambda x: (x - points).sign() / math.sqrt(dim), optimum, start,
            sketch=sketch, combine=combine, problem=problem, rounds=rounds, number=number,
        )  # fmt: skip
        gaps.append(objective(average) - objective(optimum))
    assert upper_end(gaps) <= expected_gap(rounds, variance=variance, **problem)
    error = lemma1_error(rows, 4, failure=0.1)
    assert upper_end(gaps) <= theorem2(dim, rounds, error=error, **problem)
    # Control: without the sketch's variance the bound would be broken.
    assert lower_end(gaps) > expected_gap(rounds, variance=0.0, **problem)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_quadratics_obey_the_bound_unless_hashes_are_reused(family: Family) -> None:
    """Four workers with the strongly convex objective `||x - center||^2 / 2` each."""
    dim, rounds = 64, 300
    centers = torch.from_numpy(np.random.default_rng(2).standard_normal((4, dim)) * 0.2 + 1)
    optimum = centers.mean(dim=0)
    distance = float(optimum.norm())
    norm = distance + float((centers - optimum).norm(dim=1).max())
    sketch = CountSketch(dim, 2, dim // 4, family)  # half as many cells as parameters
    variance = query_variance(sketch, combine="mean")
    step = distance / (norm * math.sqrt(2 + 2 * variance))
    problem = {"gradient_norm": norm, "distance": distance, "step": step}
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for fresh in gaps:
        for number in range(8):
            average = descend(
                lambda x: x - centers, optimum, torch.zeros_like(optimum), sketch=sketch,
                combine="mean", problem=problem, rounds=rounds, number=number, fresh=fresh,
            )  # fmt: skip
            gaps[fresh].append(float((average - optimum).square().sum()) / 2)
    bound = expected_gap(rounds, variance=variance, **problem)
    assert upper_end(gaps[True]) <= bound
    # Control: with the same hashes in all rounds, half of the directions are never seen.
    assert lower_end(gaps[False]) > bound

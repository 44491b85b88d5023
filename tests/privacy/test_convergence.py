"""Lemma 1 and Theorem 2: the formulas by brute force, and real sketches and problems under them.

Statistical tests have fixed seeds and compare means over seeds with bounds; over the choice of
seeds each fails by chance with probability under 1e-8 (six standard errors), unless it says
otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.theorems import (
    ConvexProblem,
    expected_gap,
    gap_with_probability,
    lemma1_error,
    query_variance,
    theorem2,
)
from diffsketch.sketch.count_sketch import Combine
from diffsketch.sketch.hashing import FAMILIES, Family

SIGMAS = 6.0
PROBLEM = ConvexProblem(dim=100, gradient_norm=2.0, distance=3.0, step=0.5)


def upper_end(values: list[float]) -> float:
    """Above the expectation of these values, but for six standard errors."""
    return float(np.mean(values) + SIGMAS * np.std(values, ddof=1) / math.sqrt(len(values)))


def lower_end(values: list[float]) -> float:
    return float(np.mean(values) - SIGMAS * np.std(values, ddof=1) / math.sqrt(len(values)))


# Lemma 1


@pytest.mark.parametrize("rows", [1, 2, 5, 10])
def test_lemma1_solves_for_the_binomial_tail(rows: int) -> None:
    for failure in (0.3, 0.01, 1e-9):
        error = lemma1_error(rows, 50, failure=failure)
        tail = binom.sf(math.ceil(rows / 2) - 1, rows, 1 / (error**2 * 50))
        assert tail == pytest.approx(failure, rel=1e-8)


@given(error=st.floats(0.01, 0.9), failure=st.floats(1e-6, 0.9))
def test_lemma1_is_the_inverse_of_from_error(error: float, failure: float) -> None:
    sketch = CountSketch.from_error(10, error, failure)
    assert lemma1_error(sketch.rows, sketch.cols, failure=failure) <= error * (1 + 1e-12)
    fewer = max(1, sketch.rows - 2)
    if fewer < sketch.rows:  # it takes the least number of rows for its columns
        assert lemma1_error(fewer, sketch.cols, failure=failure) > math.sqrt(6 / sketch.cols)


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


# The variance of the estimates


def median_limit(values: list[float]) -> float:
    """What `query_variance` says the median's square is at most, given the rows' errors."""
    factor = query_variance(CountSketch(2, len(values), 1), combine="median")  # rows alone: 1
    return factor * sum(v * v for v in values) / len(values)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_a_median_is_not_larger_than_half_of_the_values(values: list[float]) -> None:
    assert np.median(values) ** 2 <= median_limit(values) * (1 + 1e-12)


@pytest.mark.parametrize("rows", range(1, 9))
def test_no_better_bound_on_the_median(rows: int) -> None:
    values = [1.0] * (rows // 2 + 1) + [0.0] * (rows - rows // 2 - 1)
    assert np.median(values) ** 2 == pytest.approx(median_limit(values))


def errors_of_estimates(
    vector: Tensor, sketch: CountSketch, combine: Combine, *, seeds: int
) -> tuple[list[float], list[float]]:
    """Squared relative errors, and the errors along the vector."""
    squares, along = [], []
    for number in range(seeds):
        seed = SketchKey.from_integer(number).seed(1)
        off = sketch.query(sketch.encode(vector, seed), seed, combine=combine) - vector
        squares.append(float(off.square().sum() / vector.square().sum()))
        along.append(float(off @ vector / vector.square().sum()))
    return squares, along


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("combine", ["mean", "median"])
@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_estimates_are_unbiased_with_the_stated_variance(
    family: Family, combine: Combine, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    for values in (rng.standard_normal(400), rng.standard_normal(400) / np.arange(1, 401)):
        vector = torch.from_numpy(values)
        sketch = CountSketch(400, rows, 10, family)
        squares, along = errors_of_estimates(vector, sketch, combine, seeds=800)
        variance = query_variance(sketch, combine=combine)
        assert lower_end(squares) <= variance
        assert lower_end(along) <= 0 <= upper_end(along)
        # Control: an estimate that is a fifth too small.
        assert (
            not lower_end([0.8 * (1 + a) - 1 for a in along])
            <= 0
            <= upper_end([0.8 * (1 + a) - 1 for a in along])
        )
        if family == "pairwise" and combine == "mean":  # where it is not a bound but the value
            assert lower_end(squares) <= variance <= upper_end(squares)
            assert lower_end(squares) > 0.8 * variance  # control


# Theorem 2: the formulas


@given(
    dim=st.integers(1, 10**6), big_g=st.floats(0.1, 10), big_d=st.floats(0.1, 10),
    step=st.floats(0.01, 10), rounds=st.integers(1, 10**6), error=st.floats(0, 1),
)  # fmt: skip
def test_theorem2_term_by_term(
    dim: int, big_g: float, big_d: float, step: float, rounds: int, error: float
) -> None:
    problem = ConvexProblem(dim, big_g, big_d, step)
    start = Fraction(big_d) ** 2 / (2 * Fraction(step))
    growth = Fraction(step) * (dim * Fraction(error) ** 2 + 1) * Fraction(big_g) ** 2
    slack = Fraction(math.sqrt((rounds + 1) / rounds))
    stated = float((start + slack * growth) / Fraction(math.sqrt(rounds)))
    assert theorem2(problem, rounds, error=error) == pytest.approx(stated, rel=1e-12)
    proven = expected_gap(problem, rounds, variance=dim * error**2)
    assert proven == pytest.approx(float((start + growth) / Fraction(math.sqrt(rounds))), rel=1e-12)
    assert proven <= stated * (1 + 1e-12)


def test_the_bound_follows_from_the_recursion() -> None:
    """Sums the inequality of every round, as the proof does, and checks its two slips."""
    variance = 7.0
    steps = PROBLEM.step / np.sqrt(np.arange(1, 2001))
    second_moment = (1 + variance) * PROBLEM.gradient_norm**2
    for rounds in (1, 2, 3, 10, 100, 2000):
        used = steps[:rounds]
        inverse = 1 / used
        distances = inverse[0] + np.diff(inverse).sum()  # times D^2: telescopes to 1 / last step
        total = distances * PROBLEM.distance**2 + second_moment * used.sum()
        exact = total / (2 * rounds)
        proven = expected_gap(PROBLEM, rounds, variance=variance)
        assert exact <= proven * (1 + 1e-12)
        assert proven <= exact * (1 + 1 / math.sqrt(rounds))  # and little is given away
        assert (used.sum() <= PROBLEM.step * math.sqrt(rounds + 1)) == (rounds < 3)


def test_the_stated_bound_covers_the_proven_one_with_lemma1() -> None:
    for rows in (1, 2, 3, 7, 10):
        sketch = CountSketch(100, rows, 9)
        for failure in (0.49, 0.1, 1e-6):
            error = lemma1_error(rows, 9, failure=failure)
            for combine in ("mean", "median"):
                variance = query_variance(sketch, combine=combine)
                proven = expected_gap(PROBLEM, 50, variance=variance)
                assert proven <= theorem2(PROBLEM, 50, error=error)


def test_markov() -> None:
    expected = expected_gap(PROBLEM, 50, variance=2.0)
    assert gap_with_probability(PROBLEM, 50, variance=2.0, failure=0.1) == 10 * expected


@pytest.mark.parametrize("name", ["gradient_norm", "distance", "step"])
@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_problems_raise(name: str, bad: float) -> None:
    with pytest.raises(ArgumentError, match=name):
        replace(PROBLEM, **{name: bad})  # type: ignore[arg-type]


def test_bad_arguments_raise() -> None:
    for bad in (0, 1.5, True):
        with pytest.raises(ArgumentError, match="dim"):
            replace(PROBLEM, dim=bad)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="rounds"):
            expected_gap(PROBLEM, bad, variance=1.0)  # type: ignore[arg-type]
    for worse in (-1.0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="variance"):
            expected_gap(PROBLEM, 1, variance=worse)
        with pytest.raises(ArgumentError, match="error"):
            theorem2(PROBLEM, 1, error=worse)
        with pytest.raises(ArgumentError, match="failure"):
            gap_with_probability(PROBLEM, 1, variance=1.0, failure=worse)
        with pytest.raises(ArgumentError, match="failure"):
            lemma1_error(3, 10, failure=worse)
    with pytest.raises(ArgumentError, match="rows"):
        lemma1_error(0, 10, failure=0.1)
    with pytest.raises(ArgumentError, match="combine"):
        query_variance(CountSketch(10, 1, 2), combine="max")  # type: ignore[arg-type]


# Theorem 2: problems

Gradients = Callable[[Tensor], Tensor]


def descend(
    gradients: Gradients, optimum: Tensor, start: Tensor, *, sketch: CountSketch, combine: Combine,
    problem: ConvexProblem, rounds: int, number: int, fresh: bool = True,
) -> Tensor:  # fmt: skip
    """The average point; all points are kept within `distance` of the optimum."""
    key, point, total = SketchKey.from_integer(number), start, torch.zeros_like(start)
    for index in range(1, rounds + 1):
        total += point
        seed = key.seed(index if fresh else 0)
        local = gradients(point)
        assert float(local.norm(dim=1).max()) <= problem.gradient_norm * (1 + 1e-12)
        table = sketch.encode(local, seed).mean(dim=0)
        estimate = sketch.query(table, seed, combine=combine)
        offset = point - problem.step / math.sqrt(index) * estimate - optimum
        point = optimum + offset * min(1.0, problem.distance / max(1e-9, float(offset.norm())))
    return total / rounds


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
    problem = ConvexProblem(dim, 1.0, 1.0, step=3 / math.sqrt(1 + variance))
    gaps = []
    for number in range(20):
        average = descend(
            lambda x: (x - points).sign() / math.sqrt(dim), optimum, start,
            sketch=sketch, combine=combine, problem=problem, rounds=rounds, number=number,
        )  # fmt: skip
        gaps.append(objective(average) - objective(optimum))
    assert upper_end(gaps) <= expected_gap(problem, rounds, variance=variance)
    error = lemma1_error(rows, 4, failure=0.1)
    assert upper_end(gaps) <= theorem2(problem, rounds, error=error)
    # Control: without the sketch's variance the bound would be broken.
    assert lower_end(gaps) > expected_gap(problem, rounds, variance=0.0)


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
    problem = ConvexProblem(dim, norm, distance, distance / (norm * math.sqrt(2 + 2 * variance)))
    gaps: dict[bool, list[float]] = {True: [], False: []}
    for fresh in gaps:
        for number in range(8):
            average = descend(
                lambda x: x - centers, optimum, torch.zeros_like(optimum), sketch=sketch,
                combine="mean", problem=problem, rounds=rounds, number=number, fresh=fresh,
            )  # fmt: skip
            gaps[fresh].append(float((average - optimum).square().sum()) / 2)
    bound = expected_gap(problem, rounds, variance=variance)
    assert upper_end(gaps[True]) <= bound
    # Control: with the same hashes in all rounds, half of the directions are never seen.
    assert lower_end(gaps[False]) > bound


def test_logistic_regression_obeys_the_bound() -> None:
    """Stochastic gradients: each worker takes a random example in each round. Five workers."""
    rng = np.random.default_rng(3)
    inputs = torch.from_numpy(rng.standard_normal((5, 40, 30)))
    inputs /= inputs.norm(dim=-1, keepdim=True)  # so gradients have norm 1 at most
    labels = torch.from_numpy(rng.choice([-1.0, 1.0], (5, 40)))

    def objective(x: Tensor) -> float:
        return float(torch.nn.functional.softplus(-labels * (inputs @ x)).mean())

    def full_gradient(x: Tensor) -> Tensor:
        return -(torch.sigmoid(-labels * (inputs @ x)) * labels)[..., None].mul(inputs).mean((0, 1))

    optimum = torch.zeros(30, dtype=torch.float64)
    for _ in range(20000):
        optimum = optimum - 4 * full_gradient(optimum)
    assert float(full_gradient(optimum).norm()) < 1e-6

    def stochastic(x: Tensor) -> Tensor:
        chosen = torch.from_numpy(rng.integers(0, 40, 5))
        a, y = inputs[torch.arange(5), chosen], labels[torch.arange(5), chosen]
        return -(torch.sigmoid(-y * (a @ x)) * y)[:, None] * a

    sketch = CountSketch(30, 3, 8)
    variance = query_variance(sketch, combine="median")
    distance = 1.01 * float(optimum.norm())
    problem = ConvexProblem(30, 1.0, distance, step=distance / math.sqrt(2 * (1 + variance)))
    gaps = [
        objective(descend(
            stochastic, optimum, torch.zeros_like(optimum), sketch=sketch, combine="median",
            problem=problem, rounds=500, number=number,
        )) - objective(optimum)
        for number in range(6)
    ]  # fmt: skip
    bound = expected_gap(problem, 500, variance=variance)
    assert upper_end(gaps) <= bound
    # Control: a hundredth of the bound is not kept, so the test can fail.
    assert lower_end(gaps) > bound / 100

"""Bare sketches under secret hashes: the bound's three steps."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from diffsketch.privacy.theorems import theorem1
from paper.calculations import (
    _eigenvalues,
    epsilon_bound,
    excess_bound,
)

ALPHA, DELTA = 1.645, 1e-5
EXACT = 0.02282  # of one row of two cells at alpha = 3, by quadrature of the densities


def test_the_bound_is_above_what_is_exact() -> None:
    assert EXACT < epsilon_bound(2000, 1, 2, alpha=3.0, delta=DELTA) < 5 * EXACT


@pytest.mark.parametrize(("dim", "rows", "cols"), [(2000, 5, 2), (10_000, 5, 4), (7850, 7, 4)])
def test_theorem_1_is_true_of_secret_hashes(dim: int, rows: int, cols: int) -> None:
    claimed = theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0).epsilon(delta=0.0, rounds=1)
    assert epsilon_bound(dim, rows, cols, alpha=ALPHA, delta=DELTA) < float(claimed)


def test_where_nothing_is_shown() -> None:
    assert math.isinf(epsilon_bound(39_720, 10, 190, alpha=ALPHA, delta=DELTA))
    assert math.isinf(epsilon_bound(2000, 5, 2, alpha=40.0, delta=DELTA))


def test_likelihood_ratios_are_within_the_bounds_of_the_proof() -> None:
    """Two rows of two cells, all 16 places and signs of a coordinate summed, delta 0.01.

    For 20 draws of the others' hashes: eigenvalues are within their bounds (out of them with a
    probability below 2e-5), ratios are never below step 1's bound, and their mean excess over
    `e^epsilon` in 20,000 tables is below delta (a hundredth of it, so no chance is in this). The
    control counts eight times as many others as there are, and is above delta.
    """
    rng, dim, rows, cols, alpha, delta = np.random.default_rng(3), 200, 2, 2, 3.0, 0.01
    low, high = _eigenvalues(dim - 1, rows, cols, failure=1e-6)
    places = []
    for chosen in itertools.product(itertools.product(range(cols), (-1, 1)), repeat=rows):
        column = np.zeros((rows, cols))
        for row, (col, sign) in enumerate(chosen):
            column[row, col] = sign
        places.append(column.ravel())
    columns = np.array(places)
    excess = []
    for _ in range(20):
        picked = columns[rng.integers(len(columns), size=dim - 1)]
        gram = picked.T @ picked
        ends = np.linalg.eigvalsh(gram)[[0, -1]]
        assert low < ends[0] < ends[1] < high
        own = columns[rng.integers(len(columns), size=20_000)]
        tables = rng.normal(size=own.shape) @ np.linalg.cholesky(gram).T + alpha * own
        inverse = np.linalg.inv(gram)
        lengths = np.einsum("ij,jk,ik->i", columns, inverse, columns)
        ratios = np.exp(alpha * tables @ inverse @ columns.T - alpha**2 * lengths / 2).mean(axis=1)
        assert ratios.min() > math.exp(-(alpha**2) * rows / (2 * ends[0]))
        bounds = [
            excess_bound(more * ends[0], more * ends[1], rows, alpha=alpha, delta=delta)
            for more in (1, 8)
        ]
        excess.append([np.maximum(1 - np.exp(bound) / ratios, 0).mean() for bound in bounds])
    assert np.max(excess, axis=0)[0] < delta
    assert np.mean(excess, axis=0)[1] > delta, excess

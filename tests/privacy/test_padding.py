"""Appended noise, drawn in two ways, against dense linear algebra and simulation."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.linalg import eigh
from scipy.stats import chi2, ks_2samp, norm
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.methods import DiffSketch
from diffsketch.privacy import theorems as appended
from diffsketch.privacy.noise import CohortNoise, FastNoise, NoiseKey
from diffsketch.privacy.theorems import factor, factored_length, padded_tables
from diffsketch.sketch.gram import gram
from diffsketch.sketch.hashing import FAMILIES, Family

Matrix = npt.NDArray[np.float64]

SEED = SketchKey.from_integer(11).seed(0)

KEY = NoiseKey.from_integer(5)

DIM, PADDING, COUNT = 40, 400, 6000


def sketch_of(family: Family, padding: int = PADDING) -> CountSketch:
    return CountSketch(DIM + padding, 3, 8, family)


def noise_tables(
    sketch: CountSketch, std: float, number: int, *, dtype: torch.dtype = torch.float64
) -> Matrix:
    """What many workers' appended numbers add to their tables, `(COUNT, cells)`."""
    vectors = torch.linspace(-1, 1, DIM, dtype=dtype).expand(COUNT, -1)
    stds = torch.full((COUNT,), std, dtype=torch.float64)
    tables = padded_tables(vectors, sketch, seed=SEED, std=stds, noise=FastNoise(number))
    assert tables.dtype == dtype
    added = tables - sketch.encode(vectors, SEED, offset=0)
    return added.double().reshape(COUNT, -1).numpy()


def directly(sketch: CountSketch, std: float, number: int, patch: pytest.MonkeyPatch) -> Matrix:
    """The same with all the numbers drawn."""
    with patch.context() as way:
        way.setattr(appended, "factored_length", lambda *_, **__: 0)
        return noise_tables(sketch, std, number)


def fits(tables: Matrix, matrix: Matrix) -> bool:
    """Whether tables are N(0, matrix), by the means, the total and all products of two.

    Each of the three is off by chance with probability 2e-9 at most.
    """
    values = np.linalg.solve(np.linalg.cholesky(matrix), tables.T).T
    count, cells = values.shape
    means = np.abs(values.mean(axis=0)) * math.sqrt(count) < norm.isf(1e-9 / cells)
    low, high = chi2.ppf([1e-9, 1 - 1e-9], count * cells)
    # Products of two have variance 1, or 2 on the diagonal; sums of 6,000 are Gaussian enough
    # for a limit that is a tenth wider.
    products = np.abs(values.T @ values / count - np.eye(cells)) * math.sqrt(count / 2)
    pairs = products < 1.1 * norm.isf(1e-9 / cells**2)
    return bool(means.all() and low < (values**2).sum() < high and pairs.all())


def without_cross_rows(matrix: Matrix) -> Matrix:
    """The planted error: rows whose noise is independent."""
    rows = np.arange(24) // 8
    return np.where(rows[:, None] == rows, matrix, 0.0)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_drawn_tables_have_the_covariance_of_appended_numbers(
    family: Family, dtype: torch.dtype
) -> None:
    sketch = sketch_of(family)
    assert factored_length(sketch, PADDING, shared=True) == PADDING
    unit = sketch.encode(torch.eye(sketch.dim, dtype=torch.float64), SEED)
    pad = unit.reshape(sketch.dim, -1).T.numpy()[:, DIM:]
    covered = 0.7**2 * pad @ pad.T
    tables = noise_tables(sketch, 0.7, 1, dtype=dtype)
    assert fits(tables, covered)
    assert not fits(tables, without_cross_rows(covered))
    assert not fits(tables, 0.9**2 * covered)  # a tenth too much noise
    assert not fits(tables + 0.1 * np.sqrt(covered.diagonal()), covered)


@pytest.mark.parametrize("family", FAMILIES)
def test_lengths_of_their_own_share_a_factor(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most numbers by the factor of a rounder length, the rest one by one: the same covariance.

    The controls leave the rest out, and draw the numbers of the factor a second time.
    """
    sketch = sketch_of(family, 440)
    assert factored_length(sketch, 440, shared=False) == 384
    vectors = torch.linspace(-1, 1, DIM, dtype=torch.float64).expand(COUNT, -1)
    lengths, stds = torch.full((COUNT,), 440), torch.ones(COUNT, dtype=torch.float64)

    def added(part: int) -> Matrix:
        monkeypatch.setattr(appended, "factored_length", lambda *_, **__: part)
        tables = padded_tables(
            vectors, sketch, seed=SEED, std=stds, noise=FastNoise(8), lengths=lengths
        )
        return (tables - sketch.encode(vectors, SEED, offset=0)).reshape(COUNT, -1).numpy()

    whole = gram(sketch, SEED, DIM, DIM + 440)
    assert fits(added(384), whole)
    assert fits(added(0), whole)
    assert not fits(added(384), gram(sketch, SEED, DIM, DIM + 384))
    assert not fits(added(384), whole + gram(sketch, SEED, DIM + 384, DIM + 440))


@pytest.mark.parametrize("family", FAMILIES)
def test_both_ways_have_the_same_distribution(
    family: Family, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes of 40 projections of the two samples, by Kolmogorov and Smirnov; the controls are noise
    that is too small, and rows that are independent."""
    sketch = sketch_of(family)
    matrix = gram(sketch, SEED, DIM, sketch.dim)
    slow, fast = directly(sketch, 1.0, 2, monkeypatch), noise_tables(sketch, 1.0, 3)
    assert fits(slow, matrix)
    # The directions in which rows that are independent would be the most wrong, and random ones.
    wrong = without_cross_rows(matrix)
    _, turns = eigh(matrix, wrong)
    directions = np.vstack([turns.T, np.random.default_rng(4).standard_normal((16, 24))])

    def least(one: Matrix, other: Matrix) -> float:
        sizes = [(np.abs(one @ d), np.abs(other @ d)) for d in directions]
        found = min(ks_2samp(*pair, method="asymp").pvalue for pair in sizes)
        return float(found) * len(directions)

    assert least(slow, fast) > 1e-8
    assert least(slow, noise_tables(sketch, 0.85, 3)) < 1e-8
    independent = np.random.default_rng(5).standard_normal((COUNT, 24))
    assert least(slow, independent @ np.linalg.cholesky(wrong).T) < 1e-8


def vectors_of(workers: int) -> Tensor:
    return torch.randn(workers, 3000, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_workers_table_is_its_own(family: Family) -> None:
    """Alone, in any batch, and whoever else there is: also where the factor is at work."""
    method = DiffSketch(3000, 5, 16, per_round=1e9, padding=20_000, family=family)
    assert factored_length(method.sketch, 20_000, shared=True) == 20_000
    vectors = vectors_of(7)
    together = method.encode(vectors, SEED, CohortNoise(KEY, range(7), round_index=2)).messages
    for some in ([3], [6, 0], [1, 2, 4, 5]):
        own = CohortNoise(KEY, some, round_index=2)
        assert torch.equal(method.encode(vectors[some], SEED, own).messages, together[some])
    other = method.encode(vectors, SEED, CohortNoise(KEY, range(7), round_index=3)).messages
    assert not bool((other == together).all(dim=-1).any())


@pytest.mark.parametrize("family", FAMILIES)
def test_each_worker_has_its_own_deviation(family: Family) -> None:
    """The noise is linear in it; the vector's part stays."""
    sketch, vectors = sketch_of(family), vectors_of(4)[:, :DIM].double()
    stds = torch.tensor([0.0, 1.0, 2.0, 1e-3], dtype=torch.float64)

    def tables(std: Tensor) -> Tensor:
        own = CohortNoise(KEY, range(4), round_index=0)
        return padded_tables(vectors, sketch, seed=SEED, std=std, noise=own)

    bare = sketch.encode(vectors, SEED, offset=0)
    unit = tables(torch.ones(4, dtype=torch.float64)) - bare
    torch.testing.assert_close(tables(stds) - bare, unit * stds[:, None, None])
    assert torch.equal(tables(stds)[0], bare[0])


def test_short_padding_is_appended() -> None:
    """Then the covariance is singular, or its factor costs more than it saves."""
    for padding in (1, 23, 24, 30):
        sketch = sketch_of("blocked", padding)
        assert factored_length(sketch, padding, shared=True) == 0
        vectors = vectors_of(3)[:, :DIM]
        stds = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
        tables = padded_tables(vectors, sketch, seed=SEED, std=stds, noise=FastNoise(6))
        numbers = FastNoise(6).normal((3, padding), 1.0, dtype=torch.float32)
        extended = torch.cat([vectors, numbers * stds[:, None].float()], dim=1)
        torch.testing.assert_close(tables, sketch.encode(extended, SEED))


def test_singular_covariances_are_not_factored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows of one cell, and two appended numbers: singular if both have equal signs."""
    monkeypatch.setattr(appended, "_CELL", 0.0)  # so that a factor is worth it
    found = {True: 0, False: 0}
    for number in range(40):
        seed = SketchKey.from_integer(number).seed(0)
        sketch = CountSketch(7, 2, 1, "pairwise")
        assert factored_length(sketch, 2, shared=True) == 2
        singular = abs(np.linalg.det(gram(sketch, seed, 5, 7))) < 0.5
        found[bool(singular)] += 1
        assert (factor(sketch, seed, 5) is None) == singular
        vectors, stds = torch.ones(2000, 5), torch.ones(2000, dtype=torch.float64)
        tables = padded_tables(vectors, sketch, seed=seed, std=stds, noise=FastNoise(7))
        noise = (tables - sketch.encode(vectors, seed, offset=0)).reshape(-1, 2)
        # Singular: one row's noise is the other's, or its negative. Else they are uncorrelated.
        alike = min(float((noise[:, 0] + sign * noise[:, 1]).abs().max()) for sign in (1, -1))
        assert (alike < 1e-5) == singular
    assert min(found.values()) >= 5

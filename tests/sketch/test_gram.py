"""Counts of which cells share coordinates against the sketch's own matrix, number by number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from diffsketch import CountSketch, SketchKey
from diffsketch.sketch.gram import gram, products
from diffsketch.sketch.hashing import FAMILIES, Family

SEED = SketchKey.from_integer(11).seed(0)
SHAPES = [
    (130, 3, 8),
    (33, 3, 1),
    (700, 7, 22),  # one block a run
    (900, 2, 50),  # three blocks a run, and columns that no run of a row reaches
    (600, 2, 64),  # runs as long as a row
    (60, 2, 100),  # more columns than coordinates
    (2000, 1, 30),
]


def matrix_of(sketch: CountSketch) -> npt.NDArray[np.float64]:
    """S, from the tables of the unit vectors."""
    tables = sketch.encode(torch.eye(sketch.dim, dtype=torch.float64), SEED)
    return tables.reshape(sketch.dim, -1).T.numpy()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("dim", "rows", "cols"), SHAPES)
def test_gram_is_that_of_the_matrix(dim: int, rows: int, cols: int, family: Family) -> None:
    """For spans that begin and end in the middle of blocks, in the same one, and for none."""
    sketch = CountSketch(dim, rows, cols, family)
    dense = matrix_of(sketch)
    for start in (0, 7, 16, dim // 3, dim // 2 + 1, dim - 1):
        for stop in {start, start + 1, start + 5, start + 40, dim - 3, dim}:
            if start <= stop <= dim:
                part = dense[:, start:stop]
                found = gram(sketch, SEED, start, stop)
                np.testing.assert_array_equal(found, part @ part.T)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_gram_in_many_chunks(family: Family) -> None:
    dim = 10_000 if family == "blocked" else 3_000  # chunks are of 512 runs, or coordinates
    sketch = CountSketch(dim, 3, 21, family)
    dense = matrix_of(sketch)[:, 1001:]
    found = gram(sketch, SEED, 1001, dim)
    np.testing.assert_array_equal(found, dense @ dense.T)
    assert not np.array_equal(found, gram(sketch, SEED, 1002, dim))  # control


def test_products_do_not_depend_on_the_number_of_vectors() -> None:
    rng = np.random.default_rng(3)
    lower = np.tril(rng.standard_normal((61, 61)))
    vectors = rng.standard_normal((9, 61))
    together = products(lower, vectors)
    np.testing.assert_allclose(together, vectors @ lower.T, rtol=1e-12, atol=1e-12)
    for item in range(9):
        np.testing.assert_array_equal(products(lower, vectors[item : item + 1])[0], together[item])

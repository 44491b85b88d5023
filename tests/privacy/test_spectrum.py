"""The covariance of sketched noise: factored, and certified without forming it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import eigh

from diffsketch import CountSketch, SketchKey
from diffsketch.privacy.mechanisms import padding as spectrum
from diffsketch.privacy.mechanisms.padding import gram
from diffsketch.sketch.hashing import FAMILIES, Family

SEED = SketchKey.from_integer(11).seed(0)


@pytest.mark.parametrize("family", FAMILIES)
def test_products_without_the_matrix(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spectrum, "_PIECE", 1000)
    sketch = CountSketch(4500, 5, 40, family)
    apply, rounding = spectrum._operator(sketch, SEED, 1500, 4500)
    tables = torch.from_numpy(np.random.default_rng(8).standard_normal((2, 5, 40)))
    dense = torch.from_numpy(gram(sketch, SEED, 1500, 4500))
    off = apply(tables).reshape(2, 200) - tables.reshape(2, 200) @ dense
    norms = torch.linalg.vector_norm(tables, dim=(1, 2))
    assert (off.norm(dim=1) <= rounding * norms).all()
    assert rounding < 1e-9  # which decides between 1 and 0.95 of an eigenvalue near 75


@pytest.mark.parametrize("family", FAMILIES)
def test_reach_of_a_vector_in_a_table_of_some_size(family: Family) -> None:
    sketch = CountSketch(2600, 4, 80, family)
    real, pad = gram(sketch, SEED, 0, 1000), gram(sketch, SEED, 1000, 2600)
    largest = float(eigh(real, pad, eigvals_only=True)[-1])
    reach = spectrum.vector_reach(sketch, SEED, 1000)
    assert reach is not None
    assert largest * (1 - 1e-10) <= reach.squared <= largest * (1 + 1e-5)
    assert reach.failure == 0


def planted(least: float) -> spectrum.Apply:
    """A matrix with 400 eigenvalues in [1, 2], but for the least.

    It is diagonal, which is as good as any other: the probes have no preferred direction.
    """
    values = torch.linspace(1, 2, 400, dtype=torch.float64).reshape(4, 100)
    values[1, 2] = least
    return lambda tables: tables * values


def test_the_certificate_rejects_a_planted_eigenvalue() -> None:
    """By design it accepts with a probability below 1e-12, and rejects falsely with one that is
    beyond observing: for an accepted matrix the norm is a quarter of what is allowed."""
    sketch = CountSketch(1000, 4, 100)
    for least, accepted in ((1.0, True), (0.9499, False), (0.8, False), (0.0, False), (-1, False)):
        apply = planted(least)
        for rounding in (0.0, 1e-12) * 5:
            assert accepted is spectrum._proves_above(
                apply, sketch, 0.95, low=1.0, high=2.0, rounding=rounding
            )


def test_the_certificate_fails_safely() -> None:
    """Where the rest of the spectrum is not as expected, or rounding is too much."""
    sketch = CountSketch(1000, 4, 100)
    good = {"low": 1.0, "high": 2.0, "rounding": 1e-12}
    for changes in ({"high": 1.9}, {"rounding": 1e-7}, {"rounding": math.inf}):
        assert not spectrum._proves_above(planted(1.0), sketch, 0.95, **(good | changes))


def test_cholesky_proof() -> None:
    rng = np.random.default_rng(7)
    for size in (1, 5, 60):
        turn = torch.linalg.qr(torch.from_numpy(rng.standard_normal((size, size)))).Q
        for least in (1e-6, -1e-6, -1e-14, -1.0):
            values = torch.linspace(1, 3, size, dtype=torch.float64)
            values[0] = least
            matrix = turn @ torch.diag(values) @ turn.T
            assert spectrum._proves_positive((matrix + matrix.T) / 2) == (least > 0)

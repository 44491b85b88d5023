"""The error formulas, each against a computation of its own."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import brentq
from scipy.stats import norm

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Encoder, Tables
from diffsketch.methods.forecast import (
    Vectors,
    clipped_coordinates,
    clipped_norm,
    collision_error,
    noise_error,
    rounding_variance,
)
from diffsketch.privacy.claim import Trust
from diffsketch.privacy.clipping import NormBound
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import Family

DIM, ROWS, COLS = 7850, 7, 22
NEVER = 1e9  # a clip that does nothing


def tables(dim: int, rows: int, cols: int, family: Family = "blocked") -> Tables:
    return Tables(dim, CountSketch(dim, rows, cols, family), "mean")


def shift_for(epsilon: float, delta: float = 1e-5) -> float:
    """The `mu` of the Gaussian mechanism, from its privacy curve as it is written in papers."""

    def excess(mu: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        return float(first - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta)

    return float(brentq(excess, 1e-3, 100))


# Relative errors for a mean of 10 and of 1000 identical vectors at epsilon = 1, 4 and 10, client
# unit, replace: known values of the literature's formulas, to the digits given.
TABLE = {
    ("vector", Trust.LOCAL): ((43700, 3670, 785), (437, 36.7, 7.85)),
    ("sketch", Trust.LOCAL): ((43750, 3721, 836), (488, 87.7, 58.8)),
    ("vector", Trust.CENTRAL): ((4370, 367, 78.5), (0.437, 0.0367, 0.00785)),
}


@pytest.mark.parametrize(("what", "trust"), TABLE)
def test_table_of_rivals(what: str, trust: Trust) -> None:
    for workers, errors in zip((10, 1000), TABLE[what, trust], strict=True):
        for epsilon, expected in zip((1.0, 4.0, 10.0), errors, strict=True):
            vectors = Vectors(DIM, workers)
            rows = ROWS if what == "sketch" else 1
            std = 2 * math.sqrt(rows) / shift_for(epsilon)  # tables of norm sqrt(rows)
            sources = workers if trust is Trust.LOCAL else 1
            error = noise_error(vectors, sources * std**2 / workers**2, rows=rows)
            if what == "sketch":
                error += clipped_norm(vectors, tables(DIM, ROWS, COLS), clip_ratio=NEVER).recovery
            assert error == pytest.approx(expected, rel=3e-3), (workers, epsilon)


def test_rounding_variance_is_the_mean_over_a_normal_number() -> None:
    grid = np.linspace(-9, 9, 500_001)
    weights = norm.pdf(grid) * (grid[1] - grid[0])
    for deviation in (0.0, 0.003, 0.05, 0.2, 0.5, 1.0, 7.0):
        part = (grid * deviation) % 1
        expected = float((weights * part * (1 - part)).sum())
        assert rounding_variance(deviation) == pytest.approx(expected, rel=2e-3, abs=2e-5)


@pytest.mark.parametrize(("spread", "ratio"), [(0.0, 1.645), (2.0, 1.0), (2.0, 2.5)])
def test_clipped_coordinates_by_simulation(spread: float, ratio: float) -> None:
    # 10^6 coordinates of 5 workers: the mean squares below have standard errors under 1%.
    generator = np.random.default_rng(0)
    common = generator.standard_normal(1_000_000)
    total, clipped = np.zeros_like(common), np.zeros_like(common)
    for _ in range(5):
        own = math.sqrt(spread) * generator.standard_normal(len(common))
        values = (common + own) / math.sqrt(1 + spread)
        total += values / 5
        clipped += np.clip(values, -ratio, ratio) / 5
    size = np.mean(total**2)
    vectors = Vectors(DIM, 5, spread=spread)
    limit = ratio / math.sqrt(DIM)
    found = clipped_coordinates(vectors, limit)
    sketched = clipped_coordinates(vectors, limit, collisions=2.0)
    energy = (sketched.recovery - found.recovery) / 2
    assert size == pytest.approx(vectors.mean_energy, rel=0.01)
    assert found.recovery == pytest.approx(np.mean((clipped - total) ** 2) / size, rel=0.05)
    assert energy == pytest.approx(np.mean(clipped**2) / size, rel=0.01)
    assert found.kept == pytest.approx(np.mean(clipped * total) / size, rel=0.01)


def recovery_by_simulation(
    known: Vectors, encoder: Tables, ratio: float, *, rounds: int
) -> tuple[float, float]:
    """The mean of the relative errors of clipped tables without noise, and its standard error."""
    sketch, key = encoder.sketch, SketchKey.from_integer(1)
    bound = NormBound(ratio * math.sqrt(encoder.rows))
    generator = torch.Generator().manual_seed(0)
    errors = []
    for index in range(rounds):
        seed = key.seed(index)
        common = torch.randn(known.dim, generator=generator)
        own = torch.randn(known.count, known.dim, generator=generator)
        vectors = common + math.sqrt(known.spread) * own
        vectors /= vectors.norm(dim=1, keepdim=True)
        encode = functools.partial(sketch.encode, seed=seed)
        table = bound.apply(vectors, encode).mean(dim=0)
        estimate = sketch.query(table, seed, combine="mean")
        mean = vectors.mean(dim=0)
        errors.append(float((estimate - mean).square().sum() / mean.square().sum()))
    return float(np.mean(errors)), float(np.std(errors)) / math.sqrt(rounds)


@pytest.mark.parametrize(
    ("rows", "cols", "family", "ratio", "spread"),
    [
        (7, 22, "blocked", NEVER, 0.0), (7, 22, "blocked", 1.1, 3.0), (7, 22, "blocked", 1.0, 0.0),
        (1, 300, "blocked", 1.0, 3.0), (1, 300, "blocked", 1.0, 0.0), (5, 4, "blocked", 1.1, 3.0),
        (1, 500, "pairwise", NEVER, 0.0),
    ],
)  # fmt: skip
def test_recovery_by_simulation(
    rows: int, cols: int, family: Family, ratio: float, spread: float
) -> None:
    """Standard errors are below 3%, so a right formula fails with a probability of 4e-7 each.

    With 500 columns the two families differ by a third: each is the other's control.
    """
    vectors, encoder = Vectors(1000, 8, spread=spread), tables(1000, rows, cols, family)
    rounds = 120 if family == "blocked" else 2000  # collisions of pairwise hashes come in groups
    measured, deviation = recovery_by_simulation(vectors, encoder, ratio, rounds=rounds)
    assert deviation < 0.03 * measured
    predicted = clipped_norm(vectors, encoder, clip_ratio=ratio)
    assert predicted.recovery == pytest.approx(measured, rel=0.15)
    assert 0.9 < predicted.kept <= 1


def test_a_wrong_number_of_cells_is_noticed() -> None:
    # The negative control of the simulation above: a table that is larger by a fifth.
    vectors = Vectors(1000, 1)
    measured, _ = recovery_by_simulation(vectors, tables(1000, 7, 26), NEVER, rounds=60)
    predicted = clipped_norm(vectors, tables(1000, 7, 22), clip_ratio=NEVER).recovery
    assert predicted != pytest.approx(measured, rel=0.15)


def test_without_clipping_only_collisions_are_left() -> None:
    vectors = Vectors(1000, 10)
    for rows, cols in ((1, 50), (7, 22), (3, 333)):
        encoder = tables(1000, rows, cols)
        found = clipped_norm(vectors, encoder, clip_ratio=NEVER)
        assert found.recovery == pytest.approx(collision_error(encoder), rel=1e-3)
        assert found.kept == pytest.approx(1, abs=1e-3)
    assert collision_error(tables(1024, 1, 1024)) == 0  # every coordinate has a cell of its own
    assert collision_error(Encoder(1000)) == 0
    # Ideal hashes would have dim / cells; runs that do not collide with themselves have less.
    assert collision_error(tables(1000, 7, 22)) == pytest.approx(1000 / 154, rel=0.02)
    assert collision_error(tables(200, 1, 100, "pairwise")) == pytest.approx(1.99)
    with pytest.raises(ArgumentError, match="combine must be mean for a forecast"):
        collision_error(Tables(1000, CountSketch(1000, 7, 22), "median"))

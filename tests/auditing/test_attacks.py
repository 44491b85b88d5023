"""Scores against likelihoods that are computed the long way round."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from diffsketch.auditing import attacks
from diffsketch.privacy.accounting.events import gaussian_epsilon
from diffsketch.sketch import CountSketch, SketchKey
from diffsketch.sketch.hashing import FAMILIES, Family

KEY = SketchKey.from_integer(5)
NOTHING = np.zeros((1, 1))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_matrix_is_the_sketch(family: Family) -> None:
    sketch = CountSketch(50, 3, 7, family)
    seed = KEY.seed(0)
    table = sketch.encode(torch.eye(50, dtype=torch.float64), seed)
    assert np.array_equal(attacks.matrix_of(sketch, seed), table.reshape(50, -1).T.numpy())


def test_unknown_others_is_the_likelihood_ratio() -> None:
    """Against two multivariate normal densities of the table, brute force."""
    sketch, coordinate = CountSketch(60, 2, 4, "pairwise"), 11
    attack, seed = attacks.unknown_others(sketch, coordinate), KEY.seed(0)
    matrix = attacks.matrix_of(sketch, seed)
    others = np.delete(matrix, coordinate, axis=1)
    one, two = 1.5, -0.5
    worlds = [
        stats.multivariate_normal(value * matrix[:, coordinate], others @ others.T)
        for value in (one, two)
    ]
    tables = np.random.default_rng(0).normal(size=(200, 8)) * 5
    ratio = worlds[0].logpdf(tables) - worlds[1].logpdf(tables)
    score = attack.fit(matrix[None, :, coordinate], -matrix[None, :, coordinate], KEY)(tables)
    factor = one - two
    assert np.allclose(ratio - ratio[0], factor * (score - score[0]))
    # In the world of `one` the ratio's mean is mu^2 / 2 and its variance mu^2.
    weights, shift = attacks.best_direction(sketch, coordinate, seed)
    mu = (one - two) * shift
    assert worlds[0].cov.shape == (8, 8)
    assert factor * math.sqrt(weights @ worlds[0].cov @ weights) == pytest.approx(mu)
    at_mean = worlds[0].logpdf(worlds[0].mean) - worlds[1].logpdf(worlds[0].mean)
    assert at_mean == pytest.approx(mu**2 / 2)


@pytest.mark.parametrize(("cols", "truth"), [(2, 0.355), (4, 0.52)])
def test_numbers_of_theorem_1_s_counterexample(cols: int, truth: float) -> None:
    """n = 10,000 and t = 5: mu is near 2 alpha sqrt(t k / n), and epsilon(1e-5) as computed."""
    sketch = CountSketch(10_000, 5, cols, "pairwise")
    for round_index in range(3):
        mu = 2 * 1.645 * attacks.best_direction(sketch, 3, KEY.seed(round_index))[1]
        assert mu == pytest.approx(3.29 * math.sqrt(5 * cols / 10_000), rel=0.02)
        assert gaussian_epsilon(mu, 1e-5) == pytest.approx(truth, rel=0.03)


def test_what_nobody_hides_is_infinitely_visible() -> None:
    """Some cell shows one coordinate alone, or one of fewer than there are cells."""
    for sketch in (CountSketch(1, 2, 4), CountSketch(4, 2, 64, "pairwise")):
        assert math.isinf(attacks.best_direction(sketch, 0, KEY.seed(0))[1])


def test_discriminant_is_nearly_the_likelihood_ratio_of_correlated_noise() -> None:
    """Its shift is at least 98% of the best one; on average it loses about 6 / 10,000."""
    rng = np.random.default_rng(6)
    mixing, shift = rng.normal(size=(6, 6)), rng.normal(size=6)
    noise = rng.normal(size=(2, 5000, 6)) @ mixing.T
    score = attacks.DISCRIMINANT.fit(noise[0] + shift, noise[1], KEY)
    weights = score(np.eye(6))
    covariance = mixing @ mixing.T
    best = math.sqrt(shift @ np.linalg.solve(covariance, shift))
    found = weights @ shift / math.sqrt(weights @ covariance @ weights)
    assert 0.98 * best < found <= best * (1 + 1e-12)
    naive = shift @ shift / math.sqrt(shift @ covariance @ shift)
    assert naive < 0.9 * best  # so that the covariance matters here


def test_discriminant_finds_what_cancels() -> None:
    """Two messages with the same noise: their difference has none, and tells for sure."""
    rng = np.random.default_rng(7)
    noise = rng.normal(size=(2, 1000, 1)) * np.ones(2)
    first, second = noise[0] + [0.01, 0.0], noise[1] + [0.0, 0.01]
    score = attacks.DISCRIMINANT.fit(first, second, KEY)
    assert score(first).min() > score(second).max()


def test_quadratic_is_the_ratio_of_two_gaussians_and_finds_what_cancels() -> None:
    rng = np.random.default_rng(11)
    spreads = rng.normal(size=(2, 3, 3))
    first, second = (rng.normal(size=(40_000, 3)) @ spread.T for spread in spreads)
    laws = [stats.multivariate_normal(np.zeros(3), spread @ spread.T) for spread in spreads]
    exact = 2 * (laws[0].logpdf(first) - laws[1].logpdf(first))
    fitted = attacks.QUADRATIC.fit(first, second, KEY)(first)
    assert np.corrcoef(exact, fitted)[0, 1] > 0.999
    # Two messages with one noise that cancels along another direction in each world.
    noise = rng.normal(size=(2, 1000, 1))
    first, second = noise[0] * [1.0, 1.0], noise[1] * [1.0, -1.0]
    score = attacks.QUADRATIC.fit(first, second, KEY)
    assert score(first).min() > score(second).max()


def test_discriminant_without_noise_and_with_many_features() -> None:
    fixed = attacks.DISCRIMINANT.fit(np.ones((9, 3)), np.zeros((9, 3)), KEY)
    assert np.array_equal(fixed(np.eye(3)), np.ones(3))
    rng = np.random.default_rng(8)
    noise = rng.normal(size=(2, 300, 1500))
    score = attacks.DISCRIMINANT.fit(noise[0] + 0.3, noise[1], KEY)
    fresh = rng.normal(size=(2, 100, 1500))
    assert score(fresh[0] + 0.3).mean() > score(fresh[1]).max()


def test_closed_forms_are_likelihood_ratios() -> None:
    rng = np.random.default_rng(9)
    one, two, messages = rng.normal(size=(3, 1, 4))
    messages = messages + rng.normal(size=(50, 4))
    for attack, law in (
        (attacks.weighted(one[0] - two[0]), stats.norm(scale=1.0)),
        (attacks.laplace_ratio(one[0], two[0], 0.8), stats.laplace(scale=0.8)),
    ):
        exact = (law.logpdf(messages - one) - law.logpdf(messages - two)).sum(axis=1)
        score = attack.fit(NOTHING, NOTHING, KEY)(messages)
        # Up to a constant, and to the rounding of one of them.
        assert np.allclose(exact - exact[0], score - score[0], atol=2e-6)


def test_extreme_finds_where_noise_ends() -> None:
    """Beyond the end of the noise there is nothing in one world, and 4 in 100 in the other.

    Two of three cells differ: of 50,000 trials 1,900 are beyond it, with a standard deviation of 43
    (and a fixed seed).
    """
    rng, two = np.random.default_rng(12), np.array([1.0, -2.0, 5.0])
    one, spread = two + np.array([1.0, 0.0, -0.9]), np.array([1.0, 3.0, 1.0])
    noise = rng.normal(size=(2, 50_000, 3)).clip(-3, 3) * spread
    first, second = noise[0] + one, noise[1] + two
    score = attacks.extreme(one, two).fit(first, second, KEY)
    seen = int((score(first) > score(second).max()).sum())
    expected = sum(stats.norm.sf(3 - shift) - stats.norm.sf(3) for shift in (1.0, 0.9))
    assert seen == pytest.approx(expected * 50_000, rel=0.12)
    # Messages that never vary have no end, and tell nothing.
    still = attacks.extreme(one, two).fit(np.ones((9, 3)), np.ones((9, 3)), KEY)
    assert np.array_equal(still(first[:5]), np.zeros(5))


def test_hidden_hashes_is_a_mixture() -> None:
    """All cells and signs in which the value may be, one by one."""
    sketch = CountSketch(90, 2, 3)
    value = 1.3
    cell = stats.norm(scale=math.sqrt(90 / 3))
    tables = np.random.default_rng(10).normal(size=(20, 2, 3)) * 5
    exact = np.zeros(20)
    for row in range(2):
        places = [
            np.exp(cell.logpdf(tables[:, row, col] - sign * value)
                   - cell.logpdf(tables[:, row, col]))
            for col in range(3) for sign in (-1, 1)
        ]  # fmt: skip
        exact += np.log(np.mean(places, axis=0))
    score = attacks.hidden_hashes(sketch, value).fit(NOTHING, NOTHING, KEY)(tables.reshape(20, 6))
    assert np.allclose(exact - exact[0], score - score[0])


def test_signs_keep_parity() -> None:
    sketch = CountSketch(40, 3, 5)
    numbers = torch.arange(40.0)
    for change in (0.0, 1.0):
        numbers[7] += change
        for round_index in range(20):
            sums = sketch.encode(numbers, KEY.seed(round_index)).sum(dim=1)
            assert torch.all(sums % 2 == numbers.sum() % 2)
    even, odd = np.array([[2.0, 0.0]]), np.array([[2.0, -1.0]])
    assert attacks.row_parity(2).fit(odd, even, KEY)(odd) == 1
    assert attacks.row_parity(2).fit(even, odd, KEY)(odd) == 0


def test_low_bits_never_accuse_the_table_itself() -> None:
    table = np.float32(0.0806)
    noise = np.random.default_rng(1).standard_normal((50_000, 1), dtype=np.float32) * np.float32(8)
    own = attacks.low_bits(np.array([float(table)])).fit(np.zeros((1, 1)), np.zeros((1, 1)), KEY)
    assert own((table + noise).astype(np.float64)).max() == 0
    assert own(noise.astype(np.float64)).mean() > 0.003

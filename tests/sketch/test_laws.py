"""What a Count Sketch promises, for both families, each with a hash that breaks it.

The statistics are computed from the families' definition; `test_kernels.py` shows that the kernels
compute the same. Seeds are fixed, so a test that passes keeps passing; over the choice of seeds,
each comparison below fails by chance with probability under 1e-8 (six standard errors), except
where a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from diffsketch import SketchKey
from diffsketch.sketch.hashing import FAMILIES, Family, SketchLayout, columns_and_signs

Hashes = tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]
Family3 = Callable[[npt.NDArray[np.int64], int, SketchLayout], Hashes]
Vector = npt.NDArray[np.float64]
SIGMAS = 6.0


def ours(some: npt.NDArray[np.int64], seed: int, layout: SketchLayout) -> Hashes:
    return columns_and_signs(some, SketchKey.from_integer(seed).seed(0), layout=layout)


def one_sign_per_block(some: npt.NDArray[np.int64], seed: int, layout: SketchLayout) -> Hashes:
    """Broken: all coordinates of a block share their sign."""
    first = some - some % layout.geometry.block
    return ours(some, seed, layout)[0], ours(first, seed, layout)[1]


def sign_from_multiply_shift(
    some: npt.NDArray[np.int64], seed: int, layout: SketchLayout
) -> Hashes:
    """Broken: the sign is another bit of the multiply-shift, hence follows the order."""
    words = SketchKey.from_integer(seed).seed(0).words_for(64)
    a, b = words[2 : 2 + layout.rows], words[99 : 99 + layout.rows]
    with np.errstate(over="ignore"):
        bits = (a[:, None] * some.astype(np.uint64) + b[:, None]) >> np.uint64(63)
    return ours(some, seed, layout)[0], (1 - 2 * bits.astype(np.int8)).astype(np.int8)


def half_of_the_columns(some: npt.NDArray[np.int64], seed: int, layout: SketchLayout) -> Hashes:
    """Broken: only even columns are used."""
    columns, signs = ours(some, seed, layout)
    return columns // 2 * 2, signs


def biased_signs(some: npt.NDArray[np.int64], seed: int, layout: SketchLayout) -> Hashes:
    """Broken: one sign in eight is positive for no reason."""
    columns, signs = ours(some, seed, layout)
    return columns, np.where(columns % 8 == 0, 1, signs).astype(np.int8)


def pair_statistics(
    hashes: Family3, layout: SketchLayout, seeds: int
) -> tuple[float, float, float]:
    """Largest excess of collisions, mean sign and sign products over chosen pairs, in sigmas."""
    block = layout.geometry.block
    near = [(0, 1), (0, block - 1), (3, block), (block - 1, block), (1, 3 * block)]
    far = [(0, layout.dim - 1), (5, layout.dim // 2), (block, layout.dim - block), (2, 1000)]
    some, where = np.unique(np.array(near + far), return_inverse=True)
    first, second = where.reshape(-1, 2).T
    hits, signs, products = 0.0, 0.0, 0.0
    for seed in range(seeds):
        columns, sign = hashes(some, seed, layout)
        hits = hits + (columns[:, first] == columns[:, second]).sum(0)
        signs = signs + sign.sum(0, dtype=np.int64)
        products = products + (sign[:, first] * sign[:, second]).sum(0, dtype=np.int64)
    count = seeds * layout.rows
    expected = count / layout.cols
    excess = (np.asarray(hits) - expected) / np.sqrt(expected)
    bias, product = (float(np.abs(sums).max() / np.sqrt(count)) for sums in (signs, products))
    return float(excess.max()), bias, product


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("cols", [7, 40, 150])
def test_collisions_and_signs(family: Family, cols: int) -> None:
    """Any two coordinates share a cell with probability <= 1/cols; signs are fair, pairs too.

    Rows of the blocked family share a factor of their signs, so for sums over rows the sigma is
    larger, by at most sqrt(rows) for signs: seeds, not rows, are what is averaged over there.
    """
    layout = SketchLayout(100_000, 1, cols, family)
    excess, bias, product = pair_statistics(ours, layout, seeds=6000)
    assert excess < SIGMAS
    assert bias < SIGMAS
    assert product < SIGMAS


@pytest.mark.slow
def test_collisions_and_signs_notice_a_broken_hash() -> None:
    layout = SketchLayout(100_000, 1, 40, "blocked")
    assert pair_statistics(half_of_the_columns, layout, seeds=6000)[0] > SIGMAS
    assert pair_statistics(biased_signs, layout, seeds=6000)[1] > SIGMAS
    assert pair_statistics(one_sign_per_block, layout, seeds=6000)[2] > SIGMAS


def vectors(dim: int) -> dict[str, Vector]:
    rng = np.random.default_rng(0)
    clusters = np.zeros(dim)
    clusters[dim // 20 : dim // 20 + dim // 100] = 1
    clusters[-dim // 4 : -dim // 4 + dim // 100] = -2
    spikes = np.zeros(dim)
    spikes[rng.choice(dim, 20, replace=False)] = 1
    return {
        "constant": np.ones(dim),
        "gaussian": rng.standard_normal(dim),
        "clusters": clusters,
        "spikes": spikes,
        "wave": np.cos(np.arange(dim) * 0.1),
        "alternating": np.resize([1.0, -1.0], dim),
        "zipf": rng.permutation(1 / np.arange(1, dim + 1)),
        "one": np.eye(1, dim, dim // 3)[0],
    }


def row_errors(hashes: Family3, vector: Vector, layout: SketchLayout, seed: int) -> Vector:
    """Each row's error at each coordinate."""
    columns, signs = hashes(np.arange(layout.dim), seed, layout)
    errors = np.empty(columns.shape)
    for j in range(layout.rows):
        table = np.bincount(columns[j], weights=signs[j] * vector, minlength=layout.cols)
        errors[j] = signs[j] * table[columns[j]] - vector
    return errors


def error_statistics(hashes: Family3, vector: Vector, layout: SketchLayout, seeds: int) -> Vector:
    """Per seed: mean error and mean square over the bound (all coordinates), neighbours' product,
    and the squared error of the squared norm over its ideal variance `2 ||v||^4 / cols`."""
    norm2 = float(vector @ vector)
    bound = norm2 / layout.cols
    rows = []
    for seed in range(seeds):
        errors = row_errors(hashes, vector, layout, seed)
        # sum(table^2) - ||v||^2 equals the inner product of vector and errors.
        excess = errors @ vector
        rows.append([
            errors.mean() / np.sqrt(bound),
            (errors**2).mean() / bound,
            (errors[:, 1:] * errors[:, :-1]).mean() / bound,
            (excess**2).mean() / (2 * norm2**2 / layout.cols),
        ])  # fmt: skip
    return np.array(rows)


def sigmas(values: Vector, expected: float) -> float:
    """How many standard errors the mean of independent values is above `expected`."""
    return float((values.mean() - expected) / (values.std(ddof=1) / np.sqrt(values.size) + 1e-300))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", list(vectors(4000)))
@pytest.mark.parametrize("cols", [22, 300])
def test_unbiased_with_bounded_variance(family: Family, name: str, cols: int) -> None:
    layout, vector = SketchLayout(4000, 2, cols, family), vectors(4000)[name]
    mean, square, neighbours, norm = error_statistics(ours, vector, layout, seeds=400).T
    assert abs(sigmas(mean, 0)) < SIGMAS
    assert sigmas(square, 1) < SIGMAS
    assert abs(sigmas(neighbours, 0)) < SIGMAS
    assert sigmas(norm, 1) < SIGMAS


@pytest.mark.slow
def test_clusters_notice_a_bad_block_scheme() -> None:
    """Neighbours' errors must not add up, and the norm's error must stay what it was."""
    layout, vector = SketchLayout(4000, 2, 300, "blocked"), vectors(4000)["clusters"]
    _, _, neighbours, norm = error_statistics(one_sign_per_block, vector, layout, seeds=400).T
    assert sigmas(neighbours, 0) > SIGMAS
    assert norm.mean() > 3
    wave = vectors(4000)["constant"]
    pairwise = SketchLayout(4000, 2, 300, "pairwise")
    _, _, _, norm = error_statistics(sign_from_multiply_shift, wave, pairwise, seeds=400).T
    assert norm.max() > 20 * error_statistics(ours, wave, pairwise, seeds=400)[:, 3].max()


def test_bias_is_noticed() -> None:
    layout, vector = SketchLayout(4000, 2, 22, "pairwise"), np.ones(4000)
    assert abs(sigmas(error_statistics(biased_signs, vector, layout, 100)[:, 0], 0)) > SIGMAS

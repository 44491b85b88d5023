"""How good are the hash families? Errors of each beside those of ideally random hashes.

    python -m benchmarks.quality

For several vectors, averages over seeds of: one row's squared error over its bound
`||v||^2 / cols`; the product of neighbours' errors over the same (0 is ideal); the squared sum of
256 neighbouring errors over 256 times the bound; the standard deviation of the estimated squared
norm over the ideal `sqrt(2 / cols)`; and the squared error of the median of five rows over the
bound. `one sign per block` is the blocked family with a bad idea in it, to show what would show.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from diffsketch import SketchKey
from diffsketch.sketch.hashing import SketchLayout, columns_and_signs

Vector = npt.NDArray[np.float64]
Hashes = tuple[npt.NDArray[np.int64], npt.NDArray[np.int8]]

WINDOW = 256
COLUMNS = ("variance", "neighbours", "256-sums", "norm sd", "median of 5")


def ideal(layout: SketchLayout, seed: int) -> Hashes:
    rng, shape = np.random.default_rng(seed), (layout.rows, layout.dim)
    return rng.integers(0, layout.cols, shape), 2 * rng.integers(0, 2, shape, np.int8) - 1


def ours(layout: SketchLayout, seed: int) -> Hashes:
    hash_seed = SketchKey.from_integer(seed).seed(0)
    return columns_and_signs(np.arange(layout.dim), hash_seed, layout=layout)


def one_sign_per_block(layout: SketchLayout, seed: int) -> Hashes:
    columns, signs = ours(layout, seed)
    first = np.arange(layout.dim) // layout.geometry.block * layout.geometry.block
    return columns, signs[:, first]


def vectors(dim: int) -> dict[str, Vector]:
    rng = np.random.default_rng(0)
    clusters = np.zeros(dim)
    clusters[dim // 20 : dim // 20 + 2000] = 1
    clusters[-dim // 4 : -dim // 4 + 2000] = 1
    return {
        "constant": np.ones(dim),
        "gaussian": rng.standard_normal(dim),
        "two clusters of 2,000": clusters,
        "zipf": rng.permutation(1 / np.arange(1, dim + 1)),
    }


def statistics(vector: Vector, layout: SketchLayout, hashes: Hashes) -> list[float]:
    columns, signs = hashes
    bound = float(vector @ vector) / layout.cols
    estimates = np.empty(columns.shape)
    for j in range(layout.rows):
        table = np.bincount(columns[j], weights=signs[j] * vector, minlength=layout.cols)
        estimates[j] = signs[j] * table[columns[j]]
    errors = estimates - vector
    first, whole = errors[0], layout.dim // WINDOW * WINDOW
    return [
        (first**2).mean() / bound,
        (first[1:] * first[:-1]).mean() / bound,
        (first[:whole].reshape(-1, WINDOW).sum(1) ** 2).mean() / WINDOW / bound,
        float(first @ vector) / float(vector @ vector) / np.sqrt(2 / layout.cols),
        ((np.median(estimates, axis=0) - vector) ** 2).mean() / bound,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dim", type=int, default=200_000)
    parser.add_argument("--cols", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, default=60)
    parser.add_argument("--quick", action="store_true", help="three seeds only")
    options = parser.parse_args()
    options.seeds = 3 if options.quick else options.seeds
    families: dict[str, tuple[Callable[[SketchLayout, int], Hashes], SketchLayout]] = {
        "ideal": (ideal, SketchLayout(options.dim, 5, options.cols, "pairwise")),
        "pairwise": (ours, SketchLayout(options.dim, 5, options.cols, "pairwise")),
        "blocked": (ours, SketchLayout(options.dim, 5, options.cols, "blocked")),
        "one sign per block": (
            one_sign_per_block,
            SketchLayout(options.dim, 5, options.cols, "blocked"),
        ),
    }
    print(f"dim={options.dim} cols={options.cols} rows=5, {options.seeds} seeds\n")
    print(f"| vector | family | {' | '.join(COLUMNS)} |\n|{' --- |' * (2 + len(COLUMNS))}")
    for name, vector in vectors(options.dim).items():
        for family, (hash_with, layout) in families.items():
            samples = np.array([
                statistics(vector, layout, hash_with(layout, seed)) for seed in range(options.seeds)
            ])  # fmt: skip
            means = samples.mean(axis=0)
            means[3] = np.sqrt((samples[:, 3] ** 2).mean())
            print(f"| {name} | {family} | {' | '.join(f'{m:.3f}' for m in means)} |", flush=True)


if __name__ == "__main__":
    main()

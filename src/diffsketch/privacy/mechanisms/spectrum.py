"""How little sketched noise is in its weakest direction, by its covariance G.

Small tables are factored. For large ones, bounds on the eigenvalues of G are *certified* without
forming it (`_proves_above`), by multiplying a few random vectors with a polynomial of it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse.linalg import eigsh
from torch import Tensor

from diffsketch.privacy.mechanisms.covariance import Matrix, factor, gram
from diffsketch.sketch.count_sketch import CountSketch
from diffsketch.sketch.hashing import HashSeed, columns_and_signs

__all__ = ["EXACT_CELLS", "Reach", "coordinate_reach", "vector_reach"]

Apply = Callable[[Tensor], Tensor]

EXACT_CELLS = 4096  # tables up to this size are factored: a dense matrix of 128 MiB
_PIECE = 1 << 18  # coordinates that are hashed, or expanded from a table, at a time
_UNIT = 2.0**-53  # of rounding
_PROBES = 3
_WEIGHT = 1e-4  # that a probe may lack in the direction that is looked for
_ATTEMPTS = (1.0, 0.85, 0.6, 0.3)  # of the eigenvalue that is expected
# A Gaussian is below _WEIGHT in size with probability _WEIGHT * sqrt(2 / pi); for all probes:
_FAILURE = len(_ATTEMPTS) * (_WEIGHT * math.sqrt(2 / math.pi)) ** _PROBES


@dataclass(frozen=True)
class Reach:
    """How far a change of the vector is seen through the noise, at most.

    Args:
        squared: Bound on `d' S' G^-1 S d` over the changes d of length 1.
        failure: Probability, over random numbers of the check's own, that it is no bound. 0 where
            a matrix was factored.
    """

    squared: float
    failure: float = 0.0


def coordinate_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    """For changes of one of the first `dim` coordinates, if the others are noise.

    The exact maximum, up to rounding, for tables of up to `EXACT_CELLS` cells; else
    `rows / lambda_min(G)`. None if no bound is found, as where G is singular or nearly so.
    """
    if sketch.rows * sketch.cols <= EXACT_CELLS:
        return _exact_coordinate_reach(sketch, seed, dim)
    floor = _certified_floor(sketch, seed, dim, sketch.dim)
    return None if floor is None else Reach(sketch.rows / floor, _FAILURE)


def vector_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    """For changes of all of the first `dim` coordinates, if the others are noise.

    The largest eigenvalue of `G^-1 S_real S_real'`, up to 1e-6 of it where the tables are small;
    else `lambda_max(S_real S_real') / lambda_min(G)`. None as for `coordinate_reach`.
    """
    if sketch.rows * sketch.cols <= EXACT_CELLS:
        return _exact_vector_reach(sketch, seed, dim)
    floor = _certified_floor(sketch, seed, dim, sketch.dim)
    ceiling = None if floor is None else _certified_ceiling(sketch, seed, 0, dim)
    if floor is None or ceiling is None:
        return None
    return Reach(ceiling / floor, 2 * _FAILURE)


def _hashes(
    sketch: CountSketch, seed: HashSeed, start: int, stop: int
) -> Iterator[tuple[npt.NDArray[np.int64], Matrix]]:
    for first in range(start, stop, _PIECE):
        some = np.arange(first, min(first + _PIECE, stop))
        columns, signs = columns_and_signs(some, seed, layout=sketch.layout)
        yield columns, signs.astype(np.float64)


# Small tables


def _exact_coordinate_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    lower = factor(sketch, seed, dim)
    if lower is None:
        return None
    cells = len(lower)
    inverse = torch.cholesky_solve(torch.eye(cells, dtype=lower.dtype), lower).numpy()
    # Each column of the inverse is that of some G + E with ||E|| <= (3 cells + 1) unit trace, but
    # for higher terms (Higham, "Accuracy and Stability", theorem 10.4); `size` is at least the
    # inverse's norm. Noise that is drawn with the factor has a G that is off by a third of that.
    size = min(float(np.linalg.norm(inverse)), float(np.linalg.norm(inverse, 1)))
    trace = sketch.rows * (sketch.dim - dim)  # a coordinate is in one cell of each row
    margin = 16 * cells * _UNIT * trace * size
    if not margin < 1e-3:
        return None
    largest, shift = 0.0, np.arange(sketch.rows)[:, None] * sketch.cols
    for columns, signs in _hashes(sketch, seed, 0, dim):
        at = columns + shift
        form = np.zeros(at.shape[1])
        for j in range(sketch.rows):
            form += inverse[at[j], at[j]]
            for k in range(j):
                form += 2 * signs[j] * signs[k] * inverse[at[j], at[k]]
        largest = max(largest, float(form.max()))
    return Reach(largest + 4 * margin * size * sketch.rows)


def _exact_vector_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    noise = torch.from_numpy(gram(sketch, seed, dim, sketch.dim))
    real = torch.from_numpy(gram(sketch, seed, 0, dim))
    lower = factor(sketch, seed, dim)
    if lower is None:
        return None
    half = torch.linalg.solve_triangular(lower, real, upper=False)
    whitened = torch.linalg.solve_triangular(lower, half.T, upper=False)
    largest = _largest_eigenvalue((whitened + whitened.T) / 2)
    # The estimate may be a little too small; what is returned has been proven.
    for slack in (1e-6, 1e-4, 1e-2):
        bound = largest * (1 + slack)
        if _proves_positive(bound * noise - real):
            return Reach(bound)
    return None


def _largest_eigenvalue(matrix: Tensor) -> float:
    if len(matrix) <= 256:
        return float(torch.linalg.eigvalsh(matrix)[-1])
    start = np.random.default_rng(0).standard_normal(len(matrix))  # any start will do
    (value,) = eigsh(matrix.numpy(), k=1, which="LA", v0=start, tol=1e-8, return_eigenvectors=False)
    return float(value)


def _proves_positive(matrix: Tensor) -> bool:
    """Whether a Cholesky factorisation proves, despite rounding, that no eigenvalue is negative.

    If one of A runs to its end in floating point, then `lambda_min(A) >= -(n + 1) unit trace(A)`
    but for higher terms (Rump, "Verification of positive definiteness", 2006). So it is tried on
    A less four times that.
    """
    margin = 4 * (len(matrix) + 2) * _UNIT * float(matrix.trace())
    shifted = matrix - margin * torch.eye(len(matrix), dtype=matrix.dtype)
    return margin >= 0 and int(torch.linalg.cholesky_ex(shifted).info) == 0


# Large tables


def _certified_floor(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> float | None:
    """A lower bound on the least eigenvalue of `S S'`."""
    mean, spread = _expected_spectrum(sketch, stop - start)
    if not spread < 1:
        return None
    apply, rounding = _operator(sketch, seed, start, stop)
    for attempt in _ATTEMPTS:
        low = 0.98 * attempt * mean * (1 - spread) ** 2
        high = 1.05 / attempt * mean * (1 + spread) ** 2
        if _proves_above(apply, sketch, 0.95 * low, low=low, high=high, rounding=rounding):
            return 0.95 * low
    return None


def _certified_ceiling(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> float | None:
    """An upper bound on the largest eigenvalue of `S S'`."""
    mean, spread = _expected_spectrum(sketch, stop - start)
    apply, rounding = _operator(sketch, seed, start, stop)

    def negative(tables: Tensor) -> Tensor:
        return -apply(tables)

    for attempt in _ATTEMPTS:
        high = 1.02 / attempt * mean * (1 + spread) ** 2
        if _proves_above(negative, sketch, -1.05 * high, low=-high, high=0.0, rounding=rounding):
            return 1.05 * high
    return None


def _expected_spectrum(sketch: CountSketch, length: int) -> tuple[float, float]:
    """Eigenvalues are expected between `mean (1 - spread)^2` and `mean (1 + spread)^2`."""
    return length / sketch.cols, math.sqrt(sketch.rows * sketch.cols / length)


def _operator(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> tuple[Apply, float]:
    """`G v` for tables v in float64, and a bound on its rounding, in units of `||v||`.

    A cell is a sum of at most `count` terms, in as many roundings; the terms' absolute values
    have a sum of norm at most `rows * count * ||v||`.
    """

    def apply(tables: Tensor) -> Tensor:
        total = torch.zeros_like(tables)
        for first in range(start, stop, _PIECE):
            length = min(_PIECE, stop - first)
            part = torch.empty(len(tables), length, dtype=torch.float64)
            # The mean of the rows is S' over their number.
            sketch.query(tables, seed, combine="mean", offset=first, out=part, validate=False)
            total += sketch.encode(part, seed, offset=first)
        return total * sketch.rows

    counts = np.zeros((sketch.rows, sketch.cols))
    for columns, _ in _hashes(sketch, seed, start, stop):
        counts += [np.bincount(row, minlength=sketch.cols) for row in columns]
    count = float(counts.max())
    return apply, _UNIT * (count + sketch.rows + 8) * sketch.rows * count


def _proves_above(
    apply: Apply, sketch: CountSketch, floor: float, *, low: float, high: float, rounding: float
) -> bool:
    """Whether it is proven that a symmetric matrix has no eigenvalue below `floor`.

    Let p be the Chebyshev polynomial of [low, high], low above floor: at most 1 in size there, and
    at least `peak` at and below the floor. If an eigenvalue is below the floor, with eigenvector u,
    then `||p(A) z|| >= peak |u'z|` for every z; and for Gaussian z, |u'z| is below `_WEIGHT` with a
    small probability only. So if for all probes z the left side is smaller than `peak * _WEIGHT`,
    there is no such eigenvalue, except with that small probability to the power of the number of
    probes. Nothing is assumed of the other eigenvalues: outside of [low, high] they can only make
    the check fail. Probes come from the operating system, so that no choice of hashes can
    anticipate them. Rounding in each step comes back multiplied by at most `2 steps * peak`.
    """
    middle, radius = (high + low) / 2, (high - low) / 2
    growth = math.acosh((middle - floor) / radius)
    cells = sketch.rows * sketch.cols
    steps = math.ceil(math.log(8 * math.sqrt(cells) / _WEIGHT) / growth)
    peak = math.cosh(steps * growth)
    generator = np.random.default_rng(secrets.randbits(128))
    shape = (_PROBES, sketch.rows, sketch.cols)
    before = torch.from_numpy(generator.standard_normal(shape))
    now = (apply(before) - middle * before) / radius
    longest = torch.maximum(_norms(before), _norms(now))
    for _ in range(steps - 1):
        before, now = now, 2 * (apply(now) - middle * now) / radius - before
        longest = torch.maximum(longest, _norms(now))
    step_error = 2 * (rounding + 4 * _UNIT * (abs(middle) + radius)) / radius * longest
    weight = _WEIGHT - 2 * steps**2 * step_error
    return bool((_norms(now) < 0.99 * weight * peak).all())


def _norms(tables: Tensor) -> Tensor:
    norms: Tensor = torch.linalg.vector_norm(tables, dim=(1, 2))
    return norms

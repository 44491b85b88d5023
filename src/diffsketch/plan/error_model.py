"""How large the error of an estimated mean will be, before anything is sent.

All errors are relative: the mean squared error of the estimate over the squared norm of the mean.
At 1 the estimate is as bad as an estimate of zero. The vectors are taken to be dense: coordinates
that look like independent Gaussian numbers, and norms that are all the same.

With the hashes of a round shared by all workers, the error of a sketch is that of the mean's own
sketch: more workers do not make it smaller. The mean over the rows estimates each coordinate with
a variance of `||mean||^2 h / (rows cols)`, where `h` is the share of pairs of coordinates that may
collide (1 for ideal hashes; a little less where the `blocked` family keeps coordinates apart).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from diffsketch.errors import check
from diffsketch.plan.request import PlanRequest
from diffsketch.sketch.hashing import Geometry

__all__ = [
    "CoordinateClipping",
    "Recovery",
    "RelativeError",
    "clipped_coordinates",
    "collision_error",
    "median_factor",
    "noise_error",
    "rounding_variance",
    "sketch_recovery",
]

Numbers = npt.NDArray[np.float64]

# A standard normal variable on a grid, for means over it.
_NORMAL = np.linspace(-6, 6, 241)
_WEIGHTS = np.exp(-(_NORMAL**2) / 2) / np.exp(-(_NORMAL**2) / 2).sum()


@dataclass(frozen=True)
class RelativeError:
    """Where the error of one round comes from; the parts add up to `total`.

    Attributes:
        recovery: Clipping and collisions in the sketch. The same for any number of workers.
        noise: The noise that privacy takes.
        rounding: Rounding to integers.
        kept: Share of the mean that is left after clipping, on average (1 without clipping).
    """

    recovery: float
    noise: float
    rounding: float = 0.0
    kept: float = 1.0

    @property
    def total(self) -> float:
        """The relative error."""
        return self.recovery + self.noise + self.rounding


@dataclass(frozen=True)
class Recovery:
    """Error of clipping and collisions, and the share of the mean that clipping leaves."""

    error: float
    kept: float


def collision_error(dim: int, rows: int, cols: int) -> float:
    """Relative error of the `blocked` sketch of a dense vector, queried with the mean of the rows.

    `dim h / (rows cols)` with `h = 1 - 1 / runs`: coordinates of one run never collide.
    """
    return dim * _colliding_share(dim, cols) / (rows * cols)


def sketch_recovery(request: PlanRequest, rows: int, cols: int, *, clip_ratio: float) -> Recovery:
    """Error of tables that are clipped to the norm `clip_ratio sqrt(rows) vector_norm`.

    The squared norm of a dense vector's table over `rows vector_norm^2`, call it `x`, has the mean
    1 and the variance `2 h / (rows cols)`, like a chi-squared variable; and the estimate along the
    vector itself is `x` times the vector. Clipping scales both by `k = min(1, clip_ratio /
    sqrt(x))`. So the error is the mean of `(k x - 1)^2 + k^2 x p`, where `p` is what collisions
    put at right angles to the vector. That is for vectors that are all the same; if they differ,
    `k` is that of each, and nearly independent of the mean's own `x`.
    """
    share = _colliding_share(request.dim, cols)
    variance = 2 * share / (rows * cols)
    across = max(0.0, request.dim * share / (rows * cols) - variance)
    # Wilson and Hilferty: the cube root of such a variable is nearly normal.
    x = np.maximum(1 - variance / 9 + math.sqrt(variance) / 3 * _NORMAL, 1e-3) ** 3
    k = np.minimum(1, clip_ratio / np.sqrt(x))
    same = _mean((k * x - 1) ** 2 + k**2 * x * across)
    mean_k, square_k = _mean(k), _mean(k**2)
    energy = request.mean_energy
    differing = (1 - mean_k) ** 2 + mean_k**2 * (variance + across)
    differing += (square_k - mean_k**2) * (1 + variance + across) / (request.units * energy)
    kept = energy * _mean(k * x) + (1 - energy) * mean_k
    return Recovery(energy * same + (1 - energy) * differing, kept)


@dataclass(frozen=True)
class CoordinateClipping:
    """What clipping coordinates does to the mean: its error, its energy and what is kept.

    `energy` is the squared norm of the mean of the clipped vectors over that of the mean.
    """

    error: float
    energy: float
    kept: float


@cache
def _clipped(ratio: float, spread: float, units: int) -> CoordinateClipping:
    common = 1 / math.sqrt(1 + spread)
    own = math.sqrt(spread / (1 + spread))
    x = common * _NORMAL[:, None] + (own * _NORMAL[None, :] if spread else 0)
    weights = _WEIGHTS if spread else np.ones(1)
    clipped = np.clip(x, -ratio, ratio)

    def of_mean(values: Numbers) -> float:
        """Mean square of the average over the units, of which each is a draw of `own`."""
        one = float(_WEIGHTS @ (values**2 @ weights))
        shared = float(_WEIGHTS @ (values @ weights) ** 2)
        return one / units + shared * (1 - 1 / units)

    total = of_mean(x)
    # Stein's lemma: E[y clip(x)] = E[y x] P(|x| < ratio) for y that is jointly normal with x.
    kept = math.erf(ratio / math.sqrt(2))
    return CoordinateClipping(of_mean(clipped - x) / total, of_mean(clipped) / total, kept)


def clipped_coordinates(request: PlanRequest, ratio: float) -> CoordinateClipping:
    """Clipping at `ratio` standard deviations of a coordinate, `vector_norm / sqrt(dim)`.

    What is kept of the mean is the probability that a coordinate is not clipped.
    """
    return _clipped(ratio, request.spread, request.units)


def noise_error(request: PlanRequest, variance: float, *, rows: int = 1) -> float:
    """Error of noise that has this variance in a cell of the mean of all tables (or vectors).

    The mean over the rows leaves a variance of `variance / rows` in each coordinate.
    """
    return request.dim * variance / rows / (request.vector_norm**2 * request.mean_energy)


def rounding_variance(deviation: float) -> float:
    """Mean variance of rounding a normal number of this standard deviation, both in steps.

    Rounding `n + f` at random has the variance `f (1 - f)`, of which this is the mean: 1/6 for
    steps that are small, less for large ones, by the Fourier series of that function. Numbers that
    are hardly ever beyond one step have `E|x| - E[x^2]`.

    >>> round(rounding_variance(2.0), 4), round(rounding_variance(0.1), 4)
    (0.1667, 0.0698)
    """
    if deviation < 0.15:
        return deviation * math.sqrt(2 / math.pi) - deviation**2
    order = np.arange(1, 20)
    terms = np.exp(-2 * (math.pi * order * deviation) ** 2) / order**2
    return 1 / 6 - float(terms.sum()) / math.pi**2


@cache
def median_factor(rows: int) -> float:
    """How much larger the error is if the rows' median is queried instead of their mean.

    The variance of the median of `rows` normal variables over that of their mean; `rows` is odd.

    >>> round(median_factor(7), 3)
    1.473
    """
    check(rows >= 1 and rows % 2 == 1, "rows", "be odd", rows)
    middle = rows // 2
    grid = np.linspace(-12, 12, 4801)
    below = np.array([math.erfc(-value / math.sqrt(2)) / 2 for value in grid])
    log_density = -(grid**2) / 2 + middle * (np.log(below) + np.log(below[::-1]))
    density = np.exp(log_density - log_density.max())
    return rows * float((density * grid**2).sum() / density.sum())


def _colliding_share(dim: int, cols: int) -> float:
    return 1 - 1 / Geometry.of(dim, cols).runs


def _mean(values: Numbers) -> float:
    return float(_WEIGHTS @ values)

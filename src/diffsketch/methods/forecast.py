"""Forecasts of the error of an estimated mean, before anything is sent.

All errors are relative: the mean squared error of the estimate over the squared norm of the mean.
At 1 the estimate is as bad as an estimate of zero. The vectors are taken to be dense: coordinates
that look like independent Gaussian numbers, and norms that are all the same.

With the hashes of a round shared by all workers, the error of a sketch is that of the mean's own
sketch: more workers do not make it smaller. The mean over the rows estimates each coordinate with
a variance of `||mean||^2 h / (rows cols)`, where `h` is the share of pairs of coordinates that may
collide (`1 - 1 / dim` for `pairwise`, less where the `blocked` family keeps coordinates apart).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from diffsketch.errors import check, check_positive, check_whole
from diffsketch.methods.base import Encoder, Method
from diffsketch.privacy.claim import Scope

Numbers = npt.NDArray[np.float64]

# A standard normal variable on a grid, for means over it.
_NORMAL = np.linspace(-6, 6, 241)
_WEIGHTS = np.exp(-(_NORMAL**2) / 2) / np.exp(-(_NORMAL**2) / 2).sum()


@dataclass(frozen=True)
class Vectors:
    """Sizes of the vectors, as far as they are known before there are any.

    `spread` is the variance around what they have in common over the squared norm of what they
    have in common: 0 if they are all the same.
    """

    dim: int
    count: int  # vectors that the mean is over
    norm: float = 1.0  # of each
    spread: float = 0.0

    def __post_init__(self) -> None:
        check_whole("dim", self.dim, least=1)
        check_whole("count", self.count, least=1)
        check_positive("norm", self.norm)
        check(0 <= self.spread < math.inf, "spread", "be >= 0 and finite", self.spread)

    @property
    def mean_energy(self) -> float:
        """Squared norm of the mean over that of a single vector: 1 if they are all the same."""
        return (1 + self.spread / self.count) / (1 + self.spread)


@dataclass(frozen=True)
class RelativeError:
    """The parts of the error of one round, which add up to `total`.

    Attributes:
        recovery: Clipping and collisions in the sketch. The same for any number of workers.
        noise: The noise that privacy takes.
        rounding: Rounding to whole numbers.
        kept: Share of the mean that is left after clipping, on average (1 without clipping).
    """

    recovery: float
    noise: float = 0.0
    rounding: float = 0.0
    kept: float = 1.0

    @property
    def total(self) -> float:
        """The relative error."""
        return self.recovery + self.noise + self.rounding


class Plannable(Method):
    """A method that the planner can propose: it chooses its own settings and knows its error.

    Guarantees (`tests/planning`): for dense vectors the mean squared error of simulated rounds
    is that of `forecast`, within 15%.
    """

    margins: ClassVar[tuple[float, ...]]
    """Numbers for `planned` to choose from; sizes are compared at the first."""

    @classmethod
    @abstractmethod
    def planned(
        cls, vectors: Vectors, scope: Scope, *, cells: int, bits: int | None, margin: float
    ) -> dict[str, Any] | None:
        """Choose settings for such vectors, all but those of the noise; None if there are none.

        Args:
            vectors: What is known of them.
            scope: The claim that is wanted. That of the method may be about replacement where it
                is wanted for add-or-remove, which it implies.
            cells: Of a message, at most.
            bits: Fineness of the grid: bits of a cell, or nearly so; None for the method's own.
            margin: One of `margins`: how far out to clip, for most.
        """

    @classmethod
    @abstractmethod
    def noise_settings(cls, level: float) -> dict[str, Any]:
        """Choose the settings of the noise, in few digits: a larger level is more private."""

    @abstractmethod
    def forecast(self, vectors: Vectors) -> RelativeError:
        """Predict the error of one round."""


def collision_error(encoder: Encoder) -> float:
    """Relative error of a dense vector's sketch, queried with the mean of the rows; 0 without one.

    `dim h / (rows cols)`, where `h` is the share of pairs of coordinates that may collide.
    """
    return encoder.dim * encoder.collision_share / math.prod(encoder.shape)


def clipped_norm(vectors: Vectors, encoder: Encoder, *, clip_ratio: float) -> RelativeError:
    """Error of vectors, or tables, that are clipped to the norm `clip_ratio sqrt(rows) norm`.

    The squared norm of a dense vector's table over `rows norm^2`, call it `x`, has the mean 1 and
    the variance `2 h / (rows cols)`, like a chi-squared variable; and the estimate along the
    vector itself is `x` times the vector. Clipping scales both by `k = min(1, clip_ratio /
    sqrt(x))`. So the error is the mean of `(k x - 1)^2 + k^2 x p`, where `p` is what collisions
    put at right angles to the vector. That is for vectors that are all the same; if they differ,
    `k` is that of each, and nearly independent of the mean's own `x`.
    """
    share, cells = encoder.collision_share, math.prod(encoder.shape)
    if not share:
        kept = min(1.0, clip_ratio)
        return RelativeError((1 - kept) ** 2, kept=kept)
    # Of x: the table's squared norm over the vector's.
    variance = 2 * share / cells
    # Of `dim h / cells` in all, the part along the vector is the variance of `x`.
    across = max(0.0, vectors.dim * share / cells - variance)
    # Wilson and Hilferty: the cube root of such a variable is nearly normal.
    x = np.maximum(1 - variance / 9 + math.sqrt(variance) / 3 * _NORMAL, 1e-3) ** 3
    k = np.minimum(1, clip_ratio / np.sqrt(x))
    same = _mean((k * x - 1) ** 2 + k**2 * x * across)
    mean_k, square_k = _mean(k), _mean(k**2)
    energy = vectors.mean_energy
    # For vectors at random angles: what their common factor loses, and what it leaves of
    # collisions.
    differing = (1 - mean_k) ** 2 + mean_k**2 * (variance + across)
    # And what factors that differ from vector to vector add, averaged over them.
    differing += (square_k - mean_k**2) * (1 + variance + across) / (vectors.count * energy)
    kept = energy * _mean(k * x) + (1 - energy) * mean_k
    return RelativeError(energy * same + (1 - energy) * differing, kept=kept)


def clipped_coordinates(
    vectors: Vectors, limit: float, *, collisions: float = 0.0
) -> RelativeError:
    """Error of vectors with coordinates clipped to `limit`, sketched with the error `collisions`.

    What is kept of the mean is the probability that a coordinate is not clipped.
    """
    ratio = limit * math.sqrt(vectors.dim) / vectors.norm
    error, energy = _clipped(ratio, vectors.spread, vectors.count)
    # Stein's lemma: E[y clip(x)] = E[y x] P(|x| < ratio) for y that is jointly normal with x.
    return RelativeError(error + collisions * energy, kept=math.erf(ratio / math.sqrt(2)))


@cache
def _clipped(ratio: float, spread: float, count: int) -> tuple[float, float]:
    """Squared norms of what clipping takes off the mean and of what it leaves, over the mean's."""
    common, apart = 1 / math.sqrt(1 + spread), math.sqrt(spread / (1 + spread))
    # A coordinate is its common part plus its own, of which the variances add up to 1.
    x = common * _NORMAL[:, None] + (apart * _NORMAL[None, :] if spread else 0)
    weights = _WEIGHTS if spread else np.ones(1)
    clipped = np.clip(x, -ratio, ratio)

    def of_mean(values: Numbers) -> float:
        """Mean square of the average over draws of what sets vectors apart."""
        single = _mean(values**2 @ weights)
        return single / count + _mean((values @ weights) ** 2) * (1 - 1 / count)

    total = of_mean(x)
    return of_mean(clipped - x) / total, of_mean(clipped) / total


def noise_error(vectors: Vectors, variance: float, *, rows: int = 1) -> float:
    """Error of noise that has this variance in a cell of the mean of all tables (or vectors)."""
    # The mean over the rows leaves a variance of `variance / rows` in each coordinate.
    return vectors.dim * variance / rows / (vectors.norm**2 * vectors.mean_energy)


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


def _mean(values: Numbers) -> float:
    return float(_WEIGHTS @ values)

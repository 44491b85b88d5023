"""Scores that tell two worlds apart: likelihood ratios where they are known, else a fit.

An attack may look at pilot trials of both worlds, which serve for nothing else, and returns a
score: the larger, the more it speaks for the first world. A poor score makes an audit weak, never
wrong. Several may be given; the one to be judged is chosen together with the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np

from diffsketch.auditing.bounds import Numbers
from diffsketch.errors import check
from diffsketch.sketch import CountSketch, HashSeed, SketchKey
from diffsketch.sketch.hashing import columns_and_signs

__all__ = [
    "Attack", "Discriminant", "HiddenHashes", "LaplaceRatio", "Noiseless",
    "Quadratic", "RowParity", "Score", "UnknownOthers", "Weighted", "matrix_of",
]  # fmt: skip

Score: TypeAlias = Callable[[Numbers], Numbers]
# Both worlds' messages without noise, as flat arrays.
Noiseless: TypeAlias = tuple[Numbers, Numbers]

_RIDGE = 1e-9  # of the mean variance, so that a direction without noise stands out, finitely
_MOST_FEATURES = 1000  # beyond, covariances are not estimated


class Attack(Protocol):
    """What every attack can do."""

    @property
    def name(self) -> str:
        """For reports."""

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:
        """The score, from pilot trials `(count, features)` and the public hashes, if any are."""


@dataclass(frozen=True)
class Discriminant:
    """Fisher's linear discriminant: works on any messages.

    It is the likelihood ratio itself where both worlds have the same Gaussian noise. Its estimate
    of the covariance sees what no formula expects: noise that cancels between rounds or workers.
    """

    name: str = "linear discriminant"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """Weights `covariance^-1 (mean_1 - mean_2)`."""
        difference = first.mean(axis=0) - second.mean(axis=0)
        centred = np.concatenate([first - first.mean(axis=0), second - second.mean(axis=0)])
        if len(difference) > _MOST_FEATURES:
            variances = centred.var(axis=0)
            weights = difference / (variances + _RIDGE * variances.mean() + 1e-300)
        else:
            covariance = centred.T @ centred / len(centred)
            mean_variance = float(np.trace(covariance)) / len(difference)
            if not mean_variance > 0:
                weights = difference
            else:
                ridge = _RIDGE * mean_variance * np.eye(len(difference))
                weights = np.linalg.solve(covariance + ridge, difference)
        return lambda messages: messages @ weights


@dataclass(frozen=True)
class Quadratic:
    """The likelihood ratio of two Gaussians with the pilots' means and covariances.

    Sees what differs in how messages vary: noise that cancels along another direction in each
    world.
    """

    name: str = "quadratic discriminant"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """The difference of two squared distances; constants do not matter."""
        worlds = [(each.mean(axis=0), np.atleast_2d(np.cov(each.T))) for each in (first, second)]
        ridge = _RIDGE * np.mean([np.trace(spread) / len(spread) for _, spread in worlds]) + 1e-300
        inverses = [np.linalg.inv(spread + ridge * np.eye(len(spread))) for _, spread in worlds]

        def score(messages: Numbers) -> Numbers:
            one, two = (
                np.einsum("ni,ij,nj->n", messages - mean, inverse, messages - mean)
                for (mean, _), inverse in zip(worlds, inverses, strict=True)
            )
            return np.asarray(two - one)

        return score


@dataclass(frozen=True, eq=False)
class Weighted:
    """A weighted sum of the message's numbers: the likelihood ratio of Gaussian noise.

    With the same noise in each cell, weights are the difference of the noiseless messages;
    else that, multiplied by the inverse of the covariance.
    """

    weights: Numbers
    name: str = "likelihood ratio (Gaussian)"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """Known in advance."""
        return lambda messages: messages @ self.weights


@dataclass(frozen=True, eq=False)
class LaplaceRatio:
    """The likelihood ratio of Laplace noise of one scale on every entry."""

    noiseless: Noiseless
    scale: float
    name: str = "likelihood ratio (Laplace)"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """Known in advance."""
        one, two = self.noiseless

        def score(messages: Numbers) -> Numbers:
            losses = (np.abs(messages - two) - np.abs(messages - one)).sum(axis=1) / self.scale
            # Most losses are one of two values: rounding keeps each of them in one piece.
            return np.asarray(losses.round(6))

        return score


@dataclass(frozen=True)
class UnknownOthers:
    """The likelihood ratio of a bare sketch if all but one coordinate are unknown and Gaussian.

    The table is `N(c s_i, std^2 G)` with `G = S_-i S_-i'` (`S` the sketch's matrix, `s_i` its
    column of the coordinate), so replacing `c` by `d` is a Gaussian shift of
    `mu = |c - d| / std * sqrt(s_i' G^-1 s_i)`.
    """

    sketch: CountSketch
    coordinate: int
    name: str = "likelihood ratio (others unknown)"

    def weights(self, seed: HashSeed) -> Numbers:
        """`G^-1 s_i`, along which the table is best looked at."""
        return self._solve(seed)[0]

    def shift(self, seed: HashSeed, *, change: float, std: float) -> float:
        """`mu`: by how many standard deviations the best statistic moves."""
        check(0 < std < math.inf, "std", "be > 0 and finite", std)
        return abs(change) / std * math.sqrt(self._solve(seed)[1])

    def _solve(self, seed: HashSeed) -> tuple[Numbers, float]:
        """The weights, and `s_i' G^-1 s_i`."""
        matrix = matrix_of(self.sketch, seed)
        column = matrix[:, self.coordinate]
        others = np.delete(matrix, self.coordinate, axis=1)
        gram = others @ others.T
        weights = np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ column
        bare = column - gram @ weights
        if np.abs(bare).max() > 1e-6:  # a direction in which no other coordinate hides this one
            return bare, math.inf
        return weights, float(column @ weights)

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:
        """One round's; the sign says which of the worlds has the larger value."""
        weights = self.weights(hashes.seed(0))
        sign = 1.0 if (first.mean(axis=0) - second.mean(axis=0)) @ weights >= 0 else -1.0
        return lambda messages: messages @ (sign * weights)


@dataclass(frozen=True)
class HiddenHashes:
    """For secret hashes: is there, somewhere in each row, a value of this size and either sign?

    The likelihood ratio of "`value` in an unknown cell with an unknown sign" against "nothing", if
    all cells were independent and `N(0, std^2 dim / cols)`, which they nearly are.
    """

    sketch: CountSketch
    value: float
    std: float
    name: str = "likelihood ratio (hashes unknown)"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """Known in advance; the same for any hashes."""
        rows, cols = self.sketch.rows, self.sketch.cols
        weight = self.value / (self.std**2 * self.sketch.dim / cols)

        def score(messages: Numbers) -> Numbers:
            tables = messages.reshape(-1, rows, cols) * weight
            # ln cosh without overflow; constants do not matter.
            ratios = np.logaddexp(tables, -tables)
            return np.asarray(np.logaddexp.reduce(ratios, axis=2).sum(axis=1))

        return score


@dataclass(frozen=True)
class RowParity:
    """For secret hashes and whole numbers: signs keep the parity of the sum of a row of `cols`."""

    cols: int
    name: str = "parity of a row's sum"

    def fit(self, first: Numbers, second: Numbers, hashes: SketchKey) -> Score:  # noqa: ARG002
        """1 where the first row's sum has the parity of the first world."""

        def parity(messages: Numbers) -> Numbers:
            return np.asarray(np.rint(messages[:, : self.cols].sum(axis=1)) % 2)

        odd_is_first = parity(first).mean() >= parity(second).mean()
        return parity if odd_is_first else lambda messages: 1 - parity(messages)


def matrix_of(sketch: CountSketch, seed: HashSeed) -> Numbers:
    """The sketch as a matrix, `(rows * cols, dim)`. For small tables."""
    places = np.arange(sketch.dim, dtype=np.int64)
    columns, signs = columns_and_signs(places, seed, layout=sketch.layout)
    matrix = np.zeros((sketch.rows, sketch.cols, sketch.dim))
    for row in range(sketch.rows):
        matrix[row, columns[row], places] = signs[row]
    return matrix.reshape(-1, sketch.dim)

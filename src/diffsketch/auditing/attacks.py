"""Scores that tell two worlds apart: likelihood ratios where they are known, else a fit.

An attack may look at pilot trials of both worlds, which serve for nothing else, and returns a
score: the larger, the more it speaks for the first world. A poor score makes an audit weak, never
wrong. Several may be given; the one to be judged is chosen together with the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from diffsketch.sketch import CountSketch, HashSeed, SketchKey
from diffsketch.sketch.hashing import columns_and_signs

Numbers: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[[Numbers], Numbers]

_RIDGE = 1e-9  # of the mean variance, so that a direction without noise stands out, finitely
_MOVED = 0.1  # of the largest shift: cells that move less show little of the ends of the noise
_MOST_FEATURES = 1000  # beyond, covariances are not estimated


@dataclass(frozen=True, eq=False)
class Attack:
    """A way to score messages.

    `fit` makes the score from pilot trials `(count, features)` of both worlds and the public
    hashes, if any are.
    """

    name: str
    fit: Callable[[Numbers, Numbers, SketchKey], Score]


def weighted(weights: Numbers) -> Attack:
    """Attack by a weighted sum of the message's numbers: the likelihood ratio of Gaussian noise.

    With the same noise in each cell, weights are the difference of the noiseless messages;
    else that, multiplied by the inverse of the covariance.
    """
    return Attack("likelihood ratio (Gaussian)", lambda *_: lambda messages: messages @ weights)


def laplace_ratio(first_bare: Numbers, second_bare: Numbers, scale: float) -> Attack:
    """Attack by the likelihood ratio of Laplace noise of one scale on two noiseless messages."""

    def score(messages: Numbers) -> Numbers:
        losses = (np.abs(messages - second_bare) - np.abs(messages - first_bare)).sum(
            axis=1
        ) / scale
        # Most losses are one of two values: rounding keeps each of them in one piece.
        return np.asarray(losses.round(6))

    return Attack("likelihood ratio (Laplace)", lambda *_: score)


def extreme(first_bare: Numbers, second_bare: Numbers) -> Attack:
    """Attack the ends of the noise: how far a message is from the second noiseless one, at most.

    In the cells where the two differ, towards the first, in standard deviations of the pilots.
    Noise that is cut off never reaches beyond its end from the second, and does from the first.
    """

    def fit(first: Numbers, second: Numbers, _: SketchKey) -> Score:
        # Standard deviations by the pilots: no formula of the noise is trusted here.
        spread = np.sqrt((first.var(axis=0) + second.var(axis=0)) / 2)
        shift = (first_bare - second_bare) / np.where(spread > 0, spread, np.inf)
        moved = np.abs(shift) > _MOVED * np.abs(shift).max()
        if not moved.any():
            return lambda messages: np.zeros(len(messages))
        weights, start = np.sign(shift[moved]) / spread[moved], second_bare[moved]
        return lambda messages: np.asarray(((messages[:, moved] - start) * weights).max(axis=1))

    return Attack("farthest cell", fit)


def unknown_others(sketch: CountSketch, coordinate: int) -> Attack:
    """Attack a bare sketch of which all but one coordinate are unknown and Gaussian."""

    def fit(first: Numbers, second: Numbers, hashes: SketchKey) -> Score:
        # Hashes are public and fixed, so the direction is known before any message is seen.
        weights, _ = best_direction(sketch, coordinate, hashes.seed(0))
        # The sign says which of the worlds has the larger value.
        sign = 1.0 if (first.mean(axis=0) - second.mean(axis=0)) @ weights >= 0 else -1.0
        return lambda messages: messages @ (sign * weights)

    return Attack("likelihood ratio (others unknown)", fit)


def best_direction(sketch: CountSketch, coordinate: int, seed: HashSeed) -> tuple[Numbers, float]:
    """Return the weights that show a coordinate best, and its shift in standard deviations.

    With the other coordinates unknown and `N(0, 1)`, the table is `N(c s_i, G)` with `G = S_-i
    S_-i'` (`S` the sketch's matrix, `s_i` its column of the coordinate), so replacing `c` by
    `c + 1` is a Gaussian shift by `sqrt(s_i' G^-1 s_i)` along the weights `G^-1 s_i`. The shift is
    infinite where no other coordinate hides this one.
    """
    matrix = matrix_of(sketch, seed)
    column = matrix[:, coordinate]
    others = np.delete(matrix, coordinate, axis=1)
    gram = others @ others.T
    # A pseudo-inverse: tables of few coordinates have directions that no other coordinate reaches.
    weights = np.linalg.pinv(gram, rcond=1e-10, hermitian=True) @ column
    bare = column - gram @ weights
    # Part of the column is outside of what the others reach: it is seen without any noise.
    if np.abs(bare).max() > 1e-6:
        return bare, math.inf
    return weights, math.sqrt(float(column @ weights))


def hidden_hashes(sketch: CountSketch, value: float) -> Attack:
    """Attack secret hashes: is there, in each row, a value of this size and either sign?

    Scores by the likelihood ratio of "`value` in an unknown cell with an unknown sign" against
    "nothing", if all cells were independent and `N(0, dim / cols)`, which they nearly are.
    """
    # A cell is `N(0, dim / cols)`: shifting it by `value` weighs it with `value / variance`.
    weight = value / (sketch.dim / sketch.cols)

    def score(messages: Numbers) -> Numbers:
        tables = messages.reshape(-1, sketch.rows, sketch.cols) * weight
        # ln cosh without overflow; constants do not matter.
        ratios = np.logaddexp(tables, -tables)
        return np.asarray(np.logaddexp.reduce(ratios, axis=2).sum(axis=1))

    return Attack("likelihood ratio (hashes unknown)", lambda *_: score)


def row_parity(cols: int) -> Attack:
    """Attack secret hashes of whole numbers: signs keep the parity of the sum of a row."""

    def parity(messages: Numbers) -> Numbers:
        return np.asarray(np.rint(messages[:, :cols].sum(axis=1)) % 2)

    def fit(first: Numbers, second: Numbers, _: SketchKey) -> Score:
        # Which world has odd sums depends on the vectors, so the pilots say it.
        odd_is_first = parity(first).mean() >= parity(second).mean()
        return parity if odd_is_first else lambda messages: 1 - parity(messages)

    return Attack("parity of a row's sum", fit)


def low_bits(table: Numbers, step: float = 1.0) -> Attack:
    """Attack noise in floating point: count cells that cannot be the table plus noise in float32.

    The table is the second world's, without noise; a message's whole numbers stand for multiples of
    the step.
    """
    single = table.astype(np.float32)

    def score(messages: Numbers) -> Numbers:
        seen = (messages * step).astype(np.float32)
        # The noise that it should have been, in float32, and whether adding it gives the message.
        nearest = (seen.astype(np.float64) - single).astype(np.float32)
        reached = single + nearest == seen
        for end in (-np.inf, np.inf):  # rounding may hide the noise that it was by one place
            reached |= single + np.nextafter(nearest, np.float32(end)) == seen
        return np.asarray((~reached).sum(axis=1), dtype=np.float64)

    return Attack("cells out of reach in floating point", lambda *_: score)


def _moments(messages: Numbers) -> tuple[Numbers, Numbers]:
    """Return mean and covariance; by PyTorch, whose threads an audit limits."""
    mean = messages.mean(axis=0)
    # Not divided by one trial less: with thousands of pilots it makes no difference.
    centred = torch.from_numpy(messages - mean)
    return mean, (centred.T @ centred / len(messages)).numpy()


def _ridge(covariance: Numbers) -> Numbers:
    """Return the covariance with a little more variance, so that it has an inverse."""
    # Relative to the mean variance, so that it does not depend on the unit of the messages.
    variance = float(np.trace(covariance)) / len(covariance)
    return np.asarray(covariance + (_RIDGE * variance + 1e-300) * np.eye(len(covariance)))


def _fit_linear(first: Numbers, second: Numbers, _: SketchKey) -> Score:
    """Weight by `covariance^-1 (mean_1 - mean_2)`."""
    if first.shape[1] > _MOST_FEATURES:
        weights = first.mean(axis=0) - second.mean(axis=0)
        variances = (first.var(axis=0) + second.var(axis=0)) / 2
        # Without covariances: there are more features than pilots to estimate them from.
        weights /= variances + _RIDGE * variances.mean() + 1e-300
    else:
        (first_mean, first_spread), (second_mean, second_spread) = _moments(first), _moments(second)
        weights = first_mean - second_mean
        if np.trace(first_spread + second_spread) > 0:
            weights = np.linalg.solve(_ridge((first_spread + second_spread) / 2), weights)
    return lambda messages: messages @ weights


def _fit_quadratic(first: Numbers, second: Numbers, _: SketchKey) -> Score:
    """Take the difference of two squared distances; constants do not matter."""
    worlds = [_moments(world) for world in (first, second)]
    distances = [(mean, np.linalg.inv(_ridge(spread))) for mean, spread in worlds]

    def score(messages: Numbers) -> Numbers:
        first_distance, second_distance = (
            np.einsum("ni,ij,nj->n", messages - mean, inverse, messages - mean)
            for mean, inverse in distances
        )
        return np.asarray(second_distance - first_distance)

    return score


DISCRIMINANT = Attack("linear discriminant", _fit_linear)
"""Fisher's linear discriminant: works on any messages.

It is the likelihood ratio itself where both worlds have the same Gaussian noise. Its estimate
of the covariance sees what no formula expects: noise that cancels between rounds or workers.
"""
QUADRATIC = Attack("quadratic discriminant", _fit_quadratic)
"""The likelihood ratio of two Gaussians with the pilots' means and covariances.

Sees what differs in how messages vary: noise that cancels along another direction in each world.
"""


def matrix_of(sketch: CountSketch, seed: HashSeed) -> Numbers:
    """Return the sketch as a matrix, `(rows * cols, dim)`. For small tables."""
    places = np.arange(sketch.dim, dtype=np.int64)
    columns, signs = columns_and_signs(places, seed, layout=sketch)
    matrix = np.zeros((sketch.rows, sketch.cols, sketch.dim))
    for row in range(sketch.rows):
        matrix[row, columns[row], places] = signs[row]
    return matrix.reshape(-1, sketch.dim)

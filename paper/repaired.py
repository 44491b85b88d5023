"""The paper's appended noise, repaired into a mechanism with a proof.

The paper appends Gaussian numbers to the vector and sketches both together. For hashes that
everybody knows, with the vector clipped, the noise's standard deviation fixed beforehand and fresh
noise in each message, this is exactly Gaussian noise on the table
(`diffsketch.privacy.mechanisms.padding`), with the covariance `std^2 G`. So two vectors that differ
by d are told apart as well as two Gaussians of variance 1 at a distance of
`mu = sqrt(d' S_real' G^-1 S_real d) / std`, and not better.

*The weakest direction.* Small tables are factored. For large ones, bounds on the eigenvalues of G
are *certified* without forming it (`_proves_above`), by multiplying a few random vectors with a
polynomial of it.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.methods import Encoded, register
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import (
    NoClaim,
    ProvenClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Trust,
    Unit,
)
from diffsketch.privacy.clipping import CoordinateBound, NormBound, clip_coordinates
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.mechanisms.padding import factor, gram, padded_tables
from diffsketch.privacy.simulated_noise import Noise, float_type
from diffsketch.sketch.count_sketch import CountSketch, check_seed
from diffsketch.sketch.hashing import HashSeed, columns_and_signs
from diffsketch.sketch.kernels.estimators import Combine

_Matrix: TypeAlias = npt.NDArray[np.float64]
_Apply: TypeAlias = Callable[[Tensor], Tensor]
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
    """Bound on how far a change of the vector is seen through the noise."""

    squared: float  # a bound on d' S' G^-1 S d over the changes d of length 1
    failure: float = 0.0  # probability, over random numbers of the check's own, that it is none


def coordinate_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    """Reach of changes of one of the first `dim` coordinates, if the others are noise.

    The exact maximum, up to rounding, for tables of up to `EXACT_CELLS` cells; else
    `rows / lambda_min(G)`. None if no bound is found, as where G is singular or nearly so.
    """
    cells = sketch.rows * sketch.cols
    if cells > EXACT_CELLS:
        floor = _certified(sketch, seed, dim, sketch.dim, least=True)
        return None if floor is None else Reach(sketch.rows / floor, _FAILURE)
    lower = factor(sketch, seed, dim)
    if lower is None:
        return None
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


def vector_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> Reach | None:
    """Reach of changes of all of the first `dim` coordinates, if the others are noise.

    The largest eigenvalue of `G^-1 S_real S_real'`, up to 1e-6 of it where the tables are small;
    else `lambda_max(S_real S_real') / lambda_min(G)`. None as for `coordinate_reach`.
    """
    if sketch.rows * sketch.cols > EXACT_CELLS:
        floor = _certified(sketch, seed, dim, sketch.dim, least=True)
        ceiling = None if floor is None else _certified(sketch, seed, 0, dim, least=False)
        if floor is None or ceiling is None:
            return None
        return Reach(ceiling / floor, 2 * _FAILURE)
    lower = factor(sketch, seed, dim)
    if lower is None:
        return None
    noise = torch.from_numpy(gram(sketch, seed, dim, sketch.dim))
    real = torch.from_numpy(gram(sketch, seed, 0, dim))
    half = torch.linalg.solve_triangular(lower, real, upper=False)
    whitened = torch.linalg.solve_triangular(lower, half.T, upper=False)
    whitened = (whitened + whitened.T) / 2
    if len(whitened) <= 256:
        largest = float(torch.linalg.eigvalsh(whitened)[-1])
    else:
        from scipy.sparse.linalg import eigsh

        start = np.random.default_rng(0).standard_normal(len(whitened))  # any start will do
        (value,) = eigsh(
            whitened.numpy(), k=1, which="LA", v0=start, tol=1e-8, return_eigenvectors=False
        )
        largest = float(value)
    # The estimate may be a little too small; what is returned has been proven.
    for slack in (1e-6, 1e-4, 1e-2):
        bound = largest * (1 + slack)
        if _proves_positive(bound * noise - real):
            return Reach(bound)
    return None


def _hashes(
    sketch: CountSketch, seed: HashSeed, start: int, stop: int
) -> Iterator[tuple[npt.NDArray[np.int64], _Matrix]]:
    for first in range(start, stop, _PIECE):
        some = np.arange(first, min(first + _PIECE, stop))
        columns, signs = columns_and_signs(some, seed, layout=sketch.layout)
        yield columns, signs.astype(np.float64)


def _proves_positive(matrix: Tensor) -> bool:
    """Whether a Cholesky factorisation proves, despite rounding, that no eigenvalue is negative.

    If one of A runs to its end in floating point, then `lambda_min(A) >= -(n + 1) unit trace(A)`
    but for higher terms (Rump, "Verification of positive definiteness", 2006). So it is tried on
    A less four times that.
    """
    margin = 4 * (len(matrix) + 2) * _UNIT * float(matrix.trace())
    shifted = matrix - margin * torch.eye(len(matrix), dtype=matrix.dtype)
    return margin >= 0 and int(torch.linalg.cholesky_ex(shifted).info) == 0


def _certified(
    sketch: CountSketch, seed: HashSeed, start: int, stop: int, *, least: bool
) -> float | None:
    """A lower bound on the least eigenvalue of `S S'`, or an upper bound on the largest one.

    Eigenvalues are expected between `mean (1 - spread)^2` and `mean (1 + spread)^2`.
    """
    length = stop - start
    mean, spread = length / sketch.cols, math.sqrt(sketch.rows * sketch.cols / length)
    if least and not spread < 1:
        return None
    apply, rounding = _operator(sketch, seed, start, stop)
    for attempt in _ATTEMPTS:
        if least:
            low, high = 0.98 * attempt * mean * (1 - spread) ** 2, 1.05 / attempt * mean
            high *= (1 + spread) ** 2
            if _proves_above(apply, sketch, 0.95 * low, low=low, high=high, rounding=rounding):
                return 0.95 * low
        else:
            high = 1.02 / attempt * mean * (1 + spread) ** 2
            bounds = {"low": -high, "high": 0.0, "rounding": rounding}
            if _proves_above(lambda tables: -apply(tables), sketch, -1.05 * high, **bounds):
                return 1.05 * high
    return None


def _operator(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> tuple[_Apply, float]:
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
    apply: _Apply, sketch: CountSketch, floor: float, *, low: float, high: float, rounding: float
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
    norms = partial(torch.linalg.vector_norm, dim=(1, 2))
    longest = torch.maximum(norms(before), norms(now))
    for _ in range(steps - 1):
        before, now = now, 2 * (apply(now) - middle * now) / radius - before
        longest = torch.maximum(longest, norms(now))
    step_error = 2 * (rounding + 4 * _UNIT * (abs(middle) + radius)) / radius * longest
    weight = _WEIGHT - 2 * steps**2 * step_error
    return bool((norms(now) < 0.99 * weight * peak).all())


@dataclass(frozen=True)
class PaddedGaussian:
    """A clipped vector with `padding` Gaussian numbers appended, sketched under known hashes.

    The guarantee depends on the hashes, so there is one such object for each seed. With a
    `CoordinateBound`, `mu = change / std * max_i sqrt(s_i' G^-1 s_i)`, where s_i is column i of
    S_real and `change` how much a unit may change the vector; with a `NormBound`,
    `mu = change / std * sqrt(lambda_max(G^-1 S_real S_real'))`. Clipping
    the vector is sound here, since what the sketch makes of it is computed and not assumed.

    Guarantees (`paper/tests/test_repaired.py`):
        * what is released is the sketch of the extended vector, or has the distribution of it, and
          its covariance is `std^2 G`;
        * mu is exact for tables of up to `EXACT_CELLS` cells; above it is a bound that
          holds except with a probability below 1e-11 over the random numbers of the check, which
          the claim adds to delta.

    There is no claim where G is singular, as it is for `padding < rows * cols`: some combination of
    cells is then without noise.

    Args:
        sketch: For the vector without noise; `padded_sketch` is the one that is used.
        seed: The hashes.
        bound: Clipping of the vector, before it is sketched.
        padding: Number of appended numbers.
        std: Their standard deviation. It must not depend on private data.
        relation: Which data sets are neighbours.

    >>> from diffsketch import SketchKey
    >>> sketch, seed = CountSketch(7850, 7, 22), SketchKey.from_integer(0).seed(0)
    >>> noisy = PaddedGaussian(sketch, seed, CoordinateBound(1.645), padding=39_250, std=1.0)
    >>> print(noisy.claim.epsilon(delta=1e-5, rounds=1))
    epsilon = 0.7619 at delta = 1e-05 over 1 round (proven, simulated; coordinate unit, \
replace, local trust)
    """

    sketch: CountSketch
    seed: HashSeed
    bound: CoordinateBound | NormBound
    padding: int
    std: float
    relation: Relation = Relation.REPLACE

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_whole("padding", self.padding, least=1)
        check_positive("std", self.std)
        if isinstance(self.bound, CoordinateBound):
            rows, need = self.bound.rows, "be 1, since the vector is clipped and not the table"
            check(rows == 1, "bound.rows", need, rows)
        object.__setattr__(self, "relation", self._scope.relation)

    @property
    def _scope(self) -> Scope:
        return Scope(self.bound.unit, self.relation, Trust.LOCAL)

    @cached_property
    def padded_sketch(self) -> CountSketch:
        """The sketch of the extended vector; tables are made and must be queried with it."""
        sketch = self.sketch
        return CountSketch(sketch.dim + self.padding, sketch.rows, sketch.cols, sketch.family)

    @cached_property
    def claim(self) -> SimulatedClaim | NoClaim:
        """The claim of one release. Computed once: it takes a factorisation."""
        cells = self.sketch.rows * self.sketch.cols
        if self.padding < cells:
            few = f"{self.padding} appended numbers leave {cells} cells partly without noise"
            return NoClaim(self._scope, few)
        single = isinstance(self.bound, CoordinateBound)
        find = coordinate_reach if single else vector_reach
        reach = find(self.padded_sketch, self.seed, self.sketch.dim)
        if reach is None:
            return NoClaim(
                self._scope, "the appended noise could not be shown to cover the whole table"
            )
        change = self.bound.sensitivity(self.relation)
        event: events.Event = events.gaussian(self.std / (change * math.sqrt(reach.squared)))
        if reach.failure > 0:
            event = events.composed(event, events.approximate(0.0, reach.failure))
        text = (
            f"{self.padding} Gaussian numbers of standard deviation {self.std:.4g}, appended to "
            "the vector before it is sketched,"
        )
        return SimulatedClaim(self._scope, event, text)

    def release(self, vectors: Tensor, noise: Noise) -> Tensor:
        """Clip `(dim,)` or `(batch, dim)`, append fresh noise, and sketch."""
        dim = self.sketch.dim
        if not 1 <= vectors.dim() <= 2 or vectors.shape[-1] != dim:
            shape = tuple(vectors.shape)
            raise ArgumentError(f"vectors must be (dim,) or (batch, dim), dim={dim}, got {shape}")
        float_type("std", self.std, vectors.dtype)
        clipped = self.bound.apply(vectors.detach(), None)
        batch = clipped if clipped.dim() == 2 else clipped[None]
        std = torch.full((len(batch),), self.std, dtype=torch.float64)
        tables = padded_tables(batch, self.padded_sketch, seed=self.seed, std=std, noise=noise)
        return tables if clipped.dim() == 2 else tables[0]

    def query(self, table: Tensor, *, combine: Combine = "median") -> Tensor:
        """Estimates of the vector's coordinates, without those of the appended noise."""
        lead = table.shape[:-2]
        out = table.new_empty((*lead, self.sketch.dim))
        return self.padded_sketch.query(table, self.seed, combine=combine, offset=0, out=out)


def table_noise_like_padding(
    sketch: CountSketch,
    limit: float,
    *,
    padding: int,
    std: float,
    relation: Relation = Relation.REPLACE,
) -> GaussianMechanism:
    """Nearly the same noise without appending anything: `std sqrt(padding / cols)` on each cell.

    `padding` appended numbers give a cell that deviation on average; here cells are independent.
    It needs no computation for each seed, works for any `padding`, and its guarantee is a little
    stronger: `mu = change / std * sqrt(rows * cols / padding)` for one coordinate.
    """
    check_whole("padding", padding, least=1)
    check_positive("std", std)
    bound = CoordinateBound(limit, sketch.rows)
    cell = std * math.sqrt(padding / sketch.cols)
    return GaussianMechanism(bound, cell / bound.sensitivity(relation), relation)


@register
@dataclass(frozen=True, kw_only=True)
class ProvenDiffSketch(TableMethod):
    """Algorithm 2 with its appended noise repaired, which makes it a Gaussian mechanism.

    The vector's coordinates are clipped to `[-clip, clip]`, and `padding` numbers of standard
    deviation `std` are appended, both fixed beforehand. One coordinate moves the table by up to
    `2 clip` (`clip` for add-or-remove) in one cell of each row; what that amounts to beside the
    noise is computed from the round's hashes, before any data is seen.

    The claim is proven, for one coordinate and hashes that everybody knows. There is none where
    the padding is shorter than the table has cells, or leaves part of it without noise.

    The arguments of every `TableMethod`, and:

    Args:
        clip: Limit of a coordinate.
        padding: How many numbers are appended.
        std: Their standard deviation; must not come from private data.
        relation: Which data sets are neighbours.

    >>> from diffsketch.sketch import SketchKey
    >>> method = ProvenDiffSketch(7850, 7, 22, clip=1.645, padding=39_250, std=1.0)
    >>> print(method.claim_for(10, SketchKey.from_integer(0).seed(0)).epsilon(delta=1e-5, rounds=1))
    epsilon = 0.7619 at delta = 1e-05 over 1 round (proven, simulated; coordinate unit, \
replace, local trust)
    """

    padding: int
    clip: float
    std: float
    relation: Relation = Relation.REPLACE

    name: ClassVar[str] = "diffsketch-proven"
    code: ClassVar = 3

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, least=1)
        super().__post_init__()
        check_positive("clip", self.clip)
        check_positive("std", self.std)
        scope = Scope(Unit.COORDINATE, self.relation, Trust.LOCAL)  # checks, and converts names
        object.__setattr__(self, "relation", scope.relation)

    @property
    def _sketched(self) -> int:
        return self.dim + self.padding

    def mechanism(self, seed: HashSeed) -> PaddedGaussian:
        """Return the mechanism of a round, kept with its seed: the claim takes a factorisation."""
        if self not in seed.memo:
            bare = CountSketch(self.dim, self.rows, self.cols, self.family)
            seed.memo[self] = PaddedGaussian(
                bare, seed, CoordinateBound(self.clip), self.padding, self.std, self.relation
            )
        found: PaddedGaussian = seed.memo[self]
        return found

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim | NoClaim:  # noqa: ARG002
        return self.mechanism(seed).claim

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors with clipped coordinates."""
        return clip_coordinates(vectors, self.clip)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return Encoded(self.mechanism(seed).release(batch, noise))

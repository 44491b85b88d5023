"""The paper's appended noise, repaired into a mechanism with a proof.

The paper appends Gaussian numbers to the vector and sketches both together. For hashes that
everybody knows, with the vector clipped, the noise's standard deviation fixed beforehand and fresh
noise in each message, this is exactly Gaussian noise on the table: with `S_real` and `S_pad` the
parts of the sketch's matrix that meet the vector and the noise,

    table = S_real g + S_pad z  ~  N(S_real g, std^2 G),    G = S_pad S_pad'.

So two vectors that differ by d are told apart as well as two Gaussians of variance 1 at a distance
of `mu = sqrt(d' S_real' G^-1 S_real d) / std`, and not better.

*Two ways to draw it.* It is made so, `padding` numbers for each worker; or it is drawn from that
very distribution as `std L z`, with `L L' = G` and as many standard Gaussian numbers z as the table
has cells. L belongs to the round's hashes and is computed once for all workers.

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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_positive, check_whole
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import NoClaim, Relation, Scope, SimulatedClaim, Trust
from diffsketch.privacy.clipping import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.simulated_noise import Noise, float_type
from diffsketch.sketch.count_sketch import Combine, CountSketch, check_seed
from diffsketch.sketch.hashing import HashSeed, columns_and_signs

_Matrix: TypeAlias = npt.NDArray[np.float64]
_Apply: TypeAlias = Callable[[Tensor], Tensor]

# Nanoseconds, on a processor of 2.5 GHz: what appending numbers costs and what a factor does.
_APPENDED = 12  # to draw a number and to add it to all rows
_COUNTED = 1.1  # to count a coordinate, or a run of them, for two rows
_CELL = 30  # to write a number of G
_FACTORED = 0.012  # of a factorisation, times cells^3
_WORKERS = 10  # of a small cohort, who share a factor

EXACT_CELLS = 4096  # tables up to this size are factored: a dense matrix of 128 MiB
_GROUP = 1 << 24  # numbers of extended vectors that are there at a time: 64 MiB
_PIECE = 1 << 18  # coordinates that are hashed, or expanded from a table, at a time
_UNIT = 2.0**-53  # of rounding
_PROBES = 3
_WEIGHT = 1e-4  # that a probe may lack in the direction that is looked for
_ATTEMPTS = (1.0, 0.85, 0.6, 0.3)  # of the eigenvalue that is expected
# A Gaussian is below _WEIGHT in size with probability _WEIGHT * sqrt(2 / pi); for all probes:
_FAILURE = len(_ATTEMPTS) * (_WEIGHT * math.sqrt(2 / math.pi)) ** _PROBES


def gram(sketch: CountSketch, seed: HashSeed, start: int, stop: int) -> _Matrix:
    """`S S'` of the coordinates from `start` to `stop`, dense; whole numbers, hence exact."""
    from diffsketch.sketch import gram as counts  # at first use: it takes Numba

    return counts.gram(seed, sketch.layout, start, stop)


def factor(sketch: CountSketch, seed: HashSeed, start: int) -> Tensor | None:
    """L, lower triangular, with `L L' = G` for the coordinates from `start` on.

    It factors G up to `(cells + 1) unit trace(G)`, unit = 2^-53 (Higham, "Accuracy and Stability",
    theorem 10.3). None where G is singular, or so near to it that rounding hides whether it is.
    Kept with the seed where noise is drawn with it.
    """
    key = "factor", sketch, start
    if key in seed.memo:
        kept: Tensor | None = seed.memo[key]
        return kept
    result = _factor(gram(sketch, seed, start, sketch.dim))
    if is_factored(sketch, start):
        seed.memo[key] = result
    return result


def _factor(counts: _Matrix) -> Tensor | None:
    matrix = torch.from_numpy(counts)
    lower, info = torch.linalg.cholesky_ex(matrix)
    rounding = 16 * len(lower) * 2.0**-53 * float(matrix.trace())
    regular = info.item() == 0 and float(lower.diagonal().min()) ** 2 > rounding
    return lower if regular else None


def is_factored(sketch: CountSketch, start: int, stop: int | None = None) -> bool:
    """Whether noise in the coordinates from `start` on is cheaper to draw by a factor of G.

    By the sizes alone, for a cohort of ten, whoever takes part: a worker's noise must not depend
    on how many others there are.
    """
    rows, cells = sketch.rows, sketch.rows * sketch.cols
    padding = (sketch.dim if stop is None else stop) - start
    if padding < cells:
        return False  # G is singular
    geometry = sketch.layout.geometry
    units = padding if sketch.family == "pairwise" else min(padding, geometry.runs)
    counted = _COUNTED * units * rows * (rows + 1) / 2
    return counted + _CELL * cells**2 + _FACTORED * cells**3 < _WORKERS * _APPENDED * padding


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


def padded_tables(
    vectors: Tensor, sketch: CountSketch, *, seed: HashSeed, std: Tensor, noise: Noise
) -> Tensor:
    """Tables of `(workers, dim)` vectors, Gaussian numbers appended up to the sketch's length.

    Worker `i` appends numbers of standard deviation `std[i]`, from its own row of the noise.

    Guarantees (`tests/privacy/test_padding.py`): both ways have the same distribution, a worker's
    table is the same alone and in any batch, and which way is taken follows from the sizes and the
    hashes alone.
    """
    workers, dim = vectors.shape
    lower = factor(sketch, seed, dim) if is_factored(sketch, dim) else None
    if lower is not None:
        from diffsketch.sketch import gram as counts

        normals = noise.normal((workers, len(lower)), 1.0, dtype=torch.float64)
        products = torch.from_numpy(counts.products(lower.numpy(), normals.numpy()))
        drawn = products * std.cpu().double()[:, None]
        table = sketch.encode(vectors, seed, offset=0)
        return table + drawn.reshape(table.shape).to(table)
    tables = vectors.new_empty(workers, sketch.rows, sketch.cols)
    size = max(1, _GROUP // sketch.dim)  # workers whose vectors fit into memory
    for start in range(0, workers, size):
        some = slice(start, min(start + size, workers))
        own = noise if workers <= size else noise.part(torch.arange(some.start, some.stop))
        shape = some.stop - some.start, sketch.dim - dim
        appended = own.normal(shape, 1.0, dtype=vectors.dtype).to(vectors.device)
        appended *= std[some, None].to(appended)
        tables[some] = sketch.encode(torch.cat([vectors[some], appended], dim=-1), seed)
    return tables


def own_padded_tables(
    vectors: Tensor,
    sketch: CountSketch,
    lengths: Tensor,
    *,
    seed: HashSeed,
    std: Tensor,
    noise: Noise,
) -> Tensor:
    """`padded_tables` where worker `i` appends `lengths[i]` numbers, as many as there is room for.

    All have the hashes of the sketch's whole length, so that tables can be added up. G of a longer
    padding is that of a shorter one and of the numbers between: all workers' take one count.
    """
    dim, cells = vectors.shape[-1], sketch.rows * sketch.cols
    tables, drawn = sketch.encode(vectors, seed, offset=0), dict[int, Tensor]()
    order: list[int] = torch.argsort(lengths, stable=True).tolist()
    stops = {worker: dim + int(lengths[worker]) for worker in order}
    some = [worker for worker in order if is_factored(sketch, dim, stops[worker])]
    counts, counted = np.zeros((cells, cells)), dim
    if some:
        part = noise.part(torch.tensor(some))
        normals = part.normal((len(some), cells), 1.0, dtype=torch.float64)
        for worker, own in zip(some, normals, strict=True):
            if stops[worker] > counted:
                counts += gram(sketch, seed, counted, stops[worker])
            counted, lower = stops[worker], _factor(counts)
            if lower is not None:
                drawn[worker] = (lower @ own).reshape(sketch.rows, sketch.cols)
    for worker in order:
        if worker not in drawn and stops[worker] > dim:
            shape = 1, stops[worker] - dim
            appended = noise.part(torch.tensor([worker])).normal(shape, 1.0, dtype=vectors.dtype)
            drawn[worker] = sketch.encode(appended, seed, offset=dim)[0].double()
    for worker, table in drawn.items():
        tables[worker] += (table * float(std[worker])).to(tables)
    return tables


@dataclass(frozen=True)
class PaddedGaussian:
    """A clipped vector with `padding` Gaussian numbers appended, sketched under known hashes.

    The guarantee depends on the hashes, so there is one such object for each seed. With a
    `CoordinateBound`, or a `NormBound` of order 1, `mu = change / std * max_i sqrt(s_i' G^-1 s_i)`,
    where s_i is column i of S_real and `change` how much a unit may change the vector; with a
    `NormBound` of order 2, `mu = change / std * sqrt(lambda_max(G^-1 S_real S_real'))`. Clipping
    the vector is sound here, since what the sketch makes of it is computed and not assumed.

    Guarantees (`tests/privacy/test_padding.py`):
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
        # The farthest points of a ball in the L1 norm are on its axes: single coordinates.
        single = isinstance(self.bound, CoordinateBound) or self.bound.order == 1
        find = coordinate_reach if single else vector_reach
        reach = find(self.padded_sketch, self.seed, self.sketch.dim)
        if reach is None:
            return NoClaim(
                self._scope, "the appended noise could not be shown to cover the whole table"
            )
        order = self.bound.order if isinstance(self.bound, NormBound) else 2
        change = self.bound.sensitivity(order, self.relation)
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
    return GaussianMechanism(bound, cell / bound.sensitivity(2, relation), relation)

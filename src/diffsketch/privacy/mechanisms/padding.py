"""The paper's appended noise, repaired into a mechanism with a proof.

The paper appends Gaussian numbers to the vector and sketches both together. For hashes that
everybody knows, with the vector clipped, the noise's standard deviation fixed beforehand and fresh
noise in each message, this is exactly Gaussian noise on the table: with `S_real` and `S_pad` the
parts of the sketch's matrix that meet the vector and the noise,

    table = S_real g + S_pad z  ~  N(S_real g, std^2 G),    G = S_pad S_pad'.

So two vectors that differ by d are told apart as well as two Gaussians of variance 1 at a distance
of `mu = sqrt(d' S_real' G^-1 S_real d) / std`, and not better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import NoClaim, Relation, Scope, SimulatedClaim, Trust
from diffsketch.privacy.mechanisms.appended import padded_tables
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.spectrum import Reach, coordinate_reach, vector_reach
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.noise.arguments import float_type
from diffsketch.sketch.count_sketch import Combine, CountSketch, check_seed
from diffsketch.sketch.hashing import HashSeed

__all__ = ["PaddedGaussian", "table_noise_like_padding"]


@dataclass(frozen=True)
class PaddedGaussian:
    """A clipped vector with `padding` Gaussian numbers appended, sketched under known hashes.

    The guarantee depends on the hashes, so there is one such object for each seed. With a
    `CoordinateBound`, or a `NormBound` of order 1, `mu = change / std * max_i sqrt(s_i' G^-1 s_i)`,
    where s_i is column i of S_real and `change` how much a unit may change the vector; with a
    `NormBound` of order 2, `mu = change / std * sqrt(lambda_max(G^-1 S_real S_real'))`. Clipping
    the vector is sound here, since what the sketch makes of it is computed and not assumed.

    Guarantees (`tests/privacy/test_padding.py`):
        * what is released is the sketch of the extended vector, or has the distribution of it
          (`mechanisms.appended`), and its covariance is `std^2 G`;
        * mu is exact for tables of up to `spectrum.EXACT_CELLS` cells; above it is a bound that
          holds except with a probability below 1e-11 over the random numbers of the check, which
          the claim adds to delta.

    There is no claim where G is singular, as it is for `padding < rows * cols`: some combination of
    cells is then without noise.

    Args:
        sketch: For the vector without noise; `padded_sketch` is the one that is used.
        seed: The hashes.
        bound: How the vector is clipped, before it is sketched.
        padding: How many numbers are appended.
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
        if isinstance(self.padding, bool) or not isinstance(self.padding, int):
            raise ArgumentError(f"padding must be an int, got padding={self.padding!r}")
        check(self.padding >= 1, "padding", "be >= 1", self.padding)
        check(0 < self.std < math.inf, "std", "be > 0 and finite", self.std)
        if isinstance(self.bound, CoordinateBound) and self.bound.rows != 1:
            requirement = "bound.rows must be 1, since the vector is clipped and not the table"
            raise ArgumentError(f"{requirement}, got bound.rows={self.bound.rows}")
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
        """What one release guarantees. Computed once: it takes a factorisation."""
        cells = self.sketch.rows * self.sketch.cols
        if self.padding < cells:
            few = f"{self.padding} appended numbers leave {cells} cells partly without noise"
            return NoClaim(self._scope, few)
        reach = self._reach
        if reach is None:
            return NoClaim(
                self._scope, "the appended noise could not be shown to cover the whole table"
            )
        order = self.bound.order if isinstance(self.bound, NormBound) else 2
        change = self.bound.sensitivity(order, self.relation)
        event = events.gaussian(self.std / (change * math.sqrt(reach.squared)))
        if reach.failure > 0:
            event = events.composed(event, events.approximate(0.0, reach.failure))
        text = (
            f"{self.padding} Gaussian numbers of standard deviation {self.std:.4g}, appended to "
            "the vector before it is sketched,"
        )
        return SimulatedClaim(self._scope, event, text)

    @property
    def _reach(self) -> Reach | None:
        # The farthest points of a ball in the L1 norm are on its axes: single coordinates.
        single = isinstance(self.bound, CoordinateBound) or self.bound.order == 1
        reach = coordinate_reach if single else vector_reach
        return reach(self.padded_sketch, self.seed, self.sketch.dim)

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

    That is the standard deviation which `padding` appended numbers give a cell on average, but
    independent in all cells. It costs no more than the table, needs no computation for each seed,
    works for any `padding`, and its guarantee is a little stronger. For one coordinate, clipped to
    `[-limit, limit]`, it is `mu = change / std * sqrt(rows * cols / padding)`.
    """
    check(padding >= 1, "padding", "be >= 1", padding)
    check(0 < std < math.inf, "std", "be > 0 and finite", std)
    bound = CoordinateBound(limit, sketch.rows)
    cell = std * math.sqrt(padding / sketch.cols)
    return GaussianMechanism(bound, cell / bound.sensitivity(2, relation), relation)

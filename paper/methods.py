"""Methods of the paper that are no part of the library, by the names that runs have for them.

`diffsketch-reading` and `sketch-laplace-signed` are readings of the paper. "The 90th percentile
value of the gradient vector" may be that of the coordinates' sizes, which is what a bound needs and
what the library takes, or that of the coordinates themselves. And a worker whose claim falls short
may add "Laplacian or Gaussian noise" (Algorithm 2).

`diffsketch-proven` repairs the appended noise into a mechanism with a proof. The paper appends
Gaussian numbers to the vector and sketches both together. For hashes that everybody knows, with the
vector's coordinates clipped, the noise's standard deviation fixed beforehand and fresh noise in
each message, this is exactly Gaussian noise on the table (`diffsketch.privacy.theorems`), with the
covariance `std^2 G`. So two vectors that differ by d are told apart as well as two Gaussians of
variance 1 at a distance of `mu = sqrt(d' S_real' G^-1 S_real d) / std`, and not better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import check, check_positive, check_whole
from diffsketch.methods import DiffSketch, Encoded, SketchLaplace, register
from diffsketch.methods.plain import TableMethod
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.budget import gaussian_multiplier
from diffsketch.privacy.claim import NoClaim, Relation, Scope, SimulatedClaim, Trust, Unit
from diffsketch.privacy.clipping import clip_coordinates
from diffsketch.privacy.noise import Noise, float_type
from diffsketch.privacy.theorems import factor, padded_tables
from diffsketch.sketch import CountSketch, HashSeed
from diffsketch.sketch.hashing import columns_and_signs

COORDINATE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""The scope of the paper's epsilons, and of the repair of its padding."""
_DELTA = 1e-5  # of Gaussian noise
MOST_CELLS = 4096
"""Tables up to this size are factored: a dense matrix of 128 MiB. Of others nothing is proven."""
_UNIT = 2.0**-53  # of rounding


# --- readings ----------------------------------------------------------------------------


def signed_alpha(vectors: Tensor) -> Tensor:
    """Return the 90th percentile of each vector's coordinates (float64); 0 where it is negative."""
    percentiles = np.quantile(vectors.double().cpu().numpy(), 0.9, axis=-1)
    return torch.from_numpy(percentiles).clamp(min=0).to(vectors.device)


@register
@dataclass(frozen=True, kw_only=True)
class DiffSketchReading(DiffSketch):
    """DiffSketch with other readings of the paper: the arguments of `DiffSketch`, and two.

    Args:
        percentile: Whose 90th percentile alpha is: of the coordinates' sizes, or `signed`.
        added: `laplace`, or `gaussian`: noise for `per_round` at a delta of 1e-5, of a coordinate
            that alpha bounds. It moves a cell in each row, so a table by `2 alpha sqrt(rows)`.
            The paper gives neither a delta nor a sensitivity; both are our choice.
    """

    percentile: Literal["sizes", "signed"] = "sizes"
    added: Literal["laplace", "gaussian"] = "laplace"

    name: ClassVar[str] = "diffsketch-reading"
    code: ClassVar[Any] = None  # a hash of the name

    def __post_init__(self) -> None:
        super().__post_init__()
        known = self.percentile in ("sizes", "signed")
        check(known, "percentile", "be sizes or signed", self.percentile)
        check(self.added in ("laplace", "gaussian"), "added", "be laplace or gaussian", self.added)

    def _alpha_and_sigma(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        alpha, sigma = super()._alpha_and_sigma(batch)
        return alpha if self.percentile == "sizes" else signed_alpha(batch), sigma

    def _noise_share(self, claimed: Tensor) -> Tensor | float:
        return 0.0 if self.added == "gaussian" else super()._noise_share(claimed)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        encoded = super()._encode(batch, seed, noise)
        if self.added == "laplace" or encoded.noised is None:
            return encoded
        tables, (alpha, _) = encoded.messages, self._alpha_and_sigma(batch)
        # As `add_laplace`: where nine coordinates in ten are zero, the largest stands in.
        alpha = torch.where(alpha > 0, alpha, batch.abs().amax(dim=-1).double())
        multiplier = gaussian_multiplier(epsilon=self.per_round, delta=_DELTA, rounds=1)
        scales = 2 * math.sqrt(self.rows) * multiplier * alpha * encoded.noised
        drawn = noise.normal(tuple(tables.shape), 1.0, dtype=tables.dtype).to(tables.device)
        scales = scales.to(tables.dtype).reshape(-1, *(1,) * (tables.dim() - 1))
        return replace(encoded, messages=torch.addcmul(tables, drawn, scales))


@register
@dataclass(frozen=True, kw_only=True)
class SignedSketchLaplace(SketchLaplace):
    """Laplace noise on tables by a signed alpha: arguments of `SketchLaplace`, but no clip."""

    name: ClassVar[str] = "sketch-laplace-signed"
    code: ClassVar[Any] = None  # a hash of the name

    def __post_init__(self) -> None:
        super().__post_init__()
        check(self.clip is None, "clip", "not be given with a signed alpha", self.clip)

    def _alpha(self, batch: Tensor) -> Tensor:
        return signed_alpha(batch)


# --- the appended noise, repaired ---------------------------------------------------------


def coordinate_reach(sketch: CountSketch, seed: HashSeed, dim: int) -> float | None:
    """The most of `s_i' G^-1 s_i` over the first `dim` coordinates, if the others are noise.

    `s_i` is column i of the sketch's matrix. Exact, up to rounding, which is added. None if no
    bound is found, as where G is singular or nearly so.
    """
    cells = sketch.rows * sketch.cols
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
    columns, signs = columns_and_signs(np.arange(dim), seed, layout=sketch)
    cells_of = columns + np.arange(sketch.rows)[:, None] * sketch.cols  # (rows, dim)
    blocks = inverse[cells_of[:, None], cells_of]  # (rows, rows, dim)
    largest = float(np.einsum("ji,ki,jki->i", signs, signs, blocks).max())
    return largest + 4 * margin * size * sketch.rows


@register
@dataclass(frozen=True, kw_only=True)
class ProvenDiffSketch(TableMethod):
    """Algorithm 2 with its appended noise repaired, which makes it a Gaussian mechanism.

    The vector's coordinates are clipped to `[-clip, clip]`, and `padding` numbers of standard
    deviation `std` are appended, both fixed beforehand. One coordinate moves the table by up to
    `2 clip` in one cell of each row; what that amounts to beside the noise is computed from the
    round's hashes, before any data is seen: `mu = 2 clip / std * max_i sqrt(s_i' G^-1 s_i)`.

    The claim is proven, for one coordinate and hashes that everybody knows. There is none where
    the padding is shorter than the table has cells, or leaves part of it without noise, and none
    for tables of more than `MOST_CELLS` cells.

    Guarantees (`paper/tests/test_repaired.py`): what is sent is the sketch of the extended vector,
    or has the distribution of it; mu is exact.

    The arguments of every `TableMethod`, and:

    Args:
        clip: Limit of a coordinate.
        padding: How many numbers are appended.
        std: Their standard deviation; must not come from private data.

    >>> from diffsketch.sketch import SketchKey
    >>> method = ProvenDiffSketch(7850, 7, 22, clip=1.645, padding=39_250, std=1.0)
    >>> print(method.claim_for(10, SketchKey.from_integer(0).seed(0)).epsilon(delta=1e-5, rounds=1))
    epsilon = 0.7619 at delta = 1e-05 over 1 round (proven, simulated; coordinate unit, \
replace, local trust)
    """

    padding: int
    clip: float
    std: float

    name: ClassVar[str] = "diffsketch-proven"
    code: ClassVar = 3

    def __post_init__(self) -> None:
        check_whole("padding", self.padding, least=1)
        super().__post_init__()
        check_positive("clip", self.clip)
        check_positive("std", self.std)

    @property
    def _sketched(self) -> int:
        return self.dim + self.padding

    def _claim_for(self, present: int, seed: HashSeed) -> SimulatedClaim | NoClaim:  # noqa: ARG002
        if self not in seed.memo:  # kept with its seed, as it takes a factorisation
            seed.memo[self] = self._claim(seed)
        claim: SimulatedClaim | NoClaim = seed.memo[self]
        return claim

    def _claim(self, seed: HashSeed) -> SimulatedClaim | NoClaim:
        cells = self.rows * self.cols
        if self.padding < cells:
            few = f"{self.padding} appended numbers leave {cells} cells partly without noise"
            return NoClaim(COORDINATE, few)
        if cells > MOST_CELLS:
            return NoClaim(COORDINATE, f"a table of {cells} cells is too large to factor its noise")
        reach = coordinate_reach(self.sketch, seed, self.dim)
        if reach is None:
            return NoClaim(
                COORDINATE, "the appended noise could not be shown to cover the whole table"
            )
        event = events.gaussian(self.std / (2 * self.clip * math.sqrt(reach)))
        text = (
            f"{self.padding} Gaussian numbers of standard deviation {self.std:.4g}, appended to "
            "the vector before it is sketched,"
        )
        return SimulatedClaim(COORDINATE, event, text)

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors with clipped coordinates."""
        return clip_coordinates(vectors, self.clip)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        float_type("std", self.std, batch.dtype)  # noise that rounds to 0 would be none
        std = torch.full((len(batch),), self.std, dtype=torch.float64)
        clipped = clip_coordinates(batch, self.clip)
        return Encoded(padded_tables(clipped, self.sketch, seed=seed, std=std, noise=noise))

"""The paper's second baseline: Laplace noise on the sketch, every round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from diffsketch.methods.base import Encoded
from diffsketch.methods.paper import LaplaceBaseline, add_laplace
from diffsketch.methods.sketch import TableMethod, largest_table
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.paper.theorem1 import estimate_alpha
from diffsketch.sketch.hashing import HashSeed

__all__ = ["SketchLaplace"]


@dataclass(frozen=True, kw_only=True)
class SketchLaplace(LaplaceBaseline, TableMethod):
    """Laplace noise on every cell of the table: Algorithm 2 without its Theorem 1.

    * Compression: the table of the vector (of the clipped one, if there is a `clip`).
    * Validation: always adds noise. One coordinate is in one cell of each row, so its sensitivity
      is `2 alpha rows`, and the scale `2 alpha rows / per_round`.
    * Aggregation and query: the sum; the query of the mean table.

    With `clip=None`, alpha is each vector's own 90th percentile, as in the paper: no bound, and so
    a claim without proof. With a number, coordinates are clipped to `[-clip, clip]` and the claim
    is proven, for one coordinate; hashes need not be secret for it.

    Args:
        dim: Length of the vectors.
        rows: Rows of the table. One row needs the least noise.
        cols: Columns of the table.
        per_round: Epsilon of one message.
        clip: Limit of a coordinate, or None for the paper's reading.
        family: Of the hashes.
        combine: How the rows' estimates become one.
    """

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "sketch-laplace"
    _noised: ClassVar[str] = "sketches"

    @property
    def _cells_each(self) -> int:
        return self.rows

    @property
    def _largest(self) -> float:
        return largest_table(self.dim, self.rows)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        def encode(vectors: Tensor) -> Tensor:
            return self.sketch.encode(vectors, seed)

        if self.mechanism is not None:
            return Encoded(self.mechanism.release(batch, noise, encode=encode))
        noisy = add_laplace(
            encode(batch), batch, noise,
            alpha=estimate_alpha(batch), rows=self.rows, per_round=self.per_round,
        )  # fmt: skip
        return Encoded(noisy)

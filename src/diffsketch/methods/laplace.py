"""The paper's first baseline: Laplace noise on the raw vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.methods.base import Encoded, mean_of
from diffsketch.methods.paper import LaplaceBaseline, add_laplace
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.paper.theorem1 import estimate_alpha
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["RawLaplace"]


@dataclass(frozen=True)
class RawLaplace(LaplaceBaseline):
    """Laplace noise on every coordinate, and no compression: Algorithm 2 without its sketch.

    * Compression: none.
    * Validation: always adds noise. Sensitivity of one coordinate: `2 alpha`, so the scale is
      `2 alpha / per_round`.
    * Aggregation and query: the sum, over the number of workers.

    With `clip=None`, alpha is each vector's own 90th percentile, as in the paper: no bound, and so
    a claim without proof. With a number, coordinates are clipped to `[-clip, clip]`, the
    sensitivity `2 clip` is one, and the claim is proven: pure epsilon for one coordinate.

    Args:
        dim: Length of the vectors.
        per_round: Epsilon of one message.
        clip: Limit of a coordinate, or None for the paper's reading.

    >>> from diffsketch.sketch import SketchKey
    >>> seed = SketchKey.from_integer(0).seed(0)
    >>> print(RawLaplace(100, per_round=0.5, clip=1.0).claim_for(10, seed))
    ... # doctest: +NORMALIZE_WHITESPACE
    Proven: Laplace noise of scale 4 on what is sent limits how well anyone who sees a client's
    message can tell which of two values one coordinate of a vector has.
    """

    per_round: float
    clip: float | None = None

    name: ClassVar[str] = "laplace"
    _noised: ClassVar[str] = "raw vectors"

    @cached_property
    def message_format(self) -> MessageFormat:
        """`dim` numbers in float32."""
        return MessageFormat(self.name, self.dim, (self.dim,), "float32", 32)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        if self.mechanism is not None:
            return Encoded(self.mechanism.release(batch, noise, batch=True))
        alpha = estimate_alpha(batch)
        return Encoded(
            add_laplace(batch, batch, noise, alpha=alpha, rows=1, per_round=self.per_round)
        )

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return mean_of(total, count, out)

"""The paper's first baseline: Laplace noise on the raw vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor

from diffsketch.errors import check_positive
from diffsketch.methods.base import Encoded, Method
from diffsketch.methods.paper import add_laplace, paper_claim
from diffsketch.privacy.claim import PaperClaim, ProvenClaim
from diffsketch.privacy.mechanisms import CoordinateBound, LaplaceMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.privacy.paper.theorem1 import estimate_alpha
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["RawLaplace"]


@dataclass(frozen=True)
class RawLaplace(Method):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("per_round", self.per_round)
        if self.clip is not None:
            check_positive("clip", self.clip)

    @cached_property
    def message_format(self) -> MessageFormat:
        """`dim` numbers in float32."""
        return MessageFormat(self.name, self.dim, (self.dim,), "float32", 32)

    @cached_property
    def mechanism(self) -> LaplaceMechanism | None:
        """What clips and adds noise; None for the paper's reading."""
        if self.clip is None:
            return None
        return LaplaceMechanism(CoordinateBound(self.clip), 1 / self.per_round)

    @cached_property
    def _claim(self) -> ProvenClaim | PaperClaim:
        if self.mechanism is not None:
            return self.mechanism.claim
        return paper_claim(self.per_round, "the paper's Laplace noise on raw vectors")

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim | PaperClaim:  # noqa: ARG002
        return self._claim

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:  # noqa: ARG002
        if self.mechanism is not None:
            return Encoded(self.mechanism.release(batch, noise, batch=True))
        alpha = estimate_alpha(batch)
        return Encoded(
            add_laplace(batch, batch, noise, alpha=alpha, rows=1, per_round=self.per_round)
        )

    def _decode(self, total: Tensor, seed: HashSeed, count: int) -> Tensor:  # noqa: ARG002
        return (total / count).float()

"""What the paper's methods share: its alpha, its sensitivities, and noise that fits them.

The paper "assume[s] that the input gradients are bounded by a constant alpha with a 90%
probability" and takes the 90th percentile of each worker's own vector for it. One coordinate whose
value is replaced by another then moves a cell by at most `2 alpha`, and the whole message, in the
L1 norm, by

    2 alpha          for a raw vector,
    2 alpha rows     for a table, where it is in one cell of each row.

Laplace noise has the scale `sensitivity / per_round`. Since one coordinate in ten exceeds alpha,
and alpha comes from the private vector, these are no sensitivities, and what follows from them is
claimed and not proven.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.errors import check_positive
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import (
    Basis,
    Epsilon,
    PaperClaim,
    ProvenClaim,
    Relation,
    Scope,
    Trust,
    Unit,
)
from diffsketch.privacy.mechanisms import CoordinateBound, LaplaceMechanism
from diffsketch.privacy.mechanisms.tails import noise_norm
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed

__all__ = ["SCOPE", "LaplaceBaseline", "add_laplace", "paper_claim"]

SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""What the paper's epsilons are about."""


def paper_claim(per_round: float, source: str) -> PaperClaim:
    """An epsilon that the paper claims for each round."""
    return PaperClaim(SCOPE, Epsilon(per_round, 0.0, 1, Basis.CLAIMED, SCOPE), source)


class LaplaceBaseline(Method):
    """What the paper's two baselines share: Laplace noise by its alpha, or by a clip.

    With `clip=None`, alpha is each vector's own 90th percentile, and the claim is the paper's. With
    a number, coordinates are clipped to `[-clip, clip]`, and the claim is proven.
    """

    # Fields of the dataclasses that inherit, in the order and by the names that they choose.
    per_round: float
    clip: float | None
    _noised: ClassVar[str]  # what is sent, in words

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("per_round", self.per_round)
        if self.clip is not None:
            check_positive("clip", self.clip)

    @property
    def _cells_each(self) -> int:
        """In how many cells of a message each coordinate is."""
        return 1

    @cached_property
    def mechanism(self) -> LaplaceMechanism | None:
        """What clips and adds noise; None for the paper's reading."""
        if self.clip is None:
            return None
        return LaplaceMechanism(CoordinateBound(self.clip, self._cells_each), 1 / self.per_round)

    @cached_property
    def _claim(self) -> ProvenClaim | PaperClaim:
        if self.mechanism is not None:
            return self.mechanism.claim
        return paper_claim(self.per_round, f"the paper's Laplace noise on {self._noised}")

    @property
    def _largest(self) -> float:
        """Norm of a message without its noise, for coordinates of 1 at most."""
        return math.sqrt(self.dim)

    def _message_norm(self, failure: float) -> float:
        if self.mechanism is None or self.clip is None:
            return math.inf
        scale, cells = self.mechanism.scale, math.prod(self.message_format.shape)
        noise = noise_norm(cells, 2 * scale**2, failure, log_tail=lambda room: -room / scale)
        return self.clip * self._largest + noise

    def _claim_for(self, present: int, seed: HashSeed) -> ProvenClaim | PaperClaim:  # noqa: ARG002
        return self._claim


def add_laplace(
    messages: Tensor, vectors: Tensor, noise: Noise, *, alpha: Tensor, rows: int, per_round: float
) -> Tensor:
    """Messages `(workers, ...)` with Laplace noise of scale `2 alpha rows / per_round`.

    A vector with nine zeros in ten has an alpha of 0, and would get no noise at all by the paper's
    rule. Its largest coordinate stands in for alpha then (this is our reading; zeros stay as they
    are).

    Args:
        messages: One for each vector.
        vectors: `(workers, dim)`.
        noise: With a row for each of them.
        alpha: Of each vector, float64.
        rows: In which a coordinate is: 1 for raw vectors.
        per_round: The epsilon that is claimed.
    """
    if float(alpha.min()) == 0:
        alpha = torch.where(alpha > 0, alpha, vectors.abs().amax(dim=-1).double())
    scales = (alpha * (2 * rows / per_round)).to(messages.dtype)
    drawn = noise.laplace(tuple(messages.shape), 1.0, dtype=messages.dtype).to(messages.device)
    return torch.addcmul(messages, drawn, scales.reshape(-1, *(1,) * (messages.dim() - 1)))

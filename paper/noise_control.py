"""A control for methods whose rounds learn: noise in the place of what they publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.methods.base import Encoded, Method
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat


@dataclass(frozen=True)
class NoiseControl(Method):
    """A control: another method whose published sum is replaced by Gaussian noise of its norm.

    Nothing of the vectors but that norm is left in what it decodes to. What still learns with it
    does not learn from the messages. The method's claim holds: the norm is one of what it
    publishes.

    Args:
        dim: Length of the vectors.
        inner: The method that is replaced.
    """

    name: ClassVar[str] = "noise-control"
    inner: Method

    def __post_init__(self) -> None:
        super().__post_init__()
        moves = self.inner.round_clip is not None
        check(not moves, "inner", "have no clip or limit that moves", self.inner)

    @property
    def message_format(self) -> MessageFormat:
        """Format of the inner method's messages."""
        return self.inner.message_format

    @property
    def total_format(self) -> MessageFormat:
        """Format of the inner method's sums."""
        return self.inner.total_format

    def sum_bits(self, count: int) -> int:
        """Bits of the inner method's sums."""
        return self.inner.sum_bits(count)

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """Noise with the norm of what the method publishes.

        Its own noise is in there first: the norm of a sum without it would tell something.
        """
        total = self.inner.publish(total, noise)
        form = self.total_format
        if form.cells == "unsigned":
            raise ArgumentError("inner must not publish sums modulo 2**bits: they have no norm")
        drawn = noise.normal((1, *total.shape), 1.0, dtype=torch.float32)[0].to(total.device)
        factor: Tensor = torch.linalg.vector_norm(total.float()) / torch.linalg.vector_norm(drawn)
        if form.cells == "float32":
            return drawn * factor
        low, end = form.limits
        return (drawn * factor).round().long().clamp(low, end - 1)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:
        return self.inner.claim_for(present, seed)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return self.inner.encode(batch, seed, noise)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        return self.inner.decode(total, seed, count=count, out=out)

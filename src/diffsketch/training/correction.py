"""The paper's error correction for distributed SGD: an ablation, and not private."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.methods.base import Encoded, Method, fitted
from diffsketch.privacy.claim import Claim, NoClaim
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import HEADER_BYTES, MessageFormat

Correction: TypeAlias = Literal["off", "shared", "drift"]


def check_correction(correction: str) -> None:
    """Raise an `ArgumentError` unless it is one of the readings."""
    options = get_args(Correction)
    check(correction in options, "correction", f"be one of {options}", correction)


def kept_half(mean: Tensor, vectors: Tensor) -> Tensor:
    """For each worker which coordinates of the queried mean it keeps: those nearest to its own.

    Args:
        mean: `(dim,)`, as queried.
        vectors: `(workers, dim)`, the workers' own.

    Returns:
        `(workers, dim)`, bool; `dim // 2` are False in each row.

    >>> kept_half(torch.tensor([1.0, 1.0, 1.0, 1.0]), torch.tensor([[1.0, 9.0, 0.9, -3.0]]))
    tensor([[ True, False,  True, False]])
    """
    gaps = (vectors - mean).abs()
    # Stable, so that equal gaps are the same ones on every device.
    far = gaps.argsort(dim=-1, descending=True, stable=True)[..., : mean.shape[-1] // 2]
    return torch.ones_like(gaps, dtype=torch.bool).scatter_(-1, far, False)


def corrected(mean: Tensor, vectors: Tensor, correction: Correction) -> Tensor:
    """The mean times the mean mask, `(dim,)`; or, to drift, times each own mask `(workers, dim)`.

    A worker whose vector is not finite has no mask: it is left out of the mean mask, and applies
    the mean as it is.
    """
    kept = kept_half(mean, vectors)
    finite = torch.isfinite(vectors).all(dim=-1, keepdim=True)
    if correction == "shared":
        return mean * ((kept & finite).sum(dim=0) / finite.sum()).to(mean.dtype)
    return mean * (kept | ~finite)


def mask_bytes(dim: int, workers: int) -> tuple[int, int]:
    """What one worker's mask costs, and what their sum does: headers included.

    A mask is a bit for each coordinate; a sum of masks takes the bits that a count of the workers
    takes.

    >>> mask_bytes(7850, 10)
    (1030, 3973)
    """
    own, total = dim, dim * workers.bit_length()
    return HEADER_BYTES + -(-own // 8), HEADER_BYTES + -(-total // 8)


def relative_drift(weights: Tensor) -> float:
    """How far workers' models `(workers, dim)` are from their mean, on average, over its norm."""
    mean = weights.mean(dim=0)
    distances = torch.linalg.vector_norm(weights - mean, dim=-1)
    norm = torch.linalg.vector_norm(mean)
    return float(distances.mean() / norm) if float(norm) > 0 else 0.0


def drift_of(weights: Tensor) -> float | None:
    """`relative_drift` of models `(workers, dim)`; None where workers share one `(dim,)`."""
    return relative_drift(weights) if weights.dim() == 2 else None


def without_claim(claim: Claim) -> NoClaim:
    """What is left of a claim if masks are used."""
    return NoClaim(claim.scope, "the mask of the error correction carries the raw gradients")


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

    @property
    def message_format(self) -> MessageFormat:
        """That of the method."""
        return self.inner.message_format

    @property
    def total_format(self) -> MessageFormat:
        """That of the method."""
        return self.inner.total_format

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
        scaled = drawn * factor
        return scaled if form.cells == "float32" else fitted(scaled.round().long(), form)

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:
        return self.inner.claim_for(present, seed)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return self.inner.encode(batch, seed, noise)

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        return self.inner.decode(total, seed, count=count, out=out)

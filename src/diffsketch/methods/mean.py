"""A private mean in one call: the paper's framework for any vectors, learning or not."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.methods.base import Method
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import CohortNoise, Noise, NoiseKey
from diffsketch.sketch.hashing import SketchKey

__all__ = ["SERVER_NOISE", "PrivateMean", "private_mean"]

SERVER_NOISE = 1 << 62
"""The number of the worker whose noise is the server's."""


@dataclass(frozen=True, eq=False)
class PrivateMean:
    """An estimated mean, and what it cost.

    Attributes:
        mean: `(dim,)`, float32.
        claim: What the round guarantees; its `epsilon` says how much, and on which basis.
        count: Vectors that went into it.
        message_bytes: Of each message on the wire, header included.
        total_bytes: Of the published sum, header included.
    """

    mean: Tensor
    claim: Claim
    count: int
    message_bytes: int
    total_bytes: int

    @property
    def bytes_up(self) -> int:
        """Of all messages."""
        return self.count * self.message_bytes


def private_mean(
    vectors: Tensor,
    method: Method,
    *,
    key: SketchKey,
    noise: NoiseKey | Noise,
    round_index: int = 0,
) -> PrivateMean:
    """The mean of `(holders, dim)` vectors, as a server learns it that sees no vector.

    Every holder encodes its own vector, the messages are summed, and the sum is decoded: what
    happens on many machines, here on one.

    Args:
        vectors: One in each row, finite.
        method: How vectors become messages.
        key: The holders' common secret, which the round's hashes come from.
        noise: For simulation a key, from which each holder gets noise of its own; or a source for
            all of them, such as `SecureNoise` for methods with whole numbers.
        round_index: Must be another one each time with the same keys, or hashes and noise repeat.

    Raises:
        ArgumentError: A value is not finite (the error names the rows), or of another type.
        MismatchError: The vectors have another length than the method's.

    >>> import torch
    >>> from diffsketch.methods import SketchGaussian
    >>> method = SketchGaussian(
    ...     dim=500, rows=1, cols=100, clip=1.0, noise_multiplier=2.0, trust="central"
    ... )
    >>> vectors = torch.full((1000, 500), 0.04)
    >>> found = private_mean(
    ...     vectors, method, key=SketchKey.from_integer(1), noise=NoiseKey.from_integer(1)
    ... )
    >>> found.mean.shape, found.message_bytes
    (torch.Size([500]), 448)
    >>> print(found.claim.epsilon(delta=1e-5, rounds=1))
    epsilon = 1.994 at delta = 1e-05 over 1 round (proven; client unit, replace, central trust)
    """
    if not isinstance(method, Method):
        raise ArgumentError(f"method must be a Method, got {type(method).__name__}")
    if not isinstance(key, SketchKey):
        raise ArgumentError(f"key must be a SketchKey, got {type(key).__name__}")
    if not isinstance(vectors, Tensor) or vectors.dim() != 2:
        found = tuple(vectors.shape) if isinstance(vectors, Tensor) else type(vectors).__name__
        raise ArgumentError(f"vectors must be a tensor (holders, dim), got {found}")
    count, seed = len(vectors), key.seed(round_index)
    check(count >= 1, "vectors", "have one row or more", tuple(vectors.shape))
    own, server = _sources(noise, count, round_index)
    claim = method.claim_for(count, seed)
    messages = method.encode(vectors, seed, own).messages
    total = method.publish(messages.sum(dim=0), server)
    mean = method.decode(total, seed, count=count)
    return PrivateMean(
        mean, claim, count, method.message_format.wire_bytes, method.total_format.wire_bytes
    )


def _sources(noise: NoiseKey | Noise, count: int, round_index: int) -> tuple[Noise, Noise]:
    """The holders' noise, and the server's."""
    if isinstance(noise, Noise):
        return noise, noise
    if not isinstance(noise, NoiseKey):
        raise ArgumentError(f"noise must be a NoiseKey or a Noise, got {type(noise).__name__}")
    holders = CohortNoise(noise, range(count), round_index=round_index)
    return holders, CohortNoise(noise, [SERVER_NOISE], round_index=round_index)

"""The protocol: a private, compressed mean of distributed vectors.

    message = method.encode(vector, seed, noise)     at each worker
    total   = message + message + ...                a sum: all that an engine does
    total   = method.publish(total, noise)           at the server: adds noise if it is trusted
    mean    = method.decode(total, seed, count=...)  at whoever has the seed

All of a method's numbers are fixed beforehand, in one frozen object, from which the clipping, the
noise and the claim come. What depends on the round is the seed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

__all__ = ["Encoded", "Method"]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Messages, and what their workers know about their own privacy and keep to themselves.

    Attributes:
        messages: `(workers, *shape)`, or `(*shape)` of a single worker: float32, or whole numbers
            (int64).
        claimed: For methods that validate by Theorem 1: the epsilon that it claims for each
            worker's bare message (float64; claimed, for one coordinate and one round), infinite
            where it claims nothing. It depends on private data, so it stays with the worker.
        noised: For the same methods: which workers had to add noise (bool).
    """

    messages: Tensor
    claimed: Tensor | None = None
    noised: Tensor | None = None


@dataclass(frozen=True)
class Method(ABC):
    """A way to compute a mean of vectors with `dim` coordinates.

    Guarantees, for every method (`tests/methods/test_contract.py`): a batch is encoded as its
    vectors would be one by one; sums of messages, in any order, decode to an estimate of the mean
    with the error that the method states or is known for; messages survive the wire; the claim is
    about what was sent; bad input is refused before anything is released.
    """

    name: ClassVar[str]
    dim: int

    def __post_init__(self) -> None:
        if isinstance(self.dim, bool) or not isinstance(self.dim, int):
            raise ArgumentError(f"dim must be an int, got dim={self.dim!r}")
        check(self.dim >= 1, "dim", "be >= 1", self.dim)

    @property
    @abstractmethod
    def message_format(self) -> MessageFormat:
        """Of one worker's message."""

    @property
    def total_format(self) -> MessageFormat:
        """Of the published sum, which the server sends back. The same, where nothing else is said.

        Whole numbers may need more bits for a sum that does not wrap.
        """
        return self.message_format

    @property
    def wire_bytes(self) -> int:
        """What one message costs, header included."""
        return self.message_format.wire_bytes

    @property
    def compression(self) -> float:
        """Bytes of the vector as float32, over the bytes of a message with its header."""
        return 4 * self.dim / self.wire_bytes

    @abstractmethod
    def claim_for(self, present: int, seed: HashSeed) -> Claim:
        """What one round guarantees if so many workers contributed.

        Known before the round: it depends on the hashes for some methods, on the number of workers
        for methods under a secure sum, and never on the vectors.
        """

    @abstractmethod
    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        """The message of `(dim,)`, or one for each of `(workers, dim)`, float32 or float64.

        Args:
            vectors: Must be finite; whoever drives the rounds decides what becomes of a worker
                whose vector is not.
            seed: The round's hashes, known to all workers.
            noise: For a batch with a row for each worker, such as `CohortNoise`.

        Raises:
            ArgumentError: A value is not finite, or of another type.
            MismatchError: The vectors have another length.
        """

    def publish(self, total: Tensor, noise: Noise) -> Tensor:  # noqa: ARG002
        """What the server makes known of the sum: the sum itself, unless it adds the noise."""
        return total

    @abstractmethod
    def decode(self, total: Tensor, seed: HashSeed, *, count: int) -> Tensor:
        """An estimate `(dim,)` of the mean from the published sum of `count` messages."""

    def _check_vectors(self, vectors: Tensor) -> None:
        """Type, shape and finite values."""
        if not isinstance(vectors, Tensor) or vectors.dtype not in (torch.float32, torch.float64):
            kind = vectors.dtype if isinstance(vectors, Tensor) else type(vectors).__name__
            raise ArgumentError(f"vectors must be a float32 or float64 tensor, got {kind}")
        if not 1 <= vectors.dim() <= 2 or vectors.shape[-1] != self.dim:
            raise MismatchError(
                f"vectors must be (dim,) or (workers, dim) with dim={self.dim}, "
                f"got {tuple(vectors.shape)}"
            )
        # A sum is finite only if its terms are; large ones may overflow, so look again then.
        sums = vectors.sum(dim=-1)
        if not bool(torch.isfinite(sums).all()) and not bool(torch.isfinite(vectors).all()):
            raise ArgumentError("vectors must be finite, got NaN or infinity among them")

    def _check_total(self, total: Tensor, count: int) -> None:
        if isinstance(count, bool) or not isinstance(count, int):
            raise ArgumentError(f"count must be an int, got {type(count).__name__}")
        check(count >= 1, "count", "be >= 1", count)
        if tuple(total.shape) != self.total_format.shape:
            shape = self.total_format.shape
            raise MismatchError(f"total must have the shape {shape}, got {tuple(total.shape)}")

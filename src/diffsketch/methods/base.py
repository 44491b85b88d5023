"""The protocol: a private, compressed mean of distributed vectors.

    message = method.encode(vector, seed, noise)     at each worker
    total   = message + message + ...                a sum: all that an engine does
    total   = method.publish(total, noise)           at the server: adds noise if it is trusted
    mean    = method.decode(total, seed, count=...)  at whoever has the seed

All of a method's numbers are fixed beforehand, in one frozen object, from which the clipping, the
noise and the claim come. What depends on the round is the seed.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, MismatchError, check_whole
from diffsketch.privacy.claim import Claim
from diffsketch.privacy.noise import Noise
from diffsketch.sketch.count_sketch import check_seed
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.errors import WireError
from diffsketch.wire.formats import MessageFormat

__all__ = [
    "FALSE_REFUSAL",
    "Encoded",
    "Method",
    "check_out",
    "check_sums",
    "fitted",
    "is_finite",
    "mean_of",
]

FALSE_REFUSAL = 1e-9
"""Largest probability that an honest message is refused for its norm."""

_NAMED = 5  # rows that an error lists
_SLACK = 1e-6  # relative: what rounding to float32 may add to a norm


@dataclass(frozen=True, eq=False)
class Encoded:
    """Messages, and what their workers know about their own privacy and keep to themselves.

    Attributes:
        messages: `(workers, *shape)`, or `(*shape)` of a single worker: float32, or whole numbers
            (int64). May be the caller's vectors themselves: do not write into them.
        claimed: For methods that validate by Theorem 1: the epsilon that it claims for each
            worker's bare message (float64; claimed, for one coordinate and one round), infinite
            where it claims nothing. It depends on private data, so it stays with the worker.
        noised: For the same methods: which workers had to add noise (bool).
    """

    messages: Tensor
    claimed: Tensor | None = None
    noised: Tensor | None = None

    def single(self) -> Encoded:
        """Of a batch of one: the message without the dimension of the workers."""
        claimed = None if self.claimed is None else self.claimed[0]
        noised = None if self.noised is None else self.noised[0]
        return Encoded(self.messages[0], claimed, noised)


@dataclass(frozen=True)
class Method(ABC):
    """A way to compute a mean of vectors with `dim` coordinates.

    Guarantees, for every method (`tests/methods/test_contract*.py`): a batch is encoded as its
    vectors would be one by one; sums of messages, in any order, decode to an estimate of the mean
    with the error that the method states or is known for; messages survive the wire; the claim is
    about what was sent; bad input is refused before anything is released.
    """

    name: ClassVar[str]
    dim: int

    def __post_init__(self) -> None:
        check_whole("dim", self.dim, least=1)

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
    def round_clip(self) -> float | None:
        """The round's clip, for methods that find it as they go (`after`); None for the others."""
        return None

    def at_clip(self, clip: float) -> Self:
        """The same method in a round with this clip.

        Raises:
            ArgumentError: The method has no clip that changes, or this is none.
        """
        raise ArgumentError(f"method={self.name!r} has no clip that changes, got clip={clip!r}")

    def after(self, total: Tensor, *, count: int | float) -> Self:  # noqa: ARG002
        """The method of the next round, from this one's published sum: the same, for most.

        Whoever follows what is published computes the same.

        Args:
            total: The published sum.
            count: How many messages are in it, or are expected to be.
        """
        return self

    @property
    def most_messages(self) -> int | None:
        """How many messages a sum can have; None where it does not matter."""
        return None

    def sum_bits(self, count: int) -> int:  # noqa: ARG002
        """Bits of a cell of a sum of so many messages, and of the noise that is added to it."""
        return self.total_format.bits

    @property
    def exact(self) -> bool:
        """Whether messages are whole numbers, whose noise `SecureNoise` draws exactly."""
        return self.message_format.cells != "float32"

    @property
    def wire_bytes(self) -> int:
        """What one message costs, header included."""
        return self.message_format.wire_bytes

    @property
    def compression(self) -> float:
        """Bytes of the vector as float32, over the bytes of a message with its header."""
        return 4 * self.dim / self.wire_bytes

    def claim_for(self, present: int, seed: HashSeed) -> Claim:
        """What one round guarantees if so many workers contributed.

        Known before the round: it depends on the hashes for some methods, on the number of workers
        for methods under a secure sum, and never on the vectors.
        """
        check_whole("present", present, least=1)
        check_seed(seed)
        return self._claim_for(present, seed)

    def encode(self, vectors: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        """The message of `(dim,)`, or one for each of `(workers, dim)`, float32 or float64.

        Vectors are taken as float32, as most messages are.

        Args:
            vectors: Must be finite; whoever drives the rounds decides what becomes of a worker
                whose vector is not.
            seed: The round's hashes, known to all workers.
            noise: Rows of a batch draw from its rows, one for each worker, as `CohortNoise` has
                them; a single vector draws from the only row.

        Raises:
            ArgumentError: A value is not finite, or of another type.
            MismatchError: The vectors have another length.
        """
        check_seed(seed)
        if not isinstance(noise, Noise):
            raise ArgumentError(f"noise must be a Noise, got {type(noise).__name__}")
        values = self._checked(vectors)
        batch = values if values.dim() == 2 else values[None]
        encoded = self._encode(batch, seed, noise)
        messages = encoded.messages
        if messages is not batch and messages.is_floating_point():
            check_sums(messages)
        return encoded if values.dim() == 2 else encoded.single()

    def publish(self, total: Tensor, noise: Noise) -> Tensor:
        """What the server makes known of the sum: with `central_noise`, and `reduced`.

        Args:
            total: The sum of the messages; or `(sums, ...)`, each to have noise of its own.
            noise: The server's own: of a single row, if it has rows, or one for each sum.
        """
        single = total.dim() == len(self.total_format.shape)
        drawn = self.central_noise(noise, sums=None if single else len(total))
        return self.reduced(total if drawn is None else total + drawn.to(total.device))

    def central_noise(self, noise: Noise, *, sums: int | None = None) -> Tensor | None:  # noqa: ARG002
        """Noise of the total's shape that a trusted server adds; None if workers add it.

        Whoever sums may add it to any one of the messages instead: sums are sums. With `sums`, it
        is for so many: `(sums, ...)`.
        """
        return None

    def reduced(self, total: Tensor) -> Tensor:
        """The total within its format: modulo `2**bits`, for example. As it is, for most."""
        return total

    def decode(
        self, total: Tensor, seed: HashSeed, *, count: int, out: Tensor | None = None
    ) -> Tensor:
        """An estimate `(dim,)`, float32, of the mean from the published sum of `count` messages.

        Args:
            total: The published sum.
            seed: The round's hashes.
            count: How many messages are in it.
            out: Where to write the estimate, to the same bits: `(dim,)`, float32, contiguous, on
                the device of the sum. Memory that is used again saves much of the time.

        Raises:
            ArgumentError: The sum is not finite, or of another type; or `out` is, or is not
                contiguous.
            MismatchError: One of them has another shape, or the sum has whole numbers that no
                published sum has.
        """
        check_seed(seed)
        check_whole("count", count, least=1)
        self._check_total(total)
        if out is not None:
            check_out(out, self.dim, device=total.device)
        mean = self._decode(total, seed, count, out=out)
        return mean if out is None or mean is out else out.copy_(mean.detach())

    def honest_norm(self, count: int = 1, *, failure: float = FALSE_REFUSAL) -> float:
        """The largest norm of the sum of so many honest messages; infinite if all can be.

        Euclidean, as `norm_of` measures it. What is clipped is no longer than `clip`, for certain;
        noise that is in the messages has a tail, so that more is seen with a probability of at most
        `failure`.
        """
        check_whole("count", count, least=1)
        return count * self._message_norm(failure / count)

    def norm_of(self, total: Tensor, count: int = 1) -> float:  # noqa: ARG002
        """Euclidean norm of a message, or of the sum of `count`, in units of the data."""
        return float(torch.linalg.vector_norm(total.double()))

    def check_honest(self, total: Tensor, count: int = 1, *, limit: float = math.inf) -> None:
        """Refuse a message, or a sum of several, that is longer than honest workers make it.

        Messages modulo `2**bits` are centred first. Where the modulus is so small that all that it
        can hold is within the bound, nothing is refused, as nothing can be told.

        Args:
            total: The cells of a message, or of the sum.
            count: How many messages are in it.
            limit: A norm that no honest message exceeds, where that is known from elsewhere: for
                bare messages, which have no bound of their own.

        Raises:
            WireError: It is longer.
        """
        most, found = min(self.honest_norm(count), count * limit), self.norm_of(total, count)
        if not found <= most * (1 + _SLACK):
            what = "message has" if count == 1 else f"the sum of {count} messages has"
            raise WireError(
                f"{what} a norm of {found:.4g}, and that of honest clients is at most {most:.4g}"
            )

    def _message_norm(self, failure: float) -> float:  # noqa: ARG002
        """Norm that an honest message exceeds with a probability of at most `failure`."""
        return math.inf

    @abstractmethod
    def _claim_for(self, present: int, seed: HashSeed) -> Claim:
        """For checked arguments."""

    @abstractmethod
    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        """Of finite vectors `(workers, dim)` in float32."""

    @abstractmethod
    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:
        """Of a total of the right shape and type, with finite values.

        Whoever can write to `out`, if it is given, does so and returns it; what others return is
        copied there.
        """

    def _checked(self, vectors: Tensor) -> Tensor:
        """The vectors in float32, if their type, shape and values are right."""
        if not isinstance(vectors, Tensor) or vectors.dtype not in (torch.float32, torch.float64):
            kind = vectors.dtype if isinstance(vectors, Tensor) else type(vectors).__name__
            raise ArgumentError(f"vectors must be a float32 or float64 tensor, got {kind}")
        good = 1 <= vectors.dim() <= 2 and vectors.shape[0] > 0 and vectors.shape[-1] == self.dim
        if not good:
            raise MismatchError(
                f"vectors must be (dim,) or (workers, dim) with dim={self.dim}, "
                f"got {tuple(vectors.shape)}"
            )
        values = vectors.detach().to(torch.float32)
        if not is_finite(values):
            raise ArgumentError(
                "vectors must be finite in float32, got NaN, infinity or too large a number"
                f"{_rows_of(~torch.isfinite(values).all(dim=-1))}"
            )
        return values

    def _check_total(self, total: Tensor) -> None:
        layout = self.total_format
        if not isinstance(total, Tensor) or tuple(total.shape) != layout.shape:
            found = tuple(total.shape) if isinstance(total, Tensor) else type(total).__name__
            raise MismatchError(f"total must have the shape {layout.shape}, got {found}")
        if layout.cells == "float32":
            if not total.is_floating_point():
                raise ArgumentError(f"total must be floating point, got {total.dtype}")
            if not is_finite(total):
                raise ArgumentError("total must be finite, got NaN or infinity among its cells")
            return
        if total.dtype != torch.int64:
            raise ArgumentError(f"total must be int64, got {total.dtype}")
        low, high = (int(value) for value in total.aminmax())
        least, end = layout.limits
        if low < least or high >= end:
            raise MismatchError(
                f"total must be in [{least}, {end}), as publish makes it, got values from "
                f"{low} to {high}"
            )


def check_out(out: Tensor, dim: int, *, device: torch.device) -> None:
    """Raise unless a mean with so many coordinates can be written there.

    Raises:
        ArgumentError: It is no contiguous tensor in float32, or it needs a gradient.
        MismatchError: It has another shape, or is elsewhere.
    """
    if not isinstance(out, Tensor) or out.dtype != torch.float32:
        kind = out.dtype if isinstance(out, Tensor) else type(out).__name__
        raise ArgumentError(f"out must be a float32 tensor, got {kind}")
    if tuple(out.shape) != (dim,):
        raise MismatchError(f"out must have the shape ({dim},), got {tuple(out.shape)}")
    if not out.is_contiguous():
        raise ArgumentError(f"out must be contiguous, got a stride of {out.stride()[0]}")
    if out.requires_grad:
        raise ArgumentError("out must need no gradient, got one that requires it")
    if out.device != device:
        raise MismatchError(f"out must be on {device}, got one on {out.device}")


def fitted(values: Tensor, layout: MessageFormat) -> Tensor:
    """Whole numbers cut off at the limits of a format."""
    low, end = layout.limits
    return values.clamp(low, end - 1)


def mean_of(total: Tensor, count: int | float, out: Tensor | None) -> Tensor:
    """The sum of vectors over their number, in float32; in `out`, if that is given."""
    if out is None:
        return (total / count).float()
    return torch.div(total.detach(), count, out=out)


def is_finite(values: Tensor) -> bool:
    """Whether all values are finite.

    A sum is finite only if its terms are, and quick; it may overflow, so look again then.
    """
    return math.isfinite(values.sum().item()) or bool(torch.isfinite(values).all())


def check_sums(tables: Tensor) -> Tensor:
    """The tables `(workers, ...)` of finite vectors, if they are finite as well.

    Raises:
        ArgumentError: One is not; the error names its row, where there are several.
    """
    if not is_finite(tables):
        rows = _rows_of(~torch.isfinite(tables).flatten(1).all(dim=1)) if len(tables) > 1 else ""
        raise ArgumentError(
            "vectors must be small enough for float32, but sums of their coordinates overflow"
            f"{rows}"
        )
    return tables


def _rows_of(bad: Tensor) -> str:
    """Where it is, for an error message; the only row of a vector needs no name."""
    if bad.dim() == 0:
        return ""
    rows = bad.nonzero().flatten().tolist()
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return f" in rows {', '.join(map(str, rows[:_NAMED]))}{more}"

"""PrivUnitG and its projected form ProjUnit, as mechanisms and as a method.

PrivUnitG sends the direction of a whole vector under local, pure differential privacy, for a client
that trusts nobody with anything: accurate only in the mean of very many clients, but nothing of
this kind does essentially better (Asi, Feldman, Talwar 2022). Its noise is of real numbers, which
no exact sampler gives: engines refuse to send it.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import MismatchError, check, check_positive, check_whole
from diffsketch.methods import Encoded, Method, register
from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Claim, Relation, Scope, SimulatedClaim, Trust, Unit
from diffsketch.privacy.clipping import clip_norm
from diffsketch.privacy.simulated_noise import Noise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.wire.formats import MessageFormat

MAX_PER_ROUND = 500.0  # beyond, `exp` is too near to overflow to be trusted with a proof
_SMALLEST = 1e-150  # of the clipped norm: what is smaller counts as zero


class _Cap(NamedTuple):
    """A cap `a >= gamma` of a standard normal number, entered with probability `inside`."""

    gamma: float
    outside_mass: float
    mass: float
    inside: float
    mean: float  # of `a` under that mixture
    square: float  # the mean of `a**2`

    @classmethod
    def at(cls, gamma: float, epsilon: float) -> _Cap:
        from scipy.special import ndtr

        mass, rest = float(ndtr(-gamma)), float(ndtr(gamma))
        inside = math.exp(epsilon) * mass / (rest + math.exp(epsilon) * mass)
        density = math.exp(-(gamma**2) / 2) / math.sqrt(2 * math.pi)
        mean = density * (inside / mass - (1 - inside) / rest)
        return cls(gamma, rest, mass, inside, mean, 1 + gamma * mean)


@dataclass(frozen=True)
class PrivUnitG:
    """A random vector that leans towards the client's own, by as much as its epsilon allows.

    With `u` the client's vector over `clip` (a direction), the message is `a u + w`: `w` normal,
    orthogonal to `u`, and `a` a standard normal number that is drawn from the cap `a >= gamma`
    with probability `p` and from the rest with `1 - p`. With `q = P[normal >= gamma]` and
    `p = e**epsilon q / (1 - q + e**epsilon q)`, the density of a message is the normal density
    times `p / q` or `(1 - p) / (1 - q)`, whose ratio is `e**epsilon`: pure differential privacy,
    whatever the two clients' vectors are. `gamma` is the one with the least error.

    Vectors shorter than `clip` count as a direction or its opposite, at random with the mean that
    they have; longer ones are clipped. So the estimate is unbiased for every clipped vector, and
    the norm is protected too.

    Guarantees (`paper/tests/test_projunit.py`): the density ratio, unbiasedness, the error.

    Args:
        dim: Length of the vectors.
        per_round: The epsilon of one message.
        clip: The norm to which vectors are clipped.

    References:
        Asi, Feldman, Talwar (2022), Optimal Algorithms for Mean Estimation under Local
        Differential Privacy.
    """

    dim: int
    per_round: float
    clip: float = 1.0

    def __post_init__(self) -> None:
        check_whole("dim", self.dim, least=1)
        good = 0 < self.per_round <= MAX_PER_ROUND
        check(good, "per_round", f"be in (0, {MAX_PER_ROUND:g}]", self.per_round)
        check_positive("clip", self.clip)

    @property
    def claim(self) -> SimulatedClaim:
        """The claim of one message."""
        scope = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
        return SimulatedClaim(scope, events.approximate(self.per_round), "a PrivUnitG message")

    @cached_property
    def _cap(self) -> _Cap:
        from scipy.optimize import minimize_scalar

        def error(gamma: float) -> float:
            cap = _Cap.at(gamma, self.per_round)
            return self._length(cap) / cap.mean**2

        # The error has one minimum; the best cap is the smaller the larger epsilon is.
        highest = math.sqrt(2 * self.per_round) + 6
        grid = np.linspace(-2.0, min(highest, 37.0), 400)
        start = int(np.argmin([error(float(gamma)) for gamma in grid]))
        low, high = grid[max(0, start - 1)], grid[min(len(grid) - 1, start + 1)]
        found = minimize_scalar(error, bounds=(low, high), method="bounded")
        return _Cap.at(float(found.x), self.per_round)

    def _length(self, cap: _Cap) -> float:  # the mean square of a message
        return self.dim - 1 + cap.square

    @property
    def squared_norm(self) -> float:
        """The mean squared norm of a decoded message: its error, plus that of the vector."""
        return self.clip**2 * self._length(self._cap) / self._cap.mean**2

    def release(self, vectors: Tensor, noise: Noise) -> Tensor:
        """A message for each vector of `(..., dim)`, in the same shape and type.

        Raises:
            ArgumentError: A value is not finite, or the noise is of the secure kind: these are
                real numbers, which no exact sampler gives.
        """
        from scipy import special

        if vectors.dim() == 0 or vectors.shape[-1] != self.dim:
            raise MismatchError(f"vectors must have {self.dim} entries, got {tuple(vectors.shape)}")
        clipped = clip_norm(vectors, self.clip).to("cpu", torch.float64)
        units = _random_directions(clipped, self.clip, noise)
        cap, shape = self._cap, (*vectors.shape[:-1], 1)
        inside = noise.bernoulli(torch.full(shape, cap.inside, dtype=torch.float64)).bool()
        part = special.ndtr(noise.normal(shape, 1.0, dtype=torch.float64).numpy())  # uniform
        high, low = -special.ndtri(cap.mass * part), special.ndtri(cap.outside_mass * part)
        along = torch.where(inside, torch.from_numpy(high), torch.from_numpy(low))
        message = noise.normal(tuple(vectors.shape), 1.0, dtype=torch.float64)
        message += (along - (message * units).sum(-1, keepdim=True)) * units
        return message.to(vectors.device, vectors.dtype)

    def decode(self, messages: Tensor) -> Tensor:
        """Unbiased estimates of the clipped vectors; also takes a sum or mean of messages."""
        return messages * (self.clip / self._cap.mean)


@dataclass(frozen=True)
class ProjUnit:
    """PrivUnitG on a random projection: `size` numbers on the wire instead of `dim`.

    Worker `i` projects with a normal random matrix `S_i` (`size` by `dim`) that the public seed of
    the round gives, and sends PrivUnitG of the direction of `S_i v`. Since a normal matrix has no
    preferred direction, `S_i' (S_i u / |S_i u|)` is `E|S_i u| u` on average, and dividing by that
    number makes the estimate unbiased (`paper/tests/test_projunit.py`).

    With `shared`, all workers use the same matrix. Then messages can be summed, and `decode` takes
    their sum as well as themselves. Estimates are still unbiased over the seeds, but no longer
    independent: the projection's part of the error does not shrink with the number of workers.

    Args:
        dim: Length of the vectors.
        size: Length of a message.
        per_round: The epsilon of one message.
        clip: The norm to which vectors are clipped.
        shared: One matrix for all workers of a round.

    References:
        Asi, Feldman, Nelson, Nguyen, Talwar (2023), Fast Optimal Locally Private Mean Estimation
        via Random Projections.
    """

    dim: int
    size: int
    per_round: float
    clip: float = 1.0
    shared: bool = False

    def __post_init__(self) -> None:
        check(isinstance(self.shared, bool), "shared", "be true or false", self.shared)
        PrivUnitG(self.dim, self.per_round, self.clip)  # checks its arguments
        check_whole("size", self.size, least=1, most=self.dim)

    @cached_property
    def _inner(self) -> PrivUnitG:
        return PrivUnitG(self.size, self.per_round, 1.0)

    @property
    def claim(self) -> SimulatedClaim:
        """The claim of one message."""
        scope = self._inner.claim.scope
        return SimulatedClaim(scope, events.approximate(self.per_round), "a ProjUnit message")

    @property
    def squared_norm(self) -> float:
        """The mean of the squared norm of one decoded message.

        With `w = S u / |S u|`, the squared length of `S' w` is `size + dim - 1` on average (its
        part along `u` is `|S u|`); that of `S' x` is `dim - 1` for a unit `x` orthogonal to `w`.
        """
        cap = self._inner._cap
        along = cap.square * (self.dim - 1 + self.size)
        across = (self.size - 1) * (self.dim - 1)
        return self.clip**2 * (along + across) / (cap.mean * self._mean_length) ** 2

    @property
    def _mean_length(self) -> float:  # of a normal random vector with `size` entries
        half = self.size / 2
        return math.sqrt(2) * math.exp(math.lgamma(half + 0.5) - math.lgamma(half))

    def release(
        self, vectors: Tensor, noise: Noise, *, seed: HashSeed, first_worker: int = 0
    ) -> Tensor:
        """Messages `(workers, size)` of vectors `(workers, dim)`, from `first_worker` on."""
        if vectors.dim() != 2 or vectors.shape[1] != self.dim:
            shape = tuple(vectors.shape)
            raise MismatchError(f"vectors must be (workers, {self.dim}), got {shape}")
        clipped = clip_norm(vectors, self.clip)
        units = _random_directions(clipped.double(), self.clip, noise).to(vectors.dtype)
        if self.shared:
            seen = units @ self._shared_matrix(seed, vectors).T
        else:
            seen = units.new_empty(len(units), self.size)
            for index, unit in enumerate(units):
                seen[index] = self._matrix(seed, first_worker + index, vectors) @ unit
        norms = torch.linalg.vector_norm(seen, dim=-1, keepdim=True)
        return self._inner.release(seen / norms, noise)

    def decode(self, messages: Tensor, *, seed: HashSeed, first_worker: int = 0) -> Tensor:
        """The sum of the unbiased estimates of the clipped vectors, `(dim,)`.

        With `shared`, the sum of messages decodes to the same as the messages.
        """
        if messages.dim() != 2 or messages.shape[1] != self.size:
            shape = tuple(messages.shape)
            raise MismatchError(f"messages must be (workers, {self.size}), got {shape}")
        estimates = self._inner.decode(messages)
        if self.shared:
            total = self._shared_matrix(seed, messages).T @ estimates.sum(dim=0)
        else:
            total = messages.new_zeros(self.dim)
            for index, message in enumerate(estimates):
                total += self._matrix(seed, first_worker + index, messages).T @ message
        return total * (self.clip / self._mean_length)

    def _shared_matrix(self, seed: HashSeed, like: Tensor) -> Tensor:
        """The matrix of a round, which is kept with its seed: encoding and decoding need it."""
        key = "projunit", self.size, self.dim, like.dtype, like.device
        matrix: Tensor | None = seed.memo.get(key)
        if matrix is None:
            matrix = seed.memo[key] = self._matrix(seed, 0, like)
        return matrix

    def _matrix(self, seed: HashSeed, worker: int, like: Tensor) -> Tensor:
        """A worker's projection, of the type and on the device of `like`."""
        good = like.dtype in (torch.float32, torch.float64)
        check(good, "dtype", "be float32 or float64", like.dtype)
        check_whole("first_worker", worker, least=0, most=2**64 - 1)
        text = worker.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=seed.value, digest_size=32, person=b"ds-projunit")
        rng = np.random.Generator(np.random.SFC64(int.from_bytes(digest.digest(), "little")))
        matrix = rng.standard_normal((self.size, self.dim), np.float32)
        return torch.from_numpy(matrix).to(like.device, like.dtype)


def _random_directions(clipped: Tensor, clip: float, noise: Noise) -> Tensor:
    """Unit vectors with `clipped / clip` as their mean: the direction, or at times its opposite."""
    relative = clipped / clip
    largest = relative.abs().amax(dim=-1, keepdim=True)
    first = torch.zeros_like(clipped)
    first[..., 0] = 1  # what stands for a vector of zeros: plus or minus, with equal probability
    # Squares of small numbers vanish, and a "unit" vector of another length would give itself away:
    # scale by the largest entry first, and take what is hardly there for zero.
    present = largest > _SMALLEST
    scaled = torch.where(present, relative / largest.clamp(min=_SMALLEST), first)
    lengths: Tensor = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    norms = torch.where(present, lengths * largest, torch.zeros_like(largest))
    forward = noise.bernoulli(((1 + norms.cpu()) / 2).clamp(0.5, 1.0)).to(clipped.device)
    turns: Tensor = 2 * forward - 1
    return scaled / lengths * turns


@register
@dataclass(frozen=True, kw_only=True)
class ProjUnitMean(Method):
    """The direction of a random projection under local, pure differential privacy.

    Vectors are clipped to norm `clip`, projected by a matrix that the round's seed gives, and sent
    by PrivUnitG as `size` numbers; a whole client is hidden from everybody, with a delta of 0. All
    workers of a round use the same matrix, so that messages can be summed and the sum projected
    back. The estimate is unbiased over the seeds; for one seed, the mean itself has the error of
    a projection, about `dim / size` times its squared norm.

    Args:
        dim: Length of the vectors.
        size: Numbers of a message.
        per_round: Epsilon of one message.
        clip: Norm of a vector.
    """

    size: int
    per_round: float
    clip: float

    name: ClassVar[str] = "projunit"
    code: ClassVar = 9

    def __post_init__(self) -> None:
        super().__post_init__()
        check_whole("size", self.size, least=1)
        check_positive("per_round", self.per_round)
        most = MAX_PER_ROUND
        check(self.per_round <= most, "per_round", f"be at most {most:g}", self.per_round)
        check_positive("clip", self.clip)
        _ = self.mechanism  # checks the rest

    @cached_property
    def mechanism(self) -> ProjUnit:
        """The mechanism that clips, projects and randomises."""
        return ProjUnit(self.dim, self.size, self.per_round, self.clip, shared=True)

    @cached_property
    def message_format(self) -> MessageFormat:
        """`size` numbers in float32."""
        return self._format((self.size,))

    @cached_property
    def _claim(self) -> Claim:
        return self.mechanism.claim

    def _claim_for(self, present: int, seed: HashSeed) -> Claim:  # noqa: ARG002
        return self._claim

    def after_clipping(self, vectors: Tensor) -> Tensor:
        """Return the vectors clipped to a norm."""
        return clip_norm(vectors, self.clip)

    def _encode(self, batch: Tensor, seed: HashSeed, noise: Noise) -> Encoded:
        return Encoded(self.mechanism.release(batch, noise, seed=seed))

    def _decode(self, total: Tensor, seed: HashSeed, count: int, *, out: Tensor | None) -> Tensor:  # noqa: ARG002
        return (self.mechanism.decode(total[None], seed=seed) / count).float()

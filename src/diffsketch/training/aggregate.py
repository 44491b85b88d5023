"""Sums of a cohort's messages, and the claims of a round."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError, MismatchError, check
from diffsketch.methods.base import Encoded, Method
from diffsketch.privacy.claim import Claim, NoClaim, ProvenClaim
from diffsketch.privacy.noise import NoiseKey
from diffsketch.privacy.noise.simulated import SERVER, CohortNoise
from diffsketch.sketch.hashing import HashSeed
from diffsketch.training.correction import Correction, without_claim
from diffsketch.training.sampling import PoissonDevices, Sampler


class RoundClaims:
    """The claims of a run's rounds.

    A method's claim is amplified where devices are drawn by Poisson sampling, which is for central
    trust only, and void where error correction carries gradients around the messages.

    Args:
        method: That encodes.
        sampler: Who takes part.
        correction: The paper's error correction.
    """

    def __init__(self, method: Method, sampler: Sampler, correction: Correction) -> None:
        self._method, self._sampler, self._correction = method, sampler, correction
        self._amplified: tuple[ProvenClaim, ProvenClaim] | None = None  # the last: they repeat

    def of(self, present: int, seed: HashSeed) -> Claim:
        """Of a round with so many workers; on a secret sample, with any number of them.

        Raises:
            ArgumentError: The sample is secret, and the claim not such that this helps.
        """
        sampler = self._sampler
        if isinstance(sampler, PoissonDevices):
            present = max(1, round(sampler.expected))
        claim = self._method.claim_for(present, seed)
        if self._correction != "off":
            return without_claim(claim)
        if not isinstance(sampler, PoissonDevices) or isinstance(claim, NoClaim):
            return claim
        if not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "poisson sampling is for proven claims under central trust, or for none, got "
                f"method={self._method.name!r}, whose claim is {claim.basis}"
            )
        known = self._amplified
        if known is None or known[0] != claim:
            self._amplified = known = claim, sampler.lottery.amplified(claim)
        return known[1]

    def planned(self, seed: HashSeed) -> Claim:
        """Of a round as expected, with these hashes: known before there is one.

        Raises:
            ArgumentError: Rounds cannot have a claim.
        """
        return self.of(max(1, round(self._sampler.expected)), seed)

    def check(self, seed: HashSeed, *, budget: bool) -> None:
        """Raise an `ArgumentError` unless rounds can have a claim, and a budget if there is one."""
        claim = self.planned(seed)
        if budget and not isinstance(claim, ProvenClaim):
            raise ArgumentError(
                "budget must not be given where nothing is proven: the epsilon of "
                f"method={self._method.name!r} is {claim.basis} here ({claim})"
            )


_SERVER = torch.tensor([SERVER])
_PART_CELLS = 1 << 23  # numbers of a part's vectors: 32 MiB

VectorsOf: TypeAlias = Callable[[Tensor], Tensor]
"""The vectors `(workers, dim)` of some devices, by their indices."""


class NonFiniteUpdate(UserWarning):
    """A worker's vector had NaN or infinite values. The round went on without them."""


class Diverged(DiffSketchError):  # noqa: N818 - it says what happened
    """A round gave nothing finite: training diverges. The model is that before the round."""


@dataclass(frozen=True)
class Secrets:
    """What a round's messages are made with, besides the vectors.

    Attributes:
        seed: The round's hashes.
        key: Of the simulated world's noise.
        round_index: The round.
    """

    seed: HashSeed
    key: NoiseKey
    round_index: int


@dataclass(frozen=True, eq=False)
class Aggregate:
    """The sum of a cohort's messages.

    Attributes:
        total: The sum, before the server adds anything; None if nobody takes part.
        count: Messages in it.
        broken: Devices whose vectors were not finite, ascending.
        vectors: Of all workers, if they were to be kept.
        claimed: As in `Encoded`, of all messages.
        noised: As in `Encoded`.
    """

    total: Tensor | None
    count: int
    broken: tuple[int, ...] = ()
    vectors: Tensor | None = None
    claimed: Tensor | None = None
    noised: Tensor | None = None


def device_scales(importance: Tensor | None, devices: int) -> Tensor | None:
    """What each device's vector is multiplied by, so that devices count by their importance.

    Raises:
        ArgumentError: It is not a number > 0 for each device.
    """
    if importance is None:
        return None
    good = importance.shape == (devices,)
    check(good, "importance", f"have the shape ({devices},)", tuple(importance.shape))
    shares = importance.to("cpu", torch.float64)
    good = bool(((shares > 0) & torch.isfinite(shares)).all())
    check(good, "importance", "be > 0 and finite", importance)
    return shares * (devices / shares.sum())


def part_size(dim: int) -> int:
    """How many vectors are encoded at a time."""
    return max(1, _PART_CELLS // dim)


def sum_messages(
    cohort: Tensor,
    vectors_of: VectorsOf,
    *,
    method: Method,
    secrets: Secrets,
    stay: bool,
    keep: bool = False,
) -> Aggregate:
    """Compute the vectors of a cohort, encode them, and add the messages up.

    Args:
        cohort: Indices of the devices, int64.
        vectors_of: Trains some of them.
        method: Encodes.
        secrets: Hashes and noise.
        stay: Whether a vector that is not finite counts as zeros; else it is left out.
        keep: Whether to keep the vectors, all in one part.

    Raises:
        Diverged: No worker has a finite vector, and none stays. Nothing was sent.
    """
    workers = cohort.shape[0]
    size = workers if keep else part_size(method.dim)
    parts = (cohort,) if workers <= size else torch.split(cohort, size)
    total, count, vectors = None, 0, None
    broken: list[int] = []
    claimed: list[Tensor | None] = []
    noised: list[Tensor | None] = []
    for part in parts if workers else ():
        vectors = vectors_of(part)
        one, bad = _encoded(part, vectors, method=method, secrets=secrets, stay=stay)
        broken += bad
        if one is None:
            continue
        # A sum is a tensor of its own: a trainer may use the memory of its vectors again.
        added = one.messages.sum(dim=0)
        total = added if total is None else total + added
        count += one.messages.shape[0]
        claimed.append(one.claimed)
        noised.append(one.noised)
    if broken and len(broken) == workers and not stay:
        raise Diverged(
            f"all {workers} workers of round {secrets.round_index} have vectors with NaN or "
            "infinite values: training diverges, or the data is broken"
        )
    kept = vectors if keep else None
    return Aggregate(total, count, tuple(broken), kept, _joined(claimed), _joined(noised))


def empty_total(method: Method, device: torch.device) -> Tensor:
    """The sum of no messages."""
    form = method.total_format
    kind = torch.float32 if form.cells == "float32" else torch.int64
    return torch.zeros(form.shape, dtype=kind, device=device)


def warn_of(broken: Sequence[str], round_index: int, *, stay: bool) -> None:
    """Say which workers had vectors that are not finite, and what became of them."""
    names = ", ".join(repr(name) for name in broken)
    fate = "count as zeros, with their noise" if stay else "are left out of the mean"
    warnings.warn(
        f"round {round_index}: NaN or infinite values in the vectors of {names}, which {fate}",
        NonFiniteUpdate,
        stacklevel=2,
    )


def server_noise(secrets: Secrets) -> CohortNoise:
    """The server's own noise: a single row."""
    return _LaterNoise(secrets, _SERVER)


class _LaterNoise(CohortNoise):
    """The workers' noise, set up when something is first drawn: not all methods draw."""

    def __init__(self, secrets: Secrets, workers: Tensor) -> None:
        self._later = secrets, workers

    def __getattr__(self, name: str) -> Any:
        if "_later" not in self.__dict__:
            raise AttributeError(name)
        secrets, workers = self.__dict__.pop("_later")
        CohortNoise.__init__(self, secrets.key, workers.tolist(), round_index=secrets.round_index)
        return getattr(self, name)


def _encoded(
    part: Tensor, vectors: Tensor, *, method: Method, secrets: Secrets, stay: bool
) -> tuple[Encoded | None, list[int]]:
    """Messages of a part, and the devices whose vectors are not finite."""
    if vectors.shape[0] != part.shape[0]:
        raise MismatchError(f"{len(part)} workers must have as many vectors, got {len(vectors)}")
    try:
        # Methods look for what is not finite, and refuse it before they return anything: to look
        # here as well would take as long as all the rest.
        return method.encode(vectors, secrets.seed, _LaterNoise(secrets, part)), []
    except ArgumentError:
        good = _encodable(part, vectors, method=method, secrets=secrets)
        if bool(good.all()):
            raise
    broken, whole = part[~good].tolist(), part
    if stay:
        kept = good.to(vectors.device)[:, None]
        vectors = torch.where(kept, vectors, torch.zeros_like(vectors))
    else:
        vectors, whole = vectors[good.to(vectors.device)], part[good]
        if not len(whole):
            return None, broken
    # The noise anew: what a refused call has drawn must not change what the others draw.
    return method.encode(vectors, secrets.seed, _LaterNoise(secrets, whole)), broken


def _encodable(part: Tensor, vectors: Tensor, *, method: Method, secrets: Secrets) -> Tensor:
    """Which vectors a method takes: finite ones, whose messages do not overflow either."""
    good = torch.isfinite(vectors).all(dim=-1).cpu()
    for row in good.nonzero().flatten().tolist():
        one = slice(row, row + 1)
        try:
            method.encode(vectors[one], secrets.seed, _LaterNoise(secrets, part[one]))
        except ArgumentError:
            good[row] = False
    return good


def _joined(parts: Sequence[Tensor | None]) -> Tensor | None:
    known = [part for part in parts if part is not None]
    if not known:
        return None
    return known[0] if len(known) == 1 else torch.cat(known)

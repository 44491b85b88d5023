"""Participation: which devices take part in a round, and which examples they take."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError, MismatchError, check, check_whole
from diffsketch.methods.base import Method
from diffsketch.privacy.accounting.sampler import PoissonSampler
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch.hashing import mix64
from diffsketch.training.orders import round_words

_Whole: TypeAlias = npt.NDArray[np.int64]
_Numbers: TypeAlias = npt.NDArray[np.float64]

_LOTTERY = (1 << 62) + 1  # number of the "worker" whose noise draws the Poisson samples
_UNIT = 2.0**-53
_HASHED = 1 << 10  # devices that are drawn at once, if the cohort is smaller


class Sampler(Protocol):
    """Draws the devices of a round. Who is drawn depends on no data but the devices' weights."""

    @property
    def members(self) -> int:
        """How many devices there are to draw from."""

    @property
    def expected(self) -> float:
        """The mean number of devices drawn."""

    @property
    def fixed_size(self) -> bool:
        """Whether it is the same in each round."""

    def draw(self, round_index: int) -> Tensor:
        """Indices of the devices of a round, ascending, int64."""


@dataclass(frozen=True)
class AllDevices:
    """Everyone, each round: workers of distributed SGD."""

    members: int
    fixed_size = True

    def __post_init__(self) -> None:
        _check_members(self.members)

    @property
    def expected(self) -> float:
        """All of them."""
        return float(self.members)

    @cached_property
    def _everyone(self) -> Tensor:
        return torch.arange(self.members)

    def draw(self, round_index: int) -> Tensor:  # noqa: ARG002
        """All devices."""
        return self._everyone


@dataclass(frozen=True)
class _FixedCohort:
    """What samplers share that draw so many devices in every round, all of them alike."""

    members: int
    cohort: int
    seed: int
    fixed_size = True

    def __post_init__(self) -> None:
        _check_members(self.members)
        _check_cohort(self.cohort, self.members)

    @property
    def expected(self) -> float:
        """The cohort."""
        return float(self.cohort)


@dataclass(frozen=True)
class UniformSampler(_FixedCohort):
    """`cohort` devices of a round, without replacement, all sets of them equally likely.

    Guarantees (`tests/training/test_sampling.py`): devices are drawn equally often, and so are
    pairs of them; rounds are independent.

    >>> UniformSampler(members=6000, cohort=3, seed=0).draw(0)
    tensor([1960, 2797, 3380])
    """

    @cached_property
    def _memo(self) -> dict[int, list[list[int]]]:
        return {}

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        if 2 * self.cohort > self.members:
            words = round_words(self.seed, round_index, b"ds-uniform")
            keys = mix64(np.arange(self.members, dtype=np.uint64), *words)
            return _smallest(keys, self.cohort)
        at_once = max(1, _HASHED // self.cohort)
        number, place = divmod(round_index, at_once)
        block = self._memo.get(number)
        if block is None:
            rounds = range(number * at_once, (number + 1) * at_once)
            block = self._drawn(rounds)
            self._memo.clear()  # rounds are functions of the seed: keeping them saves time only
            self._memo[number] = block
        return torch.tensor(block[place])

    def _drawn(self, rounds: range) -> list[list[int]]:
        """Of several rounds: small arrays cost about as much as large ones."""
        words = [round_words(self.seed, index, b"ds-uniform") for index in rounds]
        keys, members = np.array(words).T[:, :, None], np.uint64(self.members)
        return _first_distinct(
            lambda places: (mix64(places, *keys) % members).tolist(), self.cohort
        )


@dataclass(frozen=True, eq=False)
class WeightedSampler:
    """`cohort` devices without replacement, by weight: Algorithm 4's sampling with `p_k`.

    Devices are drawn one after another, each with probability proportional to its weight among
    those that are left. (The paper says only that "each device is chosen with probability p_k".)

    That is what remains if repetitions are struck from independent draws; where repetitions would
    be frequent, the devices with the smallest `-log(u_k) / p_k` are taken instead, which has the
    same distribution (Efraimidis and Spirakis, 2006).

    Guarantees (`tests/training/test_sampling.py`): a single device is drawn with probability
    `p_k`, and two with that of successive draws, in both ways.

    Args:
        weights: `(devices,)`, > 0; their scale does not matter. The numbers of examples, usually:
            they are taken as public, and no claim covers them.
        cohort: How many to draw.
        seed: The run's.
    """

    weights: Tensor
    cohort: int
    seed: int
    fixed_size = True

    def __post_init__(self) -> None:
        check(self.weights.dim() == 1, "weights", "be (devices,)", tuple(self.weights.shape))
        shares = self.weights.to(torch.float64)
        good = bool(((shares > 0) & torch.isfinite(shares)).all())
        check(good, "weights", "be > 0 and finite", self.weights)
        _check_members(self.members)
        _check_cohort(self.cohort, self.members)

    @property
    def members(self) -> int:
        """How many devices there are."""
        return len(self.weights)

    @property
    def expected(self) -> float:
        """The cohort."""
        return float(self.cohort)

    @cached_property
    def _shares(self) -> _Numbers:
        shares: _Numbers = self.weights.to(torch.float64).cpu().numpy().copy()
        shares /= shares.sum()
        return shares

    @cached_property
    def _rises(self) -> _Numbers:
        rises: _Numbers = np.cumsum(self._shares)
        rises /= rises[-1]
        return rises

    @cached_property
    def _repeats(self) -> bool:
        """Whether a draw may well be of one that was drawn before. It depends on no draw."""
        heaviest: _Numbers = np.sort(self._shares)[-self.cohort :]
        return bool(heaviest.sum() > 0.5)

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        words = round_words(self.seed, round_index, b"ds-weighted")
        if self._repeats:
            places = np.arange(self.members, dtype=np.uint64)
            return _smallest(-np.log(_open_unit(mix64(places, *words))) / self._shares, self.cohort)

        def chosen(places: npt.NDArray[np.uint64]) -> list[list[int]]:
            shares = _open_unit(mix64(places, *words))
            found = np.searchsorted(self._rises, shares, side="right")
            return [np.minimum(found, self.members - 1).tolist()]

        return torch.tensor(_first_distinct(chosen, self.cohort)[0])

    def __repr__(self) -> str:
        digest = hashlib.blake2b(self._shares.tobytes(), digest_size=8).hexdigest()
        return f"WeightedSampler(weights={digest}, cohort={self.cohort}, seed={self.seed})"


@dataclass(frozen=True)
class ShuffledSampler(_FixedCohort):
    """Passes over the devices in a fresh order: each takes part at most once a pass.

    A pass has `members // cohort` rounds of `cohort` devices; the devices that are left over, if
    any, sit the pass out. So nobody takes part more than `ceil(rounds / (members // cohort))`
    times, which limits what a run can cost a client. It amplifies nothing.
    """

    @cached_property
    def _memo(self) -> dict[int, _Whole]:
        return {}

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        number, place = divmod(round_index, self.members // self.cohort)
        order = self._memo.get(number)
        if order is None:
            words = round_words(self.seed, number, b"ds-shuffled")
            order = np.argsort(mix64(np.arange(self.members, dtype=np.uint64), *words))
            self._memo.clear()  # a pass is a function of the seed: keeping it saves time only
            self._memo[number] = order
        chosen = order[place * self.cohort : (place + 1) * self.cohort]
        return torch.from_numpy(np.sort(chosen))


@dataclass(frozen=True)
class PoissonDevices:
    """Each device with the same probability, independently: `PoissonSampler` with a seed.

    The number of devices varies and may be 0. For central trust, where it amplifies the claim; a
    mean is then the sum over `expected`, which only messages of floating-point numbers allow:
    whole numbers are decoded by the number of messages, which is secret here.
    """

    lottery: PoissonSampler
    seed: int
    fixed_size = False

    @classmethod
    def of(cls, members: int, cohort: float, seed: int) -> PoissonDevices:
        """With `cohort` devices a round on average."""
        _check_members(members)
        check(0 < cohort <= members, "cohort", f"be in (0, {members}]", cohort)
        return cls(PoissonSampler(members, cohort / members), seed)

    @property
    def members(self) -> int:
        """How many devices there are."""
        return self.lottery.members

    @property
    def expected(self) -> float:
        """The mean number of devices."""
        return self.lottery.expected

    @cached_property
    def _key(self) -> NoiseKey:
        return NoiseKey.from_integer(self.seed)

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        return self.lottery.draw(self._key.source(worker=_LOTTERY, round_index=round_index))


def check_sampler(sampler: Sampler, *, devices: int, method: Method) -> None:
    """Raise an error unless it draws from so many devices, and means of its samples can be decoded.

    Raises:
        MismatchError: It draws from another number of devices.
        ArgumentError: Numbers of devices vary, and messages are decoded by how many there are.
    """
    if sampler.members != devices:
        raise MismatchError(
            f"the sampler must draw from the task's {devices} devices, got {sampler.members}"
        )
    cells = method.message_format.cells
    if not sampler.fixed_size and cells == "unsigned":
        raise ArgumentError(
            "poisson sampling is not for messages of unsigned numbers: they are decoded by how "
            f"many messages there are, which is secret, got method={method.name!r}"
        )


def _first_distinct(
    values_at: Callable[[npt.NDArray[np.uint64]], list[list[int]]], count: int
) -> list[list[int]]:
    """The first `count` distinct values of sequences that are given by their places, sorted."""
    length = count + count // 4 + 8
    while True:
        values = values_at(np.arange(length, dtype=np.uint64))
        distinct = [list(dict.fromkeys(row)) for row in values]  # in the order of first places
        if min(map(len, distinct)) >= count:
            return [sorted(row[:count]) for row in distinct]
        length *= 2


def _smallest(keys: npt.NDArray[Any], count: int) -> Tensor:
    chosen = np.argpartition(keys, count - 1)[:count]
    return torch.from_numpy(np.sort(chosen))


def _open_unit(words: npt.NDArray[np.uint64]) -> _Numbers:
    """Uniform numbers in (0, 1), 53 bits each."""
    return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * _UNIT


def _check_members(members: int) -> None:
    check_whole("members", members, least=0)
    if members == 0:
        raise DataError("there are no devices to draw from: training needs one at least")


def _check_cohort(cohort: int, members: int) -> None:
    check_whole("cohort", cohort, least=1)
    check(cohort <= members, "cohort", f"be at most the number of devices, {members}", cohort)

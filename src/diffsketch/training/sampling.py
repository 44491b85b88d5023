"""Random choices of a round: the devices that take part, and the batches of each."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError, check, check_whole
from diffsketch.privacy.accounting.calibration import PoissonSampler
from diffsketch.privacy.simulated_noise import NoiseKey
from diffsketch.sketch.hashing import mix64
from diffsketch.training.tasks import Batches, Devices

_Numbers: TypeAlias = npt.NDArray[np.float64]
_Whole: TypeAlias = npt.NDArray[np.int64]

_LOTTERY = (1 << 62) + 1  # number of the "worker" whose noise draws the Poisson samples
_HASHED = 1 << 10  # devices that are drawn at once, if the cohort is smaller
_PLACE_BITS = 24  # of a sorting key: below the random bits, so that no two keys are equal
_PLACES = np.uint64((1 << _PLACE_BITS) - 1)
# Odd, and near the golden ratio and the square root of 2 as shares of 2**64: their multiples stay
# far apart, so that the counters of two devices or epochs do not meet.
_DEVICE_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_EPOCH_STRIDE = np.uint64(0x6A09E667F3BCC909)


def round_words(seed: int, round_index: int, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Two random words for one purpose (up to 16 bytes) of one round, as keys of `mix64`."""
    text = round_index.to_bytes(8, "little")
    digest = hashlib.blake2b(text, key=_secret(seed), digest_size=16, person=purpose).digest()
    first, second = int.from_bytes(digest[:8], "little"), int.from_bytes(digest[8:], "little")
    return np.uint64(first), np.uint64(second)


@lru_cache(maxsize=64)  # a pure function of the seed
def _secret(seed: int) -> bytes:
    check_whole("seed", seed, least=0, most=2**256 - 1)
    return seed.to_bytes(32, "little")


def draw_batches(
    devices: Devices,
    cohort: Tensor,
    *,
    seed: int,
    round_index: int,
    batch_size: int,
    epochs: int | None,
) -> Batches:
    """Batches of each device of a cohort: of all its examples, or the next one of a pass.

    With `epochs`, each takes all its examples so many times, each time in a fresh order; a device
    whose examples fit into one batch takes them as they lie. With None, a device with `n` examples
    has `ceil(n / batch_size)` rounds a pass, each pass in a fresh order, and takes the batch of
    this round. The last batch of an epoch or pass may be short. Devices with fewer examples than
    others have empty places at the end.

    Guarantees (`tests/training/test_sampling.py`): each epoch or pass has each of the device's
    examples once; orders are uniform, and depend on the seed, the round, the epoch and the device
    alone.

    >>> from diffsketch.training.tasks import Examples
    >>> one = Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    >>> devices = Devices.of({"alice": one, "bob": one})
    >>> batches = draw_batches(
    ...     devices, torch.tensor([1]), seed=0, round_index=0, batch_size=2, epochs=1
    ... )
    >>> batches.indices.shape, sorted(batches.indices[batches.present].tolist())
    (torch.Size([1, 2, 2]), [3, 4, 5])
    """
    _secret(seed)  # checks it, if it is used or not
    for name, number in (("batch_size", batch_size), ("epochs", epochs)):
        if number is not None and (type(number) is not int or number < 1):
            check_whole(name, number, least=1)
    if cohort.dtype != torch.int64 or cohort.dim() != 1 or not len(cohort):
        found = f"{cohort.dtype} {tuple(cohort.shape)}"
        raise ArgumentError(f"cohort must be int64 (workers,), got {found}")
    members, all_starts = cohort.numpy(), devices.starts.numpy()
    count = len(all_starts) - 1
    if int(members.view(np.uint64).max()) >= count:  # as which a negative one is very large
        raise ArgumentError(f"cohort must have indices in [0, {count}), got {members}")
    starts = all_starts[members]
    sizes = all_starts[members + 1] - starts
    most = int(sizes.max())
    batch_size = min(batch_size, most)  # more places would stay empty
    counters = members.view(np.uint64) * _DEVICE_STRIDE
    if epochs is None:
        passes, step = np.divmod(round_index, -(-sizes // batch_size))
        words = round_words(seed, 0, b"ds-order-sgd")  # devices are in different passes of theirs
        counters += passes.view(np.uint64) * _EPOCH_STRIDE
        orders = _orders(counters, sizes, words)
        place = step[:, None] * batch_size + np.arange(batch_size)
        present = (place < sizes[:, None])[:, None]
        indices = np.take_along_axis(orders, np.minimum(place, most - 1), axis=1)[:, None]
        indices += starts[:, None, None]
    else:
        steps = -(-most // batch_size)
        if steps == 1:
            orders = np.arange(most)[None, None].repeat(epochs, axis=1)  # the same of all
        else:
            words = round_words(seed, round_index, b"ds-order-fedavg")
            epoch = np.arange(epochs, dtype=np.uint64) * _EPOCH_STRIDE
            counters = (counters[:, None] + epoch).reshape(-1)
            orders = _orders(counters, np.repeat(sizes, epochs), words)
            orders[np.repeat(sizes <= batch_size, epochs)] = np.arange(most)
            orders = orders.reshape(len(members), epochs, most)
        places = steps * batch_size
        present = np.repeat((np.arange(places) < sizes[:, None])[:, None], epochs, axis=1)
        indices = orders + starts[:, None, None]
        if places > most:
            indices = np.pad(indices, ((0, 0), (0, 0), (0, places - most)))
        indices = indices.reshape(len(members), epochs * steps, batch_size)
        present = present.reshape(indices.shape)
    target = devices.examples.labels.device
    if present.all():
        return Batches(torch.from_numpy(indices).to(target))
    indices *= present  # empty places hold index 0
    return Batches(torch.from_numpy(indices).to(target), torch.from_numpy(present).to(target))


def model_seeds(cohort: Tensor, *, seed: int, round_index: int) -> Tensor:
    """A seed for what the model of each device draws in a round, dropout for one: int64, >= 0."""
    words = round_words(seed, round_index, b"ds-model-draws")
    found = mix64(cohort.numpy().view(np.uint64) * _DEVICE_STRIDE, *words)
    return torch.from_numpy((found >> np.uint64(1)).astype(np.int64))


def _orders(
    counters: npt.NDArray[np.uint64], sizes: _Whole, words: tuple[np.uint64, np.uint64]
) -> _Whole:
    """For each counter a random order of `range(size)`, in the first places of a row.

    Places are sorted by random bits, the hashes of the numbers from the counter on. The place
    itself is in the low bits, so that no two are equal and the order does not depend on how a sort
    treats equal ones.
    """
    most = int(sizes.max())
    if most > int(_PLACES):
        raise ArgumentError(f"devices must have at most {_PLACES} examples each, got {most}")
    place = np.arange(most, dtype=np.uint64)
    bits = mix64(counters[:, None] + place, *words)
    bits &= ~_PLACES
    bits |= place
    if int(sizes.min()) < most:
        # Missing examples come last: no example has all the high bits but in one of 2**40 cases,
        # and even then its place is lower.
        bits[place >= sizes[:, None].astype(np.uint64)] |= ~_PLACES
    bits.sort(axis=1)
    bits &= _PLACES
    return bits.view(np.int64)


class Sampler(ABC):
    """Draws the devices of a round. Who is drawn depends on no data but the devices' weights."""

    members: int  # devices to draw from
    cohort: int  # devices drawn, where it is the same in each round
    fixed_size: ClassVar[bool] = True  # whether it is

    @property
    def expected(self) -> float:
        """Mean number of devices drawn."""
        return float(self.cohort)

    @abstractmethod
    def draw(self, round_index: int) -> Tensor:
        """Indices of the devices of a round, ascending, int64."""

    @cached_property
    def _memo(self) -> dict[int, Any]:
        """The last block of rounds: they are functions of the seed, so this only saves time."""
        return {}


@dataclass(frozen=True)
class AllDevices(Sampler):
    """Everyone, each round: workers of distributed SGD."""

    members: int

    def __post_init__(self) -> None:
        _check_sizes(self.members)

    @property
    def cohort(self) -> int:  # type: ignore[override]
        """All of them."""
        return self.members

    @cached_property
    def _everyone(self) -> Tensor:
        return torch.arange(self.members)

    def draw(self, round_index: int) -> Tensor:  # noqa: ARG002
        """All devices."""
        return self._everyone


@dataclass(frozen=True)
class _FixedCohort(Sampler):
    """Base of samplers that treat all devices alike."""

    members: int
    cohort: int
    seed: int

    def __post_init__(self) -> None:
        _check_sizes(self.members, self.cohort)


@dataclass(frozen=True)
class UniformSampler(_FixedCohort):
    """`cohort` devices of a round, without replacement, all sets of them equally likely.

    Guarantees (`tests/training/test_sampling.py`): devices are drawn equally often, and so are
    pairs of them; rounds are independent.

    >>> UniformSampler(members=6000, cohort=3, seed=0).draw(0)
    tensor([1960, 2797, 3380])
    """

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        if 2 * self.cohort > self.members:
            words = round_words(self.seed, round_index, b"ds-uniform")
            keys = mix64(np.arange(self.members, dtype=np.uint64), *words)
            return _smallest(keys, self.cohort)
        at_once = max(1, _HASHED // self.cohort)  # small arrays cost about as much as large ones
        number, place = divmod(round_index, at_once)
        block = self._memo.get(number)
        if block is None:
            rounds = range(number * at_once, (number + 1) * at_once)
            words_of = [round_words(self.seed, index, b"ds-uniform") for index in rounds]
            keys, members = np.array(words_of).T[:, :, None], np.uint64(self.members)
            block = _first_distinct(
                lambda places: (mix64(places, *keys) % members).tolist(), self.cohort
            )
            self._memo.clear()
            self._memo[number] = block
        return torch.tensor(block[place])


@dataclass(frozen=True, eq=False)
class WeightedSampler(Sampler):
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

    def __post_init__(self) -> None:
        check(self.weights.dim() == 1, "weights", "be (devices,)", tuple(self.weights.shape))
        shares = self.weights.to(torch.float64)
        good = bool(((shares > 0) & torch.isfinite(shares)).all())
        check(good, "weights", "be > 0 and finite", self.weights)
        _check_sizes(self.members, self.cohort)

    @property
    def members(self) -> int:  # type: ignore[override]
        """Number of devices."""
        return len(self.weights)

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

        def uniform(places: npt.NDArray[np.uint64]) -> _Numbers:
            """Numbers in (0, 1), 53 bits each."""
            bits = mix64(places, *words) >> np.uint64(11)
            return (bits.astype(np.float64) + 0.5) * 2.0**-53

        def chosen(places: npt.NDArray[np.uint64]) -> list[list[int]]:
            found = np.searchsorted(self._rises, uniform(places), side="right")
            return [np.minimum(found, self.members - 1).tolist()]

        if self._repeats:
            keys = -np.log(uniform(np.arange(self.members, dtype=np.uint64))) / self._shares
            return _smallest(keys, self.cohort)
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

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        number, place = divmod(round_index, self.members // self.cohort)
        order = self._memo.get(number)
        if order is None:
            words = round_words(self.seed, number, b"ds-shuffled")
            order = np.argsort(mix64(np.arange(self.members, dtype=np.uint64), *words))
            self._memo.clear()
            self._memo[number] = order
        return torch.from_numpy(np.sort(order[place * self.cohort : (place + 1) * self.cohort]))


@dataclass(frozen=True)
class PoissonDevices(Sampler):
    """Each device with the same probability, independently: `PoissonSampler` with a seed.

    The number of devices varies and may be 0. For central trust, where it amplifies the claim; a
    mean is then the sum over `expected`, which only messages of floating-point numbers allow:
    whole numbers are decoded by the number of messages, which is secret here.
    """

    lottery: PoissonSampler
    seed: int
    fixed_size: ClassVar[bool] = False

    @classmethod
    def of(cls, members: int, cohort: float, seed: int) -> PoissonDevices:
        """Make a sampler of `cohort` devices a round on average."""
        _check_sizes(members)
        check(0 < cohort <= members, "cohort", f"be in (0, {members}]", cohort)
        return cls(PoissonSampler(members, cohort / members), seed)

    @property
    def members(self) -> int:  # type: ignore[override]
        """Number of devices."""
        return self.lottery.members

    @property
    def expected(self) -> float:
        """Mean number of devices drawn."""
        return self.lottery.expected

    def draw(self, round_index: int) -> Tensor:
        """The devices of a round."""
        key = NoiseKey.from_integer(self.seed)
        return self.lottery.draw(key.source(worker=_LOTTERY, round_index=round_index))


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
    """Places of the smallest keys, ascending."""
    return torch.from_numpy(np.sort(np.argpartition(keys, count - 1)[:count]))


def _check_sizes(members: int, cohort: int = 1) -> None:
    check_whole("members", members, least=0)
    if members == 0:
        raise DataError("there are no devices to draw from: training needs one at least")
    check_whole("cohort", cohort, least=1)
    check(cohort <= members, "cohort", f"be at most the number of devices, {members}", cohort)

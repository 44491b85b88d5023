"""Random choices of a round: the devices that take part, and the batches of each."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DataError, check, check_whole
from diffsketch.privacy.accounting.budget import PoissonSampler
from diffsketch.privacy.noise import NoiseKey
from diffsketch.sketch.hashing import mix64
from diffsketch.training.tasks import Batches, Devices

_Numbers: TypeAlias = npt.NDArray[np.float64]
_Whole: TypeAlias = npt.NDArray[np.int64]
_Words: TypeAlias = npt.NDArray[np.uint64]

_LOTTERY = (1 << 62) + 1  # number of the "worker" whose noise draws the Poisson samples
_PLACE_BITS = 24  # of a sorting key: below the random bits, so that no two keys are equal
_PLACES = np.uint64((1 << _PLACE_BITS) - 1)
# Odd, and near the golden ratio and the square root of 2 as shares of 2**64: their multiples stay
# far apart, so that the counters of two devices or epochs do not meet.
_DEVICE_STRIDE = np.uint64(0x9E3779B97F4A7C15)
_EPOCH_STRIDE = np.uint64(0x6A09E667F3BCC909)


def round_words(seed: int, round_index: int, purpose: bytes) -> tuple[np.uint64, np.uint64]:
    """Derive two random words for one purpose (up to 16 bytes) of a round, as keys of `mix64`."""
    # A keyed hash of purpose and round: no two purposes share random words, whatever the seed.
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
    """Draw the batches of each device of a cohort: of all its examples, or the next of a pass.

    With `epochs`, each device takes all its examples `epochs` times, each time in a fresh order; a
    device whose examples fit into one batch takes them unshuffled. With None, a device with `n`
    examples has `ceil(n / batch_size)` rounds a pass, each pass in a fresh order, and takes the
    batch of this round. The last batch of an epoch or pass may be short. Devices with fewer
    examples than others have empty places at the end.

    Guarantees (`tests/training/test_sampling.py`): each epoch or pass has each of the device's
    examples once; orders are uniform, and depend on the seed, the round, the epoch and the device
    alone.

    >>> from diffsketch.training.tasks import Examples
    >>> part = Examples(torch.zeros(3, 1), torch.zeros(3, dtype=torch.int64))
    >>> devices = Devices.of({"alice": part, "bob": part})
    >>> batches = draw_batches(
    ...     devices, torch.tensor([1]), seed=0, round_index=0, batch_size=2, epochs=1
    ... )
    >>> batches.indices.shape, sorted(batches.indices[batches.present].tolist())
    (torch.Size([1, 2, 2]), [3, 4, 5])
    """
    _secret(seed)  # checks it, whether or not it is used
    for name, number in (("batch_size", batch_size), ("epochs", epochs)):
        if number is not None and (type(number) is not int or number < 1):
            check_whole(name, number, least=1)
    if cohort.dtype != torch.int64 or cohort.dim() != 1 or not len(cohort):
        shown = f"{cohort.dtype} {tuple(cohort.shape)}"
        raise ArgumentError(f"cohort must be int64 (workers,), got {shown}")
    members, all_starts = cohort.numpy(), devices.starts.numpy()
    count = len(all_starts) - 1
    if int(members.view(np.uint64).max()) >= count:  # a negative index is a very large uint64
        raise ArgumentError(f"cohort must have indices in [0, {count}), got {members}")
    starts = all_starts[members]
    sizes = all_starts[members + 1] - starts
    most = int(sizes.max())
    batch_size = min(batch_size, most)  # more places would stay empty
    counters = members.view(np.uint64) * _DEVICE_STRIDE
    if epochs is None:
        # Pass and batch of this round follow from the index, so that nothing has to be remembered.
        passes, step = np.divmod(round_index, -(-sizes // batch_size))
        words = round_words(seed, 0, b"ds-order-sgd")  # devices are in different passes
        orders = _orders(counters + passes.view(np.uint64) * _EPOCH_STRIDE, sizes, words)
        place = step[:, None] * batch_size + np.arange(batch_size)
        present = (place < sizes[:, None])[:, None]
        indices = np.take_along_axis(orders, np.minimum(place, most - 1), axis=1)[:, None]
        indices += starts[:, None, None]
    else:
        steps = -(-most // batch_size)
        # No order has to be drawn: all examples are in one batch, whose mean does not depend on it.
        if steps == 1:
            orders = np.arange(most)[None, None].repeat(epochs, axis=1)  # for all devices
        else:
            words = round_words(seed, round_index, b"ds-order-fedavg")
            epoch = np.arange(epochs, dtype=np.uint64) * _EPOCH_STRIDE
            counters = (counters[:, None] + epoch).reshape(-1)
            orders = _orders(counters, np.repeat(sizes, epochs), words)
            # The order within a single batch changes nothing but the rounding.
            orders[np.repeat(sizes <= batch_size, epochs)] = np.arange(most)
            orders = orders.reshape(len(members), epochs, most)
        shape = (len(members), epochs * steps, batch_size)
        places = steps * batch_size
        present = np.repeat((np.arange(places) < sizes[:, None])[:, None], epochs, axis=1)
        present = present.reshape(shape)
        indices = orders + starts[:, None, None]
        if places > most:  # padding takes longer than all else here
            indices = np.pad(indices, ((0, 0), (0, 0), (0, places - most)))
        indices = indices.reshape(shape)
    target, taken = devices.examples.labels.device, None
    if not present.all():
        indices *= present  # empty places hold index 0
        taken = torch.from_numpy(present).to(target)
    # Computed when asked for: few models draw numbers.
    seeds = partial(model_seeds, cohort, seed=seed, round_index=round_index)
    return Batches(devices.examples, torch.from_numpy(indices).to(target), taken, seeds)


def model_seeds(cohort: Tensor, *, seed: int, round_index: int) -> Tensor:
    """Derive a seed for what each device's model draws in a round (dropout): int64, >= 0."""
    words = round_words(seed, round_index, b"ds-model-draws")
    bits = mix64(cohort.numpy().view(np.uint64) * _DEVICE_STRIDE, *words)
    return torch.from_numpy((bits >> np.uint64(1)).astype(np.int64))


def _orders(counters: _Words, sizes: _Whole, words: tuple[np.uint64, np.uint64]) -> _Whole:
    """Draw a random order of `range(size)` for each counter, in the first places of a row.

    Places are sorted by random bits, the hashes of the numbers from the counter on. The place
    itself is in the low bits, so that no two are equal and the order does not depend on how a sort
    treats equal ones.
    """
    most = int(sizes.max())
    if most > int(_PLACES):
        raise ArgumentError(f"devices must have at most {_PLACES} examples each, got {most}")
    # Each place hashes a number of its own: 40 random bits above 24 bits of place.
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
        """Draw the devices of a round: indices, ascending, int64."""


@dataclass(frozen=True)
class AllDevices(Sampler):
    """All devices, in each round: workers of distributed SGD."""

    members: int

    def __post_init__(self) -> None:
        _check_sizes(self.members)

    @property
    def cohort(self) -> int:  # type: ignore[override]
        """Number of devices."""
        return self.members

    def draw(self, round_index: int) -> Tensor:  # noqa: ARG002
        """Return all devices."""
        return torch.arange(self.members)


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
        """Draw the devices of a round."""
        words = round_words(self.seed, round_index, b"ds-uniform")
        # Where most devices are drawn, to rank all is cheaper than to strike out repetitions.
        if 2 * self.cohort > self.members:
            keys = mix64(np.arange(self.members, dtype=np.uint64), *words)
            return _smallest(keys, self.cohort)
        members = np.uint64(self.members)
        return _first_distinct(lambda places: mix64(places, *words) % members, self.cohort)


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
        cohort: Number of devices to draw.
        seed: Seed of the run.
    """

    weights: Tensor
    cohort: int
    seed: int

    def __post_init__(self) -> None:
        check(self.weights.dim() == 1, "weights", "be (devices,)", tuple(self.weights.shape))
        shares = self.weights.to(torch.float64)
        positive = bool(((shares > 0) & torch.isfinite(shares)).all())
        check(positive, "weights", "be > 0 and finite", self.weights)
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
    def _repeats(self) -> bool:
        """Whether a draw may well repeat an earlier one. It depends on no draw."""
        # After the heaviest devices are drawn, more than every second draw would repeat one.
        # By the weights alone: if it depended on draws, the two ways would not add up to one law.
        return bool(np.sort(self._shares)[-self.cohort :].sum() > 0.5)

    def draw(self, round_index: int) -> Tensor:
        """Draw the devices of a round."""
        words = round_words(self.seed, round_index, b"ds-weighted")

        def uniform(places: _Words) -> _Numbers:
            """Numbers in (0, 1), 53 bits each."""
            # Half a step above the grid: never 0, whose logarithm is infinite.
            bits = mix64(places, *words) >> np.uint64(11)
            return (bits.astype(np.float64) + 0.5) * 2.0**-53

        if self._repeats:
            keys = -np.log(uniform(np.arange(self.members, dtype=np.uint64))) / self._shares
            return _smallest(keys, self.cohort)

        def chosen(places: _Words) -> _Whole:
            above = np.searchsorted(self._rises, uniform(places), side="right")
            return np.minimum(above, self.members - 1)  # a number may round to 1

        return _first_distinct(chosen, self.cohort)

    @cached_property
    def _rises(self) -> _Numbers:
        """Upper ends of the devices' intervals in [0, 1]."""
        rises: _Numbers = np.cumsum(self._shares)
        # Ends at exactly 1, so that no uniform number lies beyond the last device.
        rises /= rises[-1]
        return rises

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
        """Draw the devices of a round."""
        number, place = divmod(round_index, self.members // self.cohort)
        order = _shuffled(self, number)
        return torch.from_numpy(np.sort(order[place * self.cohort : (place + 1) * self.cohort]))


@lru_cache(maxsize=8)  # a pure function of the seed
def _shuffled(sampler: ShuffledSampler, number: int) -> _Whole:
    """Draw the order of the devices in a pass."""
    words = round_words(sampler.seed, number, b"ds-shuffled")
    # 64 random bits a device: two are equal with a probability of about members squared over 2**65.
    return np.argsort(mix64(np.arange(sampler.members, dtype=np.uint64), *words))


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
        """Draw the devices of a round."""
        # Of the seed alone, not of the run: all methods see the same devices.
        key = NoiseKey.from_integer(self.seed)
        return self.lottery.draw(key.source(worker=_LOTTERY, round_index=round_index))


def _first_distinct(values_at: Callable[[_Words], npt.NDArray[Any]], count: int) -> Tensor:
    """Find the first `count` distinct values of a sequence, given by their places; sorted."""
    # A guess: a longer sequence begins like a shorter one, so the result does not depend on it.
    length = count + count // 4 + 8
    while True:
        values = values_at(np.arange(length, dtype=np.uint64)).tolist()
        distinct = list(dict.fromkeys(values))  # in the order of first places
        if len(distinct) >= count:
            return torch.tensor(sorted(distinct[:count]))
        length *= 2


def _smallest(keys: npt.NDArray[Any], count: int) -> Tensor:
    """Find the places of the smallest keys, ascending."""
    return torch.from_numpy(np.sort(np.argpartition(keys, count - 1)[:count]))


def _check_sizes(members: int, cohort: int = 1) -> None:
    check_whole("members", members, least=0)
    if members == 0:
        raise DataError("there are no devices to draw from: training needs one at least")
    check_whole("cohort", cohort, least=1)
    check(cohort <= members, "cohort", f"be at most the number of devices, {members}", cohort)

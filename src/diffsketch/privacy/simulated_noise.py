"""The interface of noise sources, and noise for simulation, reproducible from a key.

Integers are drawn by table: they are cut into blocks of `2**shift`, few enough for a table. A block
is drawn with a probability proportional to its highest weight, an integer in it evenly, and it is
kept with the ratio of its weight to the highest one. Narrow distributions have one integer per
block, so that nothing is ever rejected and this is plain inversion of the distribution function.

How exact: weights are computed in float64 to a relative error below 1e-11, and the table resolves
probabilities to 2**-64; integers with a total probability below 2**-64 are never drawn. No sample
that fits in memory can tell that from the exact distribution. It is still not for real releases:
`SecureNoise` is.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_type, check_whole

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
LogWeight: TypeAlias = Callable[[Integers], Floats]
LawName: TypeAlias = Literal["discrete_gaussian", "discrete_laplace", "skellam", "binomial"]

MAX_SCALE = 2.0**50  # of whole numbers, which then stay far within int64
MAX_BLOCKS = 1 << 14  # of a table: its cost is then below that of a few thousand draws
_TAIL = 46.0  # 2 exp(-46) < 2**-64: where distributions are cut off
_GUIDE_BITS = 16  # of a random word that tell the block at once, in most cases
# Draws from which on the guide beats a search: 4 us against 5 for these, 20 against 700 for 16,000.
# To make it takes 1 ms, but once for a law: runs draw from it in each round, for every device.
_GUIDE_FROM = 1 << 9


def count_cells(shape: tuple[int, ...]) -> int:
    """The product of a shape, checked."""
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        check(False, "shape", "be a tuple of sizes >= 0", shape)
    return math.prod(shape)


def checked_probabilities(probabilities: Tensor) -> npt.NDArray[np.float64]:
    """A tensor of probabilities as a flat array; raises unless all are in `[0, 1]`."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        raise ArgumentError("probabilities must be a tensor of a floating type")
    known = probabilities.dtype in (torch.float32, torch.float64)  # NumPy has no bfloat16
    values = (probabilities if known else probabilities.float()).detach().cpu().numpy()
    flat = values.astype(np.float64).ravel()
    if len(flat) and not (flat.min() >= 0 and flat.max() <= 1):
        raise ArgumentError("probabilities must be in [0, 1], got others or NaN among them")
    return flat


@lru_cache(maxsize=64)  # the same scales in each round of a run
def float_type(name: str, scale: float, dtype: torch.dtype) -> type[np.float32 | np.float64]:
    """NumPy's type for a type that can hold the scale: noise must not vanish or overflow in it."""
    check(dtype in (torch.float32, torch.float64), "dtype", "be float32 or float64", dtype)
    info = torch.finfo(dtype)
    good = scale == 0 or info.tiny <= scale <= info.max / 100
    check(good, name, f"be 0 or in [{info.tiny:.2g}, {info.max / 100:.2g}] for {dtype}", scale)
    return np.float32 if dtype == torch.float32 else np.float64


@dataclass(frozen=True)
class BlockSearch:
    """Finds the blocks of random words: block `i` ends before the word `limits[i]`."""

    limits: npt.NDArray[np.uint64]

    def find(self, words: npt.NDArray[np.uint64]) -> Integers:
        """The block of each word. The guide saves most searches and changes no result."""
        if len(words) < _GUIDE_FROM:
            return np.searchsorted(self.limits, words, side="right")
        firsts = (words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
        index: Integers = self._guide[firsts].astype(np.int64)
        (doubtful,) = np.nonzero(index < 0)
        index[doubtful] = np.searchsorted(self.limits, words[doubtful], side="right")
        return index

    @cached_property
    def _guide(self) -> npt.NDArray[np.int16]:
        """The block for the first bits of a word, or -1 if more bits are needed."""
        # The limits at or below the last word that begins with some bits, counted for all bits at
        # once; a limit among the words that begin so, other than the first of them, is undecided.
        firsts = (self.limits >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
        guide = np.bincount(firsts, minlength=1 << _GUIDE_BITS).cumsum()
        guide[firsts[self.limits << np.uint64(_GUIDE_BITS) != 0]] = -1
        return guide.astype(np.int16)


class Noise(ABC):
    """A stream of random numbers that belongs to one message."""

    def part(self, rows: Tensor) -> Noise:  # noqa: ARG002
        """The source to draw from for only these rows (indices or a mask) of a batch."""
        return self

    @abstractmethod
    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation, float32 or float64."""

    @abstractmethod
    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale; its standard deviation is sqrt(2) times that."""

    @abstractmethod
    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, else 0 (int64)."""

    @abstractmethod
    def words(self, shape: tuple[int, ...]) -> Tensor:
        """64 random bits in each place, as int64."""

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        check(0 <= std <= MAX_SCALE, "std", "be in [0, 2**50]", std)
        return self._integers(shape, "discrete_gaussian", std)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        check(0 <= scale <= MAX_SCALE, "scale", "be in [0, 2**50]", scale)
        return self._integers(shape, "discrete_laplace", scale)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        check(0 <= variance <= MAX_SCALE**2, "variance", "be in [0, 2**100]", variance)
        return self._integers(shape, "skellam", variance)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """Successes (int64) among so many independent trials."""
        check_whole("trials", trials, least=0)
        check(trials <= MAX_SCALE, "trials", "be in [0, 2**50]", trials)
        check(0 <= probability <= 1, "probability", "be in [0, 1]", probability)
        return self._integers(shape, "binomial", trials, probability)

    def _integers(self, shape: tuple[int, ...], law: LawName, *parameters: float) -> Tensor:
        """Numbers of a law with these parameters, which were checked."""
        raise NotImplementedError


@dataclass(frozen=True)
class IntegerTable:
    """A distribution over integers to draw from.

    Blocks are in order of rising probability, so that the smallest ones are resolved best.
    """

    starts: Integers  # the first integer of each block
    search: BlockSearch
    shift: int  # blocks have 2**shift integers
    peaks: Floats  # the largest logarithm of a weight in each block
    sure: Floats  # the ratio of the smallest weight to the largest in each block
    log_weight: LogWeight

    @classmethod
    def build(cls, log_weight: LogWeight, *, mode: int, below: int, above: int) -> IntegerTable:
        """The table of integers from `mode - below` to `mode + above`; weights fall off `mode`."""
        shift = max(0, (below + above).bit_length() - (MAX_BLOCKS.bit_length() - 1))
        width = 1 << shift
        blocks = np.arange(-below // width, above // width + 1, dtype=np.int64)
        starts = mode + blocks * width
        near = np.where(blocks < 0, starts + (width - 1), starts)
        far = np.where(blocks < 0, starts, starts + (width - 1))
        peaks, sure = log_weight(near), np.ones(len(starts))
        if shift:
            sure = np.exp(log_weight(far) - peaks)
        order = np.argsort(peaks, kind="stable")
        sums = np.cumsum(np.exp(peaks[order] - peaks.max()))
        limits = (sums[:-1] / sums[-1] * 2.0**64).astype(np.uint64)
        return cls(starts[order], BlockSearch(limits), shift, peaks[order], sure[order], log_weight)

    def draw(self, rng: np.random.Generator, count: int) -> Integers:
        """So many integers, independent of each other."""
        values, kept = self._propose(rng, count)
        while not kept.all():
            (missing,) = np.nonzero(~kept)
            values[missing], kept[missing] = self._propose(rng, len(missing))
        return values

    def _propose(
        self, rng: np.random.Generator, count: int
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        index = self.search.find(_words(rng, count))
        values = self.starts[index]
        if not self.shift:
            return values, np.ones(count, np.bool_)
        values += (_words(rng, count) >> np.uint64(64 - self.shift)).view(np.int64)
        chance = rng.random(count)
        kept = chance < self.sure[index]
        (doubtful,) = np.nonzero(~kept)
        ratio = np.exp(self.log_weight(values[doubtful]) - self.peaks[index[doubtful]])
        kept[doubtful] = chance[doubtful] < ratio
        return values, kept

    def draw_rows(self, rngs: Iterable[np.random.Generator], count: int) -> Integers:
        """A row for each generator, as `draw` gives it, but looked up together."""
        if self.shift:
            rows = [self.draw(rng, count) for rng in rngs]
            return np.stack(rows) if rows else np.empty((0, count), np.int64)
        words = [_words(rng, count) for rng in rngs]
        flat = np.concatenate(words) if words else np.empty(0, np.uint64)
        return self.starts[self.search.find(flat)].reshape(len(words), count)


def exponential(scale: float, power: int) -> IntegerTable:
    """Weights `exp(-abs(x / scale)**power / power)`: Laplace for power 1, Gaussian for power 2."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(over="ignore"):  # far beyond a tiny scale: a weight of 0
            return np.asarray(-(np.abs(x / scale) ** power) / power)

    radius = math.ceil((power * _TAIL) ** (1 / power) * scale) + 1
    return IntegerTable.build(log_weight, mode=0, below=radius, above=radius)


def skellam(variance: float) -> IntegerTable:
    """Weights `exp(-variance) * I(x, variance)`, of the modified Bessel function."""

    def log_weight(x: Integers) -> Floats:
        from scipy.special import ive  # at first use: it takes time to load

        with np.errstate(divide="ignore"):  # the function underflows far beyond a tiny variance
            return np.log(np.asarray(ive(np.abs(x), variance), np.float64))

    def log_weight_if_wide(x: Integers) -> Floats:
        # Debye's expansion up to an exponential factor that is the same for all x. The next term
        # is below variance**-3, and the expansion is used only beyond 10**5.
        root = np.hypot(x, variance)
        share = np.square(x / root)
        rest = (3 - 5 * share) / (24 * root)
        rest += (81 - 462 * share + 385 * np.square(share)) / (1152 * np.square(root))
        power = np.square(x.astype(np.float64)) / (root + variance) - x * np.arcsinh(x / variance)
        return np.asarray(power - 0.5 * np.log(root / variance) + np.log1p(rest))

    radius = _bernstein_radius(variance)
    weight = log_weight if 2 * radius < MAX_BLOCKS else log_weight_if_wide
    return IntegerTable.build(weight, mode=0, below=radius, above=radius)


def binomial(trials: int, probability: float) -> IntegerTable:
    """Weights of the binomial distribution, for a probability above 0 and below 1."""
    mean = trials * Fraction(probability)  # exactly
    mode = min(trials, math.floor(mean + Fraction(probability)))
    radius = _bernstein_radius(float(mean * (1 - Fraction(probability)))) + 1
    low, high = max(0, mode - radius), min(trials, mode + radius)
    centre = round(mean)
    rest, successes, failures = float(mean - centre), float(mean), float(trials - mean)

    def deviance(d: Floats) -> Floats:  # (1 + d) log(1 + d) - d for small d, by its series
        total = np.zeros_like(d)
        for k in range(16, 1, -1):
            total = total * -d + 1 / (k * (k - 1))
        return np.asarray(np.square(d) * total)

    def weight_if_wide(x: Integers) -> Floats:
        # Stirling's formula, up to a constant. Both outcomes are 10**5 and more, so that its next
        # term is below 1e-15. Sizes that nearly cancel are never computed: only the distance is.
        distance = (x - centre).astype(np.float64) - rest
        one: Floats = distance / successes
        two: Floats = -distance / failures
        power = successes * deviance(one) + failures * deviance(two)
        roots = 0.5 * (np.log1p(one) + np.log1p(two))
        terms = 1 / (successes * (1 + one)) + 1 / (failures * (1 + two))
        return np.asarray(-power - roots - terms / 12)

    if high - low >= MAX_BLOCKS:
        weight = weight_if_wide
    else:
        # Ratios of neighbours: no difference of large logarithms of factorials.
        x = np.arange(low, high)
        steps = np.log((trials - x) / (x + 1)) + math.log(probability / (1 - probability))
        logs = np.concatenate([[0.0], np.cumsum(steps)])

        def weight(x: Integers) -> Floats:
            return logs[x - low]

    return IntegerTable.build(weight, mode=mode, below=mode - low, above=high - mode)


def _bernstein_radius(variance: float) -> int:
    """A sum of steps up to 1 is farther from its mean with probability below 2**-64."""
    return math.ceil(_TAIL / 3 + math.sqrt(_TAIL**2 / 9 + 2 * _TAIL * variance))


def _words(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64)


@lru_cache(maxsize=64, typed=True)
def integer_table(law: LawName, *parameters: float) -> IntegerTable:
    """The table of a law, kept for the next draw from it."""
    if law == "skellam":
        return skellam(*parameters)
    if law == "binomial":
        trials, probability = parameters
        return binomial(int(trials), probability)
    return exponential(parameters[0], 2 if law == "discrete_gaussian" else 1)


@dataclass(frozen=True)
class NoiseKey:
    """A secret of one simulated world, from which each message's noise is derived.

    >>> key = NoiseKey.from_integer(7)
    >>> one = key.source(worker=0, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> two = key.source(worker=1, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> bool((one == two).any())
    False
    """

    secret: bytes

    def __post_init__(self) -> None:
        if not isinstance(self.secret, bytes) or len(self.secret) != 32:
            raise ArgumentError("secret must be 32 bytes")  # without showing it

    @classmethod
    def from_integer(cls, number: int) -> NoiseKey:
        """A key for experiments, where a run is named by a number."""
        check_whole("number", number, least=0, most=2**256 - 1)
        text = number.to_bytes(32, "little")
        return cls(hashlib.blake2b(text, digest_size=32, person=b"ds-noise-number").digest())

    def source(self, *, worker: int, round_index: int) -> FastNoise:
        """The noise of one worker's message in one round; the same numbers each time."""
        check_whole("worker", worker, least=0, most=2**64 - 1)
        check_whole("round_index", round_index, least=0, most=2**64 - 1)
        text = worker.to_bytes(8, "little") + round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=self.secret, digest_size=32, person=b"ds-noise")
        return FastNoise(int.from_bytes(digest.digest(), "little"))

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"


_Row = TypeVar("_Row")


class SimulatedNoise(Noise):
    """Samplers in floating point on a generator that a subclass puts in place for each row."""

    _rng: np.random.Generator

    @abstractmethod
    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows with a stream of their own in such a shape, and the numbers in each."""

    @abstractmethod
    def _each(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        """The rows, while the generator is at the beginning of each one's stream."""

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation, float32 or float64."""
        kind: Any = float_type("std", std, dtype)
        values = np.empty(self._size(shape), kind)
        for row in self._each(values):
            self._rng.standard_normal(dtype=kind, out=row)
        values *= kind(std)
        return torch.from_numpy(values).reshape(shape)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale; its standard deviation is sqrt(2) times that."""
        kind: Any = float_type("scale", scale, dtype)
        rows, cells = self._size(shape)
        values = np.empty((rows, 2 * cells), kind)
        for row in self._each(values):
            self._rng.standard_exponential(dtype=kind, out=row)
        difference = values[:, :cells] - values[:, cells:]
        difference *= kind(scale)
        return torch.from_numpy(difference).reshape(shape)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, to 2**-53, else 0 (int64)."""
        shape = tuple(probabilities.shape)
        uniform = np.empty(self._size(shape))
        chances = checked_probabilities(probabilities).reshape(uniform.shape)
        for row in self._each(uniform):
            self._rng.random(out=row)
        values = torch.from_numpy((uniform < chances).astype(np.int64))
        return values.reshape(shape).to(probabilities.device)

    def words(self, shape: tuple[int, ...]) -> Tensor:
        """64 random bits in each place, as int64."""
        values = np.empty(self._size(shape), np.int64)
        for row in self._each(values):
            row[:] = self._rng.integers(-(2**63), 2**63, row.size)
        return torch.from_numpy(values).reshape(shape)

    def _integers(self, shape: tuple[int, ...], law: LawName, *parameters: float) -> Tensor:
        rows, cells = self._size(shape)
        first, last = parameters[0], parameters[-1]
        if law == "binomial" and last in (0, 1):
            return torch.full(shape, int(first * last), dtype=torch.int64)
        if law != "binomial" and not first:
            return torch.zeros(shape, dtype=torch.int64)
        # The generator is the same object each time, at another row's stream.
        values = integer_table(law, *parameters).draw_rows(self._each([self._rng] * rows), cells)
        return torch.from_numpy(values).reshape(shape)


class FastNoise(SimulatedNoise):
    """Noise of one message, for simulation, from a seeded generator of its own.

    The same seed and calls give the same numbers. Normal and Laplace noise are as exact as their
    type; whole numbers are within 1e-11 of their distribution in total variation
    (`tests/privacy/test_noise.py`). A scale of 0 gives zeros.

    >>> FastNoise(7).discrete_gaussian((2, 3), std=2.0).shape
    torch.Size([2, 3])
    """

    def __init__(self, seed: int) -> None:
        check_whole("seed", seed, least=0)
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        return 1, count_cells(shape)

    def _each(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        return iter(rows)


SERVER_NOISE = 1 << 62
"""Number of the worker whose noise is the server's; on the wire the server is `wire.SERVER`."""

_UNUSED = np.random.SeedSequence(0)  # of a generator that is set before it draws


class CohortNoise(SimulatedNoise):
    """The noise of a round's workers, for simulation: row `i` of a draw is worker `i`'s own.

    A worker's numbers depend on the key, the round, the worker and how often it has drawn, and
    not on who else is in the cohort: a worker alone, in a batch, or in another engine adds the
    same noise. The streams are those of the counter-based generator Philox: the key and the round
    give its key, and the worker and the number of its draws are half of the counter, so that no two
    draws overlap. Nothing is set up before the first draw.

    Guarantees (`tests/privacy/test_noise.py`): rows are those of the workers on their own; no two
    workers, rounds or draws share numbers.

    Args:
        key: The secret of the simulated world.
        workers: Numbers of the workers, one for each row.
        round_index: The round.

    >>> noise = CohortNoise(NoiseKey.from_integer(7), [4, 9], round_index=0)
    >>> alone = CohortNoise(NoiseKey.from_integer(7), [9], round_index=0)
    >>> both = noise.normal((2, 3), 1.0, dtype=torch.float32)
    >>> bool((both[1] == alone.normal((1, 3), 1.0, dtype=torch.float32)).all())
    True
    """

    def __init__(self, key: NoiseKey, workers: Sequence[int], *, round_index: int) -> None:
        # Made in every round: what is right is seen here, without a call.
        if not isinstance(key, NoiseKey):
            check_type("key", key, NoiseKey)
        if type(round_index) is not int or not 0 <= round_index < 1 << 64:
            check_whole("round_index", round_index, least=0, most=2**64 - 1)
        self._key, self._round = key, round_index
        self._workers = [int(worker) for worker in workers]
        for number in (min(self._workers, default=0), max(self._workers, default=0)):
            if not 0 <= number < 1 << 63:
                check(False, "workers", "be in [0, 2**63)", number)
        self._draws = dict.fromkeys(self._workers, 0)
        if len(self._draws) != len(self._workers):
            raise ArgumentError("workers must be different, or they would add the same noise")

    @cached_property
    def _rng(self) -> np.random.Generator:  # type: ignore[override]
        return np.random.Generator(np.random.Philox(_UNUSED))

    @cached_property
    def _state(self) -> Any:
        """State that the generator is set to before each draw: faster than `Philox(key=...)`."""
        text, secret = self._round.to_bytes(8, "little"), self._key.secret
        digest = hashlib.blake2b(text, key=secret, digest_size=16, person=b"ds-cohort-noise")
        words = np.frombuffer(digest.digest(), "<u8").astype(np.uint64)
        return {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, np.uint64), "key": words},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def part(self, rows: Tensor) -> CohortNoise:
        """The noise of the workers whose rows are given (indices or a mask), as they go on."""
        indices = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        workers = [self._workers[i] for i in indices.tolist()]
        other = CohortNoise(self._key, workers, round_index=self._round)
        other._draws = self._draws  # shared: numbers that a part has drawn are not drawn again
        return other

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        if not shape or shape[0] != len(self._workers):
            raise ArgumentError(
                f"shape must start with a row for each of {len(self._workers)} workers, got {shape}"
            )
        count_cells(shape)  # checks the sizes
        return shape[0], math.prod(shape[1:])

    def _each(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        bits, state = self._rng.bit_generator, self._state
        draws, workers = self._draws, self._workers
        counters = np.zeros((len(workers), 4), np.uint64)
        counters[:, 2], counters[:, 3] = workers, [draws[worker] for worker in workers]
        for worker, row, counter in zip(workers, rows, counters, strict=True):
            draws[worker] += 1
            state["state"]["counter"] = counter
            bits.state = state
            yield row

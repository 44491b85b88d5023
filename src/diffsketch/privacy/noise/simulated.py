"""Noise for simulation: reproducible from a key."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.noise.base import (
    MAX_SCALE,
    Noise,
    check_scale,
    check_trials,
    checked_probabilities,
    count_cells,
    float_type,
)

Integers: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
LogWeight: TypeAlias = Callable[[Integers], Floats]

MAX_BLOCKS = 1 << 14  # of a table: its cost is then below that of a few thousand draws
_GUIDE_BITS = 16  # of a random word that tell the block at once, in most cases
_GUIDE_FROM = 1 << 14  # draws that make up for the cost of the guide
_TAIL = 46.0  # 2 exp(-46) < 2**-64: where distributions are cut off


@dataclass(frozen=True)
class IntegerTable:
    """A distribution over integers to draw from.

    Args:
        starts: First integer of each block; the blocks in order of rising probability, so that
            the smallest probabilities are resolved best.
        limits: Random words below the i-th of these (and not below the one before) mean block i.
        shift: Blocks have `2**shift` integers.
        peaks: Largest logarithm of a weight in each block.
        sure: Ratio of the smallest weight to the largest in each block.
        log_weight: Logarithm of the weight of any integer.
    """

    starts: Integers
    limits: npt.NDArray[np.uint64]
    shift: int
    peaks: Floats
    sure: Floats
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
        return cls(starts[order], limits, shift, peaks[order], sure[order], log_weight)

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
        """Integers, and whether they may be kept."""
        index = self._blocks(_words(rng, count))
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
        """What `draw` gives for each generator, looked up together: `(generators, count)`."""
        if self.shift:
            rows = [self.draw(rng, count) for rng in rngs]
            return np.stack(rows) if rows else np.empty((0, count), np.int64)
        words = [_words(rng, count) for rng in rngs]
        flat = np.concatenate(words) if words else np.empty(0, np.uint64)
        return self.starts[self._blocks(flat)].reshape(len(words), count)

    def _blocks(self, words: npt.NDArray[np.uint64]) -> npt.NDArray[np.intp]:
        """The blocks of random words. The guide saves most searches and changes no result."""
        if len(words) < _GUIDE_FROM:
            return np.searchsorted(self.limits, words, side="right")
        firsts = (words >> np.uint64(64 - _GUIDE_BITS)).view(np.int64)
        index: npt.NDArray[np.intp] = self._guide[firsts]
        (doubtful,) = np.nonzero(index < 0)
        index[doubtful] = np.searchsorted(self.limits, words[doubtful], side="right")
        return index

    @cached_property
    def _guide(self) -> npt.NDArray[np.intp]:
        """For the first bits of a word: the block, or -1 if more bits are needed."""
        rest = np.uint64(64 - _GUIDE_BITS)
        firsts = np.arange(1 << _GUIDE_BITS, dtype=np.uint64) << rest
        low = np.searchsorted(self.limits, firsts, side="right")
        high = np.searchsorted(self.limits, firsts | np.uint64((1 << int(rest)) - 1), side="right")
        return np.where(low == high, low, -1)


def discrete_gaussian(std: float) -> IntegerTable:
    """Weights `exp(-x**2 / (2 std**2))`."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(over="ignore"):  # far beyond a tiny std: a weight of 0
            return -0.5 * np.square(x / std)

    radius = math.ceil(math.sqrt(2 * _TAIL) * std) + 1
    return IntegerTable.build(log_weight, mode=0, below=radius, above=radius)


def discrete_laplace(scale: float) -> IntegerTable:
    """Weights `exp(-abs(x) / scale)`."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(over="ignore"):
            return -np.abs(x) / scale

    radius = math.ceil(_TAIL * scale) + 1
    return IntegerTable.build(log_weight, mode=0, below=radius, above=radius)


def skellam(variance: float) -> IntegerTable:
    """Weights `exp(-variance) * I(x, variance)`, of the modified Bessel function."""

    def log_weight(x: Integers) -> Floats:
        with np.errstate(divide="ignore"):  # the function underflows far beyond a tiny variance
            return np.log(np.asarray(special.ive(np.abs(x), variance), np.float64))

    def log_weight_if_wide(x: Integers) -> Floats:
        # Debye's expansion up to an exponential factor that is the same for all x. The next term
        # is below variance**-3, and the expansion is used only beyond 10**5.
        root = np.hypot(x, variance)
        share = np.square(x / root)
        rest = (3 - 5 * share) / (24 * root)
        rest += (81 - 462 * share + 385 * np.square(share)) / (1152 * np.square(root))
        power = np.square(x.astype(np.float64)) / (root + variance) - x * np.arcsinh(x / variance)
        result: Floats = power - 0.5 * np.log(root / variance) + np.log1p(rest)
        return result

    radius = _bernstein_radius(variance)
    weight = log_weight if 2 * radius < MAX_BLOCKS else log_weight_if_wide
    return IntegerTable.build(weight, mode=0, below=radius, above=radius)


def binomial(trials: int, probability: float) -> IntegerTable:
    """Weights of the binomial distribution, for a probability above 0 and below 1."""
    mean = trials * Fraction(probability)  # exactly
    mode = min(trials, math.floor(mean + Fraction(probability)))
    radius = _bernstein_radius(float(mean * (1 - Fraction(probability)))) + 1
    low, high = max(0, mode - radius), min(trials, mode + radius)
    if high - low >= MAX_BLOCKS:
        weight = _wide_binomial(trials, mean)
    else:
        # Ratios of neighbours: no difference of large logarithms of factorials.
        x = np.arange(low, high)
        steps = np.log((trials - x) / (x + 1)) + math.log(probability / (1 - probability))
        logs = np.concatenate([[0.0], np.cumsum(steps)])

        def weight(x: Integers) -> Floats:
            return logs[x - low]

    return IntegerTable.build(weight, mode=mode, below=mode - low, above=high - mode)


def _wide_binomial(trials: int, mean: Fraction) -> LogWeight:
    """By Stirling's formula, up to a common factor, where successes and failures are many.

    Many is 10**5 and more, so that the formula's next term is below 1e-15. The sizes that nearly
    cancel are never computed: only the distance from the mean is.
    """
    centre = round(mean)
    rest, successes, failures = float(mean - centre), float(mean), float(trials - mean)

    def log_weight(x: Integers) -> Floats:
        distance = (x - centre).astype(np.float64) - rest
        one: Floats = distance / successes
        two: Floats = -distance / failures
        power = successes * _deviance(one) + failures * _deviance(two)
        roots = 0.5 * (np.log1p(one) + np.log1p(two))
        terms = 1 / (successes * (1 + one)) + 1 / (failures * (1 + two))
        result: Floats = -power - roots - terms / 12
        return result

    return log_weight


def _deviance(d: Floats) -> Floats:
    """`(1 + d) log(1 + d) - d` for small `d`, by its series."""
    total = np.zeros_like(d)
    for k in range(16, 1, -1):
        total = total * -d + 1 / (k * (k - 1))
    result: Floats = np.square(d) * total
    return result


def _bernstein_radius(variance: float) -> int:
    """A sum of steps up to 1 is farther from its mean with probability below 2**-64."""
    return math.ceil(_TAIL / 3 + math.sqrt(_TAIL**2 / 9 + 2 * _TAIL * variance))


def _words(rng: np.random.Generator, count: int) -> npt.NDArray[np.uint64]:
    return rng.integers(0, 1 << 64, count, dtype=np.uint64)


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
            raise ArgumentError("secret must be 32 bytes")

    @classmethod
    def from_integer(cls, number: int) -> NoiseKey:
        """A key for experiments, where a run is named by a number."""
        if isinstance(number, bool) or not isinstance(number, int):
            raise ArgumentError(f"number must be an int, got {type(number).__name__}")
        check(0 <= number < 1 << 256, "number", "be in [0, 2**256)", number)
        text = number.to_bytes(32, "little")
        return cls(hashlib.blake2b(text, digest_size=32, person=b"ds-noise-number").digest())

    def source(self, *, worker: int, round_index: int) -> FastNoise:
        """The noise of one worker's message in one round; the same numbers each time."""
        for name, value in (("worker", worker), ("round_index", round_index)):
            if isinstance(value, bool) or not isinstance(value, int):
                raise ArgumentError(f"{name} must be an int, got {type(value).__name__}")
            check(0 <= value < 1 << 64, name, "be in [0, 2**64)", value)
        text = worker.to_bytes(8, "little") + round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=self.secret, digest_size=32, person=b"ds-noise")
        return FastNoise(int.from_bytes(digest.digest(), "little"))

    def __repr__(self) -> str:
        return "NoiseKey(<secret>)"


class FastNoise(Noise):
    """For simulation: a seeded generator of its own, and samplers in floating point.

    The same seed and calls give the same numbers. Normal and Laplace noise are as exact as their
    type; whole numbers are drawn as `noise/py` says, within 1e-11 of their
    distribution in total variation (`tests/privacy/test_discrete_sampling.py`). A scale of 0
    gives zeros.

    >>> FastNoise(7).discrete_gaussian((2, 3), std=2.0).shape
    torch.Size([2, 3])
    """

    secure = False

    def __init__(self, seed: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int):
            raise ArgumentError(f"seed must be an int, got {type(seed).__name__}")
        check(seed >= 0, "seed", "be >= 0", seed)
        self._rng = np.random.Generator(np.random.SFC64(seed))

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation, float32 or float64."""
        kind = float_type("std", std, dtype)
        values = self._rng.standard_normal(count_cells(shape), dtype=kind)
        values *= kind(std)
        return torch.from_numpy(values).reshape(shape)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale, float32 or float64."""
        kind, count = float_type("scale", scale, dtype), count_cells(shape)
        values = self._rng.standard_exponential(count, dtype=kind)
        values -= self._rng.standard_exponential(count, dtype=kind)
        values *= kind(scale)
        return torch.from_numpy(values).reshape(shape)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, to 2**-53, else 0 (int64)."""
        chances = checked_probabilities(probabilities)
        values = (self._rng.random(len(chances)) < chances).astype(np.int64)
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        return self._integers(shape, integer_law("discrete_gaussian", std))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        return self._integers(shape, integer_law("discrete_laplace", scale))

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        return self._integers(shape, integer_law("skellam", variance))

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64)."""
        return self._integers(shape, binomial_law(trials, probability))

    def _integers(self, shape: tuple[int, ...], law: IntegerTable | int) -> Tensor:
        count = count_cells(shape)
        if isinstance(law, int):
            return torch.full(shape, law, dtype=torch.int64)
        return torch.from_numpy(law.draw(self._rng, count)).reshape(shape)


@lru_cache(maxsize=64, typed=True)
def integer_law(
    kind: Literal["discrete_gaussian", "discrete_laplace", "skellam"], scale: float
) -> IntegerTable | int:
    """A table to draw from, kept, or the only number there is: 0 for a scale of 0."""
    name = {"discrete_gaussian": "std", "discrete_laplace": "scale", "skellam": "variance"}[kind]
    check_scale(name, scale, MAX_SCALE**2 if kind == "skellam" else MAX_SCALE)
    table: Callable[[float], IntegerTable] = globals()[kind]
    return table(scale) if scale else 0


@lru_cache(maxsize=64, typed=True)
def binomial_law(trials: int, probability: float) -> IntegerTable | int:
    """A table to draw from, kept, or the only number there is."""
    check_trials(trials, probability)
    if probability in (0, 1):
        return trials * int(probability)
    return binomial(trials, float(probability))


SERVER = 1 << 62
"""Number of the worker whose noise is the server's."""

_T = TypeVar("_T")
_MOST_DRAWS = 1 << 63
_UNUSED = np.random.SeedSequence(0)  # of a generator that is set before it draws


class CohortNoise(Noise):
    """The noise of a round's workers, for simulation: row `i` of a draw is worker `i`'s own.

    What a worker draws depends on the key, the round, the worker and how often it has drawn, and
    not on who else is in the cohort: a worker alone, in a batch, or in another engine adds the
    same noise. The streams are those of the counter-based generator Philox: the key and the round
    give its key, and the worker and the number of its draws are half of the counter, so that no two
    draws overlap.

    Guarantees (`tests/privacy/test_cohort_noise.py`): rows are those of the workers on their own;
    no two workers, rounds or draws share numbers.

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

    secure = False

    def __init__(self, key: NoiseKey, workers: Sequence[int], *, round_index: int) -> None:
        if not isinstance(key, NoiseKey):
            raise ArgumentError(f"key must be a NoiseKey, got {type(key).__name__}")
        check(0 <= round_index < 1 << 64, "round_index", "be in [0, 2**64)", round_index)
        numbers = [int(worker) for worker in workers]
        for number in (min(numbers, default=0), max(numbers, default=0)):
            check(0 <= number < _MOST_DRAWS, "workers", "be in [0, 2**63)", number)
        if len(set(numbers)) != len(numbers):
            raise ArgumentError("workers must be different, or they would add the same noise")
        text = round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=key.secret, digest_size=16, person=b"ds-cohort-noise")
        words = np.frombuffer(digest.digest(), "<u8").astype(np.uint64)
        self._workers, self._draws = numbers, dict.fromkeys(numbers, 0)
        self._bits = np.random.Philox(_UNUSED)
        self._rng = np.random.Generator(self._bits)
        # What the generator is set to before each draw; `Philox(key=...)`, in more time, is there.
        self._state: Any = {
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
        other = object.__new__(CohortNoise)
        other._workers = [self._workers[i] for i in indices.tolist()]
        # The counts are shared: what a part has drawn is not drawn again. So is the generator,
        # which is set anew for each draw.
        other._draws, other._state = self._draws, self._state
        other._bits, other._rng = self._bits, self._rng
        return other

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation."""
        kind: Any = float_type("std", std, dtype)
        values = np.empty((len(self._workers), self._cells(shape)), kind)
        for row in self._each(values):
            self._rng.standard_normal(dtype=kind, out=row)
        values *= kind(std)
        return torch.from_numpy(values).reshape(shape)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale; its standard deviation is sqrt(2) times that."""
        kind: Any = float_type("scale", scale, dtype)
        cells = self._cells(shape)
        values = np.empty((len(self._workers), 2 * cells), kind)
        for row in self._each(values):
            self._rng.standard_exponential(dtype=kind, out=row)
        difference = values[:, :cells] - values[:, cells:]
        difference *= kind(scale)
        return torch.from_numpy(difference).reshape(shape)

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, else 0 (int64)."""
        shape = tuple(probabilities.shape)
        uniform = np.empty((len(self._workers), self._cells(shape)))
        chances = checked_probabilities(probabilities).reshape(uniform.shape)
        for row in self._each(uniform):
            self._rng.random(out=row)
        values = torch.from_numpy((uniform < chances).astype(np.int64))
        return values.reshape(shape).to(probabilities.device)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        return self._integers(shape, integer_law("discrete_gaussian", std))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        return self._integers(shape, integer_law("discrete_laplace", scale))

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        return self._integers(shape, integer_law("skellam", variance))

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64)."""
        return self._integers(shape, binomial_law(trials, probability))

    def _integers(self, shape: tuple[int, ...], law: IntegerTable | int) -> Tensor:
        cells = self._cells(shape)
        if isinstance(law, int):
            return torch.full(shape, law, dtype=torch.int64)
        # The generator is the same object each time, at another worker's stream.
        rngs = self._each([self._rng] * len(self._workers))
        return torch.from_numpy(law.draw_rows(rngs, cells)).reshape(shape)

    def _cells(self, shape: tuple[int, ...]) -> int:
        """Of one worker's row."""
        if not shape or shape[0] != len(self._workers):
            raise ArgumentError(
                f"shape must start with a row for each of {len(self._workers)} workers, got {shape}"
            )
        return count_cells(shape[1:])

    def _each(self, rows: Iterable[_T]) -> Iterator[_T]:
        """The rows, while the generator is at the beginning of their worker's next stream."""
        bits, state, draws, workers = self._bits, self._state, self._draws, self._workers
        counters = np.zeros((len(workers), 4), np.uint64)
        counters[:, 2], counters[:, 3] = workers, [draws[worker] for worker in workers]
        for worker, row, counter in zip(workers, rows, counters, strict=True):
            draws[worker] += 1
            state["state"]["counter"] = counter
            bits.state = state
            yield row

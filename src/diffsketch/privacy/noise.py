"""Noise of messages: the interface of all sources, exact noise for real releases, and simulated.

Simulated noise is reproducible from a key. Its whole numbers are drawn by the same tables as for
real releases (`integer_table`), from a seeded generator's words: that is never for a real release,
whatever their law, as whoever has the seed has the noise.
"""

from __future__ import annotations

import hashlib
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_type, check_whole
from diffsketch.files import cores
from diffsketch.privacy.integer_table import (
    CoinsLaw,
    ExponentialLaw,
    Floats,
    Integers,
    Law,
    SkellamLaw,
    integer_table,
)
from diffsketch.sketch.hashing import Secret

MAX_SCALE = 2.0**50  # of whole numbers, which then stay far within int64
_PIECE = 1 << 16  # numbers that a thread draws at a time


def count_cells(shape: tuple[int, ...]) -> int:
    """The product of a shape, checked."""
    if not all(isinstance(size, int) and size >= 0 for size in shape):
        check(False, "shape", "be a tuple of sizes >= 0", shape)
    return math.prod(shape)


def checked_probabilities(probabilities: Tensor) -> npt.NDArray[np.float64]:
    """A tensor of probabilities as a flat array; raises unless all are in `[0, 1]`."""
    if not isinstance(probabilities, Tensor) or not probabilities.is_floating_point():
        raise ArgumentError("probabilities must be a tensor of a floating type")
    in_numpy = probabilities.dtype in (torch.float32, torch.float64)  # NumPy has no bfloat16
    values = (probabilities if in_numpy else probabilities.float()).detach().cpu().numpy()
    flat = values.astype(np.float64).ravel()
    if len(flat) and not (flat.min() >= 0 and flat.max() <= 1):
        raise ArgumentError("probabilities must be in [0, 1], got others or NaN among them")
    return flat


def _is_some(name: str, value: float, most: int) -> bool:
    """Whether a parameter is above 0; raises unless it is in `[0, 2**most]`."""
    if not 0 <= value <= 2.0**most:
        raise ArgumentError(f"{name} must be in [0, 2**{most}], got {name}={value!r}")
    return value > 0


class Noise(ABC):
    """A stream of random numbers that belongs to one message."""

    def part(self, rows: Tensor) -> Self:  # noqa: ARG002
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
        law = ExponentialLaw(float(std), 2) if _is_some("std", std, 50) else None
        return self._of(law, shape)

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        law = ExponentialLaw(float(scale), 1) if _is_some("scale", scale, 50) else None
        return self._of(law, shape)

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        law = SkellamLaw(float(variance)) if _is_some("variance", variance, 100) else None
        return self._of(law, shape)

    def binomial(self, shape: tuple[int, ...], trials: int) -> Tensor:
        """Heads (int64) among `trials` fair coins."""
        check_whole("trials", trials, least=0)
        check(trials <= MAX_SCALE, "trials", "be in [0, 2**50]", trials)
        # Pairs of coins are symmetric around their mean, as tables need it; an odd coin is a random
        # bit.
        pairs, odd = divmod(trials, 2)
        heads = self._of(CoinsLaw(pairs) if pairs else None, shape) + pairs
        return heads + (self.words(shape) & 1) if odd else heads

    def _of(self, law: Law | None, shape: tuple[int, ...]) -> Tensor:
        """Draw from a law; zeros without one, and without a draw."""
        if law is None:
            self._size(shape)
            return torch.zeros(shape, dtype=torch.int64)
        return self.integers(shape, law)

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        """Rows with a stream of their own in such a shape, and the numbers in each."""
        return 1, count_cells(shape)

    @abstractmethod
    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
        """Integers (int64) of a law whose parameters are checked: the source of those above."""


def random_words(count: int, bits: int = 64) -> npt.NDArray[Any]:
    """Draw `count` words of 32 or 64 bits from the operating system."""
    return np.frombuffer(os.urandom(bits // 8 * count), f"u{bits // 8}")


def in_pieces(draw: Callable[[slice], None], count: int) -> None:
    """Call `draw` for slices of `range(count)`, by as many threads as there are cores."""
    # Most of the time goes to the system's generator, which threads may ask side by side.
    pieces = [slice(start, min(start + _PIECE, count)) for start in range(0, count, _PIECE)]
    if len(pieces) < 2:
        for piece in pieces:
            draw(piece)
    else:
        with ThreadPoolExecutor(cores()) as pool:
            for done in [pool.submit(draw, piece) for piece in pieces]:
                done.result()


def bernoulli(probabilities: Floats) -> Integers:
    """1 with exactly the probability that each float stands for, else 0.

    A random real number is compared with the probability 32 bits at a time; the next 32 are
    needed only if all before are equal. Scaling by 2**32 and splitting off the whole part are
    exact in float64.
    """
    result = np.empty(len(probabilities), np.int64)

    def fill(piece: slice) -> None:
        places, fractions = np.arange(piece.start, piece.stop), probabilities[piece]
        while len(places):
            # The next 32 binary digits of the probability are the whole part.
            scaled = fractions * 2.0**32
            digits = scaled.astype(np.int64)
            words = random_words(len(fractions), 32).astype(np.int64)
            result[places] = words < digits
            # Equal so far, and digits are left: with none left, the number is not below the
            # probability.
            (tied,) = np.nonzero((words == digits) & (scaled > digits))
            places, fractions = places[tied], (scaled - digits)[tied]

    in_pieces(fill, len(probabilities))
    return result


class SecureNoise(Noise):
    """Whole numbers from the operating system's randomness. Takes no seed and repeats nothing.

    All samplers are exact for the rational number that a float stands for (not for a decimal that
    it was written as: a scale of 0.1 means 3602879701896397 / 2**55), given that the operating
    system's bits are even and independent: their distance from the ideal distributions is 0, and
    nothing is to be added to a delta.

    Whoever can time the calls is not defended against.

    >>> SecureNoise().discrete_gaussian((2, 3), std=4.0).dtype
    torch.int64
    """

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded normal noise gives values away."""
        raise _not_whole(f"normal noise ({shape=}, {std=}, {dtype=})", "discrete_gaussian")

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded Laplace noise gives values away."""
        raise _not_whole(f"Laplace noise ({shape=}, {scale=}, {dtype=})", "discrete_laplace")

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with exactly the probability that each float stands for, else 0 (int64)."""
        values = bernoulli(checked_probabilities(probabilities))
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def words(self, shape: tuple[int, ...]) -> Tensor:
        """64 random bits in each place, as int64."""
        values = random_words(count_cells(shape)).astype(np.int64)
        return torch.from_numpy(values).reshape(shape)

    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
        """Integers that have the law exactly."""
        table, values = integer_table(law), np.empty(count_cells(shape), np.int64)

        def fill(piece: slice) -> None:
            values[piece] = table.draw(random_words, piece.stop - piece.start)

        in_pieces(fill, len(values))
        return torch.from_numpy(values).reshape(shape)


def _not_whole(asked: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"noise must be FastNoise for {asked}: SecureNoise gives whole numbers only, since noise "
        f"in floating point can be attacked through its rounding; use {instead} on whole numbers"
    )


@lru_cache(maxsize=64)  # the same scales in each round of a run
def float_type(name: str, scale: float, dtype: torch.dtype) -> type[np.float32 | np.float64]:
    """NumPy's type for a type that can hold the scale: noise must not vanish or overflow in it."""
    check(dtype in (torch.float32, torch.float64), "dtype", "be float32 or float64", dtype)
    info = torch.finfo(dtype)  # below its least normal number noise loses digits, or vanishes
    holds = scale == 0 or info.tiny <= scale <= info.max / 100
    check(holds, name, f"be 0 or in [{info.tiny:.2g}, {info.max / 100:.2g}] for {dtype}", scale)
    return np.float32 if dtype == torch.float32 else np.float64


@dataclass(frozen=True, repr=False)
class NoiseKey(Secret):
    """A secret of one simulated world, from which each message's noise is derived.

    >>> key = NoiseKey.from_integer(7)
    >>> first = key.source(worker=0, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> second = key.source(worker=1, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> bool((first == second).any())
    False
    """

    purpose: ClassVar[bytes] = b"ds-noise-number"

    def source(self, *, worker: int, round_index: int) -> FastNoise:
        """The noise of one worker's message in one round; the same numbers each time."""
        check_whole("worker", worker, least=0, most=2**64 - 1)
        check_whole("round_index", round_index, least=0, most=2**64 - 1)
        # Fixed lengths: no two pairs of worker and round give the same text.
        text = worker.to_bytes(8, "little") + round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=self.secret, digest_size=32, person=b"ds-noise")
        return FastNoise(int.from_bytes(digest.digest(), "little"))


_Row = TypeVar("_Row")


class SimulatedNoise(Noise):
    """Samplers in floating point on a generator that a subclass puts in place for each row."""

    _rng: np.random.Generator

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
        # The difference of two exponential numbers is a Laplace number.
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

    def _source(self, count: int, bits: int) -> npt.NDArray[Any]:
        """Draw random words for a table, from the stream that the generator is at."""
        kind = np.uint32 if bits == 32 else np.uint64
        return self._rng.integers(0, 1 << bits, count, dtype=kind)

    def integers(self, shape: tuple[int, ...], law: Law) -> Tensor:
        """Integers from each row's stream."""
        # Words come from each row's own stream, and are looked up together: for many small rows
        # that is most of the time. What is left to decide takes words of a further draw of the
        # same rows: whose they are depends on no other row.
        (rows, cells), table = self._size(shape), integer_table(law)
        words = np.empty((rows, cells), np.uint64)
        lows = np.empty((rows, cells), f"u{table.low_bits // 8}") if table.shift else words[:, :0]
        for row, low in self._each(zip(words, lows, strict=True)):
            row[:] = self._source(cells, 64)
            if table.shift:
                low[:] = self._source(cells, table.low_bits)
        flat = words.reshape(-1)
        values, unsettled = table.look_up(flat, lows.reshape(-1))
        if len(unsettled):
            in_row = unsettled // cells
            pieces = np.split(unsettled, np.flatnonzero(np.diff(in_row)) + 1)
            again = self.part(torch.from_numpy(np.unique(in_row)))
            for at in again._each(pieces):
                values[at] = table.settle(again._source, flat[at], values[at])
        return torch.from_numpy(values).reshape(shape)


class FastNoise(SimulatedNoise):
    """Noise of one message, for simulation, from a seeded generator of its own.

    The same seed and calls give the same numbers. Normal and Laplace noise are as exact as their
    type, whole numbers as their words are even. A scale of 0 gives zeros.

    >>> FastNoise(7).discrete_gaussian((2, 3), std=2.0).shape
    torch.Size([2, 3])
    """

    def __init__(self, seed: int) -> None:
        check_whole("seed", seed, least=0)
        self._rng = np.random.Generator(np.random.SFC64(seed))

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
        check_type("key", key, NoiseKey)
        check_whole("round_index", round_index, least=0, most=2**64 - 1)
        self._key, self._round = key, round_index
        self._workers = [int(worker) for worker in workers]
        for number in (min(self._workers, default=0), max(self._workers, default=0)):
            check(0 <= number < 1 << 63, "workers", "be in [0, 2**63)", number)
        # How often each worker has drawn: its place in the counter, so that nothing repeats.
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
        # 16 bytes are a key of Philox4x64: two words of 64 bits.
        digest = hashlib.blake2b(text, key=secret, digest_size=16, person=b"ds-cohort-noise")
        words = np.frombuffer(digest.digest(), "<u8").astype(np.uint64)
        return {
            "bit_generator": "Philox",
            "state": {"counter": np.zeros(4, np.uint64), "key": words},
            "buffer": np.zeros(4, np.uint64),
            # An empty buffer: four words are used up, so that the next draw begins with the
            # counter.
            "buffer_pos": 4,
            "has_uint32": 0,
            "uinteger": 0,
        }

    def part(self, rows: Tensor) -> Self:
        """The noise of the workers whose rows are given (indices or a mask), as they go on."""
        indices = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        workers = [self._workers[i] for i in indices.tolist()]
        other = type(self)(self._key, workers, round_index=self._round)
        other._draws = self._draws  # shared: numbers that a part has drawn are not drawn again
        return other

    def _size(self, shape: tuple[int, ...]) -> tuple[int, int]:
        count, sizes = len(self._workers), shape[1:]
        if shape[:1] != (count,) or any(type(size) is not int or size < 0 for size in sizes):
            raise ArgumentError(
                f"shape must be a row for each of {count} workers, and sizes >= 0, got {shape}"
            )
        return count, math.prod(sizes)

    def _each(self, rows: Iterable[_Row]) -> Iterator[_Row]:
        bits, state = self._rng.bit_generator, self._state
        draws, workers = self._draws, self._workers
        counters = np.zeros((len(workers), 4), np.uint64)
        # The lower half counts blocks within a draw: 2**128 of them, so no draw meets the next.
        counters[:, 2], counters[:, 3] = workers, [draws[worker] for worker in workers]
        for worker, row, counter in zip(workers, rows, counters, strict=True):
            draws[worker] += 1
            state["state"]["counter"] = counter
            bits.state = state
            yield row

"""Noise for simulation, reproducible from a key.

Whole numbers are drawn by the same tables as for real releases (`integer_table`), from a seeded
generator's words: that is never for a real release, whatever their law, as whoever has the seed has
the noise.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check, check_type, check_whole
from diffsketch.privacy.integer_table import Law, integer_table
from diffsketch.privacy.noise import Noise, checked_probabilities


@lru_cache(maxsize=64)  # the same scales in each round of a run
def float_type(name: str, scale: float, dtype: torch.dtype) -> type[np.float32 | np.float64]:
    """NumPy's type for a type that can hold the scale: noise must not vanish or overflow in it."""
    check(dtype in (torch.float32, torch.float64), "dtype", "be float32 or float64", dtype)
    info = torch.finfo(dtype)  # below its least normal number noise loses digits, or vanishes
    holds = scale == 0 or info.tiny <= scale <= info.max / 100
    check(holds, name, f"be 0 or in [{info.tiny:.2g}, {info.max / 100:.2g}] for {dtype}", scale)
    return np.float32 if dtype == torch.float32 else np.float64


@dataclass(frozen=True)
class NoiseKey:
    """A secret of one simulated world, from which each message's noise is derived.

    >>> key = NoiseKey.from_integer(7)
    >>> first = key.source(worker=0, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> second = key.source(worker=1, round_index=0).normal((2,), 1.0, dtype=torch.float32)
    >>> bool((first == second).any())
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
        # Fixed lengths: no two pairs of worker and round give the same text.
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
        if not isinstance(key, NoiseKey):  # here and below: the called function has the words
            check_type("key", key, NoiseKey)
        if type(round_index) is not int or not 0 <= round_index < 1 << 64:
            check_whole("round_index", round_index, least=0, most=2**64 - 1)
        self._key, self._round = key, round_index
        self._workers = [int(worker) for worker in workers]
        for number in (min(self._workers, default=0), max(self._workers, default=0)):
            if not 0 <= number < 1 << 63:
                check(False, "workers", "be in [0, 2**63)", number)
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

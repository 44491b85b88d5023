"""Noise of many workers in one call, each from a stream of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.noise.arguments import checked_probabilities, count_cells, float_type
from diffsketch.privacy.noise.base import Noise
from diffsketch.privacy.noise.discrete_sampling import IntegerTable
from diffsketch.privacy.noise.fast import NoiseKey, binomial_law, integer_law

__all__ = ["SERVER", "CohortNoise"]

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

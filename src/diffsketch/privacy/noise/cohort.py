"""Noise of many workers in one call, each from a stream of its own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.noise.base import Noise
from diffsketch.privacy.noise.fast import FastNoise, NoiseKey

__all__ = ["CohortNoise"]

_MOST_DRAWS = 1 << 63


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
            check(0 <= number < _MOST_DRAWS, "workers", f"be in [0, {_MOST_DRAWS})", number)
        if len(set(numbers)) != len(numbers):
            raise ArgumentError("workers must be different, or they would add the same noise")
        text = round_index.to_bytes(8, "little")
        digest = hashlib.blake2b(text, key=key.secret, digest_size=16, person=b"ds-cohort-noise")
        self._start(numbers, int.from_bytes(digest.digest(), "little"), dict.fromkeys(numbers, 0))

    def _start(self, workers: list[int], key: int, draws: dict[int, int]) -> None:
        self._workers, self._key, self._draws = workers, key, draws
        self._bits = np.random.Philox(key=key)
        self._state = self._bits.state
        self._single = FastNoise.around(np.random.Generator(self._bits))

    def part(self, rows: Tensor) -> CohortNoise:
        """The noise of the workers whose rows are given (indices or a mask), as they go on."""
        indices = rows.nonzero().flatten() if rows.dtype == torch.bool else rows
        other = object.__new__(CohortNoise)
        # The counts are shared: what a part has drawn is not drawn again.
        other._start([self._workers[i] for i in indices.tolist()], self._key, self._draws)
        return other

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Gaussian noise of this standard deviation."""
        return self._rows(shape, lambda one, row: one.normal(row, std, dtype=dtype))

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Laplace noise of this scale; its standard deviation is sqrt(2) times that."""
        return self._rows(shape, lambda one, row: one.laplace(row, scale, dtype=dtype))

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with the probability given for each place, else 0 (int64)."""
        rows = iter(probabilities)
        return self._rows(tuple(probabilities.shape), lambda one, _: one.bernoulli(next(rows)))

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        return self._rows(shape, lambda one, row: one.discrete_gaussian(row, std))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        return self._rows(shape, lambda one, row: one.discrete_laplace(row, scale))

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each."""
        return self._rows(shape, lambda one, row: one.skellam(row, variance))

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64)."""
        return self._rows(shape, lambda one, row: one.binomial(row, trials, probability))

    def _rows(
        self, shape: tuple[int, ...], draw: Callable[[FastNoise, tuple[int, ...]], Tensor]
    ) -> Tensor:
        if not shape or shape[0] != len(self._workers):
            raise ArgumentError(
                f"shape must start with a row for each of {len(self._workers)} workers, got {shape}"
            )
        if not self._workers:
            # No worker: the type of what would be drawn, with no rows.
            return draw(FastNoise(0), shape)
        rows = []
        for worker in self._workers:
            self._turn_to(worker)
            rows.append(draw(self._single, shape[1:]))
        return torch.stack(rows)

    def _turn_to(self, worker: int) -> None:
        """Set the generator to the beginning of the worker's next stream."""
        state = self._state
        state["state"]["counter"][:] = (0, 0, worker, self._draws[worker])
        self._draws[worker] += 1
        self._bits.state = state

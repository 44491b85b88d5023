"""Noise for real releases: randomness of the operating system, and samplers that are exact."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError
from diffsketch.privacy.noise import secure_sampling
from diffsketch.privacy.noise.arguments import (
    MAX_SCALE,
    check_scale,
    check_trials,
    checked_probabilities,
    count_cells,
)
from diffsketch.privacy.noise.base import Noise

__all__ = ["SecureNoise"]

_SOUND_OPENDP = (0, 14, 2)  # before, its samplers were biased (opendp/opendp issue 2638)
_PIECE = 1 << 14  # numbers that a thread draws at a time


class SecureNoise(Noise):
    """Whole numbers from the operating system's randomness. Takes no seed and repeats nothing.

    Discrete Gaussian and Laplace noise come from OpenDP, whose samplers are exact for the rational
    number that the float `std` or `scale` stands for (not for a decimal that it was written as: 0.1
    means 3602879701896397 / 2**55). OpenDP asks OpenSSL, which the operating system seeds, for
    random bits; everything else here asks the operating system itself.

    Exact: `bernoulli`, `binomial`, `discrete_gaussian`, `discrete_laplace`. Within `skellam_error`
    in total variation for each number: `skellam`. A release of `n` numbers that has (epsilon,
    delta) with exact noise then has a delta larger by at most
    `(1 + exp(epsilon)) * n * skellam_error`.

    Whoever can time the calls is not defended against.

    >>> SecureNoise().discrete_gaussian((2, 3), std=4.0).dtype
    torch.int64

    References:
        C. Canonne, G. Kamath, T. Steinke, "The discrete Gaussian for differential privacy", 2020.
    """

    secure = True
    skellam_error: ClassVar[float] = secure_sampling.SKELLAM_ERROR

    def __init__(self) -> None:
        self._skellam: tuple[float, secure_sampling.SkellamTable] | None = None

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded normal noise gives values away."""
        raise _not_whole(f"normal noise ({shape=}, {std=}, {dtype=})", "discrete_gaussian")

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        """Refused: rounded Laplace noise gives values away."""
        raise _not_whole(f"Laplace noise ({shape=}, {scale=}, {dtype=})", "discrete_laplace")

    def bernoulli(self, probabilities: Tensor) -> Tensor:
        """1 with exactly the probability that each float stands for, else 0 (int64)."""
        values = secure_sampling.bernoulli(checked_probabilities(probabilities))
        return torch.from_numpy(values).reshape(probabilities.shape).to(probabilities.device)

    def discrete_gaussian(self, shape: tuple[int, ...], std: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-x**2 / (2 std**2))`."""
        check_scale("std", std, MAX_SCALE)
        return _from_opendp("gaussian", shape, float(std))

    def discrete_laplace(self, shape: tuple[int, ...], scale: float) -> Tensor:
        """Integers `x` (int64) with probability proportional to `exp(-abs(x) / scale)`."""
        check_scale("scale", scale, MAX_SCALE)
        return _from_opendp("laplace", shape, float(scale))

    def skellam(self, shape: tuple[int, ...], variance: float) -> Tensor:
        """Differences (int64) of two Poisson numbers that have `variance / 2` each.

        The table is made anew when the variance changes: seconds for the largest variances.
        """
        check_scale("variance", variance, secure_sampling.SKELLAM_MAX_VARIANCE)
        count = count_cells(shape)
        if variance == 0:
            return torch.zeros(shape, dtype=torch.int64)
        if self._skellam is None or self._skellam[0] != variance:
            self._skellam = variance, secure_sampling.SkellamTable.build(variance)
        return torch.from_numpy(self._skellam[1].draw(count)).reshape(shape)

    def binomial(self, shape: tuple[int, ...], trials: int, probability: float) -> Tensor:
        """How many of so many trials succeed (int64); costs random bits for each trial."""
        check_trials(trials, probability)
        values = secure_sampling.binomial(count_cells(shape), trials, probability)
        return torch.from_numpy(values).reshape(shape)


def _not_whole(asked: str, instead: str) -> ArgumentError:
    return ArgumentError(
        f"noise must be FastNoise for {asked}: SecureNoise gives whole numbers only, since noise "
        f"in floating point can be attacked through its rounding; use {instead} on whole numbers"
    )


def _from_opendp(kind: str, shape: tuple[int, ...], scale: float) -> Tensor:
    """Noise on zeros, drawn by as many threads as there are cores."""
    count = count_cells(shape)
    sizes = [min(_PIECE, count - start) for start in range(0, count, _PIECE)]
    draw = _opendp_sampler(kind, scale)
    if len(sizes) < 2:
        parts = [draw(size) for size in sizes]
    else:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            parts = list(pool.map(draw, sizes))
    values = np.array([value for part in parts for value in part], np.int64)
    return torch.from_numpy(values).reshape(shape)


def _opendp_sampler(kind: str, scale: float) -> Callable[[int], list[int]]:
    """A function from a number of integers to that many, from OpenDP (imported at first use)."""
    _check_opendp(metadata.version("opendp"))
    from opendp import domains, measurements, metrics
    from opendp.mod import enable_features

    # OpenDP asks for this consent to all that has not been through every step of its vetting.
    enable_features("contrib")
    make: Any = getattr(measurements, f"make_{kind}")
    metric = metrics.l1_distance if kind == "laplace" else metrics.l2_distance

    def draw(count: int) -> list[int]:
        domain = domains.vector_domain(domains.atom_domain(T="i64"))
        values: list[int] = make(domain, metric(T="i64"), scale=scale)([0] * count)
        return values

    return draw


def _check_opendp(version: str) -> None:
    """Raise if this version of OpenDP draws from the wrong distribution."""
    numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdigit())
    if numbers < _SOUND_OPENDP:
        needed = ".".join(map(str, _SOUND_OPENDP))
        raise DiffSketchError(
            f"opendp must be {needed} or newer, since the noise of older ones is biased, "
            f"got opendp=={version}"
        )

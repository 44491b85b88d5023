"""Every number that a simulated method sends under a proven claim has noise of the stated law.

As `tests/methods/test_law_of_cells.py` counts it. Noise here is of real numbers, which are turned
so that they are independent, and counted in parts of a standard deviation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.methods import Method
from diffsketch.privacy import FastNoise, Noise
from diffsketch.privacy.claim import ProvenClaim
from paper.projections import SketchedGaussianMean
from paper.projunit import ProjUnitMean
from paper.repaired import ProvenDiffSketch
from tests.helpers.silent import Silent
from tests.methods.test_law_of_cells import (
    CHANCE,
    COHORT,
    DIM,
    SEED,
    VECTOR,
    Chances,
    cut,
    in_pairs,
    noise_of,
    surprise_of,
)
from tests.privacy.laws import normalised

PARTS = 16  # of a standard deviation
PADDED = ProvenDiffSketch(DIM, 2, 3, clip=1.0, padding=40, std=1.0)
DIRECTION = ProjUnitMean(DIM, size=5, clip=0.1, per_round=2.0)
PROJECTED = SketchedGaussianMean(DIM, size=5, clip=1.0, std=0.5, projected_clip=9.0)


def law_of(cdf: Callable[[Any], Any] = stats.norm.cdf) -> Chances:
    """Of a number of this distribution, in parts of a standard deviation, rounded down."""
    reach = 12 * PARTS
    return -reach, normalised(np.diff(cdf(np.arange(-reach, reach + 1) / PARTS)))


def along_and_across(method: ProjUnitMean, source: Noise) -> list[tuple[Tensor, Chances]]:
    """Messages along their direction, where a cap is more probable, and across it."""
    bare = method.encode(VECTOR, SEED, Silent()).messages.double()
    cap = method.mechanism._inner._cap
    along = bare if cap.inside >= 0.5 else -bare
    frame, _ = torch.linalg.qr(torch.cat([along[:, None], torch.eye(method.size)], dim=1).double())
    frame[:, 0] = along / along.norm()

    def mixed(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        below, above = stats.norm.cdf(np.minimum(x, cap.gamma)), stats.norm.cdf(x)
        inside = np.maximum(above - stats.norm.cdf(cap.gamma), 0) / cap.mass
        return np.asarray((1 - cap.inside) * below / cap.outside_mass + cap.inside * inside)

    laws = [law_of(mixed), *[law_of()] * (method.size - 1)]
    return list(zip(((noise_of(method, source).double() + bare) @ frame).T, laws, strict=True))


def stated(method: Method, source: Noise) -> list[tuple[Tensor, Chances]]:
    """Numbers in parts that are independent by what is stated, and the law of each."""
    if isinstance(method, ProjUnitMean):
        numbers = along_and_across(method, source)
    else:
        noise = noise_of(method, source).double()
        lower = torch.eye(noise.shape[1], dtype=torch.float64)
        if isinstance(method, ProvenDiffSketch):
            appended = torch.eye(method.sketch.dim)[DIM:]
            tables = method.sketch.encode(appended, SEED).flatten(1).double()
            lower = torch.linalg.cholesky(tables.T @ tables)
        assert isinstance(method, ProvenDiffSketch | SketchedGaussianMean)
        independent = torch.linalg.solve_triangular(lower * method.std, noise.T, upper=False)
        numbers = [(number, law_of()) for number in independent]
    return [((number * PARTS).floor().long(), law) for number, law in numbers]


@pytest.mark.parametrize("method", [PADDED, DIRECTION, PROJECTED], ids=lambda method: method.name)
def test_every_number_has_the_stated_law(method: Method) -> None:
    assert isinstance(method.claim_for(COHORT, SEED), ProvenClaim)
    assert surprise_of(stated(method, FastNoise(5))) > CHANCE


class Faulty(FastNoise):
    """Normal noise with an error."""

    def __init__(self, fault: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__(6)
        self.fault = fault

    def normal(self, shape: Any, std: float, *, dtype: torch.dtype) -> Tensor:
        return self.fault(super().normal(shape, std, dtype=dtype), std)


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        (cut, PADDED),
        (cut, PROJECTED),  # not the direction, to which no noise is added
        *((in_pairs, method) for method in (PADDED, DIRECTION, PROJECTED)),
    ],
)
def test_planted_errors_are_found(fault: Callable[[Tensor, float], Tensor], method: Method) -> None:
    assert surprise_of(stated(method, Faulty(fault))) < CHANCE

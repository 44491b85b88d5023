"""One of each method, and some settings that take other ways, for vectors of `DIM` numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from diffsketch.methods import (
    CpSgd,
    DiffSketch,
    GaussianMean,
    Method,
    PlainSketch,
    RawLaplace,
    SkellamMean,
    SketchGaussian,
    SketchLaplace,
    SketchSkellam,
    Uncompressed,
)
from diffsketch.privacy import CohortNoise, Noise, NoiseKey, estimate_alpha, estimate_sigma
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.sketch import HashSeed, SketchKey

DIM, WORKERS = 40, 12
SIZES: dict[str, object] = {"rows": 3, "cols": 20}
CLIENT_NOISE: dict[str, object] = {"clip": 1.0, "noise_multiplier": 2.0}
SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "sketch": SIZES,
    "diffsketch": SIZES | {"per_round": 1.0, "padding": 5, "family": "pairwise"},
    "laplace": {"per_round": 1.0},
    "sketch-laplace": SIZES | {"per_round": 1, "clip": 2},
    "cpsgd": {"claimed": 5.0},
    "sketch-gaussian": SIZES | CLIENT_NOISE | {"trust": "central"},
    "sketch-skellam": SIZES | CLIENT_NOISE | {"relation": "add-or-remove", "trust": "local"},
    "gaussian": CLIENT_NOISE,
    "skellam": CLIENT_NOISE,
}
"""Settings of each method of the registry, as a user gives them, for 100 numbers."""

KEY, NOISE_KEY = SketchKey.from_integer(8), NoiseKey.from_integer(8)
SEED = KEY.seed(0)


@dataclass(frozen=True)
class Case:
    """A method, the words of its claim, and the variance of the noise that it states.

    Attributes:
        method: The method.
        words: Basis and scope of its claim for the whole cohort.
        variance: Of the noise in a cell of a message, on average over the cells and workers. None
            for whole numbers: `test_law_of_cells` has the law of each.
    """

    method: Method
    words: str
    variance: float | None = None


def make_vectors() -> Tensor:
    """With a common part, so that there is a mean; coordinates below 1, norms below 2."""
    generator = torch.Generator().manual_seed(3)
    common = torch.randn(DIM, generator=generator)
    vectors = common + 0.4 * torch.randn(WORKERS, DIM, generator=generator)
    return (vectors * 0.2).clamp(-0.9, 0.9)


VECTORS = make_vectors()
ALPHA, SIGMA = estimate_alpha(VECTORS), estimate_sigma(VECTORS)
CLIENT = "client unit, replace,"
COORDINATE = "coordinate unit, replace, local trust"
CLAIMED, PROVEN = f"claimed: {COORDINATE}", f"proven: {COORDINATE}"


def laplace_variance(rows: int, per_round: float) -> float:
    """By the paper's alpha: the scale is `2 alpha rows / per_round`, the variance 2 scale^2."""
    scales = 2 * ALPHA * rows / per_round
    return float((2 * scales.square()).mean())


def build_cases() -> dict[str, Case]:
    local = SketchGaussian(DIM, 2, 20, clip=6.0, noise_multiplier=0.1)
    central = SketchGaussian(DIM, 2, 20, clip=6.0, noise_multiplier=0.3, trust=Trust.CENTRAL)
    shared = SketchSkellam(DIM, 2, 20, clip=6.0, noise_multiplier=0.3, cohort=WORKERS)
    own = SketchSkellam(
        DIM, 2, 20, clip=6.0, noise_multiplier=0.2, cohort=WORKERS, trust=Trust.LOCAL, bits=16,
        relation=Relation.ADD_OR_REMOVE,
    )  # fmt: skip
    dense = GaussianMean(
        dim=DIM, clip=2.0, noise_multiplier=0.5, cohort=WORKERS, trust=Trust.DISTRIBUTED
    )
    adaptive = GaussianMean(
        dim=DIM, clip=2.0, noise_multiplier=0.5, trust=Trust.CENTRAL, clip_quantile=0.5
    )
    dense_skellam = SkellamMean(dim=DIM, clip=2.0, noise_multiplier=0.5, cohort=WORKERS)
    levels = CpSgd(dim=DIM, cohort=WORKERS, clip=2.0, levels=64, trials=3200, delta=1e-3)
    secure_sum = f"{CLIENT} distributed trust"
    none, claimed = f"none: {CLIENT} local trust", f"claimed: {secure_sum}"
    padding = float(SIGMA.square().mean())
    return {
        "none": Case(Uncompressed(DIM), none, 0.0),
        "sketch": Case(PlainSketch(DIM, 2, 20), none, 0.0),
        "sketch-4-bits": Case(PlainSketch(DIM, 2, 20, bits=4, cell_limit=3.0), none),
        "sketch-1-bit": Case(
            PlainSketch(DIM, 2, 20, bits=1, cell_limit=1.5, cohort=WORKERS), none
        ),
        "sketch-median": Case(
            PlainSketch(DIM, 5, 20, family="pairwise", combine="median"), none, 0.0
        ),
        "diffsketch": Case(
            DiffSketch(DIM, 2, 20, per_round=20.0), CLAIMED, laplace_variance(2, 20.0)
        ),
        "sketch-3-bits-secure": Case(
            PlainSketch(
                DIM, 2, 20, bits=3, cell_limit=3.0, cohort=WORKERS, trust=Trust.DISTRIBUTED
            ),
            none,
        ),
        "diffsketch-8-bits": Case(
            DiffSketch(DIM, 2, 20, per_round=20.0, bits=8, cell_limit=30.0), CLAIMED
        ),
        "diffsketch-padded": Case(
            DiffSketch(DIM, 2, 4, per_round=20.0, padding=600), CLAIMED, padding * 600 / 4
        ),
        "diffsketch-least": Case(
            DiffSketch(DIM, 2, 4, per_round=20.0, padding=600, appended="least"), CLAIMED
        ),
        "laplace": Case(RawLaplace(DIM, per_round=4.0), CLAIMED, laplace_variance(1, 4.0)),
        "laplace-clipped": Case(RawLaplace(DIM, per_round=4.0, clip=1.0), PROVEN),
        "sketch-laplace": Case(
            SketchLaplace(DIM, 2, 20, per_round=20.0), CLAIMED, laplace_variance(2, 20.0)
        ),
        "sketch-laplace-clipped": Case(
            SketchLaplace(DIM, 2, 20, per_round=20.0, clip=1.0), PROVEN
        ),
        "cpsgd": Case(levels, f"proven: {secure_sum}"),
        "cpsgd-paper": Case(CpSgd(dim=DIM, cohort=WORKERS, claimed=5.0, bits=5), claimed),
        "sketch-gaussian": Case(local, f"proven: {CLIENT} local trust"),
        "sketch-gaussian-central": Case(central, f"proven: {CLIENT} central trust"),
        "gaussian": Case(dense, f"proven: {secure_sum}"),
        "gaussian-adaptive": Case(adaptive, f"proven: {CLIENT} central trust"),
        "skellam": Case(dense_skellam, f"proven: {secure_sum}"),
        "sketch-skellam": Case(shared, f"proven: {secure_sum}"),
        "sketch-skellam-local": Case(own, "proven: client unit, add-or-remove, local trust"),
    }  # fmt: skip


CASES = build_cases()
every_case = pytest.mark.parametrize("case", CASES.values(), ids=CASES)
every_method = pytest.mark.parametrize(
    "method", [case.method for case in CASES.values()], ids=list(CASES)
)


def sources(round_index: int, key: NoiseKey = NOISE_KEY) -> tuple[Noise, Noise]:
    """The workers' noise and the server's."""
    workers = CohortNoise(key, range(WORKERS), round_index=round_index)
    return workers, CohortNoise(key, [1 << 62], round_index=round_index)


def published(
    method: Method, vectors: Tensor, seed: HashSeed, noise: tuple[Noise, Noise]
) -> Tensor:
    """The sum of a round's messages as the server makes it known."""
    return method.publish(method.encode(vectors, seed, noise[0]).messages.sum(dim=0), noise[1])


def standard_errors(errors: Tensor) -> float:
    """How many standard errors the mean of independent errors is away from 0.

    Rounding to float32 counts as an error of its own.
    """
    spread = float(errors.std()) / math.sqrt(len(errors)) + 1e-6
    return abs(float(errors.mean())) / spread


class HalfNoise(CohortNoise):
    """A planted error, which tests of noise must find: half the size, with the right mean."""

    def normal(self, shape: tuple[int, ...], std: float, *, dtype: torch.dtype) -> Tensor:
        return super().normal(shape, std / 2, dtype=dtype)

    def laplace(self, shape: tuple[int, ...], scale: float, *, dtype: torch.dtype) -> Tensor:
        return super().laplace(shape, scale / 2, dtype=dtype)

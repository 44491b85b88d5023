"""On a CUDA device every mechanism gives what it gives on the CPU, up to the order of additions."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.methods import SketchGaussian, SketchLaplace, SketchSkellam
from diffsketch.privacy import (
    BinomialMechanism,
    CohortNoise,
    GaussianMechanism,
    NoiseKey,
    NormBound,
)
from paper.methods import ProvenDiffSketch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DIM = 2000
SKETCH = CountSketch(DIM, 5, 20)
SEED = SketchKey.from_integer(0).seed(0)

SKETCHED = {"encode": partial(SKETCH.encode, seed=SEED)}
RELEASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "gaussian": (GaussianMechanism(NormBound(1.0), 2.0), SKETCHED),
    "gaussian, raw": (GaussianMechanism(NormBound(1.0), 2.0), {"batch": True}),
    "binomial": (BinomialMechanism(DIM, 1.0, 1.0, 12, trials=4, cohort=10, delta=1e-5), {}),
}


METHODS = {
    "laplace": SketchLaplace(DIM, 5, 20, per_round=2.0),
    "skellam": SketchSkellam(DIM, 5, 20, clip=1.0, noise_multiplier=2.0, trust="local"),
    "discrete gaussian": SketchGaussian(DIM, 5, 20, clip=1.0, noise_multiplier=2.0),
    "discrete laplace": SketchLaplace(DIM, 5, 20, per_round=2.0, clip=1.0),
    "padded": ProvenDiffSketch(DIM, 5, 20, clip=1.0, padding=DIM, std=1.0),
    "factored": ProvenDiffSketch(DIM, 5, 20, clip=1.0, padding=20 * DIM, std=1.0),
}


@pytest.mark.parametrize("name", [*RELEASES, *METHODS])
def test_devices_agree(name: str) -> None:
    vectors = torch.randn(8, DIM, generator=torch.Generator().manual_seed(1))
    key = NoiseKey(b"2" * 32)

    def released(vectors: Tensor) -> Tensor:
        if name in METHODS:
            noise = CohortNoise(key, range(8), round_index=0)
            return METHODS[name].encode(vectors, SEED, noise).messages
        mechanism, how = RELEASES[name]
        result: Tensor = mechanism.release(vectors, key.source(worker=0, round_index=0), **how)
        return result

    here, there = released(vectors), released(vectors.cuda())
    assert there.device.type == "cuda"
    assert there.dtype == here.dtype
    # A table whose sums differ in the last bit may be rounded to the next whole number.
    gap = (there.cpu().double() - here.double()).abs()
    assert float(gap.max()) <= (1e-4 if here.is_floating_point() else 1)
    assert float((gap > 1e-4).double().mean()) < 0.01

"""On a CUDA device every mechanism gives what it gives on the CPU, up to the order of additions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.privacy import (
    BinomialMechanism,
    CoordinateBound,
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    NoiseKey,
    NormBound,
    PaddedGaussian,
    PrivUnitG,
    ProjUnit,
    Quantizer,
    SkellamMechanism,
)

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

DIM = 2000
SKETCH = CountSketch(DIM, 5, 20)
SEED = SketchKey.from_integer(0).seed(0)
QUANTIZER = Quantizer(NormBound(1.0), 0.01, 100)


def encode(vectors: Tensor) -> Tensor:
    return SKETCH.encode(vectors, SEED)


RELEASES: dict[str, Callable[..., Tensor]] = {
    "gaussian": lambda x, n: GaussianMechanism(NormBound(1.0), 2.0).release(x, n, encode=encode),
    "gaussian, raw": lambda x, n: GaussianMechanism(NormBound(1.0), 2.0).release(x, n, batch=True),
    "laplace": lambda x, n: LaplaceMechanism(CoordinateBound(1.0, 5), 2.0).release(
        x, n, encode=encode
    ),
    "padded": lambda x, n: PaddedGaussian(SKETCH, SEED, CoordinateBound(1.0), DIM, 1.0).release(
        x, n
    ),
    "padded, factored": lambda x, n: PaddedGaussian(
        SKETCH, SEED, CoordinateBound(1.0), 20 * DIM, 1.0
    ).release(x, n),
    "skellam": lambda x, n: SkellamMechanism(QUANTIZER, 2.0).release(x, n, encode=encode),
    "discrete gaussian": lambda x, n: DiscreteGaussianMechanism(QUANTIZER, 2.0).release(
        x, n, encode=encode
    ),
    "discrete laplace": lambda x, n: DiscreteLaplaceMechanism(QUANTIZER, 2.0).release(
        x, n, encode=encode
    ),
    "binomial": lambda x, n: BinomialMechanism(
        dim=DIM, clip=1.0, limit=1.0, levels=12, trials=4, cohort=10, delta=1e-5
    ).release(x, n),
    "privunit": lambda x, n: PrivUnitG(DIM, 4.0).release(x, n),
    "projunit": lambda x, n: ProjUnit(DIM, 50, 4.0).release(x, n, seed=SEED),
}


@pytest.mark.parametrize("name", RELEASES)
def test_devices_agree(name: str) -> None:
    vectors = torch.randn(8, DIM, generator=torch.Generator().manual_seed(1))
    key, release = NoiseKey.from_integer(2), RELEASES[name]
    here = release(vectors, key.source(worker=0, round_index=0))
    there = release(vectors.cuda(), key.source(worker=0, round_index=0))
    assert there.device.type == "cuda"
    assert there.dtype == here.dtype
    # A table whose sums differ in the last bit may be rounded to the next whole number.
    gap = (there.cpu().double() - here.double()).abs()
    assert float(gap.max()) <= (1e-4 if here.is_floating_point() else 1)
    assert float((gap > 1e-4).double().mean()) < 0.01

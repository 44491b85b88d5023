"""Sizes of bare sketches: they fit, and their predicted errors are those of simulated rounds."""

from __future__ import annotations

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.methods.forecast import Vectors
from diffsketch.methods.plain import PlainSketch
from diffsketch.planning import sketch_sizes
from diffsketch.privacy import CohortNoise, NoiseKey
from diffsketch.sketch import SketchKey

DIM, WORKERS, ROUNDS = 4000, 5, 60


@pytest.mark.parametrize("bits", [2, 4, 32])
@pytest.mark.parametrize("spread", [0.0, 3.0])
def test_errors_are_those_of_rounds(bits: int, spread: float) -> None:
    """Means of 60 rounds, each with a standard deviation of some 10%: within 8%.

    Beyond that with probability below 1e-8, were errors of rounds Gaussian. An error that leaves
    out the rounding of 2 bits is found.
    """
    generator, key = torch.Generator().manual_seed(bits), SketchKey.from_integer(bits)
    common = torch.randn(DIM, generator=generator)
    vectors = common + spread**0.5 * torch.randn(WORKERS, DIM, generator=generator)
    vectors /= vectors.norm(dim=1, keepdim=True)
    method = PlainSketch(DIM, 1, 400, bits=bits, cohort=WORKERS)
    if method.grid is not None:
        method = method.at_clip(method.limit_for(vectors[0]) or 1.0)
    truth, errors = vectors.mean(dim=0), []
    for index in range(ROUNDS):
        noise = CohortNoise(NoiseKey.from_integer(1), range(WORKERS), round_index=index)
        total = method.encode(vectors, key.seed(index), noise).messages.sum(dim=0)
        found = method.decode(total, key.seed(index), count=WORKERS)
        errors.append(float((found - truth).square().sum() / truth.square().sum()))
    predicted = method.forecast(Vectors(DIM, WORKERS, 1.0, spread))
    mean = sum(errors) / ROUNDS
    assert predicted.total == pytest.approx(mean, rel=0.08)
    if bits == 2 and spread:
        assert predicted.recovery != pytest.approx(mean, rel=0.08)


@pytest.mark.parametrize("size", [3, 8, 62, 66, 67, 620, 10**6])
def test_all_fit_and_are_in_order(size: int) -> None:
    sizes = sketch_sizes(7850, 10, size)
    assert max(one.method.wire_bytes for one in sizes) <= size
    errors = [one.error.total for one in sizes]
    assert errors == sorted(errors)
    if size == 620:  # not one column more would fit
        best = sizes[0].method
        more = PlainSketch(7850, 1, best.cols + 4, bits=best.bits)
        assert more.wire_bytes > size


def test_too_few_bytes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="message_bytes must be enough for a header and one"):
        sketch_sizes(7850, 10, 2)


def test_rounds_that_make_no_sense_are_refused() -> None:
    for rounds in (0, -3):
        with pytest.raises(ArgumentError, match=f"rounds must be >= 1, got rounds={rounds}"):
            sketch_sizes(7850, 10, 62, rounds=rounds)


def test_no_table_takes_more_than_the_vectors() -> None:
    assert min(one.method.compression for one in sketch_sizes(7850, 10, 10**6)) > 1

"""Error feedback: nothing is lost, and nothing grows without end."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods import PlainSketch, SketchGaussian, SketchSkellam
from diffsketch.methods.feedback import ErrorFeedback
from diffsketch.privacy import CohortNoise, NoiseKey
from diffsketch.privacy.claim import Trust
from diffsketch.sketch import SketchKey
from tests.helpers.refusals import refused

DIM = 400
KEY, NOISE = SketchKey.from_integer(1), NoiseKey.from_integer(1)
SKETCH = PlainSketch(DIM, 1, 8)  # 50 coordinates a cell


def vector(round_index: int) -> Tensor:
    return torch.randn(DIM, generator=torch.Generator().manual_seed(round_index))


def error_of(feedback: ErrorFeedback) -> Tensor:
    """`e`, the part of all vectors that has not been sent yet."""
    assert feedback.memory is not None
    return feedback.memory / feedback.later


def run(method: Any, rounds: int, **options: Any) -> tuple[ErrorFeedback, Tensor, Tensor]:
    """The memory, what was applied and what was to be, after some rounds of one worker."""
    feedback = ErrorFeedback(method, method.claim_for(2, KEY.seed(0)), **options)
    applied, wanted = torch.zeros(DIM), torch.zeros(DIM)
    for index in range(rounds):
        seed, own = KEY.seed(index), vector(index)
        mixed = feedback.mixed(own)
        message = method.encode(mixed, seed, CohortNoise(NOISE, [0], round_index=index)).messages
        total = method.publish(message, CohortNoise(NOISE, [9], round_index=index))
        applied += method.decode(total, seed, count=1)
        feedback.keep(own, mixed, message, seed, method)
        wanted += own
    return feedback, applied, wanted


@pytest.mark.parametrize("immediate", [1e-9, 0.3, 1.0])
@pytest.mark.parametrize("shape", [(1, 8), (3, 8)])
def test_nothing_is_lost(shape: tuple[int, int], immediate: float) -> None:
    feedback, applied, wanted = run(PlainSketch(DIM, *shape), 100, immediate=immediate)
    torch.testing.assert_close(applied + error_of(feedback), wanted, rtol=1e-4, atol=1e-3)
    assert float(error_of(feedback).norm()) > 1  # and there was something to lose


def test_the_error_stays_bounded_where_it_would_overflow_unscaled() -> None:
    # With a = 1/(1 + V) and vectors that are new each time, E||e||^2 tends to at most
    # (1 + V) ((1 - b)^2 + b^2 V) ||g||^2; see the docstring of ErrorFeedback.
    feedback, _, _ = run(SKETCH, 600, immediate=0.3)
    variance = 1 / feedback.later - 1
    limit = (1 + variance) * (0.7**2 + 0.3**2 * variance) * DIM
    # The square's mean is below the limit; 4 times that leaves room for one run of fixed seeds.
    assert 0 < float(error_of(feedback).norm()) < 2 * math.sqrt(limit)
    # The planted error: feedback of the whole estimate.
    unscaled = ErrorFeedback(SKETCH, SKETCH.claim_for(1, KEY.seed(0)))
    unscaled.later = unscaled.immediate = 1.0
    for index in range(30):
        mixed, seed = unscaled.mixed(vector(index)), KEY.seed(index)
        message = SKETCH.encode(mixed, seed, CohortNoise(NOISE, [0], round_index=index)).messages
        unscaled.keep(vector(index), mixed, message, seed, SKETCH)
    assert float(error_of(unscaled).norm()) > 1e12


@pytest.mark.parametrize("clip", [1.0, 1e4])
def test_what_counts_as_sent_is_clipped_and_has_no_noise(clip: float) -> None:
    options: dict[str, Any] = {"clip": clip, "noise_multiplier": 1.0}
    gaussian = SketchGaussian(DIM, 1, 8, **options)
    skellam = SketchSkellam(DIM, 1, 8, **options, cohort=2, trust=Trust.LOCAL)
    seed, own = KEY.seed(0), vector(0)
    for method in (gaussian, skellam):
        feedback, _, _ = run(method, 1)
        table = method.sketch.encode(own * feedback.immediate, seed)
        factor = min(1.0, clip / float(table.norm()))
        assert (factor < 1) == (clip == 1.0)
        expected = own - method.sketch.query(factor * table, seed, combine="mean")
        torch.testing.assert_close(error_of(feedback), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("cols", "expected"), [(8, 2 / math.sqrt(399 / 8)), (200, 1.0)])
def test_the_share_that_is_sent_at_once(cols: int, expected: float) -> None:
    method = PlainSketch(DIM, 1, cols)
    arguments = method, method.claim_for(1, KEY.seed(0))
    assert ErrorFeedback(*arguments).immediate == pytest.approx(expected)
    text = r"immediate must be in \(0, 1\]"
    refused(ArgumentError, text, ErrorFeedback, *arguments, immediate=1.5)


def test_roundings_count_as_variance() -> None:
    plain, rounded = (PlainSketch(400, 1, 20, bits=bits) for bits in (32, 2))
    assert rounded.grid is not None
    claim = plain.claim_for(1, KEY.seed(0))
    variances = [1 / ErrorFeedback(method, claim).later - 1 for method in (plain, rounded)]
    assert variances[1] == pytest.approx(variances[0] * (1 + rounded.grid.rounding_share))
    assert variances[1] > 1.1 * variances[0]

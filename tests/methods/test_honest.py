"""What no honest client sends is refused; what one sends is not, but with a stated probability.

Tests by chance: with probability 1e-9 at most, over the seeds, one fails whose code is right.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.methods import (
    CpSgd,
    Method,
    PlainSketch,
    RawLaplace,
    SketchGaussian,
    SketchLaplace,
    SketchSkellam,
)
from diffsketch.privacy import CohortNoise
from diffsketch.privacy.claim import Trust
from diffsketch.wire import WireError
from tests.helpers.refusals import refused
from tests.methods.cases import CASES, DIM, NOISE_KEY, SEED, VECTORS, WORKERS, every_method, sources

FAILURE, DRAWS = 0.02, 1000
TOO_MANY = int(stats.binom.isf(1e-10, DRAWS, FAILURE))  # messages beyond the bound
BOUNDED = {
    name: case.method for name, case in CASES.items() if case.method.honest_norm() < math.inf
}


def messages(method: Method, vectors: Tensor) -> Tensor:
    noise = CohortNoise(NOISE_KEY, range(len(vectors)), round_index=0)
    return method.encode(vectors, SEED, noise).messages


@every_method
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e6])
def test_what_honest_workers_send_passes(method: Method, scale: float) -> None:
    """However long their vectors are, for methods that clip; one by one and as a sum."""
    sent = method.encode(VECTORS * scale, SEED, sources(0)[0]).messages
    for one in sent:
        method.check_honest(one)
    method.check_honest(sent.sum(dim=0), WORKERS)


def test_all_methods_that_send_under_a_proof_have_a_bound() -> None:
    sent = {name for name, case in CASES.items() if case.method.exact}
    assert set(BOUNDED) == sent
    assert {CASES[name].method.name for name in set(CASES) - sent} == {
        "none", "sketch", "diffsketch", "laplace", "sketch-laplace",
    }  # fmt: skip


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("value", [1e6, 1e30, 3.4e38])
def test_huge_messages_are_refused(name: str, value: float) -> None:
    method = BOUNDED[name]
    layout = method.message_format
    cells = torch.full(layout.shape, value)
    if layout.cells != "float32":  # the farthest from 0 that there is
        low, end = layout.limits
        ends = [torch.full(layout.shape, each) for each in (low, (low + end) // 2, end - 1)]
        cells = max(ends, key=method.norm_of)
    with pytest.raises(WireError, match=r"message has a norm of .+ that of honest clients is at"):
        method.check_honest(cells)


def test_nothing_is_refused_where_nothing_can_be_told() -> None:
    """A single cell, whose modulus holds hardly more than the noise: all of it may be honest."""
    method = SketchSkellam(DIM, 1, 1, clip=1.0, noise_multiplier=4.0, cohort=1)
    method.check_honest(torch.tensor([[1 << (method.message_format.bits - 1)]]))


def test_central_tables_are_refused_just_beyond_the_clip() -> None:
    method = SketchGaussian(DIM, 2, 20, clip=3.0, noise_multiplier=1.0, trust=Trust.CENTRAL)
    table = torch.zeros(2, 20, dtype=torch.int64)
    table[1, 3] = method.mechanism.quantizer.peak
    assert float(table[1, 3]) * method.mechanism.quantizer.granularity < 3.0 * 1.005
    method.check_honest(table)
    method.check_honest(2 * table, 2)
    for cells, count in ((table + (table > 0), 1), (2 * table + 2 * (table > 0), 2)):
        with pytest.raises(WireError):
            method.check_honest(cells, count)


def test_bare_messages_have_the_limit_that_is_given() -> None:
    method, table = PlainSketch(DIM, 2, 20), torch.zeros(2, 20)
    table[0, 0] = 5.0
    method.check_honest(table)
    method.check_honest(table, limit=5.0)
    method.check_honest(2 * table, 2, limit=5.0)
    refused(WireError, r"at most 4\.9", method.check_honest, table, limit=4.9)


# With noise far larger than what is clipped, times a factor.
NOISY: dict[str, Callable[[float], Method]] = {
    "sketch-gaussian": lambda f: SketchGaussian(DIM, 2, 20, clip=1.0, noise_multiplier=2 * f),
    "sketch-skellam": lambda f: SketchSkellam(
        DIM, 2, 20, clip=1.0, noise_multiplier=2 * f, cohort=1, trust=Trust.LOCAL, granularity=0.01
    ),
    "laplace": lambda f: RawLaplace(DIM, per_round=0.05 / f, clip=0.01),
    "sketch-laplace": lambda f: SketchLaplace(DIM, 2, 20, per_round=0.05 / f, clip=0.01),
    "cpsgd": lambda f: CpSgd(dim=DIM, cohort=9, clip=0.1, levels=4, trials=round(6400 * f * f)),
}


def beyond(norms: list[float], bound: float) -> int:
    return sum(norm > bound for norm in norms)


@pytest.mark.parametrize("name", NOISY)
def test_refusals_by_chance_are_as_rare_as_stated(name: str) -> None:
    method = NOISY[name](1.0)
    vectors = torch.ones(DRAWS, DIM)  # longer than any clip
    norms = [method.norm_of(one) for one in messages(method, vectors)]
    assert beyond(norms, method.honest_norm(failure=FAILURE)) <= TOO_MANY
    # Negative control: a bound for an eighth of the noise is far too small.
    small = NOISY[name](1 / 8).honest_norm(failure=FAILURE)
    assert beyond(norms, small) > DRAWS / 2


@pytest.mark.parametrize(
    ("kind", "multiplier"), [(SketchSkellam, 0.5), (SketchGaussian, 4.0)]
)  # the clips count most, or the noise
@pytest.mark.parametrize("trust", [Trust.DISTRIBUTED, Trust.LOCAL])
def test_sums_of_a_cohort(
    kind: type[SketchGaussian | SketchSkellam], trust: Trust, multiplier: float
) -> None:
    """All at the clip, in the same direction; a bound for an eighth of them is too small."""
    cohort, rounds = 8, 400
    method = kind(
        DIM, 2, 20, clip=1.0, noise_multiplier=multiplier, cohort=cohort, trust=trust,
        granularity=0.01,
    )  # fmt: skip
    sent = messages(method, torch.ones(cohort * rounds, DIM)).reshape(rounds, cohort, 2, 20)
    norms = [method.norm_of(one, cohort) for one in sent.sum(dim=1)]
    most = int(stats.binom.isf(1e-10, rounds, FAILURE))
    assert beyond(norms, method.honest_norm(cohort, failure=FAILURE)) <= most
    assert beyond(norms, method.honest_norm(cohort // 8, failure=FAILURE)) > rounds / 2

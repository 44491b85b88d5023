"""A cohort's noise: each row is its worker's own, whoever else is there, and never used twice.

Independent streams are told from shared ones by counting equal numbers, of some 53 random bits
each: among 200,000 of them two are equal by chance with a probability below 1e-5. The other tests
say their own probability of a false alarm.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy import CohortNoise, FastNoise, Noise, NoiseKey

KEY = NoiseKey.from_integer(4)
Draw = Callable[[Noise, tuple[int, ...]], Tensor]
DRAWS: dict[str, Draw] = {
    "normal": lambda noise, shape: noise.normal(shape, 2.0, dtype=torch.float32),
    "normal64": lambda noise, shape: noise.normal(shape, 2.0, dtype=torch.float64),
    "laplace": lambda noise, shape: noise.laplace(shape, 2.0, dtype=torch.float32),
    "laplace64": lambda noise, shape: noise.laplace(shape, 2.0, dtype=torch.float64),
    "bernoulli": lambda noise, shape: noise.bernoulli(torch.full(shape, 0.3)),
    "discrete gaussian": lambda noise, shape: noise.discrete_gaussian(shape, 50.0),
    "wide gaussian": lambda noise, shape: noise.discrete_gaussian(shape, 1e9),
    "discrete laplace": lambda noise, shape: noise.discrete_laplace(shape, 50.0),
    "skellam": lambda noise, shape: noise.skellam(shape, 900.0),
    "binomial": lambda noise, shape: noise.binomial(shape, 1000, 0.5),
    "certain": lambda noise, shape: noise.binomial(shape, 7, 1.0),
    "nothing": lambda noise, shape: noise.skellam(shape, 0.0),
}
every_draw = pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)


def cohort(*workers: int, round_index: int = 0, key: NoiseKey = KEY) -> CohortNoise:
    return CohortNoise(key, workers, round_index=round_index)


@every_draw
def test_rows_are_those_of_the_workers_alone(draw: Draw) -> None:
    shape = (3, 5)
    together = cohort(4, 1, 9)
    first, second = (draw(together, (3, *shape)) for _ in range(2))
    for row, worker in enumerate((4, 1, 9)):
        alone = cohort(worker)
        for drawn in (first, second):
            expected = draw(alone, (1, *shape))[0]
            assert expected.dtype == drawn.dtype
            assert torch.equal(drawn[row], expected)


@every_draw
def test_parts_go_on_where_the_whole_is(draw: Draw) -> None:
    """Whoever draws more numbers than others: nobody else's change."""
    whole, shape = cohort(4, 1, 9), (3, 6)
    draw(whole, shape)
    some = draw(whole.part(torch.tensor([True, False, True])), (2, 6))
    last = draw(whole, shape)
    alone = {worker: [draw(cohort_of, (1, 6))[0] for _ in range(3)] for worker, cohort_of in
             ((worker, cohort(worker)) for worker in (4, 1, 9))}  # fmt: skip
    assert torch.equal(some, torch.stack([alone[4][1], alone[9][1]]))
    assert torch.equal(last, torch.stack([alone[4][2], alone[1][1], alone[9][2]]))
    by_index = cohort(4, 1, 9).part(torch.tensor([2, 0]))
    assert torch.equal(draw(by_index, (2, 6)), torch.stack([alone[9][0], alone[4][0]]))


def shared_numbers(streams: list[Tensor]) -> int:
    """Numbers that occur more than once, in one stream or in several."""
    values = torch.cat([stream.flatten() for stream in streams])
    return len(values) - len(set(values.tolist()))


def test_no_two_workers_rounds_keys_or_draws_share_numbers() -> None:
    """2,000 numbers of 53 bits are all different, but with probability 1e-9."""
    noise = cohort(0, 1, 2**62, 2**63 - 1)
    others = [cohort(0, round_index=index) for index in (1, 2, 2**64 - 1)]
    others += [cohort(0, key=NoiseKey.from_integer(5))]

    def normal(source: Noise, rows: int) -> Tensor:
        return source.normal((rows, 100), 1.0, dtype=torch.float64)

    streams = [normal(noise, 4), normal(noise, 4), normal(noise, 4)]
    streams += [normal(other, 1) for other in others for _ in range(2)]
    assert shared_numbers(streams) == 0
    again = normal(cohort(2**62), 1)  # the control: one of the workers once more
    assert shared_numbers([*streams, again]) == 100


def test_long_draws_do_not_run_into_the_next() -> None:
    """A stream has 2**128 blocks: neither the next draw nor the next worker begins in it."""
    noise = cohort(0, 1)
    streams = [noise.normal((2, 50_000), 1.0, dtype=torch.float64) for _ in range(2)]
    assert shared_numbers(streams) == 0


def test_rows_are_not_correlated() -> None:
    """Seven standard errors: beyond with probability 1e-10 for 45 pairs of workers."""
    draws = CohortNoise(KEY, range(10), round_index=3).normal(
        (10, 20_000), 1.0, dtype=torch.float64
    )
    largest = float((np.corrcoef(draws.numpy()) - np.eye(10)).max())
    assert abs(largest) < 7 / np.sqrt(20_000)
    mixed = draws[0] + 0.1 * draws[1]  # the control
    assert np.corrcoef(mixed, draws[1])[0, 1] > 7 / np.sqrt(20_000)


LAWS = {
    "normal": stats.norm(scale=2.0),
    "normal64": stats.norm(scale=2.0),
    "laplace": stats.laplace(scale=2.0),
    "laplace64": stats.laplace(scale=2.0),
}


@pytest.mark.parametrize("name", LAWS)
def test_real_numbers_have_their_distribution(name: str) -> None:
    """Kolmogorov-Smirnov: fails with probability 1e-9 on another key."""
    values = DRAWS[name](CohortNoise(KEY, range(100), round_index=1), (100, 300)).flatten().double()
    assert stats.kstest(values.numpy(), LAWS[name].cdf).pvalue > 1e-9
    assert stats.kstest(values.numpy() / 2, LAWS[name].cdf).pvalue < 1e-9  # the control: half


@pytest.mark.parametrize(
    ("name", "mean", "variance"),
    [
        ("bernoulli", 0.3, 0.21),
        ("discrete gaussian", 0.0, 2500.0),
        ("wide gaussian", 0.0, 1e18),
        ("skellam", 0.0, 900.0),
        ("binomial", 500.0, 250.0),
    ],
)
def test_whole_numbers_have_their_moments(name: str, mean: float, variance: float) -> None:
    """Seven standard errors. The samplers themselves are tested in `test_discrete_sampling.py`."""
    values = DRAWS[name](CohortNoise(KEY, range(100), round_index=1), (100, 300)).flatten().double()

    def fits(sample: Tensor) -> bool:
        centred: Tensor = (sample - mean) / variance**0.5
        error = 7 / math.sqrt(len(sample))
        right_mean = abs(float(centred.mean())) < error
        squares = centred.square()
        return right_mean and abs(float(squares.mean()) - 1) < error * float(squares.std())

    assert fits(values)
    assert not fits(mean + (values - mean) / 2)  # the control: half


def test_no_worker_has_no_rows() -> None:
    noise = cohort()
    for draw in DRAWS.values():
        assert draw(noise, (0, 4)).shape == (0, 4)
    assert draw_types(noise, 0) == draw_types(cohort(1), 1)


def draw_types(noise: Noise, rows: int) -> list[torch.dtype]:
    return [draw(noise, (rows, 4)).dtype for draw in DRAWS.values()]


def test_the_same_types_as_a_single_source() -> None:
    assert draw_types(cohort(1), 1) == draw_types(FastNoise(1), 1)


def test_wrong_arguments() -> None:
    with pytest.raises(ArgumentError, match="key must be a NoiseKey"):
        CohortNoise(b"secret", [1], round_index=0)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="must be different"):
        cohort(1, 2, 1)
    for bad in (-1, 2**63):
        with pytest.raises(ArgumentError, match="workers must be in"):
            cohort(3, bad)
    for index in (-1, 2**64):
        with pytest.raises(ArgumentError, match="round_index must be in"):
            cohort(1, round_index=index)
    noise = cohort(1, 2)
    for shape in ((), (3, 4), (1, 4)):
        with pytest.raises(ArgumentError, match="a row for each of 2 workers"):
            noise.normal(shape, 1.0, dtype=torch.float32)
        with pytest.raises(ArgumentError, match="a row for each of 2 workers"):
            noise.skellam(shape, 1.0)
    with pytest.raises(ArgumentError, match="a row for each of 2 workers"):
        noise.bernoulli(torch.full((3, 1), 0.5))
    with pytest.raises(ArgumentError, match=r"probabilities must be in \[0, 1\]"):
        noise.bernoulli(torch.full((2, 1), 1.5))
    with pytest.raises(ArgumentError, match="std must be"):
        noise.normal((2, 4), -1.0, dtype=torch.float32)
    with pytest.raises(ArgumentError, match="dtype must be"):
        noise.laplace((2, 4), 1.0, dtype=torch.float16)


def test_what_is_refused_uses_nothing_up() -> None:
    """A draw that fails must not move the others: noise of a round stays reproducible."""
    noise = cohort(1, 2)
    with pytest.raises(ArgumentError):
        noise.normal((2, 4), math.nan, dtype=torch.float32)
    with pytest.raises(ArgumentError):
        noise.skellam((2, 4), -1.0)
    with pytest.raises(ArgumentError):
        noise.bernoulli(torch.full((2, 1), 1.5))
    fresh = cohort(1, 2).laplace((2, 5), 1.0, dtype=torch.float32)
    assert torch.equal(noise.laplace((2, 5), 1.0, dtype=torch.float32), fresh)

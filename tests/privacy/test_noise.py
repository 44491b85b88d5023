"""Noise has the distributions that it names; simulated noise depends on nothing but its key.

Secure noise comes from the operating system, repeats nothing, and refuses what is not exact.
"""

from __future__ import annotations

import math
import multiprocessing
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy import CohortNoise, FastNoise, Noise, NoiseKey, SecureNoise
from diffsketch.privacy import noise as noise_module
from diffsketch.privacy.noise import MAX_SCALE
from tests.helpers.refusals import each_refused, refused
from tests.privacy.laws import (
    Probabilities,
    binomial_law,
    gaussian_law,
    laplace_law,
    skellam_law,
    surprise,
    words_of,
)

CHANCE = 1e-11

DRAWS = 1_500_000

Draw = Callable[[Noise, tuple[int, ...], float], Tensor]


def coins(variance: float) -> int:
    """An odd number, of which one coin is tossed apart."""
    return min(round(4 * variance) | 1, 2**50 - 1)


DISTRIBUTIONS: dict[str, tuple[Draw, Callable[[float], tuple[int, Probabilities]], float]] = {
    # how to draw, the exact law, and the power of the scale that the parameter is
    "gaussian": (Noise.discrete_gaussian, gaussian_law, 1),
    "laplace": (Noise.discrete_laplace, laplace_law, 1),
    "skellam": (Noise.skellam, skellam_law, 2),
    "binomial": (lambda n, s, v: n.binomial(s, coins(v)), lambda v: binomial_law(coins(v)), 2),
}  # fmt: skip

SCALES = [0.7, 5.3, 40.0, pytest.param(1500.0, marks=pytest.mark.slow)]

SOURCES = [(noise, name) for noise in (FastNoise(3), SecureNoise()) for name in DISTRIBUTIONS]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(("noise", "name"), SOURCES)
def test_whole_numbers_have_their_law(noise: Noise, name: str, scale: float) -> None:
    """The right noise passes; 2% too little, one sign in a quarter and off by one do not."""
    draw, law, power = DISTRIBUTIONS[name]
    values, exact = draw(noise, (DRAWS,), scale**power), law(scale**power)
    assert values.dtype == torch.int64
    assert surprise(values, *exact) > CHANCE
    less = 0.8 if name == "binomial" else 0.98  # trials are whole
    assert surprise(draw(noise, (DRAWS,), (less * scale) ** power), *exact) < CHANCE
    some, middle = torch.arange(DRAWS) % 4 == 0, int(values.double().mean().round())
    one_sign = torch.where(some, (values - middle).abs() + middle, values)
    assert surprise(one_sign, *exact) < CHANCE
    if scale <= 40:
        assert surprise(values + 1, *exact) < CHANCE


@pytest.mark.parametrize("scale", [1e4, 1e6, 2.0**50])
@pytest.mark.parametrize(("noise", "name"), SOURCES)
def test_wide_whole_numbers_have_their_law(noise: Noise, name: str, scale: float) -> None:
    """A hundred cells of the continuous law, which is nearer than can be seen, and last digits."""
    scale = min(scale, 2.0**24) if name == "binomial" else scale  # whose trials are at most 2**50
    draw, _, power = DISTRIBUTIONS[name]
    law = stats.laplace if name == "laplace" else stats.norm
    values = draw(noise, (DRAWS,), scale**power)
    centred = values.double() - (2 * scale**2 if name == "binomial" else 0)

    def sizes(x: Tensor) -> float:
        cells = np.searchsorted(law.ppf(np.linspace(0.01, 0.99, 99)), x.numpy() / scale)
        return surprise(torch.from_numpy(cells), 0, np.full(100, 0.01))

    def digits(x: Tensor) -> float:
        return surprise(x % 61, 0, np.full(61, 1 / 61))

    assert sizes(centred) > CHANCE
    assert digits(values) > CHANCE
    assert sizes(0.98 * centred) < CHANCE
    assert sizes(torch.where(torch.arange(DRAWS) % 25 == 0, centred.abs(), centred)) < CHANCE
    assert digits(values // 61 * 61 + values % 60) < CHANCE


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["norm", "laplace"])
def test_continuous_noise_has_its_law(name: str, dtype: torch.dtype) -> None:
    """Kolmogorov and Smirnov's test, false alarms below CHANCE."""
    noise = FastNoise(6)
    draw = noise.normal if name == "norm" else noise.laplace
    values = draw((100, 1000), 3.5, dtype=dtype)
    assert values.dtype == dtype
    assert values.shape == (100, 1000)

    def p_value(x: Tensor) -> float:
        return float(stats.kstest(x.double().numpy().ravel() / 3.5, name).pvalue)

    assert p_value(values) > CHANCE
    assert p_value(0.8 * values) < CHANCE
    assert p_value(values + 0.2) < CHANCE
    some = torch.arange(1000) % 20 == 0
    assert p_value(torch.where(some, values.abs(), values)) < CHANCE


DrawRows = Callable[[Noise, tuple[int, ...]], Tensor]


EVERY: dict[str, DrawRows] = {
    "normal": lambda noise, shape: noise.normal(shape, 2.0, dtype=torch.float32),
    "normal64": lambda noise, shape: noise.normal(shape, 2.0, dtype=torch.float64),
    "laplace": lambda noise, shape: noise.laplace(shape, 2.0, dtype=torch.float32),
    "laplace64": lambda noise, shape: noise.laplace(shape, 2.0, dtype=torch.float64),
    "bernoulli": lambda noise, shape: noise.bernoulli(torch.full(shape, 0.3)),
    "discrete gaussian": lambda noise, shape: noise.discrete_gaussian(shape, 50.0),
    "wide gaussian": lambda noise, shape: noise.discrete_gaussian(shape, 1e9),
    "discrete laplace": lambda noise, shape: noise.discrete_laplace(shape, 50.0),
    "skellam": lambda noise, shape: noise.skellam(shape, 900.0),
    "binomial": lambda noise, shape: noise.binomial(shape, 999),
    "wide laplace": lambda noise, shape: noise.discrete_laplace(shape, 1e6),
    "wide skellam": lambda noise, shape: noise.skellam(shape, 1e12),
    "wide binomial": lambda noise, shape: noise.binomial(shape, 10**12),
    "no coins": lambda noise, shape: noise.binomial(shape, 0),
    "nothing": lambda noise, shape: noise.skellam(shape, 0.0),
}


def draw_everything(noise: Noise) -> list[Tensor]:
    constant = {"no coins", "nothing"}
    return [draw(noise, (50,)) for name, draw in EVERY.items() if name not in constant]


def test_same_key_same_numbers_and_no_global_state() -> None:
    key = NoiseKey.from_integer(1)
    torch.manual_seed(0)
    state, legacy = torch.get_rng_state(), np.random.get_state(legacy=False)  # noqa: NPY002
    first = draw_everything(key.source(worker=2, round_index=3))
    assert torch.equal(torch.get_rng_state(), state)
    assert str(np.random.get_state(legacy=False)) == str(legacy)  # noqa: NPY002
    torch.manual_seed(1)
    again = draw_everything(NoiseKey.from_integer(1).source(worker=2, round_index=3))
    assert all(map(torch.equal, first, again))
    for other in (
        key.source(worker=3, round_index=2),
        key.source(worker=2, round_index=4),
        NoiseKey.from_integer(2).source(worker=2, round_index=3),
    ):
        assert not any(map(torch.equal, first, draw_everything(other)))


@pytest.mark.parametrize("source", [FastNoise(10), SecureNoise()])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_shapes_and_zero_scales(source: Noise, shape: tuple[int, ...]) -> None:
    for std in (0.0, 2.0):
        drawn = [
            source.discrete_gaussian(shape, std),
            source.discrete_laplace(shape, std),
            source.skellam(shape, std),
            source.binomial(shape, int(std)),
            source.bernoulli(torch.full(shape, std / 2)),
        ]
        assert all(values.dtype == torch.int64 for values in drawn)
        if isinstance(source, FastNoise):
            drawn.append(source.normal(shape, std, dtype=torch.float32))
            drawn.append(source.laplace(shape, std, dtype=torch.float32))
        assert all(values.shape == shape for values in drawn)
        assert std > 0 or not any(values.any() for values in drawn)


@pytest.mark.parametrize("source", [FastNoise(11), SecureNoise()])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 2 * MAX_SCALE])
def test_bad_scales_are_refused(source: Noise, bad: float) -> None:
    for method in (source.discrete_gaussian, source.discrete_laplace):
        refused(ArgumentError, r"must be in \[0, 2\*\*50\]", method, (2,), bad)
    with pytest.raises(ArgumentError, match=r"variance must be in \[0, 2\*\*100\]"):
        source.skellam((2,), bad if bad < 9 else bad**2)
    refused(ArgumentError, "probabilities must be in", source.bernoulli, torch.tensor([0.5, bad]))
    if isinstance(source, FastNoise) and bad != 2 * MAX_SCALE:
        for draw in (source.normal, source.laplace):
            refused(ArgumentError, "must be 0 or in", draw, (2,), bad, dtype=torch.float64)


def test_noise_neither_vanishes_nor_overflows_in_a_type() -> None:
    noise = FastNoise(12)
    for std in (1e-45, 1e-40, 1e38):
        with pytest.raises(ArgumentError, match=r"std must be 0 or in .* for torch\.float32"):
            noise.normal((2,), std, dtype=torch.float32)
        assert noise.normal((999,), std, dtype=torch.float64).abs().max() > std
    assert torch.isfinite(noise.normal((9999,), 3e36, dtype=torch.float32)).all()
    refused(ArgumentError, "dtype must be", noise.laplace, (2,), 1.0, dtype=torch.float16)


KEY = NoiseKey.from_integer(4)

every_draw = pytest.mark.parametrize("draw", EVERY.values(), ids=EVERY)


def cohort(*workers: int, round_index: int = 0, key: NoiseKey = KEY) -> CohortNoise:
    return CohortNoise(key, workers, round_index=round_index)


@every_draw
def test_rows_are_those_of_the_workers_alone(draw: DrawRows) -> None:
    assert draw(cohort(), (0, 4)).shape == (0, 4)  # no worker has no rows
    shape = (3, 300)  # so many that some of the wide ones are drawn again
    together = cohort(4, 1, 9)
    first, second = (draw(together, (3, *shape)) for _ in range(2))
    for row, worker in enumerate((4, 1, 9)):
        alone = cohort(worker)
        for drawn in (first, second):
            expected = draw(alone, (1, *shape))[0]
            assert expected.dtype == drawn.dtype
            assert torch.equal(drawn[row], expected)


@every_draw
def test_parts_go_on_where_the_whole_is(draw: DrawRows) -> None:
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


FAST, PAIR, ROWS = FastNoise(13), cohort(1, 2), "a row for each of 2 workers"
REFUSED: list[tuple[str, Callable[..., object], list[Any]]] = [
    # the message, what is called, and the arguments for which it has to raise
    ("floating type", FAST.bernoulli, [torch.tensor([1])]),
    ("trials must be", partial(FAST.binomial, (2,)), [-1, 2**51, True, 2.0]),
    ("shape must be", partial(FAST.discrete_gaussian, std=1.0), [(2, -1)]),
    ("seed must be", FastNoise, [-1, True, 1.5, None]),
    ("secret must be 32 bytes", NoiseKey, [b"short", "x" * 32]),
    ("number must be", NoiseKey.from_integer, [-1, 1 << 256, True, 1.0]),
    ("worker must be", lambda bad: KEY.source(worker=bad, round_index=0), [-1, 1 << 64, True, 1.0]),
    ("key must be of type NoiseKey", lambda bad: cohort(1, key=bad), [b"secret"]),
    ("must be different", lambda bad: cohort(1, 2, bad), [1]),
    ("workers must be in", lambda bad: cohort(3, bad), [-1, 2**63]),
    ("round_index must be in", lambda bad: cohort(1, round_index=bad), [-1, 2**64]),
    (ROWS, partial(PAIR.normal, std=1.0, dtype=torch.float32), [(), (3, 4), (1, 4)]),
    (ROWS, partial(PAIR.skellam, variance=1.0), [(), (3, 4), (1, 4)]),
    (ROWS, PAIR.bernoulli, [torch.full((3, 1), 0.5)]),
    (r"probabilities must be in \[0, 1\]", PAIR.bernoulli, [torch.full((2, 1), 1.5)]),
    ("std must be", partial(PAIR.normal, (2, 4), dtype=torch.float32), [-1.0]),
    ("dtype must be", lambda bad: PAIR.laplace((2, 4), 1.0, dtype=bad), [torch.float16]),
]


@pytest.mark.parametrize(("message", "call", "every"), REFUSED)
def test_bad_arguments_are_refused(
    message: str, call: Callable[..., object], every: list[Any]
) -> None:
    each_refused(ArgumentError, message, call, every)
    assert repr(KEY) == "NoiseKey(<secret>)"


def test_what_is_refused_uses_nothing_up() -> None:
    """A draw that fails must not move the others: noise of a round stays reproducible."""
    noise = cohort(1, 2)
    refused(ArgumentError, "std", noise.normal, (2, 4), math.nan, dtype=torch.float32)
    refused(ArgumentError, "variance", noise.skellam, (2, 4), -1.0)
    refused(ArgumentError, "probabilities", noise.bernoulli, torch.full((2, 1), 1.5))
    fresh = cohort(1, 2).laplace((2, 5), 1.0, dtype=torch.float32)
    assert torch.equal(noise.laplace((2, 5), 1.0, dtype=torch.float32), fresh)


@given(
    probability=st.floats(0, 1) | st.sampled_from([5e-324, 2.0**-32, 0.5, 1 - 2.0**-53, 0.1]),
    offsets=st.lists(st.integers(-1, 1), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_bernoulli_compares_with_exact_numbers(probability: float, offsets: list[int]) -> None:
    """Words that agree with the binary digits of the probability, or just do not."""
    exact, words = Fraction(probability), []
    for index, offset in enumerate(offsets):
        digits = int(exact * 2 ** (32 * (index + 1))) % 2**32
        words.append(min(max(digits + offset, 0), 2**32 - 1))
    number = sum((Fraction(w, 2 ** (32 * (i + 1))) for i, w in enumerate(words)), Fraction(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise_module, "random_words", words_of(words))
        (result,) = noise_module.bernoulli(np.array([probability]))
    assert result == (number < exact)


def test_bernoulli_takes_more_bits_for_ties(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ties at the first word are decided by the second, for their own places."""
    first = [int(Fraction(p) * 2**32) for p in (0.1, 2.0**-40, 0.1)]
    words = [first[0] + 1, 0, first[2], 9, 2**32 - 1]
    monkeypatch.setattr(noise_module, "random_words", words_of(words))
    result = noise_module.bernoulli(np.array([0.1, 2.0**-40, 0.1]))
    # 2**-40 is 2**24 in units of 2**-64, so 9 is below it
    assert result.tolist() == [0, 1, 0]


def test_takes_no_seed_and_repeats_nothing() -> None:
    """64 numbers of deviation 2**40 are equal twice with a probability below 2**-2000."""
    refused(TypeError, "argument", SecureNoise, 7)
    noise, other = SecureNoise(), SecureNoise()
    for source in (noise, other):
        state = torch.get_rng_state()
        first, second = (source.discrete_gaussian((64,), 2.0**40) for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(noise.binomial((64,), 999), other.binomial((64,), 999))
    assert not torch.equal(noise.skellam((64,), 1e8), other.skellam((64,), 1e8))


def test_pieces_of_many_threads_are_all_different() -> None:
    """Threads must not share random bits. Numbers agree by chance with probability below 1e-11."""
    count = 3 * noise_module._PIECE
    pieces = SecureNoise().discrete_laplace((count,), 2.0**50).reshape(3, -1)
    assert all(len(set(piece.tolist())) > 65_000 for piece in pieces)
    assert not (pieces[0] == pieces[1]).any()
    assert not (pieces[1] == pieces[2]).any()


def test_floating_point_noise_is_refused() -> None:
    noise, text = SecureNoise(), "whole numbers only.*use discrete_"
    refused(ArgumentError, text + "gaussian", noise.normal, (2,), 1.0, dtype=torch.float64)
    refused(ArgumentError, text + "laplace", noise.laplace, (2,), 1.0, dtype=torch.float64)


def test_a_forked_child_draws_other_numbers() -> None:
    """Tables are kept over the fork. Equal by chance with probability below 2**-300 for each."""
    noise, fork = SecureNoise(), multiprocessing.get_context("fork")

    def draw() -> list[list[int]]:
        drawn = [noise.discrete_gaussian((8,), 1e12), noise.discrete_laplace((8,), 1e12)]
        drawn += [noise.skellam((8,), 1e24), noise.binomial((320,), 999)]
        return [values.tolist() for values in drawn]

    draw()
    queue = fork.SimpleQueue()
    fork.Process(target=lambda: queue.put(draw())).start()
    assert all(a != b for a, b in zip(queue.get(), draw(), strict=True))

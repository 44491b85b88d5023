"""Fast noise has the distributions that it names, and depends on nothing but its key.

Whole numbers are tested with exact binomial tails: `surprise` bounds the probability of data as
odd as these, whatever the distribution. Seeds are fixed; over the choice of seeds, each comparison
fails by chance with probability at most `CHANCE`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.privacy.noise import FastNoise, NoiseKey
from diffsketch.privacy.noise import simulated as discrete_sampling
from diffsketch.privacy.noise.base import MAX_SCALE

CHANCE = 1e-9
DRAWS = 200_000
Probabilities = npt.NDArray[np.float64]


def surprise(values: Tensor, lowest: int, probabilities: Probabilities) -> float:
    """A bound on the probability of counts as far off, for numbers from `lowest` on.

    The count of each number and of all up to it are binomial; their exact tails, times the number
    of the tails that were looked at.
    """
    found = values.numpy().ravel() - lowest
    counts = np.bincount(found[found >= 0], minlength=len(probabilities))[: len(probabilities)]
    observed = np.concatenate([counts, (found < 0).sum() + counts.cumsum()])
    chances = np.concatenate([probabilities, probabilities.cumsum()]).clip(0, 1)
    low = np.min(stats.binom.cdf(observed, len(found), chances))
    high = np.min(stats.binom.sf(observed - 1, len(found), chances))
    return min(1.0, 2 * len(chances) * float(min(low, high)))


def normalised(weights: Probabilities) -> Probabilities:
    return weights / math.fsum(weights)


def gaussian_law(std: float) -> tuple[int, Probabilities]:
    radius = math.ceil(12 * std) + 2
    x = np.arange(-radius, radius + 1)
    with np.errstate(over="ignore"):
        return -radius, normalised(np.exp(-(x**2) / (2 * std**2)))


def laplace_law(scale: float) -> tuple[int, Probabilities]:
    radius = math.ceil(60 * scale) + 2
    x = np.arange(-radius, radius + 1)
    return -radius, math.tanh(1 / (2 * scale)) * np.exp(-np.abs(x) / scale)


def skellam_law(variance: float) -> tuple[int, Probabilities]:
    """From its definition: the difference of two Poisson numbers."""
    reach = math.ceil(40 + 7 * math.sqrt(variance))  # each is within 10 standard deviations
    low = max(0, math.floor(variance / 2 - reach))
    one = stats.poisson.pmf(np.arange(low, math.ceil(variance / 2 + reach)), variance / 2)
    return 1 - len(one), np.convolve(one, one[::-1])


def binomial_law(trials: int, probability: float) -> tuple[int, Probabilities]:
    middle, reach = trials * probability, 40 + 9 * math.sqrt(trials / 4)
    low, high = max(0, math.floor(middle - reach)), min(trials, math.ceil(middle + reach))
    return low, stats.binom.pmf(np.arange(low, high + 1), trials, probability)


Draw = Callable[[FastNoise, tuple[int, ...], float], Tensor]
DISTRIBUTIONS: dict[str, tuple[Draw, Callable[[float], tuple[int, Probabilities]], float]] = {
    # how to draw, the exact law, and the power of the scale that the parameter is
    "gaussian": (FastNoise.discrete_gaussian, gaussian_law, 1),
    "laplace": (FastNoise.discrete_laplace, laplace_law, 1),
    "skellam": (FastNoise.skellam, skellam_law, 2),
    "binomial": (lambda n, s, v: n.binomial(s, round(4 * v), 0.5),
                 lambda v: binomial_law(round(4 * v), 0.5), 2),
}  # fmt: skip
SCALES = [0.5, 1.0, 2.3, 31.0, 700.0, 1500.0]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_whole_numbers_have_their_law(name: str, scale: float) -> None:
    draw, law, power = DISTRIBUTIONS[name]
    values = draw(FastNoise(3), (DRAWS,), scale**power)
    assert values.dtype == torch.int64
    exact = law(scale**power)
    assert surprise(values, *exact) > CHANCE
    # Controls: noise that is 20% too small, of one sign in 4 of 100, or off by one.
    if scale >= 1:
        small = draw(FastNoise(3), (DRAWS,), (0.8 * scale) ** power)
        assert surprise(small, *exact) < CHANCE
    some = torch.arange(DRAWS) % 25 == 0
    middle = int(values.double().mean().round())
    one_sign = torch.where(some, (values - middle).abs() + middle, values)
    assert surprise(one_sign, *exact) < CHANCE
    if scale <= 31:
        assert surprise(values + 1, *exact) < CHANCE


@pytest.mark.parametrize(
    ("name", "scale"),
    [("gaussian", 1e6), ("gaussian", 2.0**50), ("laplace", 1e6), ("laplace", 2.0**50),
     ("skellam", 1e6), ("skellam", 2.0**50), ("binomial", 1e5)],
)  # fmt: skip
def test_wide_whole_numbers_have_their_law(name: str, scale: float) -> None:
    """Sizes against the continuous law, which differs by less than 1e-9; last digits evenly."""
    draw, _, power = DISTRIBUTIONS[name]
    law = stats.laplace if name == "laplace" else stats.norm
    values = draw(FastNoise(4), (DRAWS,), scale**power)
    centred = values.double() - (2 * scale**2 if name == "binomial" else 0)

    def sizes(x: Tensor) -> float:
        cuts = law.ppf(np.linspace(0.01, 0.99, 99))
        return surprise(
            torch.from_numpy(np.searchsorted(cuts, x.numpy() / scale)), 0, np.full(100, 0.01)
        )

    def digits(x: Tensor) -> float:
        return surprise(x.abs() % 61, 0, np.full(61, 1 / 61))

    assert sizes(centred) > CHANCE
    assert digits(values) > CHANCE
    assert sizes(0.8 * centred) < CHANCE
    assert sizes(torch.where(torch.arange(DRAWS) % 25 == 0, centred.abs(), centred)) < CHANCE
    assert digits(values // 61 * 61 + values % 60) < CHANCE


@pytest.mark.parametrize("name", ["gaussian", "laplace"])
def test_few_blocks_give_the_same_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With blocks wider than the noise much is rejected, and any fault of that would show."""
    monkeypatch.setattr(discrete_sampling, "MAX_BLOCKS", 8)
    make = getattr(discrete_sampling, f"discrete_{name}")
    for scale in (3.0, 40.0):
        table = make(scale)
        assert 1 << table.shift > scale
        values = torch.from_numpy(table.draw(np.random.default_rng(9), DRAWS))
        exact = DISTRIBUTIONS[name][1](scale)
        assert surprise(values, *exact) > CHANCE
        # Control: reject nothing.
        wrong = replace(table, log_weight=lambda x: np.zeros(len(x)))
        values = torch.from_numpy(wrong.draw(np.random.default_rng(9), DRAWS))
        assert surprise(values, *exact) < CHANCE


def test_the_guide_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw() -> list[Tensor]:
        noise = FastNoise(5)
        return [noise.discrete_gaussian((40_000,), std) for std in (0.4, 20.0, 800.0, 1e7)]

    guided = draw()
    monkeypatch.setattr(discrete_sampling, "_GUIDE_FROM", 10**9)
    assert all(map(torch.equal, guided, draw()))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bernoulli_has_its_probabilities(dtype: torch.dtype) -> None:
    chances = torch.tensor([0.0, 1e-4, 0.3, 0.5, 0.999, 1.0], dtype=dtype)
    values = FastNoise(7).bernoulli(chances[:, None].expand(-1, DRAWS))
    assert values.dtype == torch.int64
    for chance, found in zip(chances.tolist(), values, strict=True):
        assert surprise(found, 0, np.array([1 - chance, chance])) > CHANCE
        if 0.01 < chance < 0.9:
            assert surprise(found, 0, np.array([1 - 0.95 * chance, 0.95 * chance])) < CHANCE


def test_binomial_corners() -> None:
    noise = FastNoise(8)
    assert noise.binomial((3,), 7, 0.0).tolist() == [0] * 3
    assert noise.binomial((3,), 7, 1.0).tolist() == [7] * 3
    assert noise.binomial((2, 2), 0, 0.5).tolist() == [[0, 0], [0, 0]]
    assert noise.binomial((3,), 7, 5e-324).tolist() == [0] * 3
    assert set(noise.binomial((999,), 2, 0.5).tolist()) == {0, 1, 2}


def draw_everything(noise: FastNoise) -> list[Tensor]:
    return [
        noise.normal((50,), 1.0, dtype=torch.float32),
        noise.laplace((50,), 1.0, dtype=torch.float64),
        noise.bernoulli(torch.full((50,), 0.5)),
        noise.discrete_gaussian((50,), 1e6),
        noise.discrete_laplace((50,), 1e6),
        noise.skellam((50,), 1e12),
        noise.binomial((50,), 10**12, 0.5),
    ]


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


def test_a_stream_goes_on_and_does_not_repeat() -> None:
    noise = FastNoise(9)
    first, second = (noise.normal((50,), 1.0, dtype=torch.float64) for _ in range(2))
    assert not (first == second).any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_shapes_and_zero_scales(shape: tuple[int, ...]) -> None:
    noise = FastNoise(10)
    for std in (0.0, 2.0):
        drawn = [
            noise.normal(shape, std, dtype=torch.float32),
            noise.laplace(shape, std, dtype=torch.float32),
            noise.discrete_gaussian(shape, std),
            noise.discrete_laplace(shape, std),
            noise.skellam(shape, std),
            noise.binomial(shape, int(std), 0.5),
            noise.bernoulli(torch.full(shape, std / 2)),
        ]
        assert all(values.shape == shape for values in drawn)
        assert std > 0 or not any(values.any() for values in drawn)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 4 * MAX_SCALE])
def test_bad_scales_are_refused(bad: float) -> None:
    noise = FastNoise(11)
    for method in (noise.discrete_gaussian, noise.discrete_laplace):
        with pytest.raises(ArgumentError, match=r"must be in \[0, 2\*\*50\]"):
            method((2,), bad)
    with pytest.raises(ArgumentError, match="variance must be in"):
        noise.skellam((2,), bad if bad < 9 else bad**3)
    if bad < 9 or not math.isfinite(bad):
        for draw in (noise.normal, noise.laplace):
            with pytest.raises(ArgumentError, match="must be 0 or in"):
                draw((2,), bad, dtype=torch.float64)


def test_noise_neither_vanishes_nor_overflows_in_a_type() -> None:
    noise = FastNoise(12)
    for std in (1e-45, 1e-40, 1e38):
        with pytest.raises(ArgumentError, match=r"std must be 0 or in .* for torch\.float32"):
            noise.normal((2,), std, dtype=torch.float32)
        assert noise.normal((999,), std, dtype=torch.float64).abs().max() > std
    assert torch.isfinite(noise.normal((9999,), 3e36, dtype=torch.float32)).all()
    with pytest.raises(ArgumentError, match="dtype must be float32 or float64"):
        noise.laplace((2,), 1.0, dtype=torch.float16)


def test_other_bad_arguments_are_refused() -> None:
    noise = FastNoise(13)
    for probability in (math.nan, -0.1, 1.1):
        with pytest.raises(ArgumentError, match="probability must be in"):
            noise.binomial((2,), 3, probability)
        with pytest.raises(ArgumentError, match="probabilities must be in"):
            noise.bernoulli(torch.tensor([0.5, probability]))
    with pytest.raises(ArgumentError, match="floating type"):
        noise.bernoulli(torch.tensor([1]))
    for trials in (-1, 2**51, True, 2.0):
        with pytest.raises(ArgumentError, match="trials must be"):
            noise.binomial((2,), trials, 0.5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="shape must be"):
        noise.discrete_gaussian((2, -1), 1.0)
    for seed in (-1, True, 1.5, None):
        with pytest.raises(ArgumentError, match="seed must be"):
            FastNoise(seed)  # type: ignore[arg-type]


def test_keys_are_checked_and_not_shown() -> None:
    key = NoiseKey.from_integer(5)
    assert repr(key) == "NoiseKey(<secret>)"
    with pytest.raises(ArgumentError, match="secret must be 32 bytes"):
        NoiseKey(b"short")
    for number in (-1, 1 << 256, True, 1.0):
        with pytest.raises(ArgumentError, match="number must be"):
            NoiseKey.from_integer(number)  # type: ignore[arg-type]
    for worker in (-1, 1 << 64, True, 1.0):
        with pytest.raises(ArgumentError, match="worker must be"):
            key.source(worker=worker, round_index=0)  # type: ignore[arg-type]

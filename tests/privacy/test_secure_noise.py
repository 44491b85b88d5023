"""Secure noise is exact, comes from the operating system, and refuses what cannot be exact.

The samplers cannot be seeded. What they do with random bits is tested exactly, on chosen bits; what
comes out in the end is compared with the exact law by exact binomial tails (`surprise`). Each such
comparison fails by chance with probability at most `CHANCE`, and so does each control (they are
some ten standard errors from where they would pass); all of a run together below 1e-9.
"""

from __future__ import annotations

import math
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from diffsketch.errors import ArgumentError, DiffSketchError
from diffsketch.privacy.noise import secure as secure_noise
from diffsketch.privacy.noise import secure_sampling
from diffsketch.privacy.noise.secure import SecureNoise
from diffsketch.privacy.noise.secure_sampling import SKELLAM_ERROR, SkellamTable

CHANCE = 1e-11
DRAWS = 40_000  # from OpenDP
MANY = 100_000  # from our own samplers
Probabilities = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]


def surprise(values: Tensor, lowest: int, probabilities: Probabilities) -> float:
    """A bound on the probability of counts as far off, for numbers from `lowest` on."""
    found = values.numpy().ravel() - lowest
    counts = np.bincount(found[found >= 0], minlength=len(probabilities))[: len(probabilities)]
    observed = np.concatenate([counts, (found < 0).sum() + counts.cumsum()])
    chances = np.concatenate([probabilities, probabilities.cumsum()]).clip(0, 1)
    low = np.min(stats.binom.cdf(observed, len(found), chances))
    high = np.min(stats.binom.sf(observed - 1, len(found), chances))
    return min(1.0, 2 * len(chances) * float(min(low, high)))


def symmetric(weight: Callable[[Probabilities], Probabilities], radius: float) -> Probabilities:
    weights = weight(np.arange(-math.ceil(radius), math.ceil(radius) + 1.0))
    return weights / math.fsum(weights)


def check_law(draw: Callable[[float], Tensor], scale: float, exact: Probabilities) -> None:
    """The right noise passes; 20% too little, one sign in a quarter and off by one do not."""
    lowest, values = -(len(exact) // 2), draw(scale)
    assert values.dtype == torch.int64
    assert surprise(values, lowest, exact) > CHANCE
    assert surprise(draw(0.8 * scale), lowest, exact) < CHANCE
    some = torch.arange(len(values)) % 4 == 0
    assert surprise(torch.where(some, values.abs(), values), lowest, exact) < CHANCE
    if scale < 10:  # a smaller share of wide noise
        assert surprise(values + 1, lowest, exact) < CHANCE


@pytest.mark.parametrize("std", [1.1, 5.3])
def test_discrete_gaussian_has_its_law(std: float) -> None:
    noise = SecureNoise()
    exact = symmetric(lambda x: np.exp(-(x**2) / (2 * std**2)), 13 * std)
    check_law(lambda s: noise.discrete_gaussian((DRAWS,), s), std, exact)


@pytest.mark.parametrize("scale", [1.1, 5.3])
def test_discrete_laplace_has_its_law(scale: float) -> None:
    noise = SecureNoise()
    exact = symmetric(lambda x: np.exp(-np.abs(x) / scale), 70 * scale)
    check_law(lambda s: noise.discrete_laplace((DRAWS,), s), scale, exact)


@pytest.mark.parametrize("std", [1.1, 5.3, 40.0])
def test_skellam_has_its_law(std: float) -> None:
    noise = SecureNoise()
    one = stats.poisson.pmf(np.arange(math.ceil(std**2 / 2 + 60 + 8 * std)), std**2 / 2)
    check_law(lambda s: noise.skellam((MANY,), s**2), std, np.convolve(one, one[::-1]))


@pytest.mark.parametrize("scale", [0.0, 1e-300, 0.4, 1e6, 2.0**50])
def test_sizes_of_opendp_noise(scale: float) -> None:
    """The share of zeros and the quartiles, over a range of scales; `CHANCE` for each."""
    noise = SecureNoise()
    for values, power, middle in (
        (noise.discrete_gaussian((10_000,), scale), 2, 0.6744897501960817),
        (noise.discrete_laplace((10_000,), scale), 1, math.log(2)),
    ):
        if scale < 1e-9:
            assert not values.any()
        elif scale < 1:
            radius = np.arange(-40, 41)
            weights = np.exp(-((np.abs(radius) / scale) ** power) / power)
            assert surprise(values, -40, weights / weights.sum()) > CHANCE
        else:  # half of them are within the quartiles, up to the rounding to whole numbers
            within = (values.abs() <= middle * scale).to(torch.int64)
            assert surprise(within, 0, np.array([0.5, 0.5])) > CHANCE
            small = (0.8 * values.abs() <= middle * scale).to(torch.int64)
            assert surprise(small, 0, np.array([0.5, 0.5])) < CHANCE


def bits_of(words: list[int]) -> Callable[[int], Words]:
    """A replacement of the system's randomness: these words, then zeros."""
    rest = iter(words)
    return lambda count: np.array([next(rest, 0) for _ in range(count)], np.uint64)


@given(
    probability=st.floats(0, 1) | st.sampled_from([5e-324, 2.0**-64, 0.5, 1 - 2.0**-53, 0.1]),
    offsets=st.lists(st.integers(-1, 1), min_size=1, max_size=4),
)
@settings(deadline=None, max_examples=300)
def test_bernoulli_compares_with_the_exact_probability(
    probability: float, offsets: list[int]
) -> None:
    """Words that agree with the binary digits of the probability, or just do not."""
    exact, words = Fraction(probability), []
    for index, offset in enumerate(offsets):
        digits = int(exact * 2 ** (64 * (index + 1))) % 2**64
        words.append(min(max(digits + offset, 0), 2**64 - 1))
    number = sum((Fraction(w, 2 ** (64 * (i + 1))) for i, w in enumerate(words)), Fraction(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_sampling, "random_words", bits_of(words))
        (result,) = secure_sampling.bernoulli(np.array([probability]))
    assert result == (number < exact)


def test_bernoulli_takes_more_bits_for_those_that_need_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ties at the first word are decided by the second, for their own places."""
    first = [int(Fraction(p) * 2**64) for p in (0.1, 2.0**-70, 0.1)]
    monkeypatch.setattr(secure_sampling, "random_words", bits_of([first[0] + 1, 0, first[2], 9, 0]))
    result = secure_sampling.bernoulli(np.array([0.1, 2.0**-70, 0.1]))
    # 2**-70 is 2**58 in units of 2**-128, so 9 is below it; 0.1 has no digit after 2**-58
    assert result.tolist() == [0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_bernoulli_has_its_probabilities(dtype: torch.dtype) -> None:
    chances = torch.tensor([0.0, 1e-3, 0.3, 0.5, 1.0], dtype=dtype)
    values = SecureNoise().bernoulli(chances[:, None].expand(-1, MANY))
    assert values.shape == (5, MANY)
    for chance, found in zip(chances.tolist(), values, strict=True):
        assert surprise(found, 0, np.array([1 - chance, chance])) > CHANCE
        if 0.1 < chance < 0.9:
            assert surprise(found, 0, np.array([1 - 0.93 * chance, 0.93 * chance])) < CHANCE


@pytest.mark.parametrize("eighths", range(9))
def test_binomial_is_exact(eighths: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 512 outcomes of the coins that decide three trials with a probability of three digits."""
    found: Counter[int] = Counter()
    for coins in product(range(8), repeat=3):
        monkeypatch.setattr(secure_sampling, "random_words", bits_of([c << 61 for c in coins]))
        (result,) = secure_sampling.binomial(1, 3, eighths / 8)
        found[int(result)] += 1
    exact = {k: math.comb(3, k) * eighths**k * (8 - eighths) ** (3 - k) for k in range(4)}
    assert {k: n for k, n in exact.items() if n} == dict(found)


@given(tosses=st.lists(st.integers(0, 200), min_size=1, max_size=5), seed=st.integers(0, 99))
@settings(deadline=None)
def test_coins_are_counted_each_once(tosses: list[int], seed: int) -> None:
    drawn: list[int] = []
    rng = np.random.default_rng(seed)

    def record(count: int) -> Words:
        words = rng.integers(0, 2**64, count, dtype=np.uint64)
        drawn.extend(words.tolist())
        return words

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secure_sampling, "random_words", record)
        heads = secure_sampling._coins(np.array(tosses))
    expected, left, rest = [0] * len(tosses), list(tosses), iter(drawn)
    while any(left):
        for place, tossed in enumerate(left):
            if tossed:
                used = min(64, tossed)
                expected[place] += (next(rest) >> (64 - used)).bit_count()
                left[place] -= used
    assert heads.tolist() == expected
    assert next(rest, None) is None


@pytest.mark.parametrize(("trials", "probability"), [(16, 0.5), (100, 0.5), (40, 0.1), (9, 0.97)])
def test_binomial_has_its_law(trials: int, probability: float) -> None:
    values = SecureNoise().binomial((MANY,), trials, probability)
    exact = stats.binom.pmf(np.arange(trials + 1), trials, probability)
    assert surprise(values, 0, exact) > CHANCE
    assert surprise((values - 1).abs(), 0, exact) < CHANCE
    small = SecureNoise().binomial((MANY,), trials, 0.9 * probability)
    assert surprise(small, 0, exact) < CHANCE


def limits_of(table: SkellamTable) -> list[int]:
    return [(int(h) << 64) + int(w) for h, w in zip(table.high, table.low, strict=True)]


def bessel(x: int, variance: Decimal) -> Decimal:
    """The modified Bessel function by its series."""
    term = (variance / 2) ** x / math.factorial(x)
    total, m = term, 0
    while term > total / 10**65:
        m += 1
        term *= variance**2 / (4 * m * (m + x))
        total += term
    return total


@pytest.mark.parametrize("variance", [1e-300, 0.01, 0.3, 7.5, 150.0])
def test_skellam_table_is_as_close_as_it_says(variance: float) -> None:
    """Total variation against the series of the Bessel function, with 70 digits."""

    def distance(table: SkellamTable) -> Decimal:
        with localcontext(prec=70):
            v = Decimal(variance)
            half = [bessel(x, v) * (-v).exp() for x in range(table.radius + 1)]
            exact = half[:0:-1] + half
            found = [b - a for a, b in pairwise([0, *limits_of(table), 1 << 128])]
            apart = [abs(Decimal(n) / 2**128 - p) for n, p in zip(found, exact, strict=True)]
            return (sum(apart, Decimal(0)) + abs(1 - sum(exact, Decimal(0)))) / 2

    assert distance(SkellamTable.build(variance)) < Decimal(SKELLAM_ERROR)
    wrong = SkellamTable.build(variance * (1 + 2.0**-52))
    if wrong.radius == SkellamTable.build(variance).radius and variance > 1e-3:
        assert distance(wrong) > Decimal(SKELLAM_ERROR)


def test_skellam_error_holds_at_the_largest_variance() -> None:
    """Rounding of the limits and the cut, which are all that grows with the variance."""
    variance = secure_sampling.SKELLAM_MAX_VARIANCE
    radius = math.ceil(110 / 3 + math.sqrt(110**2 / 9 + 220 * variance))
    assert 2 * radius + 1 < 2**20
    assert (2 * radius + 1) * 2.0**-128 + 2.0**-116 + 2.0**-157 < SKELLAM_ERROR


@given(data=st.data())
@settings(deadline=None)
def test_skellam_looks_up_all_128_bits(data: st.DataObject) -> None:
    table = SkellamTable.build(2.5)
    limits = limits_of(table)
    near = st.sampled_from(limits).flatmap(lambda x: st.integers(x - 2, x + 2))
    numbers = data.draw(st.lists(near | st.integers(0, 2**128 - 1), min_size=1, max_size=9))
    numbers = [min(max(n, 0), 2**128 - 1) for n in numbers]
    high = np.array([n >> 64 for n in numbers], np.uint64)
    low = np.array([n & (1 << 64) - 1 for n in numbers], np.uint64)
    expected = [bisect_right(limits, n) - table.radius for n in numbers]
    assert table.look_up(high, low).tolist() == expected


def test_skellam_table_follows_the_variance() -> None:
    noise = SecureNoise()
    small, large = noise.skellam((999,), 0.01), noise.skellam((999,), 1e6)
    assert small.abs().max() < 20  # Poisson numbers of mean 0.005: 20 has a chance below 1e-60
    assert large.abs().max() > 20  # 999 of 1000 numbers of deviation 1000 are not below that


def test_takes_no_seed_and_repeats_nothing() -> None:
    """64 numbers of deviation 2**40 are equal twice with a probability below 2**-2000."""
    with pytest.raises(TypeError):
        SecureNoise(7)  # type: ignore[call-arg]
    assert SecureNoise.secure
    noise, other = SecureNoise(), SecureNoise()
    for source in (noise, other):
        state = torch.get_rng_state()
        first, second = (source.discrete_gaussian((64,), 2.0**40) for _ in range(2))
        assert not torch.equal(first, second)
        assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(noise.binomial((64,), 999, 0.3), other.binomial((64,), 999, 0.3))
    assert not torch.equal(noise.skellam((64,), 1e8), other.skellam((64,), 1e8))


def test_pieces_of_many_threads_are_all_different() -> None:
    """Threads must not share random bits. Numbers agree by chance with probability below 1e-11."""
    count = 3 * secure_noise._PIECE
    pieces = SecureNoise().discrete_laplace((count,), 2.0**50).reshape(3, -1)
    assert all(len(set(piece.tolist())) > 16_000 for piece in pieces)
    assert not (pieces[0] == pieces[1]).any()
    assert not (pieces[1] == pieces[2]).any()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3)])
def test_shapes_and_zero_scales(shape: tuple[int, ...]) -> None:
    noise = SecureNoise()
    for scale in (0.0, 1.0):
        drawn = [
            noise.discrete_gaussian(shape, scale),
            noise.discrete_laplace(shape, scale),
            noise.skellam(shape, scale),
            noise.binomial(shape, int(scale), 0.3),
            noise.bernoulli(torch.full(shape, scale)),
        ]
        assert all(values.shape == shape and values.dtype == torch.int64 for values in drawn)
        assert scale > 0 or not any(values.any() for values in drawn)


def test_floating_point_noise_is_refused() -> None:
    noise = SecureNoise()
    with pytest.raises(ArgumentError, match=r"whole numbers only.*use discrete_gaussian"):
        noise.normal((2,), 1.0, dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"whole numbers only.*use discrete_laplace"):
        noise.laplace((2,), 1.0, dtype=torch.float64)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 2.0**51])
def test_bad_scales_are_refused(bad: float) -> None:
    noise = SecureNoise()
    for method in (noise.discrete_gaussian, noise.discrete_laplace):
        with pytest.raises(ArgumentError, match=r"must be in \[0, 2\*\*50\]"):
            method((2,), bad)
    with pytest.raises(ArgumentError, match=r"variance must be in \[0, 2\*\*30\]"):
        noise.skellam((2,), bad)
    with pytest.raises(ArgumentError, match="probability must be in"):
        noise.binomial((2,), 3, bad)
    with pytest.raises(ArgumentError, match="probabilities must be in"):
        noise.bernoulli(torch.tensor([bad]))


@pytest.mark.parametrize("version", ["0.12.1", "0.14.1", "0.14", "0.9.2"])
def test_versions_of_opendp_with_biased_samplers_are_refused(version: str) -> None:
    with pytest.raises(DiffSketchError, match=r"opendp must be 0\.14\.2 or newer"):
        secure_noise._check_opendp(version)


@pytest.mark.parametrize("version", ["0.14.2", "0.15.0", "0.16.0", "1.0"])
def test_sound_versions_of_opendp_are_taken(version: str) -> None:
    secure_noise._check_opendp(version)


def test_opendp_is_imported_at_first_use() -> None:
    code = (
        "import sys; from diffsketch.privacy.noise.secure import SecureNoise as S; n = S();"
        "before = 'opendp' in sys.modules; n.discrete_gaussian((1,), 1.0);"
        "print(before, 'opendp' in sys.modules)"
    )
    done = subprocess.run(  # noqa: S603 (our own code)
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["False", "True"]

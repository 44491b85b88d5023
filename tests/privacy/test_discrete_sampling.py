"""Tables of whole numbers are exact, beyond what samples could show (`test_noise.py` has those)."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest

from diffsketch.privacy.noise import simulated as discrete_sampling
from diffsketch.privacy.noise.secure import Skellam
from diffsketch.privacy.noise.simulated import MAX_BLOCKS, IntegerTable


def table_probabilities(table: IntegerTable) -> dict[int, Fraction]:
    """What a table of single integers draws, exactly."""
    assert table.shift == 0
    limits = [0, *(int(limit) for limit in table.limits), 1 << 64]
    widths = [Fraction(b - a, 1 << 64) for a, b in pairwise(limits)]
    return dict(zip(table.starts.tolist(), widths, strict=True))


Weight = Callable[[int], Decimal]


def gaussian_weight(std: float) -> Weight:
    scale = 2 * Decimal(std) ** 2
    return lambda x: (-(x**2) / scale).exp()


def laplace_weight(scale: float) -> Weight:
    return lambda x: (-abs(x) / Decimal(scale)).exp()


def skellam_weight(variance: float) -> Weight:
    """The series of the Bessel function."""
    square = Decimal(variance) ** 2 / 4

    def weight(x: int) -> Decimal:
        term = (Decimal(variance) / 2) ** abs(x) / math.factorial(abs(x))
        total, m = term, 0
        while term > total / 10**40:
            m += 1
            term *= square / (m * (m + abs(x)))
            total += term
        return total

    return weight


def binomial_weight(trials: int, probability: float) -> Weight:
    p = Decimal(probability)
    return lambda x: math.comb(trials, x) * p**x * (1 - p) ** (trials - x)


def distance(table: IntegerTable, weight: Weight) -> float:
    """Total variation between a table and weights, in decimal numbers of 50 digits.

    Only over what the table can draw: the rest is tested to be negligible by its last weights.
    """
    with localcontext(prec=50):
        weights = {x: weight(x) for x in table.starts.tolist()}
        total = sum(weights.values())
        edges = [weights[x] / total for x in (min(weights), max(weights))]
        assert max(edges) < Decimal(2) ** -60 or min(weights) == 0
        terms = (
            abs(Decimal(width.numerator) / width.denominator - weights[x] / total)
            for x, width in table_probabilities(table).items()
        )
        return float(sum(terms) / 2)


@pytest.mark.parametrize(
    ("make", "make_weight", "parameters"),
    [
        (discrete_sampling.discrete_gaussian, gaussian_weight, [1e-320, 0.3, 3.7, 200.0]),
        (discrete_sampling.discrete_laplace, laplace_weight, [1e-320, 0.3, 3.7, 40.0]),
        (discrete_sampling.skellam, skellam_weight, [1e-300, 0.3, 9.0, 400.0]),
    ],
)
def test_tables_are_exact_to_far_below_any_statistic(
    make: Callable[[float], IntegerTable],
    make_weight: Callable[[float], Weight],
    parameters: list[float],
) -> None:
    for parameter in parameters:
        assert distance(make(parameter), make_weight(parameter)) < 1e-11
    # control: a parameter that is 1e-9 off
    assert distance(make(9.0 * (1 + 1e-9)), make_weight(9.0)) > 1e-11


@pytest.mark.parametrize(("trials", "probability"), [(5, 0.3), (300, 0.01), (10**6, 1e-4)])
def test_binomial_tables_are_exact(trials: int, probability: float) -> None:
    table = discrete_sampling.binomial(trials, probability)
    wrong = discrete_sampling.binomial(trials, probability * (1 + 1e-9))
    assert distance(table, binomial_weight(trials, probability)) < 1e-11
    assert distance(wrong, binomial_weight(trials, probability)) > 1e-11


def test_weights_of_blocks_are_exact() -> None:
    x = np.arange(-9000, 9001, 90)
    for variance in (8e5, 1e7):
        wide = discrete_sampling.skellam(variance)
        assert wide.shift > 0
        exact = [Skellam(variance).digits(int(i), 160) for i in x]
        logs = np.array([math.log(Fraction(e, exact[100])) for e in exact])
        found = wide.log_weight(x) - wide.log_weight(np.zeros(1, np.int64))
        assert np.abs(found - logs).max() < 1e-11
    for table, power in (
        (discrete_sampling.discrete_gaussian(1e5), 2),
        (discrete_sampling.discrete_laplace(1e5), 1),
    ):
        exact_logs = [-float(Fraction(abs(int(i)), 10**5) ** power / power) for i in x]
        assert np.abs(table.log_weight(x) - exact_logs).max() < 1e-12


def log_factorial(x: Decimal) -> Decimal:
    """Stirling's series; the first term that is left out is below x**-7 / 1000."""
    return (x + Decimal("0.5")) * x.ln() - x + 1 / (12 * x) - 1 / (360 * x**3) + 1 / (1260 * x**5)


@pytest.mark.parametrize(("trials", "probability"), [(10**7, 0.3), (2**50, 0.5), (2**50, 1e-8)])
def test_weights_of_wide_binomials_are_exact(trials: int, probability: float) -> None:
    """Logarithms of weights, relative to the mode's, in decimal numbers of 60 digits."""
    table = discrete_sampling.binomial(trials, probability)
    assert table.shift > 0
    mode = int(table.starts[-1])
    std = math.sqrt(trials * probability * (1 - probability))
    x = mode + np.linspace(-9 * std, 9 * std, 41).astype(np.int64)
    found = table.log_weight(x) - table.log_weight(np.array([mode]))
    with localcontext(prec=60):
        p = Decimal(probability)
        for place, log in zip(x.tolist(), found.tolist(), strict=True):
            change = log_factorial(Decimal(mode)) - log_factorial(Decimal(place))
            change += log_factorial(Decimal(trials - mode)) - log_factorial(Decimal(trials - place))
            exact = change + (place - mode) * (p / (1 - p)).ln()
            assert log == pytest.approx(float(exact), abs=1e-11)


@pytest.mark.parametrize(
    "table",
    [discrete_sampling.discrete_gaussian(3e4), discrete_sampling.discrete_laplace(5e9),
     discrete_sampling.skellam(1e8), discrete_sampling.discrete_gaussian(2.0)],
)  # fmt: skip
def test_blocks_are_drawn_and_thinned_in_proportion(table: IntegerTable) -> None:
    """Block by block: probability of the draw times that of keeping is that of the integer."""
    limits = np.array([0, *table.limits.tolist(), 2**64], dtype=object)
    widths = np.diff(limits).astype(np.float64)
    assert widths / widths.sum() == pytest.approx(
        np.exp(table.peaks) / np.exp(table.peaks).sum(), rel=1e-9, abs=1e-18
    )
    assert len(table.starts) <= MAX_BLOCKS + 2
    width = 1 << table.shift
    assert np.array_equal(np.diff(np.sort(table.starts)), np.full(len(table.starts) - 1, width))
    for inside in (0, width // 3, width - 1):  # the peak is the highest, the sure part the lowest
        ratio = np.exp(table.log_weight(table.starts + inside) - table.peaks)
        assert (ratio <= 1 + 1e-9).all()
        assert (ratio >= table.sure * (1 - 1e-9)).all()

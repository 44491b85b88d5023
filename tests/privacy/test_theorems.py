"""Theorem 1 by its statement; the error of estimates by brute force on real sketches."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm
from torch import Tensor

from diffsketch import CountSketch, SketchKey
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import NoClaim, PaperClaim
from diffsketch.privacy.theorems import (
    claimed_per_round,
    estimate_alpha,
    estimate_sigma,
    estimates,
    least_padding,
    query_variance,
    theorem1,
)
from diffsketch.sketch.hashing import FAMILIES, MAX_DIM, Family
from diffsketch.sketch.kernels.estimators import Combine
from tests.helpers.refusals import refused

# The 90th percentile of the size of a standard Gaussian.
ALPHA = float(norm.ppf(0.95))

MNIST_50, MNIST_75 = (7850, 7, 22), (7850, 7, 15)

SHAKESPEARE_20, SHAKESPEARE_16 = (39720, 10, 190), (39720, 10, 245)


def value(claim: PaperClaim | NoClaim) -> float:
    return float(claim.epsilon(delta=0.0, rounds=1))


def padding_for(target: float, dim: int, rows: int, cols: int, *, ratio: float) -> int | None:
    """The least padding of a single vector of any length that a sketch takes; None if none is."""
    alpha, sigma = torch.tensor([ratio], dtype=torch.float64), torch.ones(1)
    lengths, claims = least_padding(
        target, dim, rows, cols, alpha=alpha, sigma=sigma, most=MAX_DIM - dim
    )
    return int(lengths) if float(claims) <= target else None


def condition(dim: int, cols: int, ratio: float) -> float:
    """The left side of the theorem's condition, in rational arithmetic but for the logarithm."""
    factor = Fraction(ratio) ** 2 * Fraction(cols * (cols - 1), dim - 2)
    return float(factor * Fraction(1 + math.log(dim - cols)))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        (MNIST_50, (None, None, 6.851, 1.539, 0.3295)),
        (MNIST_75, (None, 10.34, 2.336, 0.6579, 0.1479)),
        (SHAKESPEARE_20, (None, None, None, None, 15.37)),
        (SHAKESPEARE_16, (None, None, None, None, None)),
    ],
)
def test_claims_for_gaussian_vectors_and_appended_noise(
    sizes: tuple[int, int, int], expected: tuple[float | None, ...]
) -> None:
    dim, rows, cols = sizes
    for times, known in zip((0, 1, 5, 20, 100), expected, strict=True):
        claim = theorem1(dim * (1 + times), rows, cols, alpha=ALPHA, sigma=1.0)
        if known is None:
            assert isinstance(claim, NoClaim)
            assert "x < 1/2" in claim.reason
        else:
            assert f"{value(claim):.4g}" == str(known)


@pytest.mark.parametrize(
    ("sizes", "for_one", "for_tenth"),
    [
        (MNIST_50, 31.1, 355),
        (MNIST_75, 12.7, 152),
        (SHAKESPEARE_20, 947, 10237),
        (SHAKESPEARE_16, 1624, 17480),
    ],
)
def test_lengths_of_appended_noise(
    sizes: tuple[int, int, int], for_one: float, for_tenth: float
) -> None:
    dim, rows, cols = sizes
    for target, known in ((1.0, for_one), (0.1, for_tenth)):
        length = padding_for(target, dim, rows, cols, ratio=ALPHA)
        assert length is not None
        assert length / dim == pytest.approx(known, rel=2e-3)
        enough = theorem1(dim + length, rows, cols, alpha=ALPHA, sigma=1.0)
        short = theorem1(dim + length - 1, rows, cols, alpha=ALPHA, sigma=1.0)
        assert value(enough) <= target < value(short)


def test_the_closed_form_is_the_best_beta() -> None:
    """The statement is `rows ln(1 + beta x)` for any beta with `x <= 1/2 - 1/beta`."""
    dim, rows, cols = 50_000, 7, 22
    x = condition(dim, cols, ALPHA)
    betas = 1 / (0.5 - x) * (1 + np.logspace(-12, 3, 2000))
    best = value(theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0))
    assert float(np.min(rows * np.log1p(betas * x))) == pytest.approx(best, rel=1e-9)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"cols": 1}, "two columns"),
        ({"dim": 22}, "22 columns"),
        ({"sigma": 0.0}, "equal"),
        ({"alpha": 0.0}, "zero"),
        ({"alpha": 1e300, "sigma": 1e-300}, "x = inf"),
    ],
)
def test_a_failed_condition_is_a_value(changes: dict[str, float], why: str) -> None:
    arguments = {"dim": 10**6, "rows": 7, "cols": 22, "alpha": 1.0, "sigma": 1.0} | changes
    claim = theorem1(**arguments)  # type: ignore[arg-type]
    assert isinstance(claim, NoClaim)
    assert why in claim.reason
    assert value(claim) == math.inf


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dim", 0), ("dim", 10.0), ("dim", True), ("rows", 0), ("rows", 65), ("cols", -1),
        ("alpha", -1.0), ("alpha", math.nan), ("alpha", math.inf),
        ("sigma", -1.0), ("sigma", math.nan), ("sigma", math.inf),
    ],
)  # fmt: skip
def test_bad_arguments_raise(name: str, bad: float) -> None:
    arguments: dict[str, Any] = {"dim": 1000, "rows": 7, "cols": 22, "alpha": 1.0, "sigma": 1.0}
    arguments[name] = bad
    refused(ArgumentError, name, theorem1, **arguments)
    for ratio in ("alpha", "sigma"):
        arguments[ratio] = torch.tensor([1.0, arguments[ratio]])  # of two workers
    refused(ArgumentError, name, claimed_per_round, **arguments)
    refused(ArgumentError, name, least_padding, 1.0, most=10, **arguments)


@pytest.mark.parametrize(("name", "bad"), [("target_claimed", 0.0), ("most", -1)])
def test_bad_targets_of_padding_raise(name: str, bad: float) -> None:
    sizes = {"dim": 10, "rows": 1, "cols": 2, "alpha": torch.ones(2), "sigma": torch.ones(2)}
    wanted = {"target_claimed": 1.0, "most": 10, name: bad}
    refused(ArgumentError, name, least_padding, **sizes, **wanted)


@given(
    dim=st.integers(1, 300), rows=st.integers(1, 4), cols=st.integers(2, 60),
    ratio=st.floats(0.02, 1), target=st.floats(0.05, 30),
)  # fmt: skip
@settings(deadline=None, max_examples=50)
def test_padding_is_the_first_length_that_suffices(
    dim: int, rows: int, cols: int, ratio: float, target: float
) -> None:
    """Also near dim = cols, where x still rises with the length."""
    length = padding_for(target, dim, rows, cols, ratio=ratio)
    assert length is not None
    scan = 400
    good = [
        value(theorem1(dim + more, rows, cols, alpha=ratio, sigma=1.0)) <= target
        for more in range(scan)
    ]
    if length < scan:
        assert good.index(True) == length
    else:
        assert not any(good)


@pytest.mark.slow
def test_estimates_match_numpy_on_vectors_and_batches() -> None:
    """Of strided, half-precision and float64 values as well; both at once as each by itself."""
    values = np.random.default_rng(1).standard_normal((3, 4, 517)).astype(np.float32)
    arrays = [values, values[0], values[0, 0], values[..., :1], values[..., :11]]
    arrays += [values.transpose(1, 0, 2), values.astype(np.float64), values.astype(np.float16)]
    for array in arrays:
        vectors, wide = torch.from_numpy(array), array.astype(np.float64)
        alpha, sigma = estimate_alpha(vectors), estimate_sigma(vectors)
        assert alpha.dtype == sigma.dtype == torch.float64
        np.testing.assert_allclose(alpha, np.quantile(np.abs(wide), 0.9, axis=-1), rtol=1e-12)
        np.testing.assert_allclose(sigma, wide.std(axis=-1), rtol=1e-10, atol=1e-300)
        both = estimates(vectors)
        assert torch.equal(both[0], alpha)
        torch.testing.assert_close(both[1], sigma, rtol=1e-10, atol=0.0)


def test_estimates_of_extreme_values() -> None:
    huge = torch.tensor([1e300, -1e300, 3e300], dtype=torch.float64)
    assert estimate_sigma(huge).item() == pytest.approx(1e300 * np.std([1, -1, 3]), rel=1e-12)
    for bad in (torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 0.0])):
        for estimate in (estimate_alpha, estimate_sigma, estimates):
            refused(ArgumentError, "finite", estimate, bad)
    for bad in (torch.tensor(1.0), torch.zeros(0), torch.zeros(2, 0), torch.arange(3)):
        for estimate in (estimate_alpha, estimate_sigma):
            refused(ArgumentError, "vectors", estimate, bad)


def test_many_workers_at_once() -> None:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(50, 3000, generator=generator) * torch.rand(50, 1, generator=generator)
    vectors[7] = 0
    vectors[8] = 1.5
    vectors[9, 5:] = 0
    vectors[10:20, 0] += 30 * torch.arange(10)  # makes sigma larger, so that claims differ
    alpha, sigma = estimate_alpha(vectors), estimate_sigma(vectors)
    many = claimed_per_round(3000, 5, 4, alpha=alpha, sigma=sigma)
    single = [
        value(theorem1(3000, 5, 4, alpha=a, sigma=s))
        for a, s in zip(alpha.tolist(), sigma.tolist(), strict=True)
    ]
    assert many.dtype == torch.float64
    np.testing.assert_allclose(many, single, rtol=1e-12)
    assert torch.isinf(many).sum() == 3
    for dim, cols in ((4, 4), (3000, 1)):
        assert torch.isinf(claimed_per_round(dim, 5, cols, alpha=alpha, sigma=sigma)).all()
    for target, most in ((1e-3, 10**6), (1e-3, 2000), (0.5, 0), (1e9, 100)):
        lengths, claims = least_padding(target, 3000, 5, 4, alpha=alpha, sigma=sigma, most=most)
        for a, s, length, claimed in zip(
            alpha.tolist(), sigma.tolist(), lengths.tolist(), claims.tolist(), strict=True
        ):
            needed = padding_for(target, 3000, 5, 4, ratio=a / s) if a * s > 0 else None
            fits = needed is not None and needed <= most
            assert length == (needed if fits else 0)
            assert (claimed <= target) == fits


SIGMAS = 6.0


def upper_end(values: list[float]) -> float:
    """Above the expectation of these values, but for six standard errors."""
    return float(np.mean(values) + SIGMAS * np.std(values, ddof=1) / math.sqrt(len(values)))


def lower_end(values: list[float]) -> float:
    return float(np.mean(values) - SIGMAS * np.std(values, ddof=1) / math.sqrt(len(values)))


def median_limit(values: list[float]) -> float:
    """What `query_variance` says the median's square is at most, given the rows' errors."""
    factor = query_variance(CountSketch(2, len(values), 1), combine="median")  # rows alone: 1
    return factor * sum(v * v for v in values) / len(values)


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12))
def test_a_median_is_not_larger_than_half_of_the_values(values: list[float]) -> None:
    assert np.median(values) ** 2 <= median_limit(values) * (1 + 1e-12)


def errors_of_estimates(
    vector: Tensor, sketch: CountSketch, combine: Combine, *, seeds: int
) -> tuple[list[float], list[float]]:
    """Squared relative errors, and the errors along the vector."""
    squares, along = [], []
    for number in range(seeds):
        seed = SketchKey.from_integer(number).seed(1)
        off = sketch.query(sketch.encode(vector, seed), seed, combine=combine) - vector
        squares.append(float(off.square().sum() / vector.square().sum()))
        along.append(float(off @ vector / vector.square().sum()))
    return squares, along


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("combine", ["mean", "median"])
@pytest.mark.parametrize("rows", [1, 2, 3, 6])
def test_estimates_are_unbiased_with_the_stated_variance(
    family: Family, combine: Combine, rows: int
) -> None:
    rng = np.random.default_rng(rows)
    for values in (rng.standard_normal(400), rng.standard_normal(400) / np.arange(1, 401)):
        vector = torch.from_numpy(values)
        sketch = CountSketch(400, rows, 10, family)
        squares, along = errors_of_estimates(vector, sketch, combine, seeds=800)
        variance = query_variance(sketch, combine=combine)
        assert lower_end(squares) <= variance
        assert lower_end(along) <= 0 <= upper_end(along)
        # Control: an estimate that is a fifth too small.
        short = [0.8 * (1 + error) - 1 for error in along]
        assert not lower_end(short) <= 0 <= upper_end(short)
        if family == "pairwise" and combine == "mean":  # where it is not a bound but the value
            assert lower_end(squares) <= variance <= upper_end(squares)
            assert lower_end(squares) > 0.8 * variance  # control


def test_another_way_to_combine_rows_is_refused() -> None:
    refused(ArgumentError, "combine", query_variance, CountSketch(10, 1, 2), combine="max")

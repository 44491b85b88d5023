"""Theorem 1 against its statement, term by term, and the numbers that follow from it."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, NoClaim, PaperClaim, Relation, Trust, Unit
from diffsketch.privacy.theorems import (
    claimed_per_round,
    estimate_alpha,
    estimate_sigma,
    estimates,
    padding_for,
    theorem1,
)

# The 90th percentile of the size of a standard Gaussian.
ALPHA = float(norm.ppf(0.95))
MNIST_50, MNIST_75 = (7850, 7, 22), (7850, 7, 15)
SHAKESPEARE_20, SHAKESPEARE_16 = (39720, 10, 190), (39720, 10, 245)


def value(claim: PaperClaim | NoClaim) -> float:
    return float(claim.epsilon(delta=0.0, rounds=1))


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
        length = padding_for(target, dim, rows, cols, alpha=ALPHA, sigma=1.0)
        assert isinstance(length, int)
        assert length / dim == pytest.approx(known, rel=2e-3)
        enough = theorem1(dim + length, rows, cols, alpha=ALPHA, sigma=1.0)
        short = theorem1(dim + length - 1, rows, cols, alpha=ALPHA, sigma=1.0)
        assert value(enough) <= target < value(short)


@given(
    dim=st.integers(3, 10**6), rows=st.integers(1, 20), cols=st.integers(2, 50),
    ratio=st.floats(0.01, 3), beta=st.floats(2.01, 1e4),
)  # fmt: skip
@settings(deadline=None)
def test_own_beta_is_the_statement_and_never_beats_the_best(
    dim: int, rows: int, cols: int, ratio: float, beta: float
) -> None:
    claim = theorem1(dim, rows, cols, alpha=ratio, sigma=1.0, beta=beta)
    best = theorem1(dim, rows, cols, alpha=ratio, sigma=1.0)
    if dim <= cols:
        assert isinstance(claim, NoClaim)
        assert isinstance(best, NoClaim)
        return
    x = condition(dim, cols, ratio)
    if abs(x - (0.5 - 1 / beta)) > 1e-9:  # else rounding may decide
        assert isinstance(claim, PaperClaim) == (x < 0.5 - 1 / beta)
    if isinstance(claim, PaperClaim):
        assert value(claim) == pytest.approx(rows * math.log(1 + beta * x), rel=1e-9, abs=1e-12)
        assert value(best) <= value(claim) * (1 + 1e-9)


def test_the_closed_form_is_the_best_beta() -> None:
    dim, rows, cols = 50_000, 7, 22
    x = condition(dim, cols, ALPHA)
    betas = 1 / (0.5 - x) * (1 + np.logspace(-12, 3, 2000))
    claims = [theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0, beta=float(b)) for b in betas]
    assert all(isinstance(claim, PaperClaim) for claim in claims)
    best = value(theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0))
    assert min(map(value, claims)) == pytest.approx(best, rel=1e-9)
    assert isinstance(
        theorem1(dim, rows, cols, alpha=ALPHA, sigma=1.0, beta=float(0.999 / (0.5 - x))), NoClaim
    )


def test_the_claim_carries_its_words() -> None:
    claim = theorem1(10**6, 5, 10, alpha=3.0, sigma=2.0)
    assert isinstance(claim, PaperClaim)
    assert claim.basis is Basis.CLAIMED
    scope = claim.scope
    assert (scope.unit, scope.relation, scope.trust) == (
        Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL,
    )  # fmt: skip
    assert "no guarantee" in str(claim)
    with pytest.raises(ArgumentError, match="does not compose"):
        claim.epsilon(delta=0.0, rounds=2)


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
    if changes.keys() != {"dim"}:  # which appended noise does help
        assert isinstance(padding_for(1.0, **arguments), NoClaim)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("dim", 0), ("dim", 10.0), ("dim", True), ("rows", 0), ("rows", 65), ("cols", -1),
        ("alpha", -1.0), ("alpha", math.nan), ("alpha", math.inf),
        ("sigma", -1.0), ("sigma", math.nan), ("sigma", math.inf),
        ("beta", 0.0), ("beta", math.nan),
    ],
)  # fmt: skip
def test_bad_arguments_raise(name: str, bad: float) -> None:
    arguments = {"dim": 1000, "rows": 7, "cols": 22, "alpha": 1.0, "sigma": 1.0, name: bad}
    with pytest.raises(ArgumentError, match=name):
        theorem1(**arguments)  # type: ignore[arg-type]
    if name != "beta":
        with pytest.raises(ArgumentError, match=name):
            padding_for(1.0, **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_targets_raise(bad: float) -> None:
    with pytest.raises(ArgumentError, match="target_claimed"):
        padding_for(bad, 100, 2, 3, alpha=1.0, sigma=1.0)


def test_a_target_that_no_sketch_reaches_is_a_value() -> None:
    answer = padding_for(1e-12, 10**6, 7, 10**5, alpha=1.0, sigma=1.0)
    assert isinstance(answer, NoClaim)
    assert "no vector" in answer.reason


@given(
    dim=st.integers(1, 300), rows=st.integers(1, 4), cols=st.integers(2, 60),
    ratio=st.floats(0.02, 1), target=st.floats(0.05, 30),
)  # fmt: skip
@settings(deadline=None)
def test_padding_is_the_first_length_that_suffices(
    dim: int, rows: int, cols: int, ratio: float, target: float
) -> None:
    """Also near dim = cols, where x still rises with the length."""
    length = padding_for(target, dim, rows, cols, alpha=ratio, sigma=1.0)
    assert isinstance(length, int)
    scan = 400
    good = [
        value(theorem1(dim + more, rows, cols, alpha=ratio, sigma=1.0)) <= target
        for more in range(scan)
    ]
    if length < scan:
        assert good.index(True) == length
    else:
        assert not any(good)


def test_estimates_match_numpy_on_vectors_and_batches() -> None:
    values = np.random.default_rng(1).standard_normal((3, 4, 517)).astype(np.float32)
    for array in (values, values[0], values[0, 0], values[..., :1], values[..., :11]):
        vectors = torch.from_numpy(array)
        wide = array.astype(np.float64)
        alpha, sigma = estimate_alpha(vectors), estimate_sigma(vectors)
        assert alpha.dtype == sigma.dtype == torch.float64
        np.testing.assert_allclose(alpha, np.quantile(np.abs(wide), 0.9, axis=-1), rtol=1e-12)
        np.testing.assert_allclose(sigma, wide.std(axis=-1), rtol=1e-10, atol=1e-300)


def test_estimates_of_extreme_values() -> None:
    huge = torch.tensor([1e300, -1e300, 3e300], dtype=torch.float64)
    assert estimate_sigma(huge).item() == pytest.approx(1e300 * np.std([1, -1, 3]), rel=1e-12)
    for bad in (torch.tensor([1.0, math.nan]), torch.tensor([math.inf, 0.0])):
        for estimate in (estimate_alpha, estimate_sigma):
            with pytest.raises(ArgumentError, match="finite"):
                estimate(bad)
    for bad in (torch.tensor(1.0), torch.zeros(0), torch.zeros(2, 0), torch.arange(3)):
        for estimate in (estimate_alpha, estimate_sigma):
            with pytest.raises(ArgumentError, match="vectors"):
                estimate(bad)


@pytest.mark.parametrize(
    "vector",
    [torch.zeros(5000), torch.full((5000,), 0.1), torch.eye(1, 5000)[0], torch.zeros(5000) - 0.0],
    ids=["zeros", "constant", "sparse", "negative zeros"],
)
def test_degenerate_vectors_have_no_claim(vector: torch.Tensor) -> None:
    before = vector.clone()
    alpha, sigma = estimate_alpha(vector), estimate_sigma(vector)
    claim = theorem1(5000, 3, 2, alpha=alpha.item(), sigma=sigma.item())
    assert isinstance(claim, NoClaim)
    assert claimed_per_round(5000, 3, 2, alpha=alpha, sigma=sigma).item() == math.inf
    assert torch.equal(vector, before)


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
    for bad in (-1.0, math.nan, math.inf):
        with pytest.raises(ArgumentError, match="alpha"):
            claimed_per_round(3000, 5, 4, alpha=torch.tensor([1.0, bad]), sigma=sigma[:2])


def test_both_estimates_at_once() -> None:
    generator = torch.Generator().manual_seed(4)
    values = torch.randn(3, 4, 777, generator=generator)
    for vectors in (values, values[0, 0], values.double(), values.half(), values.transpose(0, 1)):
        alpha, sigma = estimates(vectors)
        assert alpha.shape == sigma.shape == vectors.shape[:-1]
        assert torch.equal(alpha, estimate_alpha(vectors))
        torch.testing.assert_close(sigma, estimate_sigma(vectors), rtol=1e-10, atol=0.0)
    with pytest.raises(ArgumentError, match="finite"):
        estimates(torch.tensor([1.0, math.nan]))

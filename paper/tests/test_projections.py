"""Random projections: exact laws while they are secret, the paper's claims, and the repair."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.privacy import (
    Epsilon,
    FastNoise,
    GaussianMechanism,
    NoClaim,
    NormBound,
    PaperClaim,
    Relation,
    Scope,
    SimulatedClaim,
    Unit,
)
from diffsketch.privacy.accounting.events import (
    epsilon_for,
    gaussian_epsilon,
    poisson_sampled,
    repeated,
)
from diffsketch.sketch import SketchKey
from paper.projections import (
    GaussianMixing,
    KeyTrust,
    SecretScope,
    SketchedGaussian,
    SketchedGaussianMean,
    variance_epsilon,
)

SGM = SketchedGaussian(dim=6, size=1000, clip=1.0, std=0.288)
DELTA = 1e-5


def epsilon_of(claim: PaperClaim | SimulatedClaim | NoClaim, delta: float = DELTA) -> float:
    return float(claim.epsilon(delta=delta, rounds=1))


@pytest.mark.parametrize(
    ("cells", "ratio"), [(1, 1.02), (1, 9.0), (7, 1.5), (7, 9.0), (300, 1.02), (300, 1.5)]
)
@pytest.mark.parametrize("delta", [1e-5, 0.1])
def test_variances_are_told_apart_as_stated(cells: int, ratio: float, delta: float) -> None:
    """By the integral of the densities of the sum of squares, of either order."""
    epsilon = variance_epsilon(cells, ratio, delta)
    wide, narrow = stats.chi2(cells, scale=ratio), stats.chi2(cells)
    # Substituted, as the density of one cell has a pole at 0.
    roots = np.linspace(0, math.sqrt(wide.isf(1e-14)), 400_001)[1:]
    laws = [law.pdf(roots**2) * 2 * roots * (roots[1] - roots[0]) for law in (wide, narrow)]

    def excess(at: float) -> float:
        pairs = (laws, laws[::-1])
        return max(float(np.maximum(a - math.exp(at) * b, 0).sum()) for a, b in pairs)

    assert excess(epsilon) <= delta * (1 + 2e-3)
    if epsilon > 0:
        assert excess(epsilon) == pytest.approx(delta, rel=2e-3)
        assert excess(0.95 * epsilon) > delta * (1 + 2e-3)  # the control: less is not true


def test_a_setting_in_which_the_papers_claim_is_known() -> None:
    """2.99 by the divergence of its Lemma 2.1; its closed bound (Lemma 2.2) is 2% from it."""
    claim = SGM.claim_for(1)
    assert isinstance(claim, PaperClaim)
    assert epsilon_of(claim) == pytest.approx(2.994, abs=0.001)
    spread, log = SGM.clip**4 / (SGM.size * SGM.std**4), math.log(1 / DELTA)
    closed = 2 * spread + 2 * math.sqrt(spread * (spread + log))
    assert closed == pytest.approx(epsilon_of(claim), rel=0.05)
    # The law that it is about holds, and is told apart by less than it bounds; its repair is not.
    assert epsilon_of(SGM.secret_claim()) == pytest.approx(1.062, abs=0.001)
    repaired = replace(SGM, projected_clip=1.0).claim_for(1)
    assert isinstance(repaired, SimulatedClaim)
    assert epsilon_of(repaired) == pytest.approx(gaussian_epsilon(1 / SGM.std, DELTA))
    nothing = replace(SGM, std=0.04).claim_for(1)
    assert isinstance(nothing, NoClaim)
    assert "size * std**2 <= 2 * clip**2" in nothing.reason


@pytest.mark.parametrize("size", [200, 1000, 400_000])
@pytest.mark.parametrize("members", [1, 4, 30])
def test_a_secret_projection_keeps_the_papers_claim(size: int, members: int) -> None:
    """For the worst of the others: no norm of their sum gives a larger ratio of variances."""
    mechanism = SketchedGaussian(1, size, 1.0, 2.5 / size**0.25)
    secret = mechanism.secret_claim(members)
    assert epsilon_of(secret) <= epsilon_of(mechanism.claim_for(members))
    others, noise = np.linspace(0, members - 1, 1001), members * size * mechanism.std**2
    ratio = float((((others + 1) ** 2 + noise) / (others**2 + noise)).max())
    assert epsilon_of(secret) == pytest.approx(variance_epsilon(size, ratio, DELTA), rel=1e-3)
    assert epsilon_of(secret) > variance_epsilon(size, 1 + 0.9 * (ratio - 1), DELTA)


def test_constants_cannot_mend_it() -> None:
    """At the same claimed epsilon, the plain shift of the step grows with the size."""
    shifts = []
    for size in (10**4, 10**6, 10**8):
        mechanism = SketchedGaussian(1, size, 1.0, 1.6 / size**0.25)
        assert 2.7 < epsilon_of(mechanism.claim_for(1)) < 3.1
        shifts.append(mechanism.clip / mechanism.std)
    assert shifts[0] > 6
    assert shifts[2] / shifts[0] == pytest.approx(10)


def test_messages_have_the_law_that_is_claimed() -> None:
    """The sum of squares over all seeds; each bound fails with probability 1e-6."""
    mechanism = SketchedGaussian(dim=6, size=40, clip=2.0, std=0.5)
    vector, key = torch.arange(6.0)[None], SketchKey.from_integer(3)
    total, trials = 0.0, 400
    for index in range(trials):
        message = mechanism.release(vector, FastNoise(index), seed=key.seed(index))
        total += float(message.double().square().sum())
    expected = stats.chi2(trials * mechanism.size, scale=2.0**2 / 40 + 0.5**2)
    assert expected.ppf(1e-6) < total < expected.isf(1e-6)
    other = stats.chi2(trials * mechanism.size, scale=2.0**2 / 40 + 0.45**2)  # the control
    assert not other.ppf(1e-6) < total < other.isf(1e-6)
    # Decoding uses the same matrix, and is right on average over it.
    seed = key.seed(0)
    silent = mechanism.matrix(seed, vector)
    assert torch.allclose(
        mechanism.decode(vector @ silent.T, seed=seed), vector @ silent.T @ silent
    )
    with pytest.raises(MismatchError, match="vectors must have 6 entries"):
        mechanism.release(torch.zeros(2, 5), FastNoise(0), seed=seed)


@pytest.mark.parametrize("size", [5, 64, 1000])
@pytest.mark.parametrize("gamma", [3.0, 8.0, 60.0])
def test_mixing_is_within_the_papers_lemma(size: int, gamma: float) -> None:
    """The exact epsilon is below that of its Lemma 1 with its Proposition 1, and near it.

    The lemma itself is the divergence of two variances, by an integral at order 2.
    """
    mixing = GaussianMixing(size, 1.0, math.sqrt(gamma / 2), gamma / 2)
    orders = 1 + (gamma - 1) * np.linspace(0.001, 0.999, 2000)
    bounds = [
        mixing.lemma1(order) + math.log1p(-1 / order) - math.log(DELTA * order) / (order - 1)
        for order in orders
    ]
    exact = epsilon_of(mixing.claim)
    assert 0.6 * min(bounds) < exact <= min(bounds)
    places = np.linspace(-80, 80, 400_001)
    with_it, without = stats.norm(), stats.norm(scale=math.sqrt(1 - 1 / gamma))
    squares = 2 * with_it.logpdf(places) - without.logpdf(places)
    divergence = size * math.log(np.exp(squares).sum() * (places[1] - places[0]))
    assert mixing.lemma1(2.0) == pytest.approx(divergence, rel=1e-6)


def test_mixing_of_data() -> None:
    """No example moves the variance by more than is claimed, and one does by as much.

    The covariance of many rows is within 6 standard errors of `X'X + std**2`.
    """
    data = torch.diag(torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)).repeat(7, 1)
    mixing = GaussianMixing(40_000, 1.0, 0.5, 7.0)
    covariance = data.T @ data + 0.25 * torch.eye(3, dtype=torch.float64)
    leverages = (data @ torch.linalg.inv(covariance) * data).sum(dim=1)
    assert float(leverages.max()) == pytest.approx(1 / mixing.gamma)
    released = mixing.release(data, FastNoise(1))
    found = released.T @ released / mixing.size
    error = 6 * float(covariance.max()) * math.sqrt(2 / mixing.size)
    assert float((found - covariance).abs().max()) < error
    assert float((found - 0.9 * covariance).abs().max()) > error  # the control
    assert isinstance(GaussianMixing(10**6, 1.0, 1.1).claim, NoClaim)
    nothing = GaussianMixing(64, 1.0, 0.9).claim
    assert isinstance(nothing, NoClaim)
    assert "gamma > 1, and gamma = 0.81" in nothing.reason


def test_the_smaller_neighbour_is_released_like_the_larger() -> None:
    """The promise is about the data with the example: without it, an eigenvalue is smaller.

    Variances along the example are within 6 standard errors of those of the claim's ratio.
    """
    data = torch.eye(3, dtype=torch.float64).repeat(7, 1)
    mixing = GaussianMixing(40_000, 1.0, 0.5, 7.0)
    without = data[1:]
    assert float(torch.linalg.eigvalsh(without.T @ without)[0]) < mixing.least_eigenvalue
    large, small = (
        float(mixing.release(part, FastNoise(2))[:, 0].square().mean()) for part in (data, without)
    )
    ratio, error = mixing.gamma / (mixing.gamma - 1), 6 * math.sqrt(4 / mixing.size)
    assert large / small == pytest.approx(ratio, rel=error)
    assert large / small != pytest.approx(1 + 1 / (2 * mixing.gamma), rel=error)  # the control


def test_a_small_promise_is_a_bound() -> None:
    """An example has `clip**2` along its direction: with less promised, no data reaches it."""
    mixing = GaussianMixing(64, 1.0, 2.0)
    alone = GaussianMixing(64, 1.0, 2.0, 1.0)  # a data set of the example only
    assert alone.gamma / (alone.gamma - 1) == 1 + 1 / mixing.gamma
    assert epsilon_of(alone.claim) < epsilon_of(mixing.claim)


def test_secret_keys_are_a_trust_of_their_own() -> None:
    """Printed with each epsilon, kept by JSON, and refused wherever there is no such key."""
    epsilon = SGM.secret_claim().epsilon(delta=DELTA, rounds=1)
    assert "add-or-remove, secret-key trust" in str(epsilon)
    assert "but not the key, nor anything else that it was used for" in str(SGM.secret_claim())
    assert Epsilon.from_json(epsilon.to_json(), SecretScope) == epsilon
    assert GaussianMixing(64, 1.0, 2.0).claim.scope == SecretScope(
        Unit.EXAMPLE, Relation.ADD_OR_REMOVE
    )
    for trust in (KeyTrust.SECRET, "secret-key"):
        with pytest.raises(ArgumentError, match="trust must be one of local, distributed, central"):
            Scope(Unit.CLIENT, Relation.REPLACE, trust)  # type: ignore[arg-type]
        with pytest.raises(ArgumentError, match="trust must be one of"):
            GaussianMechanism(NormBound(1.0), 1.0, trust=trust)  # type: ignore[arg-type]
    for projected in (None, 1.0):  # whoever decodes has the key
        method = SketchedGaussianMean(dim=6, size=100, clip=1.0, std=1.0, projected_clip=projected)
        assert type(method.claim_for(3, SketchKey.from_integer(0).seed(0)).scope) is Scope


@pytest.mark.parametrize(("std", "whole"), [(0.0883, 164.5), (0.2265, 10.43)])
def test_a_repaired_run_of_the_papers_size(std: float, whole: float) -> None:
    """The epsilons of `docs/theorem.md`: 500 rounds, each with a sample of 4 of 625 clients."""
    repaired = SketchedGaussian(1, 400_000, clip=1.0, std=std, projected_clip=1.0).claim_for(4)
    assert isinstance(repaired, SimulatedClaim)
    event = repeated(poisson_sampled(4 / 625, repaired.event), 500)
    assert epsilon_for(event, 1e-5) == pytest.approx(whole, rel=1e-3)


def test_bad_arguments() -> None:
    for name, value in (("dim", 0), ("size", 0), ("clip", 0.0), ("std", math.nan), ("delta", 0.0)):
        with pytest.raises(ArgumentError, match=f"{name} must be"):
            replace(SGM, **{name: value})  # type: ignore[arg-type]
    for name, value in (("size", 0), ("clip", -1.0), ("std", math.inf), ("least_eigenvalue", -1.0)):
        with pytest.raises(ArgumentError, match=f"{name} must be"):
            replace(GaussianMixing(64, 1.0, 2.0), **{name: value})  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="projected_clip must be None"):
        replace(SGM, projected_clip=1.0).secret_claim()
    with pytest.raises(ArgumentError, match="order must be in"):
        GaussianMixing(64, 1.0, 2.0).lemma1(4.0)

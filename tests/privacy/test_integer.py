"""Integer noise: claims against exact divergences, sums that wrap, and what decoding gives."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import dp_event
from scipy.special import ive

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.events import ApproximateDpEvent
from diffsketch.privacy.claim import Basis, Relation, Trust, Unit
from diffsketch.privacy.mechanisms.bounds import NormBound
from diffsketch.privacy.mechanisms.discrete_gaussian import DiscreteGaussianMechanism
from diffsketch.privacy.mechanisms.discrete_laplace import DiscreteLaplaceMechanism
from diffsketch.privacy.mechanisms.integer import IntegerMechanism
from diffsketch.privacy.mechanisms.quantize import Quantizer
from diffsketch.privacy.mechanisms.skellam import SkellamMechanism

Vector: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = type[DiscreteGaussianMechanism] | type[SkellamMechanism]
SHARED: list[Kind] = [DiscreteGaussianMechanism, SkellamMechanism]
KINDS: list[type[IntegerMechanism]] = [*SHARED, DiscreteLaplaceMechanism]
ORDERS = (1.001, 1.05, 1.2, 1.5, 1.8, 2, 2.4, 3, 3.5, 5, 8, 12.5, 20)
ONE = Relation.ADD_OR_REMOVE


def steps(count: int, cells: int = 1) -> Quantizer:
    """Whole numbers of norm at most `count` (for one cell), never drawn again."""
    return Quantizer(NormBound(count - math.sqrt(cells) + 1e-9), 1.0, cells, rejection=0)


def skellam_logs(variance: float, reach: int) -> Vector:
    """Log-probabilities of -reach..reach, by the continued fraction of Bessel functions' ratios."""
    ratio, ratios = 0.0, np.empty(reach)
    for k in range(reach + 400, 0, -1):
        ratio = 1 / (2 * k / variance + ratio)
        if k <= reach:
            ratios[k - 1] = ratio
    right = math.log(ive(0, variance)) + np.cumsum(np.log(ratios))
    return np.concatenate([right[::-1], [math.log(ive(0, variance))], right])


def gaussian_logs(sigma: float, reach: int) -> Vector:
    k = np.arange(-reach, reach + 1, dtype=np.float64)
    total = math.log(sum(math.exp(-((x / sigma) ** 2) / 2) for x in range(-200, 201)))
    return -(k**2) / (2 * sigma**2) - total


def shared_gaussian_logs(sigma: float, members: int, reach: int) -> Vector:
    """Of a sum of discrete Gaussians; `reach` must keep clear of where floats end, exp(-700)."""
    one = np.exp(gaussian_logs(sigma, 40))
    total = one
    for _ in range(members - 1):
        total = np.convolve(total, one)
    middle = len(total) // 2
    return np.asarray(np.log(total[middle - reach : middle + reach + 1]))


def divergence(logs: Vector, shift: int, order: float) -> float:
    """The Rényi divergence between noise and shifted noise, summed term by term."""
    if shift == 0:
        return 0.0
    terms = order * logs[:-shift] + (1 - order) * logs[shift:]
    return float(np.logaddexp.reduce(terms)) / (order - 1)


def line(mechanism: IntegerMechanism, present: int | None = None) -> tuple[float, float]:
    event = mechanism.claim_for(present or mechanism.cohort).event
    assert isinstance(event, dp_event.ZCDpEvent)
    return event.rho, event.xi


def whole_shifts(quantizer: Quantizer, cells: int) -> Iterator[tuple[int, ...]]:
    reach = range(math.isqrt(quantizer.largest) + 1)
    for shift in itertools.product(reach, repeat=cells):
        if 0 < sum(x * x for x in shift) <= quantizer.largest:
            yield shift


# Claims against exact divergences.


@pytest.mark.parametrize("size", [1, 2, 5, 12])
@pytest.mark.parametrize("variance", [0.2, 1.0, 4.0, 30.0, 400.0])
def test_skellam_bound(size: int, variance: float) -> None:
    """For every whole shift within the sensitivity, and orders whole and not."""
    mechanism = SkellamMechanism(steps(size), math.sqrt(variance) / size, relation=ONE)
    rho, xi = line(mechanism)
    assert xi >= 0
    logs = skellam_logs(variance, 40 * size + int(15 * math.sqrt(variance)) + 200)
    for order in ORDERS:
        exact = max(divergence(logs, shift, order) for shift in range(1, size + 1))
        assert exact <= (rho * order + xi) * (1 + 1e-9)


def test_skellam_bound_is_close() -> None:
    """Within 3% for much noise and a typical order; so noise 20% too small breaks it (control)."""
    mechanism = SkellamMechanism(steps(4), 5.0, relation=ONE)
    rho, xi = line(mechanism)
    assert divergence(skellam_logs(400.0, 900), 4, 20) > 0.975 * (20 * rho + xi)
    assert divergence(skellam_logs(0.64 * 400.0, 900), 4, 20) > 20 * rho + xi


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("multiplier", [0.1, 0.7, 2.0, 30.0])
def test_skellam_event_is_the_theorem_carried_over(size: int, multiplier: float) -> None:
    """Not below the theorem at whole orders, nor below what convexity makes of it between them.

    Written out for a sensitivity of `size` in both norms.
    """
    mu = (multiplier * size) ** 2
    rho, xi = line(SkellamMechanism(steps(size), multiplier, relation=ONE))

    def theorem(a: int) -> float:
        extra = ((2 * a - 1) * size**2 + 6 * size) / (4 * mu**2), 3 * size / (2 * mu)
        return a * size**2 / (2 * mu) + min(extra)

    for order in np.linspace(1.001, 30, 500):
        below = math.floor(order)
        part = order - below
        chord = part * below * theorem(below + 1)
        chord += (1 - part) * (below - 1) * (theorem(below) if below > 1 else 0.0)
        bound = chord / (order - 1)
        if order < 2 and theorem(2) < 100:
            growth = order * (order - 1) / 2 * math.expm1(theorem(2))
            bound = min(bound, math.log1p(growth) / (order - 1))
        assert rho * order + xi >= bound * (1 - 1e-9)
    # And not much more, at the order that matters for one round.
    typical = math.ceil(1 + math.sqrt(math.log(1e6) / rho))
    excess = rho * typical + xi - theorem(typical)
    assert typical <= 2 or excess <= rho * (0.18 if rho < 0.05 else 1) * (1 + 1e-9)


@pytest.mark.parametrize("kind", SHARED)
@pytest.mark.parametrize("variance", [0.6, 3.0, 20.0])
def test_bounds_in_two_cells(kind: Kind, variance: float) -> None:
    """Divergences of independent cells add up; all whole vectors within the L2 norm."""
    quantizer = steps(4, cells=2)
    multiplier = math.sqrt(variance / quantizer.largest)
    mechanism = kind(quantizer, multiplier, relation=ONE, trust=Trust.DISTRIBUTED, cohort=2)
    rho, xi = line(mechanism)
    logs = skellam_logs(variance, 300)
    if kind is DiscreteGaussianMechanism:
        logs = shared_gaussian_logs(math.sqrt(variance / 2), 2, int(8 * math.sqrt(variance)) + 21)
    for order in (1.1, 2, 3, 5):
        each = [divergence(logs, shift, order) for shift in range(5)]
        for shift in whole_shifts(quantizer, 2):
            assert sum(each[x] for x in shift) <= (rho * order + xi) * (1 + 1e-9)


def test_skellam_lines_start_at_zero_or_above() -> None:
    """The second branch's offset is negative for large shifts; an event has none that is."""
    mechanism = SkellamMechanism(steps(100), 20.0, relation=ONE)
    square, variance = 1e4, 4e6
    assert (6 * 100 - square) / (4 * variance**2) < 0
    rho, xi = line(mechanism)
    assert rho == pytest.approx(square / (2 * variance) * (1 + 1 / variance), rel=1e-9)
    assert 0 <= xi < 0.2 * rho


@pytest.mark.parametrize("sigma", [0.4, 0.7, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("trust", [Trust.LOCAL, Trust.CENTRAL])
def test_discrete_gaussian_bound(sigma: float, trust: Trust) -> None:
    for size in (1, 2, 5):
        mechanism = DiscreteGaussianMechanism(steps(size), sigma / size, relation=ONE, trust=trust)
        rho, xi = line(mechanism)
        assert xi == 0
        logs = gaussian_logs(sigma, int(30 * sigma) + 30 * size)
        small = gaussian_logs(0.8 * sigma, int(30 * sigma) + 30 * size)
        for order in ORDERS:
            exact = [divergence(logs, shift, order) for shift in range(1, size + 1)]
            assert max(exact) <= rho * order * (1 + 1e-9)
            if sigma >= 1:  # reached, and so broken by noise 20% too small (control)
                assert max(exact) == pytest.approx(rho * order, rel=1e-6)
                assert divergence(small, size, order) > rho * order


@pytest.mark.parametrize("members", [2, 3, 5, 10])
@pytest.mark.parametrize("share", [0.5, 0.6, 0.8, 1.2])
def test_shared_discrete_gaussian_bound(members: int, share: float) -> None:
    sigma = share * math.sqrt(members)
    logs = shared_gaussian_logs(share, members, int(8 * sigma) + 18)
    for size in (1, 2, 3):
        mechanism = DiscreteGaussianMechanism(
            steps(size), sigma / size, relation=ONE, trust=Trust.DISTRIBUTED, cohort=members
        )
        rho, xi = line(mechanism)
        for order in (1.01, 1.5, 2, 3, 5):
            exact = max(divergence(logs, shift, order) for shift in range(1, size + 1))
            assert exact <= (rho * order + xi) * (1 + 1e-9)


def test_shared_discrete_gaussian_needs_tau() -> None:
    """The control: without the extra term, sums of few narrow shares are less private."""
    logs = shared_gaussian_logs(0.5, 2, 20)
    assert divergence(logs, 1, 1.01) > 1.1 * 1.01 / (2 * 2 * 0.5**2)


def test_tau() -> None:
    """Two members, term by term: 10 exp(-pi**2 s**2); with wide shares it is gone."""
    for share, extra in ((0.6, 10 * math.exp(-(math.pi**2) * 0.36)), (4.0, 0.0)):
        mechanism = DiscreteGaussianMechanism(
            steps(1), share * math.sqrt(2), relation=ONE, trust=Trust.DISTRIBUTED, cohort=2
        )
        shift = 1 / (share * math.sqrt(2))
        lines = [(shift**2 / 2, extra), ((shift + extra) ** 2 / 2, 0.0)]
        rho, xi = line(mechanism)
        assert any((rho, xi) == pytest.approx(one, abs=1e-12) for one in lines)


def test_narrow_shares_are_refused() -> None:
    with pytest.raises(ArgumentError, match="shares >= 1/2"):
        DiscreteGaussianMechanism(steps(1), 1.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=5)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 10.0])
def test_discrete_laplace_is_pure(multiplier: float) -> None:
    """The largest ratio of probabilities is exactly what is claimed; more with less noise."""
    size = 6
    bound = NormBound(size - 1 + 1e-9, order=1)
    mechanism = DiscreteLaplaceMechanism(Quantizer(bound, 1.0, 1, 0), multiplier, relation=ONE)
    assert mechanism.scale == pytest.approx(multiplier * size)
    event = mechanism.claim.event
    assert isinstance(event, ApproximateDpEvent)
    assert event.delta == 0

    def largest_ratio(scale: float) -> float:
        k = np.arange(-500, 501)
        return max(float((-abs(k) / scale + abs(k + s) / scale).max()) for s in range(size + 1))

    assert largest_ratio(mechanism.scale) == pytest.approx(event.epsilon)
    assert largest_ratio(0.8 * mechanism.scale) > event.epsilon


def test_laplace_shares_are_refused() -> None:
    with pytest.raises(ArgumentError, match="local or central"):
        DiscreteLaplaceMechanism(steps(1), 1.0, trust=Trust.DISTRIBUTED, cohort=2)


# Claims in words, and who was there.


@pytest.mark.parametrize("kind", KINDS)
def test_claims_say_what_they_are(kind: type[IntegerMechanism]) -> None:
    quantizer = Quantizer(NormBound(2.0, unit=Unit.EXAMPLE), 0.01, 50)
    mechanism = kind(quantizer, 4.0, relation=ONE, trust=Trust.CENTRAL, cohort=3)
    claim = mechanism.claim
    assert claim.basis is Basis.PROVEN
    assert (claim.scope.unit, claim.scope.relation) == (Unit.EXAMPLE, ONE)
    assert claim.scope.trust is Trust.CENTRAL
    assert "one training example" in str(claim)
    assert claim.epsilon(delta=1e-5, rounds=3).rounds == 3
    assert mechanism.claim_for(1) == claim  # the server's noise does not depend on members


@pytest.mark.parametrize("kind", KINDS)
def test_the_relation_counts_once(kind: type[IntegerMechanism]) -> None:
    """The same multiplier of twice the sensitivity: the same event (nearly), twice the noise."""
    quantizer = Quantizer(NormBound(1.0), 1e-4, 10)
    one, other = kind(quantizer, 2.0, relation=ONE), kind(quantizer, 2.0)
    assert other.relation is Relation.REPLACE
    assert other.std == pytest.approx(2 * one.std, rel=1e-6)
    values = [float(m.claim.epsilon(delta=1e-5, rounds=1)) for m in (one, other)]
    assert values[0] == pytest.approx(values[1], rel=1e-3)


@pytest.mark.parametrize("kind", SHARED)
def test_fine_steps_come_close_to_gaussian_noise(kind: Kind) -> None:
    """A second accountant's figure: zCDP of a Gaussian of the same multiplier, within 2%."""
    quantizer = Quantizer(NormBound(1.0), 1e-5, 1000)
    mechanism = kind(quantizer, 3.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=20)
    rho, xi = line(mechanism)
    order = 1 + math.sqrt(math.log(1e6) * 2 * 9)
    assert rho * order + xi == pytest.approx(order / 18, rel=0.02)
    assert quantizer.norm(2) * quantizer.granularity == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("kind", SHARED)
def test_dropouts_weaken_the_claim(kind: Kind) -> None:
    quantizer = Quantizer(NormBound(1.0), 1e-3, 100)
    mechanism = kind(quantizer, 2.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=40)
    values = [
        float(mechanism.claim_for(n).epsilon(delta=1e-5, rounds=1)) for n in (40, 39, 20, 10, 1)
    ]
    assert values == sorted(values)
    assert values[1] > values[0]
    assert mechanism.claim_for(40) == mechanism.claim
    # Ten shares of forty are the noise of a cohort of ten with half the multiplier.
    ten = replace(mechanism, cohort=10, noise_multiplier=1.0)
    assert line(mechanism, 10) == pytest.approx(line(ten), rel=1e-12)
    for present in (0, 41, True, 2.0):
        with pytest.raises(ArgumentError, match="present must"):
            mechanism.claim_for(present)  # type: ignore[arg-type]


def test_local_claims_do_not_depend_on_who_is_there() -> None:
    mechanism = SkellamMechanism(Quantizer(NormBound(1.0), 1e-3, 100), 2.0, cohort=40)
    assert mechanism.claim_for(1) == mechanism.claim
    assert replace(mechanism, cohort=1).claim.event == mechanism.claim.event

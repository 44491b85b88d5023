"""Integer noise: claims against exact divergences, sums that wrap, and what decoding gives."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from dp_accounting import dp_event

from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.events import leaves
from diffsketch.privacy.claim import Basis, Relation, Trust, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.integer import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    IntegerMechanism,
    SkellamMechanism,
    widest_step,
)
from diffsketch.privacy.mechanisms.rounding import Quantizer

Vector: TypeAlias = npt.NDArray[np.float64]
Kind: TypeAlias = type[DiscreteGaussianMechanism] | type[SkellamMechanism]
SHARED: list[Kind] = [DiscreteGaussianMechanism, SkellamMechanism]
KINDS: list[type[IntegerMechanism]] = [*SHARED, DiscreteLaplaceMechanism]
ORDERS = (1.001, 1.05, 1.2, 1.5, 1.8, 2, 2.4, 3, 3.5, 5, 8, 12.5, 20)
ONE = Relation.ADD_OR_REMOVE


def steps(count: int, cells: int = 1) -> Quantizer:
    """Whole numbers of norm at most `count` (for one cell), never drawn again."""
    return Quantizer(NormBound(count - math.sqrt(cells) + 1e-9), 1.0, cells, rejection=0)


def multiplier_of(mechanism: IntegerMechanism, present: int | None = None) -> float:
    """Of the Gaussian noise that the claim is about."""
    event = mechanism.claim_for(present or mechanism.cohort).event
    leaf = next(leaf for leaf, _ in leaves(event))
    assert isinstance(leaf, dp_event.GaussianDpEvent)
    return float(leaf.noise_multiplier)


def test_curvature_of_shares() -> None:
    """Two members, term by term; with wide shares the second one is gone."""
    for share in (0.6, 4.0):
        mechanism = DiscreteGaussianMechanism(
            steps(1), share * math.sqrt(2), relation=ONE, trust=Trust.DISTRIBUTED, cohort=2
        )
        q = math.exp(-((math.pi * share) ** 2))
        curvature = 1 / (2 * share**2) + 4 * math.atanh(2 * q / (1 - q**3))
        assert multiplier_of(mechanism) == pytest.approx(1 / widest_step(curvature), rel=1e-12)


def test_narrow_shares_are_refused() -> None:
    with pytest.raises(ArgumentError, match="shares >= 1/2"):
        DiscreteGaussianMechanism(steps(1), 1.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=5)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 10.0])
def test_discrete_laplace_is_pure(multiplier: float) -> None:
    """No ratio of probabilities exceeds what is claimed; some do with a quarter of a step less."""
    size = 6
    bound = NormBound(size - 1 + 1e-9, order=1)
    mechanism = DiscreteLaplaceMechanism(Quantizer(bound, 1.0, 1, 0), multiplier, relation=ONE)
    claimed = float(mechanism.claim.epsilon(delta=0.0, rounds=1))
    assert claimed == pytest.approx(1 / multiplier)

    def largest_ratio(scale: float) -> float:
        k = np.arange(-500, 501)
        return max(float((-abs(k) / scale + abs(k + s) / scale).max()) for s in range(size + 1))

    assert largest_ratio(mechanism.scale) <= claimed
    assert largest_ratio(mechanism.scale - 0.25) > claimed * (1 - 1e-12)


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
    """The multiplier of the Gaussian that the claim is about is nearly that of the noise."""
    quantizer = Quantizer(NormBound(1.0), 1e-5, 1000)
    mechanism = kind(quantizer, 3.0, relation=ONE, trust=Trust.DISTRIBUTED, cohort=20)
    assert 3 * (1 - 1e-6) < multiplier_of(mechanism) < 3
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
    assert multiplier_of(mechanism, 10) == pytest.approx(multiplier_of(ten), rel=1e-12)
    for present in (0, 41, True, 2.0):
        with pytest.raises(ArgumentError, match="present must"):
            mechanism.claim_for(present)  # type: ignore[arg-type]


def test_local_claims_do_not_depend_on_who_is_there() -> None:
    mechanism = SkellamMechanism(Quantizer(NormBound(1.0), 1e-3, 100), 2.0, cohort=40)
    assert mechanism.claim_for(1) == mechanism.claim
    assert replace(mechanism, cohort=1).claim.event == mechanism.claim.event

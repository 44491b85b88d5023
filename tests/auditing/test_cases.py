"""Releases of the registry's methods: correct ones stand, planted errors are found.

Noise of what engines send is not seeded, so every probability that is stated here is one of each
run, and all are small.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats

from diffsketch.auditing import Release, Verdict, audit, releases
from diffsketch.auditing.cases import EXPLOITS
from diffsketch.auditing.releases import KEY, PLANTS, RELEASES, Silent, own_release, planted, weaker
from diffsketch.methods import CpSgd, GaussianMean
from diffsketch.methods.gate import release_noise
from diffsketch.privacy.claim import ProvenClaim, Relation, Trust, Unit
from diffsketch.privacy.secure_noise import SecureNoise
from diffsketch.privacy.simulated_noise import FastNoise, Noise
from tests.helpers.library import LIBRARY

SURE = 1 - 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_correct_release_is_not_contradicted(name: str) -> None:
    """A false alarm has probability at most 1e-6. The bound is no empty one."""
    result = audit(RELEASES[name]().case(), trials=4000, confidence=SURE)
    assert result.verdict is Verdict.CONSISTENT
    stated = min(float(result.claimed), result.limit or math.inf)
    assert float(result.measured.lower_bound) > stated / 4


PLANTED = [
    (name, error)
    for name, error in itertools.product(RELEASES, PLANTS)
    if planted(RELEASES[name](), error) is not None
]


EVERYDAY = ("gaussian-local", "sketch-gaussian-local", "laplace")
CASES = [
    pytest.param(
        name, error, marks=[] if name in EVERYDAY or error == "no-draw" else [pytest.mark.slow]
    )
    for name, error in PLANTED
]


@pytest.mark.parametrize(("name", "error"), CASES)
def test_planted_error_is_found(name: str, error: str) -> None:
    """Each is missed with probability below 1e-6, with the trials of `diffsketch audit`.

    `small-noise` is the hardest: more than 5 standard deviations of the measured bound.
    """
    release = planted(RELEASES[name](), error)
    assert release is not None
    result = audit(release.case(), confidence=0.99)
    assert result.is_wrong
    assert result.case.planted == PLANTS[error]


def test_errors_apply_where_they_can_be_made() -> None:
    applied = {error: {name for name, other in PLANTED if other == error} for error in PLANTS}
    assert applied["small-noise"] == applied["reused-noise"] == set(RELEASES)
    assert applied["no-clip"] == set(RELEASES)
    assert applied["row-blind"] == {name for name in RELEASES if "sketch" in name}
    assert applied["no-draw"] == {"gaussian-sampled"}


def test_every_proven_method_is_audited_at_its_units_and_trusts() -> None:
    """A method that is new in the registry has to come here; the rest prove nothing."""
    found: dict[str, set[Trust]] = {}
    for make in RELEASES.values():
        release = make()
        assert isinstance(release.claim, ProvenClaim)
        found.setdefault(release.method.name, set()).add(release.claim.scope.trust)
        coordinate = release.claim.scope.unit is Unit.COORDINATE
        assert coordinate == (release.method.name in ("laplace", "sketch-laplace"))
        assert not release.simulated
    assert set(LIBRARY) - set(found) == {"none", "sketch", "diffsketch"}
    for name in ("gaussian", "sketch-gaussian", "skellam", "sketch-skellam"):
        assert found[name] == set(Trust)
    relations = {make().claim.scope.relation for make in RELEASES.values()}
    assert relations == set(Relation)


def test_noise_is_that_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every message and every sum has its noise from the one function that engines use."""
    drawn: list[Noise] = []
    real = release_noise

    def watched(*arguments: object, **more: object) -> Noise:
        drawn.append(real(*arguments, **more))  # type: ignore[arg-type]
        return drawn[-1]

    monkeypatch.setattr(releases, "release_noise", watched)
    audit(RELEASES["gaussian-central"]().case(), trials=100)
    assert drawn
    assert all(isinstance(noise, SecureNoise) for noise in drawn)
    drawn.clear()
    reused = planted(RELEASES["gaussian-central"](), "reused-noise")
    assert reused is not None
    audit(reused.case(), trials=100)  # which takes noise from a seed
    assert not drawn


@pytest.mark.parametrize("trust", Trust)
def test_what_is_seen_is_what_is_released(trust: Trust) -> None:
    """Noise of size 0 shows a message, the sum modulo its bits, or what a server publishes."""
    seed = KEY.seed(0)
    method = GaussianMean(dim=4, clip=1.0, noise_multiplier=1.0, cohort=3, trust=trust)
    release = Release.of("r", method, cohort=3)
    assert release.cohort_size == (1 if trust is Trust.LOCAL else 3)
    one, two = release.noiseless(release.neighbours)
    first, second = (
        method.publish(method.encode(world[0], seed, Silent()).messages.sum(0), Silent())
        for world in (release.neighbours.first, release.neighbours.second)
    )
    modulus = 2**method.mechanism.bits
    assert not bool(((first - second - torch.tensor(one - two).long()) % modulus).any())
    # The shift is all that the clip allows, in steps.
    steps = 2 * 1.0 / method.mechanism.quantizer.granularity
    assert np.linalg.norm(one - two) == pytest.approx(steps, abs=1)


def test_weaker_has_less_noise() -> None:
    for name in ("gaussian-local", "laplace", "cpsgd"):
        method = RELEASES[name]().method
        zeros = torch.zeros(3000, method.dim)
        spreads = [
            each.encode(zeros, KEY.seed(0), FastNoise(4)).messages.double().std()
            for each in (method, weaker(method, 0.5))
        ]
        assert float(spreads[1] / spreads[0]) == pytest.approx(0.5, rel=0.05)


def test_binomial_limit_is_exact() -> None:
    """Against the sum over all events, for few draws."""
    method = CpSgd(dim=1, cohort=2, clip=0.5, limit=2.0, levels=17, trials=20)
    release = Release.of("r", method, cohort=2)
    law, shift = stats.binom(40, 0.5), 4  # 2 clip over steps of 1/4
    places = np.arange(-5, 60)
    one, two = law.pmf(places), law.pmf(places - shift)
    for rounds in (1, 2):
        first = one if rounds == 1 else np.multiply.outer(one, one)
        second = two if rounds == 1 else np.multiply.outer(two, two)
        for delta in (0.01, 0.2):
            limit = replace(release, rounds=rounds).case().limit
            assert limit is not None
            epsilon = limit(KEY, delta)
            excess = np.maximum(first - math.exp(epsilon) * second, 0).sum()
            assert excess == pytest.approx(delta, rel=1e-6)


@pytest.mark.slow
def test_low_bits_break_float_noise_and_not_the_grid() -> None:
    """One message of float noise shows more than 5, where 0.93 is stated; the grid shows nothing.

    The first bound is near 5.5 with 2,000 judged trials; the second is above the claim with
    probability 1e-6.
    """
    before = audit(EXPLOITS["low-bits+float-noise"](), trials=4000)
    assert before.verdict is Verdict.CONTRADICTED
    assert float(before.claimed) == pytest.approx(0.926, abs=0.001)
    assert float(before.measured.lower_bound) > 5
    assert before.outcome.false_positives == 0
    now = audit(EXPLOITS["low-bits"](), trials=2000, confidence=SURE)
    assert now.verdict is Verdict.CONSISTENT
    assert float(now.claimed) == pytest.approx(0.926, abs=0.001)


@pytest.mark.slow
def test_rollback_repeats_no_noise_and_is_found_where_it_does() -> None:
    now = audit(EXPLOITS["rollback"](), trials=200, confidence=SURE)
    assert now.verdict is Verdict.CONSISTENT
    before = audit(EXPLOITS["rollback+reused-noise"](), trials=400)
    assert before.verdict is Verdict.CONTRADICTED
    assert before.outcome.true_positives == before.outcome.trials


def test_a_method_without_a_claim() -> None:
    bare = own_release("sketch", "rows=1 cols=20", dim=50, cohort=1)
    assert audit(bare.case(), trials=200).verdict is Verdict.NOTHING_CLAIMED

"""Whole audits: planted errors are found, correct mechanisms are not contradicted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsketch.audit import (
    Adversary,
    AuditResult,
    Case,
    Game,
    Neighbours,
    Verdict,
    audit,
    every_round,
    of_mechanism,
)
from diffsketch.audit.adversaries import Stream
from diffsketch.audit.bare import bare_client, bare_example, bare_secret, bare_unknown
from diffsketch.audit.catalogue import CASES, case_of
from diffsketch.audit.planted import PLANTS, plant
from diffsketch.audit.proven import SKETCH, gaussian_central, gaussian_example, noisy_sum
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, NoClaim, PaperClaim, ProvenClaim, Relation, Unit
from diffsketch.privacy.mechanisms.bounds import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms.gaussian import GaussianMechanism
from diffsketch.privacy.mechanisms.laplace import LaplaceMechanism
from diffsketch.privacy.noise import FastNoise, Noise
from diffsketch.sketch import HashSeed, SketchKey

PROVEN = [name for name in CASES if name.split("-")[0] not in ("bare", "planted")]
MECHANISM = GaussianMechanism(NormBound(1.0), 1.0)
ONES = Neighbours(torch.ones(3), -torch.ones(3))


def lower(result: AuditResult) -> float:
    return float(result.measured.lower_bound)


@pytest.mark.parametrize("name", PLANTS)
def test_planted_error_is_found_with_the_default_trials(name: str) -> None:
    """Each is missed with probability below 1e-7.

    `small-noise` is the hardest: 0.5 above the claim with a standard deviation of 0.09. Of the
    others a perfect event exists (or nearly), so that 10^5 judged trials show more than 8.
    """
    result = audit(plant(name).case(), seed=1)
    assert result.verdict is Verdict.CONTRADICTED
    assert lower(result) > (2.5 if name == "small-noise" else 8)
    assert result.case.planted


@pytest.mark.parametrize("name", PROVEN)
def test_correct_mechanism_is_not_contradicted(name: str) -> None:
    """A false alarm has probability at most 0.01 for each; the seed is fixed.

    The bound is not an empty one: it shows more than a third of the claim.
    """
    result = audit(case_of(name), trials=20_000, seed=2)
    assert result.verdict is Verdict.CONSISTENT
    assert lower(result) > float(result.claimed) / 3
    assert result.claimed.basis is Basis.PROVEN


def test_false_alarms_of_whole_audits_stay_below_the_stated_probability() -> None:
    """300 audits of Laplace noise with 80% confidence: at most 60 may exceed epsilon = 1.

    95 is 5 standard deviations above, so that this fails with probability below 1e-6; the seeds
    are fixed. The control has 20% less noise, and exceeds the claim more often than that.
    """
    vector = torch.ones(1)
    alarms = []
    for multiplier in (1.0, 0.8):
        mechanism = LaplaceMechanism(CoordinateBound(1.0), multiplier)
        case = of_mechanism(mechanism, Neighbours(vector, -vector), delta=0.0, trials=2000)
        results = [audit(case, confidence=0.8, seed=seed) for seed in range(300)]
        alarms.append(sum(lower(result) > 1 for result in results))
    assert alarms[0] <= 95 < alarms[1]


def test_bare_sketch_contradicts_theorem_1() -> None:
    """The bound is about 0.38 with a standard deviation of 0.03; the claim is 0.24."""
    result = audit(bare_unknown(trials=60_000), seed=3)
    assert isinstance(result.case.claim, PaperClaim)
    assert result.verdict is Verdict.CONTRADICTED
    assert result.limit is not None
    assert float(result.claimed) < lower(result) < float(result.limit)
    assert result.claimed.scope.unit is Unit.COORDINATE


@pytest.mark.parametrize("name", ["bare-known", "bare-parity"])
def test_known_others_give_everything_away(name: str) -> None:
    result = audit(case_of(name), trials=1000)
    assert (result.outcome.true_positives, result.outcome.false_positives) == (500, 0)
    assert result.limit is not None
    assert math.isinf(float(result.limit))
    # ln(1 / p) with p the probability that 500 misses are 99.5% sure to exclude.
    assert lower(result) == pytest.approx(-math.log(1 - 0.005 ** (1 / 500)), abs=0.02)


def test_secret_hashes_and_unknown_others_show_nothing() -> None:
    """No violation found; a bound above the claim of 0.24 has probability at most 0.01."""
    result = audit(bare_secret(), trials=1000)
    assert result.verdict is Verdict.CONSISTENT


@pytest.mark.parametrize("make", [bare_example, bare_client])
def test_crowds_hide_less_than_the_exact_limit(make: object) -> None:
    assert callable(make)
    result = audit(make(), trials=20_000)
    assert isinstance(result.case.claim, NoClaim)
    assert result.verdict is Verdict.NOTHING_CLAIMED
    assert result.limit is not None
    assert 0.3 * float(result.limit) < lower(result) < float(result.limit)


def test_reused_noise_is_invisible_in_one_round() -> None:
    """Which is why audits over rounds are needed: the protocol of one round is correct."""
    twin = plant("reused-noise").case()

    def first_round_only(inputs: Tensor, noise: object, hashes: object) -> Tensor:
        return twin.game.protocol(inputs, noise, hashes)[:, :1]  # type: ignore[arg-type]

    game = Game(first_round_only, twin.game.neighbours)
    one = replace(twin, game=game, rounds=1, attacks=case_of("gaussian-workers").attacks)
    assert audit(one, trials=20_000).verdict is Verdict.CONSISTENT


def test_any_method_can_be_audited() -> None:
    """A method of a user's own, that adds uniform noise and claims what Gaussian noise gives."""

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        chances = torch.full((*inputs.shape, 12), 0.5)
        return inputs + 0.5 * (noise.bernoulli(chances).sum(dim=-1) - 6)

    case = Case("mine", "rounded noise", MECHANISM.claim, Game(every_round(method), ONES))
    result = audit(case, trials=20_000)
    assert result.verdict is Verdict.CONTRADICTED
    honest = replace(case, claim=NoClaim(MECHANISM.claim.scope, "never proven"))
    assert audit(honest, trials=2000).verdict is Verdict.NOTHING_CLAIMED


@pytest.mark.parametrize("make", [gaussian_example, gaussian_central])
def test_sums_are_those_of_the_mechanism(make: Callable[[], Case]) -> None:
    case = make()
    mechanism = GaussianMechanism(
        NormBound(1.0, unit=case.scope.unit), 1.0, case.scope.relation, case.scope.trust
    )
    assert mechanism.claim == case.claim
    units, seed = case.game.neighbours.first, SketchKey.from_integer(3).seed(0)
    ours = noisy_sum(mechanism)(units[None], FastNoise(5), seed)[0]
    theirs = mechanism.release_sum(
        units, FastNoise(5), encode=lambda vectors: SKETCH.encode(vectors, seed)
    )
    assert torch.allclose(ours, theirs, atol=1e-6)


def test_vectors_without_a_sketch_are_audited_as_a_batch() -> None:
    mechanism = LaplaceMechanism(CoordinateBound(1.0), 0.5)
    first, second = torch.tensor([5.0, 1.0, 1.0]), torch.tensor([-5.0, 1.0, 1.0])
    case = of_mechanism(mechanism, Neighbours(first, second), delta=1e-5)
    result = audit(case, trials=2000)
    assert lower(result) > 0.5
    assert result.verdict is Verdict.CONSISTENT


def test_measured_claim_says_what_it_is() -> None:
    result = audit(of_mechanism(MECHANISM, ONES), trials=2000, confidence=0.9, delta=0.05)
    bound = result.measured.lower_bound
    assert (bound.basis, bound.delta, bound.rounds) == (Basis.MEASURED, 0.05, 1)
    assert bound.scope == MECHANISM.claim.scope
    assert result.measured.confidence == 0.9
    assert result.measured.epsilon(delta=0.05, rounds=1) == bound
    assert float(result.claimed) == float(MECHANISM.claim.epsilon(delta=0.05, rounds=1))
    text = str(result.measured)
    for words in ("Measured", "0.9 confidence", "one client holds", "delta = 0.05"):
        assert words in text


def test_several_rounds_are_held_against_the_composed_claim() -> None:
    result = audit(of_mechanism(MECHANISM, ONES, rounds=4), trials=2000)
    composed = MECHANISM.claim.epsilon(delta=0.01, rounds=4)
    assert (result.claimed, result.measured.lower_bound.rounds) == (composed, 4)
    assert float(composed) > 2 * float(MECHANISM.claim.epsilon(delta=0.01, rounds=1))


def test_same_seed_same_result_and_progress_is_told() -> None:
    case, done = of_mechanism(MECHANISM, ONES), list[float]()
    first = audit(case, trials=2001, seed=7, on_progress=done.append)
    assert first.outcome == audit(case, trials=2001, seed=7).outcome
    assert first.outcome != audit(case, trials=2001, seed=8).outcome
    assert (first.trials, first.outcome.trials) == (2000, 1000)
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_halves_and_worlds_are_independent() -> None:
    game, stream = of_mechanism(MECHANISM, ONES).game, Stream(0, "name")
    first, second = game.play(50, stream=stream, part="choose 0")
    again, _ = game.play(50, stream=stream, part="choose 0")
    other, _ = game.play(50, stream=stream, part="judge 0")
    assert np.array_equal(first, again)
    assert not np.isin(first, other).any()
    # The same noise in both worlds would make an attack look better than it is.
    gap = first - second
    assert len(np.unique(gap.round(6))) == gap.size


def test_unknown_others_are_drawn_and_the_target_is_not() -> None:
    neighbours = Neighbours(torch.tensor([1.0, 5.0, 0.0]), torch.tensor([2.0, 5.0, 0.0]), 3.0)
    generator = torch.Generator().manual_seed(0)
    first, second = (drawn.clone() for drawn in neighbours.draw(4000, generator))
    assert torch.all(first[:, 0] == 1)
    assert torch.all(second[:, 0] == 2)
    assert torch.equal(first[:, 1:], second[:, 1:])
    # The standard deviation of 8,000 numbers is within 5% but for a chance of 1e-9.
    assert float(first[:, 1:].std()) == pytest.approx(3.0, rel=0.05)
    assert torch.equal(neighbours.first, torch.tensor([1.0, 5.0, 0.0]))


def test_secret_hashes_are_fresh_in_every_trial() -> None:
    seen: list[bytes] = []

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        seen.append(seed.value)
        return inputs

    game = Game(every_round(method), ONES, Adversary.SECRET_HASHES_OTHERS_KNOWN)
    game.play(20, stream=Stream(0, "x"), part="p")
    assert len(set(seen)) == 40
    seen.clear()
    Game(every_round(method), ONES).play(20, stream=Stream(0, "x"), part="p")
    assert len(set(seen)) == 1


def test_every_case_is_named_and_scoped() -> None:
    units = set()
    for name in CASES:
        case = case_of(name)
        assert case.name == name
        assert (case.planted is not None) == name.startswith("planted-")
        if name in PROVEN:
            assert isinstance(case.claim, ProvenClaim)
        units.add(case.scope.unit)
        assert case.scope.relation in list(Relation)
    assert units == set(Unit)


@pytest.mark.parametrize(
    "arguments",
    [
        {"trials": 99},
        {"trials": True},
        {"trials": 1e5},
        {"confidence": 1.0},
        {"confidence": math.nan},
        {"delta": -0.1},
        {"delta": math.nan},
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        audit(of_mechanism(MECHANISM, ONES), **arguments)  # type: ignore[arg-type]


def test_broken_protocols_are_refused() -> None:
    def nothing(inputs: Tensor, noise: object, hashes: object) -> Tensor:  # noqa: ARG001
        return inputs * math.nan

    def short(inputs: Tensor, noise: object, hashes: object) -> Tensor:  # noqa: ARG001
        return inputs[1:]

    for protocol, text in ((nothing, "finite"), (short, "trials")):
        with pytest.raises(ArgumentError, match=text):
            Game(protocol, ONES).play(5, stream=Stream(0, "x"), part="p")
    with pytest.raises(ArgumentError, match="like first"):
        Neighbours(torch.ones(3), torch.ones(4))
    with pytest.raises(ArgumentError, match="others_std"):
        Neighbours(torch.ones(3), torch.ones(3), math.nan)
    with pytest.raises(ArgumentError, match="case must be one of"):
        case_of("x")
    with pytest.raises(ArgumentError, match="plant must be one of"):
        plant("x")

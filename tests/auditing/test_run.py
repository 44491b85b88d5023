"""Whole audits: planted errors are found, correct mechanisms are not contradicted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from diffsketch.auditing import (
    Adversary,
    AuditResult,
    Case,
    Game,
    Neighbours,
    Verdict,
    audit,
    every_trial,
)
from diffsketch.auditing.adversaries import Stream
from diffsketch.auditing.bare import bare_client, bare_example, bare_secret, bare_unknown
from diffsketch.auditing.catalogue import case_of, cases
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, NoClaim, PaperClaim, Relation, Unit
from diffsketch.privacy.clipping import CoordinateBound, NormBound
from diffsketch.privacy.mechanisms import GaussianMechanism, LaplaceMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch import HashSeed

MECHANISM = GaussianMechanism(NormBound(1.0), 1.0)
ONES = Neighbours(torch.ones(3), -torch.ones(3))


def lower(result: AuditResult) -> float:
    return float(result.measured.lower_bound)


def of_mechanism(mechanism: GaussianMechanism | LaplaceMechanism = MECHANISM) -> Case:
    """A mechanism against its own claim, on vectors that differ by all that they can."""

    def send(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        return mechanism.release(inputs, noise, batch=True)

    return Case("mechanism", "t", mechanism.claim, Game(every_trial(send), ONES))


def test_false_alarms_of_whole_audits_stay_below_the_stated_probability() -> None:
    """300 audits of Laplace noise with 80% confidence: at most 60 may exceed epsilon = 1.

    95 is 5 standard deviations above, so that this fails with probability below 1e-6; the seeds
    are fixed. The control has 20% less noise, and exceeds the claim more often than that.
    """
    alarms = []
    for multiplier in (1.0, 0.8):
        mechanism = LaplaceMechanism(CoordinateBound(1.0), multiplier)
        ends = Neighbours(torch.ones(1), -torch.ones(1))
        case = of_mechanism(mechanism)
        case = replace(case, game=Game(case.game.protocol, ends), deltas=(0.0,))
        results = [audit(case, trials=2000, confidence=0.8, seed=seed) for seed in range(300)]
        alarms.append(sum(lower(result) > 1 for result in results))
    assert alarms[0] <= 95 < alarms[1]


def test_choosing_delta_costs_no_false_alarms() -> None:
    """300 audits of Gaussian noise with 80% confidence, at deltas of their own choice.

    As above: at most 60 expected, 95 with probability below 1e-6; the control is found.
    """
    alarms = []
    for multiplier in (1.0, 0.8):
        case = of_mechanism(GaussianMechanism(NormBound(1.0), multiplier))
        case = replace(case, claim=MECHANISM.claim)
        results = [audit(case, trials=2000, confidence=0.8, seed=seed) for seed in range(300)]
        alarms.append(sum(result.is_wrong for result in results))
        assert len({result.claimed.delta for result in results}) > 1
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
    # ln(1 / p) with p the probability that 500 misses are 99.95% sure to exclude.
    assert lower(result) == pytest.approx(-math.log(1 - 0.0005 ** (1 / 500)), abs=0.02)


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


def test_any_method_can_be_audited() -> None:
    """A method of a user's own, that adds uniform noise and claims what Gaussian noise gives."""

    def method(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        chances = torch.full((*inputs.shape, 12), 0.5)
        return inputs + 0.5 * (noise.bernoulli(chances).sum(dim=-1) - 6)

    case = Case("mine", "rounded noise", MECHANISM.claim, Game(every_trial(method), ONES))
    result = audit(case, trials=20_000)
    assert result.verdict is Verdict.CONTRADICTED
    honest = replace(case, claim=NoClaim(MECHANISM.claim.scope, "never proven"))
    assert audit(honest, trials=2000).verdict is Verdict.NOTHING_CLAIMED


def test_measured_claim_says_what_it_is() -> None:
    result = audit(of_mechanism(), trials=2000, confidence=0.9, delta=0.05)
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
    result = audit(replace(of_mechanism(), rounds=4), trials=2000, delta=0.01)
    composed = MECHANISM.claim.epsilon(delta=0.01, rounds=4)
    assert (result.claimed, result.measured.lower_bound.rounds) == (composed, 4)
    assert float(composed) > 2 * float(MECHANISM.claim.epsilon(delta=0.01, rounds=1))


def test_more_than_an_exact_limit_is_found_where_the_claim_is_looser() -> None:
    loose = GaussianMechanism(NormBound(1.0), 0.3).claim
    tight = MECHANISM.claim
    case = replace(
        of_mechanism(GaussianMechanism(NormBound(1.0), 0.5)), claim=loose,
        limit=lambda _, delta: float(tight.epsilon(delta=delta, rounds=1)),
    )  # fmt: skip
    assert audit(case, trials=4000).verdict is Verdict.LESS_NOISE
    correct = replace(of_mechanism(), claim=loose, limit=case.limit)
    assert audit(correct, trials=4000).verdict is Verdict.CONSISTENT


def test_same_seed_same_result_and_progress_is_told() -> None:
    case, done = of_mechanism(), list[float]()
    first = audit(case, trials=2001, seed=7, on_progress=done.append)
    assert first.outcome == audit(case, trials=2001, seed=7).outcome
    assert first.outcome != audit(case, trials=2001, seed=8).outcome
    assert (first.trials, first.outcome.trials) == (2000, 1000)
    assert done == sorted(done)
    assert done[-1] == 1.0


def test_halves_and_worlds_are_independent() -> None:
    game, stream = of_mechanism().game, Stream(0, "name")
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

    game = Game(every_trial(method), ONES, Adversary.SECRET_HASHES_OTHERS_KNOWN)
    game.play(20, stream=Stream(0, "x"), part="p")
    assert len(set(seen)) == 40
    seen.clear()
    Game(every_trial(method), ONES).play(20, stream=Stream(0, "x"), part="p")
    assert len(set(seen)) == 1


def test_every_case_is_named_and_scoped() -> None:
    units = set()
    for name, make in cases().items():
        case = make()
        assert case.name == name
        assert (case.planted is not None) == ("+" in name)
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
        audit(of_mechanism(), **arguments)  # type: ignore[arg-type]


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
    with pytest.raises(ArgumentError, match="deltas"):
        replace(of_mechanism(), deltas=())
    with pytest.raises(ArgumentError, match="case must be one of"):
        case_of("x")

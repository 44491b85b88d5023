"""Bounds and whole audits: planted errors are found, correct mechanisms are not contradicted."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
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
from diffsketch.auditing.audits import (
    AuditOutcome,
    Rule,
    Stream,
    choose_rules,
    clopper_pearson,
    judge,
)
from diffsketch.auditing.cases import bare_crowd, bare_unknown, cases
from diffsketch.auditing.releases import RELEASES, Release, weaker
from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, NoClaim, PaperClaim, Relation, Unit
from diffsketch.privacy.clipping import NormBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.noise import Noise
from diffsketch.sketch import HashSeed
from tests.helpers.refusals import refused

MECHANISM = GaussianMechanism(NormBound(1.0), 1.0)
ONES = Neighbours(torch.ones(3), -torch.ones(3))


def lower(result: AuditResult) -> float:
    return float(result.measured.lower_bound)


def of_mechanism(mechanism: GaussianMechanism = MECHANISM) -> Case:
    """A mechanism against its own claim, on vectors that differ by all that they can."""

    def send(inputs: Tensor, noise: Noise, seed: HashSeed) -> Tensor:  # noqa: ARG001
        return mechanism.release(inputs, noise, batch=True)

    return Case("mechanism", "t", mechanism.claim, Game(every_trial(send), ONES))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mechanism", "sketch-skellam-local", "gaussian-member-flag"])
def test_false_alarms_of_whole_audits_stay_below_the_stated_probability(name: str) -> None:
    """100 audits with 80% confidence, at deltas of their own choice: one score, or one of four.

    At most 20 are expected to exceed the claim; more than 41 do with probability below 1e-6, and
    the seeds are fixed but for exact noise. The control has 30% less noise, and exceeds it more
    often.
    """
    if name == "mechanism":
        weak = of_mechanism(GaussianMechanism(NormBound(1.0), 0.7))
        pair = of_mechanism(), replace(weak, claim=MECHANISM.claim)
    else:
        release = RELEASES[name]()
        less = Release(
            name, weaker(release.method, 0.7), insiders=release.insiders, trials=release.trials
        )
        pair = release.case(), replace(less.case(), claim=release.claim)
        assert len(pair[0].attacks) == 4
    alarms = []
    for case in pair:
        results = [audit(case, trials=2000, confidence=0.8, seed=seed) for seed in range(100)]
        alarms.append(sum(result.is_wrong for result in results))
        assert len({result.claimed.delta for result in results}) > 1
    assert alarms[0] <= 41 < alarms[1]


@pytest.mark.slow
def test_bare_sketch_contradicts_theorem_1() -> None:
    """The bound is about 0.38 with a standard deviation of 0.03; the claim is 0.24."""
    result = audit(bare_unknown(), trials=60_000, seed=3)
    assert isinstance(result.case.claim, PaperClaim)
    assert result.verdict is Verdict.CONTRADICTED
    assert result.limit is not None
    assert float(result.claimed) < lower(result) < float(result.limit)
    assert result.claimed.scope.unit is Unit.COORDINATE


@pytest.mark.parametrize("name", ["bare-known", "bare-parity"])
def test_known_others_give_everything_away(name: str) -> None:
    result = audit(cases()[name](), trials=1000)
    assert (result.outcome.true_positives, result.outcome.false_positives) == (500, 0)
    assert result.limit is not None
    assert math.isinf(float(result.limit))
    # ln(1 / p) with p the probability that 500 misses are 99.95% sure to exclude.
    assert lower(result) == pytest.approx(-math.log(1 - 0.0005 ** (1 / 500)), abs=0.02)


@pytest.mark.slow
def test_secret_hashes_and_unknown_others_show_nothing() -> None:
    """No violation found; a bound above the claim of 0.24 has probability at most 0.01."""
    result = audit(cases()["bare-secret"](), trials=1000)
    assert result.verdict is Verdict.CONSISTENT


@pytest.mark.slow
@pytest.mark.parametrize("unit", [Unit.EXAMPLE, Unit.CLIENT])
def test_crowds_hide_less_than_the_exact_limit(unit: Unit) -> None:
    result = audit(bare_crowd(unit), trials=20_000)
    assert isinstance(result.case.claim, NoClaim)
    assert result.verdict is Verdict.NOTHING_CLAIMED
    assert result.limit is not None
    assert 0.3 * float(result.limit) < lower(result) < float(result.limit)


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


def test_what_judges_is_played_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of many rules is lucky on the trials that it was chosen on, and on no others."""
    parts, real = list[str](), Game.play

    def watched(self: Game, count: int, *, stream: Stream, part: str) -> Any:
        parts.append(part.partition(" ")[0])
        return real(self, count, stream=stream, part=part)

    monkeypatch.setattr(Game, "play", watched)
    audit(of_mechanism(), trials=2000)
    assert list(dict.fromkeys(parts)) == ["pilot", "choose", "judge"]


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
    neighbours = Neighbours(torch.tensor([1.0, 5.0, 0.0]), torch.tensor([2.0, 5.0, 0.0]))
    generator = torch.Generator().manual_seed(0)
    first, second = (drawn.clone() for drawn in neighbours.draw(4000, generator))
    assert torch.all(first[:, 0] == 1)
    assert torch.all(second[:, 0] == 2)
    assert torch.equal(first[:, 1:], second[:, 1:])
    # The standard deviation of 8,000 numbers is within 5% but for a chance of 1e-9.
    assert float(first[:, 1:].std()) == pytest.approx(1.0, rel=0.05)
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
    [{"trials": 99}, {"trials": 1e5}, {"confidence": 1.0}, {"delta": math.nan}, {"seed": -1}],
)
def test_bad_arguments_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(ArgumentError):
        audit(of_mechanism(), **arguments)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="case must be of type Case, got case='gaussian'"):
        audit("gaussian", **arguments)  # type: ignore[arg-type]


def test_broken_protocols_are_refused() -> None:
    def nothing(inputs: Tensor, noise: object, hashes: object) -> Tensor:  # noqa: ARG001
        return inputs * math.nan

    def short(inputs: Tensor, noise: object, hashes: object) -> Tensor:  # noqa: ARG001
        return inputs[1:]

    for protocol, text in ((nothing, "finite"), (short, "trials")):
        refused(ArgumentError, text, Game(protocol, ONES).play, 5, stream=Stream(0, "x"), part="p")
    refused(ArgumentError, "like first", Neighbours, torch.ones(3), torch.ones(4))
    refused(ArgumentError, "deltas", replace, of_mechanism(), deltas=())


@pytest.mark.parametrize(("trials", "failure"), [(1, 0.3), (7, 0.3), (200, 0.005), (10**5, 0.005)])
def test_clopper_pearson_inverts_the_binomial_distribution(trials: int, failure: float) -> None:
    counts = np.unique(np.linspace(0, trials, 20).astype(int))
    low, high = clopper_pearson(counts, trials, failure=failure)
    for count, below, above in zip(counts, low, high, strict=True):
        if count == 0:
            assert below == 0
        else:
            assert stats.binom.sf(count - 1, trials, below) == pytest.approx(failure, rel=1e-6)
        if count == trials:
            assert above == 1
        else:
            assert stats.binom.cdf(count, trials, above) == pytest.approx(failure, rel=1e-6)


def coverage(bounds: np.ndarray, truth: float, trials: int) -> float:
    """The exact probability that a lower bound, given for each count, is at most the truth."""
    chances = stats.binom.pmf(np.arange(trials + 1), trials, truth)
    return float(chances[bounds <= truth].sum())


def test_coverage_is_exact_and_a_normal_approximation_fails_it() -> None:
    trials, failure = 40, 0.05
    counts = np.arange(trials + 1)
    low, high = clopper_pearson(counts, trials, failure=failure)
    shares = counts / trials
    wald = shares - stats.norm.isf(failure) * np.sqrt(shares * (1 - shares) / trials)
    truths = np.linspace(0.005, 0.995, 199)
    assert min(coverage(low, truth, trials) for truth in truths) >= 1 - failure
    # An upper bound is a lower one of the complement.
    assert min(coverage(1 - high[::-1], 1 - truth, trials) for truth in truths) >= 1 - failure
    assert min(coverage(wald, truth, trials) for truth in truths) < 1 - 2 * failure


def test_mirrored_rule_is_found() -> None:
    """Only the second world has an atom: its presence speaks for 2, its absence for little."""
    rng = np.random.default_rng(4)
    first = rng.random(2000)
    second = np.where(rng.random(2000) < 0.3, -1.0, rng.random(2000))
    ((rule, _),) = choose_rules(first, second, deltas=[0.0], confidence=0.99)
    assert rule.mirrored
    assert rule.threshold == -1.0
    outcome = judge(rule, first, second, confidence=0.99)
    assert (outcome.true_positives, outcome.false_positives) == (int((second < 0).sum()), 0)


def test_log_ratio() -> None:
    outcome = AuditOutcome(Rule(0.0, mirrored=False), 100, 50, 10, 0.4, 0.2)
    assert outcome.log_ratio(0.0) == pytest.approx(math.log(2))
    assert outcome.log_ratio(0.1) == pytest.approx(math.log(1.5))
    assert outcome.log_ratio(0.3) == 0
    assert outcome.log_ratio(0.4) == 0


def test_nonsense_is_refused() -> None:
    for successes, trials, failure in ((6, 5, 0.1), (math.nan, 5, 0.1), (1, 0, 0.1), (1, 5, 0.0)):
        with pytest.raises(ArgumentError):
            clopper_pearson(successes, trials, failure=failure)
    ones, rule = np.ones(5), Rule(0.0, mirrored=False)
    refused(ArgumentError, "5 scores", judge, rule, ones, ones[1:], confidence=0.9)
    refused(ArgumentError, "5 scores", choose_rules, ones, ones[1:], deltas=[0.0], confidence=0.9)
    refused(ArgumentError, "confidence", judge, rule, ones, ones, confidence=math.nan)

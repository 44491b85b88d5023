"""Clopper-Pearson bounds, the choice of a rule, and the coverage of the lower bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from diffsketch.auditing.bounds import Outcome, Rule, choose_rule, clopper_pearson, judge
from diffsketch.errors import ArgumentError
from diffsketch.privacy.accounting.composition import gaussian_epsilon


@pytest.mark.parametrize("trials", [1, 7, 200, 100_000])
@pytest.mark.parametrize("failure", [0.3, 0.005])
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


@pytest.mark.parametrize(
    ("successes", "trials", "failure"),
    [(-1, 5, 0.1), (6, 5, 0.1), (math.nan, 5, 0.1), (1, 0, 0.1), (1, 5, 0.0), (1, 5, math.nan)],
)
def test_clopper_pearson_refuses_nonsense(successes: float, trials: int, failure: float) -> None:
    with pytest.raises(ArgumentError):
        clopper_pearson(successes, trials, failure=failure)


def responses(rng: np.random.Generator, truth: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response: the true bit with odds of exp(truth), so that truth is its epsilon."""
    honest = math.exp(truth) / (1 + math.exp(truth))
    first = (rng.random(count) < honest).astype(float)
    second = (rng.random(count) >= honest).astype(float)
    return first, second


def test_false_alarms_stay_below_the_stated_probability() -> None:
    """Over 3,000 audits with 90% confidence of a mechanism whose epsilon is 1.

    At most 10% may exceed it; 5 standard deviations above are 12.7%, so that a right bound fails
    with probability below 1e-6 (and the seed is fixed). The control takes the rates of the judged
    half as they are, without bounds, and exceeds the truth about half of the time.
    """
    rng = np.random.default_rng(1)
    alarms = careless = 0
    for _ in range(3000):
        first, second = responses(rng, 1.0, 400)
        rule, _ = choose_rule(first[:200], second[:200], delta=0.0, confidence=0.9)
        outcome = judge(rule, first[200:], second[200:], confidence=0.9)
        alarms += outcome.log_ratio(0.0) > 1
        careless += math.log(outcome.true_positives / outcome.false_positives) > 1
    assert alarms <= 0.127 * 3000
    assert careless > 0.3 * 3000


def test_best_rule_on_the_same_trials_would_be_wrong() -> None:
    """Why the trials are halved: of equal worlds, the best of many thresholds shows something.

    500 audits with 50% confidence of worlds without any difference, where every positive bound
    is a false alarm: 250 are allowed (306 is 5 deviations above, so that a right bound fails with
    probability below 1e-6; the seed is fixed besides). The control takes the largest of the
    bounds of forty rules on the same trials, and is wrong more often than that.
    """
    rng = np.random.default_rng(2)
    alarms = biased = 0
    for _ in range(500):
        first, second = rng.standard_normal((2, 400))
        rule, _ = choose_rule(first[:200], second[:200], delta=0.0, confidence=0.5)
        alarms += judge(rule, first[200:], second[200:], confidence=0.5).log_ratio(0.0) > 0
        rules = [Rule(x, mirrored) for x in np.linspace(-2, 2, 20) for mirrored in (False, True)]
        biased += any(
            judge(each, first, second, confidence=0.5).log_ratio(0.0) > 0 for each in rules
        )
    assert alarms <= 306 < biased


def test_bound_approaches_the_truth_for_a_gaussian_shift() -> None:
    """With 10^6 judged trials it is within 10% below epsilon(0.01); fixed seed.

    The bound's own standard deviation is 0.03, so that it exceeds the truth (2.318) with a
    probability far below the 1% that it is allowed.
    """
    rng = np.random.default_rng(3)
    first, second = rng.standard_normal((2, 2_000_000))
    first += 1
    truth = gaussian_epsilon(1.0, 0.01)
    rule, _ = choose_rule(first[: 10**6], second[: 10**6], delta=0.01, confidence=0.99)
    found = judge(rule, first[10**6 :], second[10**6 :], confidence=0.99).log_ratio(0.01)
    assert 0.9 * truth < found < truth


@pytest.mark.parametrize(
    ("cols", "mu", "claimed", "expected"), [(2, 0.104, 0.0556, 0.187), (4, 0.147, 0.343, 0.36)]
)
def test_theorem_1_is_contradicted_with_enough_trials(
    cols: int, mu: float, claimed: float, expected: float
) -> None:
    """The best statistic of a bare 5 x 2 or 5 x 4 sketch of 10,000 unknown Gaussian coordinates.

    It is exactly N(0, 1) or N(mu, 1) (`test_attacks`), so it is drawn as such: 3 x 10^6 judged
    trials. The bounds found here have a standard deviation below 0.02; fixed seed.
    """
    rng = np.random.default_rng(cols)
    judged = 3 * 10**6
    scores = rng.standard_normal((4, judged), dtype=np.float32).astype(np.float64)
    scores[::2] += mu
    rule, _ = choose_rule(scores[0], scores[1], delta=1e-5, confidence=0.95)
    found = judge(rule, scores[2], scores[3], confidence=0.95).log_ratio(1e-5)
    assert claimed < expected < found < gaussian_epsilon(mu, 1e-5)


def test_mirrored_rule_is_found() -> None:
    """Only the second world has an atom: its presence speaks for 2, its absence for little."""
    rng = np.random.default_rng(4)
    first = rng.random(2000)
    second = np.where(rng.random(2000) < 0.3, -1.0, rng.random(2000))
    rule, _ = choose_rule(first, second, delta=0.0, confidence=0.99)
    assert rule.mirrored
    assert rule.threshold == -1.0
    outcome = judge(rule, first, second, confidence=0.99)
    assert (outcome.true_positives, outcome.false_positives) == (int((second < 0).sum()), 0)


def test_log_ratio() -> None:
    outcome = Outcome(Rule(0.0, mirrored=False), 100, 50, 10, 0.4, 0.2)
    assert outcome.log_ratio(0.0) == pytest.approx(math.log(2))
    assert outcome.log_ratio(0.1) == pytest.approx(math.log(1.5))
    assert outcome.log_ratio(0.3) == 0
    assert outcome.log_ratio(0.4) == 0


def test_unequal_numbers_of_trials_are_refused() -> None:
    ones, rule = np.ones(5), Rule(0.0, mirrored=False)
    with pytest.raises(ArgumentError, match="5 scores"):
        judge(rule, ones, ones[1:], confidence=0.9)
    with pytest.raises(ArgumentError, match="5 scores"):
        choose_rule(ones, ones[1:], delta=0.0, confidence=0.9)
    with pytest.raises(ArgumentError, match="confidence"):
        judge(rule, ones, ones, confidence=math.nan)

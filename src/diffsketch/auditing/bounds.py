"""The statistics of an audit: from two lists of scores to a lower bound with a stated confidence.

If a mechanism is (epsilon, delta)-private, then for every event `E` and neighbours 1 and 2

    P_1(E) <= exp(epsilon) P_2(E) + delta,   so   epsilon >= ln((P_1(E) - delta) / P_2(E)).

An event is chosen on one half of the trials: "the score is at least a threshold", or, mirrored,
"at most" with the roles of 1 and 2 exchanged. On the other half `P_1(E)` is bounded from below and
`P_2(E)` from above by two one-sided Clopper-Pearson bounds. Each may fail with probability
`(1 - confidence) / 2`, which is all that can go wrong: the event does not depend on the half that
judges it, so neither the choice among many thresholds and scores nor that of the direction costs
anything. Hence the bound exceeds the true epsilon with probability at most `1 - confidence`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from scipy import special

from diffsketch.errors import check

__all__ = ["Outcome", "Rule", "choose_rule", "clopper_pearson", "judge"]

Numbers: TypeAlias = npt.NDArray[np.float64]

_STRICTER = 1e-3  # of the failure probability, for choosing: the best of many is lucky
_CANDIDATES = 150  # thresholds in each tail, evenly spaced in the logarithm of its probability


@dataclass(frozen=True)
class Rule:
    """An event: the score is at least `threshold`, or at most if `mirrored`.

    A mirrored rule holds neighbour 2 against neighbour 1, another one 1 against 2.
    """

    threshold: float
    mirrored: bool

    def count(self, scores: Numbers) -> int:
        """In how many trials the event happened."""
        happened = scores <= self.threshold if self.mirrored else scores >= self.threshold
        return int(happened.sum())


@dataclass(frozen=True)
class Outcome:
    """How an event did on the trials that judge it.

    Attributes:
        rule: The event.
        trials: Judged trials of each neighbour.
        true_positives: In how many the event happened where it should.
        false_positives: In how many where it should not.
        true_rate_low: Lower bound on the probability of the first.
        false_rate_high: Upper bound on the probability of the second.
    """

    rule: Rule
    trials: int
    true_positives: int
    false_positives: int
    true_rate_low: float
    false_rate_high: float

    def log_ratio(self, delta: float) -> float:
        """`ln((true_rate_low - delta) / false_rate_high)`, and 0 where that shows nothing."""
        excess = self.true_rate_low - delta
        return max(0.0, math.log(excess / self.false_rate_high)) if excess > 0 else 0.0


def clopper_pearson(
    successes: npt.ArrayLike, trials: int, *, failure: float
) -> tuple[Numbers, Numbers]:
    """Exact one-sided bounds on a probability: a lower one and an upper one.

    Each on its own is wrong with probability at most `failure`. Works on arrays of counts.

    >>> low, high = clopper_pearson(0, 10, failure=0.05)
    >>> float(low), round(float(high), 4)  # 1 - 0.05 ** (1 / 10)
    (0.0, 0.2589)
    """
    counts = np.asarray(successes, dtype=np.float64)
    check(trials >= 1, "trials", "be >= 1", trials)
    check(0 < failure < 1, "failure", "be in (0, 1)", failure)
    inside = bool(((counts >= 0) & (counts <= trials)).all())
    check(inside, "successes", f"be in 0..{trials}", successes)
    misses = trials - counts
    # The formulas do not hold at the ends, where the bounds are 0 and 1.
    low = special.betaincinv(np.maximum(counts, 1), misses + 1, failure)
    high = special.betainccinv(counts + 1, np.maximum(misses, 1), failure)
    return np.where(counts == 0, 0.0, low), np.where(misses == 0, 1.0, high)


def choose_rule(
    first: Numbers, second: Numbers, *, delta: float, confidence: float
) -> tuple[Rule, float]:
    """The rule with the largest bound on these scores, and how large that is.

    Being the best of many, it is biased. So it is computed with a thousandth of the failure
    probability, which keeps away from thresholds that a few lucky trials speak for, and the rule
    has to be judged on other trials.
    """
    check(len(first) == len(second), "second", f"have {len(first)} scores", len(second))
    thresholds = _thresholds(np.sort(np.concatenate([first, second])))
    best, rule = -math.inf, Rule(math.inf, mirrored=False)
    failure = _STRICTER * (1 - confidence) / 2
    for mirrored in (False, True):
        ours, theirs = (second, first) if mirrored else (first, second)
        hits = _counts(ours, thresholds, mirrored=mirrored)
        errors = _counts(theirs, thresholds, mirrored=mirrored)
        low, _ = clopper_pearson(hits, len(ours), failure=failure)
        _, high = clopper_pearson(errors, len(ours), failure=failure)
        ratios = np.log(np.maximum(low - delta, 1e-300) / high)
        place = int(ratios.argmax())
        if ratios[place] > best:
            best, rule = float(ratios[place]), Rule(float(thresholds[place]), mirrored)
    return rule, best


def judge(rule: Rule, first: Numbers, second: Numbers, *, confidence: float) -> Outcome:
    """The bounds on a rule's two probabilities, both right with probability `confidence`.

    The trials must be others than those that the rule was chosen on.
    """
    check(0 < confidence < 1, "confidence", "be in (0, 1)", confidence)
    check(len(first) == len(second), "second", f"have {len(first)} scores", len(second))
    ours, theirs = (second, first) if rule.mirrored else (first, second)
    hits, errors = rule.count(ours), rule.count(theirs)
    low, _ = clopper_pearson(hits, len(ours), failure=(1 - confidence) / 2)
    _, high = clopper_pearson(errors, len(theirs), failure=(1 - confidence) / 2)
    return Outcome(rule, len(ours), hits, errors, float(low), float(high))


def _thresholds(ordered: Numbers) -> Numbers:
    """Scores to try: denser towards both ends, where the ratio of probabilities is largest."""
    half = max(2, len(ordered) // 2)
    steps = np.unique(np.geomspace(1, half, _CANDIDATES).astype(np.int64)) - 1
    return np.unique(np.concatenate([ordered[steps], ordered[len(ordered) - 1 - steps]]))


def _counts(scores: Numbers, thresholds: Numbers, *, mirrored: bool) -> npt.NDArray[np.int64]:
    ordered = np.sort(scores)
    if mirrored:
        return np.searchsorted(ordered, thresholds, side="right")
    return len(ordered) - np.searchsorted(ordered, thresholds, side="left")

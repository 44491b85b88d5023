"""Audits: play two worlds, choose an event on one half of the trials, judge it on the other.

*The game.* A protocol is everything that reaches the adversary: the messages of all rounds and
workers. The two worlds run the same protocol on two neighbouring inputs. What the adversary does
not know (the other units' values, the hashes) is drawn anew for every trial; what they know stays
as it is.

*The bound.* If a mechanism is (epsilon, delta)-private, then for every event `E` and neighbours

    P_1(E) <= exp(epsilon) P_2(E) + delta,   so   epsilon >= ln((P_1(E) - delta) / P_2(E)).

An event is chosen on one half of the trials: "the score is at least a threshold", or, mirrored,
"at most" with the roles of 1 and 2 exchanged. On the other half `P_1(E)` is bounded from below and
`P_2(E)` from above by two one-sided Clopper-Pearson bounds. Each may fail with probability
`(1 - confidence) / 2`, which is all that can go wrong: the event does not depend on the half that
judges it, so neither the choice among many thresholds and scores nor that of the direction costs
anything. Hence the bound exceeds the true epsilon with probability at most `1 - confidence`.

*Where to look.* A proven claim holds for every delta, and an audit may look wherever it sees most.
In `n` judged trials no probability below about `5 / n` can be told from 0, so that the events which
matter at delta = 1e-5 are invisible. The largest deltas show most: whether noise is 20% too small
is plain from how often a guess is right. So delta is chosen, with the event, on one half of the
trials, and the other half judges. With 10,000 judged trials of each world and a shift of one
standard deviation, noise 20% too small is found by more than 6 deviations of the measurement.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy import special
from torch import Tensor

from diffsketch.auditing.attacks import DISCRIMINANT, Attack, Numbers, Score
from diffsketch.compiled import torch_threads
from diffsketch.errors import ArgumentError, check, check_type, check_whole
from diffsketch.privacy.claim import Claim, Epsilon, MeasuredClaim, NoClaim, Scope
from diffsketch.privacy.noise import Noise, NoiseKey
from diffsketch.sketch import HashSeed, SketchKey

TRIALS = 20_000  # of each world; half of them are judged
DELTAS: tuple[float, ...] = (1e-5, 1e-3, 3e-3, 0.01, 0.03, 0.1, 0.2, 0.3)
PURE_DELTA = 1e-5
DEFAULT_CONFIDENCE = 0.999
# Of the failure probability, for choosing. The best of many is lucky, most of all where a handful
# of false positives carry it: with 1e-3 one audit in thousands missed a planted error that the
# others found by nine standard deviations.
_STRICTER = 1e-7
_CANDIDATES = 300  # thresholds in each tail, evenly spaced in the logarithm of its probability
_MOST_PILOTS = 5000  # of each world, for attacks that fit something; not among the trials
# Numbers in a batch. Below 2**15 the sketches work in one thread, and PyTorch is told to: batches
# of short vectors would else wait for the other threads at every step, for long on a busy machine.
_SHORT_BATCH, _LONG_BATCH = (1 << 15) - 1, 1 << 22
_SHORT_WIDTH = 1 << 10
_LEAST_TRIALS, _MOST_TRIALS = 100, 10**8
_PUBLIC = "public hashes"  # the name of the hashes that all trials of an audit share

Sender: TypeAlias = Callable[[Tensor, Noise, HashSeed], Tensor]
"""One message for each trial: `(trials, ...)` inputs, noise and hashes to `(trials, ...)`."""
Protocol: TypeAlias = Callable[[Tensor, NoiseKey, SketchKey], Tensor]
"""All that the adversary sees, from the keys that noise and hashes are derived from."""


class Adversary(StrEnum):
    """Knowledge of the adversary besides the messages."""

    ALL_KNOWN = "public hashes, all else known"
    OTHERS_UNKNOWN = "public hashes, others unknown"
    SECRET_HASHES = "secret hashes, others unknown"  # noqa: S105
    SECRET_HASHES_OTHERS_KNOWN = "secret hashes, others known"  # noqa: S105
    SECRET_PROJECTION = "secret projection, all else known"  # noqa: S105

    @property
    def knows_hashes(self) -> bool:
        """Whether the hashes are public, so that they stay the same over all trials.

        Secret projections are no hashes: protocols draw them anew for each trial, like noise.
        """
        return self not in (Adversary.SECRET_HASHES, Adversary.SECRET_HASHES_OTHERS_KNOWN)

    @property
    def knows_others(self) -> bool:
        """Whether all but the unit under attack is known."""
        return self not in (Adversary.OTHERS_UNKNOWN, Adversary.SECRET_HASHES)


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Two inputs that differ in one unit: `(dim,)`, or more dimensions for units and rounds.

    Where the two agree they hold the values of the others. An adversary who does not know those
    faces independent normal numbers there.
    """

    first: Tensor
    second: Tensor

    def __post_init__(self) -> None:
        same = self.first.shape == self.second.shape and self.first.dtype == self.second.dtype
        check(same, "second", f"be like first, {tuple(self.first.shape)}", self.second.shape)

    @property
    def others(self) -> Tensor:
        """Mask of the places at which the two agree."""
        return self.first == self.second

    def draw(self, count: int, others: torch.Generator | None) -> Iterator[Tensor]:
        """Yield the first input `count` times over, then the second.

        With a generator, the others' values are drawn: once for both, as trials need only be
        independent of those of the same world. Use each before asking for the next.
        """
        if others is None:
            for base in (self.first, self.second):
                yield base.expand(count, *base.shape)
            return
        drawn = torch.empty((count, *self.first.shape), dtype=self.first.dtype)
        drawn.normal_(generator=others)
        target = np.flatnonzero(~self.others.numpy())
        for base in (self.first, self.second):
            # NumPy's, since PyTorch's threads take longer to start than this.
            drawn.view(count, -1).numpy()[:, target] = base.flatten().numpy()[target]
            yield drawn


@dataclass(frozen=True)
class Stream:
    """Independent randomness for every named part of one audit."""

    seed: int
    name: str

    def _number(self, *path: object) -> int:
        # The whole path is hashed, so that no two parts of any audit share randomness.
        text = repr((self.seed, self.name, *path)).encode()
        return int.from_bytes(hashlib.blake2b(text, digest_size=32, person=b"ds-audit").digest())

    def noise(self, *path: object) -> NoiseKey:
        """Derive a key for the mechanism's noise."""
        return NoiseKey.from_integer(self._number("noise", *path))

    def hashes(self, *path: object) -> SketchKey:
        """Derive a key for hashes."""
        return SketchKey.from_integer(self._number("hashes", *path))

    def generator(self, *path: object) -> torch.Generator:
        """Make a generator for the others' values: vectorised, as long vectors take most time."""
        return torch.Generator().manual_seed(self._number("others", *path) % (1 << 63))


@dataclass(frozen=True, eq=False)
class Game:
    """A protocol, two neighbours, and an adversary who is to tell them apart."""

    protocol: Protocol
    neighbours: Neighbours
    adversary: Adversary = Adversary.ALL_KNOWN

    def play(self, count: int, *, stream: Stream, part: str) -> tuple[Numbers, Numbers]:
        """Show what the adversary sees in `count` trials of each world: `(count, features)`."""
        generator = None if self.adversary.knows_others else stream.generator(part)
        worlds = []
        for world, inputs in enumerate(self.neighbours.draw(count, generator)):
            name = f"{part}, world {world}"
            if self.adversary.knows_hashes:
                seen = self.protocol(inputs, stream.noise(name), stream.hashes(_PUBLIC))
            else:  # each trial has hashes of its own
                single = [
                    self.protocol(inputs[i : i + 1], stream.noise(name, i), stream.hashes(name, i))
                    for i in range(count)
                ]
                seen = torch.cat(single)
            check(len(seen) == count, "protocol", f"return {count} trials", len(seen))
            worlds.append(np.asarray(seen.flatten(start_dim=1).double().numpy()))
            if not np.isfinite(worlds[-1]).all():
                raise ArgumentError("protocol must return finite numbers, got NaN or infinity")
        return worlds[0], worlds[1]


def every_trial(sender: Sender) -> Protocol:
    """Make the protocol in which one worker sends one message."""
    return lambda inputs, noise, hashes: sender(
        inputs, noise.source(worker=0, round_index=0), hashes.seed(0)
    )


@dataclass(frozen=True, eq=False)
class Case:
    """One thing to audit: a protocol, two neighbours, an adversary and the claim under test.

    Attributes:
        name: Name on the command line.
        title: Short description.
        claim: The claim under test.
        game: What the adversary sees and knows.
        attacks: Scores to choose from.
        rounds: How many rounds' messages the adversary sees.
        deltas: Where to look, unless the caller says otherwise.
        trials: How many it takes, unless the caller says otherwise.
        planted: The error that was put in on purpose, if one was.
        simulated: Whether noise comes from a seed, where an engine's would not.
        width: How many numbers a trial handles, roughly.
        limit: From the public hashes and delta to the epsilon that no attack of this adversary
            can exceed, and the best one reaches: exact, not measured.
    """

    name: str
    title: str
    claim: Claim
    game: Game
    attacks: tuple[Attack, ...] = (DISCRIMINANT,)
    rounds: int = 1
    deltas: tuple[float, ...] = DELTAS
    trials: int = TRIALS
    planted: str | None = None
    simulated: bool = False
    width: int = 0
    limit: Callable[[SketchKey, float], float] | None = None

    def __post_init__(self) -> None:
        check(len(self.attacks) > 0, "attacks", "have one at least", self.attacks)
        check(len(self.deltas) > 0, "deltas", "have one at least", self.deltas)
        object.__setattr__(self, "width", self.width or self.game.neighbours.first.numel())

    @property
    def scope(self) -> Scope:
        """Scope of the claim, and with it of the measurement."""
        return self.claim.scope


@dataclass(frozen=True)
class Rule:
    """An event: the score is at least `threshold`, or at most if `mirrored`.

    A mirrored rule holds neighbour 2 against neighbour 1, another one 1 against 2.
    """

    threshold: float
    mirrored: bool


@dataclass(frozen=True)
class AuditOutcome:
    """Counts and bounds of an event on the trials that judge it."""

    rule: Rule
    trials: int  # judged, of each neighbour
    true_positives: int  # trials in which the event happened where it should
    false_positives: int  # and where it should not
    true_rate_low: float  # bounds on the probabilities of the two
    false_rate_high: float

    def log_ratio(self, delta: float) -> float:
        """Compute `ln((true_rate_low - delta) / false_rate_high)`, or 0 where that is less."""
        excess = self.true_rate_low - delta
        return max(0.0, math.log(excess / self.false_rate_high)) if excess > 0 else 0.0


def clopper_pearson(
    successes: npt.ArrayLike, trials: int, *, failure: float
) -> tuple[Numbers, Numbers]:
    """Compute exact one-sided bounds on a probability: a lower one and an upper one.

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
    # One-sided bounds by the beta distribution's quantiles, whose tails are the binomial's.
    misses = trials - counts
    # The formulas do not hold at the ends, where the bounds are 0 and 1.
    low = special.betaincinv(np.maximum(counts, 1), misses + 1, failure)
    high = special.betainccinv(counts + 1, np.maximum(misses, 1), failure)
    return np.where(counts == 0, 0.0, low), np.where(misses == 0, 1.0, high)


def choose_rules(
    first: Numbers, second: Numbers, *, deltas: Sequence[float], confidence: float
) -> list[tuple[Rule, float]]:
    """Find for each delta the rule with the largest bound on these scores, and that bound.

    The best of many is biased: it is computed with a tiny share of the failure probability, which
    keeps away from thresholds that a few lucky trials speak for, and judged on other trials.
    """
    check(len(first) == len(second), "second", f"have {len(first)} scores", len(second))
    # Thresholds at scores that occurred: between two of them nothing changes.
    ordered = np.sort(np.concatenate([first, second]))
    # Denser towards both ends, where the ratio of probabilities is largest.
    steps = np.geomspace(1, max(2, len(ordered) // 2), _CANDIDATES).astype(np.int64)
    steps = np.unique(steps) - 1
    thresholds = np.unique(np.concatenate([ordered[steps], ordered[len(ordered) - 1 - steps]]))
    failure, bounds = _STRICTER * (1 - confidence) / 2, []
    # Either world may be the one with the rare event.
    for mirrored in (False, True):
        worlds = (second, first) if mirrored else (first, second)
        hits, errors = (_counts(world, thresholds, mirrored=mirrored) for world in worlds)
        # The same bounds as of the half that judges, so that what is chosen is what shows there.
        low, _ = clopper_pearson(hits, len(first), failure=failure)
        bounds.append((low, clopper_pearson(errors, len(first), failure=failure)[1]))
    lows, highs = (np.stack(side) for side in zip(*bounds, strict=True))
    chosen = []
    for delta in deltas:
        # A tiny number instead of what is negative: its logarithm is never chosen.
        ratios = np.log(np.maximum(lows - delta, 1e-300) / highs)
        mirrored, place = np.unravel_index(ratios.argmax(), ratios.shape)
        rule = Rule(float(thresholds[place]), bool(mirrored))
        chosen.append((rule, float(ratios[mirrored, place])))
    return chosen


def _counts(scores: Numbers, thresholds: Numbers, *, mirrored: bool) -> npt.NDArray[np.int64]:
    """Count the trials in which the event happened, for each threshold."""
    ordered = np.sort(scores)
    if mirrored:
        return np.searchsorted(ordered, thresholds, side="right")
    return len(ordered) - np.searchsorted(ordered, thresholds, side="left")


def judge(rule: Rule, first: Numbers, second: Numbers, *, confidence: float) -> AuditOutcome:
    """Bound a rule's two probabilities, both right with probability `confidence`.

    The trials must be others than those that the rule was chosen on.
    """
    check(0 < confidence < 1, "confidence", "be in (0, 1)", confidence)
    check(len(first) == len(second), "second", f"have {len(first)} scores", len(second))
    # The half of the failure probability for each of two bounds: together they fail as stated.
    ours, theirs = (second, first) if rule.mirrored else (first, second)
    at = np.array([rule.threshold])
    hits, errors = (int(_counts(each, at, mirrored=rule.mirrored)[0]) for each in (ours, theirs))
    low, _ = clopper_pearson(hits, len(ours), failure=(1 - confidence) / 2)
    _, high = clopper_pearson(errors, len(theirs), failure=(1 - confidence) / 2)
    return AuditOutcome(rule, len(ours), hits, errors, float(low), float(high))


class Verdict(StrEnum):
    """Meaning of a lower bound for a claim."""

    CONTRADICTED = "contradicts the claim"
    LESS_NOISE = "has less noise than stated"
    CONSISTENT = "consistent"
    NOTHING_CLAIMED = "nothing is claimed"


@dataclass(frozen=True)
class AuditResult:
    """Result of an audit.

    Attributes:
        case: The case, with its name, title, adversary and planted error, if it has one.
        claimed: The epsilon under test, at the audit's delta and rounds.
        measured: The lower bound that the attack achieved.
        limit: The epsilon that the best attack of this adversary reaches, where that is known.
        trials: Trials of each world, over both halves; pilot trials come on top.
        attack: The score that was chosen.
        outcome: The counts that the bound follows from.
    """

    case: Case
    claimed: Epsilon
    measured: MeasuredClaim
    limit: float | None
    trials: int
    attack: str
    outcome: AuditOutcome

    @property
    def stated(self) -> float:
        """The epsilon under test, or the exact limit, if that is lower."""
        return _stated(self.claimed, self.limit)

    @property
    def excess(self) -> float:
        """Measured bound less what is stated."""
        return float(self.measured.lower_bound) - self.stated

    @property
    def verdict(self) -> Verdict:
        """A correct mechanism is found wrong with probability at most `1 - confidence`."""
        if isinstance(self.case.claim, NoClaim):
            return Verdict.NOTHING_CLAIMED
        if float(self.measured.lower_bound) > float(self.claimed):
            return Verdict.CONTRADICTED
        return Verdict.LESS_NOISE if self.excess > 0 else Verdict.CONSISTENT

    @property
    def is_wrong(self) -> bool:
        """Whether the audit found that what is released is not what is stated."""
        return self.verdict in (Verdict.CONTRADICTED, Verdict.LESS_NOISE)

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data; every epsilon with what it means."""
        best = None
        if self.limit is not None:
            known = self.limit if math.isfinite(self.limit) else None  # JSON has no infinity
            best = {"epsilon": known, "how": "exact best attack"}
        return {
            "case": self.case.name,
            "title": self.case.title,
            "planted_error": self.case.planted,
            "simulated_noise": self.case.simulated,
            "adversary": str(self.case.game.adversary),
            "claim": str(self.case.claim),
            "claimed": epsilon_to_json(self.claimed),
            "measured_lower_bound": epsilon_to_json(self.measured.lower_bound),
            "measured": str(self.measured),
            "confidence": self.measured.confidence,
            "best_possible": best,
            "verdict": str(self.verdict),
            "attack": self.attack,
            "trials_per_world": self.trials,
            "judged": asdict(self.outcome),
        }


def epsilon_to_json(epsilon: Epsilon) -> dict[str, Any]:
    """Return an epsilon as plain data with all that it means; null where nothing limits it."""
    data = epsilon.to_json()
    return {"epsilon": data.pop("value"), **data}


def check_settings(
    *, trials: int | None, confidence: float, delta: float | None, seed: int
) -> None:
    """Refuse what `audit` would, before anything is done; None stands for a case's own."""
    if trials is not None:
        check_whole("trials", trials, least=_LEAST_TRIALS, most=_MOST_TRIALS)
    check(0 < confidence < 1, "confidence", "be in (0, 1)", confidence)
    if delta is not None:
        check(0 <= delta < 1, "delta", "be in [0, 1)", delta)
    check(seed >= 0, "seed", "be >= 0", seed)


def _stated(claimed: Epsilon, limit: float | None) -> float:
    return min(float(claimed), math.inf if limit is None else limit)


def _nearness(shown: float, stated: float) -> float:
    """Compare bounds at different deltas: by their share of what is stated, or what is above it."""
    # Nothing is stated: the larger bound is the better one.
    if math.isinf(stated):
        return shown
    return 1 + shown - stated if shown > stated else shown / max(stated, 1e-3)


def audit(
    case: Case,
    *,
    trials: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    delta: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> AuditResult:
    """Measure a lower bound on the epsilon of a case, right with probability `confidence`.

    Half of the trials choose the score, the direction, the threshold and delta: those whose bound
    is nearest to the claim (or to the exact limit, if that is lower), or farthest above it. The
    other half bounds the two probabilities of the event.

    Guarantees: a correct mechanism is contradicted with probability at most `1 - confidence`,
    over the randomness of the audit (`tests/auditing/test_audits.py`).

    Args:
        case: The case; `diffsketch.auditing.cases` has ready ones.
        trials: Trials of each of the two worlds; by default what the case needs.
        confidence: Confidence of the bound.
        delta: Where epsilon is bounded; by default where it shows most.
        seed: Fixes all random numbers but those of exact noise, which nothing repeats.
        on_progress: Called with the share of the work that is done, from 0 to 1.

    Raises:
        ArgumentError: An argument is out of range.
    """
    check_type("case", case, Case)
    count = case.trials if trials is None else trials
    check_settings(trials=count, confidence=confidence, delta=delta, seed=seed)
    stream = Stream(seed, case.name)
    hashes = stream.hashes(_PUBLIC)
    levels = case.deltas if delta is None else (delta,)
    # Composed over the case's rounds, as a user would read them.
    claims = {each: case.claim.epsilon(delta=each, rounds=case.rounds) for each in levels}
    limits = {each: case.limit and case.limit(hashes, each) for each in levels}
    # Halves of equal size: choosing needs about as many trials as judging.
    half = count // 2
    pilots = min(_MOST_PILOTS, half)
    is_short = case.width <= _SHORT_WIDTH
    # Batches by the numbers in them, so that memory does not depend on the case.
    size = max(1, (_SHORT_BATCH if is_short else _LONG_BATCH) // case.width)
    threads, done = partial(torch_threads, 1 if is_short else torch.get_num_threads()), 0

    def played(part: str, number: int) -> Iterator[tuple[Numbers, Numbers]]:
        nonlocal done
        for start in range(0, number, size):
            these = min(size, number - start)
            with threads():
                worlds = case.game.play(these, stream=stream, part=f"{part} {start}")
            yield worlds
            done += these
            on_progress(done / (pilots + 2 * half))

    def scored(part: str, chosen: Sequence[Score]) -> list[list[Numbers]]:
        """Return for each score its values in both worlds."""
        values: list[list[tuple[Numbers, Numbers]]] = [[] for _ in chosen]
        for first, second in played(part, half):
            for kept, score in zip(values, chosen, strict=True):
                kept.append((score(first), score(second)))
        return [[np.concatenate(world) for world in zip(*kept, strict=True)] for kept in values]

    # Drawn apart from both halves: a score must not know the trials that it is judged by.
    pilot = [np.concatenate(world) for world in zip(*played("pilot", pilots), strict=True)]
    with threads():
        scores = [attack.fit(pilot[0], pilot[1], hashes) for attack in case.attacks]
    options = []
    for place, (first, second) in enumerate(scored("choose", scores)):
        rules = choose_rules(first, second, deltas=levels, confidence=confidence)
        for level, (rule, shown) in zip(levels, rules, strict=True):
            # Nearness to what is stated makes bounds at different deltas comparable.
            stated = _stated(claims[level], limits[level])
            options.append((_nearness(shown, stated), place, level, rule))
    _, place, level, rule = max(options, key=lambda option: option[0])
    # Fresh trials, which neither the score nor the threshold has seen.
    ((first, second),) = scored("judge", [scores[place]])
    outcome = judge(rule, first, second, confidence=confidence)
    attack = case.attacks[place].name
    bound = Epsilon(outcome.log_ratio(level), level, case.rounds, MeasuredClaim.basis, case.scope)
    measured = MeasuredClaim(case.scope, bound, confidence, f"an attack ({attack})")
    return AuditResult(case, claims[level], measured, limits[level], 2 * half, attack, outcome)

"""Running audits: play a case's two worlds, choose an event on one half, judge it on the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import numpy as np

from diffsketch.auditing.adversaries import PUBLIC, Stream
from diffsketch.auditing.attacks import Score
from diffsketch.auditing.bounds import Numbers, Outcome, choose_rule, judge
from diffsketch.auditing.cases import Case
from diffsketch.errors import ArgumentError, check
from diffsketch.privacy.claim import Epsilon, MeasuredClaim, NoClaim

__all__ = [
    "DEFAULT_CONFIDENCE", "AuditResult", "Verdict", "audit", "check_settings", "epsilon_to_json",
]  # fmt: skip

DEFAULT_CONFIDENCE = 0.999
_MOST_PILOTS = 5000  # of each world, for attacks that fit something; not among the trials
# Numbers in a batch. Below 2**15, PyTorch and the sketches work in one thread: batches of
# short vectors would else wait for the other threads at every step, for long on a busy machine.
_SHORT_BATCH, _LONG_BATCH = (1 << 15) - 1, 1 << 22
_SHORT_WIDTH = 1 << 10
_LEAST_TRIALS, _MOST_TRIALS = 100, 10**8


class Verdict(StrEnum):
    """What a lower bound says about a claim."""

    CONTRADICTED = "contradicts the claim"
    LESS_NOISE = "has less noise than stated"
    CONSISTENT = "consistent"
    NOTHING_CLAIMED = "nothing is claimed"


@dataclass(frozen=True)
class AuditResult:
    """What an audit found.

    Attributes:
        case: Its name, title, adversary and planted error, if it has one.
        claimed: The epsilon under test, at the audit's delta and rounds.
        measured: The lower bound that the attack achieved.
        limit: The epsilon that the best attack of this adversary reaches, where that is known.
        trials: Of each world, over both halves; pilot trials come on top.
        attack: The score that was chosen.
        outcome: The counts that the bound follows from.
    """

    case: Case
    claimed: Epsilon
    measured: MeasuredClaim
    limit: float | None
    trials: int
    attack: str
    outcome: Outcome

    @property
    def verdict(self) -> Verdict:
        """A correct mechanism is found wrong with probability at most `1 - confidence`."""
        if isinstance(self.case.claim, NoClaim):
            return Verdict.NOTHING_CLAIMED
        bound = float(self.measured.lower_bound)
        if bound > float(self.claimed):
            return Verdict.CONTRADICTED
        return (
            Verdict.CONSISTENT if self.limit is None or bound <= self.limit else Verdict.LESS_NOISE
        )

    @property
    def is_wrong(self) -> bool:
        """Whether the audit found that what is released is not what is stated."""
        return self.verdict in (Verdict.CONTRADICTED, Verdict.LESS_NOISE)

    def to_json(self) -> dict[str, Any]:
        """All of it as plain data; every epsilon with what it means."""
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
            "best_possible": self._best_possible(),
            "verdict": str(self.verdict),
            "attack": self.attack,
            "trials_per_world": self.trials,
            "judged": asdict(self.outcome),
        }

    def _best_possible(self) -> dict[str, Any] | None:
        if self.limit is None:
            return None
        return {"epsilon": _number(self.limit), "how": "exact best attack"}


def _number(value: float) -> float | None:
    """JSON has no word for infinity."""
    return value if math.isfinite(value) else None


def epsilon_to_json(epsilon: Epsilon) -> dict[str, Any]:
    """A number that still says what it is; null where nothing limits it."""
    return {
        "epsilon": _number(float(epsilon)),
        "delta": epsilon.delta,
        "rounds": epsilon.rounds,
        "basis": str(epsilon.basis),
        "simulated": epsilon.simulated,
        "unit": str(epsilon.scope.unit),
        "relation": str(epsilon.scope.relation),
        "trust": str(epsilon.scope.trust),
    }


def check_settings(
    *, trials: int | None, confidence: float, delta: float | None, seed: int
) -> None:
    """Refuse what `audit` would, before anything is done; None stands for a case's own.

    Raises:
        ArgumentError: A value is out of range.
    """
    if trials is not None:
        if isinstance(trials, bool) or not isinstance(trials, int):
            raise ArgumentError(f"trials must be an int, got {type(trials).__name__}")
        good = _LEAST_TRIALS <= trials <= _MOST_TRIALS
        check(good, "trials", f"be in {_LEAST_TRIALS}..{_MOST_TRIALS}", trials)
    check(0 < confidence < 1, "confidence", "be in (0, 1)", confidence)
    if delta is not None:
        check(0 <= delta < 1, "delta", "be in [0, 1)", delta)
    check(seed >= 0, "seed", "be >= 0", seed)


def audit(
    case: Case,
    *,
    trials: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    delta: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda _: None,
) -> AuditResult:
    """A lower bound on the epsilon of a case that is right with probability `confidence`.

    Half of the trials choose the score, the direction, the threshold and delta: those whose bound
    is largest beside the claim (or beside the exact limit, if that is lower). The other half
    bounds the two probabilities of the event, each with failure probability `(1 - confidence) / 2`.
    A claim holds for every delta, so that the choice costs nothing.

    Guarantees: a correct mechanism is contradicted with probability at most `1 - confidence`,
    over the randomness of the audit (`tests/auditing/test_run.py`).

    Args:
        case: What is audited; `catalogue` has ready ones.
        trials: Of each of the two worlds; by default what the case needs.
        confidence: Of the bound.
        delta: Where epsilon is bounded; by default where it shows most.
        seed: Fixes all random numbers but those of exact noise, which nothing repeats.
        on_progress: Called with the share of the work that is done, from 0 to 1.

    Raises:
        ArgumentError: An argument is out of range.
    """
    count = case.trials if trials is None else trials
    check_settings(trials=count, confidence=confidence, delta=delta, seed=seed)
    stream = Stream(seed, case.name)
    levels = case.deltas if delta is None else (delta,)
    claims = {each: case.claim.epsilon(delta=each, rounds=case.rounds) for each in levels}
    limits = {each: case.limit and case.limit(stream.hashes(PUBLIC), each) for each in levels}
    half = count // 2
    pilots = min(_MOST_PILOTS, half)
    played = _Trials(case, stream, total=pilots + 2 * half, on_progress=on_progress)
    scores = played.fit(pilots)
    options = []
    for place, (first, second) in enumerate(played.score("choose", half, scores)):
        for level, claimed in claims.items():
            rule, shown = choose_rule(first, second, delta=level, confidence=confidence)
            stated = min(float(claimed), limits[level] or math.inf)
            options.append((shown / max(stated, 1e-3), place, level, rule))
    _, place, level, rule = max(options, key=lambda option: option[0])
    ((first, second),) = played.score("judge", half, [scores[place]])
    outcome = judge(rule, first, second, confidence=confidence)
    attack = case.attacks[place].name
    bound = Epsilon(outcome.log_ratio(level), level, case.rounds, MeasuredClaim.basis, case.scope)
    measured = MeasuredClaim(case.scope, bound, confidence, f"an attack ({attack})")
    return AuditResult(case, claims[level], measured, limits[level], 2 * half, attack, outcome)


class _Trials:
    """Plays trials in batches that fit the memory, and reports how many are done."""

    def __init__(
        self, case: Case, stream: Stream, *, total: int, on_progress: Callable[[float], None]
    ) -> None:
        self._case, self._stream = case, stream
        self._total, self._done = total, 0
        self._on_progress = on_progress

    def fit(self, count: int) -> list[Score]:
        """The scores of the case's attacks, fitted on trials of their own."""
        batches = list(self._batches("pilot", count))
        first = np.concatenate([one for one, _ in batches])
        second = np.concatenate([two for _, two in batches])
        hashes = self._stream.hashes(PUBLIC)
        return [attack.fit(first, second, hashes) for attack in self._case.attacks]

    def score(self, part: str, count: int, scores: Sequence[Score]) -> list[list[Numbers]]:
        """For each score, its values in both worlds."""
        values: list[list[tuple[Numbers, Numbers]]] = [[] for _ in scores]
        for first, second in self._batches(part, count):
            for kept, score in zip(values, scores, strict=True):
                kept.append((score(first), score(second)))
        return [[np.concatenate(world) for world in zip(*kept, strict=True)] for kept in values]

    def _batches(self, part: str, count: int) -> Iterator[tuple[Numbers, Numbers]]:
        width = self._case.width
        size = max(1, (_SHORT_BATCH if width <= _SHORT_WIDTH else _LONG_BATCH) // width)
        for start in range(0, count, size):
            these = min(size, count - start)
            yield self._case.game.play(these, stream=self._stream, part=f"{part} {start}")
            self._done += these
            self._on_progress(self._done / self._total)

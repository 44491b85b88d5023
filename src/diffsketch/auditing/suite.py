"""A run of several audits and the gradient inversion: what `diffsketch audit` does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from diffsketch.auditing.catalogue import INVERSION, Selection
from diffsketch.auditing.inversion import InversionResult, invert
from diffsketch.auditing.run import DEFAULT_CONFIDENCE, AuditResult, audit, check_settings
from diffsketch.privacy.claim import ProvenClaim

__all__ = ["Suite", "run_suite"]

_INVERSION_SECONDS = 8.0  # roughly, for the progress bar


@dataclass(frozen=True, eq=False)
class Suite:
    """What a run found."""

    results: tuple[AuditResult, ...]
    inversion: InversionResult | None
    confidence: float
    seed: int

    @property
    def false_alarm(self) -> float:
        """An upper bound on the probability that any correct mechanism was contradicted."""
        correct = sum(
            isinstance(result.case.claim, ProvenClaim) and result.case.planted is None
            for result in self.results
        )
        return min(1.0, correct * (1 - self.confidence))

    def to_json(self) -> dict[str, Any]:
        """All of it, as plain data."""
        found = None if self.inversion is None else self.inversion.recoveries
        return {
            "seed": self.seed,
            "confidence_of_each_bound": self.confidence,
            "false_alarm_probability_of_each_case_at_most": 1 - self.confidence,
            "false_alarm_probability_of_this_run_at_most": self.false_alarm,
            "reading": "Where epsilon is null, nothing limits it.",
            "audits": [result.to_json() for result in self.results],
            "inversion": None if found is None else [recovery.to_json() for recovery in found],
        }


def run_suite(
    selection: Selection,
    *,
    trials: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    delta: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda _, __: None,
) -> Suite:
    """Run what was selected, one after the other.

    Args:
        selection: From `select`.
        trials: Of each world; by default what each case needs.
        confidence: Of each bound.
        delta: Of all bounds; by default where each case is easiest to judge.
        seed: Fixes all random numbers but those of exact noise.
        on_progress: Called with the share of the work that is done, and what is being done.

    Raises:
        ArgumentError: A value is out of range.
    """
    check_settings(trials=trials, confidence=confidence, delta=delta, seed=seed)
    cases = [make() for make in selection.cases.values()]
    fewer = 2 if selection.is_quick else 1
    counts = [case.trials // fewer if trials is None else trials for case in cases]
    costs = [case.cost * count * 2e-6 for case, count in zip(cases, counts, strict=True)]
    total = sum(costs) + (_INVERSION_SECONDS if selection.inversion else 0.0) or 1.0
    done, results = 0.0, []
    for case, count, cost in zip(cases, counts, costs, strict=True):

        def report(
            share: float, start: float = done, cost: float = cost, name: str = case.name
        ) -> None:
            on_progress((start + share * cost) / total, name)

        report(0.0)
        results.append(
            audit(case, trials=count, confidence=confidence, delta=delta, seed=seed,
                  on_progress=report)
        )  # fmt: skip
        done += cost
    found = None
    if selection.inversion:
        found = invert(
            per_class=1 if selection.is_quick else 10,
            seed=seed,
            on_progress=lambda share: on_progress(
                (done + share * _INVERSION_SECONDS) / total, INVERSION
            ),
        )
    on_progress(1.0, "done")
    return Suite(tuple(results), found, confidence, seed)

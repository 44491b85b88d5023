"""Audits of newer papers' claims about projections, in the tables of the audits of the paper's.

The cases are those of `paper.projection_cases`, planted errors among them: they show that
the attacks see what they are meant to.
"""

from __future__ import annotations

from dataclasses import replace

from diffsketch.auditing import audit
from diffsketch.errors import check
from diffsketch.privacy.claim import Basis, Claim, Epsilon
from paper.experiments import Experiment, Results
from paper.figures import Fact, Figure, measured_of, texts
from paper.figures_private import AuditedCase, audit_table
from paper.measurements import (
    Found,
    Given,
    MeasurementSettings,
    Progress,
    Whole,
)
from paper.projection_cases import PROJECTIONS, SGM


class _Projection(MeasurementSettings):
    case: str
    trials: Whole
    confidence: float


def measure_successor(settings: Given, *, seed: int, on_progress: Progress) -> Found:
    """One audit of `PROJECTIONS`, by its name `case`, with `trials` and `confidence`."""
    own = _Projection.read(settings)
    check(own.case in PROJECTIONS, "case", f"be one of {', '.join(PROJECTIONS)}", own.case)
    result = audit(
        PROJECTIONS[own.case](), trials=own.trials, confidence=own.confidence, seed=seed,
        on_progress=on_progress,
    )  # fmt: skip
    return {**result.to_json(), "change": "added"}


def draw_successors(experiment: Experiment, results: Results) -> Figure:
    """Tables: what the papers claim, what is proven, and the errors planted in the latter.

    A proven case with a planted error is wrong by design, and counted apart.
    """
    cases = [AuditedCase(each) for each in measured_of(experiment, results)]
    entry, name = texts()["successors"], experiment.name
    groups: dict[str, list[AuditedCase]] = {"claimed": [], "proven": [], "planted": []}
    for case in cases:
        planted = case.data["planted_error"] is not None
        groups["planted" if planted else "proven" if case.proven else "claimed"].append(case)
    wrong = {key: [case for case in some if _is_wrong(case)] for key, some in groups.items()}
    lead = [
        entry[key].format(wrong=len(wrong[key]), count=len(some))
        for key, some in groups.items()
        if some
    ]
    facts: dict[str, Fact] = {"seeds": 1, "reduced": experiment.reduced}
    for case in cases:
        facts |= case.facts | {
            f"limit/{case.name}": case.limit,
            f"basis/{case.name}": str(case.stated.basis),
            f"wrong/{case.name}": _is_wrong(case),
        }
    facts |= {f"{key}/wrong": len(some) for key, some in wrong.items()}
    facts |= {f"{key}/count": len(some) for key, some in groups.items()}
    tables = {
        key: audit_table(f"{name}-{key}", entry[f"title-{key}"], some)
        for key, some in groups.items()
        if some
    }
    shown = (tables.pop("claimed"),) if "claimed" in tables else ()
    epsilons = _epsilons()
    facts |= {f"setting/{key}": float(value) for key, value in epsilons.items()}
    said = {key: value.text("symbols") for key, value in epsilons.items()}
    text = tuple(one.format(numbers=SGM.size, std=SGM.std, **said) for one in entry["text"])
    return Figure("; ".join(lead) + ".", shown, tuple(tables.values()), text, facts)


def _epsilons() -> dict[str, Epsilon]:
    """Epsilons of one setting: claimed by the paper, of a secret projection, and repaired."""
    claims: dict[str, Claim] = {
        "claimed": SGM.claim_for(1),
        "secret": SGM.secret_claim(),
        "repaired": replace(SGM, projected_clip=SGM.clip).claim_for(1),
    }
    return {key: claim.epsilon(delta=SGM.delta, rounds=1) for key, claim in claims.items()}


def _is_wrong(case: AuditedCase) -> bool:
    """Whether more was measured than is stated, or than the exact limit of what is stated."""
    limit = case.limit if case.stated.basis is Basis.PROVEN else None
    return case.refuted or (limit is not None and float(case.measured) > limit)

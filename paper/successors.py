"""Audits of newer papers' claims about projections, in the tables of the audits of the paper's.

The cases are those of `paper.projections`, planted errors among them: they show that
the attacks see what they are meant to.
"""

from __future__ import annotations

from diffsketch.privacy.claim import Claim
from paper.experiments import Experiment, Results
from paper.figures import Figure, draw
from paper.figures_private import cases_of
from paper.projections import DELTA, SGM


def draw_successors(experiment: Experiment, results: Results) -> Figure:
    """Tables: what the papers claim, what is proven, and the errors planted in the latter.

    A proven case with a planted error is wrong by design, and counted apart.
    """
    cases = cases_of(experiment, results)
    for case in cases:
        case["group"] = "proven" if case["proven"] else "claimed"
        if case["planted"]:
            case["group"] = "planted"
    groups = []
    for name in ("claimed", "proven", "planted"):
        wrong = [case["wrong"] for case in cases if case["group"] == name]
        groups.append({"name": name, "count": len(wrong), "wrong": sum(wrong)})
    claims: dict[str, Claim] = {
        "claimed": SGM.claimed,
        "secret": SGM.secret,
        "repaired": SGM.repaired,
    }
    epsilons = {key: claim.epsilon(delta=DELTA, rounds=1) for key, claim in claims.items()}
    settings = [{"name": key, "epsilon": epsilon} for key, epsilon in epsilons.items()]
    records = {"cases": cases, "groups": groups, "settings": settings}
    shown = {key: epsilon.text("symbols") for key, epsilon in epsilons.items()}
    return draw(experiment, records, numbers=SGM.size, std=SGM.std, **shown)

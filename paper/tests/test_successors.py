"""The successors' audits: read, measured and counted; what is wrong by design is counted apart."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.errors import ArgumentError
from paper.audits import measure_audit
from paper.experiments import Results, load
from paper.projections import projection_cases
from paper.successors import draw_successors

EXPERIMENT = load("successors", reduced=False)
CASES = projection_cases()


def results(found: dict[str, Any]) -> Results:
    """One result of an audit for all, with the numbers of each case as `found` has them."""
    made = {}
    for each in EXPERIMENT.measurements:
        case = CASES[str(each.settings["case"])]
        measured, limit = found.get(case.name, (0.1, None))
        claimed = case.claim.epsilon(delta=1e-5, rounds=1).to_json()
        stated = {"epsilon": claimed.pop("value"), **claimed}
        (job,) = EXPERIMENT.jobs_of(each)
        made[job] = {
            "title": case.title, "adversary": str(case.game.adversary), "change": "added",
            "planted_error": case.planted, "claimed": stated, "confidence": 0.999,
            "measured_lower_bound": {**stated, "epsilon": measured, "basis": "measured"},
            "best_possible": None if limit is None else {"epsilon": limit}, "verdict": "",
            "trials_per_world": 100,
        }  # fmt: skip
    return made


def test_every_case_is_measured_once() -> None:
    assert [each.settings["case"] for each in EXPERIMENT.measurements] == list(CASES)


def test_what_is_wrong_is_counted_and_nothing_else() -> None:
    nothing = draw_successors(EXPERIMENT, results({})).facts
    counts = {key: nothing[f"{key}/wrong"] for key in ("claimed", "proven", "planted")}
    assert counts == {"claimed": 0, "proven": 0, "planted": 0}
    found = {
        "sgm-step": (9.0, 20.0),  # above the claim
        "sgm-known": (2.9, 0.1),  # below it: a paper's claim is judged by itself
        "mixing-secret": (0.5, 0.4),  # above what is exact
        "sgm-secret+leaked-key": (8.0, None),
    }
    figure = draw_successors(EXPERIMENT, results(found))
    counts = {key: figure.facts[f"{key}/wrong"] for key in ("claimed", "proven", "planted")}
    assert counts == {"claimed": 1, "proven": 1, "planted": 1}
    assert (figure.facts["claimed/count"], figure.facts["planted/count"]) == (3, 4)
    assert [len(each.rows) for each in (*figure.exhibits, *figure.proven)] == [3, 3, 4]  # type: ignore[union-attr]
    assert any("20.2" in text and "secret-key" in text for text in figure.text)


def test_measured_as_by_the_audit() -> None:
    given = {"case": "sgm-step-paper", "trials": 2000, "confidence": 0.999}
    found = measure_audit(given, seed=0, on_progress=lambda _: None)
    assert found["verdict"] == "contradicts the claim"
    assert found["claimed"]["epsilon"] == pytest.approx(1.423, abs=0.001)
    with pytest.raises(ArgumentError, match=r"case must be one of .*sgm-step"):
        measure_audit({**given, "case": "sgm"}, seed=0, on_progress=lambda _: None)

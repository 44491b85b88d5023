"""Audits as measurements, and their drawing."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from diffsketch.errors import ArgumentError
from diffsketch.privacy.claim import Basis, Unit
from diffsketch.reproduction.drawings.audits import draw, epsilon_of
from diffsketch.reproduction.experiment import Experiment, Measurement
from diffsketch.reproduction.loading import load
from diffsketch.reproduction.measurements.audits import case_of, measure
from tests.reproduction.made_up import checked

COMMON: dict[str, Any] = {"round": 2, "trials": 1000, "confidence": 0.99}
BARE = {**COMMON, "case": "padded", "rows": 7, "cols": 2, "padding": 0, "change": "alpha"}
TABLE = {**COMMON, "rows": 2, "cols": 5}
PROVEN = {**TABLE, "case": "sketch-laplace", "per_round": 1.0, "clip": 0.02, "change": "largest"}
CLIENT = {**TABLE, "case": "sketch-gaussian", "clip": 1.0, "noise_multiplier": 1.0,
          "change": "client"}  # fmt: skip
INVERSION: dict[str, Any] = {"case": "inversion", "images": 1}


def experiment() -> Experiment:
    named = {"bare-known": BARE, "proven": PROVEN, "client": CLIENT, "inversion": INVERSION}
    return Experiment(
        "audit", "t", "p", "s", "audit", {}, seeds=1,
        measurements=tuple(Measurement(name, "audit", one) for name, one in named.items()),
    )  # fmt: skip


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    found = {}
    for job in experiment().jobs:
        if job.settings != INVERSION:
            data = measure(job.settings, seed=0, on_progress=lambda _: None)
            found[job] = json.loads(json.dumps(data, allow_nan=False))
            continue
        claimed = {"epsilon": 0.5, "delta": 0.0, "rounds": 1, "basis": "claimed",
                   "unit": "coordinate", "relation": "replace", "trust": "local"}  # fmt: skip
        bare = {"message": "bare", "claimed_by_theorem_1": claimed, "guaranteed": None,
                "mean_similarity": 0.9, "least_similarity": 0.8, "labels_right": 1.0}  # fmt: skip
        found[job] = {"images": 1, "inversion": [bare]}
    return found


def test_drawing(results: dict[Any, Any]) -> None:
    drawn = checked(draw(experiment(), results))
    facts = drawn.facts
    assert facts["refuted/bare-known"] is True
    assert facts["limit/bare-known"] is None
    assert float(facts["claimed/bare-known"] or 0) < float(facts["lower/bare-known"] or 0)
    assert (facts["broken"], facts["claims"]) == (1, 1)
    assert facts["proven-stands"] is True
    assert facts["inversion/similarity/bare"] == 0.9
    assert drawn.lead.startswith("1 of 1 claimed")
    assert any("0.03 for any of the 3" in text for text in drawn.text)
    names = [exhibit.name for exhibit in drawn.proven]
    assert names == ["audit-proven-claims", "audit-proven-cases"]


def test_a_proven_bound_that_is_exceeded_is_said(results: dict[Any, Any]) -> None:
    changed = {}
    for job, data in results.items():
        if job.settings.get("clip") == 0.02:
            bound = {**data["measured_lower_bound"], "epsilon": 1.5}
            changed[job] = {**data, "measured_lower_bound": bound}
        else:
            changed[job] = data
    facts = draw(experiment(), changed).facts
    assert facts["proven-stands"] is False
    assert facts["broken"] == 1  # of the claims


def test_epsilons_keep_their_words(results: dict[Any, Any]) -> None:
    data = results[experiment().jobs[2]]
    measured = epsilon_of(data["measured_lower_bound"])
    assert measured.basis is Basis.MEASURED
    assert measured.scope.unit is Unit.CLIENT
    assert epsilon_of({**data["claimed"], "epsilon": None}).value == float("inf")


def test_every_case_of_the_settings_file_can_be_made() -> None:
    """With vectors that Theorem 1 accepts in the tables of the file: one stands out."""
    vectors = torch.randn(2, 7850, generator=torch.Generator().manual_seed(0))
    vectors[0, :20] = 60.0
    cases = {
        each.name: case_of(each.settings, vectors)
        for each in load("audit", reduced=False).measurements
        if each.settings["case"] != "inversion"
    }
    assert len(cases) == 17
    assert len({case.name for case in cases.values()}) >= 16


def test_settings_are_checked() -> None:
    with pytest.raises(ArgumentError, match="case must"):
        case_of({**BARE, "case": "other"}, torch.zeros(2, 10))
    with pytest.raises(ArgumentError, match="'typo'"):
        measure({**BARE, "typo": 1}, seed=0, on_progress=lambda _: None)

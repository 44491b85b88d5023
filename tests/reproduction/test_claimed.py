"""Drawings of Theorem 1's claims: as a histogram, and over the compression."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from diffsketch.pages.exhibits import Plot, Table
from diffsketch.privacy.claim import Epsilon
from diffsketch.reproduction.drawings import local_epsilon, privacy_communication
from diffsketch.reproduction.experiment import Experiment, Measurement
from diffsketch.reproduction.measurements.local_epsilon import measure
from tests.reproduction.made_up import checked

SETTINGS: dict[str, Any] = {
    "task": "mnist", "method": "sketch", "rows": 7, "cols": 15, "rounds": 2, "table_rows": 7,
    "widths": "4, 15, 112", "paddings": "0, 20", "requirements": "0.1, 1", "proven_hashes": 1,
}  # fmt: skip
AUDIT: dict[str, Any] = {
    "case": "padded",
    "rows": 7,
    "cols": 15,
    "padding": 20,
    "change": "largest",
}
MEASURED = Measurement("MNIST", "local-epsilon", SETTINGS)
AUDITED = Measurement("padded 20n, 7 x 15", "audit", AUDIT, seeds=1)
WORDS = {"unit": "coordinate", "relation": "replace", "trust": "local", "rounds": 1}


def experiment(drawing: str) -> Experiment:
    return Experiment(
        drawing, "t", "Figure 6", "s", drawing, {}, seeds=2, measurements=(MEASURED, AUDITED)
    )


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    whole = experiment("local-epsilon")
    found: dict[Any, Any] = {
        job: json.loads(
            json.dumps(measure(job.settings, seed=job.seed, on_progress=lambda _: None))
        )
        for job in whole.measured(MEASURED)
    }
    (job,) = whole.measured(AUDITED)
    found[job] = {
        "title": "DiffSketch", "change": "largest", "adversary": "knows", "confidence": 0.99,
        "claimed": {"epsilon": 0.2, "delta": 1e-5, "basis": "claimed", **WORDS},
        "measured_lower_bound": {"epsilon": 0.9, "delta": 1e-5, "basis": "measured", **WORDS},
        "best_possible": {"epsilon": None}, "trials_per_world": 100, "verdict": "contradicts",
    }  # fmt: skip
    return found


def test_histogram(results: dict[Any, Any]) -> None:
    drawn = checked(local_epsilon.draw(experiment("local-epsilon"), results))
    tables = [results[job]["tables"] for job in experiment("local-epsilon").measured(MEASURED)]
    shares = [table[0]["needs_noise"]["1"] for table in tables]
    assert drawn.facts["needs-noise/7x4/none/1"] == pytest.approx(sum(shares) / 2)
    assert drawn.facts["needs-noise/7x112/none/1"] == 1  # nothing is claimed there
    assert drawn.facts["lower/padded 20n, 7 x 15"] == 0.9
    assert "at least 0.9 where 0.2 is claimed" in drawn.lead
    histogram = drawn.exhibits[0]
    assert isinstance(histogram, Plot)
    # Shares in the picture and shares without a claim are all messages, but for what lies beyond.
    first = histogram.series[0]
    assert sum(value or 0.0 for value in first.y) == pytest.approx(1.0)
    assert [mark.value for mark in histogram.marks] == [0.1, 1.0]
    # Only with messages of other seeds do the shares change.
    (job, *_) = experiment("local-epsilon").measured(MEASURED)
    other = json.loads(json.dumps(results[job]))
    other["tables"][0]["needs_noise"]["1"] += 0.5
    facts = local_epsilon.draw(experiment("local-epsilon"), {**results, job: other}).facts
    assert facts["needs-noise/7x4/none/1"] == pytest.approx(sum(shares) / 2 + 0.25)


def test_compression(results: dict[Any, Any]) -> None:
    drawn = checked(privacy_communication.draw(experiment("privacy-communication"), results))
    facts = drawn.facts
    assert "of 1 audited messages, 1 have more" in drawn.lead
    assert facts["finite/280x"] == 1
    assert facts["finite/10x"] == 0
    assert facts["epsilon/10x"] is None
    assert facts["noised/10x"] == 1
    assert float(facts["MNIST/20n/epsilon/280x"] or 0) < float(facts["epsilon/280x"] or 0)
    proven = drawn.proven[0]
    assert isinstance(proven, Plot)
    points = [series for series in proven.series if series.kind == "points"]
    assert [(series.x, series.y) for series in points] == [((7850 / 105,), (0.9,))]
    assert all(series.epsilon is not None for series in proven.series)
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert any(isinstance(cell, Epsilon) for row in table.rows for cell in row)


def test_without_audits(results: dict[Any, Any]) -> None:
    alone = replace(experiment("local-epsilon"), measurements=(MEASURED,))
    drawn = local_epsilon.draw(alone, results)
    assert "audit" not in drawn.lead
    assert len(drawn.proven) == 1

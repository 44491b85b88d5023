"""Figures of measurements: known results in, known numbers out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest

from diffsketch.pages.exhibits import Plot, Table
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS
from paper.audits import measure_audit
from paper.drawings import (
    densities,
    draw_audits,
    draw_claims,
    draw_cpsgd,
    draw_datasets,
    draw_distributions,
    epsilon_of,
)
from paper.experiments import (
    MEASUREMENTS,
    Experiment,
    Measurement,
    Results,
    load,
)
from paper.measurements import measure_local_epsilon
from paper.tests.made_up import checked, experiment_of

COMMON: dict[str, Any] = {"round": 2, "trials": 1000, "confidence": 0.99}
BARE = {**COMMON, "case": "padded", "rows": 7, "cols": 2, "padding": 0, "change": "alpha"}
TABLE = {**COMMON, "rows": 2, "cols": 5}
PROVEN = {**TABLE, "case": "sketch-laplace", "per_round": 1.0, "clip": 0.02, "change": "largest"}
CLIENT = {**TABLE, "case": "sketch-laplace", "per_round": 1.0, "change": "client"}
INVERSION: dict[str, Any] = {"case": "inversion", "batches": 1}


def audits() -> Experiment:
    named = {"bare-known": BARE, "proven": PROVEN, "client": CLIENT, "inversion": INVERSION}
    cases = tuple(Measurement(name, "audit", one) for name, one in named.items())
    return experiment_of("audit", "audit", seeds=1, measurements=cases)


@pytest.fixture(scope="module")
def audited() -> dict[Any, Any]:
    found = {}
    for job in audits().jobs:
        if job.settings != INVERSION:
            data = measure_audit(job.settings, seed=0, on_progress=lambda _: None)
            found[job] = json.loads(json.dumps(data, allow_nan=False))
            continue
        claimed = {"epsilon": 0.5, "delta": 0.0, "rounds": 1, "basis": "claimed",
                   "unit": "coordinate", "relation": "replace", "trust": "local"}  # fmt: skip
        bare = {"message": "bare", "claimed_by_theorem_1": claimed, "mean_similarity": 0.9,
                "least_similarity": 0.8, "labels_right": 1.0}  # fmt: skip
        found[job] = {"batches": [bare]}
    return found


@pytest.mark.slow
def test_drawing(audited: dict[Any, Any]) -> None:
    drawn = checked(draw_audits(audits(), audited))
    facts = drawn.facts
    assert facts["limit/bare-known"] is None
    assert float(facts["claimed/bare-known"] or 0) < float(facts["lower/bare-known"] or 0)
    assert (facts["basis/bare-known"], facts["basis/proven"]) == ("claimed", "proven")
    assert facts["inversion/similarity/bare"] == 0.9
    names = [exhibit.name for exhibit in drawn.proven]
    assert names == ["audit-proven-claims", "audit-proven-cases"]


def test_epsilons_of_audits_are_read_with_all_that_they_mean() -> None:
    data = {"epsilon": 0.5, "delta": 1e-5, "rounds": 1, "basis": "measured", "unit": "client",
            "relation": "replace", "trust": "local"}  # fmt: skip
    measured = epsilon_of(data)
    assert (measured.basis, measured.scope.unit) == (Basis.MEASURED, Unit.CLIENT)
    assert epsilon_of({**data, "epsilon": None}).value == float("inf")


@pytest.mark.parametrize(("bound", "holds"), [(0.1, True), (0.3, False), (math.inf, False)])
def test_secret_hashes(bound: float, holds: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [[2000, 5, 2], [7850, 7, 15]]
    whole = experiment_of("audit", "audit", seeds=1, options={"secret": sizes})
    assert draw_audits(whole, {}).facts["secret/holds"] is True
    monkeypatch.setattr("paper.drawings.epsilon_bound", lambda *_, **__: bound)
    drawn = checked(draw_audits(whole, {}))
    assert drawn.facts["secret/holds"] is holds
    assert drawn.facts["secret/claimed/5 x 2 of 2,000"] == pytest.approx(0.239, rel=0.01)
    (table,) = (one for one in drawn.exhibits if one.name == "audit-secret")
    assert isinstance(table, Table)
    assert isinstance(table.rows[0][1], Epsilon)
    assert table.rows[0][1].basis is Basis.CLAIMED
    assert table.rows[1][1:] == (None, None if bound == math.inf else bound)  # and no guarantee


SETTINGS: dict[str, Any] = {
    "task": "mnist", "method": "sketch", "rows": 7, "cols": 15, "rounds": 2, "table_rows": 7,
    "widths": "4, 15, 112", "paddings": "0, 20", "requirements": "0.1, 1", "least": 20,
    "proven_hashes": 1,
}  # fmt: skip
MEASURED = Measurement("MNIST", "local-epsilon", SETTINGS)


def experiment(drawing: str) -> Experiment:
    return experiment_of(drawing, drawing, seeds=2, measurements=(MEASURED,))


@pytest.fixture(scope="module")
def results() -> dict[Any, Any]:
    whole = experiment("local-epsilon")
    found: dict[Any, Any] = {}
    for job in whole.jobs_of(MEASURED):
        data = measure_local_epsilon(job.settings, seed=job.seed, on_progress=lambda _: None)
        found[job] = json.loads(json.dumps(data))
    return found


def test_histogram(results: dict[Any, Any]) -> None:
    drawn = checked(draw_claims(experiment("local-epsilon"), results))
    tables = [results[job]["tables"] for job in experiment("local-epsilon").jobs_of(MEASURED)]
    shares = [table[0]["needs_noise"]["1"] for table in tables]
    assert drawn.facts["needs-noise/MNIST/7x4/none/1"] == pytest.approx(sum(shares) / 2)
    assert drawn.facts["needs-noise/MNIST/7x112/none/1"] == 1  # nothing is claimed there
    histogram = drawn.exhibits[0]
    assert isinstance(histogram, Plot)
    # Shares in the picture and shares without a claim are all messages, but for what lies beyond.
    first = histogram.series[0]
    assert sum(value or 0.0 for value in first.y) == pytest.approx(1.0)
    assert [mark.value for mark in histogram.marks] == [0.1, 1.0]
    assert len(drawn.proven) == 1
    # Only with messages of other seeds do the shares change.
    (job, *_) = experiment("local-epsilon").jobs_of(MEASURED)
    other = json.loads(json.dumps(results[job]))
    other["tables"][0]["needs_noise"]["1"] += 0.5
    facts = draw_claims(experiment("local-epsilon"), {**results, job: other}).facts
    assert facts["needs-noise/MNIST/7x4/none/1"] == pytest.approx(sum(shares) / 2 + 0.25)


def test_compression(results: dict[Any, Any]) -> None:
    drawn = checked(draw_claims(experiment("privacy-communication"), results))
    facts = drawn.facts
    assert facts["finite/280x"] == 1
    assert facts["finite/10x"] == 0
    assert facts["epsilon/10x"] is None
    assert facts["MNIST/none/noised/10x"] == 1
    assert float(facts["MNIST/20n/epsilon/280x"] or 0) < float(facts["epsilon/280x"] or 0)
    proven = drawn.proven[0]
    assert isinstance(proven, Plot)
    assert all(series.epsilon is not None for series in proven.series)
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert any(isinstance(cell, Epsilon) for row in table.rows for cell in row)


SHAPES: dict[str, Any] = {"task": "mnist", "method": "none", "rounds": 5, "vectors": 3}


def measured_for(experiment: Experiment) -> Results:
    return {
        job: resolve_name(MEASUREMENTS[job.kind])(
            job.settings, seed=job.seed, on_progress=lambda _: None
        )
        for job in experiment.jobs
    }


@pytest.mark.slow
def test_distributions() -> None:
    measurement = Measurement("gradients", "distributions", SHAPES)
    other = Measurement("DiffSketch", "distributions", {**SHAPES, "rounds": 6}, seeds=1)
    experiment = experiment_of("gradients", "distributions", seeds=2,
                               measurements=(measurement, other),
                               options={"what": "gradients"})  # fmt: skip
    (measured,) = measured_for(replace(experiment, seeds=1, measurements=(measurement,))).values()
    second, third = (json.loads(json.dumps(measured)) for _ in range(2))
    second["vectors"][-1]["kurtosis"] += 2.0
    for vector in third["vectors"]:
        vector["ratio"] = 7.0
    jobs = (*experiment.jobs_of(measurement), *experiment.jobs_of(other))
    results = dict(zip(jobs, (measured, second, third), strict=True))
    drawn = checked(draw_distributions(experiment, results))
    kurtosis = np.mean([vector["kurtosis"] for vector in measured["vectors"]])
    assert drawn.facts["kurtosis"] == pytest.approx(kurtosis + 1 / 3)  # one of three, in one of two
    assert drawn.facts["zeros"] == pytest.approx(np.mean([v["zeros"] for v in measured["vectors"]]))
    assert drawn.facts["seeds"] == 2
    assert drawn.facts["DiffSketch/ratio"] == 7.0 != drawn.facts["ratio"]
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert [row[:2] for row in table.rows] == [("gradients", 6), ("DiffSketch", 3)]
    width = measured["edges"][1] - measured["edges"][0]
    for vector in measured["vectors"]:
        inside = sum(vector["counts"]) / 7850
        *bins, end = densities(measured, vector)
        assert sum(each["density"] for each in bins) * width == pytest.approx(inside)
        assert inside > 0.99
        assert end["density"] is None


def test_drawing_of_cpsgd() -> None:
    drawn = checked(draw_cpsgd(load("cpsgd-parameters", reduced=False), {}))
    assert drawn.facts["5, 4/compression"] == 8
    assert drawn.facts["5, 4/round"] == math.inf
    assert 0 < float(drawn.facts["5, 4/everyone"] or 0) < 5
    (table,) = drawn.exhibits
    assert isinstance(table, Table)
    assert [row[4] for row in table.rows] == [4, 5, 4, 5]
    assert [row[6] for row in table.rows] == ["2.91", "2.75", "4.93", "4.89"]
    proven = {drawn.facts[f"{row.claimed:g}, {row.bits}/round"] for row in PAPER_SETTINGS}
    assert proven == {math.inf}  # of the devices of a round


@pytest.mark.slow
def test_data_sets_have_the_paper_s_sizes() -> None:
    drawn = draw_datasets(load("datasets", reduced=False), {})
    assert drawn.facts["Shakespeare/parameters"] == 39_720
    assert drawn.facts["Shakespeare/workers"] == 46
    assert drawn.facts["Shakespeare/mean"] == pytest.approx(742, rel=0.01)
    assert drawn.facts["Shakespeare/stdev"] == pytest.approx(548, rel=0.01)
    assert drawn.facts["MNIST*/workers"] == 6000
    (table,) = drawn.exhibits
    assert isinstance(table, Table)
    assert table.rows[0][:3] == ("MNIST", 10, 7850)

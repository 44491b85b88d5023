"""Figures of distributions, Theorem 2, data sets and cpSGD: known results in, known numbers out."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from diffsketch.pages.exhibits import Table
from diffsketch.privacy.claim import Basis, Epsilon
from paper.experiments import (
    MEASUREMENTS,
    Experiment,
    Measurement,
    Results,
    function_of,
    load,
)
from paper.figures_measured import (
    densities,
    draw_convergence,
    draw_cpsgd,
    draw_datasets,
    draw_distributions,
    slope,
)
from paper.tests.made_up import checked, experiment_of

SHAPES: dict[str, Any] = {"task": "mnist", "method": "none", "rounds": 5, "vectors": 3}
CONVEX: dict[str, Any] = {"rounds": 20, "step": 0.2, "rows": 3, "cols": 40, "failure": 0.1,
                          "comparator_steps": 3}  # fmt: skip


def results_of(experiment: Experiment) -> Results:
    return {
        job: function_of(MEASUREMENTS[job.kind])(
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
    (measured,) = results_of(replace(experiment, seeds=1, measurements=(measurement,))).values()
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
    for table in drawn.exhibits[-2:]:
        assert isinstance(table, Table)
        assert len(table.rows) == 3
    width = measured["edges"][1] - measured["edges"][0]
    for vector in measured["vectors"]:
        inside = sum(vector["counts"]) / 7850
        *bins, end = densities(measured, vector)
        assert sum(each["density"] for each in bins) * width == pytest.approx(inside)
        assert inside > 0.99
        assert end["density"] is None


def test_slope_of_a_power() -> None:
    rounds = [1, 10, 100, 1000]
    assert slope(rounds, [3 * r**-0.5 for r in rounds]) == pytest.approx(-0.5)
    assert slope(rounds, [1.0, 1.0, 0.0, 1.0]) is None


@pytest.mark.slow
def test_drawing_counts_gaps_above_the_bound() -> None:
    sketched = Measurement("3 x 40", "convergence", CONVEX)
    plain = Measurement("uncompressed", "convergence", {**CONVEX, "rows": 0})
    experiment = experiment_of(
        "convergence", "convergence", seeds=1, measurements=(plain, sketched)
    )
    (measured,) = results_of(replace(experiment, measurements=(sketched,))).values()
    bare = {k: v for k, v in measured.items() if k not in ("theorem2", "error", "variance")}
    results = {experiment.jobs_of(sketched)[0]: measured, experiment.jobs_of(plain)[0]: bare}
    drawn = draw_convergence(experiment, results)
    assert drawn.facts["bound-holds"] == 1
    assert drawn.facts["gap"] == pytest.approx(measured["gap"][-1])
    checked(drawn)
    broken = {**measured, "theorem2": [*measured["theorem2"][:-1], 0.0]}
    drawn = draw_convergence(experiment, {**results, experiment.jobs_of(sketched)[0]: broken})
    places = len(measured["gap"])
    assert drawn.facts["bound-holds"] == pytest.approx(1 - 1 / places)


def test_drawing_of_cpsgd() -> None:
    experiment = load("cpsgd-parameters", reduced=False)
    results = results_of(experiment)
    drawn = checked(draw_cpsgd(experiment, results))
    assert drawn.facts["with-a-proof"] == 0
    assert drawn.facts["5, 4/bits"] == 4
    assert drawn.facts["5, 4/epsilon"] is None
    assert isinstance(drawn.facts["5, 4/epsilon-all"], float)
    proven = [row[6] for row in drawn.proven[0].rows]  # type: ignore[union-attr]
    bases = {cell.basis for cell in proven if isinstance(cell, Epsilon)}
    assert bases == {Basis.NONE, Basis.PROVEN}


@pytest.mark.slow
def test_data_sets_have_the_paper_s_sizes() -> None:
    experiment = load("datasets", reduced=False)
    results = results_of(experiment)
    drawn = draw_datasets(experiment, results)
    assert drawn.facts["Shakespeare/parameters"] == 39_720
    assert drawn.facts["Shakespeare/workers"] == 46
    assert drawn.facts["Shakespeare/mean"] == pytest.approx(742, rel=0.01)
    assert drawn.facts["Shakespeare/stdev"] == pytest.approx(548, rel=0.01)
    assert drawn.facts["MNIST*/workers"] == 6000
    (table,) = drawn.exhibits
    assert isinstance(table, Table)
    assert [row[:4] for row in table.rows[:2]] == [
        ("MNIST", "paper", "10", "7,850"), ("MNIST", "here", 10, 7850),
    ]  # fmt: skip

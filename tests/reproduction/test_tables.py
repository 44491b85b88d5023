"""The tables of data sets and of cpSGD's parameters."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from diffsketch.pages.exhibits import Table, check_exhibit
from diffsketch.privacy.claim import Basis, Epsilon, ProvenClaim
from diffsketch.privacy.mechanisms.cpsgd import BinomialMechanism
from diffsketch.reproduction.drawings.tables import draw_cpsgd, draw_datasets
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.loading import load
from diffsketch.reproduction.measurements import cpsgd_parameters, datasets

MECHANISM = BinomialMechanism(
    dim=7850, clip=1.0, limit=1.0, levels=12, trials=4, cohort=10, delta=1e-5
)
SETTINGS = {"dim": 7850, "cohorts": "10, 6000", "delta": 1e-5, "limit": 1.0, "clip": 1.0}


def test_fewest_trials_suffice_and_one_less_does_not() -> None:
    trials = cpsgd_parameters.least_trials(MECHANISM, 5.0)
    assert trials is not None
    for count, enough in ((trials, True), (trials - 1, False)):
        claim = replace(MECHANISM, trials=count).claim
        assert (float(claim.epsilon(delta=1e-5, rounds=1)) <= 5.0) is enough
    assert cpsgd_parameters.least_trials(replace(MECHANISM, delta=1e-300), 1e-9) is None


def test_condition_is_that_of_the_mechanism() -> None:
    found = cpsgd_parameters.measure(SETTINGS, seed=0, on_progress=lambda _: None)
    json.dumps(found, allow_nan=False)
    few, everyone = found["rows"][0]["cohorts"]
    assert few["variance_needed"] == pytest.approx(23 * math.log(10 * 7850 / 1e-5))
    least = math.ceil(few["variance_needed"] / 2.5)  # 10 members of m / 4
    # Half of delta goes to the rounding where that is better: it alone then needs more.
    assert isinstance(replace(MECHANISM, trials=least).claim, ProvenClaim)
    assert not isinstance(replace(MECHANISM, trials=least - 1).claim, ProvenClaim)
    assert few["epsilon"] is None
    assert few["variance"] == pytest.approx(10)
    assert 0 < everyone["epsilon"] < 5
    assert found["rows"][0]["compression"] == 8


def test_drawing_of_cpsgd() -> None:
    experiment = load("cpsgd-parameters", reduced=False)
    results = {
        job: cpsgd_parameters.measure(job.settings, seed=0, on_progress=lambda _: None)
        for job in experiment.jobs
    }
    drawn = draw_cpsgd(experiment, results)
    assert drawn.facts["with-a-proof"] == 0
    assert drawn.facts["5, 4/bits"] == 4
    assert drawn.facts["5, 4/epsilon"] is None
    assert isinstance(drawn.facts["5, 4/epsilon-all"], float)
    assert "none of the 4" in drawn.lead
    for table in (*drawn.exhibits, *drawn.proven):
        assert isinstance(table, Table)
        check_exhibit(table)
    proven = [row[6] for row in drawn.proven[0].rows]  # type: ignore[union-attr]
    bases = {cell.basis for cell in proven if isinstance(cell, Epsilon)}
    assert bases == {Basis.NONE, Basis.PROVEN}


def test_data_sets_have_the_paper_s_sizes() -> None:
    experiment = load("datasets", reduced=False)
    results = {
        job: datasets.measure(job.settings, seed=0, on_progress=lambda _: None)
        for job in experiment.jobs
    }
    drawn = draw_datasets(experiment, results)
    assert drawn.facts["Shakespeare/parameters"] == 39_720
    assert drawn.facts["Shakespeare/workers"] == 46
    assert drawn.facts["Shakespeare/mean"] == pytest.approx(742, rel=0.01)
    assert drawn.facts["Shakespeare/stdev"] == pytest.approx(548, rel=0.01)
    assert drawn.facts["MNIST*/workers"] == 6000
    assert drawn.facts["equal"] == 3
    other = _with_paper(experiment, {**experiment.paper, "MNIST": "11; 7,850; 200; 0"})
    assert draw_datasets(other, results).facts["equal"] == 2


def _with_paper(experiment: Experiment, paper: dict[str, str]) -> Experiment:
    return replace(experiment, paper=paper)

"""Shapes of vectors, measured and drawn."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from diffsketch.errors import ArgumentError
from diffsketch.pages.exhibits import Table
from diffsketch.reproduction.drawings.distributions import density, draw
from diffsketch.reproduction.experiment import Experiment, Measurement
from diffsketch.reproduction.measurements.distributions import measure, shape_of
from tests.reproduction.made_up import checked

SETTINGS: dict[str, Any] = {"task": "mnist", "method": "none", "rounds": 5, "vectors": 3}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    found = measure(SETTINGS, seed=0, on_progress=lambda _: None)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    return found


def test_gaussian_numbers_look_gaussian_and_others_do_not() -> None:
    """Fixed seed. For 20,000 Gaussian numbers KS exceeds 0.0138 with probability 1e-3."""
    generator = np.random.default_rng(5)
    shape = shape_of(generator.normal(3.0, 2.0, 20_000))
    assert shape["ks"] < 0.0138
    assert abs(shape["kurtosis"]) < 0.2  # 5.8 standard errors of sqrt(24 / 20,000)
    assert shape["mean"] == pytest.approx(3, abs=0.1)
    assert shape["sigma"] == pytest.approx(2, abs=0.1)
    assert np.abs(np.array(shape["quantiles"])[30:43] - np.linspace(-0.6, 0.6, 13)).max() < 0.06
    # The controls: heavy tails, and half of the numbers zero.
    heavy = shape_of(generator.laplace(size=20_000))
    assert heavy["ks"] > 0.03
    assert heavy["kurtosis"] > 2
    zeros = shape_of(generator.normal(size=20_000) * (np.arange(20_000) % 2))
    assert zeros["zeros"] == 0.5
    assert zeros["ks"] > 0.2
    assert zeros["ks_nonzero"] < 0.02


def test_shape_of_a_known_vector() -> None:
    vector = np.array([0.0] * 8 + [1.0, -10.0])
    shape = shape_of(vector)
    assert shape["zeros"] == 0.8
    assert shape["alpha"] == pytest.approx(1.9)  # a tenth of the way from 1 to 10
    assert shape["beyond"] == 0.1
    assert shape["largest"] == pytest.approx(10 / vector.std())
    assert shape["ratio"] == pytest.approx(1.9 / vector.std())
    with pytest.raises(ArgumentError, match="differ"):
        shape_of(np.ones(3))


def test_gradients_of_mnist_have_zeros(measured: dict[str, Any]) -> None:
    assert [each["round"] for each in measured["vectors"]] == [0, 2, 4]
    assert all(0.4 < each["zeros"] < 0.6 for each in measured["vectors"])
    assert all(each["ks"] > 0.3 for each in measured["vectors"])


def test_settings_are_checked() -> None:
    with pytest.raises(ArgumentError, match="vectors"):
        measure({**SETTINGS, "vectors": 0}, seed=0, on_progress=lambda _: None)
    with pytest.raises(ArgumentError, match="other"):
        measure({**SETTINGS, "other": 0}, seed=0, on_progress=lambda _: None)


def test_drawing(measured: dict[str, Any]) -> None:
    measurement = Measurement("gradients", "distributions", SETTINGS)
    experiment = Experiment(
        "gradients", "t", "Figure 7", "s", "distributions", {}, seeds=2,
        measurements=(measurement,), options={"what": "gradients"},
    )  # fmt: skip
    second = json.loads(json.dumps(measured))
    second["vectors"][-1]["kurtosis"] += 2.0
    jobs = experiment.measured(measurement)
    drawn = checked(draw(experiment, dict(zip(jobs, (measured, second), strict=True))))
    last = measured["vectors"][-1]
    assert drawn.facts["kurtosis/last"] == pytest.approx(last["kurtosis"] + 1)
    assert drawn.facts["zeros"] == pytest.approx(np.mean([v["zeros"] for v in measured["vectors"]]))
    assert drawn.facts["seeds"] == 2
    assert "far from Gaussian" in drawn.lead
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert len(table.rows) == 3
    width = measured["edges"][1] - measured["edges"][0]
    inside = sum(sum(v["counts"]) for v in measured["vectors"]) / (3 * 7850)
    assert sum(density(measured)) * width == pytest.approx(inside)
    assert inside > 0.99

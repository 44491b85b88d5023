"""Measurements: of vectors, masks and messages."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.privacy.noise import FastNoise
from diffsketch.privacy.theorems import theorem1
from diffsketch.sketch import CountSketch, SketchKey
from paper.measurements import (
    Floats,
    LocalEpsilonSettings,
    MeasurementSettings,
    Whole,
    Wholes,
    claims_of,
    measure_distributions,
    measure_local_epsilon,
    measure_masks,
    needs_noise_at_least,
    observe,
    proven_of,
    shape_of,
    simulation_of,
)


class Options(MeasurementSettings):
    """Settings of no measurement."""

    whole: Whole = 1
    wholes: Wholes = (1,)
    floats: Floats = (1.0,)
    text: str


def test_settings_are_read_strictly() -> None:
    read = Options.read({"whole": 3, "wholes": "4,8", "floats": "1, 2.5", "text": "x"})
    assert (read.whole, read.wholes, read.floats, read.text) == (3, (4, 8), (1.0, 2.5), "x")
    assert Options.read({"floats": 3, "text": "x"}).floats == (3.0,)
    own, run = Options.read_with_run({"task": "mnist", "text": "x"})
    assert (own.text, run) == ("x", {"task": "mnist"})
    with pytest.raises(ArgumentError, match="unknown key 'typo'"):
        Options.read_with_run({"task": "mnist", "text": "x", "typo": 1})
    with pytest.raises(ArgumentError, match="text must be given"):
        Options.read({})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("floats", value) for value in ("1, x", "", "inf", True, None, [1])),
        *(("whole", value) for value in (-1, 2.0, True, "3")),
        ("wholes", "1.5"), ("wholes", "-1"), ("text", 1), ("text", None),
    ],
)  # fmt: skip
def test_other_values_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match=f"{name} "):
        Options.read({"text": "x", name: value})


TRAINING = {"task": "mnist", "method": "diffsketch", "rows": 3, "cols": 4, "rounds": 6,
            "padding": 9}  # fmt: skip


def test_training_is_the_same_as_if_nobody_looked() -> None:
    alone, seen = (simulation_of(TRAINING, seed=1) for _ in range(2))
    for _ in range(6):
        alone.step()
    shares: list[float] = []
    rounds = [
        each.result.round_index for each in observe(seen, [0, 3, 5], on_progress=shares.append)
    ]
    assert rounds == [0, 3, 5]
    assert torch.equal(alone.weights, seen.weights)
    assert shares == [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0]


def test_vectors_are_those_that_were_sent() -> None:
    """For the uncompressed method the sum of the messages is the sum of the vectors."""
    simulation = simulation_of({"task": "mnist", "method": "none", "rounds": 3}, seed=0)
    for each in observe(simulation, range(3)):
        assert each.vectors.shape == (10, 7850)
        assert torch.allclose(each.result.published.total, each.vectors.sum(dim=0), atol=1e-6)
        assert not torch.allclose(each.result.published.total, each.vectors[1:].sum(dim=0))


SHAPES: dict[str, Any] = {"task": "mnist", "method": "none", "rounds": 5, "vectors": 3}


def test_gaussian_numbers_look_gaussian_and_others_do_not() -> None:
    """Fixed seed. For 20,000 Gaussian numbers KS exceeds 0.0138 with probability 1e-3."""
    generator = np.random.default_rng(5)
    shape = shape_of(generator.normal(3.0, 2.0, 20_000))
    assert shape["ks"] < 0.0138
    assert abs(shape["kurtosis"]) < 0.2  # 5.8 standard errors of sqrt(24 / 20,000)
    assert shape["sigma"] == pytest.approx(2, abs=0.1)
    # The controls: heavy tails, and half of the numbers zero.
    heavy = shape_of(generator.laplace(size=20_000))
    assert heavy["ks"] > 0.03
    assert heavy["kurtosis"] > 2
    zeros = shape_of(generator.normal(size=20_000) * (np.arange(20_000) % 2))
    assert zeros["zeros"] == 0.5
    assert zeros["ks"] > 0.2


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


def test_gradients_of_mnist_have_zeros() -> None:
    measured = measure_distributions(SHAPES, seed=0, on_progress=lambda _: None)
    assert json.loads(json.dumps(measured, allow_nan=False)) == measured
    assert [each["round"] for each in measured["vectors"]] == [0, 2, 4]
    assert all(0.4 < each["zeros"] < 0.6 for each in measured["vectors"])
    assert all(each["ks"] > 0.3 for each in measured["vectors"])
    for wrong in ("vectors", "other"):
        with pytest.raises(ArgumentError, match=wrong):
            measure_distributions({**SHAPES, wrong: 0}, seed=0, on_progress=lambda _: None)


MASKS: dict[str, Any] = {
    "task": "mnist", "method": "sketch", "rows": 7, "cols": 22, "rounds": 60, "evaluate_every": 30,
}  # fmt: skip


def masks(**more: Any) -> dict[str, Any]:
    return measure_masks({**MASKS, **more}, seed=0, on_progress=lambda _: None)


@pytest.mark.slow
def test_noise_teaches_nothing_and_masks_teach_without_any_sketch() -> None:
    """Chance is 0.1 and the first model has 0.098; seed fixed, so this fails never or always."""
    assert masks()["accuracy"] < 0.25
    for correction in ("shared", "drift"):  # also the control: something would be found
        found = masks(correction=correction)
        assert found["accuracy"] > 0.4
        # Own masks stay with their workers; shared ones are sent, a bit for each coordinate.
        assert found["mask_bytes"] == (4 + -(-7850 // 8) if correction == "shared" else 0)


def test_the_curve_is_that_of_a_run() -> None:
    short = {"correction": "shared", "rounds": 6, "evaluate_every": 3}
    shares: list[float] = []
    found = measure_masks({**MASKS, **short}, seed=0, on_progress=shares.append)
    assert shares == [each / 6 for each in range(1, 7)]
    assert found == masks(**short)
    assert [one["round"] for one in found["curve"]] == [0, 3, 6]
    settings = {**MASKS, **short, "seed": 0}
    simulation = build(RunConfig(**settings)).simulation
    first = simulation.evaluate()[1]
    for _ in range(3):
        simulation.step()
    # The same first model, batches and bytes; another path, since the sums are noise.
    assert found["curve"][0]["accuracy"] == first
    assert found["curve"][1]["bytes_up"] == simulation.bytes_up
    assert found["curve"][1]["bytes_down"] == simulation.bytes_down
    assert found["curve"][1]["accuracy"] != simulation.evaluate()[1]


RUN = {"task": "mnist", "method": "diffsketch", "rows": 7, "cols": 15, "padding": 15_700,
       "per_round": 1.0, "rounds": 4}  # fmt: skip
OWN: dict[str, Any] = {"table_rows": 7, "widths": "15", "paddings": "2", "requirements": "0.1, 4",
       "least": 1000, "proven_hashes": 1}  # fmt: skip


@pytest.mark.parametrize("signed", [False, True])
def test_claims_are_those_of_the_method(signed: bool) -> None:
    """Those that the method itself states about its messages, at the padding that it had."""
    reading = (
        {"method": "diffsketch-reading", "method_settings": "percentile=signed"} if signed else {}
    )
    run = RUN | reading
    simulation = simulation_of(run, seed=3)
    seed, noise = SketchKey.from_integer(0).seed(0), FastNoise(0)
    said = [
        simulation.method.encode(each.vectors, seed, noise).claimed
        for each in observe(simulation, range(4))
    ]
    claimed = torch.cat([one for one in said if one is not None]).numpy()
    given = {**run, **OWN, "signed_alpha": signed}
    found = measure_local_epsilon(given, seed=3, on_progress=lambda _: None)
    json.dumps(found, allow_nan=False)
    (table,) = found["tables"]
    assert found["messages"] == len(claimed) == 40
    assert table["median"] == pytest.approx(np.quantile(claimed, 0.5, method="higher"))
    assert table["needs_noise"]["4"] == pytest.approx((claimed > 4).mean())
    assert table["needs_noise"]["0.1"] == 1
    assert sum(table["counts"]) == np.isfinite(claimed).sum()
    assert table["proven"]["most"] < table["median"]


def test_claims_of_known_ratios() -> None:
    sketch = CountSketch(7850, 7, 15)
    ratios = np.array([0.5, 1.0, 1.3, 2.0])
    found = claims_of(ratios, sketch, padding=0, requirements=(1.0,))
    single = [theorem1(7850, 7, 15, alpha=ratio, sigma=1.0) for ratio in ratios]
    values = [float(claim.epsilon(delta=0.0, rounds=1)) for claim in single]
    assert math.isinf(values[-1])
    assert found["without"] == 0.25
    assert found["finite_mean"] == pytest.approx(np.mean(values[:3]))
    assert found["median"] == pytest.approx(values[2])
    assert found["needs_noise"] == {"1": 1.0}
    none = claims_of(np.array([3.0]), sketch, padding=0, requirements=(1.0,))
    assert none["median"] is None
    assert none["finite_mean"] is None


def test_messages_that_no_appended_noise_helps() -> None:
    """The least padding is tried for each message, up to a length; those of one ratio agree."""
    sketch, ratios = CountSketch(7850, 7, 22), np.array([1.645, 1.645, 3.0, 0.0])
    # 7 x 22 and 1.645 need 244,566 appended numbers for epsilon 1, and 3.0 three times as many.
    for most, share in ((244_565, 1.0), (244_566, 0.5), (10**7, 0.25)):
        assert needs_noise_at_least(ratios, sketch, (1.0,), most=most) == {"1": share}


def test_proven_of_the_repaired_padding() -> None:
    """Known values for 7 x 22: 0.767 with 5n appended, 1.94 with n."""

    def own(hashes: int) -> LocalEpsilonSettings:
        return LocalEpsilonSettings.read({**OWN, "proven_hashes": hashes})

    sketch = CountSketch(7850, 7, 22)
    five = proven_of(sketch, own(2), padding=5 * 7850, seed=0)
    one = proven_of(sketch, own(1), padding=7850, seed=0)
    assert five is not None
    assert one is not None
    assert five["most"] == pytest.approx(0.767, rel=0.02)
    # The largest over the hashes, of which those of the first round are among.
    first = proven_of(sketch, own(1), padding=5 * 7850, seed=0)
    assert first is not None
    assert first["most"] <= five["most"]
    assert one["most"] == pytest.approx(1.94, rel=0.03)
    assert proven_of(sketch, own(3), padding=0, seed=0) is None
    assert proven_of(sketch, own(0), padding=7850, seed=0) is None
    assert proven_of(sketch, own(3), padding=100, seed=0) is None  # fewer numbers than cells

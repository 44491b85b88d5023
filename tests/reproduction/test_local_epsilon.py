"""Claims of every message of a training."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch

from diffsketch.privacy.theorems import theorem1
from diffsketch.reproduction.measurements.local_epsilon import claims_of, measure, proven_of
from diffsketch.reproduction.measurements.training import simulation_of, watched
from diffsketch.sketch import CountSketch

RUN = {"task": "mnist", "method": "diffsketch", "rows": 7, "cols": 15, "padding": 15_700,
       "per_round": 1.0, "rounds": 4}  # fmt: skip
OWN = {"table_rows": 7, "widths": "15", "paddings": "2", "requirements": "0.1, 4",
       "proven_hashes": 1}  # fmt: skip


def test_claims_are_those_of_the_method() -> None:
    """What the method itself said about its messages, at the padding that it had."""
    said = [
        each.result.summed.claimed
        for each in watched(simulation_of(RUN, seed=3), range(4))
        if each.result.summed is not None and each.result.summed.claimed is not None
    ]
    claimed = torch.cat(said).numpy()
    found = measure({**RUN, **OWN}, seed=3, on_progress=lambda _: None)
    json.dumps(found, allow_nan=False)
    (table,) = found["tables"]
    assert found["messages"] == len(claimed) == 40
    assert table["median"] == pytest.approx(np.quantile(claimed, 0.5, method="higher"))
    assert table["needs_noise"]["4"] == pytest.approx((claimed > 4).mean())
    assert table["needs_noise"]["0.1"] == 1
    assert sum(table["counts"]) == np.isfinite(claimed).sum()
    assert found["noised"] == pytest.approx((claimed > 1).mean())
    assert table["proven"]["most"] < table["median"]


def test_claims_of_known_ratios() -> None:
    sketch = CountSketch(7850, 7, 15)
    ratios = np.array([0.5, 1.0, 1.3, 2.0])
    found = claims_of(ratios, sketch, padding=0, requirements=(1.0,))
    single = [theorem1(7850, 7, 15, alpha=ratio, sigma=1.0) for ratio in ratios]
    values = [float(claim.epsilon(delta=0.0, rounds=1)) for claim in single]
    assert math.isinf(values[-1])
    assert found["without"] == 0.25
    assert found["mean"] is None
    assert found["finite_mean"] == pytest.approx(np.mean(values[:3]))
    assert found["median"] == pytest.approx(values[2])
    assert found["needs_noise"] == {"1": 1.0}
    none = claims_of(np.array([3.0]), sketch, padding=0, requirements=(1.0,))
    assert none["median"] is None
    assert none["finite_mean"] is None
    # The length that it says is needed is enough for the median message, and none less is.
    ratio, wanted = 1.15, found["needed"]["1"]  # the median of the four
    for length, enough in ((round(wanted * 7850), True), (round(wanted * 7850) - 1, False)):
        claim = theorem1(7850 + length, 7, 15, alpha=ratio, sigma=1.0)
        assert (float(claim.epsilon(delta=0.0, rounds=1)) <= 1) is enough


def test_proven_of_the_repaired_padding() -> None:
    """Known values for 7 x 22: 0.767 with 5n appended, 1.94 with n."""
    sketch = CountSketch(7850, 7, 22)
    five = proven_of(sketch, {"proven_hashes": 2}, padding=5 * 7850, seed=0)
    one = proven_of(sketch, {"proven_hashes": 1}, padding=7850, seed=0)
    assert five is not None
    assert one is not None
    assert five["most"] == pytest.approx(0.767, rel=0.02)
    assert five["least"] <= five["most"]
    assert one["most"] == pytest.approx(1.94, rel=0.03)
    assert proven_of(sketch, {}, padding=0, seed=0) is None
    assert proven_of(sketch, {"proven_hashes": 0}, padding=7850, seed=0) is None
    assert proven_of(sketch, {}, padding=100, seed=0) is None  # fewer numbers than cells

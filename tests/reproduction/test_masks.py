"""The control of the error correction: what is learnt where the sketch is replaced by noise."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.reproduction.measurements.masks import measure

SETTINGS: dict[str, Any] = {
    "task": "mnist", "method": "sketch", "rows": 7, "cols": 22, "rounds": 60, "evaluate_every": 30,
}  # fmt: skip


def measured(**more: Any) -> dict[str, Any]:
    return measure({**SETTINGS, **more}, seed=0, on_progress=lambda _: None)


def test_noise_teaches_nothing_without_masks() -> None:
    """Chance is 0.1 and the first model has 0.098; seed fixed, so this fails never or always."""
    assert measured()["accuracy"] < 0.25


@pytest.mark.parametrize("correction", ["shared", "drift"])
def test_masks_teach_without_any_sketch(correction: str) -> None:
    """Also the negative control of the test above: something would be found."""
    found = measured(correction=correction)
    assert found["accuracy"] > 0.4
    assert found["mask_bytes"] == 48 + -(-7850 // 8)


def test_the_curve_is_that_of_a_run() -> None:
    found = measured(correction="shared")
    assert [one["round"] for one in found["curve"]] == [0, 30, 60]
    settings = {**SETTINGS, "correction": "shared", "seed": 0}
    simulation = build(RunConfig(**settings)).simulation
    first = simulation.evaluate()[1]
    for _ in range(30):
        simulation.step()
    # The same first model, batches and bytes; another path, since the sums are noise.
    assert found["curve"][0]["accuracy"] == first
    assert found["curve"][1]["bytes_up"] == simulation.bytes_up
    assert found["curve"][1]["bytes_down"] == simulation.bytes_down
    assert found["curve"][1]["accuracy"] != simulation.evaluate()[1]


def test_the_same_seed_gives_the_same() -> None:
    assert measured(correction="shared") == measured(correction="shared")


def test_progress_is_told_and_may_interrupt() -> None:
    told: list[float] = []

    def on_progress(share: float) -> None:
        told.append(share)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(SETTINGS, seed=0, on_progress=on_progress)
    assert told == [0.5]

"""The error correction and its control: made-up results in, known numbers out."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.pages.exhibits import Plot
from diffsketch.reproduction.drawings.correction import draw
from diffsketch.reproduction.drawings.drawn import Drawn
from diffsketch.reproduction.experiment import Experiment, Measurement, Variant
from diffsketch.reproduction.jobs import Job
from tests.reproduction.made_up import MESSAGE, checked, curve_of, run_of

PANEL = "fresh hashes"
MASK = 1030  # bytes


def curve(accuracy: float, *, size: int) -> list[Any]:
    return curve_of([0.0, accuracy / 2, accuracy], up=size, down=size, drift=0.25)


def made_up(accuracy: float, *, correction: str) -> dict[str, Any]:
    size = MESSAGE if correction == "off" else MESSAGE + MASK
    config = {"correction": correction, "workers": 10}
    return run_of(curve(accuracy, size=size), method="sketch", config=config)


def drawn_of(off: float, shared: float, control: float) -> Drawn:
    accuracies = {"off": off, "shared": shared}
    variants = tuple(
        Variant(name, (PANEL,), {"correction": name}, "ablation") for name in accuracies
    )
    measurement = Measurement("noise, shared masks", "masks", {"correction": "shared"})
    experiment = Experiment(
        name="correction", title="", place="", says="", drawing="correction", paper={}, seeds=2,
        variants=variants, measurements=(measurement,),
    )  # fmt: skip
    results: dict[Job, Any] = {}
    for variant in variants:
        for seed, job in enumerate(experiment.runs(variant)):
            value = accuracies[variant.name] + 0.02 * seed
            results[job] = made_up(value, correction=variant.name)
    for seed, job in enumerate(experiment.measured(measurement)):
        value = control + 0.02 * seed
        results[job] = {
            "curve": curve(value, size=MESSAGE + MASK), "accuracy": value, "dim": 7850,
            "message_bytes": MESSAGE, "mask_bytes": MASK,
        }  # fmt: skip
    return checked(draw(experiment, results))


def test_the_control_is_drawn_beside_the_sketch() -> None:
    plot = drawn_of(0.8, 0.7, 0.6).exhibits[0]
    assert isinstance(plot, Plot)
    assert [series.name for series in plot.series] == ["off", "shared", "noise, shared masks"]
    shared, control = plot.series[1:]
    assert shared.x == control.x == (10.0, 20.0)  # rounds
    assert control.y == pytest.approx((0.305, 0.61))
    (axis,) = plot.other_x
    assert shared.other_x[axis.label] == (10 * 2 * 1694, 20 * 2 * 1694)  # with the masks


def test_lead_and_facts_have_the_numbers() -> None:
    drawn = drawn_of(0.8, 0.7, 0.6)
    assert "shared masks take the sketch from 81.0% to 71.0%" in drawn.lead
    assert "Noise, shared masks: 61.0%." in drawn.lead
    assert "A mask takes 1,030 bytes, the sketch 664." in drawn.lead
    assert drawn.facts["accuracy/control/noise, shared masks"] == pytest.approx(0.61)
    assert drawn.facts["spread/control/noise, shared masks"] == pytest.approx(0.0002**0.5)
    assert drawn.facts[f"accuracy/{PANEL}/shared"] == pytest.approx(0.71)
    assert (drawn.facts["mask-bytes"], drawn.facts["sketch-bytes"]) == (1030, 664)
    assert "from 31.0% to 91.0%" in drawn_of(0.3, 0.9, 0.6).lead  # the control of this test

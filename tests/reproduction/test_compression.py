"""Accuracy by compression ratio: made-up results in, known numbers out."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.pages.exhibits import Plot
from diffsketch.reproduction.drawings.compression import draw
from diffsketch.reproduction.drawings.drawn import Drawn
from diffsketch.reproduction.experiment import Experiment, Variant
from diffsketch.reproduction.jobs import Job
from diffsketch.reproduction.loading import load
from tests.reproduction.made_up import checked, curve_of, run_of

PANEL = "MNIST, sketch without privacy"


def drawn_of(accuracies: dict[str, tuple[float, int]], *, seeds: int = 2) -> Drawn:
    variants = tuple(
        Variant(name, (PANEL,), {"method": "none" if name == "uncompressed" else "sketch",
                                 "cols": size})
        for name, (_, size) in accuracies.items()
    )  # fmt: skip
    experiment = Experiment(
        name="made-up", title="", place="", says="", drawing="accuracy-compression", paper={},
        seeds=seeds, variants=variants,
    )  # fmt: skip
    results: dict[Job, Any] = {}
    for variant in variants:
        value, size = accuracies[variant.name]
        for seed, job in enumerate(experiment.runs(variant)):
            last, message = value + 0.02 * seed, 48 + 4 * size
            curve = curve_of([0.0, last / 2, last], up=10 * message, down=0)
            method = str(variant.settings["method"])
            results[job] = run_of(curve, method=method, message=message)
    return checked(draw(experiment, results))


RUNS = {"uncompressed": (0.9, 7850), "big": (0.7, 15), "small": (0.8, 785)}


def test_last_accuracies_are_over_the_ratio_of_the_messages() -> None:
    drawn = drawn_of(RUNS)
    plots = [exhibit for exhibit in drawn.exhibits if isinstance(exhibit, Plot)]
    final = plots[-1]
    assert final.name == "made-up-mnist-final"
    assert final.series[0].x == pytest.approx((10.0, 7850 / 15))  # whatever they are called
    assert final.series[0].y == pytest.approx((0.81, 0.71))
    assert final.series[0].low == pytest.approx((0.81 - 0.0002**0.5, 0.71 - 0.0002**0.5))
    assert final.marks[0].value == pytest.approx(0.91)
    assert "small 81.0%, big 71.0%, uncompressed 91.0%" in drawn.lead
    assert drawn.facts[f"accuracy/{PANEL}/big"] == pytest.approx(0.71)


def test_one_seed_has_no_spread() -> None:
    final = [one for one in drawn_of(RUNS, seeds=1).exhibits if isinstance(one, Plot)][-1]
    assert (final.series[0].low, final.series[0].kind) == ((), "line")


def test_runs_of_the_other_figures_are_shared() -> None:
    """With the same settings they are the same jobs, which are done once."""
    own = set(load("accuracy-compression", reduced=False).jobs)
    for name, count in (("mnist", 5), ("shakespeare", 5)):
        other = load(name, reduced=False)
        assert len(own & set(other.jobs)) == count * other.seeds

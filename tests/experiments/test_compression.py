"""Accuracy by compression ratio: made-up results in, known numbers out."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.experiments.drawings.compression import draw
from diffsketch.experiments.drawings.drawn import Drawn
from diffsketch.experiments.experiment import Experiment, Variant
from diffsketch.experiments.jobs import Job
from diffsketch.experiments.loading import load
from diffsketch.report.checks import check_plot
from diffsketch.report.exhibits import Plot

PANEL = "MNIST, sketch without privacy"


def made_up(accuracy: float, *, message: int, method: str = "sketch") -> dict[str, Any]:
    curve = [
        {"round": index, "accuracy": accuracy * index / 20, "bytes_up": index * message,
         "bytes_down": 0}
        for index in (0, 10, 20)
    ]  # fmt: skip
    epsilon = {
        "delta": 1e-5, "relation": "replace", "trust": "local", "basis": "none",
        "unit": "client", "value": None, "rounds": 20,
    }  # fmt: skip
    summary = {
        "outcome": "finished", "diverging": False, "rounds": 20, "accuracy": accuracy,
        "best_accuracy": accuracy, "dim": 7850, "message_bytes": message, "epsilon": epsilon,
        "bytes_up": 20 * message, "bytes_down": 0, "uncompressed_bytes_up": 4 * 7850 * 20,
        "noised_share": None, "config": {"method": method},
    }  # fmt: skip
    return {"summary": summary, "times": {}, "curve": curve}


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
            results[job] = made_up(
                value + 0.02 * seed, message=48 + 4 * size, method=str(variant.settings["method"])
            )
    return draw(experiment, results)


RUNS = {"uncompressed": (0.9, 7850), "big": (0.7, 15), "small": (0.8, 785)}


def test_last_accuracies_are_over_the_ratio_of_the_messages() -> None:
    drawn = drawn_of(RUNS)
    plots = [exhibit for exhibit in drawn.exhibits if isinstance(exhibit, Plot)]
    for plot in plots:
        check_plot(plot)
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

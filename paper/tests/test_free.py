"""The figure of tables that cost nothing: made-up runs in, known gaps out; and its settings."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.pages.exhibits import Plot, Table
from diffsketch.planning import PlanRequest
from paper.experiments import Experiment, Job, Variant, load
from paper.figures import Figure
from paper.free import draw_free, free_size
from paper.measurements import observe, simulation_of
from paper.tests.made_up import checked, curve_of, experiment_of, run_of

PANELS = {100: "100 clients", 1000: "1,000 clients"}
EPSILON = {"basis": "proven", "trust": "distributed", "value": 8.0, "rounds": 2}


def run(accuracy: float, *, cohort: int, cols: int | None) -> dict[str, Any]:
    """A run with these cells, or a dense one."""
    table: dict[str, Any] = {} if cols is None else {"rows": 1, "cols": cols}
    config = {
        "cohort": cohort, "workers": 1000, "rounds": 20, "budget": 8.0, "delta": 1e-5,
        "sampling": "shuffled", "clip": 0.3, **table,
    }  # fmt: skip
    curve = curve_of([0.1, accuracy], up=10 * (cols or 7850), down=1)
    return run_of(curve, method="any", message=cols or 7850, epsilon=EPSILON, config=config)


def drawn(accuracies: dict[int, dict[int | None, list[float]]]) -> Figure:
    """The figure of runs by cohort and columns, with the accuracy of each seed."""
    variants, results, seeds = list[Variant](), dict[Job, Any](), 2
    experiment = experiment_of("made-up", "free", seeds=seeds, options={"spread": 8.0})
    for cohort, runs in accuracies.items():
        for cols, values in runs.items():
            place = {"cohort": cohort, "cols": cols or 0}
            variant = Variant(f"{cols}", (PANELS[cohort],), place, "proven")
            variants.append(variant)
            for job, value in zip(experiment.jobs_of(variant), values, strict=True):
                results[job] = run(value, cohort=cohort, cols=cols)
    fields = {"seeds": seeds, "options": {"spread": 8.0}, "variants": tuple(variants)}
    return checked(draw_free(experiment_of("made-up", "free", **fields), results))


def test_gaps_are_those_of_the_seeds_at_the_planners_size() -> None:
    request = PlanRequest(dim=7850, cohort=100, population=1000, rounds=20, target_epsilon=8.0,
                          message_bytes=6, vector_norm=0.3, spread=8.0)  # fmt: skip
    cells = free_size(request).cells
    figure = drawn({
        100: {None: [0.8, 0.7], cells - 1: [0.5, 0.5], cells: [0.79, 0.73], 7000: [0.9, 0.9]},
        1000: {None: [0.9, 0.9], 491: [0.8, 0.8]},
    })  # fmt: skip
    facts = figure.facts
    assert facts["gap/100 clients"] == pytest.approx(0.01)  # not those just below, nor the largest
    assert facts["gap-spread/100 clients"] == pytest.approx(0.04 / 2**0.5)
    # At epsilon 8 with 1,000 clients nothing smaller than the vector is free.
    assert facts["gap/1,000 clients"] is None
    assert (facts["panels"], facts["panels-predicted"], facts["panels-free"]) == (2, 1, 1)
    lost = drawn({100: {None: [0.8, 0.7], cells: [0.75, 0.69]}}).facts
    assert (lost["panels-predicted"], lost["panels-free"]) == (1, 0)
    assert facts["gap-worst"] == facts["gap-mean"] == pytest.approx(0.01)
    assert facts["gap-smallest-tables"] == pytest.approx((-0.25 - 0.1) / 2)
    first, _, together, sizes = figure.exhibits
    assert isinstance(first, Plot)
    assert isinstance(together, Plot)
    assert isinstance(sizes, Table)
    assert [one.name for one in first.series][-1] == "planner's size"
    assert first.series[-1].x == (cells,)
    assert first.series[-1].y == pytest.approx((0.76,))
    assert first.series[1].y == pytest.approx((0.75, 0.75))  # the line to reach
    assert together.series[0].x[1] == 1
    assert sizes.rows[1][5:9] == (7850, 7850, None, None)


@pytest.fixture(scope="module")
def shipped() -> Experiment:
    return load("free", reduced=False)


def test_the_planners_sizes_are_run(shipped: Experiment) -> None:
    """The settings file has each of its answers, so that no other size stands for one."""
    by_panel: dict[str, list[Any]] = {}
    for variant in shipped.variants:
        by_panel.setdefault(variant.panels[0], []).append(variant.settings)
    assert len(by_panel) == 6
    for panel, every in by_panel.items():
        (dense,) = (one for one in every if one["method"] == "skellam")
        assert panel == f"{dense['cohort']:,} clients, epsilon {dense['budget']:g}"
        same = ("budget", "clip", "cohort", "rounds", "workers", "sampling", "learning_rate")
        assert all({key: one[key] for key in same} == {key: dense[key] for key in same}
                   for one in every)  # fmt: skip
        request = PlanRequest(
            dim=7850, cohort=dense["cohort"], population=dense["workers"], rounds=dense["rounds"],
            target_epsilon=dense["budget"], message_bytes=6, vector_norm=dense["clip"],
            spread=shipped.options["spread"],
        )  # fmt: skip
        cells = free_size(request).cells
        assert cells == 7850 or cells in [one.get("cols") for one in every], panel


@pytest.mark.slow
def test_the_spread_is_that_of_the_task(shipped: Experiment) -> None:
    """Clipped updates of the first round: the planner is told no more than clients differ."""
    settings = next(one.settings for one in shipped.variants if one.settings["cohort"] == 1000)
    plain = {key: settings[key] for key in ("task", "workers", "learning_rate", "cohort")}
    (seen,) = observe(simulation_of({**plain, "method": "none", "rounds": 1}, seed=0), range(1))
    norms = seen.vectors.norm(dim=1)
    clipped = seen.vectors * (settings["clip"] / norms).clamp(max=1)[:, None]
    energy = float(clipped.mean(dim=0).square().sum() / clipped.square().sum(dim=1).mean())
    spread = (1 - energy) / (energy - 1 / len(norms))
    assert 0.8 * shipped.options["spread"] < spread < 1.5 * shipped.options["spread"]

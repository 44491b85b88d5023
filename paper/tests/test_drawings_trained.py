"""Training figures: made-up results in, known numbers out."""

from __future__ import annotations

import statistics
from typing import Any, cast

import pytest

from diffsketch.pages.exhibits import Plot, Table
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from paper.drawings import draw_trained, line_of
from paper.experiments import Job, Measurement, PanelFields, Variant, load
from paper.figures import Figure
from paper.tests.made_up import MESSAGE, checked, curve_of, experiment_of, run_of

PANEL = "50x, epsilon 1"
CLAIMED = {"basis": "claimed", "unit": "coordinate", "value": 1.0, "rounds": 1}


def made_up(
    accuracies: list[float], *, method: str = "diffsketch", message: int = MESSAGE, **more: Any
) -> dict[str, Any]:
    """A run's result: an evaluation every 10 rounds, after round 0."""
    curve = curve_of(accuracies, up=10 * message, down=5 * message)
    return run_of(curve, method=method, message=message, **more)


def drawn_of(runs: dict[str, list[dict[str, Any]]], **groups: str) -> Any:
    """The figure of these runs by name: `METHOD`, or `METHOD|READING` in a group of its method."""
    variants = tuple(
        Variant(
            name,
            (PANEL,),
            {"method": method, "padding": len(reading)},
            cast(Any, groups.get(method, "paper")),
            reading,
        )
        for name in runs
        for method, _, reading in [name.partition("|")]
    )
    options = {"ours": "ours", "baseline": "base", "subject": "Accuracy"}
    seeds = len(next(iter(runs.values())))
    experiment = experiment_of("made-up", "curves", seeds=seeds, variants=variants, options=options)
    results: dict[Job, Any] = {}
    for variant in variants:
        results |= dict(zip(experiment.jobs_of(variant), runs[variant.name], strict=True))
    return checked(draw_trained(experiment, results))


def test_lines_and_facts_are_means_over_the_seeds() -> None:
    first = made_up([0.1, 0.5, 0.8], epsilon=CLAIMED, noised_share=0.25)
    second = made_up([0.1, 0.7, 0.9], epsilon=CLAIMED, noised_share=0.75)
    base = [made_up([0.1, 0.2, 0.4], epsilon=CLAIMED), made_up([0.1, 0.2, 0.6], epsilon=CLAIMED)]
    drawn = drawn_of({"ours": [first, second], "base": base})
    plot = drawn.exhibits[0]
    line = plot.series[0]
    assert line.y == pytest.approx((0.6, 0.85))  # without round 0: the axis is logarithmic
    spread = statistics.stdev([0.8, 0.9])
    assert line.low[-1] == pytest.approx(0.85 - spread)
    assert line.high[-1] == pytest.approx(0.85 + spread)
    assert line.x == pytest.approx((10 * 154 / 7850, 20 * 154 / 7850))  # rounds over the ratio
    bytes_axis, rounds_axis = (axis.label for axis in plot.other_x)
    assert line.other_x[rounds_axis] == (10.0, 20.0)
    assert line.other_x[bytes_axis] == (10 * 620 * 15, 20 * 620 * 15)
    assert line.epsilon_text == "1 a round"
    assert line.epsilon.basis is Basis.CLAIMED
    assert line.dashed
    facts = drawn.facts
    assert facts[f"accuracy/{PANEL}/ours"] == pytest.approx(0.85)
    assert facts[f"spread/{PANEL}/ours"] == pytest.approx(spread)
    assert facts[f"noised/{PANEL}/ours"] == pytest.approx(0.5)
    assert facts[f"bytes/{PANEL}/ours"] == 20 * 620 * 10
    assert facts[f"seconds/{PANEL}/ours"] == pytest.approx(0.1)
    assert facts[f"paired/{PANEL}/ours - base"] == pytest.approx(0.35)
    assert facts["seeds"] == 2
    drawn = drawn_of({"ours": [made_up([0.1, 0.3])], "base": [made_up([0.1, 0.9])]})
    line = drawn.exhibits[0].series[0]
    assert (line.kind, line.low, line.high) == ("line", (), ())  # one seed has no band


def test_divergence_is_marked_and_the_line_ends_with_the_first_seed() -> None:
    whole = made_up([0.1, 0.5, 0.6, 0.7])
    broken = made_up([0.1, 0.4, 0.2], outcome="diverged")
    drawn = drawn_of({"ours": [whole, broken]})
    line = drawn.exhibits[0].series[0]
    assert line.ended == "1 of 2 seeds diverged"
    assert line.y == pytest.approx((0.45, 0.4))  # nothing goes on with the seeds that are left
    assert drawn.facts[f"diverged/{PANEL}/ours"] == 1
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert table.rows[0][-1] == "1 of 2 seeds diverged"
    worse = drawn_of({"ours": [made_up([0.1, 0.5, 0.2], diverging=True)]})
    assert worse.exhibits[0].series[0].ended == "diverging"
    facts = worse.facts
    assert (facts[f"diverged/{PANEL}/ours"], facts[f"accuracy/{PANEL}/ours"]) == (1, 0.2)


def test_no_accuracy_where_every_seed_diverged() -> None:
    runs = [made_up([0.1, 0.5], outcome="diverged"), made_up([0.1], outcome="diverged")]
    drawn = drawn_of({"ours": runs, "base": [made_up([0.1, 0.5]), made_up([0.1, 0.5])]})
    assert drawn.facts[f"accuracy/{PANEL}/ours"] is None
    assert drawn.facts[f"diverged/{PANEL}/ours"] == 2
    assert len(drawn.exhibits[0].series[0].y) == 1  # its last evaluations, to put a cross at


def test_proven_variants_stand_apart_beside_the_papers() -> None:
    proven = made_up(
        [0.1, 0.8], method="laplace", config={"per_round": 1.0},
        epsilon={"basis": "proven", "unit": "coordinate", "value": 55.0, "rounds": 10},
    )  # fmt: skip
    runs = {
        "ours": [made_up([0.1, 0.7], epsilon=CLAIMED)],
        "base": [made_up([0.1, 0.6], method="sketch-laplace", epsilon=CLAIMED)],
        "whole": [made_up([0.1, 0.9], method="none", message=31404)],
        "sound|with proof": [proven],
    }
    drawn = drawn_of(runs, sound="proven")
    assert [series.name for series in drawn.exhibits[0].series] == ["ours", "base", "whole"]
    beside = drawn.proven[0]
    assert [series.name for series in beside.series] == ["sound|with proof", "ours", "whole"]
    sound = beside.series[0]
    assert not sound.dashed
    assert sound.role == "sound, with proof"
    assert sound.epsilon_text == "1 a round"
    assert (sound.epsilon.delta, sound.epsilon.rounds) == (0.0, 1)
    row = drawn.proven[-1].rows[0]
    assert isinstance(row[-2], Epsilon)
    assert float(row[-2]) == 55.0  # of the whole run
    assert beside.series[2].role == "none"


@pytest.mark.parametrize(
    ("method", "epsilon"),
    [
        ("diffsketch-proven", {"unit": "coordinate", "rounds": 100, "value": 5.3}),
        ("sketch-skellam", {"unit": "client", "rounds": 3, "value": 4.9}),
    ],
)
def test_what_is_proven_of_clients_and_of_appended_noise_is_of_the_run(
    method: str, epsilon: dict[str, Any]
) -> None:
    run = made_up([0.1, 0.5], method=method, epsilon={"basis": "proven", **epsilon})
    line = line_of(Variant("v", (PANEL,), {}), (run,))
    found = line["epsilon"]
    assert (float(found), found.rounds) == (epsilon["value"], epsilon["rounds"])
    assert (found.scope.unit, line["epsilon_text"]) == (Unit(epsilon["unit"]), "")


def test_bytes_count_until_most_of_the_uncompressed_accuracy_is_there() -> None:
    small = made_up([0.1, 0.5, 0.9], config={"padding": 157_000})
    large = made_up([0.1, 0.3, 0.5], message=31404, method="none")
    facts = drawn_of({"ours": [small], "none": [large]}).facts
    assert facts[f"bytes-to/{PANEL}/ours"] == 10 * 620 * 10
    assert facts[f"bytes-to/{PANEL}/none"] == 20 * 31404 * 10
    assert facts[f"padding/{PANEL}/ours"] == 20.0  # in lengths of the vector


def test_the_epsilon_of_devices_that_send_once_is_that_of_the_run() -> None:
    epsilon = {"basis": "proven", "unit": "client", "trust": "distributed", "value": 5.0}
    once = made_up([0.1, 0.8], method="sketch-skellam", epsilon={**epsilon, "rounds": 1})
    drawn = drawn_of({"sound": [once]}, sound="proven")
    row = drawn.proven[-1].rows[0]
    assert row[-3] is None  # there is none of a round
    assert isinstance(row[-2], Epsilon)
    assert row[-2].rounds == once["summary"]["rounds"] > 1
    assert drawn.proven[0].series[0].epsilon == row[-2]


def test_a_claim_without_a_delta_has_none() -> None:
    pure = made_up([0.1, 0.8], epsilon={**CLAIMED, "delta": 1e-5}, config={"per_round": 1.0})
    other = made_up([0.1, 0.8], epsilon={**CLAIMED, "delta": 1e-5})
    series = drawn_of({"ours": [pure], "base": [other]}).exhibits[0].series
    assert [each.epsilon.delta for each in series] == [0.0, 1e-5]
    gaussian = {**pure["summary"]["config"], "method_settings": "added=gaussian"}
    pure["summary"]["config"] = gaussian
    series = drawn_of({"ours": [pure]}).exhibits[0].series
    assert series[0].epsilon.delta == 1e-5
    assert series[0].epsilon_text == "1 a round at delta 1e-05"


MASK = 986  # bytes


def curve(accuracy: float, *, size: int) -> list[Any]:
    return curve_of([0.0, accuracy / 2, accuracy], up=size, down=size, drift=0.25)


def correction_of(off: float, shared: float, control: float) -> Figure:
    accuracies = {"off": off, "shared": shared}
    variants = tuple(
        Variant(name, ("fresh hashes",), {"correction": name}, "ablation") for name in accuracies
    )
    measurement = Measurement("noise, shared masks", "masks", {"correction": "shared"})
    experiment = experiment_of(
        "correction", "correction", seeds=2, variants=variants, measurements=(measurement,)
    )
    results: dict[Job, Any] = {}
    for variant in variants:
        for seed, job in enumerate(experiment.jobs_of(variant)):
            size = MESSAGE + MASK * (variant.name != "off")
            config = {"correction": variant.name, "workers": 10}
            found = curve(accuracies[variant.name] + 0.02 * seed, size=size)
            results[job] = run_of(found, method="sketch", config=config)
    for seed, job in enumerate(experiment.jobs_of(measurement)):
        value = control + 0.02 * seed
        results[job] = {
            "curve": curve(value, size=MESSAGE + MASK), "accuracy": value, "dim": 7850,
            "message_bytes": MESSAGE, "mask_bytes": MASK,
        }  # fmt: skip
    return checked(draw_trained(experiment, results))


def test_the_control_is_drawn_beside_the_sketch() -> None:
    drawn = correction_of(0.8, 0.7, 0.6)
    plot = drawn.exhibits[0]
    assert isinstance(plot, Plot)
    assert [series.name for series in plot.series] == ["off", "shared", "noise, shared masks"]
    shared, control = plot.series[1:]
    assert shared.x == control.x == (10.0, 20.0)  # rounds
    assert control.y == pytest.approx((0.305, 0.61))
    (axis,) = plot.other_x
    assert shared.other_x[axis.label] == (10 * 2 * 1606, 20 * 2 * 1606)  # with the masks
    assert drawn.facts["accuracy/control/noise, shared masks"] == pytest.approx(0.61)
    assert drawn.facts["spread/control/noise, shared masks"] == pytest.approx(0.0002**0.5)
    assert drawn.facts["accuracy/fresh hashes/shared"] == pytest.approx(0.71)
    assert (drawn.facts["mask-bytes"], drawn.facts["sketch-bytes"]) == (986, 620)
    shared_only = correction_of(0.3, 0.9, 0.6).facts  # the control of this test
    assert shared_only["accuracy/fresh hashes/shared"] == pytest.approx(0.91)


def test_choices_are_compared_seed_by_seed() -> None:
    places = {"a": (0.8, 0.5), "b": (0.4, 0.5), "c": (0.3, 0.2)}
    about = {
        panel: PanelFields(ratio=75, epsilon=epsilon, choice=choice)
        for panel, epsilon, choice in (("a", 1, "plain"), ("b", 1, "other"), ("c", 0.1, "plain"))
    }
    options = {"ours": "ours", "baseline": "base"}
    variants, accuracies = list[Variant](), list[float]()
    for panel, values in places.items():
        for name, value in zip(("ours", "base"), values, strict=True):
            settings = {"cols": len(variants), "method": name}
            variants.append(Variant(f"a {name}", (panel,), settings))
            accuracies.append(value)
    experiment = experiment_of(
        "choices", "choices", seeds=2, variants=tuple(variants), options=options, panels=about
    )
    results: dict[Job, Any] = {}
    for variant, value in zip(variants, accuracies, strict=True):
        for seed, job in enumerate(experiment.jobs_of(variant)):
            # The second seed is better for both, by as much more for ours.
            more = seed * (0.1 if variant.method == "ours" else 0.06)
            results[job] = made_up([0.1, value + more], epsilon=CLAIMED)
    drawn = checked(draw_trained(experiment, results))
    leads, found = drawn.exhibits
    assert isinstance(leads, Plot)
    assert leads.series[0].y == pytest.approx((32.0, -8.0))
    assert leads.series[1].x == (0.0,)  # the other choice was not run at that epsilon
    assert isinstance(found, Table)
    spread = 100 * statistics.stdev([0.3, 0.34])
    assert found.rows[0] == ("plain", 75, 1, *map(pytest.approx, (0.85, 0.53, 32.0, spread)))
    assert found.rows[1][3:6] == pytest.approx((0.45, 0.53, -8.0))
    assert found.rows[2] == ("plain", 75, 0.1, *map(pytest.approx, (0.35, 0.23, 12.0, spread)))
    wide = 2 * spread / 2**0.5  # two standard errors of two seeds
    assert leads.series[0].high[0] == pytest.approx(32.0 + wide)
    facts = drawn.facts
    assert facts["paired/c/a ours - a base"] == pytest.approx(0.12)


SKETCHED = "a panel"


def compression_of(accuracies: dict[str, tuple[float, int]], *, seeds: int = 2) -> Figure:
    variants = tuple(
        Variant(name, (SKETCHED,), {"method": "none" if name == "uncompressed" else "sketch",
                                 "cols": size})
        for name, (_, size) in accuracies.items()
    )  # fmt: skip
    drawing = "accuracy-compression"
    about = {SKETCHED: PanelFields(task="MNIST", kind="sketch without privacy")}
    experiment = experiment_of("made-up", drawing, seeds=seeds, variants=variants, panels=about)
    results: dict[Job, Any] = {}
    for variant in variants:
        value, size = accuracies[variant.name]
        for seed, job in enumerate(experiment.jobs_of(variant)):
            last, message = value + 0.02 * seed, (2 if size <= 16 else 4) + 4 * size
            curve = curve_of([0.0, last / 2, last], up=10 * message, down=0)
            method = str(variant.settings["method"])
            results[job] = run_of(curve, method=method, message=message)
    return checked(draw_trained(experiment, results))


RUNS = {"uncompressed": (0.9, 7850), "big": (0.7, 15), "small": (0.8, 785)}


def test_last_accuracies_are_over_the_ratio_of_the_messages() -> None:
    drawn = compression_of(RUNS)
    plots = [exhibit for exhibit in drawn.exhibits if isinstance(exhibit, Plot)]
    final = plots[-1]
    assert final.name == "made-up-mnist-final"
    assert final.series[0].x == pytest.approx((10.0, 7850 / 15))  # whatever they are called
    assert final.series[0].y == pytest.approx((0.81, 0.71))
    assert final.series[0].low == pytest.approx((0.81 - 0.0002**0.5, 0.71 - 0.0002**0.5))
    assert final.marks[0].value == pytest.approx(0.91)
    assert drawn.facts[f"accuracy/{SKETCHED}/big"] == pytest.approx(0.71)
    once = [one for one in compression_of(RUNS, seeds=1).exhibits if isinstance(one, Plot)][-1]
    assert (once.series[0].low, once.series[0].kind) == ((), "line")


def test_runs_of_the_other_figures_are_shared() -> None:
    """Runs with the same settings are the same jobs, which are done once."""
    own = set(load("accuracy-compression", reduced=False).jobs)
    for name, count in (("mnist", 5), ("shakespeare", 3)):
        other = load(name, reduced=False)
        assert len(own & set(other.jobs)) == count * other.seeds

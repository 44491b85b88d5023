"""Training figures: made-up results in, known numbers out."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from diffsketch.pages.exhibits import Table
from diffsketch.privacy.accounting import events
from diffsketch.privacy.accounting.composition import epsilon_for
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.reproduction.drawings.curves import draw
from diffsketch.reproduction.drawings.trained import Point, Trained, at, points_of
from diffsketch.reproduction.experiment import Experiment, Variant
from diffsketch.reproduction.jobs import Job, Results
from tests.reproduction.made_up import MESSAGE, checked, curve_of, run_of

PANEL = "50x, epsilon 1"
CLAIMED = {"basis": "claimed", "unit": "coordinate", "value": 1.0, "rounds": 1}


def made_up(
    accuracies: list[float], *, method: str = "diffsketch", message: int = MESSAGE, **more: Any
) -> dict[str, Any]:
    """A run's result: an evaluation every 10 rounds, after round 0."""
    curve = curve_of(accuracies, up=10 * message, down=5 * message)
    return run_of(curve, method=method, message=message, **more)


def experiment_of(
    runs: dict[str, list[dict[str, Any]]], **groups: str
) -> tuple[Experiment, Results]:
    variants = tuple(
        Variant(name, (PANEL,), {"method": name}, groups.get(name.partition(",")[0], "paper"))
        for name in runs
    )
    seeds = len(next(iter(runs.values())))
    experiment = Experiment(
        name="made-up", title="", place="", says="", drawing="curves", paper={}, seeds=seeds,
        variants=variants, options={"ours": "ours", "baseline": "base", "subject": "Accuracy"},
    )  # fmt: skip
    results: dict[Job, Any] = {}
    for variant in variants:
        results |= dict(zip(experiment.runs(variant), runs[variant.name], strict=True))
    return experiment, results


def drawn_of(runs: dict[str, list[dict[str, Any]]], **groups: str) -> Any:
    return checked(draw(*experiment_of(runs, **groups)))


def test_lines_and_facts_are_means_over_the_seeds() -> None:
    first = made_up([0.1, 0.5, 0.8], epsilon=CLAIMED, noised_share=0.25)
    second = made_up([0.1, 0.7, 0.9], epsilon=CLAIMED, noised_share=0.75)
    base = [made_up([0.1, 0.2, 0.4], epsilon=CLAIMED), made_up([0.1, 0.2, 0.6], epsilon=CLAIMED)]
    drawn = drawn_of({"ours": [first, second], "base": base})
    plot = drawn.exhibits[0]
    line = plot.series[0]
    assert line.y == pytest.approx(
        (0.6, 0.85)
    )  # without round 0, which a log axis has no place for
    spread = statistics.stdev([0.8, 0.9])
    assert line.low[-1] == pytest.approx(0.85 - spread)
    assert line.high[-1] == pytest.approx(0.85 + spread)
    assert line.x == pytest.approx((10 * 154 / 7850, 20 * 154 / 7850))  # rounds over the ratio
    bytes_axis, rounds_axis = (axis.label for axis in plot.other_x)
    assert line.other_x[rounds_axis] == (10.0, 20.0)
    assert line.other_x[bytes_axis] == (10 * 664 * 15, 20 * 664 * 15)
    assert line.epsilon_text == "1 a round"
    assert line.epsilon.basis is Basis.CLAIMED
    assert line.dashed
    facts = drawn.facts
    assert facts[f"accuracy/{PANEL}/ours"] == pytest.approx(0.85)
    assert facts[f"spread/{PANEL}/ours"] == pytest.approx(spread)
    assert facts[f"noised/{PANEL}/ours"] == pytest.approx(0.5)
    assert facts[f"bytes/{PANEL}/ours"] == 20 * 664 * 10
    assert facts[f"seconds/{PANEL}/ours"] == pytest.approx(0.1)
    assert facts[f"paired/{PANEL}/ours - base"] == pytest.approx(0.35)
    assert facts["seeds"] == 2
    assert "85.0% against 50.0%" in drawn.lead
    assert "noise to 50% of its messages" in drawn.lead


def test_lead_changes_with_the_numbers() -> None:
    """The control: nothing in it is fixed beforehand."""
    runs = {"ours": [made_up([0.1, 0.3])], "base": [made_up([0.1, 0.9])]}
    assert "30.0% against 90.0%" in drawn_of(runs).lead


def test_one_seed_has_no_band() -> None:
    line = drawn_of({"ours": [made_up([0.1, 0.5])]}).exhibits[0].series[0]
    assert (line.kind, line.low, line.high) == ("line", (), ())


def test_divergence_is_marked_and_the_line_ends_with_the_first_seed() -> None:
    whole = made_up([0.1, 0.5, 0.6, 0.7])
    broken = made_up([0.1, 0.4, 0.2], outcome="diverged")
    drawn = drawn_of({"ours": [whole, broken]})
    line = drawn.exhibits[0].series[0]
    assert line.ended == "1 of 2 seeds diverged"
    assert len(line.y) == 2  # rounds 10 and 20; nothing goes on with the seeds that are left
    assert drawn.facts[f"diverged/{PANEL}/ours"] == 1
    table = drawn.exhibits[-1]
    assert isinstance(table, Table)
    assert table.rows[0][-1] == "1 of 2 seeds diverged"


def test_what_ends_worse_than_it_was_is_diverging() -> None:
    drawn = drawn_of({"ours": [made_up([0.1, 0.5, 0.2], diverging=True)]})
    assert drawn.exhibits[0].series[0].ended == "diverging"
    assert drawn.facts[f"diverged/{PANEL}/ours"] == 1
    assert drawn.facts[f"accuracy/{PANEL}/ours"] == 0.2


def test_no_accuracy_where_every_seed_diverged() -> None:
    runs = [made_up([0.1, 0.5], outcome="diverged"), made_up([0.1], outcome="diverged")]
    drawn = drawn_of({"ours": runs, "base": [made_up([0.1, 0.5]), made_up([0.1, 0.5])]})
    assert drawn.facts[f"accuracy/{PANEL}/ours"] is None
    assert drawn.facts[f"diverged/{PANEL}/ours"] == 2
    assert "diverged against 50.0%" in drawn.lead
    assert len(drawn.exhibits[0].series[0].y) == 1  # its last evaluations, to put a cross at


def test_proven_variants_stand_apart_beside_the_papers() -> None:
    proven = made_up(
        [0.1, 0.8], method="laplace", config={"per_round": 1.0},
        epsilon={"basis": "proven", "unit": "coordinate", "value": 55.0, "rounds": 10},
    )  # fmt: skip
    runs = {
        "ours": [made_up([0.1, 0.7], epsilon=CLAIMED)],
        "base": [made_up([0.1, 0.6], method="sketch-laplace", epsilon=CLAIMED)],
        "whole": [made_up([0.1, 0.9], method="none", message=31448)],
        "sound, proven": [proven],
    }
    drawn = drawn_of(runs, sound="proven")
    assert [series.name for series in drawn.exhibits[0].series] == ["ours", "base", "whole"]
    beside = drawn.proven[0]
    assert [series.name for series in beside.series] == ["sound, proven", "ours", "whole"]
    sound = beside.series[0]
    assert not sound.dashed
    assert sound.role == "sound"
    assert sound.epsilon_text == "1 a round"
    assert (sound.epsilon.delta, sound.epsilon.rounds) == (0.0, 1)
    row = drawn.proven[-1].rows[0]
    assert isinstance(row[-2], Epsilon)
    assert float(row[-2]) == 55.0  # of the whole run
    assert "proven for a coordinate 80.0% (sound)" in drawn.lead
    assert beside.series[2].role == "none"


def test_lead_names_no_proven_method_that_sends_more() -> None:
    proven = made_up([0.1, 0.8], message=31448, epsilon={**CLAIMED, "basis": "proven"})
    runs = {"ours": [made_up([0.1, 0.7])], "base": [made_up([0.1, 0.6])], "large": [proven]}
    assert "proven" not in drawn_of(runs, large="proven").lead


def test_appended_noise_costs_a_round_what_repeated_costs_the_run() -> None:
    total = epsilon_for(events.repeated(events.gaussian(3.7306), 100), 1e-5)
    run = made_up(
        [0.1, 0.5], method="diffsketch-proven",
        epsilon={"basis": "proven", "unit": "coordinate", "value": total, "rounds": 100},
    )  # fmt: skip
    epsilon, words = Trained(Variant("v", (PANEL,), {}), (run,)).per_round
    assert float(epsilon) == pytest.approx(1.0, abs=1e-4)  # that of a multiplier of 3.7306
    assert words.endswith("a round at delta 1e-05, on average")


def test_a_clients_epsilon_is_that_of_the_run() -> None:
    run = made_up(
        [0.1, 0.5], method="sketch-skellam",
        epsilon={"basis": "proven", "unit": "client", "value": 4.9, "rounds": 3},
    )  # fmt: skip
    epsilon, words = Trained(Variant("v", (PANEL,), {}), (run,)).per_round
    assert (float(epsilon), epsilon.rounds, epsilon.scope.unit, words) == (4.9, 3, Unit.CLIENT, "")


def test_equal_communication_is_read_between_evaluations() -> None:
    points = (Point(10, 0.2, None, 100.0, 0.0), Point(20, 0.6, None, 200.0, 0.0))
    assert at(points, 150.0) == pytest.approx(0.4)
    assert at(points, 99.0) is None
    assert at(points, 500.0) == 0.6
    small, large = made_up([0.1, 0.5, 0.9]), made_up([0.1, 0.3, 0.5], message=31448, method="none")
    facts = drawn_of({"ours": [small], "whole": [large]}).facts
    assert facts[f"at-bytes/{PANEL}/ours"] == 0.9
    assert facts[f"at-bytes/{PANEL}/whole"] is None  # not evaluated so early
    assert facts[f"target/{PANEL}"] == pytest.approx(0.45)
    assert facts[f"bytes-to/{PANEL}/ours"] == 10 * 664 * 10
    assert facts[f"bytes-to/{PANEL}/whole"] == 20 * 31448 * 10


def test_padding_is_told_in_lengths_of_the_vector() -> None:
    run = made_up([0.1, 0.5], config={"padding": 157_000})
    assert drawn_of({"ours": [run]}).facts[f"padding/{PANEL}/ours"] == 20.0


def test_points_have_only_rounds_that_all_seeds_have() -> None:
    curves = [made_up([0.1, 0.2, 0.3])["curve"], made_up([0.1, 0.4])["curve"]]
    points = points_of(curves)
    assert [point.round for point in points] == [10]
    assert points[0].accuracy == pytest.approx(0.3)
    assert not math.isnan(points[0].spread or 0.0)


def test_the_epsilon_of_devices_that_send_once_is_that_of_the_run() -> None:
    epsilon = {"basis": "proven", "unit": "client", "trust": "distributed", "value": 5.0}
    once = made_up([0.1, 0.8], method="sketch-skellam", epsilon={**epsilon, "rounds": 1})
    drawn = drawn_of({"sound, proven": [once]}, sound="proven")
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


def test_lead_has_every_reading_and_what_epsilons_mean() -> None:
    runs = {
        "ours": [made_up([0.1, 0.3], epsilon=CLAIMED)],
        "ours without padding": [made_up([0.1, 0.6], epsilon=CLAIMED)],
        "base": [made_up([0.1, 0.5], epsilon=CLAIMED)],
    }
    lead = drawn_of(runs).lead
    assert "30.0%, without padding 60.0% against 50.0%" in lead
    assert "base's: claimed; coordinate unit, replace, local trust" in lead
    del runs["ours"]
    assert "without padding 60.0% against 50.0%" in drawn_of(runs).lead

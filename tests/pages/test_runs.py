"""Pages of a user's own runs: what they show, and what they say about it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest

from diffsketch.pages.exhibits import Page, Plot
from diffsketch.pages.page import render
from diffsketch.pages.runs import page_of_runs
from diffsketch.privacy.claim import Basis, Epsilon
from tests.app.commands import invoke, read_lines
from tests.pages.runs_sample import SCRIPT, plot_of, results_of, series_of


@pytest.fixture(scope="module")
def page(compared: Path) -> Page:
    return page_of_runs([compared])


def measured(path: Path, key: str) -> list[Any]:
    return [line[key] for line in read_lines(path / "metrics.jsonl")]


def test_seeds_are_one_line_with_their_spread(page: Page, compared: Path) -> None:
    seeds = [measured(compared / "plain" / f"seed-{seed}", "accuracy") for seed in (0, 1)]
    assert seeds[0] != seeds[1]  # or a spread would say nothing
    line = series_of(page, "mnist-accuracy", "plain")
    assert line.kind == "band"
    assert line.y == pytest.approx([statistics.fmean(pair) for pair in zip(*seeds, strict=True)])
    assert line.low == tuple(min(pair) for pair in zip(*seeds, strict=True))
    assert line.high == tuple(max(pair) for pair in zip(*seeds, strict=True))
    assert "from the lowest to the highest seed" in plot_of(page, "mnist-accuracy").caption
    row = results_of(page)["plain"]
    assert row["Seeds"] == 2
    assert row["±"] == pytest.approx(100 * statistics.stdev(one[-1] for one in seeds), abs=1e-5)


def test_axes_to_switch_to(page: Page) -> None:
    plot, line = plot_of(page, "mnist-accuracy"), series_of(page, "mnist-accuracy", "plain")
    message = 48 + 4 * 7850
    assert (plot.x.log, [axis.log for axis in plot.other_x]) == (True, [False, True])
    assert line.x == (0.0, 2.0 * 6 * message, 4.0 * 6 * message)
    rounds, up = (line.other_x[axis.label] for axis in plot.other_x)
    assert rounds == (0.0, 2.0, 4.0)
    assert up == (0.0, 2.0 * 3 * message, 4.0 * 3 * message)


def test_what_diverged_is_shown_so(page: Page) -> None:
    assert series_of(page, "mnist-accuracy", "hot").ended == "diverged"
    assert series_of(page, "mnist-accuracy", "plain").ended == ""
    loss = series_of(page, "mnist-loss", "hot")
    assert loss.y[0] is not None
    assert loss.y[-1] is None
    assert results_of(page)["hot"]["Outcome"] == "diverged (of 4 rounds)"
    assert "Diverged: hot (2 of 2)." in page.sections[0].lead


def test_the_legend_has_all_words_of_each_epsilon(page: Page) -> None:
    expected = {
        "plain": ("none", "client", "replace", "local"),
        "diffsketch:rows=2,cols=30": ("claimed", "coordinate", "replace", "local"),
        "gauss": ("proven", "client", "replace", "local"),
    }
    for section in page.sections:
        for plot in section.exhibits:
            for one in plot.series if isinstance(plot, Plot) else ():
                epsilon = one.epsilon
                assert epsilon is not None, (plot.name, one.name)
                scope = epsilon.scope
                words = (epsilon.basis, scope.unit, scope.relation, scope.trust)
                assert words == expected.get(one.name, words), (plot.name, one.name)
    cell = results_of(page)["gauss"]["Epsilon"]
    assert isinstance(cell, Epsilon)
    assert (cell.basis, cell.rounds) == (Basis.PROVEN, 4)
    html = render(page)
    for word in ("proven", "claimed", "coordinate unit", "client unit", "replace", "local trust"):
        assert word in html


def test_epsilon_over_rounds(page: Page, compared: Path) -> None:
    plot = plot_of(page, "mnist-epsilon")
    assert [one.name for one in plot.series] == ["diffsketch:rows=2,cols=30", "gauss"]
    claimed, proven = plot.series
    assert (claimed.dashed, proven.dashed) == (True, False)
    assert claimed.y == (None, 1.0, 1.0)  # of one round: it does not add up
    spent = [one["value"] for one in measured(compared / "gauss" / "seed-0", "epsilon")]
    assert list(proven.y) == spent
    assert spent[1] < spent[2]
    (budget,) = plot.marks
    assert budget.epsilon is not None
    assert (budget.value, budget.epsilon.basis, budget.epsilon.rounds) == (9.0, Basis.PROVEN, 4)
    assert "No epsilon to draw: plain" in plot.caption


def test_noise_and_time(page: Page) -> None:
    (noise,) = plot_of(page, "mnist-noise").series
    assert noise.name == "diffsketch:rows=2,cols=30"
    time = plot_of(page, "mnist-time")
    assert time.categories == tuple(one.name for one in time.series)
    assert all(
        one.kind == "bars" and one.y[0] and one.low <= one.y <= one.high for one in time.series
    )


def test_leads_claims_settings_and_origin(page: Page) -> None:
    rows = results_of(page)
    best = max(rows.values(), key=lambda row: row["Accuracy, %"])
    assert f"{best['Run']} is the most accurate with {best['Accuracy, %']:.2f}%" in page.lead
    assert "Proven privacy: gauss." in page.sections[0].lead
    assert page.sections[-1].name == "privacy"
    text = "\n".join(page.sections[-1].text)
    for words in (
        "With exact noise: Proven: discrete Gaussian noise",
        "Claimed, not proven",
        "plain; hot: No claim",
    ):
        assert words in text
    assert "Simulated: the noise follows from the seed" in text
    settings = {row[0]: row[1] for row in page.sections[0].details["Settings of gauss"].rows}
    assert (settings["noise_multiplier"], settings["seeds"]) == (5.0, "0, 1")
    assert page.origin["Seeds"] == "0, 1"
    assert "torch" in page.origin["Versions of the runs"]


def test_names_are_no_markup(page: Page) -> None:
    assert SCRIPT in results_of(page)  # as it is, here
    html = render(page)
    assert SCRIPT not in html
    assert "&lt;script&gt;alert(1)" in html


def test_runs_are_found_below_and_counted_once(compared: Path, page: Page) -> None:
    one = compared / "plain" / "seed-0"
    again = page_of_runs([compared.parent, compared, one, compared / "plain" / ".." / "plain"])
    assert results_of(again) == results_of(page)
    alone = page_of_runs([one])
    assert list(results_of(alone)) == ["plain"]  # its name in the comparison
    assert results_of(alone)["plain"]["Seeds"] == 1


def test_one_section_for_each_task(compared: Path, tmp_path: Path) -> None:
    devices = ["--task", "mnist-devices", "--workers", "6", "--cohort", "2", "--rounds", "2"]
    other = invoke("run", *devices, "--method", "none", "--output", tmp_path / "other")
    assert other.exit_code == 0, other.output
    page = page_of_runs([compared, tmp_path])
    assert [section.name for section in page.sections] == ["mnist", "mnist-devices", "privacy"]
    assert page.title == "Training runs: MNIST, MNIST*"

"""Pages of a user's own runs: which become one line, what they show and say, and `report`."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import shutil
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app import session
from diffsketch.app.files import locked
from diffsketch.app.run_pages import page_of_runs, plots_of, results_of, table_of
from diffsketch.app.run_records import RunLine, RunRecord, lines_of
from diffsketch.app.settings import RunConfig
from diffsketch.pages.exhibits import Page, Plot, Series, Table
from diffsketch.pages.page import render
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from tests.app.commands import done, interrupted, invoke, read_lines, refused
from tests.training.reference import write_images

SMALL = ["--workers", "3", "--samples", "20", "--rounds", "4", "--evaluate-every", "2"]
SCRIPT = "<script>alert(1)</script>"
SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


def plot_of(page: Page, name: str) -> Plot:
    found = {one.name: one for section in page.sections for one in section.exhibits}
    plot = found[name]
    assert isinstance(plot, Plot)
    return plot


def series_of(page: Page, plot: str, name: str) -> Series:
    return next(one for one in plot_of(page, plot).series if one.name == name)


def rows_of(page: Page) -> dict[str, dict[str, Any]]:
    table = next(one for one in page.sections[0].exhibits if isinstance(one, Table))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {str(row["Run"]): row for row in rows}


def spent(rounds: int) -> dict[str, Any]:
    return Epsilon(float("inf"), 1e-5, rounds, Basis.NONE, SCOPE).to_json()


def point(index: int, accuracy: float, *, loss: float | None = 1.0) -> dict[str, Any]:
    return {
        "round": index, "accuracy": accuracy, "loss": loss, "bytes_up": 100 * index,
        "bytes_down": 10 * index, "epsilon": spent(index), "noised_share": None,
    }  # fmt: skip


def made(
    *curve: dict[str, Any],
    outcome: str = "finished",
    name: str | None = None,
    path: str = "somewhere",
    **settings: Any,
) -> RunRecord:
    """A run that none was."""
    config = RunConfig(**{"method": "none", "algorithm": "sgd", "rounds": 10, **settings})
    points = curve or (point(0, 0.1),)
    summary = {
        **points[-1], "outcome": outcome, "reason": "", "diverging": False,
        "rounds": points[-1]["round"], "message_bytes": 7, "claim": "", "assumes": [],
    }  # fmt: skip
    ended = outcome != "unfinished"
    return RunRecord(Path(path), config, summary if ended else None, points, {}, name=name)


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison with two seeds: no claim, a claim, a proof, a run that diverges, an odd name."""
    here = tmp_path_factory.mktemp("compared")
    (here / "all.toml").write_text(
        '[[run]]\nname = "plain"\nmethod = "none"\n'
        f'[[run]]\nname = "{SCRIPT}"\nmethod = "sketch"\nrows = 2\ncols = 30\n'
        '[[run]]\nmethod = "diffsketch"\nrows = 2\ncols = 30\n'
        '[[run]]\nname = "gauss"\nmethod = "sketch-gaussian"\nclip = 1.0\nnoise_multiplier = 5.0\n'
        'rows = 2\ncols = 30\nbudget = 9.0\n'
        '[[run]]\nname = "hot"\nmethod = "none"\nlearning_rate = 1e38\n'
    )  # fmt: skip
    out = here / "out"
    done("compare", *SMALL, "--config", here / "all.toml", "--seeds", "2", "--output", out)
    return out


@pytest.fixture(scope="session")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was interrupted after 3 of 4 rounds."""
    path = tmp_path_factory.mktemp("stopped") / "run"
    interrupted(3, "run", *SMALL, "--method", "none", "--output", path)
    return path


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
    row = rows_of(page)["plain"]
    assert row["Seeds"] == 2
    assert row["Accuracy, %"] == pytest.approx(50 * sum(one[-1] for one in seeds), abs=1e-5)
    assert row["±"] == pytest.approx(100 * statistics.stdev(one[-1] for one in seeds), abs=1e-5)


def test_axes_to_switch_to(page: Page) -> None:
    plot, line = plot_of(page, "mnist-accuracy"), series_of(page, "mnist-accuracy", "plain")
    message, total = 4 + 4 * 7850, 8 + 4 * 7850
    assert (plot.x.log, [axis.log for axis in plot.other_x]) == (True, [False, True])
    assert line.x == (0.0, 2.0 * 3 * (message + total), 4.0 * 3 * (message + total))
    rounds, up = (line.other_x[axis.label] for axis in plot.other_x)
    assert rounds == (0.0, 2.0, 4.0)
    assert up == (0.0, 2.0 * 3 * message, 4.0 * 3 * message)


def test_what_diverged_is_shown_so(page: Page) -> None:
    assert series_of(page, "mnist-accuracy", "hot").ended == "diverged"
    assert series_of(page, "mnist-accuracy", "plain").ended == ""
    loss = series_of(page, "mnist-loss", "hot")
    assert loss.y[0] is not None
    assert loss.y[-1] is None
    assert rows_of(page)["hot"]["Outcome"] == "diverged (of 4 rounds)"


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
    cell = rows_of(page)["gauss"]["Epsilon"]
    assert isinstance(cell, Epsilon)
    assert (cell.basis, cell.rounds) == (Basis.PROVEN, 4)
    html = render(page)
    for word in ("proven", "claimed", "coordinate unit", "client unit", "replace", "local trust"):
        assert word in html
    assert SCRIPT in rows_of(page)  # a name, as it is
    assert SCRIPT not in html
    assert "&lt;script&gt;alert(1)" in html


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


def test_leads_claims_settings_and_origin(page: Page) -> None:
    rows = rows_of(page)
    ranked = sorted(rows.values(), key=lambda row: -row["Accuracy, %"])
    told = [f"{row['Run']} reaches {row['Accuracy, %']:.2f}%" for row in ranked]
    assert [text in page.lead for text in told] == [True] * 3 + [False] * 2
    assert page.lead.index(told[0]) < page.lead.index(told[1]) < page.lead.index(told[2])
    assert page.sections[-1].name == "privacy"
    text = "\n".join(page.sections[-1].text)
    for words in (
        "With exact noise: Proven: discrete Gaussian noise",
        "Claimed, not proven",
        "plain; hot: No claim",
    ):
        assert words in text
    assert "Simulated: the noise follows from the seed" in text
    (table,) = page.sections[0].details["Settings of gauss"]
    assert isinstance(table, Table)
    settings = {row[0]: row[1] for row in table.rows}
    assert (settings["noise_multiplier"], settings["seeds"]) == (5.0, "0, 1")
    (runs,) = page.sections[0].details["Single runs"]
    assert isinstance(runs, Table)
    assert {row[runs.columns.index("Seed")] for row in runs.rows} == {0, 1}
    assert "torch" in str(runs.rows[0][runs.columns.index("Version")])


def test_runs_are_found_below_and_counted_once(compared: Path, page: Page) -> None:
    one = compared / "plain" / "seed-0"
    again = page_of_runs([compared.parent, compared, one, compared / "plain" / ".." / "plain"])
    assert rows_of(again) == rows_of(page)
    alone = page_of_runs([one])
    assert list(rows_of(alone)) == ["plain"]  # its name in the comparison
    assert rows_of(alone)["plain"]["Seeds"] == 1


def test_one_section_for_each_task(compared: Path, tmp_path: Path) -> None:
    devices = ["--task", "mnist-devices", "--workers", "6", "--cohort", "2", "--rounds", "2"]
    done("run", *devices, "--method", "none", "--output", tmp_path / "other")
    page = page_of_runs([compared, tmp_path])
    assert [section.name for section in page.sections] == ["mnist", "mnist-devices", "privacy"]
    assert page.title == "Training runs: MNIST, MNIST*"


def test_own_data_has_its_name(tmp_path: Path) -> None:
    sizes = ["--workers", "3", "--samples", "4", "--rounds", "1", "--method", "none"]
    for name in ("mine", "=cmd"):
        (tmp_path / name).mkdir()
        write_images(tmp_path / name)
        output = tmp_path / f"run-{name}"
        done("run", *sizes, "--data-dir", tmp_path / name, "--output", output)
    alone = page_of_runs([tmp_path / "run-mine"])
    assert alone.title == "Training runs: mine"
    plots = [one.name for one in alone.sections[0].exhibits if isinstance(one, Plot)]
    assert plots == ["data-1-accuracy", "data-1-loss"]
    both = page_of_runs([tmp_path / "run-mine", tmp_path / "run-=cmd"])
    assert [section.title for section in both.sections[:2]] == ["mine", "=cmd"]


def test_a_seed_that_stopped_keeps_its_last_value() -> None:
    """Else the mean would rise when a bad seed is gone; nor is there a jump at its last round."""
    whole = made(point(0, 0.1), point(5, 0.5), point(10, 0.9))
    gone = made(point(0, 0.1), point(3, 0.2, loss=None), outcome="diverged", seed=1)
    (line,), _ = lines_of([whole, gone])
    accuracy, loss = plots_of([line], prefix="p")
    assert accuracy.series[0].other_x["Rounds"] == (0.0, 5.0, 10.0)
    assert accuracy.series[0].y == pytest.approx((0.1, 0.35, 0.55))
    assert accuracy.series[0].ended == "1 of 2 seeds diverged"
    assert loss.series[0].y == (1.0, None, None)
    assert table_of([line], "p").rows[0][1] == "1 of 2 finished, 1 of 2 diverged"


def test_a_seed_that_goes_on_counts_as_far_as_it_is() -> None:
    whole = made(point(0, 0.1), point(5, 0.5), point(10, 0.9))
    open_end = made(point(0, 0.1), point(5, 0.3), outcome="unfinished", seed=1)
    (line,), _ = lines_of([whole, open_end])
    accuracy = plots_of([line], prefix="p")[0].series[0]
    assert accuracy.y == pytest.approx((0.1, 0.4, 0.9))
    assert accuracy.ended == "1 of 2 seeds unfinished"
    assert "seed 1: 5 of 10 rounds so far" in accuracy.note
    assert results_of(line)["Accuracy, %"] == 90  # of those that ended


def test_the_epsilon_of_a_line_is_the_largest_of_its_seeds() -> None:
    totals = [Epsilon(value, 1e-5, 5, Basis.PROVEN, SCOPE) for value in (1.0, 3.0, 2.0)]
    points = [{**point(5, 0.5), "epsilon": total.to_json()} for total in totals]
    (line,), _ = lines_of([made(one, seed=seed) for seed, one in enumerate(points)])
    assert line.epsilon == totals[1]
    assert results_of(line)["Epsilon"] == totals[1]


def names(*runs: RunRecord) -> list[str]:
    return [line.name for line in lines_of(runs)[0]]


def test_names_say_what_differs() -> None:
    size: dict[str, Any] = {"rows": 7, "cols": 22}
    sketch: dict[str, Any] = {"method": "sketch", "combine": "mean", "family": "blocked"}
    assert names(made()) == ["none"]
    assert names(made(), made(**sketch, **size)) == ["none", "sketch"]
    assert names(made(**sketch, **size), made(**sketch, rows=1, cols=154)) == [
        "sketch 7x22", "sketch 1x154",
    ]  # fmt: skip
    diffsketch: dict[str, Any] = {"method": "diffsketch", "combine": "median", **size}
    assert names(
        made(**diffsketch, per_round=1.0),
        made(**diffsketch, per_round=0.5),
        made(**sketch, **size),  # has another default of `combine`: its name says so
        made(rounds=2000),
    ) == [
        "diffsketch, 10 rounds, epsilon 1 a round",
        "diffsketch, 10 rounds, epsilon 0.5 a round",
        "sketch, 10 rounds",
        "none, 2,000 rounds",
    ]
    assert names(made(learning_rate=0.1), made(learning_rate=0.5)) == [
        "none, learning rate 0.1", "none, learning rate 0.5",
    ]  # fmt: skip
    assert names(made(budget=3.0), made()) == ["none, budget 3", "none"]


def test_names_of_comparisons_are_kept() -> None:
    assert names(made(name="a", budget=1.0), made(name="b")) == ["a", "b"]
    assert names(made(name="a", budget=1.0), made(name="a", budget=2.0)) == [
        "a, budget 1", "a, budget 2",
    ]  # fmt: skip
    assert names(made(name="a"), made(name="b")) == ["a", "b"]  # though their settings are one


def test_a_run_twice_is_counted_once_unless_it_differs() -> None:
    long = made(point(0, 0.1), point(5, 0.5), path="long")
    short = made(point(0, 0.1), path="short", outcome="unfinished")
    lines, notes = lines_of([short, long])
    assert [line.runs for line in lines] == [(long,)]
    assert notes == ["short repeats long, and is counted once."]
    other = made(point(0, 0.1), point(5, 0.6), path="other")
    lines, notes = lines_of([long, other])
    assert [line.name for line in lines] == ["none (long)", "none (other)"]
    assert notes == []


def test_many_seeds_in_a_line() -> None:
    line = RunLine("a", tuple(made(seed=seed) for seed in range(3, 40)))
    assert line.seeds == "3 to 39"
    assert RunLine("a", tuple(made(seed=seed) for seed in (1, 2, 9))).seeds == "1, 2, 9"


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    files = [item for item in sorted(path.rglob("*")) if item.is_file()]
    return {str(item): (item.read_bytes(), item.stat().st_mtime_ns) for item in files}


def test_nothing_is_locked_or_changed(
    compared: Path, stopped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a lock was taken")

    leftover = stopped / f".checkpoint.safetensors.{os.getpid() + 1}.tmp"
    leftover.write_bytes(b"half")  # that another process may be writing now
    before = tree(compared), tree(stopped)
    with locked(stopped):  # a process that writes keeps nobody from reading
        monkeypatch.setattr(fcntl, "flock", refuse)
        page_of_runs([compared, stopped])
    assert (tree(compared), tree(stopped)) == before
    leftover.unlink()
    with pytest.raises(AssertionError, match="a lock was taken"):  # so the check can fail
        locked(stopped).__enter__()


def test_unfinished_runs(stopped: Path) -> None:
    page = page_of_runs([stopped])
    row = rows_of(page)["none"]
    assert (row["Outcome"], row["Rounds"]) == ("unfinished (of 4 rounds)", 3)
    assert "Bytes of a message" not in row  # nobody knows it before the summary
    assert row["ms a round"] > 0
    line = series_of(page, "mnist-loss", "none")
    assert (line.x, line.ended) == ((0.0, 2.0), "unfinished")
    assert page.notice == "1 of 1 runs unfinished."
    assert "so far" in page.lead


def test_a_run_that_has_just_begun(stopped: Path, tmp_path: Path) -> None:
    for name in ("run.json", "config.toml"):
        (tmp_path / name).write_bytes((stopped / name).read_bytes())
    page = page_of_runs([tmp_path])
    assert rows_of(page)["none"]["Rounds"] == 0
    assert [one.name for one in page.sections[0].exhibits] == ["mnist-results"]
    render(page)


@pytest.fixture
def here(tmp_path: Path, compared: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that commands are run in, with a comparison below `runs`."""
    shutil.copytree(compared, tmp_path / "runs" / "compare")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_page_figures_and_data(here: Path) -> None:
    result = done("report", "runs")
    assert "Wrote runs/report/index.html\n" in result.stdout
    assert "Wrote runs/report/data (" in result.stdout
    html = (here / "runs" / "report" / "index.html").read_text(encoding="utf-8")
    for words in ("Training runs: MNIST", "Test accuracy", "ms a round", "coordinate unit"):
        assert words in html
    names = {path.stem for path in (here / "runs" / "report" / "data").iterdir()}
    assert {"mnist-accuracy", "mnist-epsilon"} <= names
    table = (here / "runs" / "report" / "data" / "mnist-results.csv").read_text(encoding="utf-8")
    assert "claimed" in table
    # The next one has a name of its own, and reports are no runs.
    assert "Wrote runs/report-2/index.html" in done("report", "runs").stdout


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def other_record(path: Path) -> None:
    """A measurement whose seal nobody checks: without one of its values."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    del lines[1]["epsilon"]["unit"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


RUN = Path("runs/compare/plain/seed-0")


@pytest.mark.parametrize(
    ("given", "damage", "said"),
    [
        ("nowhere", None, "nowhere: no such directory"),
        ("empty", lambda: Path("empty").mkdir(), "empty: there is no run in it"),
        (RUN, lambda: change(RUN / "config.toml", "rounds = 4", "rounds = 5"), "toml: changed"),
        (RUN, lambda: change(RUN / "run.json", "run 3", "run 9"), "another version"),
        (RUN, lambda: (RUN / "metrics.jsonl").unlink(), "metrics.jsonl: damaged or missing"),
        (RUN, lambda: other_record(RUN / "metrics.jsonl"), "metrics.jsonl: damaged: line 2"),
        (RUN, lambda: change(RUN / "metrics.jsonl", '"accuracy": 0.', '"accuracy": 7.'), "from 0"),
        (RUN, lambda: change(RUN / "metrics.jsonl", '"round": 2', '"round": 0'), "above 0, got 0"),
        (RUN, lambda: change(RUN / "summary.json", "finished", "diverged"), "json: damaged"),
        (
            "runs",
            lambda: change(Path("runs/compare/comparison.plan.json"), "plain", "plane"),
            "comparison.plan.json: damaged",
        ),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("here")
def test_what_is_damaged_is_said_in_a_line(
    given: str | Path, damage: Callable[[], object] | None, said: str
) -> None:
    if damage is not None:
        damage()
    before = sorted(Path.cwd().rglob("*"))
    result = invoke("report", "runs/compare/diffsketch-rows=2-cols=30", given, "--output", "page")
    assert said in refused(result)
    assert result.stdout == ""
    assert sorted(Path.cwd().rglob("*")) == before


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "page").mkdir()
    (here / "page" / "notes.txt").write_text("mine")
    said = refused(invoke("report", "runs", "--output", "page"))
    assert "--output must be a new or empty directory, got --output='page'" in said
    assert [path.name for path in (here / "page").iterdir()] == ["notes.txt"]


@pytest.mark.parametrize(("command", "missing"), [("report", "plotly"), ("audit", "matplotlib")])
def test_a_missing_extra_is_said_in_a_line(
    command: str, missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pages.page", "auditing.pictures"):
        package, _, module = f"diffsketch.{name}".rpartition(".")
        monkeypatch.delitem(sys.modules, f"diffsketch.{name}", raising=False)
        monkeypatch.delattr(importlib.import_module(package), module, raising=False)
    for name in (missing, *(one for one in sys.modules if one.startswith(f"{missing}."))):
        monkeypatch.setitem(sys.modules, name, None)
    given = [tmp_path] if command == "report" else ["--output", tmp_path / "new"]
    result = invoke(command, *given)
    said = refused(result)
    assert f' {command} needs the extra pages: python -m pip install ".[pages]" in the' in said
    assert list(tmp_path.iterdir()) == []
    if command != "report":
        done(command, "--list")


def test_a_missing_package_of_secure_sums_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def need(*_: object, **__: object) -> None:
        importlib.reload(importlib.import_module("diffsketch.secure_sum.primitives"))

    importlib.import_module("diffsketch.secure_sum.primitives")
    monkeypatch.setattr(session, "start", need)
    for name in [one for one in sys.modules if one.partition(".")[0] == "cryptography"]:
        monkeypatch.setitem(sys.modules, name, None)
    said = refused(invoke("run"))
    assert 'needs the extra secure: python -m pip install ".[secure]" in the clone' in said

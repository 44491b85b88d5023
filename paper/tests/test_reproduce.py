"""Reproducing: nothing is done twice, nothing is lost, and the page says what it is."""

from __future__ import annotations

import io
import json
import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app.files import RunBusy, locked
from diffsketch.app.terminal import LastingConsole
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.pages.exhibits import Axis, Plot, Series
from diffsketch.training.simulation import Simulation
from paper.claims import ClaimVerdict, Standing, judged, statements
from paper.experiments import Experiment, Results
from paper.figures import Figure
from paper.reproduce import JobsFailed, redraw, reproduce
from paper.rules import Statement
from paper.tests import tiny

HERE = "paper.reproduce"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.register(monkeypatch)
    # The formulas of some of the rules take seconds; `test_claims.py` has them.
    verdict = ClaimVerdict(Standing.NOT_MEASURED, "Nothing.")
    monkeypatch.setattr(f"{HERE}.judged", lambda *_, **__: dict.fromkeys(statements(), verdict))
    return tiny.both(tmp_path / "settings")


def run(
    output: Path, folder: Path, *names: str, reduced: bool = False, jobs: int = 1, status: int = 0
) -> str:
    console = LastingConsole(file=io.StringIO(), width=100)
    found = reproduce(names, output, console, reduced=reduced, jobs=jobs, folder=folder)
    assert isinstance(console.file, io.StringIO)
    printed = console.file.getvalue()
    assert found == status, printed
    return printed


def results_of(output: Path) -> Any:
    return json.loads((output / "results.json").read_text())


def text_of(output: Path) -> str:
    """The text that a reader sees of the page."""
    page = (output / "index.html").read_text()
    return " ".join(re.sub(r"<[^>]*>", " ", page[page.index("<body") :]).split())


def test_a_page_is_made_once_and_only_what_is_damaged_again(
    folder: Path, tmp_path: Path, steps: list[int]
) -> None:
    output = tmp_path / "out"
    printed = run(output, folder)
    # Both experiments have the same training runs: they are done once.
    assert len(steps) == tiny.RUN_STEPS
    for text in ("2 experiments, 5 jobs", "5 jobs done, 0 from the cache", "not measured",
                 f"Wrote {output / 'index.html'}"):  # fmt: skip
        assert text in printed
    data, seen = results_of(output), text_of(output)
    assert (data["command"], data["reduced"]) == ("python -m paper", False)
    assert set(data["versions"]) >= {"diffsketch", "torch", "numpy", "source"}
    assert len(data["claims"]) == len(statements())
    two = data["experiments"]["two"]
    assert [(one["name"], one["seed"]) for one in two["runs"]] == [
        ("plain", 0), ("plain", 1), ("sketch", 0), ("sketch", 1),
    ]  # fmt: skip
    assert two["runs"][0]["curve"]["round"] == [0, 2, 4, 6]
    assert two["measurements"][0]["result"] == {"sum": 3}
    assert (two["facts"]["value/tiny/0"], two["facts"]["most"]) == (3, "inf")
    for text in (
        "Figure 0", "Small it is.", "the paper says It is small.", "What is true", "Proven",
        "workers = 3", "python -m paper two", "seeds 0 to 1", "torch",
    ):  # fmt: skip
        assert text in seen, text
    assert "Reduced run" not in seen + printed
    assert (output / "reproduction.md").is_file()
    assert (output / "data" / "two-all.csv").is_file()

    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    del steps[:]
    assert "0 jobs done, 5 from the cache" in run(output, folder)
    assert steps == []
    assert {path: path.read_bytes() for path in files} == files
    path = sorted((output / "cache" / "results").glob("*.json"))[0]
    path.write_bytes(path.read_bytes()[:100])
    printed = run(output, folder, "one", "Figure 0")
    assert "note: 1 result made again: damaged, or made by other code" in printed
    assert "1 job done, 3 from the cache" in printed
    for text in (printed, text_of(output)):
        assert "Not asked for, so left out: two." in text
    assert list(results_of(output)["experiments"]) == ["one"]
    # No number or picture stays that is not on the page.
    assert (output / "data" / "one-all.csv").is_file()
    assert not (output / "data" / "two-all.csv").exists()


@pytest.mark.slow
def test_a_full_run_judges_once_and_draws_all_pictures(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, drawn, asked = tmp_path / "out", list[str](), list[Any]()
    plain = tiny.draw

    def with_plot(experiment: Experiment, results: Results) -> Figure:
        line = Series("line", (1.0, 2.0), (0.5, 0.8))
        plot = Plot(f"{experiment.name}-plot", "Plot", Axis("x"), Axis("y"), (line,))
        return replace(plain(experiment, results), exhibits=(plot,))

    def judge_all(facts: Any, *, reduced: bool) -> dict[Statement, ClaimVerdict]:
        asked.append(facts)
        assert not reduced
        return dict.fromkeys(statements(), ClaimVerdict(Standing.FAILS, "Nothing."))

    def picture(plot: Plot, _: Any, *, form: str = "png") -> bytes:
        drawn.append(f"{plot.name}.{form}")
        return f"{form} of {plot.name}".encode() + b" " * (form == "png")

    monkeypatch.setattr("paper.document.picture", picture)
    monkeypatch.setattr("diffsketch.app.terminal.LINE_SECONDS", 0.0)
    monkeypatch.setattr(f"{HERE}.judged", judge_all)
    tiny.register(monkeypatch, draw=with_plot)
    printed = run(output, folder)
    for text in ("Drawing the figures 0%", "Making the pictures 50%"):
        assert text in printed
    assert "claims of title, abstract and captions" in printed
    # The document has pictures in the smaller form.
    for name in ("one-plot", "two-plot"):
        assert (output / "images" / "reproduction" / f"{name}.svg").is_file()
        assert drawn.count(f"{name}.svg") == 1
    assert [list(facts) for facts in asked] == [["one", "two"]]


def test_a_recorded_run_is_drawn_again_to_the_same_documents(
    folder: Path, tmp_path: Path, steps: list[int]
) -> None:
    """Nothing is run; what it lacks comes from the cache."""
    output, docs = tmp_path / "out", tmp_path / "docs"
    run(output, folder)
    for path in sorted(output.rglob("*")):
        if path.is_file() and path.name.partition(".")[0] in ("reproduction", "results"):
            copy = docs / path.relative_to(output)
            if "cache" not in path.parts and path.parent != output:
                copy.parent.mkdir(parents=True, exist_ok=True)
                copy.write_bytes(path.read_bytes())
    del steps[:]

    def draw(cache: Path) -> str:
        console = LastingConsole(file=io.StringIO(), width=100)
        assert redraw(docs, cache, console, folder=folder) == 0
        return (docs / "reproduction.md").read_text()

    again = draw(tmp_path / "nothing")
    assert (again, steps) == ((output / "reproduction.md").read_text(), [])
    for path in (output / "reproduction").rglob("*"):
        if path.is_file():
            assert (docs / path.relative_to(output)).read_bytes() == path.read_bytes(), path
    # The settings ask for a third seed: which the recorded run lacks, and a cache may have.
    for name in ("one", "two"):
        text = (folder / f"{name}.toml").read_text()
        (folder / f"{name}.toml").write_text(text.replace("seeds = 2", "seeds = 3", 1))
    with pytest.raises(MismatchError, match="lacks one, plain, seed 2; python -m paper makes it"):
        draw(tmp_path / "nothing")
    more = tmp_path / "more"
    run(more, folder)
    del steps[:]
    assert "runs added later: 2 by digest" in draw(more)
    assert steps == []
    runs = results_of(docs / "reproduction")["experiments"]["two"]["runs"]
    assert {one["seed"] for one in runs if "source" in one} == {2}


def test_drawn_again_and_again_the_seconds_are_those_of_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of runs that two experiments share, with other seeds, so that their means differ."""
    plain = tiny.draw

    def with_seconds(experiment: Experiment, results: Results) -> Figure:
        facts = dict(plain(experiment, results).facts)
        for line in experiment.variants:
            runs = [results[job] for job in experiment.jobs_of(line)]
            seconds = sum(run["times"]["training"] for run in runs)
            rounds = sum(run["summary"]["rounds"] for run in runs)
            facts |= {f"seconds/{panel}/{line.name}": seconds / rounds for panel in line.panels}
        return replace(plain(experiment, results), facts=facts)

    tiny.register(monkeypatch, draw=with_seconds)
    text = (folder / "two.toml").read_text()
    (folder / "two.toml").write_text(text.replace("seeds = 2", "seeds = 3", 1))
    output = tmp_path / "out"
    run(output, folder)
    recorded = output / "reproduction"

    def drawn_again() -> bytes:
        console = LastingConsole(file=io.StringIO(), width=100)
        assert redraw(output, tmp_path / "nothing", console, folder=folder) == 0
        return (recorded / "results.json").read_bytes()

    def seconds_of(name: str) -> dict[str, float]:
        facts = results_of(recorded)["experiments"][name]["facts"]
        return {key: value for key, value in facts.items() if key.startswith("seconds/")}

    first, one, two = (recorded / "results.json").read_bytes(), seconds_of("one"), seconds_of("two")
    assert one.keys() == two.keys() == {"seconds/a/plain", "seconds/b/plain", "seconds/a/sketch"}
    assert not set(one.values()) & set(two.values())
    assert [drawn_again(), drawn_again()] == [first, first]
    # A line that has another run now is calculated, from the mean that is left of each.
    text = (folder / "one.toml").read_text()
    (folder / "one.toml").write_text(text.replace("seeds = 2", "seeds = 3", 1))
    assert (second := drawn_again()) != first
    assert seconds_of("one") == pytest.approx(two)
    assert seconds_of("two") == two
    assert drawn_again() == second


def test_only_a_full_run_is_drawn_again(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    run(output, folder, reduced=True)
    (tmp_path / "reproduction").mkdir()
    numbers = (output / "results.json").read_bytes()
    (tmp_path / "reproduction" / "results.json").write_bytes(numbers)
    with pytest.raises(MismatchError, match=r"must be the results of a full run.*reduced=True"):
        redraw(tmp_path, output, LastingConsole(file=io.StringIO()), folder=folder)


def test_quick_says_so_and_judges_nothing(
    folder: Path, tmp_path: Path, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{HERE}.judged", judged)
    output = tmp_path / "out"
    printed = run(output, folder, reduced=True)
    assert len(steps) == 4
    for text in (printed, text_of(output)):
        words = " ".join(text.replace(" )", ")").replace("( ", "(").split())
        assert "Reduced run (--quick), with one seed and a tenth of the rounds" in words
    assert results_of(output)["reduced"]
    assert "python -m paper --quick" in text_of(output)
    assert not (output / "reproduction.md").exists()
    assert re.search(r"title, abstract and captions:\s+\d+\s+are\s+not\s+judged", printed)
    verdicts = {one["verdict"].partition(" (")[0] for one in results_of(output)["claims"]}
    assert verdicts == {"not judged"}
    assert "holds in part" not in text_of(output)


@pytest.mark.slow
def test_interrupted_and_continued_by_two_processes_it_is_the_same(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(whole, folder, "one")
    real, rounds = Simulation.step, 0

    def step(self: Simulation) -> Any:
        nonlocal rounds
        rounds += 1
        if rounds == 9:  # in the second run
            signal.raise_signal(signal.SIGTERM)
        return real(self)

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "step", step)
        printed = run(parts, folder, "one", status=143)
    assert "Interrupted; what is done is kept. Continue with the same command." in printed
    assert not (parts / "results.json").exists()
    assert rounds == 9
    printed = run(parts, folder, "one", jobs=2)
    assert "with 2 processes" in printed
    assert "3 jobs done, 1 from the cache" in printed
    for name in ("results.json", "index.html"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


@pytest.mark.slow
def test_failures_take_nothing_from_others(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[int]
) -> None:
    output = tmp_path / "out"

    def failing(settings: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        raise ZeroDivisionError(f"no {settings['numbers']}")

    with monkeypatch.context() as patched:
        tiny.register(patched, measure=failing)
        with pytest.raises(JobsFailed) as caught:
            run(output, folder)
    said = str(caught.value)
    assert "two, sum, seed 0: ZeroDivisionError: no [1, 2]" in said
    assert "what is done is kept, and the same command tries the rest again" in said
    assert "in failing" in (output / "errors.txt").read_text()
    assert list(results_of(output)["experiments"]) == ["one"]
    assert "Left out after an error: two." in text_of(output)
    assert len(steps) == tiny.RUN_STEPS
    printed = run(output, folder)
    assert "1 job done, 4 from the cache" in printed
    assert len(steps) == tiny.RUN_STEPS
    assert list(results_of(output)["experiments"]) == ["one", "two"]
    assert not (output / "errors.txt").exists()


def test_what_is_not_ours_stays(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.mkdir()
    (output / "mine").write_text("mine")
    with pytest.raises(ArgumentError, match="output must be a new or empty directory"):
        run(output, folder)
    assert [path.name for path in output.iterdir()] == ["mine"]
    (output / "mine").unlink()
    run(output, folder, "one", reduced=True)
    files = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    with pytest.raises(ArgumentError, match="has the page of a reduced run"):
        run(output, folder, "one")
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == files
    with locked(output), pytest.raises(RunBusy):
        run(output, folder, "one", reduced=True)


def test_mistakes_write_nothing(folder: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    with pytest.raises(ArgumentError, match=r"got name='tow'; did you mean two\?"):
        run(output, folder, "one", "tow")
    assert not output.exists()

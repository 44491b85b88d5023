"""`diffsketch report`: what it writes and prints, and what it says where it cannot."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diffsketch.app.cli import app

SMALL = ["--workers", "3", "--samples", "20", "--rounds", "4", "--evaluate-every", "2"]


def invoke(*arguments: str | Path) -> Result:
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "compare"
    methods = ["--method", "none", "--method", "diffsketch:rows=2,cols=30"]
    assert invoke("compare", *SMALL, *methods, "--output", path).exit_code == 0
    return path


@pytest.fixture
def here(tmp_path: Path, original: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that commands are run in, with a comparison below `runs`."""
    shutil.copytree(original, tmp_path / "runs" / "compare")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_page_figures_and_data(here: Path) -> None:
    result = invoke("report", "runs")
    assert result.exit_code == 0, result.output
    assert "Wrote runs/report/index.html\n" in result.stdout
    assert "Wrote runs/report/figures (" in result.stdout
    html = (here / "runs" / "report" / "index.html").read_text(encoding="utf-8")
    for words in ("Training runs: MNIST", "Test accuracy", "Time per round", "coordinate unit"):
        assert words in html
    names = {path.stem for path in (here / "runs" / "report" / "figures").iterdir()}
    assert {"mnist-accuracy", "mnist-epsilon", "mnist-time"} <= names
    table = (here / "runs" / "report" / "data" / "mnist-results.csv").read_text(encoding="utf-8")
    assert "claimed" in table
    # The next one has a name of its own, and reports are no runs.
    again = invoke("report", "runs", "--no-pictures", "--title", "Mine & yours")
    assert again.exit_code == 0, again.output
    assert "Wrote runs/report-2/index.html" in again.stdout
    assert not (here / "runs" / "report-2" / "figures").exists()
    html = (here / "runs" / "report-2" / "index.html").read_text(encoding="utf-8")
    assert "<title>Mine &amp; yours" in html


def test_help_says_what_there_is() -> None:
    result = invoke("report", "--help")
    assert result.exit_code == 0
    for words in ("RUN_DIR...", "--output", "--title", "--no-pictures", "runs/report"):
        assert words in result.output


def test_help_does_not_import_what_it_does_not_need() -> None:
    code = (
        "import sys; from diffsketch.app.cli import app\n"
        "heavy = {'torch', 'plotly', 'matplotlib', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)  # noqa: S603


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def other_record(path: Path) -> None:
    """A measurement whose seal nobody checks: without one of its values."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    del lines[1]["epsilon"]["unit"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


RUN = Path("runs/compare/none/seed-0")


@pytest.mark.parametrize(
    ("given", "damage", "said"),
    [
        ("nowhere", None, "nowhere: no such directory"),
        ("runs/compare/comparison.csv", None, "comparison.csv: is no directory"),
        ("empty", lambda: Path("empty").mkdir(), "empty: there is no run in it"),
        (RUN, lambda: (RUN / "config.toml").unlink(), f"{RUN}/config.toml: No such file"),
        (RUN, lambda: change(RUN / "config.toml", "rounds = 4", "rounds = 5"), "toml: changed"),
        (RUN, lambda: (RUN / "run.json").write_text("{"), f"{RUN}/run.json: damaged"),
        (RUN, lambda: change(RUN / "run.json", "run 2", "run 9"), "another version"),
        (RUN, lambda: (RUN / "metrics.jsonl").write_text("x\n"), "line 1 is no measurement"),
        (RUN, lambda: (RUN / "metrics.jsonl").unlink(), "metrics.jsonl: damaged or missing"),
        (RUN, lambda: other_record(RUN / "metrics.jsonl"), "metrics.jsonl: damaged: line 2"),
        (RUN, lambda: change(RUN / "metrics.jsonl", '"accuracy": 0.', '"accuracy": 7.'), "from 0"),
        (RUN, lambda: change(RUN / "metrics.jsonl", '"round": 2', '"round": 0'), "above 0, got 0"),
        (RUN, lambda: change(RUN / "summary.json", "finished", "diverged"), "json: damaged"),
        ("runs", lambda: (RUN / "summary.json").write_text("{}"), f"{RUN}/summary.json: damaged"),
        (
            "runs",
            lambda: change(Path("runs/compare/comparison.plan.json"), "none", "nine"),
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
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert sorted(Path.cwd().rglob("*")) == before


def test_a_checkpoint_of_an_unfinished_run(here: Path) -> None:
    for name in ("summary.json", "model.safetensors"):
        (here / RUN / name).unlink()
    assert invoke("report", RUN, "--output", "page", "--no-pictures").exit_code == 0
    (here / RUN / "checkpoint.safetensors").write_bytes(b"half")
    result = invoke("report", RUN)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "checkpoint.safetensors: damaged checkpoint" in result.stderr


def test_nothing_is_overwritten(here: Path) -> None:
    (here / "page").mkdir()
    (here / "page" / "notes.txt").write_text("mine")
    result = invoke("report", "runs", "--output", "page")
    assert result.exit_code == 2
    assert "--output must be a new or empty directory, got --output='page'" in result.stderr
    assert [path.name for path in (here / "page").iterdir()] == ["notes.txt"]

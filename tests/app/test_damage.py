"""Files of a run that are damaged, lost or changed: said in one line, and nothing thrown away."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app import build as build_module
from diffsketch.training.server import ModelState, Published, ServerOptimizer
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import load_task
from tests.app.commands import before_round, interrupted_in_round, invoke, read, refused

SMALL = [
    "--workers", "3", "--samples", "20", "--rounds", "12", "--evaluate-every", "2",
    "--method", "none",
]  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A run with a checkpoint after 5 rounds."""
    with interrupted_in_round(5):
        assert invoke("run", *SMALL, "--output", tmp_path / "run").exit_code == 130
    return tmp_path / "run"


@pytest.mark.parametrize("also", [[], ["times.json"], ["times.json", "metrics.jsonl"]])
def test_a_lost_checkpoint_is_no_new_run(path: Path, also: list[str]) -> None:
    for name in ("checkpoint.safetensors", *also):
        (path / name).unlink()
    before = {item.name: item.read_bytes() for item in path.iterdir()}
    result = invoke("run", "--resume", path)
    if len(also) == 2:  # nothing is left of its rounds
        assert result.exit_code == 0
        return
    assert "checkpoint.safetensors: missing, though the run had begun" in refused(result)
    assert {item.name: item.read_bytes() for item in path.iterdir()} == before


def test_a_run_is_begun_once_it_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before that, it begins again; there are no measurements of rounds without one."""

    def fail(_: Simulation) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Simulation, "step", fail)
        assert invoke("run", *SMALL, "--output", tmp_path / "run").exit_code == 130
    assert (tmp_path / "run" / "checkpoint.safetensors").exists()
    assert invoke("run", "--resume", tmp_path / "run").exit_code == 0


@pytest.mark.parametrize("content", ["{", "[]", '{"training": "x", "total": 1}', "{}"])
def test_times_are_not_needed(path: Path, content: str) -> None:
    (path / "times.json").write_text(content)
    result = invoke("run", "--resume", path)
    assert result.exit_code == 0, result.output
    (path / "times.json").write_text(content)
    result = invoke("run", "--resume", path)
    assert (result.exit_code, "time " in result.output) == (0, False)


def test_damaged_summary(path: Path) -> None:
    assert invoke("run", "--resume", path).exit_code == 0
    summary = path / "summary.json"
    for content in ("{", '{"accuracy": 1}', summary.read_text().replace("finished", "budget")):
        summary.write_text(content)
        assert "summary.json: damaged" in refused(invoke("run", "--resume", path))


def test_a_lost_model_is_written_again(path: Path) -> None:
    assert invoke("run", "--resume", path).exit_code == 0
    before = {item.name: item.read_bytes() for item in path.iterdir()}
    (path / "model.safetensors").unlink()
    assert invoke("run", "--resume", path).exit_code == 0
    after = {item.name: item.read_bytes() for item in path.iterdir()}
    del before["times.json"], after["times.json"]
    assert after == before


def test_lost_measurements_are_not_made_up(path: Path) -> None:
    (path / "metrics.jsonl").unlink()
    assert "metrics.jsonl: missing" in refused(invoke("run", "--resume", path))
    assert not (path / "metrics.jsonl").exists()


@pytest.mark.parametrize("part", ["train", "test"])
def test_changed_data_is_said(path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    def load(*arguments: Any, **options: Any) -> Any:
        task = load_task(*arguments, **options)
        examples = task.test if part == "test" else task.devices.examples
        examples.labels[0] = (examples.labels[0] + 1) % 10
        return task

    monkeypatch.setattr(build_module, "load_task", load)
    before = {item.name: item.read_bytes() for item in path.iterdir()}
    said = refused(invoke("run", "--resume", path))
    what = "the test data has" if part == "test" else "the data has"
    assert f"{what} changed since the run began" in said
    assert len(said) < 300
    assert {item.name: item.read_bytes() for item in path.iterdir()} == before


def test_a_directory_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with before_round(5, lambda: shutil.rmtree(path)):
        said = refused(invoke("run", *SMALL, "--checkpoint-seconds", "0", "--output", path))
    assert "the directory of the run is gone" in said
    assert "intact" not in said


def test_the_same_settings_write_the_same_files(tmp_path: Path) -> None:
    for name in ("one", "other"):
        assert invoke("run", *SMALL, "--output", tmp_path / name).exit_code == 0
    for item in (tmp_path / "one").iterdir():
        if item.name not in ("command.txt", "times.json"):
            assert item.read_bytes() == (tmp_path / "other" / item.name).read_bytes(), item.name


def test_a_diverged_round_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, path = ServerOptimizer.advance, tmp_path / "run"

    def advance(
        self: ServerOptimizer, model: ModelState, published: Published, **rest: Any
    ) -> ModelState:
        after = real(self, model, published, **rest)
        if published.round_index == 2:
            return ModelState(after.weights / 0, after.memory)
        return after

    monkeypatch.setattr(ServerOptimizer, "advance", advance)
    result = invoke("run", *SMALL, "--output", path)
    assert result.exit_code == 2, result.output
    summary = read(path / "summary.json")
    assert (summary["outcome"], summary["rounds"]) == ("diverged", 2)
    assert summary["bytes_up"] == summary["bytes_down"] == 3 * 3 * (48 + 4 * 7850)

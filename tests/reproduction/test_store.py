"""Results are kept by their settings; what is damaged or another's is made again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app.files import sealed
from diffsketch.errors import ArgumentError, DiffSketchError
from diffsketch.reproduction import store as stores
from diffsketch.reproduction.jobs import Job
from diffsketch.reproduction.store import Made, Store, made_by
from tests.reproduction import tiny

SMALL: dict[str, Any] = {
    "method": "sketch", "rows": 3, "cols": 22, "workers": 3, "samples": 20, "rounds": 6,
    "evaluate_every": 2, "checkpoint_seconds": 0.0,
}  # fmt: skip
NUMBERS: Any = {"numbers": [1, 2]}


def make(store: Store, job: Job, *, stop: Callable[[], bool] = lambda: False) -> Made:
    return store.make(job, command=["x"], tell=lambda _: None, stop=stop)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    tiny.register(monkeypatch)
    return Store(tmp_path / "cache")


def file_of(store: Store, job: Job) -> Path:
    return store.directory / "results" / f"{job.key}.json"


def test_results_come_back(store: Store, steps: list[int]) -> None:
    run, sums = Job("run", SMALL, 1), Job("tiny", NUMBERS, 4)
    for job in (run, sums):
        assert store.find(job) == stores.Found(None)
        assert make(store, job) == Made(True)
    assert store.find(sums).result == {"sum": 7}
    found = store.find(run).result
    assert found is not None
    assert found["summary"]["seed"] == 1
    assert [record["round"] for record in found["curve"]] == [0, 2, 4, 6]
    assert found["times"]["training"] > 0
    assert len(steps) == 6
    assert store.find(Job("run", SMALL, 2)).result is None
    assert store.find(Job("run", {**SMALL, "rows": 2}, 1)).result is None
    # There is a run directory like any other.
    assert (store.run_directory(run) / "summary.json").is_file()


def test_interrupted_runs_go_on(store: Store, steps: list[int], tmp_path: Path) -> None:
    job, whole = Job("run", SMALL, 0), Store(tmp_path / "whole")
    make(whole, job)
    del steps[:]
    assert make(store, job, stop=lambda: len(steps) == 4) == Made(False)
    assert store.find(job).result is None
    assert make(store, job) == Made(True)
    assert steps == [0, 1, 2, 3, 4, 5]
    one, other = (dict(found.find(job).result or {}) for found in (store, whole))
    assert one.pop("times") != other.pop("times")
    assert one == other


def test_interrupted_measurements_leave_nothing(store: Store) -> None:
    answers = iter([False, True])
    job = Job("tiny", NUMBERS, 0)
    assert make(store, job, stop=lambda: next(answers)) == Made(False)
    assert make(store, job, stop=lambda: True) == Made(False)
    assert not store.directory.exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "list"])
def test_damaged_results_are_not_used(store: Store, damage: str) -> None:
    job = Job("tiny", NUMBERS, 0)
    make(store, job)
    path = file_of(store, job)
    text = path.read_text()
    path.write_text(
        {"cut": text[:-30], "changed": text.replace('"sum": 3', '"sum": 4'), "empty": "",
         "list": "[]"}[damage]
    )  # fmt: skip
    found = store.find(job)
    assert found.result is None
    assert str(path) in found.note
    assert found.note.endswith("made again")
    assert make(store, job).done
    assert store.find(job) == stores.Found({"sum": 3})


def test_results_of_others_are_not_used(store: Store) -> None:
    one, other = Job("tiny", NUMBERS, 0), Job("tiny", NUMBERS, 1)
    make(store, one)
    shutil.copy(file_of(store, one), file_of(store, other))
    assert store.find(other).result is None
    assert "the result of something else; made again" in store.find(other).note


@pytest.mark.parametrize("name", ["diffsketch", "torch", "numpy", "machine", "source"])
def test_results_of_other_versions_are_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    job = Job("tiny", NUMBERS, 0)
    make(store, job)
    here = made_by("tiny")
    monkeypatch.setattr(stores, "made_by", lambda _: {**here, name: "other"})
    found = store.find(job)
    assert found.result is None
    assert f"made by {name} {here[name]} (here other); made again" in found.note


def test_source_of_measurements_does_not_matter_to_runs() -> None:
    assert made_by("run")["source"] != made_by("tiny")["source"]
    assert {**made_by("run"), "source": ""} == {**made_by("tiny"), "source": ""}


def test_runs_of_other_versions_are_begun_again(store: Store, steps: list[int]) -> None:
    job = Job("run", SMALL, 0)
    make(store, job, stop=lambda: len(steps) == 4)
    path = store.run_directory(job) / "run.json"
    data = json.loads(path.read_text())
    del data["sha256"]
    data["versions"]["source"] = "other"
    path.write_bytes(sealed(data))
    made = make(store, job)
    assert made.done
    assert "source of diffsketch" in made.note
    assert made.note.endswith("begun again")
    assert steps == [0, 1, 2, 3, *range(6)]


def test_damaged_checkpoints_are_begun_again(store: Store, steps: list[int]) -> None:
    job = Job("run", SMALL, 0)
    make(store, job, stop=lambda: len(steps) == 4)
    (store.run_directory(job) / "checkpoint.safetensors").write_bytes(b"x" * 20)
    made = make(store, job)
    assert made.done
    assert "checkpoint.safetensors" in made.note
    assert steps == [0, 1, 2, 3, *range(6)]


def test_directories_without_a_run_are_begun_again(store: Store) -> None:
    job = Job("run", SMALL, 0)
    store.run_directory(job).mkdir(parents=True)
    (store.run_directory(job) / "config.toml").write_text("rounds = 6\n")
    assert make(store, job) == Made(True)


def test_lost_results_are_read_from_finished_runs(store: Store, steps: list[int]) -> None:
    job = Job("run", SMALL, 0)
    make(store, job)
    before = store.find(job).result
    file_of(store, job).unlink()
    assert make(store, job).done
    after = store.find(job).result
    assert before is not None
    assert after is not None
    assert (after["summary"], after["curve"]) == (before["summary"], before["curve"])
    assert len(steps) == 6


def test_errors_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="clip must be given"):
        make(store, Job("run", {"method": "projunit", "size": 3}, 0))
    assert not store.directory.exists()

    def not_finite(settings: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        return {"sum": math.inf * settings["numbers"][0]}

    tiny.register(monkeypatch, measure=not_finite)
    with pytest.raises(DiffSketchError, match="tiny gave what JSON has no word for"):
        make(store, Job("tiny", NUMBERS, 0))
    assert store.find(Job("tiny", NUMBERS, 0)).result is None

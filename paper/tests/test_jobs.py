"""Results are kept by their settings; what is damaged or another's is made again."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import diffsketch
from diffsketch.app.files import sealed
from diffsketch.errors import ArgumentError, DiffSketchError
from paper import jobs
from paper.experiments import MEASUREMENTS, Job, load
from paper.jobs import State, Store, do_jobs, labels_of, made_by
from paper.tests import tiny

SMALL: dict[str, Any] = {
    "method": "sketch", "rows": 3, "cols": 22, "workers": 3, "samples": 20, "rounds": 6,
    "evaluate_every": 2, "checkpoint_seconds": 0.0,
}  # fmt: skip
NUMBERS: Any = {"numbers": [1, 2]}
SUM = Job("tiny", NUMBERS, 0)


def make(store: Store, job: Job, *, stop: Callable[[], bool] = lambda: False) -> tuple[bool, str]:
    return store.make(job, command=["x"], tell=lambda _: None, stop=stop)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    tiny.register(monkeypatch)
    return Store(tmp_path / "cache")


def test_results_come_back(store: Store, steps: list[int]) -> None:
    run = Job("run", SMALL, 1)
    for job in (run, SUM):
        assert store.find(job) == (None, "")
        assert make(store, job) == (True, "")
    assert store.find(SUM)[0] == {"sum": 3}
    found = store.find(run)[0]
    assert found is not None
    assert found["summary"]["seed"] == 1
    assert [record["round"] for record in found["curve"]] == [0, 2, 4, 6]
    assert found["times"]["training"] > 0
    assert store.find(Job("run", SMALL, 2))[0] is None
    assert store.find(Job("run", {**SMALL, "rows": 2}, 1))[0] is None
    # There is a run directory like any other, from which a lost result is read again.
    assert (store.run_directory(run) / "summary.json").is_file()
    store.file(run).unlink()
    assert make(store, run) == (True, "")
    again = store.find(run)[0]
    assert again is not None
    assert (again["summary"], again["curve"]) == (found["summary"], found["curve"])
    assert len(steps) == 6


def test_interrupted_work_goes_on_or_leaves_nothing(
    store: Store, steps: list[int], tmp_path: Path
) -> None:
    answers = iter([False, True])
    assert make(store, SUM, stop=lambda: next(answers)) == (False, "")
    assert not store.directory.exists()
    job, whole = Job("run", SMALL, 0), Store(tmp_path / "whole")
    make(whole, job)
    del steps[:]
    assert make(store, job, stop=lambda: len(steps) == 4) == (False, "")
    assert store.find(job)[0] is None
    assert make(store, job) == (True, "")
    assert steps == [0, 1, 2, 3, 4, 5]
    one, other = (dict(found.find(job)[0] or {}) for found in (store, whole))
    assert one.pop("times") != other.pop("times")
    assert one == other


@pytest.mark.parametrize("damage", ["cut", "changed", "another's", "torch", "source"])
def test_results_of_others_and_damaged_ones_are_not_used(
    store: Store, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, SUM)
    path, here, said = store.file(SUM), made_by("tiny"), "damaged"
    text = path.read_text()
    if damage == "another's":
        shutil.copy(path, store.file(Job("tiny", NUMBERS, 1)))
        path, said = store.file(Job("tiny", NUMBERS, 1)), "the result of something else"
    elif damage in here:
        monkeypatch.setattr(jobs, "made_by", lambda _: {**here, damage: "other"})
        said = f"made by {damage} {here[damage]} (here other)"
    else:
        path.write_text(text[:-30] if damage == "cut" else text.replace('"sum": 3', '"sum": 4'))
    job = Job("tiny", NUMBERS, int(damage == "another's"))
    result, note = store.find(job)
    assert result is None
    assert f"{path}: {said}" in note
    assert note.endswith("made again")
    assert make(store, job)[0]
    assert store.find(job) == ({"sum": 3 + job.seed}, "")


def test_source_of_measurements_does_not_matter_to_runs() -> None:
    assert made_by("run")["source"] != made_by("tiny")["source"]
    assert {**made_by("run"), "source": ""} == {**made_by("tiny"), "source": ""}
    # A folder that was renamed would silently be left out of the digest.
    package = Path(diffsketch.__file__).parent
    places = [package / part for part in (*jobs._COMPUTING, *jobs._MEASURING)]
    for place in (*places, *(jobs._HERE / part for part in (*jobs._METHODS, *jobs._OWN))):
        assert place.exists(), place
    # Nor may a measurement be left out.
    modules = {place.partition(":")[0].rpartition(".")[2] for place in MEASUREMENTS.values()}
    assert {f"{module}.py" for module in modules - {"tiny"}} <= set(jobs._OWN)


@pytest.mark.parametrize("damage", ["version", "checkpoint", "no run"])
def test_runs_that_cannot_go_on_are_begun_again(
    store: Store, steps: list[int], damage: str
) -> None:
    job = Job("run", SMALL, 0)
    make(store, job, stop=lambda: len(steps) == 4)
    path, said = store.run_directory(job) / "run.json", "begun with source"
    if damage == "version":
        data = json.loads(path.read_text())
        del data["sha256"]
        data["versions"]["source"] = "other"
        path.write_bytes(sealed(data))
    elif damage == "no run":  # of a process that was killed before the run had begun
        path.unlink()
    else:
        said = "checkpoint.safetensors"
        (path.parent / said).write_bytes(b"x" * 20)
    done, note = make(store, job)
    assert done
    assert (said in note and note.endswith("begun again")) or (damage == "no run" and not note)
    assert steps == [0, 1, 2, 3, *range(6)]


def test_errors_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="clip and --noise-multiplier"):
        make(store, Job("run", {"method": "gaussian"}, 0))
    assert not store.directory.exists()

    def not_finite(settings: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        return {"sum": math.inf * settings["numbers"][0]}

    tiny.register(monkeypatch, measure=not_finite)
    with pytest.raises(DiffSketchError, match="tiny gave what JSON has no word for"):
        make(store, SUM)
    assert store.find(SUM)[0] is None


def test_jobs_are_done_once_the_longest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.both(store.directory.parent / "settings")
    both = [load(name, reduced=False, folder=folder) for name in ("one", "two")]
    assert list(labels_of(both).values()) == [
        "one, plain, seed 0", "one, plain, seed 1", "one, sketch, seed 0", "one, sketch, seed 1",
        "two, sum, seed 0",
    ]  # fmt: skip
    seen: list[State] = []
    monkeypatch.setattr(jobs, "seconds_of", lambda job: 1.0 + job.seed)
    outcome = do_jobs(
        both, store, processes=1, command=["x"], show=seen.append, stop=lambda: False
    )  # fmt: skip
    assert (outcome.made, outcome.interrupted, outcome.failures) == (5, False, ())
    assert (seen[0].done, seen[0].experiments, seen[0].now) == (0.0, 0, ())
    begun = list(dict.fromkeys(label for state in seen for label in state.now))
    assert begun[:2] == ["one, plain, seed 1", "one, sketch, seed 1"]
    assert seen[-1].done == pytest.approx(seen[-1].total) == 7.0
    assert seen[-1].experiments == 2
    shares = [state.done for state in seen]
    assert shares == sorted(shares)


def test_what_a_process_with_another_source_made_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load("one", reduced=True, folder=tiny.both(store.directory.parent / "settings"))
    before, after = ({**made_by("run"), "source": name} for name in ("before", "after"))
    answers = iter([after, before])
    monkeypatch.setattr(jobs, "made_by", lambda _: next(answers))
    outcome = do_jobs(
        [one], store, processes=1, command=["x"], show=lambda _: None, stop=lambda: False
    )  # fmt: skip
    (failure,) = outcome.failures
    assert "made by source after (here before)" in failure.reason
    assert (outcome.made, outcome.interrupted) == (0, False)

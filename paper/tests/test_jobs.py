"""Results are kept by their settings; what is damaged or another's is made again."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import diffsketch
from diffsketch.errors import ArgumentError, DiffSketchError
from paper import jobs
from paper.experiments import MEASUREMENTS, Job, load
from paper.jobs import Store, do_jobs, labels_of, made_by
from paper.tests import tiny

SMALL: dict[str, Any] = {
    "method": "sketch", "rows": 3, "cols": 22, "workers": 3, "samples": 20, "rounds": 6,
    "evaluate_every": 2, "checkpoint_seconds": 0.0,
}  # fmt: skip
NUMBERS: Any = {"numbers": [1, 2]}
SUM = Job("tiny", NUMBERS, 0)


def make(store: Store, job: Job, *, stop: Callable[[], bool] = lambda: False) -> bool:
    return store.make(job, tell=lambda _: None, stop=stop)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    tiny.register(monkeypatch)
    return Store(tmp_path / "cache")


def test_results_come_back(store: Store, steps: list[int]) -> None:
    run = Job("run", SMALL, 1)
    for job in (run, SUM):
        assert store.find(job) is None
        assert make(store, job)
    assert store.find(SUM) == {"sum": 3}
    found = store.find(run)
    assert found is not None
    assert found["summary"]["seed"] == 1
    assert [record["round"] for record in found["curve"]] == [0, 2, 4, 6]
    assert found["times"]["training"] > 0
    assert store.find(Job("run", SMALL, 2)) is None
    assert store.find(Job("run", {**SMALL, "rows": 2}, 1)) is None
    assert len(steps) == 6


def test_interrupted_work_leaves_nothing_and_begins_again(
    store: Store, steps: list[int], tmp_path: Path
) -> None:
    answers = iter([False, True])
    assert not make(store, SUM, stop=lambda: next(answers))
    assert not store.directory.exists()
    job, whole = Job("run", SMALL, 0), Store(tmp_path / "whole")
    make(whole, job)
    del steps[:]
    assert not make(store, job, stop=lambda: len(steps) == 4)
    assert store.find(job) is None
    assert make(store, job)
    assert steps == [0, 1, 2, 3, *range(6)]
    one, other = (dict(found.find(job) or {}) for found in (store, whole))
    assert one.pop("times") != other.pop("times")
    assert one == other
    assert not list((store.directory / "runs").iterdir())


@pytest.mark.parametrize("damage", ["cut", "changed", "another's", "torch", "source"])
def test_results_of_others_and_damaged_ones_are_not_used(
    store: Store, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(store, SUM)
    path, here = store.file(SUM), made_by("tiny")
    text = path.read_text()
    if damage == "another's":
        shutil.copy(path, store.file(Job("tiny", NUMBERS, 1)))
    elif damage in here:
        monkeypatch.setattr(jobs, "made_by", lambda _: {**here, damage: "other"})
    else:
        path.write_text(text[:-30] if damage == "cut" else text.replace('"sum": 3', '"sum": 4'))
    job = Job("tiny", NUMBERS, int(damage == "another's"))
    assert store.file(job).exists()
    assert store.find(job) is None
    assert make(store, job)
    assert store.find(job) == {"sum": 3 + job.seed}


def test_source_of_measurements_does_not_matter_to_runs() -> None:
    assert made_by("run")["source"] != made_by("tiny")["source"]
    assert {**made_by("run"), "source": ""} == {**made_by("tiny"), "source": ""}
    # A folder that was renamed would silently be left out of the digest.
    package = Path(diffsketch.__file__).parent
    places = [package / part for part in (*jobs._COMPUTING, *jobs._MEASURING)]
    for place in (*places, *(jobs._HERE / part for part in ("methods.py", *jobs._OWN))):
        assert place.exists(), place
    # Nor may a measurement be left out.
    modules = {place.partition(":")[0].rpartition(".")[2] for place in MEASUREMENTS.values()}
    assert {f"{module}.py" for module in modules - {"tiny"}} <= set(jobs._OWN)


def test_errors_pass(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ArgumentError, match="clip and --noise-multiplier"):
        make(store, Job("run", {"method": "gaussian"}, 0))
    assert not store.directory.exists()

    def not_finite(settings: Mapping[str, Any], **_: Any) -> dict[str, Any]:
        return {"sum": math.inf * settings["numbers"][0]}

    tiny.register(monkeypatch, measure=not_finite)
    with pytest.raises(DiffSketchError, match="tiny gave what JSON has no word for"):
        make(store, SUM)
    assert store.find(SUM) is None


def test_jobs_are_done_once_the_longest_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tiny.both(store.directory.parent / "settings")
    both = [load(name, reduced=False, folder=folder) for name in ("one", "two")]
    assert list(labels_of(both).values()) == [
        "one, plain, seed 0", "one, plain, seed 1", "one, sketch, seed 0", "one, sketch, seed 1",
        "two, sum, seed 0",
    ]  # fmt: skip
    seen: list[tuple[float, str]] = []

    def show(share: float, text: str) -> None:
        seen.append((share, text))

    monkeypatch.setattr(jobs, "seconds_of", lambda job: 1.0 + job.seed)
    outcome = do_jobs(both, store, processes=1, show=show, stop=lambda: False)
    assert (outcome.made, outcome.interrupted, outcome.failures) == (5, False, ())
    assert seen[0] == (0.0, "0 of 2 experiments")
    begun = [label for _, text in seen for label in text.split("; ")[1:]]
    assert list(dict.fromkeys(begun))[:2] == ["one, plain, seed 1", "one, sketch, seed 1"]
    shares, texts = zip(*seen, strict=True)
    assert list(shares) == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert texts[-1] == "2 of 2 experiments"


def test_what_a_process_with_another_source_made_is_not_used(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = load("one", reduced=True, folder=tiny.both(store.directory.parent / "settings"))
    before, after = ({**made_by("run"), "source": name} for name in ("before", "after"))
    answers = iter([after, after, before, before])  # of two jobs
    monkeypatch.setattr(jobs, "made_by", lambda _: next(answers))
    outcome = do_jobs([one], store, processes=1, show=lambda *_: None, stop=lambda: False)
    assert ["another source" in failure.reason for failure in outcome.failures] == [True] * 2
    assert (outcome.made, outcome.interrupted) == (0, False)

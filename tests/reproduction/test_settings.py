"""The package's settings files: all load, and every run of theirs can be built."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from diffsketch.app import build
from diffsketch.app.settings import RunConfig
from diffsketch.reproduction.drawings.registry import DRAWINGS, drawing
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.loading import load, names
from diffsketch.reproduction.measurements.registry import MEASUREMENTS, measurement
from diffsketch.training.tasks import load_task

CHOICES = [(name, reduced) for name in names() for reduced in (False, True)]


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, bool], Experiment]:
    return {choice: load(choice[0], reduced=choice[1]) for choice in CHOICES}


@pytest.fixture(scope="module")
def task() -> Any:
    """The data of each task, read once."""
    return functools.cache(load_task)


def test_all_drawings_and_measurements_are_there() -> None:
    for name in DRAWINGS:
        assert callable(drawing(name))
    for name in MEASUREMENTS:
        assert callable(measurement(name))


@pytest.mark.parametrize("name", names())
def test_runs_can_be_built(
    name: str,
    loaded: dict[tuple[str, bool], Experiment],
    task: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(build, "load_task", task)
    seen = set()
    for reduced in (False, True):
        experiment = loaded[name, reduced]
        assert experiment.jobs
        for variant in experiment.variants:
            (job, *_) = experiment.runs(variant)
            if job not in seen:
                seen.add(job)
                build.build(RunConfig(**variant.settings, seed=0))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", names())
def test_quick_is_less(name: str, loaded: dict[tuple[str, bool], Experiment]) -> None:
    full, less = (loaded[name, reduced] for reduced in (False, True))
    assert (full.reduced, less.reduced) == (False, True)
    assert len(less.jobs) <= len(full.jobs)
    rounds = [
        max((int(str(one.settings["rounds"])) for one in some.variants), default=0)
        for some in (full, less)
    ]
    assert rounds[1] <= rounds[0]
    # Of a figure that was left out nothing would be seen.
    assert {one.name for one in less.measurements} == {one.name for one in full.measurements}

"""Settings files are read strictly, and those of the package can be built."""

from __future__ import annotations

import functools
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest

from diffsketch.app import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, DataError
from diffsketch.training.tasks import load_task
from paper import METHODS
from paper.experiments import (
    DRAWINGS,
    MEASUREMENTS,
    Experiment,
    Job,
    Measurement,
    Variant,
    load,
    name_of_experiment,
    names,
    seconds_of,
    wall_seconds,
)
from paper.tests import tiny

WHOLE = f"""{tiny.HEAD}
[paper]
rounds = "not given"

[[deviation]]
what = "Small."
why = "Quick."

{tiny.COMMON}
{tiny.RUNS}{tiny.MEASURE}
[options]
scale = [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.register(monkeypatch)
    return tmp_path / "settings"


def test_everything_is_read(folder: Path) -> None:
    tiny.write(folder, "tiny", WHOLE)
    found = load("tiny", reduced=False, folder=folder)
    head = (found.name, found.title, found.place, found.says, found.drawing, found.seeds)
    assert head == ("tiny", "Tiny", "Figure 0", "It is small.", "tiny", 5)
    assert (found.paper, found.deviations[0].why) == ({"rounds": "not given"}, "Quick.")
    numbers: Any = [1, 2]
    assert found.options == {"scale": numbers}
    assert found.measurements == (Measurement("sum", "tiny", {"numbers": numbers}, 1),)
    plain, sketch = found.variants
    assert (plain.name, plain.panels, plain.group) == ("plain", ("a", "b"), "paper")
    assert (sketch.name, sketch.panels, sketch.group) == ("sketch", ("a",), "ablation")
    assert "rows" not in plain.settings
    assert (sketch.settings["rows"], sketch.settings["cols"]) == (3, 22)
    # With what the task has, without the seed.
    assert (plain.settings["rounds"], plain.settings["learning_rate"]) == (6, 0.01)
    assert "seed" not in plain.settings
    assert len(found.jobs) == 2 * 5 + 1


def test_quick_takes_one_seed_and_fewer_rounds_and_trials(folder: Path) -> None:
    text = WHOLE.replace('method = "none"', 'method = "none"\nrounds = 100\nseeds = 7')
    tiny.write(folder, "tiny", text.replace("[1, 2] }", "[1, 2], trials = 30000 }"))
    full, less = (load("tiny", reduced=reduced, folder=folder) for reduced in (False, True))
    for experiment, rounds, trials in ((full, [100, 6], 30000), (less, [10, 2], 3000)):
        assert [each.settings["rounds"] for each in experiment.variants] == rounds
        assert experiment.measurements[0].settings["trials"] == trials
    assert [each.panels for each in less.variants] == [each.panels for each in full.variants]
    assert (less.seeds, len(less.jobs), less.reduced) == (1, 3, True)
    assert (len(full.jobs), full.reduced) == (7 + 5 + 1, False)


def test_the_same_run_is_the_same_however_it_is_written(folder: Path) -> None:
    run = '[[run]]\nname = "x"\npanels = ["a"]\nmethod = "sketch"\nrounds = 10\n'
    tiny.write(folder, "short", tiny.HEAD + run)
    more = 'cols = 22\nrows = 7\ntask = "mnist"\nlearning_rate = 0.01\nhashes = "fresh"\n'
    tiny.write(folder, "long", tiny.HEAD + run + more)
    tiny.write(folder, "other", tiny.HEAD + run + "cols = 23\n")
    short, long, other = (
        load(name, reduced=False, folder=folder).jobs for name in ("short", "long", "other")
    )
    assert short == long
    assert not set(short) & set(other)


def test_names_and_places(folder: Path) -> None:
    for name in ("zebra", "audit", "mnist", "cpsgd", "aardvark"):
        tiny.write(folder, name, tiny.HEAD + tiny.MEASURE)
    assert names(folder) == ("cpsgd", "mnist", "audit", "aardvark", "zebra")
    for given, name in (("mnist", "mnist"), ("figure3", "mnist"), ("Figure 3", "mnist"),
                        ("table2", "datasets"), ("Theorem 1", "audit")):  # fmt: skip
        assert name_of_experiment(given) == name
    for given in ("mnst", "", "../mnist", "figure99"):
        with pytest.raises(ArgumentError, match=f"got name='{given}'"):
            name_of_experiment(given)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Tiny"', "", "title must be given"),
        ('place = "Figure 0"', 'place = ""', "place must have at least 1 character, got ''"),
        ('drawing = "tiny"', 'drawing = "tine"', "drawing must be one of curves"),
        ('drawing = "tiny"', 'drawing = "tiny"\nseeds = 0', "seeds must be greater than or equal"),
        ("[options]", "[option]", "unknown key 'option'"),
        ("workers = 3", "worker = 3", "[[run]] 1: unknown key 'worker'; did you mean workers"),
        ("workers = 3", "workers = 0", "workers must be a whole number >= 1, got workers=0"),
        ("rounds = 6", "claimed = 5", "[[run]] 'plain': claimed must not be given"),
        ("workers = 3", "seed = 3", "[[run]] 1: seed must not be given"),
        ('panels = ["a", "b"]', 'panels = ["b", "b"]', "got name='plain' twice in 'b'"),
        ('group = "ablation"', 'group = "x"', "run 1 group must be 'paper'"),
        ('method = "none"', 'method = "none"\nrows = 2', "[[run]] 'plain': rows must not be"),
        ('kind = "tiny"', 'kind = "tin"', "measure 0 kind must be one of"),
        ('name = "sum"\n', "", "measure 0 name must be given"),
    ],
)
def test_mistakes(folder: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    tiny.write(folder, "tiny", WHOLE.replace(old, new, 1))
    with pytest.raises(DataError) as caught:
        load("tiny", reduced=False, folder=folder)
    assert said in str(caught.value)
    assert str(folder / "tiny.toml") in str(caught.value)


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, bool], Experiment]:
    return {(name, less): load(name, reduced=less) for name in names() for less in (False, True)}


@pytest.fixture(scope="module")
def task() -> Any:
    """The data of each task, read once."""
    return functools.cache(load_task)


@pytest.mark.slow
@pytest.mark.parametrize("name", names())
def test_runs_can_be_built(
    name: str,
    loaded: dict[tuple[str, bool], Experiment],
    task: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of those that differ in their seeds and rounds alone, one."""
    monkeypatch.setattr(build, "load_task", task)
    shown = ("rounds", "evaluate_every")
    seen: dict[str, Any] = {}
    for reduced in (False, True):
        assert loaded[name, reduced].jobs or name in ("cpsgd-parameters", "datasets")  # calculated
        for variant in loaded[name, reduced].variants:
            content = {key: one for key, one in variant.settings.items() if key not in shown}
            seen.setdefault(str(content), variant.settings)
    for settings in seen.values():
        build.build(RunConfig(**settings, seed=0))


def test_files_of_the_package_fit_together(loaded: dict[tuple[str, bool], Experiment]) -> None:
    assert all(callable(resolve_name(one)) for one in (*DRAWINGS.values(), *MEASUREMENTS.values()))
    for name in names():
        full, less = (loaded[name, reduced] for reduced in (False, True))
        assert (full.reduced, less.reduced) == (False, True)
        assert len(less.jobs) <= len(full.jobs)
        panels = {panel for each in full.variants for panel in each.panels}
        assert full.panels.keys() <= panels
    about = loaded["choices", False]
    assert about.panels.keys() == {panel for one in about.variants for panel in one.panels}


def test_costs_grow_with_the_work() -> None:
    def seconds(**settings: str | int) -> float:
        return seconds_of(Job("run", settings, 0))

    more: list[dict[str, str | int]] = [
        {"rounds": 1000}, {"padding": 10000}, {"task": "shakespeare"},
    ]  # fmt: skip
    assert all(seconds(rounds=100) < seconds(**{"rounds": 100, **one}) for one in more)
    jobs = [Job("run", {"rounds": 1000}, seed) for seed in range(4)]
    assert wall_seconds(jobs, 1) > wall_seconds(jobs, 2) > wall_seconds(jobs, 4)
    assert wall_seconds(jobs, 4) == wall_seconds(jobs, 100)


def test_forms_of_a_method_are_lines_of_it() -> None:
    """Rules look for methods of the library; the paper's forms of them are readings."""
    for form, method in {**METHODS, "laplace": "laplace"}.items():
        assert Variant("any name", ("panel",), {"method": form}).method == method

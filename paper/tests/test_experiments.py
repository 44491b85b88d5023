"""Settings files are read strictly, and those of the package can be built."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, DataError
from diffsketch.training.tasks import load_task
from paper import METHODS
from paper.experiments import (
    FIGURES,
    MEASUREMENTS,
    Deviation,
    Experiment,
    Job,
    Measurement,
    Variant,
    function_of,
    load,
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
rows = 5
{tiny.RUNS}{tiny.MEASURE}
[options]
scale = [1, 2]
{tiny.QUICK}"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    tiny.register(monkeypatch)
    return tmp_path / "settings"


def test_everything_is_read(folder: Path) -> None:
    tiny.write(folder, "tiny", WHOLE)
    found = load("tiny", reduced=False, folder=folder)
    head = (found.name, found.title, found.place, found.says, found.drawing)
    assert head == ("tiny", "Tiny", "Figure 0", "It is small.", "tiny")
    assert (found.seeds, found.reduced) == (5, False)
    assert found.paper == {"rounds": "not given"}
    assert found.deviations == (Deviation("Small.", "Quick."),)
    scale: Any = [1, 2]
    assert found.options == {"scale": scale}
    assert found.measurements == (Measurement("sum", "tiny", {"numbers": scale}, 1),)
    plain, sketch = found.variants
    assert (plain.name, plain.panels, plain.group) == ("plain", ("a", "b"), "paper")
    assert (sketch.name, sketch.panels, sketch.group) == ("sketch", ("a",), "ablation")
    # A common setting of methods goes to those that have it; a run's own goes first.
    assert "rows" not in plain.settings
    assert (sketch.settings["rows"], sketch.settings["cols"]) == (3, 22)
    # With what the task has, without the seed.
    assert (plain.settings["rounds"], plain.settings["learning_rate"]) == (6, 0.01)
    assert "seed" not in plain.settings
    assert len(found.jobs) == 2 * 5 + 1


def test_quick_replaces(folder: Path) -> None:
    text = WHOLE.replace('method = "none"', 'method = "none"\nrounds = 100')
    tiny.write(folder, "tiny", text)
    full, less = (load("tiny", reduced=reduced, folder=folder) for reduced in (False, True))
    assert [one.settings["rounds"] for one in full.variants] == [100, 6]
    assert [one.settings["rounds"] for one in less.variants] == [4]
    assert [one.panels for one in less.variants] == [("b",)]
    assert (less.seeds, less.measurements[0].seeds, less.reduced) == (1, 1, True)
    one: Any = [1]
    assert less.measurements[0].settings == {"numbers": one}
    outline = load("tiny", reduced=True, folder=folder, complete=False)
    assert [one.settings["rounds"] for one in outline.variants] == [4]
    tiny.write(folder, "tiny", text.replace("seeds = 1\nsettings", "seeds = 3\nsettings"))
    assert load("tiny", reduced=True, folder=folder).measurements[0].seeds == 1


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


def test_order_of_the_paper(folder: Path) -> None:
    for name in ("zebra", "audit", "mnist", "cpsgd", "aardvark"):
        tiny.write(folder, name, tiny.HEAD + tiny.MEASURE)
    assert names(folder) == ("cpsgd", "mnist", "audit", "aardvark", "zebra")


def test_unknown_names(folder: Path) -> None:
    tiny.write(folder, "mnist", WHOLE)
    for name in ("mnst", "", "../mnist"):
        with pytest.raises(ArgumentError, match=f"got name='{name}'.*mnist"):
            load(name, reduced=False, folder=folder)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('title = "Tiny"', "", "title must be given, and is missing"),
        ('title = "Tiny"', "title = 3", "title must be a valid string, got title=3"),
        ('place = "Figure 0"', 'place = ""', "place must have at least 1 character, got place=''"),
        ('drawing = "tiny"', 'drawing = "tine"', "got drawing='tine'; did you mean tiny"),
        ('drawing = "tiny"', 'drawing = "tiny"\nseeds = 0', "than or equal to 1, got seeds=0"),
        ('drawing = "tiny"', 'drawing = "tiny"\nseeds = true', "a valid integer, got seeds=True"),
        ('drawing = "tiny"', 'drawing = "tiny"\nseed = 1', "unknown key 'seed', got seed=1"),
        ("[options]", "[option]", "unknown key 'option'"),
        ('rounds = "not given"', "rounds = 3", "[paper]: rounds must be a valid string"),
        ('why = "Quick."', "", "[[deviation]] 1: why must be given"),
        ('why = "Quick."', 'why = "Quick."\nwho = "I"', "[[deviation]] 1: unknown key 'who'"),
        ("[[deviation]]", "[deviation]", "deviation must be a valid tuple, got deviation={"),
        ("workers = 3", "worker = 3", "[common]: unknown key 'worker'; did you mean workers"),
        ("workers = 3", "workers = 0", "workers must be a whole number >= 1, got workers=0"),
        ("workers = 3", "seed = 3", "[common]: seed must not be given"),
        ("rows = 5", "claimed = 5", "[common]: claimed must be a setting of one of the methods"),
        ('panels = ["a", "b"]', "", "[[run]] 1: panels must be given"),
        ('panels = ["a", "b"]', "panels = []", "[[run]] 1: panels must have at least 1 item"),
        ('panels = ["a", "b"]', 'panels = ["b", "b"]', "got name='plain' twice in 'b'"),
        ('group = "ablation"', 'group = "x"', "[[run]] 2: group must be 'paper'"),
        ('name = "sketch"', 'name = "plain"', "got name='plain' twice in 'a'"),
        ('method = "none"', 'method = "non"', "[[run]] 1: method must be one of"),
        ('method = "none"', 'method = "none"\nrows = 2', "[[run]] 1 (plain): rows must not be"),
        ('method = "none"', 'method = "none"\nseed = 2', "[[run]] 1: seed must not be given"),
        ('kind = "tiny"', 'kind = "tin"', "[[measure]] 1: kind must be the name of a measurement"),
        ("settings = { numbers", "setting = { numbers", "[[measure]] 1: unknown key 'setting'"),
        ("common = { rounds = 4 }", "common = { round = 4 }", "[quick]: [common]: unknown key"),
        ("common = { rounds = 4 }", "commons = { rounds = 4 }", "[quick]: unknown key 'commons'"),
        ("measure = { numbers", "measure = { number", "[quick]: measure must have keys of a"),
        ('panels = ["b"]', 'panels = ["c"]', "[quick]: panels must be those of a [[run]], got 'c'"),
    ],
)
def test_mistakes(folder: Path, old: str, new: str, said: str) -> None:
    assert old in WHOLE
    tiny.write(folder, "tiny", WHOLE.replace(old, new, 1))
    with pytest.raises(DataError) as caught:
        load("tiny", reduced=False, folder=folder)
    assert said in str(caught.value)
    assert str(folder / "tiny.toml") in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (tiny.HEAD, r"must have a \[\[run\]\] or a \[\[measure\]\]"),
        (tiny.HEAD + tiny.COMMON + tiny.MEASURE, r"\[common\]: must not be without a \[\[run\]\]"),
        (tiny.HEAD + tiny.MEASURE + tiny.MEASURE, "got name='sum' twice"),
        ("title =", r"tiny\.toml: not a TOML file"),
    ],
)
def test_files_with_nothing_to_do(folder: Path, text: str, said: str) -> None:
    tiny.write(folder, "tiny", text)
    with pytest.raises(DataError, match=said):
        load("tiny", reduced=False, folder=folder)


CHOICES = [(name, reduced) for name in names() for reduced in (False, True)]


@pytest.fixture(scope="module")
def loaded() -> dict[tuple[str, bool], Experiment]:
    return {choice: load(choice[0], reduced=choice[1]) for choice in CHOICES}


@pytest.fixture(scope="module")
def task() -> Any:
    """The data of each task, read once."""
    return functools.cache(load_task)


def test_all_figures_and_measurements_are_there() -> None:
    assert all(callable(function_of(one)) for one in (*FIGURES.values(), *MEASUREMENTS.values()))


@pytest.mark.slow
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
            (job, *_) = experiment.jobs_of(variant)
            if job not in seen:
                seen.add(job)
                build.build(RunConfig(**variant.settings, seed=0))


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


def test_costs_grow_with_the_work() -> None:
    def seconds(**settings: str | int) -> float:
        return seconds_of(Job("run", settings, 0))

    more: list[dict[str, str | int]] = [
        {"rounds": 1000}, {"padding": 10000}, {"correction": "shared"}, {"task": "shakespeare"},
    ]  # fmt: skip
    assert all(seconds(rounds=100) < seconds(**{"rounds": 100, **one}) for one in more)
    jobs = [Job("run", {"rounds": 1000}, seed) for seed in range(4)]
    assert wall_seconds(jobs, 1) > wall_seconds(jobs, 2) > wall_seconds(jobs, 4)
    assert wall_seconds(jobs, 4) == wall_seconds(jobs, 100)


def test_forms_of_a_method_are_lines_of_it() -> None:
    """Rules look for methods of the library; the paper's forms of them are readings."""
    for form, method in METHODS.items():
        assert Variant("any name", ("panel",), {"method": form}).method == method
    assert Variant("any name", ("panel",), {"method": "laplace"}).method == "laplace"
    about = load("choices", reduced=False, complete=False)
    assert about.panels.keys() == {panel for one in about.variants for panel in one.panels}
    assert {(one.ratio, one.epsilon) for one in about.panels.values()} == {
        (75.0, 0.1), (75.0, 1.0), (50.0, 0.1), (50.0, 1.0),
    }  # fmt: skip

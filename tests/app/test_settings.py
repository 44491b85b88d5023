"""Settings: types, limits, TOML there and back, defaults of tasks, and what is not used."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import paper
from diffsketch.app.build import settings_of_methods
from diffsketch.app.settings import (
    METHOD_NAMES,
    METHOD_SETTINGS,
    RunConfig,
    Setting,
    describe,
    parse_setting,
    read_settings,
    to_toml,
    with_task_defaults,
)
from diffsketch.errors import ArgumentError, DataError
from diffsketch.methods.base import settings_of
from diffsketch.privacy import Relation, Trust
from diffsketch.sketch.hashing import FAMILIES
from diffsketch.training.defaults import TASK_DEFAULTS
from diffsketch.training.rounds import Correction, Schedule
from tests.helpers.library import LIBRARY

SETTINGS = describe(RunConfig)


def values_of(item: Setting) -> st.SearchStrategy[Any]:
    """Values that the setting accepts."""
    if item.choices:
        return st.sampled_from(item.choices)
    if item.kind is bool:
        return st.booleans()
    if item.kind is str:
        return st.text(min_size=1, max_size=20)
    limits: dict[str, Any] = {}
    for one in RunConfig.model_fields[item.name].metadata:
        names = [name for name in ("ge", "gt", "le", "lt") if hasattr(one, name)]
        limits |= {name: getattr(one, name) for name in names}
    least, most = limits.get("ge", limits.get("gt", 0)), limits.get("le", limits.get("lt", 2**62))
    if item.kind is int:
        return st.integers(int(least), int(most) - ("lt" in limits))
    return st.floats(least, most, exclude_min="gt" in limits, exclude_max="lt" in limits)


ANY = st.fixed_dictionaries({}, optional={k: values_of(item) for k, item in SETTINGS.items()})


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(ANY)
def test_toml_there_and_back(given_values: dict[str, Any]) -> None:
    config = RunConfig(**given_values)
    values = tomllib.loads(to_toml(config))
    assert RunConfig(**values) == config
    # So that a file says everything: nothing but None is left out.
    missing = SETTINGS.keys() - values.keys()
    assert all(getattr(config, name) is None for name in missing)


def test_file_is_read_with_types(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    with pytest.raises(DataError, match="No such file"):
        read_settings(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a TOML file"):
        read_settings(path)
    path.write_text('learning_rate = 1\nrounds = 3\nmethod = "none"\n', encoding="utf-8")
    assert read_settings(path) == {"learning_rate": 1.0, "rounds": 3, "method": "none"}
    assert isinstance(read_settings(path)["learning_rate"], float)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round = 3", "unknown key 'round'; did you mean rounds"),
        ("xyz = 3", "unknown key 'xyz'; see --help for all of them"),
        ("rounds = 1.5", "rounds must be a whole number >= 1, got rounds=1.5"),
        ("rounds = true", "rounds must be a whole number >= 1, got rounds=True"),
        ("rounds = 0", "rounds must be a whole number >= 1, got rounds=0"),
        ('learning_rate = "big"', "learning_rate must be a number > 0, got learning_rate='big'"),
        ("learning_rate = nan", "learning_rate must be a number > 0, got learning_rate=nan"),
        ("learning_rate = inf", "learning_rate must be a number > 0, got learning_rate=inf"),
        ('schedule = "warm"', "schedule must be one of constant, sqrt, linear, cosine, got"),
        ("[rounds]\nx = 1", "rounds must be a whole number >= 1, got rounds={'x': 1}"),
        ("rounds = ", "not a TOML file"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError) as caught:
        read_settings(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"delta": 1.0}, "delta must be a number > 0 and < 1, got delta=1.0"),
        ({"momentum": -0.1}, "momentum must be a number >= 0 and < 1"),
        ({"bits": 63}, "bits must be at most 62"),
        ({"seed": None}, "seed must be a whole number >= 0"),
        ({"data_dir": "\udcff"}, "data_dir must be text"),
    ],
)
def test_values_outside_limits_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        RunConfig(**values)
    assert said in str(caught.value)


def test_every_field_is_described() -> None:
    sections = ("Task", "Training", "Method", "Server", "Privacy", "Output")
    for item in SETTINGS.values():
        assert item.text.endswith("."), item.name
        assert item.section in sections


def test_choices_are_those_of_the_types() -> None:
    assert set(METHOD_NAMES) - set(paper.METHODS) == set(LIBRARY)
    assert set(SETTINGS["family"].choices) == set(FAMILIES)
    assert set(SETTINGS["relation"].choices) == set(Relation)
    assert set(SETTINGS["trust"].choices) == set(Trust)
    assert SETTINGS["schedule"].choices == get_args(Schedule)
    assert SETTINGS["correction"].choices == get_args(Correction)


def test_text_of_a_setting() -> None:
    assert parse_setting("rows", "7") == 7
    for name, text in (("rows", "7.5"), ("learning_rate", "nan"), ("trust", "x")):
        with pytest.raises(ArgumentError, match=f"{name} must be"):
            parse_setting(name, text)


FIELDS = settings_of_methods()


def resolved(**values: Any) -> RunConfig:
    config = RunConfig(**values)
    return with_task_defaults(config, fields=FIELDS[config.method])


def test_every_task_has_defaults_that_are_allowed() -> None:
    assert set(TASK_DEFAULTS) == set(describe(RunConfig)["task"].choices)
    for task, values in TASK_DEFAULTS.items():
        RunConfig(task=task, **values)  # type: ignore[arg-type]


def test_every_setting_of_a_method_can_be_given() -> None:
    for name in LIBRARY:
        assert set(settings_of(name)) <= METHOD_SETTINGS | {"delta"}, name
    ours = frozenset().union(*(FIELDS[name] for name in LIBRARY))
    assert ours == METHOD_SETTINGS


def test_the_papers_hyper_parameters() -> None:
    for task, expected in {
        "mnist": {"algorithm": "sgd", "workers": 10, "samples": 200, "learning_rate": 0.01},
        "mnist-devices": {"algorithm": "fedavg", "workers": 6000, "samples": 10, "cohort": 10},
        "shakespeare": {"algorithm": "fedavg", "workers": 46, "learning_rate": 0.8, "cohort": 1},
    }.items():
        config = resolved(task=task)
        assert {name: getattr(config, name) for name in expected} == expected
        assert config.batch_size == 10
        assert config.local_epochs == (None if config.algorithm == "sgd" else 1)


def test_what_is_given_goes_first() -> None:
    config = resolved(task="mnist", algorithm="fedavg", cohort=3, rows=1)
    assert (config.cohort, config.rows, config.cols, config.local_epochs) == (3, 1, 22, 1)
    assert resolved(method="none").rows is None
    assert resolved(method="cpsgd", task="mnist-devices").claimed == 5.0
    assert resolved(method="cpsgd", task="mnist-devices", levels=4, trials=8).claimed is None


def test_resolved_settings_stay_as_they_are() -> None:
    for task in TASK_DEFAULTS:
        for method in LIBRARY:
            once = resolved(task=task, method=method)
            assert with_task_defaults(once, fields=FIELDS[method]) == once


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"local_epochs": 2}, "local_epochs must not be given with --algorithm sgd"),
        ({"cohort": 2}, "cohort must not be given with --algorithm sgd"),
        ({"algorithm": "fedavg", "correction": "shared"}, "correction must not be given with"),
        ({"task": "shakespeare", "samples": 5}, "samples must not be given with --task shakes"),
        ({"method": "none", "rows": 7}, "rows must not be given with --method none, got rows=7"),
        ({"method": "none", "hashes": "fixed"}, "hashes must not be given with --method none"),
        ({"method": "laplace", "hashes": "fixed"}, "hashes must not be given with --method lap"),
        ({"method": "sketch", "per_round": 1.0}, "per_round must not be given with --method sk"),
    ],
)
def test_what_is_not_used_is_an_error(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        resolved(**values)
    assert said in str(caught.value)

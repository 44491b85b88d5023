"""Settings: types, limits, TOML there and back, and the rule that flags are the fields."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from diffsketch.app.settings import (
    METHOD_NAMES,
    RunConfig,
    Setting,
    describe,
    read_settings,
    to_toml,
)
from diffsketch.errors import ArgumentError, DataError
from diffsketch.methods.registry import METHODS
from diffsketch.privacy import Relation, Trust
from diffsketch.sketch.hashing import FAMILIES
from diffsketch.training.rounds import Correction
from diffsketch.training.server import Schedule

SETTINGS = describe(RunConfig)


def values_of(item: Setting) -> st.SearchStrategy[Any]:
    """Values that the setting accepts."""
    if item.choices:
        return st.sampled_from(item.choices)
    if item.kind is bool:
        return st.booleans()
    if item.kind is str:
        return st.text(min_size=1, max_size=20)
    limits = item.metadata
    least = max(limits["least"] or 0, limits["above"] or 0)
    most = min(x for x in (limits["most"], limits["below"], limits["cap"], 2**62) if x is not None)
    if item.kind is int:
        return st.integers(int(least), int(most) - (limits["below"] is not None))
    return st.floats(
        least,
        most,
        exclude_min=limits["above"] is not None,
        exclude_max=limits["below"] is not None,
    )


ANY = st.fixed_dictionaries({}, optional={k: values_of(item) for k, item in SETTINGS.items()})


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
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
        ("rotate = 1", "rotate must be true or false, got rotate=1"),
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


def test_missing_and_binary_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_settings(tmp_path / "none.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match="not a TOML file"):
        read_settings(tmp_path / "binary.toml")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"delta": 1.0}, "delta must be a number > 0 and < 1, got delta=1.0"),
        ({"momentum": -0.1}, "momentum must be a number >= 0 and < 1"),
        ({"bits": 63}, "bits must be a whole number >= 1 and <= 62"),
        ({"seed": None}, "seed must be a whole number >= 0"),
        ({"data_dir": "\udcff"}, "data_dir must be text"),
    ],
)
def test_values_outside_limits_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        RunConfig(**values)
    assert said in str(caught.value)


def test_every_field_is_described() -> None:
    assert list(SETTINGS) == [item.name for item in dataclasses.fields(RunConfig)]
    for item in SETTINGS.values():
        assert item.metadata["help"].endswith((".", "off")), item.name
        assert item.metadata["section"] in (
            "Task", "Training", "Method", "Server", "Privacy", "Output",
        )  # fmt: skip


def test_choices_are_those_of_the_types() -> None:
    assert set(METHOD_NAMES) == set(METHODS)
    assert set(SETTINGS["family"].choices) == set(FAMILIES)
    assert set(SETTINGS["relation"].choices) == set(Relation)
    assert set(SETTINGS["trust"].choices) == set(Trust)
    assert SETTINGS["schedule"].choices == get_args(Schedule)
    assert SETTINGS["correction"].choices == get_args(Correction)


def test_text_of_a_setting() -> None:
    assert SETTINGS["rotate"].parsed("True") is True
    assert SETTINGS["rows"].parsed("7") == 7
    for name, text in (("rotate", "1"), ("rows", "7.5"), ("learning_rate", "nan"), ("trust", "x")):
        with pytest.raises(ArgumentError, match=f"{name} must be"):
            SETTINGS[name].parsed(text)

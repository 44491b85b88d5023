"""Methods by name: what is not understood is an error that says what would be."""

from __future__ import annotations

from dataclasses import fields

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.methods import METHODS, CpSgd, Method, SketchSkellam, build_method, settings_of
from diffsketch.wire import METHOD_CODES

SIZES: dict[str, object] = {"rows": 3, "cols": 20}
SETTINGS: dict[str, dict[str, object]] = {
    "none": {},
    "sketch": SIZES,
    "diffsketch": SIZES | {"per_round": 1.0, "padding": 5, "family": "pairwise"},
    "diffsketch-proven": SIZES | {"clip": 1.0, "padding": 100, "std": 1.0},
    "laplace": {"per_round": 1.0},
    "sketch-laplace": SIZES | {"per_round": 1, "clip": 2},
    "cpsgd": {"claimed": 5.0},
    "sketch-gaussian": SIZES | {"clip": 1.0, "noise_multiplier": 2.0, "trust": "central"},
    "sketch-skellam": SIZES
    | {"clip": 1.0, "noise_multiplier": 2.0, "relation": "add-or-remove", "trust": "local"},
    "gaussian": {"clip": 1.0, "noise_multiplier": 2.0},
    "skellam": {"clip": 1.0, "noise_multiplier": 2.0},
    "projunit": {"size": 10, "per_round": 1.0, "clip": 1.0},
}


def build(name: str, settings: dict[str, object]) -> Method:
    return build_method(name, dim=100, cohort=7, settings=settings)


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_built_by_name(name: str) -> None:
    method = build(name, SETTINGS[name])
    assert type(method) is METHODS[name]
    assert (method.name, method.dim) == (name, 100)
    for key, value in SETTINGS[name].items():
        assert getattr(method, key) == value
    if any(field.name == "cohort" for field in fields(method)):
        assert method.cohort == 7  # type: ignore[attr-defined]


def test_names_are_those_of_the_wire() -> None:
    assert set(METHODS) == set(METHOD_CODES) == set(SETTINGS)


@pytest.mark.parametrize("name", METHODS)
def test_each_missing_setting_is_named(name: str) -> None:
    needed = [key for key, must in settings_of(name).items() if must]
    assert set(needed) <= set(SETTINGS[name])
    for key in needed:
        rest = {other: value for other, value in SETTINGS[name].items() if other != key}
        with pytest.raises(ArgumentError, match=rf"method {name} needs {key}$"):
            build(name, rest)


@pytest.mark.parametrize("name", METHODS)
def test_unknown_settings_are_refused(name: str) -> None:
    for key in ("colour", "dim", "cohort", "sketch", "mechanism"):
        with pytest.raises(ArgumentError, match=rf"{name} has no setting {key}; it has: "):
            build(name, SETTINGS[name] | {key: 1})


def test_the_error_lists_the_settings() -> None:
    with pytest.raises(ArgumentError, match="it has: rows, cols, family, combine"):
        build("sketch", SIZES | {"row": 3})
    with pytest.raises(ArgumentError, match="it has: none"):
        build("none", {"rows": 3})


def test_unknown_methods_are_refused() -> None:
    with pytest.raises(ArgumentError, match="method must be one of none, sketch, diffsketch"):
        build("sketsh", {})


@pytest.mark.parametrize(
    ("name", "settings", "match"),
    [
        ("sketch", {"rows": 0}, "rows must be in 1"),
        ("sketch", {"rows": "3"}, "rows must be an int"),
        ("sketch", {"combine": "mode"}, "combine must be mean or median"),
        ("sketch", {"family": "other"}, "family must be one of"),
        ("diffsketch", {"per_round": 0.0}, "per_round must be a number > 0"),
        ("diffsketch", {"per_round": "1"}, "per_round must be a number > 0"),
        ("diffsketch", {"padding": -1}, "padding must be >= 0"),
        ("diffsketch", {"padding": 1.5}, "padding must be an int"),
        ("diffsketch-proven", {"std": 0.0}, "std must be a number > 0"),
        ("diffsketch-proven", {"padding": 0}, "padding must be >= 1"),
        ("diffsketch-proven", {"relation": "x"}, "relation must be one of"),
        ("laplace", {"clip": 0.0}, "clip must be a number > 0"),
        ("sketch-laplace", {"clip": True}, "clip must be a number > 0"),
        ("projunit", {"size": 101}, r"size must be in 1\.\.100"),
        ("projunit", {"per_round": 1e9}, "per_round must be at most 500"),
    ],
)
def test_bad_values_are_refused(name: str, settings: dict[str, object], match: str) -> None:
    with pytest.raises(ArgumentError, match=match):
        build(name, SETTINGS[name] | settings)


def test_bad_dimensions_are_refused() -> None:
    for bad in (0, -1, 2.0, True):
        for name, settings in SETTINGS.items():
            with pytest.raises(ArgumentError, match="dim must be"):
                build_method(name, dim=bad, cohort=7, settings=settings)  # type: ignore[arg-type]


def test_bad_cohorts_are_refused_where_they_matter() -> None:
    for name in (CpSgd.name, SketchSkellam.name):
        with pytest.raises(ArgumentError, match="cohort must be"):
            build_method(name, dim=100, cohort=0, settings=SETTINGS[name])

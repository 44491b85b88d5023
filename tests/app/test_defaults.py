"""Tasks have the paper's hyper-parameters, and what is not used is an error."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.app.build import settings_of_methods
from diffsketch.app.settings import (
    METHOD_SETTINGS,
    TASK_DEFAULTS,
    RunConfig,
    describe,
    with_task_defaults,
)
from diffsketch.errors import ArgumentError
from diffsketch.methods.base import METHODS, settings_of

FIELDS = settings_of_methods()


def resolved(**values: Any) -> RunConfig:
    config = RunConfig(**values)
    return with_task_defaults(config, fields=FIELDS[config.method])


def test_every_task_has_defaults_that_are_allowed() -> None:
    assert set(TASK_DEFAULTS) == set(describe(RunConfig)["task"].choices)
    for task, values in TASK_DEFAULTS.items():
        RunConfig(task=task, **values)  # type: ignore[arg-type]


def test_every_setting_of_a_method_can_be_given() -> None:
    for name in METHODS:
        assert set(settings_of(name)) <= METHOD_SETTINGS | {"delta"}, name
    assert frozenset().union(*FIELDS.values()) == METHOD_SETTINGS


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("mnist", {"algorithm": "sgd", "workers": 10, "samples": 200, "learning_rate": 0.01}),
        ("mnist-devices", {"algorithm": "fedavg", "workers": 6000, "samples": 10, "cohort": 10}),
        ("shakespeare", {"algorithm": "fedavg", "workers": 46, "learning_rate": 0.8, "cohort": 1}),
    ],
)
def test_the_papers_hyper_parameters(task: str, expected: dict[str, Any]) -> None:
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
        for method in METHODS:
            once = resolved(task=task, method=method)
            assert with_task_defaults(once, fields=FIELDS[method]) == once


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"local_epochs": 2}, "local_epochs must not be given with --algorithm sgd"),
        ({"cohort": 2}, "cohort must not be given with --algorithm sgd"),
        ({"sampling": "uniform"}, "sampling must not be given with --algorithm sgd"),
        ({"algorithm": "fedavg", "correction": "shared"}, "correction must not be given with"),
        ({"task": "shakespeare", "samples": 5}, "samples must not be given with --task shakes"),
        ({"table_momentum": 0.5}, "table_momentum must be 0 without --top-k"),
        ({"top_k": 5, "momentum": 0.5}, "momentum must not be given with --top-k"),
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

"""What a task has where nothing is given: the paper's hyper-parameters.

From the paper: batches of 10, learning rates of 0.01, 0.01 and 0.8, one local epoch, 10 devices a
round on MNIST* and one on Shakespeare, tables of 51x, 10x and 20x. It does not say how many rounds,
nor which epsilon a table of MNIST is for: those are ours. (Method `diffsketch` itself has the
paper's query, the median; the other sketches have the mean.)
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from diffsketch.errors import ArgumentError
from diffsketch.app.config import RunConfig
from diffsketch.app.settings import Value, describe

__all__ = ["METHOD_SETTINGS", "TASK_DEFAULTS", "with_task_defaults"]

METHOD_SETTINGS = frozenset(
    name for name, item in describe(RunConfig).items() if item.metadata["section"] == "Method"
) - {"method", "hashes", "correction"}
"""What a method may have, called as the method calls it."""

_FEDAVG_ONLY = ("local_epochs", "cohort", "sampling")
_SGD_ONLY = ("correction",)

TASK_DEFAULTS: dict[str, dict[str, Value]] = {
    "mnist": {
        "model": "logistic",
        "workers": 10,
        "samples": 200,
        "algorithm": "sgd",
        "rounds": 5000,
        "learning_rate": 0.01,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 10,
        "sampling": "weighted",
        "rows": 7,
        "cols": 22,
        "per_round": 1.0,
        "evaluate_every": 100,
    },
    "mnist-devices": {
        "model": "logistic",
        "workers": 6000,
        "samples": 10,
        "algorithm": "fedavg",
        "rounds": 3000,
        "learning_rate": 0.01,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 10,
        "sampling": "weighted",
        "rows": 10,
        "cols": 78,
        "per_round": 5.0,
        "claimed": 5.0,
        "evaluate_every": 100,
    },
    "shakespeare": {
        "model": "lstm",
        "workers": 46,
        "algorithm": "fedavg",
        "rounds": 250,
        "learning_rate": 0.8,
        "batch_size": 10,
        "local_epochs": 1,
        "cohort": 1,
        "sampling": "weighted",
        "rows": 10,
        "cols": 190,
        "per_round": 1.0,
        "evaluate_every": 10,
    },
}
"""By task. Sizes and epsilon are taken by methods that have them."""


def with_task_defaults(config: RunConfig, *, fields: frozenset[str]) -> RunConfig:
    """The settings with what the task has, where nothing is given.

    Args:
        config: What is given.
        fields: The settings of the method.

    Raises:
        ArgumentError: Something is given that the task, the algorithm or the method does not use.
    """
    defaults = TASK_DEFAULTS[config.task]
    algorithm = config.algorithm or defaults["algorithm"]
    _check_used(config, algorithm=str(algorithm), fields=fields)
    unused = set(_FEDAVG_ONLY) if algorithm == "sgd" else set()
    unused |= METHOD_SETTINGS - fields
    if config.data_dir is not None and config.task == "shakespeare":
        unused.add("workers")  # as many roles as there are, up to the paper's number
    if config.levels is not None or config.trials is not None:
        unused.add("claimed")
    filled: dict[str, Any] = {
        name: value
        for name, value in defaults.items()
        if getattr(config, name) is None and name not in unused
    }
    if config.data_dir is not None:
        # A run may be continued from elsewhere.
        filled["data_dir"] = str(Path(config.data_dir).resolve())
    return dataclasses.replace(config, **filled)


def _check_used(config: RunConfig, *, algorithm: str, fields: frozenset[str]) -> None:
    given = config.given()
    names = _FEDAVG_ONLY if algorithm == "sgd" else _SGD_ONLY
    for name in names:
        if name in given:
            raise _unused(name, given[name], f"--algorithm {algorithm}")
    for name in METHOD_SETTINGS - fields:
        if name in given:
            raise _unused(name, given[name], f"--method {config.method}")
    if config.task == "shakespeare" and "samples" in given:
        raise _unused("samples", given["samples"], "--task shakespeare")
    if config.top_k is None and "table_momentum" in given:
        raise ArgumentError(
            "table_momentum must be 0 without --top-k, got "
            f"table_momentum={given['table_momentum']!r}"
        )
    if config.top_k is not None and "momentum" in given:
        raise _unused("momentum", given["momentum"], "--top-k, which has --table-momentum")
    if not uses_hashes(config, fields) and "hashes" in given:
        raise _unused("hashes", given["hashes"], f"--method {config.method}")


def uses_hashes(config: RunConfig, fields: frozenset[str]) -> bool:
    """Whether messages depend on the round's hashes: tables, projections and rotations do."""
    return bool(fields & {"rows", "size"} or config.rotate)


def _unused(name: str, value: object, because: str) -> ArgumentError:
    return ArgumentError(f"{name} must not be given with {because}, got {name}={value!r}")

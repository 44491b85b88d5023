"""The tasks that come along: their titles, and the settings of a run where none are given.

This module imports no PyTorch, so that a command can show the defaults at once. Values are the
paper's hyper-parameters where it gives them; sizes and epsilon are for methods that have them.
"""

from __future__ import annotations

from collections.abc import Mapping

TASK_TITLES = {"mnist": "MNIST", "mnist-devices": "MNIST*", "shakespeare": "Shakespeare"}

_COMMON: dict[str, str | int | float] = {
    "model": "logistic", "learning_rate": 0.01, "batch_size": 10,
    "local_epochs": 1,  # our choice: the paper gives none
    "cohort": 10, "sampling": "weighted", "per_round": 1.0, "evaluate_every": 100,
}  # fmt: skip

TASK_DEFAULTS: Mapping[str, Mapping[str, str | int | float]] = {
    "mnist": {
        **_COMMON, "workers": 10, "samples": 200, "algorithm": "sgd", "rounds": 5000,
        "rows": 7, "cols": 22,
    },
    "mnist-devices": {
        **_COMMON, "workers": 6000, "samples": 10, "algorithm": "fedavg", "rounds": 3000,
        "rows": 10, "cols": 78, "per_round": 5.0, "claimed": 5.0,
    },
    "shakespeare": {
        **_COMMON, "model": "lstm", "workers": 46, "algorithm": "fedavg", "rounds": 250,
        "learning_rate": 0.8, "cohort": 1, "rows": 10, "cols": 190, "evaluate_every": 10,
    },
}  # fmt: skip

"""The sizes of the data sets, as they are loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from diffsketch.reproduction.measurements.options import check_known, text
from diffsketch.training.data import load_shakespeare, select_roles
from diffsketch.training.tasks import load_task, task_kinds

__all__ = ["measure"]


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """Devices, parameters and samples of each device.

    Samples are those of a device before its text is divided into training and test data, if it is;
    `trained` are those that it trains on.

    Args:
        settings: `task`.
        seed: Of the task.
        on_progress: Told the share that is done.
    """
    check_known(settings, {"task"})
    name = text(settings, "task")
    task = load_task(name, seed=seed)
    trained = task.devices.sizes.numpy()
    samples = trained
    if name == "shakespeare":
        roles = select_roles(load_shakespeare(), count=len(task.devices))
        samples = np.array([len(role) for role in roles])
    models = {}
    for kind in task_kinds()[name].models:
        model = load_task(name, model=kind, seed=seed).model(seed)
        models[kind] = sum(parameter.numel() for parameter in model.parameters())
    on_progress(1.0)
    return {
        "task": name,
        "devices": len(task.devices),
        "parameters": models,
        "samples": {"mean": float(samples.mean()), "std": float(samples.std(ddof=1))},
        "trained": {"mean": float(trained.mean()), "std": float(trained.std(ddof=1))},
        "test": len(task.test),
    }

"""How long jobs take, roughly: for their order, for the time that is left, and for `--list`.

Measured on one core of a server of 2023. Nothing but the display and the order depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from diffsketch.app.settings import TASK_DEFAULTS
from diffsketch.reproduction.jobs import RUN, Job

__all__ = ["minutes_in_words", "seconds_of", "wall_seconds"]

_BEGIN = 0.3  # seconds of any job: data, model, files
_PROCESS = 4.0  # seconds of a process: imports
_DEVICE = {"mnist": 0.04, "mnist-devices": 0.04, "shakespeare": 400.0}  # milliseconds of a round
_EVALUATION = {"mnist": 10.0, "mnist-devices": 10.0, "shakespeare": 750.0}
_MESSAGES = {
    "sketch": 0.02,
    "diffsketch": 0.1,
    "diffsketch-proven": 0.1,
    "laplace": 0.17,
    "sketch-laplace": 0.07,
    "cpsgd": 0.5,
    "sketch-gaussian": 0.08,
    "sketch-skellam": 0.4,
    "projunit": 0.5,
}  # milliseconds
_CORRECTION = 0.7  # milliseconds of a message
_PADDED, _CELLS, _POWER = 0.4, 154, 1.4  # milliseconds of a message of so many cells, and of more
_GRU = 3.0  # times as long as the LSTM
_MEASUREMENTS = {"audit": 2.0, "convergence": 2.0, "cpsgd-parameters": 0.1, "datasets": 1.0}
_TRAINING = (RUN, "masks")  # these evaluate what they train
_LOOKING = ("distributions", "local-epsilon")  # these look at vectors instead


def seconds_of(job: Job) -> float:
    """Of one core.

    >>> round(seconds_of(Job("run", {"task": "mnist", "method": "none", "rounds": 1000}, 0)), 2)
    0.82
    """
    task = str(job.settings.get("task", "mnist"))
    settings: dict[str, Any] = {"task": task, **TASK_DEFAULTS[task], **job.settings}
    settings["rounds"] = settings.get("fedavg_rounds", settings["rounds"])
    if job.kind in _TRAINING:
        return _BEGIN + (_training(settings) + _evaluating(settings)) / 1000
    if job.kind in _LOOKING:
        return _BEGIN + _training(settings) / 1000
    return _BEGIN + _MEASUREMENTS.get(job.kind, 2.0)


def wall_seconds(jobs: Iterable[Job], processes: int) -> float:
    """Of so many processes, which share the work as well as they can."""
    costs = [seconds_of(job) for job in jobs]
    return _PROCESS + max(sum(costs) / processes, max(costs, default=0.0))


def minutes_in_words(seconds: float) -> str:
    """A rough time, never less than it is.

    >>> minutes_in_words(3.2), minutes_in_words(70), minutes_in_words(3601)
    ('10 s', '2 min', '61 min')
    """
    if seconds <= 60:
        return f"{10 * math.ceil(seconds / 10)} s"
    return f"{math.ceil(seconds / 60)} min"


def _training(settings: Mapping[str, Any]) -> float:
    """Milliseconds of all rounds."""
    workers = settings["workers"] if settings["algorithm"] == "sgd" else settings["cohort"]
    message = _MESSAGES.get(settings.get("method", "diffsketch"), 0.0)
    if settings.get("correction", "off") != "off":
        message += _CORRECTION
    if settings.get("padding"):
        message += _PADDED * (settings["rows"] * settings["cols"] / _CELLS) ** _POWER
    training = _DEVICE[settings["task"]] * _factor(settings)
    return float(settings["rounds"] * workers * (training + message))


def _evaluating(settings: Mapping[str, Any]) -> float:
    """Milliseconds of all evaluations."""
    times = 2 + settings["rounds"] / settings["evaluate_every"]
    return float(times * _EVALUATION[settings["task"]] * _factor(settings))


def _factor(settings: Mapping[str, Any]) -> float:
    return _GRU if settings["model"] == "gru" else 1.0

"""What is tried before anything is written: one vector by the method, and one round's cost.

Methods find some mistakes only when they compute. They shall be found before there is a directory.
"""

from __future__ import annotations

import os

import numpy as np
import torch

from diffsketch.training.simulate import Simulation
from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.privacy.accounting.accountant import BudgetExceeded
from diffsketch.privacy.noise import NoiseKey
from diffsketch.app.config import RunConfig
from diffsketch.sketch.hashing import SketchKey

__all__ = ["check_threads", "rehearse"]

_SMALL = 1e-3  # norm of a vector that nobody would clip
_THREADS = 4  # at most, for each core


def rehearse(simulation: Simulation, config: RunConfig) -> None:
    """Raise if the method cannot encode and decode, or not even one round is within the budget.

    Guarantees (`tests/app/test_rehearsal.py`): the simulation is as it was; what is refused here
    would be refused by the first round.

    Args:
        simulation: Before its first round.
        config: Its settings.

    Raises:
        ArgumentError: A setting of the method cannot be computed with, or the budget is too small.
    """
    try:
        _try(simulation.method)
        simulation.participation.after(simulation.claim, np.zeros(1, np.int64))
    except BudgetExceeded as error:
        raise ArgumentError(
            f"budget must allow one round at least, got budget={config.budget}: {error}"
        ) from error
    except ArithmeticError as error:
        raise ArgumentError(
            f"the settings of --method {config.method} are beyond what can be computed: {error}"
        ) from error


def check_threads(count: int) -> None:
    """Raise if there are many more threads than cores: they would only wait for each other.

    Raises:
        ArgumentError: There are.
    """
    cores = os.cpu_count() or 1
    if count > _THREADS * cores:
        raise ArgumentError(
            f"threads must be at most {_THREADS} for each of the {cores} cores here, "
            f"got threads={count}"
        )


def _try(method: Method) -> None:
    """Encode nothing and a small vector, publish, decode."""
    seed, key = SketchKey.from_integer(0).seed(0), NoiseKey.from_integer(0)
    small = torch.full((method.dim,), _SMALL / method.dim**0.5)
    for number, vector in enumerate((torch.zeros(method.dim), small)):
        source = key.source(worker=number, round_index=0)
        message = method.encode(vector, seed, source).messages
        method.decode(method.publish(message, source), seed, count=1)

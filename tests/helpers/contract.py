"""What every engine has to do alike: the same rounds from the same seed, to rounding.

An engine is a function from a `Case` to the weights after its rounds of distributed SGD; here is
the simulation's. Another engine is told who a worker is, and what its gradient is: `gradient`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffsketch.methods import Method, build_method
from diffsketch.sketch import SketchKey
from diffsketch.training.models import flatten
from diffsketch.training.rounds import DistributedSGD
from diffsketch.training.simulation import Simulation
from tests.training.reference import DIM, ReferenceTrainer, make_task

WORKERS, ROUNDS, SEED = 2, 4, 11
ALGORITHM = DistributedSGD(0.5, 4)
TABLE = {"rows": 2, "cols": 6}
CLIENT = {"clip": 2.0, "noise_multiplier": 0.2}

SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "none": ("none", {}),
    "sketch": ("sketch", TABLE),
    "diffsketch": ("diffsketch", {**TABLE, "per_round": 4.0, "padding": 30}),
    "laplace": ("laplace", {"per_round": 4.0}),
    "sketch-gaussian": ("sketch-gaussian", {**TABLE, **CLIENT}),
    "central": ("sketch-gaussian", {**TABLE, **CLIENT, "trust": "central"}),
    "sketch-skellam": ("sketch-skellam", {**TABLE, **CLIENT}),
    "cpsgd": ("cpsgd", {"levels": 64, "trials": 3200, "clip": 2.0, "delta": 1e-3}),
    "sketch-laplace": ("sketch-laplace", {**TABLE, "per_round": 4.0, "clip": 1.0}),
    "gaussian": ("gaussian", CLIENT),
    "skellam": ("skellam", CLIENT),
}


@dataclass(frozen=True)
class Case:
    """Rounds that all engines can run.

    Attributes:
        name: Of `SETTINGS`.
    """

    name: str

    @property
    def method(self) -> Method:
        name, settings = SETTINGS[self.name]
        return build_method(name, dim=DIM, cohort=WORKERS, settings=settings)

    @property
    def key(self) -> SketchKey:
        return SketchKey.from_integer(SEED)


CASES = tuple(Case(name) for name in SETTINGS)


def simulated(case: Case) -> Tensor:
    """The weights by the simulation."""
    simulation = Simulation(
        make_task(9, 7), method=case.method, trainer=ReferenceTrainer(), algorithm=ALGORITHM,
        rounds=ROUNDS, seed=SEED,
    )  # fmt: skip
    for _ in range(ROUNDS):
        simulation.step()
    return simulation.weights


def first_weights() -> Tensor:
    return flatten(make_task(9, 7).model(SEED))


def gradient(weights: Tensor, worker: int, round_index: int) -> Tensor:
    """What a worker contributes to a round."""
    vectors = ALGORITHM.vectors(
        weights, torch.tensor([worker]), trainer=ReferenceTrainer(),
        devices=make_task(9, 7).devices, seed=SEED, round_index=round_index,
    )  # fmt: skip
    return vectors[0]


def applied(weights: Tensor, mean: Tensor) -> Tensor:
    """The weights after a round."""
    return weights - ALGORITHM.learning_rate * mean

"""Train a model of your own on data of your own, with a guarantee that is proven for each client.

Any `torch.nn.Module` that maps inputs to scores will do, and any map from a client to a pair of
NumPy arrays or tensors. Other losses, Dropout, BatchNorm and half-precision weights: see `Task`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from diffsketch import Budget, FedAvg, Simulation, Task, methods

CLIENTS, EXAMPLES, COHORT, ROUNDS = 400, 20, 200, 40


def rings(count: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points in two rings, one around the other: which ring is a point in?"""
    labels = random.integers(0, 2, count)
    angles, radius = random.uniform(0, 2 * np.pi, count), random.normal(1 + labels, 0.2)
    return np.stack((radius * np.cos(angles), radius * np.sin(angles)), axis=1), labels


def main() -> None:
    """Train, and say what it cost."""
    random = np.random.default_rng(1)
    clients = {f"client {i}": rings(EXAMPLES, random) for i in range(CLIENTS)}
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))
    task = Task("rings", clients, rings(2000, random), model)
    method = methods.SketchSkellam(task.dim, 1, 64, clip=0.5, noise_multiplier=4.0, cohort=COHORT)
    simulation = Simulation(
        task,
        method=method,
        algorithm=FedAvg(0.5, 10),
        rounds=ROUNDS,
        sampler=COHORT,
        budget=Budget(epsilon=8.0, delta=1e-5),
    )
    if reason := simulation.run():
        print(f"stopped early: {reason}")
    _, accuracy = simulation.evaluate()
    done, bytes_up = simulation.round_index, simulation.bytes_up
    print(f"accuracy {accuracy:.1%} after {done} rounds, {bytes_up:,} bytes up")
    print(simulation.epsilon(delta=1e-5))
    most = simulation.state.participation.rounds.max()
    print(
        f"That is for {most} of the {done} rounds: each draws {COHORT} of {CLIENTS} clients, a "
        f"client pays for those that it is drawn in, and the unluckiest was drawn in {most}."
    )
    print(simulation.claim)


if __name__ == "__main__":
    main()

"""Train a model of your own on data of your own, with a guarantee that is proven for each client.

Any `torch.nn.Module` that maps inputs to scores will do, and any map from a client to examples.
"""

from __future__ import annotations

import torch
from torch import nn

from diffsketch.methods import SketchSkellam
from diffsketch.privacy import Budget
from diffsketch.training.local import trainer_for
from diffsketch.training.models import flatten
from diffsketch.training.rounds import FedAvg
from diffsketch.training.sampling import UniformSampler
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Devices, Examples, Task

CLIENTS, EXAMPLES, COHORT, ROUNDS = 400, 20, 200, 40
CLIP, NOISE_MULTIPLIER = 0.5, 4.0


def rings(count: int, generator: torch.Generator) -> Examples:
    """Points in two rings, one around the other: which ring is a point in?"""
    labels = torch.randint(0, 2, (count,), generator=generator)
    angles = 2 * torch.pi * torch.rand(count, generator=generator)
    radius = 1 + labels + 0.2 * torch.randn(count, generator=generator)
    return Examples(torch.stack((radius * angles.cos(), radius * angles.sin()), dim=1), labels)


def network(seed: int) -> nn.Module:
    """Its first weights follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def main() -> None:
    """Train, and say what it cost."""
    generator = torch.Generator().manual_seed(1)
    clients = {f"client {i}": rings(EXAMPLES, generator) for i in range(CLIENTS)}
    task = Task("rings", Devices.of(clients), rings(2000, generator), network)
    model = network(0)
    simulation = Simulation(
        task,
        method=SketchSkellam(
            len(flatten(model)), 1, 64, clip=CLIP, noise_multiplier=NOISE_MULTIPLIER, cohort=COHORT
        ),
        trainer=trainer_for(model),
        algorithm=FedAvg(0.5, 10),
        rounds=ROUNDS,
        sampler=UniformSampler(CLIENTS, COHORT, seed=0),
        budget=Budget(epsilon=8.0, delta=1e-5),
    )
    for _ in range(ROUNDS):
        simulation.step()
    _, accuracy = simulation.evaluate()
    print(f"accuracy {accuracy:.1%} after {ROUNDS} rounds, {simulation.bytes_up:,} bytes up")
    print(simulation.epsilon(delta=1e-5))
    print(simulation.claim)


if __name__ == "__main__":
    main()

"""What hospitals and server have agreed on: the method, the model, and the data of this example."""

from __future__ import annotations

import torch
from torch import nn

from diffsketch.flower import FlowerPlan
from diffsketch.silos import Records
from diffsketch.training.tasks import Task, load_task

PATIENTS = (1500, 1200, 900, 700, 500, 400, 300, 250, 150, 100)
"""Records of each hospital, one of each patient: images of digits, in place of scans."""

RATE = 0.2  # probability of a record to be in a batch
PLAN = FlowerPlan(
    "sketch-gaussian",
    {
        "rows": 1, "cols": 2545,  # a tenth of the model's parameters
        "clip": 1.0, "noise_multiplier": 0.7, "unit": "example", "relation": "add-or-remove",
        "trust": "distributed", "rate": RATE, "records": RATE * sum(PATIENTS) / len(PATIENTS),
    },
    cohort=len(PATIENTS),
    min_replies=8,  # two may be missing, and the claim still holds
    secure_sum="two",
)  # fmt: skip


def new_model() -> nn.Module:
    """Make the model with its first weights, which are the same everywhere."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def all_data() -> Task:
    """Load the images of all hospitals together, and those for the test."""
    return load_task("mnist", workers=1, samples=sum(PATIENTS))


def records_of(hospital: int) -> Records:
    """Take a hospital's part."""
    examples = all_data().devices.examples
    inputs, labels = (
        torch.split(values, list(PATIENTS))[hospital]
        for values in (examples.inputs, examples.labels)
    )
    return Records(inputs, labels)

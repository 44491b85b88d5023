"""What both sides share: the data, the model, and the plan."""

from __future__ import annotations

from typing import Any, cast

import torch
from flwr.app import ArrayRecord
from flwr.app.user_config import UserConfig
from torch import nn
from torch.nn.functional import cross_entropy

from diffsketch.flower import FlowerPlan
from diffsketch.training.tasks import Task, load_task


def plan_of(config: UserConfig) -> FlowerPlan:
    """The method, from the run's configuration."""
    return FlowerPlan.parse(
        str(config["method"]),
        str(config["settings"]),
        cohort=int(config["nodes"]),
        min_replies=int(config["min-replies"]),
        secure_sum=cast(Any, config["secure-sum"] or False),  # FlowerPlan looks
    )


def task_of(config: UserConfig) -> Task:
    """Images, divided among the nodes at random."""
    return load_task("mnist", workers=int(config["nodes"]), samples=int(config["samples"]))


def model_of(config: UserConfig, arrays: ArrayRecord | None = None) -> nn.Module:
    """A linear model; or one with a hidden layer. With these weights, or with the first ones."""
    hidden = int(config["hidden"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model: nn.Module = nn.Linear(784, 10)
        if hidden:
            model = nn.Sequential(nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    if arrays is not None:
        model.load_state_dict(arrays.to_torch_state_dict())
    return model


def train(model: nn.Module, task: Task, node: int, config: UserConfig) -> int:
    """Train by SGD on a node's own images; return how many it has."""
    images, devices = task.devices.examples, task.devices
    local = torch.arange(int(devices.starts[node]), int(devices.starts[node + 1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=float(config["learning-rate"]))
    for _ in range(int(config["local-epochs"])):
        shuffled = local[torch.randperm(len(local))]
        for batch in torch.split(shuffled, int(config["batch-size"])):
            optimizer.zero_grad()
            loss = cross_entropy(model(images.inputs[batch]), images.labels[batch])
            torch.autograd.backward(loss)
            optimizer.step()
    return len(local)


def accuracy_of(model: nn.Module, task: Task) -> float:
    """Accuracy on the test images."""
    with torch.no_grad():
        hits = model(task.test.inputs).argmax(dim=1) == task.test.labels
    return float(hits.double().mean())

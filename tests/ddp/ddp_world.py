"""A small model and what trains it, the same at every rank: for tests of DDP."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from diffsketch.ddp.hook import HookState, sketch_state

SMALL = 0.002  # megabytes: several buckets
SKETCH: dict[str, Any] = {"method": "sketch", "compression": 4, "seed": 7, "error_feedback": True}


class Network(nn.Module):
    """With a side branch that not every rank uses in every step."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 20), nn.ReLU())
        self.side, self.head = nn.Linear(20, 20), nn.Linear(20, 3)

    def forward(self, inputs: Tensor, side: bool = True) -> Tensor:
        hidden = self.layers(inputs)
        found: Tensor = self.head(hidden + self.side(hidden) if side else hidden)
        return found


def make_model(dtype: torch.dtype = torch.float32) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Network().to(dtype)


def batch(rank: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * rank + step)
    inputs = torch.randn(8, 6, generator=generator)
    return inputs, (inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long()


def loss_of(model: nn.Module, rank: int, step: int, **options: Any) -> Tensor:
    inputs, labels = batch(rank, step)
    dtype = next(model.parameters()).dtype
    return cross_entropy(model(inputs.to(dtype), **options).float(), labels)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Two groups of parameters, with rates of their own."""
    matrices = [one for one in model.parameters() if one.dim() > 1]
    vectors = [one for one in model.parameters() if one.dim() == 1]
    groups: list[dict[str, Any]] = [{"params": matrices}, {"params": vectors, "lr": 0.2}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.5)


def weights_of(model: nn.Module) -> Tensor:
    return torch.cat([one.detach().float().reshape(-1) for one in model.parameters()])


def state_of(model: nn.Module, **options: Any) -> HookState:
    options = {**SKETCH, **options}
    return sketch_state(model, options.pop("method"), **options)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int, which: range) -> None:
    for step in which:
        optimizer.zero_grad()
        loss_of(model, rank, step).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

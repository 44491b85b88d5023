"""What holds on each of two silos."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from diffsketch.ddp import GroupMean, SiloSteps
from diffsketch.errors import ArgumentError, MismatchError
from diffsketch.methods import GaussianMean
from diffsketch.privacy import Budget, BudgetExceeded
from diffsketch.silos import Records
from diffsketch.sketch import SketchKey
from tests.ddp.processes import WORLD, Checks

KEY, FEATURES, CLASSES = SketchKey.from_integer(3), 6, 3


def method_of(**changes: Any) -> GaussianMean:
    settings: dict[str, Any] = {
        "clip": 1.0, "noise_multiplier": 1.0, "relation": "add-or-remove", "trust": "distributed",
        "unit": "example", "rate": 0.5, "records": 20.0, "cohort": WORLD,
    }  # fmt: skip
    return GaussianMean(dim=(FEATURES + 1) * CLASSES, **(settings | changes))


def records_of(rank: int, count: int = 40) -> Records:
    generator = torch.Generator().manual_seed(rank)
    inputs = torch.randn(count, FEATURES, generator=generator)
    return Records(inputs, inputs[:, :CLASSES].argmax(1))


def silo_of(rank: int, records: Records | None = None, **changes: Any) -> SiloSteps:
    torch.manual_seed(0)
    model = nn.Linear(FEATURES, CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    options: dict[str, Any] = {"key": KEY, "trusted_group": True} | changes
    method = options.pop("method", None) or method_of()
    return SiloSteps(model, optimizer, records or records_of(rank), method, **options)


def weights(silo: SiloSteps) -> list[float]:
    flat: list[float] = nn.utils.parameters_to_vector(silo._model.parameters()).tolist()
    return flat


def learns(rank: int) -> Any:
    silo = silo_of(rank, method=method_of(noise_multiplier=0.05))
    for _ in range(30):
        silo.step()
    records = records_of(rank)
    scores = silo._model(records.inputs)
    assert float((scores.argmax(1) == records.labels).double().mean()) > 0.8
    assert "example unit, add-or-remove, distributed trust" in str(silo.epsilon(1e-5))
    return weights(silo)


def stops_at_the_budget(rank: int) -> Any:
    silo = silo_of(rank, budget=Budget(3.0, 1e-5), method=method_of(noise_multiplier=4.0))
    steps = 0
    while silo._account.rounds_left(method_of(noise_multiplier=4.0).mechanism.claim):
        silo.step()
        steps += 1
    assert steps > 1
    before = weights(silo)
    with pytest.raises(BudgetExceeded):
        silo.step()
    assert weights(silo) == before
    assert float(silo.epsilon(1e-5)) <= 3.0
    return steps, weights(silo)


def keeps_failures_to_itself(rank: int) -> Any:
    """One silo has records that are not finite, or make the loss fail; nobody can tell."""
    records = records_of(rank)
    if rank == 1:
        records.inputs[:10] = math.nan
        records.labels[10:20] = 99  # no such class
    silo = silo_of(rank, records)
    for _ in range(3):
        silo.step()
    assert all(map(math.isfinite, weights(silo)))
    return weights(silo)


def other_models_are_refused(rank: int) -> Any:
    silo = silo_of(rank)
    with torch.no_grad():
        silo._model.bias[0] += rank  # type: ignore[operator, index]
    with pytest.raises(MismatchError):
        silo.step()
    return None


def vectors_are_refused(rank: int) -> Any:
    del rank
    mean = GroupMean(method_of(), key=KEY, trusted_group=True)
    with pytest.raises((ArgumentError, MismatchError), match=r"records|failed"):
        mean.mean(torch.zeros(method_of().dim))
    assert mean._account.rounds == 0
    return None


def central_trust(rank: int) -> Any:
    silo = silo_of(rank, method=method_of(trust="central"))
    silo.step()
    return weights(silo)


def options_are_checked(rank: int) -> Any:
    with pytest.raises(ArgumentError, match="unit="):
        silo_of(rank, method=method_of(unit="client", rate=1.0, records=1.0))
    with pytest.raises(ArgumentError, match="error_feedback"):
        silo_of(rank, error_feedback=True)
    return None


CHECKS = (
    learns, stops_at_the_budget, keeps_failures_to_itself, other_models_are_refused,
    vectors_are_refused, central_trust, options_are_checked,
)  # fmt: skip


def checks() -> Checks:
    return {check.__name__: check for check in CHECKS}

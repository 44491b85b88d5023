"""Predicted errors against simulations with the real mechanisms, run by the code of the plan."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from diffsketch.plan import Method, Option, PlanRequest, Trust, plan, python_code

BASE: dict[str, Any] = {
    "dim": 400, "workers": 8, "rounds": 4, "target_epsilon": 8.0, "message_bytes": 448,
    "trust": "central",
}  # fmt: skip

MOST_ROUNDS = 1000

REQUESTS: dict[str, dict[str, Any]] = {
    "identical": {},
    "spread": {"spread": 3.0, "vector_norm": 5.0, "relation": "add-or-remove"},
    "vectors fit": {"message_bytes": 2000, "spread": 1.0},
    "little noise": {"target_epsilon": 60.0, "workers": 10, "rounds": 1},
    "examples": {"unit": "example", "examples": 4, "workers": 4, "spread": 1.0},
    "coordinates": {"unit": "coordinate", "target_epsilon": 4.0},
    "coordinates, vectors fit": {"unit": "coordinate", "message_bytes": 2000, "spread": 1.0},
    "without delta": {"delta": 0.0, "rounds": 1},
}


def simulate(option: Option, request: PlanRequest) -> float:
    """The mean of the relative errors of so many rounds that its standard error is below 3.5%."""
    names = functions_of(option, request)
    generator = torch.Generator().manual_seed(7)
    errors: list[float] = []
    while len(errors) < 16 or np.std(errors) > 0.035 * np.mean(errors) * math.sqrt(len(errors)):
        assert len(errors) < MOST_ROUNDS
        for index in range(len(errors), len(errors) + 16):
            parts = vectors_of(request, generator)
            mean = parts.flatten(0, 1).double().mean(dim=0)
            messages = [
                names["send"](part if request.unit == "example" else part[0], worker, index)
                for worker, part in enumerate(parts)
            ]
            estimate = names["receive"](messages, index).double()
            errors.append(float((estimate - mean).square().sum() / mean.square().sum()))
    return float(np.mean(errors))


def functions_of(option: Option, request: PlanRequest) -> dict[str, Any]:
    """The plan's own code, only that hashes are derived once a round and not once a worker."""
    names: dict[str, Any] = {}
    exec(python_code(option, request), names)  # noqa: S102
    if "encoder" in names:
        names["encoder"] = functools.cache(names["encoder"])
    if option.method is Method.PADDED_SKETCH:
        fitted = functools.cache(names["mechanism"].at)
        names["mechanism"] = type("Cached", (), {"at": staticmethod(fitted)})
    return names


def vectors_of(request: PlanRequest, generator: torch.Generator) -> torch.Tensor:
    """Dense vectors of the request's norm and spread, `(workers, examples, dim)`."""
    common = torch.randn(request.dim, generator=generator)
    own = torch.randn(request.workers, request.examples, request.dim, generator=generator)
    vectors = common + math.sqrt(request.spread) * own
    vectors *= request.vector_norm / vectors.norm(dim=-1, keepdim=True)
    return vectors


@functools.cache
def options(name: str) -> tuple[Option, ...]:
    found = plan(PlanRequest(**{**BASE, **REQUESTS[name]}), alternatives=20)
    return (found.best, *found.alternatives)


@pytest.mark.parametrize("name", REQUESTS)
def test_predictions(name: str) -> None:
    """Within 15%: more than 4 standard errors, so that a right one fails with some 6e-5 each."""
    request = PlanRequest(**{**BASE, **REQUESTS[name]})
    for option in options(name):
        assert option.error.total == pytest.approx(simulate(option, request), rel=0.15), option


def test_every_method_is_simulated() -> None:
    seen = {option.method for name in REQUESTS for option in options(name)}
    assert seen == set(Method)
    trusts = {option.trust for name in REQUESTS for option in options(name)}
    assert trusts == set(Trust)
    for method in (Method.RAW_DISCRETE_GAUSSIAN, Method.SKETCH_DISCRETE_GAUSSIAN):
        found = {o.trust for name in REQUESTS for o in options(name) if o.method is method}
        assert found == set(Trust)


@pytest.mark.parametrize(
    "method", [Method.SKETCH_GAUSSIAN, Method.SKETCH_SKELLAM, Method.SKETCH_DISCRETE_GAUSSIAN]
)
@pytest.mark.parametrize("factor", [0.8, 1.2])
def test_noise_that_is_wrong_by_a_fifth_is_rejected(method: Method, factor: float) -> None:
    request = PlanRequest(**BASE)
    (option, *_) = (option for option in options("identical") if option.method is method)
    assert option.error.noise > 0.8 * option.error.total
    multiplier = factor * option.mechanism.noise_multiplier
    wrong = replace(option, mechanism=replace(option.mechanism, noise_multiplier=multiplier))
    assert option.error.total != pytest.approx(simulate(wrong, request), rel=0.15)

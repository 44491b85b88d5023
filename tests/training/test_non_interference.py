"""Two neighbouring worlds of a simulation: all that is published but noised cells is the same."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import SketchGaussian, SketchSkellam
from diffsketch.methods.plain import Uncompressed
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.privacy.claim import Relation, Trust
from diffsketch.privacy.noise import NoiseKey
from diffsketch.training.sampling import PoissonDevices
from diffsketch.training.tasks import Examples, Task
from tests.training.reference import DEVICES, DIM, SIZES, make_task, simulate

METHODS: dict[str, Method] = {
    "local": SketchGaussian(DIM, 1, 8, clip=0.5, noise_multiplier=2.0),
    "distributed": SketchSkellam(DIM, 1, 8, clip=0.5, noise_multiplier=2.0, cohort=3),
    "central": SketchGaussian(DIM, 1, 8, clip=0.5, noise_multiplier=2.0, trust=Trust.CENTRAL),
    "moving clip": SketchGaussian(
        DIM, 1, 8, clip=0.5, noise_multiplier=2.0, trust=Trust.CENTRAL, clip_quantile=0.5
    ),
    "secret samples": SketchGaussian(
        DIM, 1, 8, clip=0.5, noise_multiplier=2.0, trust=Trust.CENTRAL,
        relation=Relation.ADD_OR_REMOVE,
    ),
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "distributed": {}, "secret samples": {"sampler": PoissonDevices.of(DEVICES, 4, 5)},
}  # fmt: skip


def world(values: list[float]) -> Task:
    """The task, with another data set at its first device."""
    task = make_task(*SIZES)
    inputs = task.devices.examples.inputs.clone()
    inputs[: SIZES[0], 0], inputs[: SIZES[0], 1:] = values  # those of the first device
    examples = Examples(inputs, task.devices.examples.labels)
    return replace(task, devices=replace(task.devices, examples=examples))


def observed(method: Method, values: list[float], **options: Any) -> list[object]:
    """All that a run of six rounds publishes, without the cells that have noise."""
    seen: list[object] = []
    simulation = simulate(method, world(values), budget=Budget(20.0, 1e-5), **options)
    simulation.noise_key = NoiseKey.from_integer(3)  # else it would follow from the values
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # for whoever runs the simulation: they are not published
        for _ in range(6):
            try:
                result = simulation.step()
            except Exception as error:
                seen.append((type(error), str(error)))
                break
            published = result.published
            seen.append(
                (
                    result.round_index, result.bytes_up, result.bytes_down, result.downloads,
                    str(result.claim), published.count, published.total.shape,
                    published.total.dtype, simulation.epsilon(1e-5),
                )
            )  # fmt: skip
    return seen


@cache
def usual(name: str) -> list[object]:
    """What is seen with usual data: the same for all that is compared with it."""
    return observed(METHODS[name], [0.5, 0.5], **OPTIONS.get(name, {"sampler": None}))


odd = st.sampled_from([0.0, 1.0, -1e3, 1e30, 3e38, math.nan, math.inf, -math.inf, 1e-40])


@pytest.mark.parametrize("name", METHODS)
@settings(max_examples=8, deadline=None, derandomize=True)
@given(values=st.lists(odd, min_size=2, max_size=2))
def test_what_is_published_is_the_same(name: str, values: list[float]) -> None:
    assert observed(METHODS[name], values, **OPTIONS.get(name, {"sampler": None})) == usual(name)


def test_where_nothing_is_proven_the_difference_shows() -> None:
    """Negative control: a device that is left out is seen in the counts."""
    runs = []
    for values in ([math.nan, 1.0], [0.5, 0.5]):
        simulation = simulate(Uncompressed(DIM), world(values), sampler=None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            runs.append(simulation.step().published.count)
    assert runs == [DEVICES - 1, DEVICES]

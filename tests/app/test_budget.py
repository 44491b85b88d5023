"""Noise from a budget: enough for all rounds, and hardly more."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.app.build import build, most_participations
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.privacy import BudgetExceeded
from diffsketch.training.sampling import ShuffledSampler, UniformSampler

SMALL: dict[str, Any] = {
    "task": "mnist-devices", "workers": 20, "samples": 5, "rounds": 12, "cohort": 4, "rows": 1,
    "cols": 16, "clip": 1.0, "budget": 4.0,
}  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "gaussian-local": {"method": "sketch-gaussian", "sampling": "weighted"},
    "gaussian-poisson": {
        "method": "sketch-gaussian", "sampling": "poisson", "trust": "central",
        "relation": "add-or-remove",
    },
    "skellam": {"method": "sketch-skellam", "sampling": "shuffled"},
    "skellam-uniform": {"method": "sketch-skellam", "sampling": "uniform"},
}  # fmt: skip


def rounds_of(config: RunConfig) -> int:
    simulation = build(config).simulation
    for done in range(simulation.rounds):
        try:
            simulation.step()
        except BudgetExceeded:
            return done
    assert float(simulation.epsilon(config.delta)) <= 4.0
    return simulation.rounds


@pytest.mark.parametrize("name", METHODS)
def test_noise_lasts_for_all_rounds_and_not_for_more(name: str) -> None:
    config = RunConfig(**SMALL, **METHODS[name])
    built = build(config)
    noise = built.config.noise_multiplier
    assert noise is not None
    assert rounds_of(built.config) == 12
    less = RunConfig(**SMALL, **METHODS[name], noise_multiplier=0.99 * noise)
    assert rounds_of(less) < 12
    # What was found is what is written down: the resolved settings find nothing anew.
    assert build(built.config).config == built.config


def test_sampled_devices_need_less_noise_than_all() -> None:
    shuffled = build(RunConfig(**SMALL, **METHODS["skellam"])).config.noise_multiplier
    everyone = RunConfig(**{**SMALL, "cohort": 20}, **METHODS["skellam"])
    all_of_them = build(everyone).config.noise_multiplier
    assert shuffled is not None
    assert all_of_them is not None
    assert shuffled < 0.7 * all_of_them


def test_most_participations() -> None:
    # A pass has 5 rounds, in which each of the 20 devices takes part once.
    assert most_participations(ShuffledSampler(20, 4, 0), 12) == 3
    uniform = UniformSampler(20, 4, 0)
    drawn = [device for index in range(12) for device in uniform.draw(index).tolist()]
    assert most_participations(uniform, 12) == max(drawn.count(device) for device in range(20))


def test_nothing_proven_has_no_budget() -> None:
    with pytest.raises(ArgumentError, match="budget must not be given where nothing is proven"):
        build(RunConfig(method="sketch", budget=1.0, workers=3, samples=5))
    with pytest.raises(ArgumentError, match="budget must not be given where nothing is proven"):
        build(RunConfig(method="laplace", budget=1.0, workers=3, samples=5))

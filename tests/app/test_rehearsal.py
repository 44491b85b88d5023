"""Before anything is written: the method can compute, and one round is within the budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffsketch.app import build as rehearsal
from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError
from diffsketch.methods import PlainSketch

SMALL: dict[str, Any] = {"workers": 3, "samples": 10, "rounds": 2}
GAUSSIAN: dict[str, Any] = {"method": "sketch-gaussian", "clip": 1.0, "rows": 1, "cols": 20}


def test_mistakes_of_a_method_are_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise ArgumentError("scale must be finite, got scale=inf")

    monkeypatch.setattr(PlainSketch, "_encode", fail)
    with pytest.raises(ArgumentError, match="scale must be finite"):
        build(RunConfig(method="sketch", **SMALL))

    def overflow(*_: object) -> Any:
        raise OverflowError("too large")

    monkeypatch.setattr(PlainSketch, "_encode", overflow)
    with pytest.raises(ArgumentError, match="--method sketch are beyond what can be computed"):
        build(RunConfig(method="sketch", **SMALL))


def test_a_budget_has_room_for_one_round() -> None:
    with pytest.raises(ArgumentError, match="budget must allow one round at least"):
        build(RunConfig(noise_multiplier=2.0, budget=0.1, **GAUSSIAN, **SMALL))
    built = build(RunConfig(noise_multiplier=2.0, budget=3.0, **GAUSSIAN, **SMALL))
    built.simulation.step()  # so there was room


def test_the_simulation_is_as_it_was() -> None:
    built = build(RunConfig(noise_multiplier=2.0, **GAUSSIAN, **SMALL))
    simulation = built.simulation
    assert (simulation.round_index, simulation.bytes_up) == (0, 0)
    state = simulation.state()
    rehearsal.rehearse(simulation, built.config)
    after = simulation.state()
    assert torch.equal(state["weights"], after["weights"])
    assert {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)} == {
        k: v for k, v in after.items() if not isinstance(v, torch.Tensor)
    }


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    rehearsal.check_threads(8)
    with pytest.raises(ArgumentError, match="threads must be at most 4 for each of the 2 cores"):
        rehearsal.check_threads(9)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": 1e300}, "learning_rate must be at most 1e\\+38"),
        ({"server_step": 1e300}, "server_step must be at most 1e\\+38"),
        ({"learning_rate": 1e30, "server_step": 1e30}, "server_step must be at most 1e\\+08 with"),
        ({"noise_multiplier": 1e-300, **GAUSSIAN}, "noise_multiplier must be a number >= 0.0001"),
        ({"noise_multiplier": 1e300, **GAUSSIAN}, "noise_multiplier must be at most 1e\\+09"),
        ({"threads": 2000}, "threads must be at most 1,024"),
        ({"rounds": 2**33}, "rounds must be at most 4,294,967,296"),
        ({"rounds": 10**400}, "rounds must be at most 4,294,967,296"),
    ],
)
def test_ranges(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        build(RunConfig(**{**SMALL, **settings}))


def test_batches_larger_than_what_there_is() -> None:
    one, other = (
        build(RunConfig(method="none", batch_size=size, **SMALL)).simulation for size in (10, 2**40)
    )
    for simulation in (one, other):
        simulation.step()
    assert torch.equal(one.weights, other.weights)

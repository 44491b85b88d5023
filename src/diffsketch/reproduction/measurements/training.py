"""A training run whose vectors are looked at: gradients or updates, before they are compressed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig
from diffsketch.training.simulation import RoundResult, Simulation

__all__ = ["Seen", "simulation_of", "watched"]


@dataclass(frozen=True, eq=False)
class Seen:
    """A round that was looked at.

    Attributes:
        round_index: The round.
        cohort: The devices that took part.
        vectors: What each of them computed and then compressed, `(devices, dim)`.
        result: What became of the round.
    """

    round_index: int
    cohort: Tensor
    vectors: Tensor
    result: RoundResult


def simulation_of(settings: Mapping[str, Any], *, seed: int) -> Simulation:
    """The simulation that `diffsketch run` would make of these settings."""
    return build(RunConfig(**settings, seed=seed)).simulation


def watched(
    simulation: Simulation,
    rounds: Collection[int] | range,
    *,
    on_progress: Callable[[float], None] = lambda _: None,
) -> Iterator[Seen]:
    """Train, and give the vectors of these rounds; ends after the last of them.

    The vectors are computed a second time for it, by what the simulation computes them with: the
    training is the same as if nobody looked (`tests/reproduction/test_training.py`).

    Args:
        simulation: Before its first round.
        rounds: Which to look at.
        on_progress: Told the share of the rounds that is done.
    """
    last = max(rounds)
    while (index := simulation.round_index) <= last:
        cohort, vectors = simulation.sampler.draw(index), None
        if index in rounds:
            vectors = simulation.algorithm.vectors(
                simulation.model.weights,
                cohort,
                trainer=simulation.trainer,
                devices=simulation.task.devices,
                seed=simulation.seed,
                round_index=index,
            )
        result = simulation.step()
        if vectors is not None:
            yield Seen(index, cohort, vectors, result)
        on_progress((index + 1) / (last + 1))

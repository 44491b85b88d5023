"""Looking at the vectors of a training does not change it."""

from __future__ import annotations

import torch

from diffsketch.reproduction.measurements.training import simulation_of, watched

SETTINGS = {
    "task": "mnist",
    "method": "diffsketch",
    "rows": 3,
    "cols": 4,
    "rounds": 6,
    "padding": 9,
}


def test_training_is_the_same_as_if_nobody_looked() -> None:
    alone, seen = (simulation_of(SETTINGS, seed=1) for _ in range(2))
    for _ in range(6):
        alone.step()
    shares: list[float] = []
    rounds = [each.round_index for each in watched(seen, [0, 3, 5], on_progress=shares.append)]
    assert rounds == [0, 3, 5]
    assert torch.equal(alone.weights, seen.weights)
    assert shares == [1 / 6, 2 / 6, 3 / 6, 4 / 6, 5 / 6, 1.0]


def test_vectors_are_those_that_were_sent() -> None:
    """Of the uncompressed method the sum of the messages is the sum of the vectors."""
    simulation = simulation_of({"task": "mnist", "method": "none", "rounds": 3}, seed=0)
    for each in watched(simulation, range(3)):
        assert each.vectors.shape == (10, 7850)
        assert torch.allclose(each.result.published.total, each.vectors.sum(dim=0), atol=1e-6)
        assert not torch.allclose(each.result.published.total, each.vectors[1:].sum(dim=0))

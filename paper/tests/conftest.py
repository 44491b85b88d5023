"""Fixtures of several tests of the reproduction."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.training.simulation import Simulation


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rounds that are trained in this process."""
    real, found = Simulation.step, []

    def step(self: Simulation) -> Any:
        found.append(self.round_index)
        return real(self)

    monkeypatch.setattr(Simulation, "step", step)
    return found

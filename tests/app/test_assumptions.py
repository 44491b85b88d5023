"""What a run's privacy rests on is said: in its summary, and only where something is claimed."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.app.build import assumptions, build
from diffsketch.app.settings import RunConfig
from diffsketch.privacy.claim import Relation, Scope, Trust, Unit

GAUSSIAN: dict[str, Any] = {
    "task": "mnist-devices", "workers": 6, "samples": 5, "rounds": 2, "cohort": 2, "rows": 1,
    "cols": 16, "clip": 1.0, "noise_multiplier": 2.0, "method": "sketch-gaussian",
    "trust": "central", "relation": "add-or-remove",
}  # fmt: skip
SIMULATED = (
    "Simulated: the noise follows from the seed, so whoever has the run directory can take it out "
    "again; do not publish it as a private release."
)


def assumed(**settings: Any) -> list[str]:
    simulation = build(RunConfig(**settings)).simulation
    simulation.step()
    return assumptions(simulation.claim, simulation.sampler)


@pytest.mark.parametrize(
    ("sampling", "said"),
    [
        (
            "weighted",
            "Who takes part in which round, and how many examples each client has, is taken as "
            "public.",
        ),
        ("uniform", "Who takes part in which round is taken as public."),
        ("shuffled", "Who takes part in which round is taken as public."),
        ("poisson", "Byte and message counts are for the simulator; the number drawn is secret."),
    ],
)
def test_proven_runs(sampling: str, said: str) -> None:
    assert assumed(**GAUSSIAN, sampling=sampling) == [said, SIMULATED]


def test_others() -> None:
    small: dict[str, Any] = {"workers": 3, "samples": 5, "rounds": 1}
    assert assumed(method="diffsketch", **small) == [SIMULATED]
    assert assumed(method="sketch", **small) == []


def test_samples_that_are_secret_hide_who_takes_part() -> None:
    texts = {}
    for sampling in ("poisson", "uniform"):
        simulation = build(RunConfig(**GAUSSIAN, sampling=sampling)).simulation
        simulation.step()
        assert simulation.claim.scope == Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
        texts[sampling] = str(simulation.claim)
    assert texts["poisson"].endswith("can tell whether one client took part.")
    assert texts["uniform"].endswith("can tell whether one client sends its data or zeros.")

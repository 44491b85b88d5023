"""Who may be drawn, and what the whole run claims, from before its first round on."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diffsketch.errors import ArgumentError
from diffsketch.methods.base import Method
from diffsketch.methods.client_noise import SketchGaussian
from diffsketch.methods.registry import build_method
from diffsketch.privacy.claim import NoClaim, SimulatedClaim
from diffsketch.sketch.hashing import SketchKey
from diffsketch.training import simulation as engine
from diffsketch.training.sampling import AllDevices, PoissonDevices, UniformSampler
from tests.training.reference import DIM
from tests.training.test_simulate import CENTRAL, CLAIMED, DELTA, DEVICES, LOCAL, SKETCH, simulate


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("sketch-skellam", {"rows": 3, "cols": 5, "clip": 1.0, "noise_multiplier": 1.0}),
        ("cpsgd", {"claimed": 5.0}),
        ("cpsgd", {"levels": 4, "trials": 4, "clip": 1.0}),  # nothing is claimed
    ],
)
def test_poisson_is_not_for_sums_that_are_decoded_by_their_count(
    name: str, settings: dict[str, object]
) -> None:
    """Whole numbers are decoded by their count: not by 1, and then divided."""
    method = build_method(name, dim=DIM, cohort=2, settings=settings)
    with pytest.raises(ArgumentError, match=f"not for messages of unsigned.*got method='{name}'"):
        simulate(method, sampler=PoissonDevices.of(DEVICES, 2.0, seed=5))
    simulate(method, sampler=UniformSampler(DEVICES, 2, seed=5)).step()


@pytest.mark.parametrize("cohort", [[1, 1, 4], [2, 5, 3], [0, 4, 4]])
def test_nobody_is_drawn_twice(cohort: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Also not in different parts, where the noise could not tell."""

    class Own(AllDevices):
        def draw(self, round_index: int) -> Tensor:
            del round_index
            return torch.tensor(cohort)

    monkeypatch.setattr(engine, "PART_CELLS", DIM)
    simulation = simulate(LOCAL, sampler=Own(DEVICES))
    with pytest.raises(ArgumentError, match="draw devices once each, in ascending order"):
        simulation.step()
    assert simulation.round_index == simulation.bytes_up == 0
    cohort.sort()
    if len(set(cohort)) == 3:
        simulation.step()


@pytest.mark.parametrize(
    ("method", "value"), [(LOCAL, 0.0), (CENTRAL, 0.0), (CLAIMED, 0.0), (SKETCH, float("inf"))]
)
def test_before_the_first_round(method: Method, value: float) -> None:
    simulation = simulate(method)
    expected = SimulatedClaim.of(method.claim_for(3, SketchKey.from_integer(5).seed(0)))
    found = simulation.epsilon(DELTA)
    assert (float(found), found.rounds) == (value, 0)
    assert (found.basis, found.scope) == (expected.basis, expected.scope)
    assert simulation.claim == expected
    simulation.step()
    assert simulation.claim == expected
    assert (simulation.epsilon(DELTA).basis, simulation.epsilon(DELTA).rounds) == (
        expected.basis,
        1,
    )


def test_the_claim_of_the_run_is_its_weakest(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation, none = simulate(LOCAL), NoClaim(LOCAL.mechanism.claim.scope, "nothing is hidden")
    simulation.step()
    with monkeypatch.context() as patched:
        patched.setattr(SketchGaussian, "_claim_for", lambda *_: none)
        assert simulation.step().claim == none
    assert simulation.step().claim == SimulatedClaim.of(LOCAL.mechanism.claim)
    assert simulation.claim == none
    assert float(simulation.epsilon(DELTA)) == float("inf")

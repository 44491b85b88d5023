"""Adaptive clipping in simulations: the clip moves, devices follow it, and it costs no epsilon."""

from __future__ import annotations

import pytest
import torch

from diffsketch.ddp.group import check_group_options
from diffsketch.errors import ArgumentError
from diffsketch.methods import SketchGaussian
from diffsketch.training.server import ModelState
from tests.training.test_simulate_state import RUNS, simulate

ADAPTIVE = [name for name in RUNS if name.startswith("adaptive")]


@pytest.mark.parametrize("name", ADAPTIVE)
def test_the_clip_moves_as_the_published_sums_say(name: str) -> None:
    simulation = simulate(name)
    method = simulation.method
    clips = [simulation.clip]
    for _ in range(6):
        published = simulation.step().published
        assert published.clip == clips[-1]
        method = method.after(published.total, count=published.count)
        assert simulation.clip == method.round_clip
        clips.append(simulation.clip)
    assert len(set(clips)) == 7
    assert clips[0] == 0.5
    assert simulation.method.round_clip == 0.5


@pytest.mark.parametrize("name", ADAPTIVE)
def test_devices_that_follow_have_the_servers_model(name: str) -> None:
    simulation = simulate(name)
    model: ModelState = simulation.model
    for _ in range(5):
        model = simulation.advance(model, simulation.step().published)
        assert torch.equal(model.weights, simulation.weights)


def test_epsilon_is_the_fixed_clips() -> None:
    runs = [simulate("adaptive"), simulate("adaptive", settings={"clip_quantile": None})]
    for run in runs:
        for _ in range(5):
            run.step()
    ours, theirs = (float(run.epsilon(1e-5)) for run in runs)
    assert ours == pytest.approx(theirs, rel=2e-3)
    assert runs[1].clip is None
    # One price for all rounds: the claim does not depend on the clip.
    assert len([key for key in runs[0].state() if key.startswith("participation.paid.")]) == len(
        [key for key in runs[1].state() if key.startswith("participation.paid.")]
    )


def test_a_group_refuses_it() -> None:
    method = SketchGaussian(50, 1, 8, clip=1.0, noise_multiplier=1.0, clip_quantile=0.5)
    with pytest.raises(ArgumentError, match="clip_quantile must be None in a process group"):
        check_group_options(method, claim, budget=None, trusted_group=True, scaler=None)

"""From settings to a simulation: every task and every method, there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diffsketch.app.build import build
from diffsketch.app.settings import RunConfig, read_settings, to_toml
from diffsketch.methods.base import METHODS
from diffsketch.training.sampling import PoissonDevices, WeightedSampler
from diffsketch.training.server import FetchSGD, ServerOptimizer

SMALL: dict[str, Any] = {"workers": 4, "samples": 10, "rounds": 2}
NEEDED: dict[str, dict[str, Any]] = {
    "diffsketch-proven": {"clip": 1.0, "padding": 2000, "std": 1.0, "cols": 5},
    "cpsgd": {"levels": 16, "trials": 64},
    "sketch-gaussian": {"clip": 1.0, "noise_multiplier": 1.0},
    "sketch-skellam": {"clip": 1.0, "budget": 8.0},
    "gaussian": {"clip": 1.0, "noise_multiplier": 1.0},
    "skellam": {"clip": 1.0, "budget": 8.0},
    "projunit": {"clip": 1.0, "size": 32},
}


@pytest.mark.parametrize("method", METHODS)
def test_resolved_settings_build_the_same(method: str, tmp_path: Path) -> None:
    built = build(RunConfig(method=method, **SMALL, **NEEDED.get(method, {})))
    path = tmp_path / "config.toml"
    path.write_text(to_toml(built.config), encoding="utf-8")
    again = build(RunConfig(**read_settings(path)))  # type: ignore[arg-type]
    assert again.config == built.config
    assert again.simulation.method == built.simulation.method
    for _ in range(2):
        built.simulation.step()
        again.simulation.step()
    assert torch.equal(built.simulation.weights, again.simulation.weights)
    assert float(built.simulation.weights.abs().sum()) > 0


def test_settings_arrive() -> None:
    config = RunConfig(
        task="mnist-devices", cohort=2, seed=9, hashes="fixed", local_epochs=2, batch_size=3,
        learning_rate=0.5, method="sketch", rows=2, cols=30, family="pairwise", combine="median",
        server_step=0.5, schedule="sqrt", update_clip=2.0, averaging=0.5, **SMALL,
    )  # fmt: skip
    simulation = build(config).simulation
    assert simulation.seed == 9
    assert simulation.hashes == "fixed"
    assert isinstance(simulation.sampler, WeightedSampler)
    assert (simulation.sampler.cohort, simulation.sampler.members) == (2, 4)
    assert simulation.server == ServerOptimizer(
        server_step=0.5, schedule="sqrt", update_clip=2.0, averaging=0.5
    )
    text = str(simulation.algorithm)
    assert text == "FedAvg(learning_rate=0.5, batch_size=3, local_epochs=2)"
    assert "rows=2, cols=30, family='pairwise', combine='median'" in str(simulation.method)


def test_other_servers_and_samplers() -> None:
    config = RunConfig(method="sketch", hashes="fixed", top_k=5, table_momentum=0.9, **SMALL)
    assert build(config).simulation.server == FetchSGD(5, table_momentum=0.9)
    config = RunConfig(task="mnist-devices", method="none", sampling="poisson", cohort=2, **SMALL)
    assert isinstance(build(config).simulation.sampler, PoissonDevices)
    config = RunConfig(method="sketch", correction="shared", **SMALL)
    assert build(config).simulation.algorithm.correction == "shared"


def test_cpsgd_gets_its_share_of_the_runs_delta() -> None:
    config = RunConfig(method="cpsgd", delta=1e-3, **SMALL, **NEEDED["cpsgd"])
    built = build(config)
    assert "delta=0.0005" in str(built.simulation.method)  # in each of two rounds
    assert built.config.delta == 1e-3
    # Four devices, two a round: each takes part once in a pass of two rounds.
    devices = RunConfig(
        task="mnist-devices", method="cpsgd", delta=1e-3, sampling="shuffled", cohort=2, **SMALL,
        **NEEDED["cpsgd"],
    )  # fmt: skip
    assert "delta=0.001" in str(build(devices).simulation.method)


def test_models_of_tasks() -> None:
    cnn = build(RunConfig(model="cnn", method="none", **SMALL))
    assert set(cnn.named_weights(cnn.simulation.weights)) == {
        name for name, _ in cnn.model.named_parameters()
    }
    shakespeare = build(RunConfig(task="shakespeare", workers=2, rounds=1, method="none"))
    assert shakespeare.config.model == "lstm"
    assert shakespeare.config.workers == 2

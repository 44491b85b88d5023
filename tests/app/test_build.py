"""From settings to a simulation: all methods, budgets, mistakes, and what privacy rests on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from diffsketch.app import build as build_module
from diffsketch.app.build import assumptions, build, most_participations
from diffsketch.app.settings import RunConfig, read_settings, to_toml
from diffsketch.errors import ArgumentError
from diffsketch.methods import PlainSketch
from diffsketch.privacy import BudgetExceeded
from diffsketch.privacy.claim import Relation, Scope, Trust, Unit
from diffsketch.training.rounds import ServerOptimizer
from diffsketch.training.sampling import (
    PoissonDevices,
    ShuffledSampler,
    UniformSampler,
    WeightedSampler,
)
from tests.app.commands import NEEDED
from tests.helpers.library import LIBRARY

SMALL: dict[str, Any] = {"workers": 4, "samples": 10, "rounds": 2}


@pytest.mark.slow
@pytest.mark.parametrize("method", LIBRARY)
def test_resolved_settings_build_the_same(method: Any, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_settings_arrive() -> None:
    config = RunConfig(
        task="mnist-devices", cohort=2, seed=9, hashes="fixed", local_epochs=2, batch_size=3,
        learning_rate=0.5, method="sketch", rows=2, cols=30, family="pairwise", combine="median",
        server_step=0.5, schedule="sqrt", update_clip=2.0, **SMALL,
    )  # fmt: skip
    simulation = build(config).simulation
    assert simulation.seed == 9
    assert simulation.hashes == "fixed"
    assert isinstance(simulation.sampler, WeightedSampler)
    assert (simulation.sampler.cohort, simulation.sampler.members) == (2, 4)
    assert simulation.server == ServerOptimizer(server_step=0.5, schedule="sqrt", update_clip=2.0)
    text = str(simulation.algorithm)
    assert text == "FedAvg(learning_rate=0.5, batch_size=3, local_epochs=2)"
    assert "rows=2, cols=30, family='pairwise', combine='median'" in str(simulation.method)


def test_other_servers_samplers_and_models() -> None:
    config = RunConfig(task="mnist-devices", method="none", sampling="poisson", cohort=2, **SMALL)
    assert isinstance(build(config).simulation.sampler, PoissonDevices)
    config = RunConfig(method="sketch", correction="shared", **SMALL)
    assert build(config).simulation.algorithm.correction == "shared"
    shakespeare = build(RunConfig(task="shakespeare", workers=2, rounds=1, method="none"))
    assert (shakespeare.config.model, shakespeare.config.workers) == ("lstm", 2)


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


BUDGET: dict[str, Any] = {
    "task": "mnist-devices", "workers": 20, "samples": 5, "rounds": 12, "cohort": 4, "rows": 1,
    "cols": 16, "clip": 1.0, "budget": 4.0,
}  # fmt: skip
BUDGETED: dict[str, dict[str, Any]] = {
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


@pytest.mark.slow
@pytest.mark.parametrize("name", BUDGETED)
def test_noise_lasts_for_all_rounds_and_not_for_more(name: str) -> None:
    config = RunConfig(**BUDGET, **BUDGETED[name])
    built = build(config)
    noise = built.config.noise_multiplier
    assert noise is not None
    assert rounds_of(built.config) == 12
    less = RunConfig(**BUDGET, **BUDGETED[name], noise_multiplier=0.99 * noise)
    assert rounds_of(less) < 12
    # What was found is what is written down: the resolved settings find nothing anew.
    assert build(built.config).config == built.config


def test_sampled_devices_need_less_noise_than_all() -> None:
    shuffled = build(RunConfig(**BUDGET, **BUDGETED["skellam"])).config.noise_multiplier
    everyone = RunConfig(**{**BUDGET, "cohort": 20}, **BUDGETED["skellam"])
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
    for method in ("sketch", "laplace"):
        with pytest.raises(ArgumentError, match="budget must not be given where nothing is proven"):
            build(RunConfig(method=method, budget=1.0, workers=3, samples=5))


GAUSSIAN: dict[str, Any] = {"method": "sketch-gaussian", "clip": 1.0, "rows": 1, "cols": 20}


def test_mistakes_of_a_method_are_found_first(monkeypatch: pytest.MonkeyPatch) -> None:
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
    state = simulation.state_dict()
    build_module._try_once(simulation, built.config)
    after = simulation.state_dict()
    assert torch.equal(state["weights"], after["weights"])
    assert {k: v for k, v in state.items() if not isinstance(v, torch.Tensor)} == {
        k: v for k, v in after.items() if not isinstance(v, torch.Tensor)
    }


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    config = RunConfig(method="none", threads=8, **SMALL)
    build(config)
    with pytest.raises(ArgumentError, match="threads must be at most 4 for each of the 2 cores"):
        build(config.replaced(threads=9))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"learning_rate": 1e30, "server_step": 1e30}, "server_step must be at most 1e\\+08 with"),
        ({"noise_multiplier": 1e300, **GAUSSIAN}, "noise_multiplier must be at most 1e\\+09"),
        ({"rounds": 10**400}, "rounds must be at most 4,294,967,296"),
    ],
)
def test_ranges(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        build(RunConfig(**{**SMALL, **settings}))


CENTRAL: dict[str, Any] = {
    "task": "mnist-devices", "workers": 6, "samples": 5, "rounds": 2, "cohort": 2, "rows": 1,
    "cols": 16, "clip": 1.0, "noise_multiplier": 2.0, "method": "sketch-gaussian",
    "trust": "central", "relation": "add-or-remove",
}  # fmt: skip
SIMULATED = (
    "Simulated: the noise follows from the seed, so whoever has the run directory can take it out "
    "again; do not publish it as a private release."
)
PUBLIC = "Who takes part in which round{} is taken as public."
SIZES = ", and how many examples each client has,"
UNCOUNTED = "Byte and message counts are for the simulator; the number drawn is secret."


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**CENTRAL, "sampling": "weighted"}, [PUBLIC.format(SIZES), SIMULATED]),
        ({**CENTRAL, "sampling": "uniform"}, [PUBLIC.format(""), SIMULATED]),
        ({**CENTRAL, "sampling": "poisson"}, [UNCOUNTED, SIMULATED]),
        ({"method": "diffsketch", **SMALL}, [SIMULATED]),
        ({"method": "sketch", **SMALL}, []),
    ],
)
def test_assumptions(settings: dict[str, Any], said: list[str]) -> None:
    simulation = build(RunConfig(**settings)).simulation
    simulation.step()
    assert assumptions(simulation.claim, simulation.sampler) == said


def test_samples_that_are_secret_hide_who_takes_part() -> None:
    texts = {}
    for sampling in ("poisson", "uniform"):
        simulation = build(RunConfig(**CENTRAL, sampling=sampling)).simulation
        simulation.step()
        assert simulation.claim.scope == Scope(Unit.CLIENT, Relation.ADD_OR_REMOVE, Trust.CENTRAL)
        texts[sampling] = str(simulation.claim)
    assert texts["poisson"].endswith("can tell whether one client took part.")
    assert texts["uniform"].endswith("can tell whether one client sends its data or zeros.")

"""Runs of tasks and methods made in Python, kept in directories as those of the command line."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from diffsketch.app.run_records import read_run
from diffsketch.app.session import train
from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.logs import LOGGERS, RoundSummary, json_lines
from diffsketch.methods.client_noise import SketchGaussian, SketchSkellam
from diffsketch.methods.plain import Uncompressed
from diffsketch.privacy.accounting.budget import Budget
from diffsketch.training.rounds import DistributedSGD, FedAvg, ServerOptimizer
from diffsketch.training.simulation import Diverged, Simulation
from diffsketch.training.tasks import Task, load_task
from tests.app.commands import done, invoke, refused


def rings(count: int, seed: int) -> tuple[Any, Any]:
    random = np.random.default_rng(seed)
    labels = random.integers(0, 2, count)
    angles, radius = random.uniform(0, 2 * np.pi, count), random.normal(1 + labels, 0.2)
    return np.stack((radius * np.cos(angles), radius * np.sin(angles)), axis=1), labels


def simulation(rounds: int = 6, *, seed: int = 0, rate: float = 0.1, **more: Any) -> Simulation:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = nn.Linear(2, 2)
    task = Task("rings", {f"client {i}": rings(20, i) for i in range(4)}, rings(50, 9), model)
    method = more.pop("method", None) or SketchGaussian(
        task.dim, 1, 4, clip=1.0, noise_multiplier=2.0
    )
    return Simulation(
        task, method=method, algorithm=FedAvg(rate, 10), rounds=rounds, seed=seed, **more
    )


def test_a_task_and_a_method_of_ours_go_on_too(tmp_path: Path) -> None:
    """Their settings are read back as those of the command line."""
    task = load_task("mnist", samples=10)

    def again() -> Simulation:
        return Simulation(
            task, method=Uncompressed(task.dim), algorithm=DistributedSGD(0.01, 5), rounds=3
        )

    train(again(), tmp_path / "run", stop=lambda: True)
    assert train(again(), tmp_path / "run") == ""
    assert read_run(tmp_path / "run").rounds == 3
    with pytest.raises(MismatchError, match="other settings"):
        train(again(), tmp_path / "run", patience=2)


def test_it_is_kept_and_shown_beside_runs_of_the_command_line(tmp_path: Path) -> None:
    seen: list[RoundSummary] = []
    path = tmp_path / "own"
    assert train(simulation(), path, evaluate_every=2, on_round=seen.append) == ""
    assert [summary.round for summary in seen] == [1, 2, 3, 4, 5, 6]
    assert [summary.loss is not None for summary in seen] == [False, True] * 3
    assert seen[-1].epsilon is not None
    run = read_run(path)
    assert (run.config.task, run.config.method, run.rounds) == ("rings", "sketch-gaussian", 6)
    assert [point["round"] for point in run.curve] == [0, 2, 4, 6]
    assert run.value("bytes_up") == seen[-1].bytes_up > 0
    model = load_file(path / "model.safetensors")
    assert {name: tuple(part.shape) for name, part in model.items()} == {
        "weight": (2, 2), "bias": (2,),
    }  # fmt: skip
    words = ("--workers", "3", "--samples", "10", "--rounds", "2", "--output", tmp_path / "built")
    done("run", *words)
    done("report", path, tmp_path / "built", "--output", tmp_path / "page")
    page = (tmp_path / "page" / "index.html").read_text()
    assert all(name in page for name in ("rings", "MNIST", "sketch-gaussian"))


def test_a_run_that_was_interrupted_ends_as_it_would_have(tmp_path: Path) -> None:
    def interrupted(summary: RoundSummary) -> None:
        if summary.round == 3:
            raise KeyboardInterrupt

    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train(simulation(), whole)
    with pytest.raises(KeyboardInterrupt):
        train(simulation(), halves, on_round=interrupted)
    train(simulation(), halves)
    for name in ("model.safetensors", "metrics.jsonl", "summary.json"):
        assert (halves / name).read_bytes() == (whole / name).read_bytes()
    # A run that is finished stays as it is.
    train(simulation(), whole, on_round=interrupted)


def test_the_directory_of_another_run_is_refused(tmp_path: Path) -> None:
    train(simulation(2), tmp_path / "run")
    with pytest.raises(MismatchError, match="has a run with other settings"):
        train(simulation(2, seed=1), tmp_path / "run")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").touch()
    with pytest.raises(ArgumentError, match="output must be a new or empty directory"):
        train(simulation(2), tmp_path / "other")
    train(simulation(2), tmp_path / "begun", stop=lambda: True)
    assert "is continued there" in refused(invoke("run", "--resume", tmp_path / "begun"))
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises((DataError, MismatchError)):
        train(simulation(2), tmp_path / "run")


def test_in_memory_it_has_history_and_the_best_model() -> None:
    seen: list[RoundSummary] = []
    run = simulation(40, rate=0.2, method=Uncompressed(6))
    with pytest.raises(ArgumentError, match="best must follow a run"):
        run.trained(best=True)
    reason = run.run(on_round=seen.append, evaluate_every=1, patience=3)
    assert reason == "the loss has not fallen for 3 evaluations"
    assert [row["round"] for row in run.history] == list(range(1, len(seen) + 1))
    losses = [row["loss"] for row in run.history]
    smallest = min(range(len(losses)), key=losses.__getitem__)
    assert smallest == len(losses) - 4
    again = simulation(40, rate=0.2, method=Uncompressed(6))
    for _ in range(smallest + 1):
        again.step()
    best = torch.cat([part.detach().flatten() for part in run.trained(best=True).parameters()])
    assert torch.equal(best, again.weights)
    run.run(evaluate_every=1, patience=3)  # patience counts anew
    assert len(run.history) >= len(seen) + 4
    # Where no round is better than the first weights, these are the best, as files have it.
    worse = simulation(40, rate=30.0, method=Uncompressed(6))
    worse.run(evaluate_every=1, patience=3)
    assert (len(worse.history), worse.curve[0]["round"]) == (3, 0)
    assert torch.equal(worse.best_weights, simulation(1, method=Uncompressed(6)).weights)
    for wrong in ({"evaluate_every": 0}, {"patience": 0}):
        with pytest.raises(ArgumentError, match=next(iter(wrong))):
            simulation().run(**wrong)  # type: ignore[arg-type]


KEPT = ("model.safetensors", "metrics.jsonl", "summary.json", "config.toml", "run.json")
PLAIN = Uncompressed(6)
GAUSS = SketchGaussian(6, 1, 4, clip=1.0, noise_multiplier=2.0)
WIDE = SketchGaussian(6, 1, 4, clip=9.0, noise_multiplier=2.0)
SKELLAM = SketchSkellam(6, 3, 16, clip=1.0, noise_multiplier=0.2, cohort=4)
# Rounds, how the run is made, and how it is run.
SAVED: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    "finished": (6, {"method": SKELLAM}, {"evaluate_every": 2}),
    "out of budget": (6, {"method": GAUSS, "budget": Budget(4.0, 1e-5)}, {}),
    "stopped early": (40, {"rate": 0.2, "method": PLAIN}, {"evaluate_every": 1, "patience": 3}),
    "diverged": (6, {"method": WIDE, "server": ServerOptimizer(server_step=1e38)}, {}),
    "diverged by its loss": (6, {"method": WIDE, "server": ServerOptimizer(server_step=1e37)}, {}),
}


@pytest.mark.parametrize("outcome", SAVED)
def test_saved_it_has_the_files_of_a_run_that_was_kept(outcome: str, tmp_path: Path) -> None:
    rounds, made, how = SAVED[outcome]
    reason = train(simulation(rounds, **made), tmp_path / "kept", **how)
    run = simulation(rounds, **made)
    with suppress(Diverged):
        assert run.run(**how) == reason
    run.save(tmp_path / "saved")
    for name in (*KEPT, *(["best.safetensors"] if "patience" in how else [])):
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "kept" / name).read_bytes()
    if "patience" in how:
        best = load_file(tmp_path / "saved" / "best.safetensors")
        assert torch.equal(torch.cat([best["weight"].flatten(), best["bias"]]), run.best_weights)
    record = read_run(tmp_path / "saved")
    assert record.outcome == outcome.partition(" by")[0]
    seconds = sum(row["seconds"] for row in run.history)
    assert record.times["training"] == pytest.approx(seconds)
    assert run.round_index == record.rounds == len(run.history)  # saving runs nothing


def test_saved_before_its_end_it_is_shown_and_continued(tmp_path: Path) -> None:
    def interrupted(summary: RoundSummary) -> None:
        if summary.round == 3:
            raise KeyboardInterrupt

    train(simulation(), tmp_path / "whole")
    run = simulation()
    with pytest.raises(KeyboardInterrupt):
        run.run(on_round=interrupted)
    run.save(str(tmp_path / "halves"))
    done("report", tmp_path / "halves", tmp_path / "whole", "--output", tmp_path / "page")
    assert "1 of 2 runs unfinished" in (tmp_path / "page" / "index.html").read_text()
    assert read_run(tmp_path / "halves").rounds == 3
    train(simulation(), tmp_path / "halves")
    for name in KEPT:
        assert (tmp_path / "halves" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rounds_that_were_stepped_are_saved(tmp_path: Path) -> None:
    stepped, whole = simulation(2), simulation(2)
    stepped.step()
    continued = simulation(2)
    continued.load_state_dict(stepped.state_dict())
    continued.step()
    continued.save(tmp_path / "stepped")
    train(whole, tmp_path / "whole")
    record, other = (read_run(tmp_path / name) for name in ("stepped", "whole"))
    # A state of before: what came after it is measured anew.
    state = simulation(2).state_dict()
    whole = simulation(2)
    whole.run()
    whole.load_state_dict(state)
    assert (len(whole.history), len(whole.curve)) == (0, 1)
    whole.run()
    whole.save(tmp_path / "again")
    assert read_run(tmp_path / "again").curve == other.curve
    for name in ("messages", "uncompressed_bytes_down", "bytes_up", "epsilon", "loss"):
        assert record.value(name) == other.value(name)


def test_a_directory_with_files_is_not_saved_to(tmp_path: Path) -> None:
    run = simulation(2)
    run.run()
    run.save(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(ArgumentError, match="directory must be new or empty"):
        run.save(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_labels_that_are_no_classes_have_no_accuracy(tmp_path: Path) -> None:
    inputs = np.linspace(-1, 1, 80, dtype=np.float32)[:, None]
    data = {f"client {i}": (inputs[i::4], 2 * inputs[i::4]) for i in range(4)}
    task = Task("line", data, (inputs, 2 * inputs), nn.Linear(1, 1), loss=nn.functional.mse_loss)
    run = Simulation(task, method=Uncompressed(2), algorithm=FedAvg(0.1, 10), rounds=3)
    run.run()
    run.save(tmp_path / "line")
    record = read_run(tmp_path / "line")
    assert (record.outcome, record.value("accuracy")) == ("finished", None)
    assert record.value("loss") == run.history[-1]["loss"]
    done("report", tmp_path / "line", "--output", tmp_path / "page")


def test_history_has_epsilon_with_its_words_where_it_is_measured() -> None:
    run = simulation(4, budget=Budget(20.0, 1e-6))
    run.run(evaluate_every=2)
    assert [row["epsilon"] is None for row in run.history] == [True, False, True, False]
    assert run.history[-1]["delta"] == 1e-6
    assert "proven, simulated; client, replace, local" in run.history[-1]["guarantee"]
    assert run.history[-1]["epsilon"] == float(run.epsilon(1e-6))


def test_refused_vectors_are_told() -> None:
    model = nn.Linear(2, 2)
    inputs, labels = rings(20, 0)
    bad = np.full_like(inputs, 1e38)  # finite, but the second step on it is not
    task = Task("rings", {"alice": (inputs, labels), "bob": (bad, labels)}, rings(50, 9), model)
    seen: list[RoundSummary] = []
    run = Simulation(task, method=Uncompressed(6), algorithm=FedAvg(0.1, 10), rounds=1)
    with pytest.warns(Warning, match="bob"):
        run.run(on_round=seen.append)
    assert seen[0].refused == {"bob": "its vector has NaN or infinite values"}


def test_json_lines_are_rows(tmp_path: Path) -> None:
    run = simulation(3)
    run.run(on_round=json_lines(tmp_path / "rounds.jsonl"))
    lines = (tmp_path / "rounds.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == run.history


@pytest.mark.slow
def test_tensorboard_and_mlflow_have_the_curves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    mlflow = pytest.importorskip("mlflow")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    small = ["--workers", "3", "--samples", "10", "--rounds", "4", "--evaluate-every", "2"]
    done("run", *small, "--log", "tensorboard", "--output", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run"))
    events.Reload()
    assert [event.step for event in events.Scalars("bytes_up")] == [1, 2, 3, 4]
    curve = read_run(tmp_path / "run").curve
    shown = [event.value for event in events.Scalars("loss")]
    assert shown == pytest.approx([point["loss"] for point in curve[1:]], rel=1e-6)  # float32

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere:x")
    said = refused(invoke("run", *small, "--log", "mlflow", "--output", tmp_path / "refused"))
    assert "MLFLOW_TRACKING_URI must be where MLflow can keep runs" in said
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # else a server would have to be started
    run = simulation(4)
    run.run(on_round=LOGGERS["mlflow"](tmp_path / "mine"), evaluate_every=2)
    mlflow.end_run()
    (logged,) = mlflow.MlflowClient().search_runs(["0"])
    assert logged.info.run_name == "mine"
    assert logged.data.metrics["loss"] == run.history[-1]["loss"]
    assert "proven, simulated" in logged.data.tags["guarantee"]

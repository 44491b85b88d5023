"""Accuracy of the runs of `examples/compare/silos.toml`, and the search for their rates.

    python -m benchmarks.silos rates     # on images of the training set that no silo has
    python -m benchmarks.silos           # the table: the test set, five seeds; kept in results/

The same simulations as `diffsketch compare --config examples/compare/silos.toml --seeds 5`, on as
many processes as there are cores.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tomllib
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch

from diffsketch.methods import build_method
from diffsketch.methods.base import settings_of
from diffsketch.privacy import Budget, ProvenClaim, calibrate
from diffsketch.privacy.accounting.events import Event
from diffsketch.sketch import SketchKey
from diffsketch.training.data.mnist import load_mnist
from diffsketch.training.rounds import DistributedSGD, ServerOptimizer
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Devices, Examples, Task, load_task

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / "examples" / "compare" / "silos.toml"
RESULTS = ROOT / "benchmarks" / "results" / "silos.json"
RATES = (0.35, 0.7, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
SEEDS, TRIED = 5, 2


def runs() -> list[dict[str, Any]]:
    """Settings of each run, with those that all have."""
    table = tomllib.loads(CONFIG.read_text())
    common = {name: value for name, value in table.items() if name != "run"}
    return [{**common, **run} for run in table["run"]]


def validation_task(run: Mapping[str, Any], seed: int) -> Task:
    """As many examples for training in each silo, and as many that no silo has for validation."""
    task = load_task("mnist", workers=run["workers"], samples=2 * run["samples"], seed=seed)
    examples = task.devices.examples
    inputs, labels = (
        values.reshape(run["workers"], 2, run["samples"], *values.shape[1:])
        for values in (examples.inputs, examples.labels)
    )
    devices = Devices.of({str(k): (inputs[k, 0], labels[k, 0]) for k in range(run["workers"])})
    test = Examples(inputs[:, 1].flatten(0, 1), labels[:, 1].flatten())
    return Task("mnist", devices, test, task.model)


def simulate(run: Mapping[str, Any], seed: int, *, validate: bool) -> dict[str, Any]:
    """Accuracy, epsilon and bytes of one run."""
    torch.set_num_threads(1)
    size = {name: run[name] for name in ("workers", "samples")}
    task = validation_task(run, seed) if validate else load_task("mnist", **size, seed=seed)
    silos, rounds = run["workers"], run["rounds"]
    names = settings_of(run["method"])
    settings = {name: value for name, value in run.items() if name in names}
    budget = Budget(run["budget"], 1e-5) if "budget" in run else None
    if budget is not None:
        settings |= {
            "rate": run["batch_size"] / run["samples"],
            "records": float(run["batch_size"]),
        }

    def method_with(multiplier: float) -> Any:
        noise = {} if budget is None else {"noise_multiplier": multiplier}
        return build_method(run["method"], dim=7850, cohort=silos, settings={**settings, **noise})

    def event_of(multiplier: float) -> Event:
        claim = method_with(multiplier).claim_for(silos, SketchKey.from_integer(seed).seed(0))
        assert isinstance(claim, ProvenClaim)  # noqa: S101
        return claim.event

    least = {"least": 1e-2, "tolerance": 1e-3}
    noise = 0.0 if budget is None else calibrate(event_of, budget, rounds=rounds, **least)
    simulation = Simulation(
        task,
        method=method_with(noise),
        algorithm=DistributedSGD(run["learning_rate"], run["batch_size"]),
        rounds=rounds,
        seed=seed,
        server=ServerOptimizer(schedule=run["schedule"]),
        budget=budget,
    )
    stopped = simulation.run()
    assert not stopped, stopped  # noqa: S101
    return {
        "accuracy": 100 * simulation.evaluate()[1],
        "epsilon": None if budget is None else simulation.epsilon(1e-5).text("short"),
        "bytes": simulation.method.wire_bytes,
    }


def write_rates(rates: Mapping[str, float]) -> None:
    """Write the learning rate of each run into the settings, which have them in order."""
    chosen = iter([rates[run["name"]] for run in runs()])
    text = re.sub(
        r"learning_rate = .*", lambda _: f"learning_rate = {next(chosen)}", CONFIG.read_text()
    )
    CONFIG.write_text(text)


def job(arguments: tuple[dict[str, Any], int, bool]) -> dict[str, Any]:
    run, seed, validate = arguments
    return simulate(run, seed, validate=validate)


def main() -> None:
    validate = sys.argv[1:] == ["rates"]
    load_mnist(split="train")  # unpacked once
    jobs = []
    for run in runs():
        for rate in RATES if validate else (run["learning_rate"],):
            seeds = range(100, 100 + TRIED) if validate else range(SEEDS)
            jobs += [({**run, "learning_rate": rate}, seed, validate) for seed in seeds]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(job, jobs))
    lines: dict[tuple[str, float], list[dict[str, Any]]] = {}
    for (run, _, _), result in zip(jobs, results, strict=True):
        lines.setdefault((run["name"], run["learning_rate"]), []).append(result)
    table = []
    for (name, rate), seeds_of_run in lines.items():
        accuracies = [result["accuracy"] for result in seeds_of_run]
        first = seeds_of_run[0]
        table.append({
            "run": name, "learning_rate": rate, "accuracy": round(mean(accuracies), 2),
            "std": round(stdev(accuracies), 2), "epsilon": first["epsilon"],
            "bytes": first["bytes"],
        })  # fmt: skip
        print(json.dumps(table[-1]), flush=True)
    if not validate:
        RESULTS.write_text(json.dumps(table, indent=1) + "\n")
        return
    means = {line: mean(r["accuracy"] for r in results) for line, results in lines.items()}
    write_rates({name: max(RATES, key=lambda r: means[name, r]) for name, _ in lines})


if __name__ == "__main__":
    main()

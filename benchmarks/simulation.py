"""How many rounds a second does the simulation do, against other simulators?

    python -m benchmarks.simulation --json benchmark-simulation.json
    python -m benchmarks.simulation --cohorts 10,100 --quick

Three questions. Rounds of FedAvg on MNIST* (6,000 devices, one epoch of ten images in one batch),
with 10, 100 and 1,000 devices a round: a plain loop, torch.func, pfl and Flower
(`benchmarks/simulation_peers.py`), and our whole engine, sampling, bytes and accounts included.
Steps of the character model on Shakespeare: our trainer against a plain loop with `nn.LSTM`. And
the memory of a process that simulates rounds of 10,000 devices.

Ours and torch's take turns, each for some consecutive rounds; pfl and Flower drive themselves, so
they come after, in the same run. What counts are ratios.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import diffsketch
from benchmarks.report import print_table, readable
from benchmarks.simulation_peers import (
    LEARNING_RATE,
    flower_seconds,
    pfl_seconds,
    torch_loop,
    vmap_loop,
)
from benchmarks.timing import Job, environment, measure
from diffsketch.methods.base import build_method
from diffsketch.training.local import ClosedForm, Functional, trainer_for
from diffsketch.training.models import flatten
from diffsketch.training.rounds import FedAvg
from diffsketch.training.sampling import UniformSampler
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Batches, Task, load_task

COHORTS = (10, 100, 1000)
STEPS = (1, 10, 100)  # devices a round
MEMORY_COHORT = 10_000
MEMORY_GOAL = 4 << 30
METHODS: dict[str, dict[str, object]] = {
    "none": {},
    "diffsketch": {"rows": 7, "cols": 22, "per_round": 1.0},
}
TRAINERS: dict[str, Any] = {"closed": ClosedForm, "batched": Functional}
GOALS = {"closed": {"pfl": 15, "Flower": 300}, "batched": {"pfl": 5, "Flower": 300}}
_MANY_ROUNDS = 10**9
CONSECUTIVE_SECONDS = (
    0.2  # rounds follow each other, as they do in a run and in the other simulators
)


def simulation(task: Task, cohort: int, *, kind: str, method: str) -> Simulation:
    model = task.model(0)
    dim = len(flatten(model))
    return Simulation(
        task,
        method=build_method(method, dim=dim, cohort=cohort, settings=METHODS[method]),
        trainer=TRAINERS[kind](model),
        algorithm=FedAvg(LEARNING_RATE, 10, local_epochs=1),
        rounds=_MANY_ROUNDS,
        sampler=UniformSampler(len(task.devices), cohort, 0),
    )


def our_name(kind: str, method: str) -> str:
    return f"{kind}, {method}"


def round_jobs(task: Task, cohort: int) -> list[Job]:
    jobs = [
        Job("torch loop", "round", torch_loop(task, cohort)),
        Job("torch.func", "round", vmap_loop(task, cohort)),
    ]
    for kind in TRAINERS:
        for method in METHODS:
            run = simulation(task, cohort, kind=kind, method=method)
            jobs.append(Job(our_name(kind, method), "round", run.step, ours=True))
    return jobs


def run_rounds(task: Task, cohort: int, *, repeat: int, note: Callable[[str], None]) -> Any:
    """Seconds of a round, of ours and of the peers; the median of several."""
    timings = measure(
        round_jobs(task, cohort), device=torch.device("cpu"), repeat=repeat,
        sample_seconds=CONSECUTIVE_SECONDS,
    )  # fmt: skip
    seconds = {timing.job.name: timing.median for timing in timings}
    least = {timing.job.name: min(timing.samples) for timing in timings}
    rounds = max(3, repeat * 30 // cohort)
    for name, peer in (("pfl", pfl_seconds), ("Flower", flower_seconds)):
        samples = peer(task, cohort, rounds=rounds if name == "pfl" else 3, note=note)
        if samples:
            seconds[name], least[name] = statistics.median(samples), min(samples)
    lines = []
    for name, taken in sorted(seconds.items(), key=lambda item: -item[1]):
        ratios = [
            f"{seconds[peer] / taken:.1f}x" if peer in seconds else "-"
            for peer in ("torch loop", "torch.func", "pfl", "Flower")
        ]
        lines.append([name, readable(taken), readable(least[name]), f"{1 / taken:.1f}", *ratios])
    headers = ["", "median", "least", "rounds/s", "to torch loop", "to torch.func", "to pfl"]
    print_table(f"FedAvg on MNIST*, {cohort:,} devices a round", [*headers, "to Flower"], lines)
    return {
        "cohort": cohort,
        "median_s": seconds,
        "least_s": least,
        "rounds_per_s": {name: 1 / taken for name, taken in seconds.items()},
        "goals": goals(seconds, note=lambda text: note(f"{cohort:,} devices: {text}")),
    }


def goals(seconds: dict[str, float], *, note: Callable[[str], None]) -> list[dict[str, Any]]:
    """Each goal that can be checked: how many times a peer's speed, and how many are wanted.

    With compression half of what is wanted without.
    """
    found = []
    for kind, wanted in GOALS.items():
        for method in METHODS:
            for peer, times in wanted.items():
                name, least = our_name(kind, method), times if method == "none" else times / 2
                if peer in seconds:
                    ratio = seconds[peer] / seconds[name]
                    found.append({"ours": name, "peer": peer, "ratio": ratio, "goal": least})
                    if ratio < least:
                        note(f"goal MISSED: {name} is {ratio:.1f}x {peer}, {least:g}x wanted")
    return found


class PlainLSTM(nn.Module):
    """The character model as one would write it with `nn.LSTM`."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(80, 8)
        self.recurrent = nn.LSTM(8, 52, num_layers=2, batch_first=True)
        self.output = nn.Linear(52, 80)

    def forward(self, windows: Tensor) -> Tensor:
        """Scores of the next character."""
        hidden, _ = self.recurrent(self.embedding(windows))
        scores: Tensor = self.output(hidden[:, -1])
        return scores


def lstm_loop(batches: Batches) -> Callable[[], Tensor]:
    """Each device in turn: take the weights, one step of `torch.optim.SGD`."""
    model, examples = PlainLSTM(), batches.examples
    weights = flatten(model)

    def one_step() -> Tensor:
        rows = []
        for chosen in batches.indices[:, 0]:
            nn.utils.vector_to_parameters(weights.clone(), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.8)
            optimizer.zero_grad()
            loss = cross_entropy(model(examples.inputs[chosen]), examples.labels[chosen])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rows.append(flatten(model) - weights)
        return torch.stack(rows)

    return one_step


def run_steps(devices: int, *, repeat: int) -> dict[str, Any]:
    """Seconds of one step of the character model for each device."""
    task = load_task("shakespeare")
    generator = torch.Generator().manual_seed(0)
    examples = task.devices.examples
    batches = Batches(examples, torch.randint(len(examples), (devices, 1, 10), generator=generator))
    jobs = [Job("nn.LSTM loop", "step", lstm_loop(batches))]
    jobs.append(Job("ours, lstm", "step", _updates(task.model(0), batches), ours=True))
    timings = measure(jobs, device=torch.device("cpu"), repeat=repeat)
    seconds = {timing.job.name: timing.median for timing in timings}
    plain = seconds["nn.LSTM loop"]
    lines = [
        [t.job.name, readable(t.median), readable(t.median / devices), f"{plain / t.median:.2f}x"]
        for t in timings
    ]
    headers = ["", "median", "a device", "to nn.LSTM loop"]
    print_table(f"Shakespeare, one step of {devices} devices", headers, lines)
    least = {timing.job.name: min(timing.samples) for timing in timings}
    return {"devices": devices, "median_s": seconds, "least_s": least}


def _updates(model: nn.Module, batches: Batches) -> Callable[[], Tensor]:
    trainer, weights = trainer_for(model), flatten(model)
    return lambda: trainer.updates(weights, batches, learning_rate=0.8)


def run_memory(cohort: int) -> list[dict[str, Any]]:
    """The most memory that a process takes for rounds of so many devices."""
    found, lines = [], []
    for kind in TRAINERS:
        for method in METHODS:
            command = [sys.executable, "-m", "benchmarks.simulation", "--memory-of"]
            done = subprocess.run(  # noqa: S603 (our own code)
                [*command, str(cohort), kind, method],
                capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1],
            )  # fmt: skip
            taken = int(done.stdout)
            entry = {"trainer": kind, "method": method, "cohort": cohort, "peak_bytes": taken}
            found.append(entry | {"goal_bytes": MEMORY_GOAL, "met": taken < MEMORY_GOAL})
            met = "met" if taken < MEMORY_GOAL else "MISSED"
            lines.append([our_name(kind, method), f"{taken / 2**30:.2f} GiB", met])
    headers = ["", "peak of the process", f"goal of {MEMORY_GOAL / 2**30:g} GiB"]
    print_table(f"Memory, {cohort:,} devices a round", headers, lines)
    return found


def print_memory_of(cohort: int, kind: str, method: str) -> None:
    """In a process of its own: two rounds, then the most memory it had."""
    task = load_task("mnist-devices", workers=cohort, samples=60_000 // cohort)
    run = simulation(task, cohort, kind=kind, method=method)
    run.step()
    run.step()
    print(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(float(part)) for part in text.split(","))


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cohorts", type=_numbers, default=COHORTS, help="devices a round: 10,100")
    parser.add_argument("--steps", type=_numbers, default=STEPS, help="devices of Shakespeare")
    parser.add_argument("--memory", type=int, default=MEMORY_COHORT, help="devices; 0: leave out")
    parser.add_argument("--repeat", type=int, default=9, help="rounds of taking turns")
    parser.add_argument("--quick", action="store_true", help="small cohorts and three rounds")
    parser.add_argument("--json", type=Path, help="where to write all results")
    parser.add_argument("--memory-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.quick:
        options.cohorts = tuple(c for c in options.cohorts if c <= 100)
        options.steps = tuple(s for s in options.steps if s <= 10)
        options.memory, options.repeat = 0, min(options.repeat, 3)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    if options.memory_of:
        cohort, kind, method = options.memory_of
        print_memory_of(int(cohort), kind, method)
        return
    notes: list[str] = []

    def note(text: str) -> None:
        print(f"  note: {text}", flush=True)
        notes.append(text)

    result = environment(torch.device("cpu"))
    result["versions"]["diffsketch"] = diffsketch.__version__
    result["settings"] = {"repeat": options.repeat, "threads": torch.get_num_threads()}
    if (load := result["hardware"]["load_average"]) > 0.5:
        note(f"other work is running, load {load:.1f}: the times may be far too long")
    task = load_task("mnist-devices")
    rounds = [run_rounds(task, c, repeat=options.repeat, note=note) for c in options.cohorts]
    steps = [run_steps(devices, repeat=options.repeat) for devices in options.steps]
    memory = run_memory(options.memory) if options.memory else []
    result |= {"rounds": rounds, "steps": steps, "memory": memory, "notes": notes}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()

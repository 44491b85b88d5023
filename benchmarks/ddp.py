"""What does a step of DDP cost with the hook, in time and bytes, and how well does it learn?

    python -m benchmarks.ddp --json benchmark-ddp.json
    python -m benchmarks.ddp --quick

Steps of an MLP with 10 million parameters, with 2 and 4 processes on a loopback, and with 2 at the
ends of a cable of 100 Mbit/s (where the machine allows network namespaces): DDP without a hook,
its fp16 hook, PowerSGD, and a Count Sketch at 50x and 500x, with and without error feedback. Then
the loss after 500 steps on MNIST, for each hook at the same learning rates: what counts is each
hook's best, and how it compares at the same rate.

Bytes are those of the network's own counters, of all ranks together, headers included. Hooks take
turns, so that a disturbance of the machine hits all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.ddp_worker import HOOKS, Job, work
from benchmarks.links import Link, cable, loopback
from benchmarks.report import print_table, readable
from benchmarks.timing import environment

WIDTHS, QUICK_WIDTHS = (2816, 2768), (256, 256)
WORLDS = (2, 4)
BATCH = 32
RATES = (0.05, 0.1, 0.2, 0.5, 0.8)
MEGABITS = 100
STEP_GOAL, LINK_GOAL, LOSS_GOAL = 1.25, 5.0, 1.02
GOAL_LOSS_HOOK = "sketch 50x, feedback"
LONGEST = 1800.0  # seconds of one job
PLAIN = "no hook"


def run_job(job: Job, link: Link) -> dict[str, Any]:
    """Start the processes of a job on a link, and read what rank 0 found.

    Raises:
        RuntimeError: A process failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        text = replace(job, folder=folder).to_json()
        processes = []
        for rank in range(job.world):
            command = [
                *link.prefix(rank), sys.executable, "-m", "benchmarks.ddp",
                "--worker", str(rank), "--job", text,
            ]  # fmt: skip
            own = {**os.environ, "GLOO_SOCKET_IFNAME": link.interface(rank)}
            processes.append(
                subprocess.Popen(command, env=own, cwd=Path(__file__).parents[1])  # noqa: S603
            )
        try:
            codes = [process.wait(timeout=LONGEST) for process in processes]
        finally:
            for process in processes:
                process.kill()
        if any(codes):
            raise RuntimeError(f"{job.hook} with {job.world} processes failed: exit codes {codes}")
        found: dict[str, Any] = json.loads((Path(folder) / "result.json").read_text())
        return found


def time_steps(
    link: Link, world: int, *, widths: tuple[int, int], steps: int, repeat: int
) -> list[dict[str, Any]]:
    """Every hook, in turns: the median of the turns' medians."""
    turns: dict[str, list[dict[str, Any]]] = {hook: [] for hook in HOOKS}
    for _ in range(repeat):
        for hook, found in turns.items():
            found.append(run_job(Job(hook, world, widths, BATCH, steps, ""), link))
    cases = [
        {
            "link": link.name, "world": world, "hook": hook,
            "median_s": statistics.median(one["median_s"] for one in found),
            "bytes_per_step": statistics.median(one["bytes_per_step"] for one in found),
            "turns": found,
        }
        for hook, found in turns.items()
    ]  # fmt: skip
    plain = next(case for case in cases if case["hook"] == PLAIN)
    for case in cases:
        case["times_no_hook"] = case["median_s"] / plain["median_s"]
        case["times_fewer_bytes"] = plain["bytes_per_step"] / max(case["bytes_per_step"], 1.0)
    _print_steps(link, world, cases)
    return cases


def learn(
    link: Link, hooks: Sequence[str], *, widths: tuple[int, int], steps: int,
    rates: Sequence[float], seeds: int,
) -> list[dict[str, Any]]:  # fmt: skip
    """The loss of hooks at every rate, averaged over the seeds."""
    cases = []
    for hook in hooks:
        for rate in rates:
            found = [
                run_job(Job(hook, 2, widths, BATCH, steps, "", learning_rate=rate, seed=seed), link)
                for seed in range(seeds)
            ]
            losses = [one["train_loss"] for one in found]
            case = {
                "hook": hook, "learning_rate": rate, "steps": steps, "seeds": found,
                "train_loss": statistics.mean(losses),
                "test_loss": statistics.mean(one["test_loss"] for one in found),
            }  # fmt: skip
            print(f"  {hook}, rate {rate:g}: loss {case['train_loss']:.4f}", flush=True)
            cases.append(case)
    _print_losses(cases, rates)
    return cases


def goals_of(steps: Sequence[dict[str, Any]], losses: Sequence[dict[str, Any]]) -> list[str]:
    """Each goal, what was measured, and whether it is met."""
    found = []
    for case in steps:
        if not case["hook"].startswith("sketch"):
            continue
        where = f"{case['hook']}, {case['world']} processes, {case['link']}"
        ratio = case["times_no_hook"]
        if "Mbit/s" in case["link"]:
            faster = 1 / ratio
            found.append(f"{_met(faster >= LINK_GOAL)}: {where}: {faster:.1f}x faster, goal 5x")
        else:
            found.append(f"{_met(ratio <= STEP_GOAL)}: {where}: {ratio:.2f}x no hook, goal 1.25x")
    best = {
        hook: min((one["train_loss"] for one in losses if one["hook"] == hook), default=None)
        for hook in (PLAIN, GOAL_LOSS_HOOK)
    }
    plain, ours = best[PLAIN], best[GOAL_LOSS_HOOK]
    if plain is not None and ours is not None:
        ratio = ours / plain
        found.append(
            f"{_met(ratio <= LOSS_GOAL)}: {GOAL_LOSS_HOOK}: loss {ratio:.3f}x no hook, each at its "
            "best learning rate, goal 1.02x"
        )
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    if options.worker is not None:
        work(options.worker, options.job)
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # or network namespaces would stay
    widths = QUICK_WIDTHS if options.quick else WIDTHS
    worlds = (2,) if options.quick else WORLDS
    sizes: dict[str, Any] = {"widths": widths, "steps": 5 if options.quick else 20}
    repeat = 1 if options.quick else options.repeat
    result = environment(torch.device("cpu")) | {"widths": widths, "batch": BATCH}
    steps: list[dict[str, Any]] = []
    losses: list[dict[str, Any]] = []
    with loopback() as link:
        for world in worlds:
            steps += time_steps(link, world, **sizes, repeat=repeat)
        with cable(MEGABITS) as slow:
            if slow is None:
                print(f"No link of {MEGABITS} Mbit/s: network namespaces need root, ip and tc.")
            else:
                steps += time_steps(slow, 2, **{**sizes, "steps": 3}, repeat=1)
        if not options.no_loss:
            rates = RATES[1:2] if options.quick else options.rates
            train = 20 if options.quick else options.loss_steps
            losses = learn(
                link, options.loss_hooks, widths=widths, steps=train, rates=rates,
                seeds=options.seeds,
            )  # fmt: skip
    goals = goals_of(steps, losses)
    print("\n".join(goals))
    result |= {"steps": steps, "losses": losses, "goals": goals}
    if options.json is not None:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--quick", action="store_true", help="a small model and few steps")
    parser.add_argument("--repeat", type=int, default=3, help="turns of every hook")
    parser.add_argument("--no-loss", action="store_true", help="time only")
    parser.add_argument("--loss-steps", type=int, default=500, help="steps to train")
    parser.add_argument("--seeds", type=int, default=1, help="trainings to average")
    parser.add_argument(
        "--rates", type=lambda text: [float(one) for one in text.split(",")], default=RATES,
        help="learning rates, with commas",
    )  # fmt: skip
    parser.add_argument(
        "--loss-hooks",
        type=lambda text: [PLAIN, *text.split(";")],
        default=list(HOOKS),
        help="hooks to train with besides none, with semicolons",
    )
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def _print_steps(link: Link, world: int, cases: Sequence[dict[str, Any]]) -> None:
    lines = [
        [
            case["hook"], readable(case["median_s"]), f"{case['times_no_hook']:.2f}",
            f"{case['bytes_per_step'] / 1e6:.3f} MB", f"{case['times_fewer_bytes']:.1f}x",
        ]
        for case in cases
    ]  # fmt: skip
    headers = ["", "step", "times no hook", "bytes a step", "fewer"]
    print_table(f"{world} processes, {link.name}", headers, lines)


def _print_losses(cases: Sequence[dict[str, Any]], rates: Sequence[float]) -> None:
    at = {(case["hook"], case["learning_rate"]): case["train_loss"] for case in cases}
    lines = []
    for hook in dict.fromkeys(case["hook"] for case in cases):
        own = [at[hook, rate] for rate in rates]
        best = min(at[PLAIN, rate] for rate in rates)
        lines.append([hook, *(f"{loss:.4f}" for loss in own), f"{min(own) / best:.3f}"])
    headers = ["loss at the rate", *(f"{rate:g}" for rate in rates), "best / best"]
    print_table("MNIST, 2 processes", headers, lines)


def _met(good: bool) -> str:
    return "met" if good else "NOT MET"


if __name__ == "__main__":
    main()

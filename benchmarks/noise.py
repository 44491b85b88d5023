"""How long does noise for a table take, fast and secure?

    python -m benchmarks.noise --json benchmark-noise.json
    python -m benchmarks.noise --cells 1e5 --quick

Each sampler draws noise for one table, at several scales. Fast noise (one thread) should take less
than 50 ms for 10^6 cells; secure noise takes what exact sampling takes, and uses all cores where
OpenDP does the work. Fast times are medians over rounds in which all samplers take turns, secure
ones of fewer rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import print_table, readable
from benchmarks.timing import environment
from diffsketch.privacy.noise import FastNoise, Noise
from diffsketch.privacy.noise.secure import SecureNoise

GOAL_SECONDS = 0.05
GOAL_CELLS = 10**6
STDS = (1.0, 30.0, 700.0, 1e6)


@dataclass(frozen=True)
class Case:
    """A sampler at one scale."""

    sampler: str
    parameters: str
    draw: Callable[[Noise, int], torch.Tensor]
    secure: bool = True


def cases(cells: int) -> list[Case]:
    chances = torch.rand(cells, generator=torch.Generator().manual_seed(0))
    found = [
        Case("normal", "float32", lambda n, c: n.normal((c,), 1.0, dtype=torch.float32), False),
        Case("normal", "float64", lambda n, c: n.normal((c,), 1.0, dtype=torch.float64), False),
        Case("laplace", "float32", lambda n, c: n.laplace((c,), 1.0, dtype=torch.float32), False),
        Case("laplace", "float64", lambda n, c: n.laplace((c,), 1.0, dtype=torch.float64), False),
        Case("bernoulli", "float32", lambda n, c: n.bernoulli(chances[:c])),
    ]
    for std in STDS:
        found += [
            Case("discrete_gaussian", f"std {std:g}", _with(Noise.discrete_gaussian, std)),
            Case("discrete_laplace", f"scale {std:g}", _with(Noise.discrete_laplace, std)),
            Case("skellam", f"std {std:g}", _with(Noise.skellam, std**2), secure=std < 2**15),
        ]
    for trials, chance in ((16, 0.5), (100, 0.3), (1000, 0.5), (10**8, 0.5)):
        name = f"{trials:,} trials of {chance}"
        found.append(Case("binomial", name, _binomial(trials, chance), secure=trials <= 1000))
    return found


def _with(
    method: Callable[[Noise, tuple[int, ...], float], torch.Tensor], parameter: float
) -> Callable[[Noise, int], torch.Tensor]:
    # By name, since an abstract method would not reach the one that is timed.
    return lambda noise, cells: getattr(noise, method.__name__)((cells,), parameter)


def _binomial(trials: int, chance: float) -> Callable[[Noise, int], torch.Tensor]:
    return lambda noise, cells: noise.binomial((cells,), trials, chance)


def seconds(draw: Callable[[], Any]) -> float:
    start = time.perf_counter()
    draw()
    return time.perf_counter() - start


def run(cells: int, *, repeat: int, secure_repeat: int) -> list[dict[str, Any]]:
    """Time all cases; samplers take turns, so that a disturbance hits all of them alike."""
    todo: list[tuple[Case, Noise, list[float]]] = []
    for case in cases(cells):
        todo.append((case, FastNoise(0), []))
        if case.secure:
            todo.append((case, SecureNoise(), []))
    for case, noise, _ in todo:
        case.draw(noise, 1000)  # warms up; makes the Skellam table
    for index in range(max(repeat, secure_repeat)):
        for case, noise, samples in todo:
            if index < (secure_repeat if noise.secure else repeat):
                samples.append(seconds(partial(case.draw, noise, cells)))
    return [
        {
            "sampler": case.sampler,
            "parameters": case.parameters,
            "secure": noise.secure,
            "median_s": statistics.median(samples),
            "min_s": min(samples),
            "samples": len(samples),
        }
        for case, noise, samples in todo
    ]


def show(results: Sequence[dict[str, Any]], cells: int) -> None:
    lines = []
    secure = {(r["sampler"], r["parameters"]): r for r in results if r["secure"]}
    for fast in (r for r in results if not r["secure"]):
        exact = secure.get((fast["sampler"], fast["parameters"]))
        lines.append(
            [fast["sampler"], fast["parameters"]]
            + [readable(fast["median_s"]), readable(fast["min_s"])]
            + ([readable(exact["median_s"])] if exact else ["-"])
        )
    headers = ["sampler", "", "fast, median", "fast, least", "secure, median"]
    print_table(f"Noise for {cells:,} cells", headers, lines)
    slowest = max((r for r in results if not r["secure"]), key=lambda r: float(r["median_s"]))
    name = f"{slowest['sampler']} ({slowest['parameters']})"
    print(f"slowest fast sampler: {name}, {readable(slowest['median_s'])}")
    if cells == GOAL_CELLS:
        met = "met" if slowest["median_s"] < GOAL_SECONDS else "MISSED"
        print(f"goal of {readable(GOAL_SECONDS)}: {met}")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=lambda text: int(float(text)), default=GOAL_CELLS)
    parser.add_argument("--repeat", type=int, default=9, help="rounds of the fast samplers")
    parser.add_argument("--secure-repeat", type=int, default=1, help="rounds of the secure ones")
    parser.add_argument("--quick", action="store_true", help="10^5 cells and three rounds")
    parser.add_argument("--json", type=Path, help="where to write all results")
    options = parser.parse_args(argv)
    if options.quick:
        options.cells, options.repeat = min(options.cells, 10**5), min(options.repeat, 3)
    return options


def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    facts = environment(torch.device("cpu"))
    facts["versions"]["opendp"] = metadata.version("opendp")
    if (load := facts["hardware"]["load_average"]) > 0.5:
        print(f"  note: other work is running, load {load:.1f}: the times may be far too long")
    results = run(options.cells, repeat=options.repeat, secure_repeat=options.secure_repeat)
    show(results, options.cells)
    if options.json:
        text = json.dumps(facts | {"cells": options.cells, "results": results}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

"""How long does noise for a table take: fast, secure, and from OpenDP?

    python -m benchmarks.noise --json benchmark-noise.json
    python -m benchmarks.noise --cells 1e5 --quick

Each sampler draws noise for one table, at several scales: a large table, and one of 154 cells.
For a million cells, fast noise (one thread) should take less than 50 ms, and exact noise (all
cores) at most 150 ms. OpenDP's samplers, exact as well, draw fewer numbers, on one thread, and
their time is multiplied. Times are medians over rounds in which all samplers take turns; tables of
probabilities are made before.
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
from opendp import domains, measurements, metrics
from opendp.mod import enable_features

from benchmarks.report import print_table, readable
from benchmarks.timing import environment
from diffsketch.privacy.noise import FastNoise, Noise, SecureNoise

GOAL_SECONDS = {False: 0.05, True: 0.15}  # by whether noise is secure
GOAL_CELLS = 10**6
FEW_CELLS = 154
PEER_CELLS = 20_000  # at most, of OpenDP
STDS = (1.0, 1e2, 1e4, 1e6)


@dataclass(frozen=True)
class Case:
    """A sampler at one scale."""

    sampler: str
    parameters: str
    draw: Callable[[Noise, int], torch.Tensor]
    secure: bool = True
    peer: Callable[[int], Any] | None = None


def cases(cells: int) -> list[Case]:
    chances = torch.rand(cells, generator=torch.Generator().manual_seed(0))
    found = [
        Case("normal", "float32", lambda n, c: n.normal((c,), 1.0, dtype=torch.float32), False),
        Case("normal", "float64", lambda n, c: n.normal((c,), 1.0, dtype=torch.float64), False),
        Case("laplace", "float32", lambda n, c: n.laplace((c,), 1.0, dtype=torch.float32), False),
        Case("laplace", "float64", lambda n, c: n.laplace((c,), 1.0, dtype=torch.float64), False),
        Case("bernoulli", "float32", lambda n, c: n.bernoulli(chances[:c])),
        Case("words", "64 bits", lambda n, c: n.words((c,))),
    ]
    for std in STDS:
        found += [
            Case(
                "discrete_gaussian",
                f"std {std:g}",
                _with(Noise.discrete_gaussian, std),
                peer=_opendp("gaussian", std),
            ),
            Case(
                "discrete_laplace",
                f"scale {std:g}",
                _with(Noise.discrete_laplace, std),
                peer=_opendp("laplace", std),
            ),
            Case("skellam", f"std {std:g}", _with(Noise.skellam, std**2)),
        ]
    for trials in (16, 1000, 10**8):
        found.append(Case("binomial", f"{trials:,} coins", _binomial(trials)))
    return found


def _with(
    method: Callable[[Noise, tuple[int, ...], float], torch.Tensor], parameter: float
) -> Callable[[Noise, int], torch.Tensor]:
    # By name, since an abstract method would not reach the one that is timed.
    return lambda noise, cells: getattr(noise, method.__name__)((cells,), parameter)


def _binomial(trials: int) -> Callable[[Noise, int], torch.Tensor]:
    return lambda noise, cells: noise.binomial((cells,), trials)


def _opendp(kind: str, scale: float) -> Callable[[int], Any]:
    enable_features("contrib")  # consent to what has not been through all of OpenDP's vetting
    make = getattr(measurements, f"make_{kind}")
    metric = metrics.l1_distance if kind == "laplace" else metrics.l2_distance
    domain = domains.vector_domain(domains.atom_domain(T="i64"))
    add_noise = make(domain, metric(T="i64"), scale=scale)
    return lambda cells: add_noise([0] * cells)


def seconds(draw: Callable[[], Any]) -> float:
    start = time.perf_counter()
    draw()
    return time.perf_counter() - start


def run(cells: int, *, repeat: int, secure_repeat: int) -> list[dict[str, Any]]:
    """Time all cases; samplers take turns, so that a disturbance hits all of them alike."""
    todo: list[tuple[Case, str, int, Callable[[int], Any], list[float]]] = []
    for case in cases(cells):
        todo.append((case, "fast", cells, partial(case.draw, FastNoise(0)), []))
        if case.secure:
            todo.append((case, "secure", cells, partial(case.draw, SecureNoise()), []))
        if case.peer:
            todo.append((case, "opendp", min(cells, PEER_CELLS), case.peer, []))
    for _, _, count, draw, _ in todo:
        draw(count)  # warms up; makes the tables
    for index in range(max(repeat, secure_repeat)):
        for _, source, count, draw, samples in todo:
            if index < (repeat if source == "fast" else secure_repeat):
                samples.append(seconds(partial(draw, count)))
    return [
        {
            "sampler": case.sampler,
            "parameters": case.parameters,
            "source": source,
            "cells": cells,
            "drawn": count,
            "median_s": statistics.median(samples) * cells / count,
            "min_s": min(samples) * cells / count,
            "samples": len(samples),
        }
        for case, source, count, _, samples in todo
    ]


def show(results: Sequence[dict[str, Any]], cells: int) -> None:
    found = {(r["source"], r["sampler"], r["parameters"]): float(r["median_s"]) for r in results}
    lines = []
    for source, *case in found:
        if source == "fast":
            times = [found.get((name, *case)) for name in ("fast", "secure", "opendp")]
            _, ours, peer = times
            ratio = f"{peer / ours:.0f}" if ours and peer else "-"
            lines.append([*case, *(readable(time) if time else "-" for time in times), ratio])
    headers = ["sampler", "", "fast", "secure", "OpenDP", "OpenDP / secure"]
    print_table(f"Noise for {cells:,} cells, medians", headers, lines)
    for secure, goal in GOAL_SECONDS.items():
        name = "secure" if secure else "fast"
        each = {k: s for k, s in found.items() if k[0] == name}
        slowest = max(each, key=lambda key: each[key])
        text = f"slowest {name} sampler: {slowest[1]} ({slowest[2]}), {readable(each[slowest])}"
        if cells == GOAL_CELLS:
            text += f"; goal of {readable(goal)}: {'met' if each[slowest] <= goal else 'MISSED'}"
        print(text)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--cells", type=lambda text: int(float(text)), default=GOAL_CELLS)
    parser.add_argument("--repeat", type=int, default=9, help="rounds of the fast samplers")
    parser.add_argument("--secure-repeat", type=int, default=5, help="rounds of the exact ones")
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
    results = []
    for cells in (options.cells, min(options.cells, FEW_CELLS)):
        part = run(cells, repeat=options.repeat, secure_repeat=options.secure_repeat)
        show(part, cells)
        results += part
    if options.json:
        text = json.dumps(facts | {"cells": options.cells, "results": results}, indent=1)
        options.json.write_text(text + "\n")


if __name__ == "__main__":
    main()

"""How long do other calls take, against an encode or a query of float32?

    python -m benchmarks.calls --threads 1 2

For one vector on the CPU: the largest estimates (`top_k` of 1,000), what estimates miss of a vector
(`add_residual`), and messages with cells of 4 bits instead of 32, made and decoded. Calls take
turns, and a time is the least of all rounds: neighbours on the machine only add to it.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.one_thread import save
from benchmarks.report import print_table
from benchmarks.timing import environment
from diffsketch.methods.plain import PlainSketch
from diffsketch.privacy.noise import FastNoise
from diffsketch.sketch.hashing import Family, SketchKey

SHAPES = ((10**6, 5, 4_000), (10**7, 5, 40_000), (10**7, 1, 200_000), (10**7, 1, 2_500_000))
FAMILIES: tuple[Family, ...] = ("blocked", "pairwise")


def calls(dim: int, rows: int, cols: int, family: Family) -> dict[str, Callable[[], object]]:
    """Calls of one sketch, by name."""
    vector, seed = torch.randn(dim, generator=torch.Generator().manual_seed(1)), _SEED
    out, memory, noise = torch.empty(dim), torch.zeros(dim), FastNoise(1)
    plain, few = (PlainSketch(dim, rows, cols, family=family, bits=bits) for bits in (32, 4))
    few = few.at_clip(few.limit_for(vector) or 1.0)
    sketch, table = plain.sketch, plain.sketch.encode(vector, seed)
    message = few.encode(vector, seed, noise).messages.long()
    scratch = torch.empty(dim)
    return {
        "encode": lambda: sketch.encode(vector, seed),
        "query": lambda: sketch.query(table, seed, combine="mean", out=out),
        "top_k": lambda: sketch.top_k(table, seed, min(1000, dim), combine="mean"),
        "residual": lambda: sketch.add_residual(
            memory, vector, table, seed, scale=0.1, combine="mean", scratch=scratch
        ),
        "message": lambda: plain.encode(vector, seed, noise),
        "message of 4 bits": lambda: few.encode(vector, seed, noise),
        "decode": lambda: plain.decode(table, seed, count=1, out=out),
        "decode of 4 bits": lambda: few.decode(message, seed, count=1, out=out),
    }


_SEED = SketchKey.from_integer(1).seed(0)
RATIOS = (
    ("top_k", "query"),
    ("residual", "query"),
    ("message of 4 bits", "message"),
    ("decode of 4 bits", "decode"),
)


def least(functions: dict[str, Callable[[], object]], repeat: int) -> dict[str, float]:
    """The least time of each, in seconds, in turns."""
    found = dict.fromkeys(functions, math.inf)
    for _ in range(repeat + 1):  # the first compiles, and is never the least
        for name, function in functions.items():
            start = time.perf_counter()
            function()
            found[name] = min(found[name], time.perf_counter() - start)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, torch.get_num_threads()])
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one small vector, two rounds")
    parser.add_argument("--json", type=Path, help="where to write the results")
    options = parser.parse_args(arguments)
    shapes = ((10**5, 1, 1_000),) if options.quick else SHAPES
    repeat = 2 if options.quick else options.repeat
    cases: list[dict[str, Any]] = []
    for threads, family, shape in product(sorted(set(options.threads)), FAMILIES, shapes):
        torch.set_num_threads(threads)
        times = least(calls(*shape, family), repeat)
        cases.append({"threads": threads, "family": family, "shape": shape, "seconds": times})
    lines = [
        [f"{one['shape'][0]:,} to {one['shape'][1]}x{one['shape'][2]:,}", one["family"],
         str(one["threads"]), *(f"{one['seconds'][name] * 1e3:.2f} ms" for name, _ in RATIOS),
         *(f"{one['seconds'][name] / one['seconds'][base]:.1f}" for name, base in RATIOS)]
        for one in cases
    ]  # fmt: skip
    headers = ["case", "family", "threads", *(name for name, _ in RATIOS)]
    headers += [f"over {base}" for _, base in RATIOS]
    print_table("Calls, and their time over that of an encode or query", headers, lines)
    save(environment(torch.device("cpu")) | {"cases": cases}, options.json)


if __name__ == "__main__":
    main()

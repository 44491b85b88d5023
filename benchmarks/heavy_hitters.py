"""How many of the most frequent keys does `private_top_k` find, and how many are false?

    python -m benchmarks.heavy_hitters                       # the goal: five seeds
    python -m benchmarks.heavy_hitters --curve --seeds 1     # people, bytes, epsilon, exponent
    python -m benchmarks.heavy_hitters --people 50000 --bytes 1000 --seeds 1

Keys are random 64-bit numbers, with frequencies by Zipf's law over a vocabulary of 10^6. Recall is
the share of the true top 50 that is named, precision the share of the names that is in it. Noise is
exact and the operating system's: that of a group's sum is drawn once, from the law that the sum of
its members' shares has. Beside it: the same with an epsilon so large that noise vanishes, central
trust without a sketch, local trust, and Apple's Count Mean Sketch (local trust too; Differential
Privacy Team, 2017), which is told the whole vocabulary.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from diffsketch import private_top_k
from diffsketch.sketch.hashing import mix64

VOCABULARY, TOP, DELTA = 10**6, 50, 1e-9
FUNCTIONS, CELLS = 256, 1024  # of Apple's sketch
GOAL: dict[str, Any] = {
    "people": 10**6, "bytes": 4000, "epsilon": 1.0, "exponent": 1.0, "trust": "distributed",
    "relation": "replace",
}  # fmt: skip
BESIDE: dict[str, dict[str, Any]] = {
    "goal": {}, "add-or-remove": {"relation": "add-or-remove"}, "no noise": {"epsilon": 1000.0},
    "central": {"trust": "central"}, "local": {"trust": "local"},
    "local, epsilon 8": {"trust": "local", "epsilon": 8.0},
    "CMS, epsilon 4": {"trust": "CMS", "epsilon": 4.0},
    "CMS, epsilon 8": {"trust": "CMS", "epsilon": 8.0},
}  # fmt: skip
CURVE: dict[str, tuple[Any, ...]] = {
    "people": (10**5, 3 * 10**5), "bytes": (1000, 2000, 8000), "epsilon": (0.5, 2.0, 4.0),
    "exponent": (0.8, 1.2),
}  # fmt: skip


def count_mean_sketch(
    held: npt.NDArray[np.int64], epsilon: float, rng: np.random.Generator
) -> npt.NDArray[np.float64]:
    """Estimate the count of each key of the vocabulary by Apple's CMS with noise in each bit.

    Each person picks a hash function, sets the cell of its key among `CELLS`, and turns each cell
    over with probability `1 / (1 + exp(epsilon / 2))`. Cells of a sum are drawn at once. Apple has
    2**16 functions; fewer make the estimates of all keys affordable.
    """
    turned = 1 / (1 + np.exp(epsilon / 2))
    picked = rng.integers(FUNCTIONS, size=len(held))
    order = np.argsort(picked, kind="stable")
    estimates, words = np.zeros(VOCABULARY), np.arange(VOCABULARY, dtype=np.uint64)
    for group in np.split(held[order], np.cumsum(np.bincount(picked))[:-1]):
        cells = (mix64(words, *rng.integers(2**63, size=2, dtype=np.uint64)) % CELLS).astype(int)
        ones = np.bincount(cells[group], minlength=CELLS)
        ones = rng.binomial(ones, 1 - turned) + rng.binomial(len(group) - ones, turned)
        estimates += ((ones - turned * len(group)) / (1 - 2 * turned))[cells]
    return (estimates - len(held) / CELLS) * CELLS / (CELLS - 1)


def measure(seed: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One search: recall, precision, share of intervals with the truth, seconds."""
    rng = np.random.default_rng(seed)
    shares = 1 / np.arange(1, VOCABULARY + 1) ** settings["exponent"]
    keys = rng.integers(-(2**63), 2**63 - 1, VOCABULARY)
    held = rng.choice(VOCABULARY, settings["people"], p=shares / shares.sum())
    counts = np.bincount(held, minlength=VOCABULARY)
    truth = dict(zip(keys.tolist(), counts.tolist(), strict=True))
    top = set(keys[np.argsort(-counts, kind="stable")[:TOP]].tolist())
    start = time.perf_counter()
    if settings["trust"] == "CMS":
        estimates = count_mean_sketch(held, settings["epsilon"], rng)
        hits = len(top & set(keys[np.argsort(-estimates)[:TOP]].tolist()))
        epsilon = settings["epsilon"]
        return {
            **settings, "seed": seed, "named": TOP, "recall": hits / TOP, "precision": hits / TOP,
            "absent": 0, "seconds": round(time.perf_counter() - start, 1),
            "message_bytes": CELLS // 8,
            "claim": f"epsilon = {epsilon:g} (claimed by its paper; client unit, replace, local)",
        }  # fmt: skip
    answer = private_top_k(
        None, keys[held], TOP, epsilon=settings["epsilon"], delta=DELTA, trust=settings["trust"],
        relation=settings["relation"], message_bytes=settings["bytes"],
    )  # fmt: skip
    seconds = time.perf_counter() - start
    hits, real = len(top & set(answer.names)), [truth.get(name, 0) for name in answer.names]
    inside = [a <= t <= b for a, t, b in zip(answer.low, real, answer.high, strict=True)]
    return {
        **settings, "seed": seed, "named": len(answer), "recall": hits / TOP,
        "precision": hits / max(1, len(answer)), "absent": sum(count == 0 for count in real),
        "inside": float(np.mean(inside)) if inside else None, "seconds": round(seconds, 1),
        "message_bytes": answer.message_bytes, "claim": str(answer.epsilon),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--people", type=int, default=GOAL["people"])
    parser.add_argument("--bytes", type=int, default=GOAL["bytes"])
    parser.add_argument("--only", choices=list(BESIDE), help="one of the settings only")
    parser.add_argument("--curve", action="store_true", help="one setting changed at a time")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    base = GOAL | {"people": options.people, "bytes": options.bytes}
    cases = {name: base | more for name, more in BESIDE.items() if options.only in (None, name)}
    if options.curve:
        cases = {
            f"{name}={value:g}": base | {name: value}
            for name, values in CURVE.items()
            for value in values
        }
    results = []
    for name, settings in cases.items():
        runs = [measure(seed, settings) for seed in range(options.seeds)]
        results += [{"case": name, **run} for run in runs]
        means = {part: np.mean([run[part] for run in runs]) for part in ("recall", "precision")}
        worst = {part: min(run[part] for run in runs) for part in ("recall", "precision")}
        print(
            f"{name:<18} recall {means['recall']:.3f} (least {worst['recall']:.2f}), precision "
            f"{means['precision']:.3f} (least {worst['precision']:.2f}), named "
            f"{np.mean([run['named'] for run in runs]):.0f}, of nobody "
            f"{sum(run['absent'] for run in runs)}, {np.mean([run['seconds'] for run in runs]):.0f}"
            f" s, {runs[0]['message_bytes']:,} bytes; {runs[0]['claim']}",
            flush=True,
        )
        if options.json:
            options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""What Theorem 1 claims for every message of a training, and what appended noise really gives."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diffsketch.errors import check
from diffsketch.privacy.mechanisms import CoordinateBound, PaddedGaussian
from diffsketch.privacy.theorems import claimed_per_round, estimates, padding_for
from diffsketch.reproduction.measurements.options import (
    finite,
    number,
    numbers,
    run_settings,
    whole,
    wholes,
)
from diffsketch.reproduction.measurements.training import simulation_of, watched
from diffsketch.sketch import CountSketch, SketchKey

__all__ = ["EDGES", "claims_of", "measure", "proven_of"]

Numbers = npt.NDArray[np.float64]

EDGES = np.geomspace(1e-3, 1e2, 101)
"""Of the histogram's bins."""
_OWN = (
    "table_rows", "widths", "paddings", "requirements", "ratio", "delta", "proven_hashes",
    "fedavg_rounds",
)  # fmt: skip
_POINTS = 60  # of the curve over rounds


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """Theorem 1's epsilon of every device in every round, for several tables and paddings.

    It depends on a message only through alpha / sigma of the vector, so that one training gives
    those of all tables and paddings. (The training is that of the settings: with its own table and
    noise.) Beside it, for the same tables and paddings, what is proven of the repaired padding,
    whose clip and standard deviation have the fixed `ratio`.

    Args:
        settings: Those of `diffsketch run`; and `table_rows`; `widths` and `paddings`, lists of
            columns and of appended numbers in lengths of the vector; `requirements`, epsilons that
            a message may have without noise; `ratio` and `delta` of what is proven, with
            `proven_hashes`, for the hashes of how many rounds it is computed (0 for none);
            `fedavg_rounds`, which stands for `rounds` in FedAvg.
        seed: Of the run.
        on_progress: Told the share that is done.
    """
    given = run_settings(settings, _OWN)
    if "fedavg_rounds" in settings:
        given["rounds"] = whole(settings, "fedavg_rounds")
    simulation = simulation_of(given, seed=seed)
    rounds = range(simulation.rounds)
    ratios, noised = [], []
    for seen in watched(simulation, rounds, on_progress=lambda share: on_progress(0.9 * share)):
        alpha, sigma = estimates(seen.vectors)
        ratios.append((alpha / sigma).numpy())
        if seen.result.summed is not None and seen.result.summed.noised is not None:
            noised.append(seen.result.summed.noised.numpy())
    every = np.concatenate(ratios)
    dim, table_rows = simulation.method.dim, whole(settings, "table_rows")
    wanted = numbers(settings, "requirements", default="0.1, 1")
    tables = []
    paddings = wholes(settings, "paddings")
    for cols in wholes(settings, "widths"):
        sketch = CountSketch(dim, table_rows, cols)
        for padding in paddings:
            claims = claims_of(every, sketch, padding=padding * dim, requirements=wanted)
            proven = proven_of(sketch, settings, padding=padding * dim, seed=seed)
            tables.append({"cols": cols, "padding": padding, **claims, "proven": proven})
    on_progress(1.0)
    return {
        "dim": dim,
        "table_rows": table_rows,
        "rounds": len(ratios),
        "messages": len(every),
        "noised": float(np.concatenate(noised).mean()) if noised else None,
        "ratio": {
            "mean": float(every.mean()),
            "quantiles": np.quantile(every, (0.05, 0.25, 0.5, 0.75, 0.95)).tolist(),
            **_over_rounds(ratios),
        },
        "edges": EDGES.tolist(),
        "tables": tables,
    }


def claims_of(
    ratios: Numbers, sketch: CountSketch, *, padding: int, requirements: Sequence[float]
) -> dict[str, Any]:
    """What Theorem 1 claims for messages whose vectors have these alpha / sigma.

    Args:
        ratios: One for each message.
        sketch: Of the vectors without appended noise.
        padding: How many numbers are appended.
        requirements: Epsilons; for each, the share of messages that exceed it, or that nothing is
            claimed for, and so need noise.

    Returns:
        `median` (None where it is infinite), `quartiles`, `mean` and `finite_mean` (over all
        messages, and over those with a claim), `without` (the share that has none), `needs_noise`,
        `counts` of the histogram, and `needed`: what to append for half of the messages to stay
        within each requirement, in lengths of the vector.
    """
    bound, spread = torch.from_numpy(ratios), torch.ones(len(ratios), dtype=torch.float64)
    length = sketch.dim + padding
    claimed = claimed_per_round(length, sketch.rows, sketch.cols, alpha=bound, sigma=spread).numpy()
    some = claimed[np.isfinite(claimed)]
    counts, _ = np.histogram(some, bins=EDGES)
    return {
        "compression": sketch.compression,
        "median": finite(_quantile(claimed, 0.5)),
        "quartiles": [finite(_quantile(claimed, share)) for share in (0.25, 0.75)],
        "mean": finite(float(claimed.mean())),
        "finite_mean": float(some.mean()) if len(some) else None,
        "without": 1 - len(some) / len(claimed),
        "needs_noise": {f"{each:g}": float((claimed > each).mean()) for each in requirements},
        "counts": counts.tolist(),
        "needed": {f"{each:g}": _needed(sketch, ratios, each) for each in requirements},
    }


def proven_of(
    sketch: CountSketch, settings: Mapping[str, Any], *, padding: int, seed: int
) -> dict[str, Any] | None:
    """What is proven of the repaired padding: the least and the most over the hashes tried.

    Coordinates are clipped to `ratio` times the standard deviation of the appended numbers, both
    fixed beforehand. None where nothing is proven, or was asked for.
    """
    count = whole(settings, "proven_hashes", default=3)
    if count == 0 or padding == 0:
        return None
    delta, ratio = number(settings, "delta", default=1e-5), number(settings, "ratio", default=1.645)
    check(ratio > 0, "ratio", "be > 0", ratio)
    key, found = SketchKey.from_integer(seed), []
    for round_index in range(count):
        bound = CoordinateBound(ratio)
        mechanism = PaddedGaussian(sketch, key.seed(round_index), bound, padding=padding, std=1.0)
        found.append(float(mechanism.claim.epsilon(delta=delta, rounds=1)))
    if not all(map(math.isfinite, found)):
        return None
    return {"least": min(found), "most": max(found), "delta": delta, "ratio": ratio}


def _quantile(values: Numbers, share: float) -> float:
    """Without interpolation, which infinite values do not stand."""
    return float(np.quantile(values, share, method="higher"))


def _needed(sketch: CountSketch, ratios: Numbers, target: float) -> float | None:
    middle = float(np.median(ratios))
    length = padding_for(target, sketch.dim, sketch.rows, sketch.cols, alpha=middle, sigma=1.0)
    return length / sketch.dim if isinstance(length, int) else None


def _over_rounds(ratios: Sequence[Numbers]) -> dict[str, list[float]]:
    """Means over pieces of the training, and the round in the middle of each."""
    pieces = np.array_split(np.arange(len(ratios)), min(_POINTS, len(ratios)))
    return {
        "at": [float(piece.mean()) for piece in pieces],
        "by_round": [float(np.mean([ratios[i].mean() for i in piece])) for piece in pieces],
    }

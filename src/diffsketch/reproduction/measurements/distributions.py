"""How gradients and model updates are distributed, and how far that is from a Gaussian."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import stats

from diffsketch.errors import check
from diffsketch.privacy.theorems import estimates
from diffsketch.reproduction.measurements.options import run_settings, whole
from diffsketch.reproduction.measurements.training import simulation_of, watched

__all__ = ["EDGES", "SCORES", "measure", "shape_of"]

Numbers = npt.NDArray[np.float64]

EDGES = np.linspace(-8.05, 8.05, 162)
"""Of the histogram's bins, in standard deviations from the mean. The mean is in the middle of one,
and with it, nearly, the coordinates that are exactly zero."""
SCORES = np.linspace(-3.6, 3.6, 73)
"""Where quantiles are compared: those of the Gaussian, in standard deviations."""


def measure(
    settings: Mapping[str, Any], *, seed: int, on_progress: Callable[[float], None]
) -> dict[str, Any]:
    """The shapes of single devices' vectors, in rounds spread evenly over a training.

    Args:
        settings: Those of `diffsketch run`; and `vectors`, how many rounds are looked at, each for
            one of its devices, drawn at random.
        seed: Of the run and of the draws.
        on_progress: Told the share that is done.

    Returns:
        `{"dim": ..., "edges": [...], "scores": [...], "vectors": [one of `shape_of` each]}`, where
        each vector also has its `round`, `device` and number of `examples`.
    """
    count = whole(settings, "vectors", default=10)
    check(count >= 1, "vectors", "be >= 1", count)
    simulation = simulation_of(run_settings(settings, {"vectors"}), seed=seed)
    rounds = sorted({int(place) for place in np.linspace(0, simulation.rounds - 1, count)})
    generator = torch.Generator().manual_seed(seed)
    shapes = []
    for seen in watched(simulation, rounds, on_progress=on_progress):
        chosen = int(torch.randint(len(seen.cohort), (1,), generator=generator))
        device = int(seen.cohort[chosen])
        shape = shape_of(seen.vectors[chosen].double().numpy())
        size = int(simulation.task.devices.sizes[device])
        name = simulation.task.devices.names[device]
        shapes.append({"round": seen.round_index, "device": name, "examples": size, **shape})
    return {
        "dim": simulation.method.dim,
        "edges": EDGES.tolist(),
        "scores": SCORES.tolist(),
        "vectors": shapes,
    }


def shape_of(vector: Numbers) -> dict[str, Any]:
    """What a vector's coordinates look like beside a Gaussian of their mean and deviation.

    `ks` is the largest distance of the two distribution functions (Kolmogorov and Smirnov),
    `beyond` the share of coordinates larger in size than alpha, `kurtosis` the excess over a
    Gaussian's.

    Guarantees (`tests/reproduction/test_distributions.py`): Gaussian numbers have a small `ks` and
    `kurtosis`, and other numbers of the same mean and deviation have not.

    Args:
        vector: Finite numbers that are not all equal.
    """
    alpha, sigma = (float(value) for value in estimates(torch.from_numpy(vector)))
    check(sigma > 0, "vector", "have coordinates that differ", sigma)
    mean = float(vector.mean())
    standard = (vector - mean) / sigma
    inside, _ = np.histogram(standard, bins=EDGES)
    rest = vector[vector != 0]
    return {
        "zeros": float((vector == 0).mean()),
        "mean": mean,
        "sigma": sigma,
        "alpha": alpha,
        "ratio": alpha / sigma,
        "beyond": float((np.abs(vector) > alpha).mean()),
        "largest": float(np.abs(vector).max()) / sigma,
        "kurtosis": float((standard**4).mean()) - 3,
        "ks": _distance(standard),
        "ks_nonzero": _distance((rest - rest.mean()) / rest.std()) if len(rest) > 1 else None,
        "counts": inside.tolist(),
        "quantiles": np.quantile(standard, stats.norm.cdf(SCORES)).tolist(),
    }


def _distance(standard: Numbers) -> float:
    return float(stats.kstest(standard, "norm").statistic)

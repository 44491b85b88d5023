"""Distributions of gradients and model updates, beside the Gaussian that fits them best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from diffsketch.pages.exhibits import Axis, Cell, Plot, Series, Table
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.drawings.trained import mean_and_spread
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["density", "draw"]

_SIZES = Axis("coordinate, in standard deviations from the mean")
_LINES = 5
_COLUMNS = (
    "vector", "round", "device", "exact zeros", "sigma", "alpha", "alpha / sigma",
    "beyond alpha", "largest / sigma", "excess kurtosis", "KS distance", "KS, zeros left out",
)  # fmt: skip


def draw(experiment: Experiment, results: Results) -> Drawn:
    """Histograms with the fit, a plot of quantiles, and a table of each vector.

    Options: `what` the vectors are, such as "gradients".

    Guarantees (`tests/reproduction/test_distributions.py`): densities integrate to the share of
    coordinates within the plot; facts are means over vectors and seeds.

    Args:
        experiment: With one measurement of the kind `distributions`.
        results: Of it.
    """
    (measured,) = Measured.all_of(experiment, results)
    found, first = measured.found, measured.first
    what = str(experiment.options.get("what", "vectors"))
    exhibits = (
        _histogram(experiment, first, what=what, log=False),
        _histogram(experiment, first, what=what, log=True),
        _quantiles(experiment, first),
        _table(experiment, found, what=what),
    )
    facts = _facts(found)
    return Drawn(
        lead=_lead(facts, what=what, dim=int(first["dim"])),
        exhibits=exhibits,
        text=(_reading(first, seeds=len(found)),),
        facts=facts,
    )


def density(data: Mapping[str, Any]) -> list[float]:
    """Of all vectors' standardised coordinates together, in each bin."""
    edges, vectors = data["edges"], data["vectors"]
    total = [sum(counts) for counts in zip(*(v["counts"] for v in vectors), strict=True)]
    width, numbers = edges[1] - edges[0], len(vectors) * int(data["dim"])
    return [count / (numbers * width) for count in total]


def _histogram(experiment: Experiment, data: Mapping[str, Any], *, what: str, log: bool) -> Plot:
    edges, found = tuple(data["edges"]), density(data)
    middles = tuple((a + b) / 2 for a, b in pairwise(edges))
    fit = tuple(math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in middles)
    least = min(value for value in found if value > 0) / 3
    shown = tuple(value if value > 0 or not log else None for value in found)
    bell = tuple(value if value > least or not log else None for value in fit)
    return Plot(
        name=f"{experiment.name}-density" + ("-log" if log else ""),
        title=f"Density of {what}" + (", logarithmic: the tails" if log else ""),
        x=_SIZES,
        y=Axis("density", log=log),
        series=(
            Series(what, edges, shown, kind="steps", role=what),
            Series("Gaussian of the same mean and deviation", middles, bell, dashed=True,
                   role="reference"),
        ),
        caption=(
            f"Seed 0, {len(data['vectors'])} vectors together, each in its own standard "
            "deviations. The bar in the middle holds the coordinates that are exactly zero."
            if not log
            else "A Gaussian would be a parabola. Coordinates beyond 8 deviations are not shown."
        ),
    )  # fmt: skip


def _quantiles(experiment: Experiment, data: Mapping[str, Any]) -> Plot:
    scores = tuple(data["scores"])
    series = [
        Series(f"round {v['round'] + 1}", scores, tuple(v["quantiles"]), note=str(v["device"]))
        for v in _some(data["vectors"])
    ]
    line = Series("Gaussian", scores, scores, dashed=True, role="reference")
    return Plot(
        name=f"{experiment.name}-quantiles",
        title="Quantiles beside a Gaussian's",
        x=Axis("quantile of a Gaussian, in standard deviations"),
        y=Axis("quantile of the vector, in its standard deviations"),
        series=(*series, line),
        caption="On the straight line: Gaussian. Flat in the middle: zeros. Steep: heavy tails.",
    )


def _some(vectors: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Few enough to be told apart, first and last among them."""
    last, count = len(vectors) - 1, min(_LINES, len(vectors))
    return [vectors[round(place * last / max(1, count - 1))] for place in range(count)]


def _table(experiment: Experiment, found: Sequence[Mapping[str, Any]], *, what: str) -> Table:
    rows: list[tuple[Cell, ...]] = []
    for place in range(len(found[0]["vectors"])):
        vectors = [data["vectors"][place] for data in found]
        devices = {str(v["device"]) for v in vectors}
        rows.append(
            (
                place + 1,
                int(vectors[0]["round"]) + 1,
                devices.pop() if len(devices) == 1 else "one of each seed",
                *(_rounded(_mean(vectors, name)) for name in
                  ("zeros", "sigma", "alpha", "ratio", "beyond", "largest", "kurtosis", "ks",
                   "ks_nonzero")),
            )
        )  # fmt: skip
    several = f"Means over {len(found)} seeds. " if len(found) > 1 else "One seed. "
    return Table(
        f"{experiment.name}-vectors",
        f"Each of the {what}",
        _COLUMNS,
        tuple(rows),
        f"{several}alpha is the 90th percentile of the sizes, as in the paper; a Gaussian has "
        "alpha / sigma = 1.645, kurtosis 0, and a largest coordinate near 4 sigma. KS: largest "
        "distance of the distribution functions.",
    )


def _facts(found: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    vectors = [v for data in found for v in data["vectors"]]
    first = [data["vectors"][0] for data in found]
    last = [data["vectors"][-1] for data in found]
    facts: dict[str, Fact] = {"seeds": len(found), "vectors": len(vectors)}
    facts["dim"] = int(found[0]["dim"])
    for name, key in (
        ("zeros", "zeros"), ("kurtosis", "kurtosis"), ("ks", "ks"), ("ratio", "ratio"),
        ("above-alpha", "beyond"), ("largest", "largest"),
    ):  # fmt: skip
        values = [float(v[key]) for v in vectors]
        by_seed = [statistics.fmean(float(v[key]) for v in data["vectors"]) for data in found]
        facts |= {
            name: statistics.fmean(values),
            f"{name}/mean": statistics.fmean(values),
            f"{name}/least": min(values),
            f"{name}/most": max(values),
            f"{name}/first": _mean(first, key),
            f"{name}/last": _mean(last, key),
            f"spread/{name}": mean_and_spread(by_seed)[1],
        }
    facts["alpha-over-sigma/first"], facts["alpha-over-sigma/last"] = (
        facts["ratio/first"], facts["ratio/last"],
    )  # fmt: skip
    facts["beyond-alpha/mean"] = facts["above-alpha"]
    return facts


def _lead(facts: Mapping[str, Fact], *, what: str, dim: int) -> str:
    def of(name: str) -> float:
        return float(facts[name] or 0.0)

    chance = 1.63 / math.sqrt(dim)
    far = of("ks/least") > chance
    verdict = "far from Gaussian" if far else "not told from Gaussian"
    return (
        f"The {what} are {verdict}: {of('zeros'):.1%} of the coordinates are exactly zero, the "
        f"excess kurtosis is {of('kurtosis/least'):.3g} to {of('kurtosis/most'):.3g} (a Gaussian "
        f"has 0), and the distance of the distribution functions is {of('ks/least'):.2g} to "
        f"{of('ks/most'):.2g}, where {dim:,} Gaussian numbers stay below {chance:.2g} in 99 cases "
        f"of 100. {of('above-alpha'):.1%} of the coordinates exceed alpha, the largest by far: it "
        f"has {of('largest'):.3g} standard deviations on average."
    )


def _reading(data: Mapping[str, Any], *, seeds: int) -> str:
    rounds = [int(v["round"]) + 1 for v in data["vectors"]]
    return (
        f"Vectors of single devices, drawn at random, in rounds {rounds[0]:,} to {rounds[-1]:,} of "
        f"a training without compression, evenly spaced; {seeds} seed{'s' if seeds > 1 else ''}."
    )


def _mean(vectors: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [v[name] for v in vectors if v[name] is not None]
    return statistics.fmean(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")

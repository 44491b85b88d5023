"""Records of distributions, of Theorem 2's gap, of data sets and of cpSGD's parameters."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from diffsketch.privacy.claim import Basis, Epsilon
from paper.experiments import Experiment, Results
from paper.figures import SECURE_SUM, Figure, Record, draw, measured_of

# --- distributions of gradients and model updates --------------------------------------------

_LINES = 5  # vectors in the plot of quantiles: few enough to be told apart
_NUMBERS = ("zeros", "sigma", "alpha", "ratio", "beyond", "largest", "kurtosis", "ks", "ks_nonzero")


def draw_distributions(experiment: Experiment, results: Results) -> Figure:
    """Histograms of each vector with a Gaussian, a plot of quantiles, a table of each vector.

    Option `what`: the vectors, such as "gradients". The first measurement is the figure's; of
    others there are facts, with their names before them, and a table.

    Guarantees (`paper/tests/test_figures_measured.py`): densities integrate to the share of the
    vector's coordinates within the plot; facts are means over vectors and seeds.
    """
    trainings = measured_of(experiment, results)
    data, rows, every = trainings[0].first, list[Record](), list[Record]()
    for training in trainings:
        about = {"training": training.name, "first": training is trainings[0]}
        same = zip(*(each["vectors"] for each in training.by_seed), strict=True)
        vectors = [_vector(place, seeds) for place, seeds in enumerate(same, 1)]
        rows += [{**about, **vector} for vector in vectors]
        every.append({**about, **_means(vectors)})
    bins = [point for vector in data["vectors"] for point in densities(data, vector)]
    # As far as the logarithmic plot has anything else.
    least = min(point["density"] for point in bins if point["density"]) / 3
    places = [(first + second) / 2 for first, second in pairwise(data["edges"])]
    heights = [math.exp(-place * place / 2) / math.sqrt(2 * math.pi) for place in places]
    bell = [
        {"place": place, "density": height}
        for place, height in zip(places, heights, strict=True)
        if height > least
    ]
    spaced = np.linspace(0, len(data["vectors"]) - 1, min(_LINES, len(data["vectors"])))
    chosen = [data["vectors"][round(place)] for place in spaced]
    quantiles = [
        {"round": vector["round"] + 1, "device": vector["device"], "score": score, "value": value}
        for vector in chosen
        for score, value in zip(data["scores"], vector["quantiles"], strict=True)
    ]
    scores = [{"score": score} for score in data["scores"]]
    records = {
        "bins": bins, "bell": bell, "quantiles": quantiles, "scores": scores,
        "vectors": rows, "trainings": every,
    }  # fmt: skip
    return draw(experiment, records)


def densities(data: Mapping[str, Any], vector: Mapping[str, Any]) -> list[Record]:
    """The density of one vector's standardised coordinates at the edge where each bin begins."""
    edges = data["edges"]
    scale = int(data["dim"]) * (edges[1] - edges[0])
    about = {"round": vector["round"] + 1, "device": vector["device"]}
    return [
        {**about, "place": edge, "density": None if count is None else count / scale}
        for edge, count in zip(edges, [*vector["counts"], None], strict=True)
    ]


def _vector(place: int, seeds: Sequence[Mapping[str, Any]]) -> Record:
    """A vector, with its means over the seeds."""
    devices = {str(vector["device"]) for vector in seeds}
    device = devices.pop() if len(devices) == 1 else "one of each seed"
    index = int(seeds[0]["round"]) + 1
    return {"place": place, "round": index, "device": device, **_means(seeds)}


def _means(vectors: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    means = {}
    for name in _NUMBERS:
        values = [vector[name] for vector in vectors if vector[name] is not None]
        means[name] = statistics.fmean(values) if values else None
    return means


# --- Theorem 2 beside the gap that was measured ----------------------------------------------

_CONSTANTS = ("gradient_norm", "gradient_norm_always", "distance", "reference", "reference_norm")


def draw_convergence(experiment: Experiment, results: Results) -> Figure:
    """Gap and bounds over the rounds, on logarithmic axes.

    Guarantees (`paper/tests/test_figures_measured.py`): a gap above the bound is counted.
    """
    points, lines = list[Record](), list[Record]()
    for line in measured_of(experiment, results):
        sketched, rounds = "theorem2" in line.first, line.first["rounds"]
        stated = "theorem2" if sketched else "proven"
        values = {
            name: np.array([result[name] for result in line.by_seed])
            for name in ("gap", "proven", stated)
        }
        means = {name: by_seed.mean(axis=0).tolist() for name, by_seed in values.items()}
        ends = (values["gap"].min(axis=0), values["gap"].max(axis=0))
        several = len(line.by_seed) > 1
        for place, index in enumerate(rounds):
            least, most = (float(end[place]) if several else None for end in ends)
            at = {name: mean[place] for name, mean in means.items()}
            points.append({
                "theorem2": None, **at, "line": line.name, "sketched": sketched, "round": index,
                "least": least, "most": most,
                "times": at[stated] / at["gap"] if at["gap"] > 0 else None,
                "shown": place in {0, len(rounds) - 1} | {k * len(rounds) // 4 for k in (1, 2, 3)},
            })  # fmt: skip
        error = line.first.get("error")
        lines.append({
            "line": line.name, "sketched": sketched, "name": "sketch" if sketched else line.name,
            **{name: statistics.fmean(each[name] for each in line.by_seed) for name in _CONSTANTS},
            "noise": error and line.first["dim"] * error**2,
            "variance": line.first.get("variance"),
            **at, "slope": slope(rounds, means["gap"]),
            # Of places and seeds, the share where the measured gap is at most the bound.
            "holds": float((values["gap"] <= values[stated]).mean()),
        })  # fmt: skip
    return draw(experiment, {"points": points, "lines": lines})


def slope(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """The slope of the values over the rounds, both logarithmic, from the middle of the run on.

    None if a value is not positive, which has no logarithm.
    """
    late = [(r, v) for r, v in zip(rounds, values, strict=True) if r >= math.sqrt(rounds[-1])]
    if len(late) < 2 or any(value <= 0 for _, value in late):
        return None
    x, y = np.log([r for r, _ in late]), np.log([v for _, v in late])
    return float(np.polyfit(x, y, 1)[0])


# --- the paper's tables ----------------------------------------------------------------------


def draw_datasets(experiment: Experiment, results: Results) -> Figure:
    """The table of data sets, beside the paper's numbers.

    The paper's values are those of the settings file: by a measurement's name, "workers;
    parameters; mean; stdev".
    """
    rows: list[Record] = []
    for each in measured_of(experiment, results):
        data, samples = each.first, each.first["samples"]
        devices, parameters, *stated = experiment.paper[each.name].split("; ")
        wanted = int(parameters.replace(",", ""))
        rows.append({"name": each.name, "whose": "paper", "devices": devices,
                     "parameters": parameters, "mean": stated[0], "std": stated[1]})  # fmt: skip
        rows.append({
            "name": each.name, "whose": "here", "devices": data["devices"],
            "parameters": min(data["parameters"].values(), key=lambda count: abs(count - wanted)),
            "mean": round(samples["mean"], 1), "std": round(samples["std"], 1),
            "trained": data["trained"]["mean"], "test": data["test"],
        })  # fmt: skip
    return draw(experiment, {"rows": rows})


def draw_cpsgd(experiment: Experiment, results: Results) -> Figure:
    """The paper's k and m, the bits that they take, and what cpSGD's theorem says of them."""
    measured = measured_of(experiment, results)
    rows, sums = list[Record](), list[Record]()
    for vectors in measured:
        delta, whose = vectors.first["delta"], vectors is measured[0]
        for row in vectors.first["rows"]:
            few, everyone = row["cohorts"][0], row["cohorts"][-1]
            claimed = Epsilon(row["claimed"], delta, 1, Basis.CLAIMED, SECURE_SUM)
            rows.append({
                **row, **few, "paper": whose, "claimed": claimed, "target": row["claimed"],
                "stated": {4: "10x", 5: "6x"}.get(row["bits"], "not given"),
                "epsilon_of_all": everyone["epsilon"],
            })  # fmt: skip
            for cohort in row["cohorts"]:
                value, basis = cohort["epsilon"], Basis.PROVEN
                if value is None:
                    value, basis = math.inf, Basis.NONE
                proven = Epsilon(value, delta, 1, basis, SECURE_SUM)
                sums.append({**row, **cohort, "vectors": vectors.name, "proven": proven,
                             "target": f"{row['claimed']:g}"})  # fmt: skip
    proofs = sum(row["epsilon"] is not None for row in rows if row["paper"])
    return draw(experiment, {"rows": rows, "sums": sums, "all": [{"proofs": proofs}]})

"""From results to plots, tables and facts; and the figures of distributions, sizes and Theorem 2.

A figure is drawn by a pure function of an experiment and the results of its jobs. Axes, columns and
captions are in `figures.toml`; `figures_trained` and `figures_private` have the other figures.
"""

from __future__ import annotations

import math
import re
import statistics
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import pairwise
from typing import Any

import numpy as np

from diffsketch.pages.exhibits import Axis, Cell, Exhibit, Mark, Plot, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from paper.experiments import Experiment, Results

Fact = float | str | bool | None
"""A number that was measured; None where there is none, such as an accuracy of no finished run."""
Rows = list[tuple[Cell, ...]]
COORDINATE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""The scope of the paper's epsilons, and of the repair of its padding."""
SECURE_SUM = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)
"""The scope of cpSGD's."""


@dataclass(frozen=True)
class Figure:
    """A figure of the paper, as it came out."""

    lead: str  # what there is to learn, made from the numbers
    exhibits: tuple[Exhibit, ...]  # as the paper has them
    proven: tuple[Exhibit, ...] = ()  # the same with proven privacy, and what an audit measured
    text: tuple[str, ...] = ()  # paragraphs
    facts: Mapping[str, Fact] = field(default_factory=dict)


@cache
def texts() -> dict[str, dict[str, Any]]:
    """The content of `figures.toml`."""
    file = resources.files("paper").joinpath("figures.toml")
    return tomllib.loads(file.read_text("utf-8"))


def plot(
    kind: str,
    name: str,
    series: Sequence[Series],
    *,
    marks: Sequence[Mark] = (),
    categories: Sequence[str] = (),
    log_y: bool = False,
    **fields: Any,
) -> Plot:
    """A plot with the axes, title and caption that `figures.toml` has for its kind."""
    entry = {"title": "{title}", "caption": "", **texts()[kind]}

    def axis(label: str, *flags: str) -> Axis:
        return Axis(label.format(**fields), log="log" in flags, percent="percent" in flags)

    y = axis(*entry["y"])
    return Plot(
        name=name,
        title=entry["title"].format(**fields),
        x=axis(*entry["x"]),
        y=Axis(y.label, log=True) if log_y else y,
        series=tuple(series),
        caption=entry["caption"].format(**fields),
        marks=tuple(marks),
        categories=tuple(categories),
    )


def table(
    kind: str,
    name: str,
    rows: Sequence[tuple[Cell, ...]],
    columns: Sequence[str] = (),
    **fields: Any,
) -> Table:
    """A table with the columns, title and caption that `figures.toml` has for its kind."""
    entry = {"title": "{title}", "caption": "", **texts()[kind]}
    headings = tuple(one.format(**fields) for one in columns or entry["columns"])
    title, caption = (entry[part].format(**fields) for part in ("title", "caption"))
    return Table(name, title, headings, tuple(rows), caption)


@dataclass(frozen=True, eq=False)
class Measured:
    """A measurement of an experiment, with the result of each seed."""

    name: str
    settings: Mapping[str, Any]
    found: tuple[Mapping[str, Any], ...]

    @property
    def first(self) -> Mapping[str, Any]:
        """The result of the first seed: enough for what is the same with every seed."""
        return self.found[0]


def measured_of(experiment: Experiment, results: Results, kind: str = "") -> list[Measured]:
    """The measurements of an experiment in its order: those of a kind, or all."""
    return [
        Measured(each.name, each.settings, tuple(results[job] for job in experiment.jobs_of(each)))
        for each in experiment.measurements
        if each.kind == kind or not kind
    ]


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation if there are several.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([1.0])
    ((2.0, 1.4142135623730951), (1.0, None))
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean; None if one of the values is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if len(known) == len(values) else None


def banded(found: Iterable[tuple[float | None, float | None]], **more: Any) -> dict[str, Any]:
    """The fields of a series of shares: means over the seeds, with standard deviations if known."""
    pairs = list(found)
    low, high = (
        tuple(
            None if mean is None else min(1.0, max(0.0, mean + sign * (spread or 0.0)))
            for mean, spread in pairs
        )
        for sign in (-1, 1)
    )
    several = all(spread is not None for mean, spread in pairs if mean is not None)
    band = {"low": low, "high": high, "kind": "band"} if several else {}
    return {"y": tuple(mean for mean, _ in pairs), **band, **more}


def slug(text: str) -> str:
    """A text for names of files: letters, digits and dashes.

    >>> slug("50x, epsilon 0.1")
    '50x-epsilon-0-1'
    """
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def rounded(value: float | None) -> float | None:
    """The value to four digits.

    >>> rounded(123.456), rounded(None)
    (123.5, None)
    """
    return None if value is None else float(f"{value:.4g}")


def name_of(method: str) -> str:
    """A method's name in the paper, which legends begin with.

    >>> name_of("sketch-laplace")
    'Laplace on sketches'
    """
    return str(texts()["methods"].get(method, method))


# --- distributions of gradients and model updates --------------------------------------------

_LINES = 5
_SHAPES = {
    "zeros": "zeros", "kurtosis": "kurtosis", "ks": "ks", "ratio": "ratio",
    "above-alpha": "beyond", "largest": "largest",
}  # fmt: skip  # facts, and what the measurement calls them
_NUMBERS = ("zeros", "sigma", "alpha", "ratio", "beyond", "largest", "kurtosis", "ks", "ks_nonzero")


def draw_distributions(experiment: Experiment, results: Results) -> Figure:
    """Histograms of each vector with a Gaussian, a plot of quantiles, a table of each vector.

    Option `what`: the vectors, such as "gradients". The first measurement is the figure's; of
    others there are facts, with their names before them, and a table.

    Guarantees (`paper/tests/test_figures.py`): densities integrate to the share of the
    vector's coordinates within the plot; facts are means over vectors and seeds.
    """
    measured, *others = measured_of(experiment, results)
    found, data = measured.found, measured.first
    what, name = str(experiment.options.get("what", "vectors")), experiment.name
    edges, vectors = tuple(data["edges"]), data["vectors"]
    middles = tuple((a + b) / 2 for a, b in pairwise(edges))
    bell = [math.exp(-x * x / 2) / math.sqrt(2 * math.pi) for x in middles]
    densities = [density(data, place) for place in range(len(vectors))]
    least = min(value for heights in densities for value in heights if value > 0) / 3
    exhibits: list[Exhibit] = []
    for kind, lowest in (("density", -1.0), ("density-log", least)):
        series = [
            Series(
                f"round {vector['round'] + 1}",
                edges,
                tuple(value if value > min(lowest, 0.0) else None for value in heights),
                kind="steps",
                note=str(vector["device"]),
            )
            for vector, heights in zip(vectors, densities, strict=True)
        ]
        fit = tuple(value if value > lowest else None for value in bell)
        series.append(Series("Gaussian", middles, fit, dashed=True, role="reference"))
        exhibits.append(plot(kind, f"{name}-{kind}", series, what=what, vectors=len(vectors)))
    scores, last = tuple(data["scores"]), len(vectors) - 1
    count = min(_LINES, len(vectors))  # few enough to be told apart, first and last among them
    some = [vectors[round(place * last / max(1, count - 1))] for place in range(count)]
    quantiles = [
        Series(f"round {v['round'] + 1}", scores, tuple(v["quantiles"]), note=str(v["device"]))
        for v in some
    ]
    quantiles.append(Series("Gaussian", scores, scores, dashed=True, role="reference"))
    facts, entry = _shape_facts(found), texts()["vectors"]
    chance = 1.63 / math.sqrt(data["dim"])
    far = float(facts["ks/least"] or 0.0) > chance
    words = {key.replace("/", "_").replace("-", "_"): value for key, value in facts.items()}
    words |= {"what": what, "verdict": "far from Gaussian" if far else "not told from Gaussian"}
    first, end = (int(vectors[place]["round"]) + 1 for place in (0, -1))
    seeds = f"{len(found)} seed{'s' if len(found) > 1 else ''}"
    several = f"Means over {seeds}." if len(found) > 1 else "One seed."
    exhibits += [
        plot("quantiles", f"{name}-quantiles", quantiles),
        table("vectors", f"{name}-vectors", _vector_rows(found), what=what, seeds=several),
    ]
    for each in others:
        facts |= {f"{each.name}/{key}": value for key, value in _shape_facts(each.found).items()}
        exhibits.append(
            table("vectors", f"{name}-vectors-{slug(each.name)}", _vector_rows(each.found),
                  what=f"{what}, trained with {each.name}", seeds=several)
        )  # fmt: skip
    return Figure(
        lead=entry["lead"].format(chance=chance, **words),
        exhibits=tuple(exhibits),
        text=(entry["text"].format(first=first, last=end, seeds=seeds),),
        facts=facts,
    )


def _vector_rows(found: Sequence[Mapping[str, Any]]) -> Rows:
    """A row for each vector, with the means over the seeds."""
    rows: Rows = []
    for place in range(len(found[0]["vectors"])):
        same = [one["vectors"][place] for one in found]
        devices = {str(v["device"]) for v in same}
        device = devices.pop() if len(devices) == 1 else "one of each seed"
        numbers = [rounded(_mean_of(same, key)) for key in _NUMBERS]
        rows.append((place + 1, int(same[0]["round"]) + 1, device, *numbers))
    return rows


def density(data: Mapping[str, Any], place: int) -> list[float]:
    """The density of one vector's standardised coordinates, in each bin."""
    edges, numbers = data["edges"], int(data["dim"])
    width = edges[1] - edges[0]
    return [count / (numbers * width) for count in data["vectors"][place]["counts"]]


def _mean_of(vectors: Sequence[Mapping[str, Any]], key: str) -> float | None:
    values = [v[key] for v in vectors if v[key] is not None]
    return statistics.fmean(values) if values else None


def _shape_facts(found: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    vectors = [v for data in found for v in data["vectors"]]
    facts: dict[str, Fact] = {"seeds": len(found), "vectors": len(vectors)}
    facts["dim"] = int(found[0]["dim"])
    for name, key in _SHAPES.items():
        values = [float(v[key]) for v in vectors]
        by_seed = [statistics.fmean(float(v[key]) for v in data["vectors"]) for data in found]
        facts |= {
            name: statistics.fmean(values),
            f"{name}/mean": statistics.fmean(values),
            f"{name}/least": min(values),
            f"{name}/most": max(values),
            f"{name}/first": _mean_of([data["vectors"][0] for data in found], key),
            f"{name}/last": _mean_of([data["vectors"][-1] for data in found], key),
            f"spread/{name}": mean_and_spread(by_seed)[1],
        }
    # One by one: those that a test at 1% does not tell from Gaussian.
    chance = 1.63 / math.sqrt(int(found[0]["dim"]))
    near = sum(float(v["ks"]) <= chance for v in vectors)
    facts |= {"gaussian-vectors": near, "other-vectors": len(vectors) - near}
    for place, vector in enumerate(found[0]["vectors"], start=1):
        facts |= {f"vector/{place}/{name}": float(vector[key]) for name, key in _SHAPES.items()}
    for end in ("first", "last"):
        facts[f"alpha-over-sigma/{end}"] = facts[f"ratio/{end}"]
    facts["beyond-alpha/mean"] = facts["above-alpha"]
    return facts


# --- Theorem 2 beside the gap that was measured ----------------------------------------------


_CONSTANTS = ("gradient_norm", "gradient_norm_always", "distance", "reference", "reference_norm")


def draw_convergence(experiment: Experiment, results: Results) -> Figure:
    """Gap and bounds over the rounds, on logarithmic axes.

    Guarantees (`paper/tests/test_figures.py`): a gap above the bound is counted.
    """
    lines, series = measured_of(experiment, results), []
    sketched = next(line for line in lines if "theorem2" in line.first)
    constants: Rows = []
    for line in lines:
        first, places = line.first, tuple(float(r) for r in line.first["rounds"])
        rows = list(zip(*(each["gap"] for each in line.found), strict=True))
        ends = {"low": tuple(map(min, rows)), "high": tuple(map(max, rows)), "kind": "band"}
        band: dict[str, Any] = ends if len(line.found) > 1 else {}
        gaps = tuple(_means(line, "gap"))
        series.append(Series(f"measured, {line.name}", places, gaps, role=line.name, **band))
        for what, words in (("theorem2", "Theorem 2"), ("proven", "bound on the expected gap")):
            if what in first:
                name, bounds = f"{words}, {line.name}", tuple(_means(line, what))
                series.append(Series(name, places, bounds, dashed=True, role=name))
        means = [rounded(statistics.fmean(each[key] for each in line.found)) for key in _CONSTANTS]
        noise = None if "error" not in first else first["dim"] * first["error"] ** 2
        constants.append((line.name, *means, rounded(noise), rounded(first.get("variance"))))
    gap, stated, proven = (_means(sketched, key) for key in ("gap", "theorem2", "proven"))
    rounds, seeds = sketched.first["rounds"], len(lines[0].found)
    numbers: Rows = [
        (rounds[i], rounded(gap[i]), rounded(stated[i]), rounded(proven[i]),
         rounded(stated[i] / gap[i]) if gap[i] > 0 else None)
        for i in sorted({0, len(gap) // 4, len(gap) // 2, 3 * len(gap) // 4, len(gap) - 1})
    ]  # fmt: skip
    spread = f"Mean of {seeds} seeds; the band is from the least to the most. " if seeds > 1 else ""
    facts = _gap_facts(lines, sketched)
    share, end, bound = (float(facts[key] or 0.0) for key in ("bound-holds", "gap", "bound"))
    entry, name = texts()["gap"], experiment.name
    reference = statistics.fmean(each["reference"] for each in sketched.found)
    return Figure(
        lead=entry["lead"].format(
            where="every round looked at" if share >= 1 else f"{share:.0%} of the rounds looked at",
            rounds=rounds[-1],
            bound=bound,
            times=f", {bound / end:,.0f} times the measured gap of {end:.3g}" if end > 0 else "",
            useful=float(facts["useful-after"] or 0.0),
        ),
        exhibits=(
            plot("gap", f"{name}-gap", series, spread=spread),
            table("gap-numbers", f"{name}-numbers", numbers, line=sketched.name),
        ),
        proven=(table("gap-constants", f"{name}-constants", constants),),
        text=tuple(text.format(reference=reference) for text in entry["text"]),
        facts=facts,
    )


def slope(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """The slope of the values over the rounds, both logarithmic, from the middle of the run on.

    None if a value is not positive, which has no logarithm.
    """
    late = [(r, v) for r, v in zip(rounds, values, strict=True) if r >= math.sqrt(rounds[-1])]
    if len(late) < 2 or any(value <= 0 for _, value in late):
        return None
    x, y = np.log([r for r, _ in late]), np.log([v for _, v in late])
    return float(np.polyfit(x, y, 1)[0])


def _means(line: Measured, what: str) -> list[float]:
    """Over the seeds, at each place."""
    rows = zip(*(each[what] for each in line.found), strict=True)
    return [statistics.fmean(row) for row in rows]


def _gap_facts(lines: Sequence[Measured], sketched: Measured) -> dict[str, Fact]:
    gap, bound, proven = (_means(sketched, name) for name in ("gap", "theorem2", "proven"))
    rounds = sketched.first["rounds"]

    def below(line: Measured) -> float:
        """The share of places and seeds where the measured gap is at most the bound."""
        stated = "theorem2" if "theorem2" in line.first else "proven"
        kept = [
            bool(one <= limit)
            for each in line.found
            for one, limit in zip(each["gap"], each[stated], strict=True)
        ]
        return sum(kept) / len(kept)

    facts: dict[str, Fact] = {
        "seeds": len(sketched.found),
        "rounds": rounds[-1],
        "bound-holds": below(sketched),
        "gap": gap[-1],
        "spread/gap": mean_and_spread([each["gap"][-1] for each in sketched.found])[1],
        "bound": bound[-1],
        "proven": proven[-1],
        "gap/first": gap[0],
        "ratio": bound[-1] / gap[-1] if gap[-1] > 0 else None,
        "slope/bound": slope(rounds, bound),
        # The bound falls as 1 / sqrt(rounds): until then it is above the gap of the first model.
        "useful-after": rounds[-1] * (bound[-1] / gap[0]) ** 2 if gap[0] > 0 else None,
    }
    for line in lines:
        word = "sketch" if line is sketched else line.name
        facts[f"slope/{word}"] = slope(line.first["rounds"], _means(line, "gap"))
        facts[f"gap/{word}"] = _means(line, "gap")[-1]
        facts[f"bound-holds/{word}"] = below(line)
    return facts


# --- the paper's tables ----------------------------------------------------------------------


def draw_datasets(experiment: Experiment, results: Results) -> Figure:
    """The table of data sets, beside the paper's numbers.

    The paper's values are those of the settings file: by a measurement's name, "workers;
    parameters; mean; stdev".
    """
    rows: Rows = []
    facts: dict[str, Fact] = {"seeds": 1}
    equal, models = [], []
    for each in measured_of(experiment, results):
        data, samples = each.first, each.first["samples"]
        stated = [part.strip() for part in experiment.paper.get(each.name, "").split(";")]
        counts = [int(count) for count in data["parameters"].values()]
        wanted = stated[1].replace(",", "") if len(stated) > 1 else ""
        nearest = counts[0]
        if wanted.isdigit():
            nearest = min(counts, key=lambda count: abs(count - int(wanted)))
        mean, std = (round(samples[name], 1) for name in ("mean", "std"))
        found = (int(data["devices"]), nearest, mean, std)
        rows.append((each.name, "paper", *stated, None, None))
        trained = round(data["trained"]["mean"], 1)
        rows.append((each.name, "here", *found, trained, int(data["test"])))
        for name, value in zip(("workers", "parameters", "mean", "stdev"), found, strict=True):
            facts[f"{each.name}/{name}"] = value
        for kind, count in data["parameters"].items():
            facts[f"{each.name}/parameters/{kind}"] = count
        equal.append([f"{value:,}" for value in found[:2]] == stated[:2])
        if len(counts) > 1:
            words = ", ".join(f"{kind} {count:,}" for kind, count in data["parameters"].items())
            models.append(f"{each.name}: {words}")
    facts["equal"] = sum(equal)
    return Figure(
        lead=f"Devices and parameters are the paper's for {sum(equal)} of {len(equal)} data sets.",
        exhibits=(table("datasets", f"{experiment.name}-sizes", rows),),
        text=(f"Models and their parameters. {'; '.join(models)}.",) if models else (),
        facts=facts,
    )


def draw_cpsgd(experiment: Experiment, results: Results) -> Figure:
    """The paper's k and m, the bits that they take, and what cpSGD's theorem says of them."""
    measured, name = measured_of(experiment, results), experiment.name
    paper, delta = measured[0].first["rows"], measured[0].first["delta"]
    stated = {4: "10x", 5: "6x"}
    rows: Rows = [
        (Epsilon(row["claimed"], delta, 1, Basis.CLAIMED, SECURE_SUM), row["bits"], row["levels"],
         row["trials"], row["bits_needed"], stated.get(row["bits"], "not given"),
         round(row["compression"], 2), round(row["cohorts"][0]["sum_compression"], 2))
        for row in paper
    ]  # fmt: skip
    theorem: Rows = []
    facts: dict[str, Fact] = {"seeds": 1, "delta": delta}
    for each in measured:
        for row in each.first["rows"]:
            place = f"{row['claimed']:g}, {row['bits']}"
            place = place if each is measured[0] else f"{each.name}/{place}"
            some, everyone = row["cohorts"][0], row["cohorts"][-1]
            facts |= {
                f"{place}/bits": row["bits_needed"],
                f"{place}/compression": row["compression"],
                f"{place}/variance": some["variance"],
                f"{place}/needed": some["variance_needed"],
                f"{place}/epsilon": some["epsilon"],
                f"{place}/epsilon-all": everyone["epsilon"],
                f"{place}/trials-needed": some["trials_needed"],
                f"{place}/bits-then": some["bits_then"],
            }
            for sums in row["cohorts"]:
                value, basis = sums["epsilon"], Basis.PROVEN
                if value is None:
                    value, basis = math.inf, Basis.NONE
                proven = Epsilon(value, each.first["delta"], 1, basis, SECURE_SUM)
                theorem.append(
                    (each.name, f"{row['claimed']:g}", row["bits"], sums["cohort"],
                     round(sums["variance"], 2), round(sums["variance_needed"], 1), proven,
                     sums["trials_needed"], sums["bits_then"], sums["sum_bits_then"])
                )  # fmt: skip
    few, every = ([row["cohorts"][place] for row in paper] for place in (0, -1))
    with_proof = sum(each["epsilon"] is not None for each in few)
    facts["with-a-proof"] = with_proof
    variances = [each["variance"] for each in few]
    lead = texts()["cpsgd"]["lead"].format(
        workers=few[0]["cohort"], proven=with_proof or "none", settings=len(paper),
        least=min(variances), most=max(variances), needed=few[0]["variance_needed"],
    )  # fmt: skip
    values = [each["epsilon"] for each in every]
    if None not in values:
        lead += texts()["cpsgd"]["all"].format(
            workers=every[0]["cohort"], least=min(values), most=max(values), scope=SECURE_SUM
        )
    return Figure(
        lead=lead,
        exhibits=(table("cpsgd", f"{name}-paper", rows, workers=few[0]["cohort"]),),
        proven=(table("cpsgd-theorem", f"{name}-theorem", theorem),),
        facts=facts,
    )

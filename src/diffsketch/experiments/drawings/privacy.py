"""Theorem 1's epsilon of every message: its histogram, and how it depends on the compression."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.experiments.drawings.audits import Audited, audited_of, table_of
from diffsketch.experiments.drawings.claimed import (
    CLAIMED,
    SCOPE,
    Run,
    facts_of_audits,
    runs_of,
    table_of_claims,
)
from diffsketch.experiments.drawings.drawn import Drawn, Fact
from diffsketch.experiments.drawings.trained import slug
from diffsketch.experiments.experiment import Experiment
from diffsketch.experiments.jobs import Results
from diffsketch.privacy.claim import Basis, Epsilon
from diffsketch.report.exhibits import Axis, Mark, Plot, Series, Table

__all__ = ["draw_compression", "draw_histogram"]


def draw_histogram(experiment: Experiment, results: Results) -> Drawn:
    """The histogram of the claims of all messages, and the share that needs noise.

    The first measurement is the figure's; of others, which differ in the table or in the noise of
    the training, the numbers are in the table.

    Guarantees (`tests/experiments/test_privacy.py`): shares are means over the seeds; a message
    without a claim needs noise.

    Args:
        experiment: With measurements of the kind `local-epsilon`, and audits.
        results: Of all of them.
    """
    runs, audits = runs_of(experiment, results), audited_of(experiment, results)
    proven: list[Plot | Table] = [_by_padding(experiment, runs)]
    if audits:
        proven.append(table_of(f"{experiment.name}-audits", "What an audit measures", audits))
    return Drawn(
        lead=_histogram_lead(runs[0], audits),
        exhibits=(
            _histogram(experiment, runs[0]),
            _shares(experiment, runs),
            table_of_claims(experiment, runs),
        ),
        proven=tuple(proven),
        text=(_histogram_text(runs),),
        facts=_histogram_facts(runs) | facts_of_audits(audits),
    )


def _histogram(experiment: Experiment, run: Run) -> Plot:
    edges, series = tuple(run.found[0]["edges"]), []
    messages = sum(int(each["messages"]) for each in run.found)
    for claims in run.tables:
        counts = [
            sum(some) for some in zip(*(each["counts"] for each in claims.found), strict=True)
        ]
        series.append(
            Series(
                f"{claims.padding} appended ({1 - claims.finite:.0%} without a claim)",
                edges,
                tuple(count / messages for count in counts),
                kind="steps",
                role=f"{claims.padding} appended",
                epsilon=Epsilon(0.0, 0.0, 1, Basis.CLAIMED, SCOPE),
                epsilon_text="of each message, one round",
                epsilon_along="x",
            )
        )
    marks = tuple(
        Mark(float(value), f"requirement {value}", axis="x",
             epsilon=Epsilon(float(value), 0.0, 1, Basis.CLAIMED, SCOPE))
        for value in run.requirements
    )  # fmt: skip
    cols = run.tables[0].cols
    return Plot(
        name=f"{experiment.name}-histogram",
        title=f"Local epsilon of all messages, {run.rows} x {cols}",
        x=Axis(f"epsilon of a message ({CLAIMED}; one round)", log=True),
        y=Axis("share of messages", percent=True),
        series=tuple(series),
        caption=(
            f"{messages:,} messages of {len(run.found)} seeds. Right of a requirement noise is "
            "needed; messages that Theorem 1 claims nothing for are not in the picture, but in the "
            "legend."
        ),
        marks=marks,
    )


def _shares(experiment: Experiment, runs: Sequence[Run]) -> Plot:
    """Bars: the share of messages that need noise, for each padding."""
    names = [claims.padding for claims in runs[0].tables]
    series = []
    for run in runs:
        for requirement in run.requirements:
            found = [claims.needs_noise(requirement) for claims in run.tables]
            low = tuple(max(0.0, mean - (spread or 0.0)) for mean, spread in found)
            high = tuple(min(1.0, mean + (spread or 0.0)) for mean, spread in found)
            several = len(run.found) > 1
            series.append(
                Series(
                    f"{run.name}: above {requirement}",
                    tuple(float(place) for place in range(len(found))),
                    tuple(mean for mean, _ in found),
                    low=low if several else (),
                    high=high if several else (),
                    kind="bars",
                    epsilon=Epsilon(float(requirement), 0.0, 1, Basis.CLAIMED, SCOPE),
                )
            )
    return Plot(
        name=f"{experiment.name}-needs-noise",
        title="Messages that need Laplace noise",
        x=Axis("appended noise, in lengths of the vector"),
        y=Axis("share of messages", percent=True),
        series=tuple(series),
        caption=f"The claim is above the requirement, or there is none ({CLAIMED}).",
        categories=tuple(names),
    )


def _by_padding(experiment: Experiment, runs: Sequence[Run]) -> Plot:
    """Claimed and proven epsilon over the length of the appended noise."""
    series, seen = [], set()
    for run in runs:
        for cols in dict.fromkeys(claims.cols for claims in run.tables):
            if (run.rows, cols) in seen:
                continue
            seen.add((run.rows, cols))
            own = [claims for claims in run.tables if claims.cols == cols and claims.length]
            name, x = f"{run.rows} x {cols}", tuple(float(claims.length) for claims in own)
            for basis, found in (
                ("claimed", [claims.claimed for claims in own]),
                ("proven", [claims.proven for claims in own]),
            ):
                some = next((each for each in found if each is not None), None)
                if some is None:
                    continue
                y = tuple(None if each is None else float(each) for each in found)
                series.append(
                    Series(f"{name}, {basis}", x, y, dashed=basis == "claimed", role=name,
                           epsilon=some, epsilon_text="by length, a round",
                           epsilon_along="y")
                )  # fmt: skip
    return Plot(
        name=f"{experiment.name}-proven",
        title="The same appended noise: claimed by Theorem 1, and proven once repaired",
        x=Axis("appended noise, in lengths of the vector", log=True),
        y=Axis("epsilon of a message", log=True),
        series=tuple(series),
        caption=(
            "Dashed: the median claim. Solid: what is proven, at the delta in the table, if hashes "
            "are public, coordinates clipped and the noise's deviation fixed. Both are about one "
            "coordinate of one message: a client's whole vector is not hidden by either."
        ),
    )


def _histogram_facts(runs: Sequence[Run]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "seeds": len(runs[0].found),
        "rounds": int(runs[0].found[0]["rounds"]),
        "messages": sum(int(each["messages"]) for each in runs[0].found),
    }
    for place, run in enumerate(runs):
        facts[f"noised/{run.name}"] = run.noised
        facts[f"ratio/{run.name}"] = statistics.fmean(each["ratio"]["mean"] for each in run.found)
        for claims in run.tables:
            table = f"{run.rows}x{claims.cols}"
            for value in run.requirements:
                share, spread = claims.needs_noise(value)
                name = f"{table}/{claims.padding}/{value}"
                if not place:
                    facts[f"share-within/{claims.padding}/{value}"] = 1 - share
                    facts[f"spread/share-within/{claims.padding}/{value}"] = spread
                facts.setdefault(f"needs-noise/{name}", share)
                facts[f"needs-noise/{run.name}/{name}"] = share
            if not place:
                facts[f"finite/{claims.padding}"] = claims.finite
                facts[f"median/{claims.padding}"] = claims.mean("median")
                facts[f"claimed/{claims.padding}"] = claims.mean("median")
                proven = claims.proven
                facts[f"proven/{claims.padding}"] = None if proven is None else float(proven)
    for value in runs[0].requirements:
        lengths = [each["needed"][value] for each in runs[0].tables[0].found]
        facts[f"needed/{value}"] = None if None in lengths else statistics.fmean(lengths)
    return facts


def _histogram_lead(run: Run, audits: Sequence[Audited]) -> str:
    bare, most = run.tables[0], run.tables[-1]
    parts = [
        f"for a requirement of {value}, in {bare.needs_noise(value)[0]:.1%} of the messages "
        f"without appended noise and in {most.needs_noise(value)[0]:.1%} with {most.padding} of it"
        for value in run.requirements
    ]
    text = f"Noise is needed {'; '.join(parts)} ({CLAIMED})."
    refuted = [case for case in audits if case.refuted]
    if refuted:
        worst = max(refuted, key=lambda case: float(case.measured) / float(case.stated))
        text += (
            f" What is claimed is not true either: an audit measures at least "
            f"{float(worst.measured):.3g} where {float(worst.stated):.3g} is claimed."
        )
    return text


def _histogram_text(runs: Sequence[Run]) -> str:
    noised = [f"{run.noised:.1%} in {run.name}" for run in runs if run.noised is not None]
    ratios = ", ".join(
        f"{statistics.fmean(each['ratio']['mean'] for each in run.found):.3g} in {run.name}"
        for run in runs
    )
    text = (
        "A claim depends on a message only through alpha / sigma of the vector "
        f"(on average {ratios}), so one training gives the claims for all tables and paddings."
    )
    if noised:
        text += f" Messages that got Laplace noise in the training itself: {', '.join(noised)}."
    return text


def draw_compression(experiment: Experiment, results: Results) -> Drawn:
    """Epsilon over the compression ratio, claimed beside proven, and the share without a claim.

    Guarantees (`tests/experiments/test_privacy.py`): a mean is over the messages with a claim, and
    is left out where there are none.

    Args:
        experiment: With measurements of the kind `local-epsilon`, one a data set, and audits.
        results: Of all of them.
    """
    runs, audits = runs_of(experiment, results), audited_of(experiment, results)
    exhibits: list[Plot | Table] = []
    proven: list[Plot | Table] = []
    for run in runs:
        exhibits += [_over_ratio(experiment, run), _without(experiment, run)]
        own = audits if run is runs[0] else []
        proven.append(_proven_over_ratio(experiment, run, own))
    exhibits.append(table_of_claims(experiment, runs))
    if audits:
        proven.append(table_of(f"{experiment.name}-audits", "What an audit measures", audits))
    return Drawn(
        lead=_compression_lead(runs[0], audits),
        exhibits=tuple(exhibits),
        proven=tuple(proven),
        text=(
            "The mean is over the messages that Theorem 1 claims something for, as one over all "
            "would be infinite wherever one has no claim. Where few have one, it is the mean of "
            "the lucky ones.",
        ),
        facts=_compression_facts(runs, audits),
    )


def _over_ratio(experiment: Experiment, run: Run) -> Plot:
    series = []
    for padding, some in run.by_padding.items():
        values = [claims.mean("finite_mean") for claims in some]
        known = next((value for value in values if value is not None), None)
        if known is None:
            continue
        series.append(
            Series(f"{padding} appended", tuple(claims.compression for claims in some),
                   tuple(values), dashed=True, role=f"{padding} appended",
                   epsilon=Epsilon(known, 0.0, 1, Basis.CLAIMED, SCOPE),
                   epsilon_text="mean over messages with a claim, a round",
                   epsilon_along="y")
        )  # fmt: skip
    return Plot(
        name=f"{experiment.name}-{slug(run.name)}-claimed",
        title=f"{run.name}: claimed epsilon over compression",
        x=Axis("compression ratio", log=True),
        y=Axis(f"mean epsilon of messages with a claim ({CLAIMED})", log=True),
        series=tuple(series),
        caption="Where a line ends, no message has a claim." if series else "No message has one.",
    )


def _without(experiment: Experiment, run: Run) -> Plot:
    series = tuple(
        Series(f"{padding} appended", tuple(claims.compression for claims in some),
               tuple(1 - claims.finite for claims in some), role=f"{padding} appended")
        for padding, some in run.by_padding.items()
    )  # fmt: skip
    return Plot(
        name=f"{experiment.name}-{slug(run.name)}-without",
        title=f"{run.name}: messages without any claim",
        x=Axis("compression ratio", log=True),
        y=Axis("share of messages", percent=True),
        series=series,
    )


def _proven_over_ratio(experiment: Experiment, run: Run, audits: Sequence[Audited]) -> Plot:
    series = []
    for padding, some in run.by_padding.items():
        found = [claims.proven for claims in some]
        known = next((each for each in found if each is not None), None)
        if known is None:
            continue
        x = tuple(claims.compression for claims in some)
        y = tuple(None if each is None else float(each) for each in found)
        medians = tuple(claims.mean("median") for claims in some)
        series.append(Series(f"{padding} appended, proven", x, y, role=f"{padding} appended",
                             epsilon=known, epsilon_text="by ratio, a round",
                             epsilon_along="y"))  # fmt: skip
        series.append(
            Series(f"{padding} appended, claimed", x, medians, dashed=True,
                   role=f"{padding} appended",
                   epsilon=Epsilon(0.0, 0.0, 1, Basis.CLAIMED, SCOPE),
                   epsilon_text="median by ratio, a round", epsilon_along="y")
        )  # fmt: skip
    dim = int(run.found[0]["dim"])
    groups: dict[str, list[tuple[float, Audited]]] = {}
    for case, settings in _placed(experiment, audits):
        how = "bare" if not settings["padding"] else f"{settings['padding']}n appended"
        ratio = dim / (int(settings["rows"]) * int(settings["cols"]))
        groups.setdefault(f"{how}, {settings['change']}", []).append((ratio, case))
    for name, cases in groups.items():
        ordered = sorted(cases, key=lambda pair: pair[0])
        series.append(
            Series(f"measured, at least: {name}", tuple(ratio for ratio, _ in ordered),
                   tuple(float(case.measured) for _, case in ordered), kind="points",
                   epsilon=ordered[0][1].measured, epsilon_text="lower bounds, a message",
                   epsilon_along="y")
        )  # fmt: skip
    return Plot(
        name=f"{experiment.name}-{slug(run.name)}-proven",
        title=f"{run.name}: claimed, proven and measured",
        x=Axis("compression ratio", log=True),
        y=Axis("epsilon of a message, one coordinate", log=True),
        series=tuple(series),
        caption=(
            "Proven, at the delta in the table: the repaired padding. Claimed: medians."
            + (
                " Measured: lower bounds from audits of single messages, each with a claim of its "
                "own in the table; with nothing appended only the number of trials limits them."
                if audits
                else ""
            )
        ),
    )


def _placed(
    experiment: Experiment, audits: Sequence[Audited]
) -> list[tuple[Audited, Mapping[str, Any]]]:
    """Audits of tables, with their settings."""
    settings = {each.name: each.settings for each in experiment.measurements}
    found = [(case, settings[case.name]) for case in audits]
    return [(case, each) for case, each in found if each.get("case") == "padded"]


def _compression_lead(run: Run, audits: Sequence[Audited]) -> str:
    bare = next(iter(run.by_padding.values()))
    some = [claims for claims in bare if claims.mean("finite_mean") is not None]
    least, most = bare[0], bare[-1]
    if not some:
        return f"{run.name}: Theorem 1 claims nothing for any message, at any of the ratios."
    text = (
        f"{run.name}, nothing appended: Theorem 1 claims something for {least.finite:.1%} of the "
        f"messages at {least.compression:.0f}x and for {most.finite:.1%} at "
        f"{most.compression:.0f}x. More compression does mean a smaller claim (on average "
        f"{some[0].mean('finite_mean'):.3g} at {some[0].compression:.0f}x, "
        f"{some[-1].mean('finite_mean'):.3g} at {some[-1].compression:.0f}x; {CLAIMED})."
    )
    refuted = [case for case in audits if case.refuted]
    if refuted:
        least_bound = min(float(case.measured) for case in refuted)
        text += (
            f" That is the formula's: of {len(audits)} audited messages, {len(refuted)} have more "
            f"than is claimed for them, {least_bound:.2g} at least."
        )
    return text


def _compression_facts(runs: Sequence[Run], audits: Sequence[Audited]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"seeds": len(runs[0].found)}
    last = runs[0].requirements[-1]
    for place, run in enumerate(runs):
        for claims in run.tables:
            ratio, proven = f"{claims.compression:.0f}x", claims.proven
            numbers: dict[str, Fact] = {
                "epsilon": claims.mean("finite_mean"),
                "median": claims.mean("median"),
                "finite": claims.finite,
                "noised": claims.needs_noise(last)[0],
                "proven": None if proven is None else float(proven),
            }
            for what, value in numbers.items():
                facts[f"{run.name}/{claims.padding}/{what}/{ratio}"] = value
                if not place and claims.padding == "none":
                    facts[f"{what}/{ratio}"] = value
    return facts | facts_of_audits(audits)

"""Theorem 1's epsilon of every message: how it depends on the compression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.pages.exhibits import Axis, Plot, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon
from diffsketch.reproduction.drawings.audits import Audited, audited_of, table_of
from diffsketch.reproduction.drawings.claimed import (
    CLAIMED,
    SCOPE,
    Run,
    facts_of_audits,
    runs_of,
    table_of_claims,
)
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.trained import slug
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["draw"]


def draw(experiment: Experiment, results: Results) -> Drawn:
    """Epsilon over the compression ratio, claimed beside proven, and the share without a claim.

    Guarantees (`tests/reproduction/test_claimed.py`): a mean is over the messages with a claim, and
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
        lead=_lead(runs[0], audits),
        exhibits=tuple(exhibits),
        proven=tuple(proven),
        text=(
            "The mean is over the messages that Theorem 1 claims something for, as one over all "
            "would be infinite wherever one has no claim. Where few have one, it is the mean of "
            "the lucky ones.",
        ),
        facts=_facts(runs, audits),
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
    dim = int(run.first["dim"])
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


def _lead(run: Run, audits: Sequence[Audited]) -> str:
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


def _facts(runs: Sequence[Run], audits: Sequence[Audited]) -> dict[str, Fact]:
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

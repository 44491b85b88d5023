"""Theorem 1's epsilon of every message: its histogram, and the share that needs noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diffsketch.pages.exhibits import Axis, Mark, Plot, Series, Table
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
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["draw"]


def draw(experiment: Experiment, results: Results) -> Drawn:
    """The histogram of the claims of all messages, and the share that needs noise.

    The first measurement is the figure's; of others, which differ in the table or in the noise of
    the training, the numbers are in the table.

    Guarantees (`tests/reproduction/test_claimed.py`): shares are means over the seeds; a message
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
        lead=_lead(runs[0], audits),
        exhibits=(
            _histogram(experiment, runs[0]),
            _shares(experiment, runs),
            table_of_claims(experiment, runs),
        ),
        proven=tuple(proven),
        text=(_text(runs),),
        facts=_facts(runs) | facts_of_audits(audits),
    )


def _histogram(experiment: Experiment, run: Run) -> Plot:
    edges, series = tuple(run.first["edges"]), []
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


def _facts(runs: Sequence[Run]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        "seeds": len(runs[0].found),
        "rounds": int(runs[0].first["rounds"]),
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


def _lead(run: Run, audits: Sequence[Audited]) -> str:
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


def _text(runs: Sequence[Run]) -> str:
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

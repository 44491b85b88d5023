"""The paper's tables: of its data sets, and of the parameters of cpSGD."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.pages.exhibits import Cell, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["draw_cpsgd", "draw_datasets"]

_SECURE_SUM = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)


def draw_datasets(experiment: Experiment, results: Results) -> Drawn:
    """The table of data sets, beside the paper's numbers.

    The paper's values are those of the settings file: by a measurement's name, "workers;
    parameters; mean; stdev".

    Args:
        experiment: With a measurement of the kind `datasets` for each, called as in the paper.
        results: Of them.
    """
    rows: list[tuple[Cell, ...]] = []
    facts: dict[str, Fact] = {"seeds": 1}
    equal = []
    measured = Measured.all_of(experiment, results)
    for each in measured:
        data = each.first
        stated = [part.strip() for part in experiment.paper.get(each.name, "").split(";")]
        ours, samples = _closest(data, stated), data["samples"]
        found = (int(data["devices"]), ours, round(samples["mean"], 1), round(samples["std"], 1))
        rows.append((each.name, "paper", *stated, None, None))
        rows.append(
            (each.name, "here", *found, round(data["trained"]["mean"], 1), int(data["test"]))
        )
        for name, value in zip(("workers", "parameters", "mean", "stdev"), found, strict=True):
            facts[f"{each.name}/{name}"] = value
        for kind, count in data["parameters"].items():
            facts[f"{each.name}/parameters/{kind}"] = count
        equal.append([f"{value:,}" for value in found[:2]] == stated[:2])
    columns = (
        "data set", "whose", "devices", "parameters", "samples of a device, mean", "stdev",
        "of these for training", "test samples",
    )  # fmt: skip
    table = Table(
        f"{experiment.name}-sizes", "Data sets", columns, tuple(rows),
        "Samples of Shakespeare are those of a role before its text is divided into training and "
        "test; the stdev is the sample's. Of several models that a data set has, the one with the "
        "paper's number of parameters is shown, or the nearest.",
    )  # fmt: skip
    facts["equal"] = sum(equal)
    lead = f"Devices and parameters are the paper's for {sum(equal)} of {len(equal)} data sets."
    return Drawn(lead=lead, exhibits=(table,), text=_models(measured), facts=facts)


def _closest(data: Mapping[str, Any], stated: list[str]) -> int:
    counts = [int(count) for count in data["parameters"].values()]
    try:
        wanted = int(stated[1].replace(",", ""))
    except (IndexError, ValueError):
        return counts[0]
    return min(counts, key=lambda count: abs(count - wanted))


def _models(measured: Sequence[Measured]) -> tuple[str, ...]:
    texts = []
    for each in measured:
        models = each.first["parameters"]
        if len(models) > 1:
            words = ", ".join(f"{kind} {count:,}" for kind, count in models.items())
            texts.append(f"{each.name}: {words}")
    return (f"Models and their parameters. {'; '.join(texts)}.",) if texts else ()


def draw_cpsgd(experiment: Experiment, results: Results) -> Drawn:
    """The paper's k and m, the bits that they take, and what cpSGD's theorem says of them.

    Args:
        experiment: With measurements of the kind `cpsgd-parameters`; the first is shown as the
            paper's table, all of them beside it.
        results: Of them.
    """
    measured = Measured.all_of(experiment, results)
    first = measured[0].first
    rows: list[tuple[Cell, ...]] = []
    for row in first["rows"]:
        claimed = Epsilon(row["claimed"], first["delta"], 1, Basis.CLAIMED, _SECURE_SUM)
        rows.append(
            (claimed, row["bits"], row["levels"], row["trials"], row["bits_needed"],
             _stated(row["bits"]), round(row["compression"], 2),
             round(row["cohorts"][0]["sum_compression"], 2))
        )  # fmt: skip
    workers = first["rows"][0]["cohorts"][0]["cohort"]
    columns = (
        "claimed", "bits", "k", "m", "bits that k + m levels take", "compression, paper",
        "32 / bits", f"32 / bits of a secure sum of {workers}",
    )  # fmt: skip
    table = Table(f"{experiment.name}-paper", "The paper's parameters", columns, tuple(rows))
    facts = _cpsgd_facts(measured)
    return Drawn(
        lead=_cpsgd_lead(first["rows"]),
        exhibits=(table,),
        proven=(_theorem_table(experiment, measured),),
        facts=facts,
    )


def _stated(bits: int) -> str:
    return {4: "10x", 5: "6x"}.get(bits, "not given")


def _theorem_table(experiment: Experiment, measured: Sequence[Measured]) -> Table:
    columns = (
        "vectors", "epsilon of the paper", "bits", "workers in the sum", "variance of the noise",
        "variance that the theorem needs", "what it proves", "m that would suffice",
        "bits then", "bits of the sum then",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for each in measured:
        rows += [
            (each.name, f"{row['claimed']:g}", row["bits"], cohort["cohort"],
             round(cohort["variance"], 2), round(cohort["variance_needed"], 1),
             _proven(cohort["epsilon"], each.first["delta"]), cohort["trials_needed"],
             cohort["bits_then"], cohort["sum_bits_then"])
            for row in each.first["rows"]
            for cohort in row["cohorts"]
        ]  # fmt: skip
    return Table(
        f"{experiment.name}-theorem", "What cpSGD's own theorem says", columns, tuple(rows),
        "Variances in steps squared. m that would suffice: for the paper's epsilon, with its k. "
        "A secure sum needs room for the sum, and the theorem is about what is in one sum: with "
        "10 of 6,000 workers in a round, the noise of 10.",
    )  # fmt: skip


def _proven(value: float | None, delta: float) -> Epsilon:
    if value is None:
        return Epsilon(math.inf, delta, 1, Basis.NONE, _SECURE_SUM)
    return Epsilon(value, delta, 1, Basis.PROVEN, _SECURE_SUM)


def _cpsgd_facts(measured: Sequence[Measured]) -> dict[str, Fact]:
    paper = measured[0]
    facts: dict[str, Fact] = {"seeds": 1, "delta": paper.first["delta"]}
    for each in measured:
        for row in each.first["rows"]:
            place = f"{row['claimed']:g}, {row['bits']}"
            place = place if each is paper else f"{each.name}/{place}"
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
    facts["with-a-proof"] = sum(
        row["cohorts"][0]["epsilon"] is not None for row in paper.first["rows"]
    )
    return facts


def _cpsgd_lead(rows: Sequence[Mapping[str, Any]]) -> str:
    few = [row["cohorts"][0] for row in rows]
    everyone = [row["cohorts"][-1] for row in rows]
    proven = [each for each in few if each["epsilon"] is not None]
    variances = f"{min(e['variance'] for e in few):g} to {max(e['variance'] for e in few):g}"
    text = (
        f"With the {few[0]['cohort']} workers of a round, cpSGD's theorem proves an epsilon for "
        f"{len(proven) or 'none'} of the {len(rows)} settings: the noise has a variance of "
        f"{variances} steps squared, and it needs {few[0]['variance_needed']:.0f}. 4 bits are 8 "
        "times fewer than 32, not 10."
    )
    if all(each["epsilon"] is not None for each in everyone):
        values = [each["epsilon"] for each in everyone]
        text += (
            f" With all {everyone[0]['cohort']:,} in one sum it proves {min(values):.2g} to "
            f"{max(values):.2g} ({_SECURE_SUM}), for vectors of norm 1."
        )
    return text

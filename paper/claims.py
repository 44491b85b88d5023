"""Verdicts on the paper's claims, which `claims.toml` has.

A claim is judged by conditions on its cases, which its rule gives. Where the paper leaves a choice
open, the reading that does best is the one that counts.
"""

from __future__ import annotations

import itertools
import math
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from diffsketch.app.settings import read_toml
from diffsketch.privacy.claim import Basis, Unit
from paper.calculations import DELTA, FORMULAS
from paper.figures import SECURE_SUM, AllFacts
from paper.methods import COORDINATE
from paper.rules import (
    CHANCE,
    RULES,
    SPECS,
    Case,
    Facts,
    MissingFactError,
    Statement,
    as_number,
    meaning,
    percent,
)

NOTHING = "Nothing."
"""Text in place of a measurement, of claims that nothing here measures."""


class Standing(StrEnum):
    """The verdicts on a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    NOT_MEASURED = "not measured"
    UNDECIDED = "undecided"
    NO_EXPERIMENT = "not for an experiment"
    NOT_JUDGED = "not judged"  # by a reduced run


@dataclass(frozen=True)
class ClaimVerdict:
    """The verdict on a claim: its standing, the numbers as a text, and a few words on why."""

    standing: Standing
    measured: str
    why: str = ""
    rule: str = ""  # what it takes to hold, in a line: threshold, test, correction, seeds

    def __str__(self) -> str:
        if not self.why:
            return str(self.standing)
        return f"{self.standing}{' ' if self.why.startswith('(') else ': '}{self.why}"


Verdicts: TypeAlias = Mapping[Statement, ClaimVerdict]
"""The verdicts on the claims, in their order."""


# --- verdicts --------------------------------------------------------------------------------

_WORDS = 14  # of the cases of a claim that are written out; the data have all of them
_MANY = 10  # seeds that close calls should have
_CLIENT = replace(COORDINATE, unit=Unit.CLIENT)
_MEANINGS = {
    "claimed": meaning(Basis.CLAIMED),
    "measured_client": meaning(Basis.MEASURED, _CLIENT),
    "claimed_sum": meaning(Basis.CLAIMED, SECURE_SUM),
    "proven_sum": meaning(Basis.PROVEN, SECURE_SUM, delta=DELTA),
    "audited": f"(claimed, and measured lower bounds; {COORDINATE}; one round, the audit's delta)",
}


class _Text(string.Formatter):
    """Fills in `{share:percent}`, `{ratio:times}`, `{gap:points}`, `{bound:epsilon}`, ..."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in SPECS:
            return SPECS[format_spec](value)
        return str(super().format_field(value, format_spec))


_format = _Text().vformat


def _evaluate(expression: str, names: Mapping[str, Any]) -> Any:
    """The value of an expression of `claims.toml`, which is code of this package like any other.

    As text it can be shown beside the verdict.
    """
    functions = {"__builtins__": {}, "abs": abs, "max": max, "inf": math.inf, **FORMULAS}
    return eval(expression, functions, dict(names))  # noqa: S307


def judged(facts: AllFacts, *, reduced: bool = False) -> dict[Statement, ClaimVerdict]:
    """Each claim with its verdict on the paper's own panels, in the order of the file.

    A claim whose experiment was not run is "not measured"; of a reduced run none is judged.

    Guarantees (`paper/tests/test_claims.py`): each claim can come out either way, and does
    as its facts do.
    """
    if reduced:
        unjudged = ClaimVerdict(Standing.NOT_JUDGED, NOTHING, _content()["reduced"])
        return dict.fromkeys(statements(), unjudged)
    counted = Facts(facts, _content()["readings"])
    return {statement: verdict_of(statement, counted) for statement in statements()}


def verdict_of(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict on a claim; "not measured" where a fact is missing."""
    if statement.why:
        return ClaimVerdict(Standing.NO_EXPERIMENT, NOTHING, statement.why, "None.")
    try:
        return judge(statement, facts)
    except MissingFactError as missing:
        name = missing.experiment
        why = f"(run `python -m paper {name}`)"
        if facts.by_experiment.get(name):
            why = f"(not measured yet: {name} has no number for it, {missing.name})"
    return ClaimVerdict(Standing.NOT_MEASURED, NOTHING, why, rule_line(statement, facts, []))


def judge(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict by a claim's conditions on its cases, or by the tests that its rule made."""
    if statement.beyond:
        facts = replace(facts, readings={}, beyond=True)
    shared = {**_MEANINGS, **statement.values, **facts.read(statement.read)}
    cases = [{**shared, **case} for case in RULES[statement.rule](statement, facts)]
    if not cases:
        raise MissingFactError(statement.experiments[0], statement.missing)
    for case in cases:
        for name, expression in statement.numbers.items():
            case[name] = _evaluate(expression, case)
    hits, lacking = _hits(statement, cases), cases[0].get("lacking", [])
    partial = [bool(_evaluate(statement.partly or "False", case)) for case in cases]
    means = [case["mean"] for case in cases if case.get("mean") is not None]
    texts = {
        **cases[-1],
        "cases": _listed([_format(statement.case, (), case) for case in cases], hits, partial),
        "hits": hits.count(True), "total": len(hits), "partial": partial.count(True),
        "highest": max(means, default=0.0), "lowest": min(means, default=0.0),
    }  # fmt: skip
    standing, why = Standing.FAILS, statement.none
    if (statement.any and True in hits) or (all(hits) and not lacking):
        standing, why = Standing.HOLDS, ""
    elif not statement.any and (hits.count(True) >= statement.least or any(partial)):
        standing, why = Standing.IN_PART, statement.part
    elif set(hits) == {None}:
        standing, why = Standing.UNDECIDED, statement.none
    notes = []
    if None in hits and standing is not Standing.HOLDS:
        close = [case for case, hit in zip(cases, hits, strict=True) if hit is None]
        few = any((case["seeds"] or _MANY) < _MANY for case in close)
        more = "; five seeds only" if few else ""
        notes.append(f" ({hits.count(None)} too close to tell{more})")
    if lacking:
        notes.append(f" (not measured yet: {', '.join(lacking)})")
    return ClaimVerdict(
        standing,
        _format(statement.measured, (), texts),
        _format(why, (), texts) + "".join(notes),
        rule_line(statement, facts, cases),
    )


def _hits(statement: Statement, cases: Sequence[Case]) -> list[bool | None]:
    """The outcome of each case, or of each condition over all cases; None is too close to tell."""
    if not statement.holds:
        return [case["hit"] for case in cases]
    met = [[bool(_evaluate(condition, case)) for condition in statement.holds] for case in cases]
    return [all(each) for each in (met if statement.by == "case" else zip(*met, strict=True))]


def _listed(texts: Sequence[str], hits: Sequence[bool | None], partial: Sequence[bool]) -> str:
    """A case of each outcome first, as far as there are words, and how many there are more."""
    outcomes = list(zip(hits, partial, strict=True)) if len(hits) == len(texts) else []
    first = sorted(map(outcomes.index, dict.fromkeys(outcomes)))
    texts = [texts[i] for i in first] + [t for i, t in enumerate(texts) if i not in first]
    words = itertools.accumulate(len(text.split()) for text in texts)
    few = max(1, len(first), sum(count <= _WORDS for count in words))
    return "; ".join(texts[:few]) + (f"; and {len(texts) - few} more" if texts[few:] else "")


def rule_line(statement: Statement, facts: Facts, cases: Sequence[Case]) -> str:
    """Say in a line what it takes for a claim to hold: threshold, test, correction and seeds."""
    text = _format(statement.requires, (), statement.values)
    if "pairs" in statement.values:
        tests = cases[0]["tests"] if cases else "the number of tests"
        seeds = sorted({case["seeds"] for case in cases if case["seeds"]})
        counted = f", {' or '.join(map(str, seeds))} seeds" if seeds else ""
        return f"{text} One-sided t-test, {100 * CHANCE:g}%/{tests}{counted}."
    if not statement.experiments:
        return f"{text} Calculated."
    measured = facts.by_experiment.get(statement.experiments[0], {})
    confidence, count = (as_number(measured.get(name)) for name in ("confidence", "seeds"))
    if statement.rule == "audits" and confidence:
        return f"{text} Measured bounds: {percent(confidence)} confidence each."
    return f"{text} Means{f' of {count:g} seeds' if count and count > 1 else ''}; no test."


# --- beside the paper's own panels -----------------------------------------------------------


def changed_beyond(facts: AllFacts, verdicts: Verdicts) -> list[Beyond]:
    """Claims that further panels and readings bear on, with the verdict that they would give."""
    further, changed = Facts(facts, beyond=True), []
    for statement, verdict in verdicts.items():
        trained = set(statement.experiments) & set(_content()["readings"])
        if trained and not (statement.why or statement.beyond):
            other = verdict_of(statement, further)
            if (other.standing, other.measured) != (verdict.standing, verdict.measured):
                changed.append((statement, verdict, other))
    return changed


Beyond: TypeAlias = tuple[Statement, ClaimVerdict, ClaimVerdict]
"""A claim, the verdict on the paper's own panels, and that with further ones."""


def configurations(
    facts: AllFacts,
) -> tuple[list[Statement], list[tuple[str, list[ClaimVerdict]]]]:
    """Complete configurations, each fixed for all claims: the claims, and a row of verdicts each.

    A configuration has a reading of DiffSketch for each experiment. Where it was not run the
    verdict is "not measured"; where an experiment is left out, the claim is judged by its
    `beyond_pairs`.
    """
    content, rows = _content(), []
    by_name = {statement.name: statement for statement in statements()}
    columns = [by_name[name] for name in content["configured"]]
    for configuration in content["configuration"]:
        readings = {name: [reading] for name, reading in configuration["readings"].items()}
        verdicts = []
        for statement in columns:
            values = statement.values
            if "beyond_pairs" in values and statement.experiments[0] not in readings:
                values = {**values, "pairs": values["beyond_pairs"]}
            verdicts.append(verdict_of(replace(statement, values=values), Facts(facts, readings)))
        rows.append((configuration["name"], verdicts))
    return columns, rows


# --- the claims, by figure -------------------------------------------------------------------


@cache
def _content() -> dict[str, Any]:
    """The file: its texts, what there is to say of each figure, and the claims."""
    data = read_toml(Path(__file__).with_name("claims.toml"))
    data["claim"] = tuple(Statement(**each) for each in data["claim"])
    return data


def statements() -> tuple[Statement, ...]:
    """The claims, in the order of the file."""
    claims: tuple[Statement, ...] = _content()["claim"]
    return claims


def count_standings(verdicts: Verdicts, kind: str | None = None) -> dict[str, int]:
    """Count the distinct claims (of a kind) by standing: those that some have, in their order."""
    counts = Counter(
        verdict.standing
        for claim, verdict in verdicts.items()
        if not claim.aside and kind in (None, claim.kind)
    )
    return {standing.value: counts[standing] for standing in Standing if counts[standing]}


def counts_text(counts: Mapping[str, int]) -> str:
    """The counts of claims by standing, as a text.

    >>> counts_text({"holds": 2, "fails": 1, "not measured": 1})
    '2 hold, 1 fails, 1 is not measured'
    """
    several = {"holds": "hold", "holds in part": "hold in part", "fails": "fail"}
    parts = []
    for name, count in counts.items():
        verbs = (name, several[name]) if name in several else (f"is {name}", f"are {name}")
        parts.append(f"{count} {verbs[count != 1]}")
    return ", ".join(parts)


def summary_text(verdicts: Verdicts) -> str:
    """The counts as sentences: headline claims first, textbook facts apart; and what is beside.

    >>> verdicts = dict.fromkeys(statements(), ClaimVerdict(Standing.HOLDS, ""))
    >>> summary_text(verdicts).partition(". ")[0]
    'Of the 16 claims of title, abstract and captions: 16 hold'
    """
    sentences = []
    for kind, text in _content()["kinds"].items():
        counts = count_standings(verdicts, kind)
        sentences.append(f"{text.format(sum(counts.values()))}: {counts_text(counts)}.")
    asides = _content()["asides"]
    apart = Counter(asides.get(claim.aside, asides["other"]) for claim in verdicts if claim.aside)
    kinds = [f"{kind} {apart[kind]}" for kind in asides.values() if apart[kind]]
    return f"{' '.join(sentences)} Counted apart: {', '.join(kinds)}."


def panels_note() -> str:
    """A note on the epsilons in the names of panels, and on how readings were chosen."""
    return str(_content()["panels"])


def figure_row(name: str, facts: AllFacts) -> dict[str, str]:
    """The outcome of a figure in one row: what we find, and what is proven instead.

    A text whose numbers were not measured is "not measured".
    """
    counted, row = Facts(facts, _content()["readings"]), _content()["figure"].get(name, {})
    outcome = {}
    for column in ("letter", "proven"):
        text = row.get(column, "")
        asked = {field for _, field, _, _ in string.Formatter().parse(text) if field}
        try:
            numbers = counted.read({number: row["read"][number] for number in asked})
            outcome[column] = _format(text, (), numbers)
        except MissingFactError:
            outcome[column] = str(Standing.NOT_MEASURED)
    return outcome

"""Verdicts on the paper's claims, which `claims.toml` has.

A claim is judged by conditions that are written beside it, or by a function of `rules` or
`calculations`. Where the paper leaves a choice open, the reading that does best is the one that
counts.
"""

from __future__ import annotations

import itertools
import operator
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from diffsketch.errors import DataError
from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit
from paper import calculations, rules
from paper.facts import (
    CHANCE,
    SPECS,
    Cases,
    Facts,
    Graded,
    MissingFactError,
    Statement,
    meaning,
    percent,
)
from paper.figures import COORDINATE, SECURE_SUM, Fact

NOTHING = "Nothing."
"""Text in place of a measurement, of claims that nothing here measures."""


class Standing(StrEnum):
    """The verdicts on a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    NOT_MEASURED = "not measured"
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

_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
_DELTA = 1e-5
_WORDS = 18  # of the cases of a claim that are written out; the data have all of them
_MANY = 10  # seeds that close calls should have
_MEANINGS = {
    "claimed": meaning(Basis.CLAIMED),
    "proven": meaning(Basis.PROVEN),
    "proven_delta": meaning(Basis.PROVEN, delta=_DELTA),
    "measured_client": meaning(Basis.MEASURED, _CLIENT),
    "claimed_sum": meaning(Basis.CLAIMED, SECURE_SUM),
    "proven_sum": meaning(Basis.PROVEN, SECURE_SUM, delta=_DELTA),
    "audited": f"(claimed, and measured lower bounds; {COORDINATE}; one round, the audit's delta)",
    "client": str(_CLIENT),
}
_LIMITS: dict[str, Callable[[float, float], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "below": operator.lt,
    "equal": operator.eq,
}


class _Text(string.Formatter):
    """Fills in `{share:percent}`, `{ratio:times}`, `{gap:points}`, `{bound:epsilon}`, ..."""

    def format_field(self, value: Any, format_spec: str) -> str:
        known = SPECS.get(format_spec)
        return str(super().format_field(value, format_spec)) if known is None else known(value)


_format = _Text().vformat


def judged(
    facts: Mapping[str, Mapping[str, Fact]],
    *,
    reduced: bool = False,
    show: Callable[[float], None] = lambda _: None,
) -> dict[Statement, ClaimVerdict]:
    """Each claim with its verdict on the paper's own panels, in the order of the file.

    Some of the rules take seconds; `show` is told the share that is done. A claim whose experiment
    was not run is "not measured"; of a reduced run none is judged.

    Guarantees (`paper/tests/test_claims.py`): each rule can come out either way, and does
    as its facts do.
    """
    if reduced:
        unjudged = ClaimVerdict(Standing.NOT_JUDGED, NOTHING, _content()["reduced"])
        return dict.fromkeys(statements(), unjudged)
    own, verdicts = Facts(facts, _content()["readings"]), {}
    for count, statement in enumerate(statements()):
        show(count / len(statements()))
        verdicts[statement] = verdict_of(statement, own)
    return verdicts


def verdict_of(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict on a claim; "not measured" where nothing measures it, or a fact is missing."""
    if statement.why:
        return ClaimVerdict(Standing.NOT_MEASURED, NOTHING, statement.why)
    try:
        return judge(statement, facts)
    except MissingFactError as missing:
        name = missing.experiment
        why = f"(run `python -m paper {name}`)"
        if facts.by_experiment.get(name):
            why = f"(not measured yet: {name} has no number for it, {missing.name})"
        return ClaimVerdict(Standing.NOT_MEASURED, NOTHING, why)


def judge(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict of a claim's conditions, or of its rule."""
    if statement.values.get("beyond"):  # a claim about what the paper does not show
        facts = replace(facts, readings={}, beyond=True)
    outcome = (_rule(statement) or _by_conditions)(statement, facts)
    if not isinstance(outcome, tuple):
        cases = list(outcome)
        outcome = cases, [case["hit"] for case in cases], {}
    cases, hits, fields = list(outcome[0]), outcome[1], outcome[2]
    if hits is not None and not hits:
        raise MissingFactError(statement.experiments[0], statement.missing)
    known = {**_MEANINGS, **statement.values, "seeds": facts}
    for case in cases:
        known |= case
    texts = [_format(statement.case, (), {**known, **case}) for case in cases]
    words = itertools.accumulate(len(text.split()) for text in texts)
    few = max(1, sum(count <= _WORDS for count in words))
    shown = "; ".join(texts[:few]) + (f"; and {len(texts) - few} more" if texts[few:] else "")
    sure = [hit is True for hit in hits or ()]
    known |= {"cases": shown, "hits": sum(sure), "total": len(sure), **fields}
    standing, why = Standing.FAILS, statement.none
    if hits is None:
        standing, why = Standing.NOT_MEASURED, statement.unmeasured
    elif all(sure) and not fields.get("lacking"):
        standing, why = Standing.HOLDS, ""
    elif any(sure):
        standing, why = Standing.IN_PART, statement.part
    why = _format(why, (), known)
    if close := sum(hit is None for hit in hits or ()):
        ten = fields.get("seeds", _MANY) >= _MANY
        why += f" ({close} too close to tell{'' if ten else '; ten seeds not measured yet'})"
    if fields.get("lacking"):
        why += f" (not measured yet: {', '.join(fields['lacking'])})"
    measured = _format(statement.measured, (), known)
    return ClaimVerdict(standing, measured, why, rule_line(statement, facts, fields))


def rule_line(statement: Statement, facts: Facts, fields: Mapping[str, Any]) -> str:
    """Say in a line what it takes for a claim to hold: threshold, test, correction and seeds."""
    rule = _rule(statement)
    text = statement.requires
    if not text and rule is not None:
        text = (rule.__doc__ or "").partition("\n")[0]
    text = _format(text or _conditions_text(statement), (), {**statement.values, **fields})
    if tests := fields.get("tests"):
        return f"{text} One-sided t-test, {100 * CHANCE:g}%/{tests}, {fields['seeds']} seeds."
    if rule is not None and rule.__module__ == calculations.__name__:
        return f"{text} Calculated."
    of = facts.by_experiment.get("".join(statement.experiments[:1]), {})
    bounds = "audit" in statement.experiments and "hidden" not in statement.name
    if bounds and (sure := of.get("confidence")) is not None:
        return f"{text} Measured bounds: {percent(float(sure))} confidence each."
    seeds = of.get("seeds")
    return f"{text} Means{f' of {seeds:g} seeds' if seeds and seeds != 1 else ''}; no test."


def _conditions_text(statement: Statement) -> str:
    parts = []
    for condition in statement.hits:
        (limit,) = [name for name in condition if name in _LIMITS]
        less = f" less {condition['less']}" if "less" in condition else ""
        parts.append(f"{condition['fact']}{less} {limit.replace('_', ' ')} {condition[limit]:g}")
    return f"{'; '.join(parts)}."


# --- beside the paper's own panels -----------------------------------------------------------


def changed_beyond(facts: Mapping[str, Mapping[str, Fact]], verdicts: Verdicts) -> list[Beyond]:
    """Claims that further panels and readings bear on, with the verdict that they would give."""
    further = Facts(facts, beyond=True)
    found = []
    for statement, own in verdicts.items():
        if statement.why or statement.values.get("beyond") or not _training(statement):
            continue
        other = verdict_of(statement, further)
        if (other.standing, other.measured) != (own.standing, own.measured):
            found.append((statement, own, other))
    return found


def _training(statement: Statement) -> bool:
    return bool(set(statement.experiments) & set(_content()["readings"]))


Beyond: TypeAlias = tuple[Statement, ClaimVerdict, ClaimVerdict]
"""A claim, the verdict on the paper's own panels, and that with further ones."""


def configurations(
    facts: Mapping[str, Mapping[str, Fact]],
) -> tuple[list[Statement], list[tuple[str, list[ClaimVerdict]]]]:
    """Complete configurations, each fixed for all claims: the claims, and a row of verdicts each.

    A configuration has a reading of DiffSketch for each experiment. Where it was not run the
    verdict is "not measured".
    """
    content = _content()
    judged_by = {one.name: one for one in statements()}
    columns = [judged_by[name] for name in content["configured"]]
    rows = []
    for each in content["configuration"]:
        readings = {name: [reading] for name, reading in each["readings"].items()}
        chosen = Facts(facts, readings, beyond=bool(each.get("beyond")))
        found = []
        for column in columns:
            pairs = each.get("pairs", {}).get(column.name)
            statement = column
            if pairs is not None:
                values = {**column.values, "pairs": pairs, "beyond_pairs": []}
                statement = replace(column, values=values, experiments=(pairs[0][0],))
            found.append(verdict_of(statement, chosen))
        rows.append((each["name"], found))
    return columns, rows


def _rule(statement: Statement) -> Callable[[Statement, Facts], Cases | Graded] | None:
    """The function that judges a claim; None if conditions do, or nothing."""
    name = (statement.rule or statement.name).replace("-", "_")
    for module in () if statement.hits else (rules, calculations):
        found = vars(module).get(name)
        if getattr(found, "__module__", "") == module.__name__:
            return found
    return None


def _by_conditions(statement: Statement, facts: Facts) -> Graded:
    """Grade a claim by the conditions that are written beside it."""
    read = {name: facts.number(*place.split(" ", 1)) for name, place in statement.read.items()}
    known, found = {**statement.values, **read}, []
    for condition in statement.hits:
        value = known[condition["fact"]]
        value -= known[condition["less"]] if "less" in condition else 0.0
        (limit,) = [name for name in condition if name in _LIMITS]
        found.append(bool(_LIMITS[limit](value, condition[limit])))
    return [], found, read


# --- the claims, by figure -------------------------------------------------------------------


@cache
def _content() -> dict[str, Any]:
    """The file: its texts, what there is to say of each figure, and the claims."""
    text = resources.files("paper").joinpath("claims.toml").read_text("utf-8")
    data = tomllib.loads(text)
    data["claim"] = tuple(Statement(**each) for each in data["claim"])
    data.setdefault("configuration", [])
    known = {one.name for one in data["claim"]} | {"", *_ASIDES}
    for one in data["claim"]:
        judged_by = bool(one.hits) or _rule(one) is not None
        if one.aside not in known or judged_by is bool(one.why):
            raise DataError(
                f"claims.toml: {one.name} must be an aside of those that the file has, and have "
                f"either a rule or a reason why nothing measures it"
            )
    return data


_ASIDES = {
    "slip": "slips of the text",
    "disclaimer": "claims taken back by a footnote",
    "setup": "facts of the setup",
}
_REPEATS = "repetitions of another claim"


def statements() -> tuple[Statement, ...]:
    """The claims, in the order of the file."""
    found: tuple[Statement, ...] = _content()["claim"]
    return found


def count_standings(verdicts: Verdicts, kind: str | None = None) -> dict[str, int]:
    """Count the distinct claims (of a kind) by standing: those that some have, in their order."""
    counts = Counter(
        verdict.standing
        for one, verdict in verdicts.items()
        if not one.aside and kind in (None, one.kind)
    )
    return {standing.value: counts[standing] for standing in Standing if counts[standing]}


_KINDS = {
    "headline": "Of the {} claims of title, abstract and captions",
    "": "Of {} further claims",
    "textbook": "Of {} textbook facts and definitions",
}


def summary_text(verdicts: Verdicts) -> str:
    """The counts as sentences: headline claims first, textbook facts apart; and what is beside.

    >>> verdicts = dict.fromkeys(statements(), ClaimVerdict(Standing.HOLDS, ""))
    >>> summary_text(verdicts).partition(". ")[0]
    'Of the 17 claims of title, abstract and captions: 17 hold'
    """
    words = {"holds": "hold", "holds in part": "hold in part", "fails": "fail"}
    sentences = []
    for kind, text in _KINDS.items():
        counts = count_standings(verdicts, kind)
        parts = [f"{count} {words.get(name, f'are {name}')}" for name, count in counts.items()]
        sentences.append(f"{text.format(sum(counts.values()))}: {', '.join(parts)}.")
    apart = Counter(_ASIDES.get(one.aside, _REPEATS) for one in verdicts if one.aside)
    kinds = [f"{kind} {apart[kind]}" for kind in (*_ASIDES.values(), _REPEATS) if apart[kind]]
    return f"{' '.join(sentences)} Counted apart: {', '.join(kinds)}."


def panels_note() -> str:
    """A note on the epsilons in the names of panels, and on how readings were chosen."""
    return str(_content()["panels"])


class _Read(dict[str, float]):
    """Numbers that are read when a text asks for them."""

    def __init__(self, facts: Facts, places: Mapping[str, str]) -> None:
        super().__init__()
        self._facts, self._places = facts, places

    def __missing__(self, name: str) -> float:
        return self._facts.number(*self._places[name].split(" ", 1))


def figure_row(name: str, facts: Mapping[str, Mapping[str, Fact]]) -> dict[str, str]:
    """The outcome of a figure in one row: what we find, and what is proven instead.

    A text whose numbers were not measured is "not measured".
    """
    asked, given = Facts(facts, _content()["readings"]), _content()["figure"].get(name, {})
    known, found = _Read(asked, given.get("read", {})), {}
    for column in ("letter", "proven"):
        text = given.get(column, "")
        try:
            found[column] = _format(text, (), known)
        except MissingFactError:
            found[column] = str(Standing.NOT_MEASURED)
    return found

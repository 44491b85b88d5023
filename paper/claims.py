"""Verdicts on the paper's claims, which `claims.toml` has.

A claim is judged by conditions that are written beside it, or by a function of `rules` or
`calculations`. Where the paper leaves a choice open, the reading that does best is the one that
counts.
"""

from __future__ import annotations

import operator
import re
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

from diffsketch.errors import DataError
from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit
from paper import calculations, rules
from paper.facts import (
    OURS,
    SPECS,
    Cases,
    Facts,
    Graded,
    MissingFactError,
    Panel,
    Statement,
    meaning,
    panels_in,
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

    def __str__(self) -> str:
        if not self.why:
            return str(self.standing)
        return f"{self.standing}{' ' if self.why.startswith('(') else ': '}{self.why}"


Verdicts: TypeAlias = Mapping[Statement, ClaimVerdict]
"""The verdicts on the claims, in their order."""


# --- verdicts --------------------------------------------------------------------------------

_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
_DELTA = 1e-5
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
    """Each claim with its verdict, in the order of the file.

    Some of the rules take seconds; `show` is told the share that is done. A claim whose experiment
    was not run is "not measured"; of a reduced run none is judged.

    Guarantees (`paper/tests/test_claims.py`): each rule can come out either way, and does
    as its facts do.
    """
    if reduced:
        unjudged = ClaimVerdict(Standing.NOT_JUDGED, NOTHING, _content()["reduced"])
        return dict.fromkeys(statements(), unjudged)
    asked = Facts(facts)
    found = {}
    for count, statement in enumerate(statements()):
        show(count / len(statements()))
        if statement.why:
            found[statement] = ClaimVerdict(Standing.NOT_MEASURED, NOTHING, statement.why)
            continue
        try:
            found[statement] = judge(statement, asked)
        except MissingFactError as missing:
            name = missing.experiment
            why = f"(run `python -m paper {name}`)"
            if asked.by_experiment.get(name):
                why = f"({name} has no number for it: {missing.name})"
            found[statement] = ClaimVerdict(Standing.NOT_MEASURED, NOTHING, why)
    return found


def judge(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict of a claim's conditions, or of its rule."""
    found = (_rule(statement) or _by_conditions)(statement, facts)
    if not isinstance(found, tuple):
        cases = list(found)
        found = cases, [bool(case["hit"]) for case in cases], {}
    cases, hits, fields = list(found[0]), found[1], found[2]
    if hits is not None and not hits:
        raise MissingFactError(statement.experiments[0], statement.missing)
    known = {**_MEANINGS, **statement.values, "seeds": facts}
    for case in cases:
        known |= case
    shown = "; ".join(_format(statement.case, (), {**known, **case}) for case in cases)
    known |= {"cases": shown, "hits": sum(hits or ()), "total": len(hits or ()), **fields}
    standing, why = Standing.FAILS, statement.none
    if hits is None:
        standing, why = Standing.NOT_MEASURED, statement.unmeasured
    elif all(hits):
        standing, why = Standing.HOLDS, ""
    elif any(hits):
        standing, why = Standing.IN_PART, statement.part
    return ClaimVerdict(standing, _format(statement.measured, (), known), _format(why, (), known))


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


def count_standings(verdicts: Verdicts) -> dict[str, int]:
    """Count the distinct claims by standing: those that some have, in their order."""
    counts = Counter(verdict.standing for one, verdict in verdicts.items() if not one.aside)
    return {standing.value: counts[standing] for standing in Standing if counts[standing]}


def summary_text(verdicts: Verdicts) -> str:
    """The counts as a sentence, and what is counted apart.

    >>> verdicts = dict.fromkeys(statements(), ClaimVerdict(Standing.HOLDS, ""))
    >>> summary_text(verdicts).partition(" (")[0]
    'Of 52 distinct claims of the paper: 52 hold'
    """
    words = {"holds": "hold", "holds in part": "hold in part", "fails": "fail"}
    counts = count_standings(verdicts)
    parts = [f"{count} {words.get(name, f'are {name}')}" for name, count in counts.items()]
    apart = Counter(_ASIDES.get(one.aside, _REPEATS) for one in verdicts if one.aside)
    kinds = [f"{kind} {apart[kind]}" for kind in (*_ASIDES.values(), _REPEATS) if apart[kind]]
    return (
        f"Of {sum(counts.values())} distinct claims of the paper: {', '.join(parts)} (counted "
        f"apart: {', '.join(kinds)})."
    )


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
    """The outcome of a figure in one row: to the letter, at its best, and proven.

    Of a figure of training runs it is the accuracies of its panels, else what `claims.toml` says
    with the numbers. A text whose numbers were not measured is "not measured".
    """
    asked, given = Facts(facts), _content()["figure"].get(name, {})
    known, found = _Read(asked, given.get("read", {})), {}
    for column in ("letter", "best", "proven"):
        text = given.get(column, "")
        try:
            if "against" in given and not text:
                text = _panels_text(asked, name, given["against"], column)
            found[column] = _format(text, (), known)
        except MissingFactError:
            found[column] = str(Standing.NOT_MEASURED)
    return found


def _panels_text(facts: Facts, name: str, other: str, column: str) -> str:
    """DiffSketch against another line in each panel: as it is, at its best, or proven."""
    parts = []
    for panel in panels_in(facts, name, OURS, other):
        letter = panel.find(OURS)
        if column == "letter" and letter is None:
            continue  # no panel of the paper's
        best = panel.best(OURS, other) or (OURS, other)
        if column == "proven":
            text = _proven_text(panel, best[0])
        else:
            pair = best if column == "best" else (str(letter), panel.named(other))
            compared = panel.compared(*pair)
            text = re.sub(r" ± [\d.]+", "", "{ours} against {other}".format(**compared))
        parts.append(f"{panel.name}: {text}")
    return ";\n".join(parts)


def _proven_text(panel: Panel, ours: str) -> str:
    """The most accurate of the proven lines that send about as little as ours, with its name."""
    least = 0.9 * (panel.lines[ours].number("compression") or 0.0)
    found = [
        (line.accuracy or 0.0, name)
        for name, line in panel.lines.items()
        if line.proven and (line.number("compression") or 0.0) >= least
    ]
    if not found:
        return "not run"
    accuracy, name = max(found, key=lambda each: each[0])
    return f"{percent(accuracy)} ({name})"

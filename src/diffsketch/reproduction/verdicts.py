"""The verdicts on the paper's claims, by the rules in `rules`, and tables of them."""

from __future__ import annotations

import operator
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from types import FunctionType
from typing import Any

from diffsketch.errors import DataError
from diffsketch.pages.exhibits import Exhibit, Table
from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit
from diffsketch.reproduction import rules
from diffsketch.reproduction.claims import (
    SPECS,
    Cases,
    ClaimVerdict,
    Facts,
    Graded,
    MissingFactError,
    Standing,
    Statement,
    Verdicts,
    meaning,
)
from diffsketch.reproduction.figures import COORDINATE, SECURE_SUM, Fact

RULES: dict[str, Callable[[Statement, Facts], Cases | Graded]] = {
    name.replace("_", "-"): rule
    for name, rule in vars(rules).items()
    if isinstance(rule, FunctionType) and rule.__module__ == rules.__name__ and name[0] != "_"
}
"""The rules by name: all public functions of `rules`."""

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
    """Fills in `{share:percent}`, `{ratio:times}`, `{gap:points}` and `{bound:epsilon}`."""

    def format_field(self, value: Any, format_spec: str) -> str:
        known = SPECS.get(format_spec)
        return str(super().format_field(value, format_spec)) if known is None else known(value)


_format = _Text().vformat


def judged(facts: Mapping[str, Mapping[str, Fact]]) -> dict[Statement, ClaimVerdict]:
    """Each claim with its verdict, in the order of the file.

    Some of the rules take seconds. A claim whose experiment was not run is "not measured".

    Guarantees (`tests/reproduction/test_verdicts.py`): each rule can come out either way, and does
    as its facts do.
    """
    asked = Facts(facts)
    found = {}
    for statement in statements():
        if statement.why:
            found[statement] = ClaimVerdict(Standing.NOT_MEASURED, "Nothing.", statement.why)
            continue
        try:
            found[statement] = judge(statement, asked)
        except MissingFactError as missing:
            name = missing.experiment
            why = f"(run `diffsketch reproduce {name}`)"
            if asked.by_experiment.get(name):
                why = f"({name} has no number for it: {missing.name})"
            found[statement] = ClaimVerdict(Standing.NOT_MEASURED, "Nothing.", why)
    return found


def judge(statement: Statement, facts: Facts) -> ClaimVerdict:
    """The verdict of a claim's conditions, or of its rule."""
    if statement.hits:
        found: Cases | Graded = _by_conditions(statement, facts)
    else:
        found = RULES[statement.rule or statement.name](statement, facts)
    hits: Sequence[bool] | None
    if isinstance(found, tuple):
        cases, hits, fields = list(found[0]), found[1], found[2]
    else:
        cases, fields = list(found), {}
        hits = [bool(case["hit"]) for case in cases]
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


def _by_conditions(statement: Statement, facts: Facts) -> Graded:
    """Grade a claim by the conditions that are written beside it."""

    def hits(given: Mapping[str, Any]) -> list[bool]:
        known, found = {**statement.values, **given}, []
        for condition in statement.hits:
            value = known[condition["fact"]]
            value -= known[condition["less"]] if "less" in condition else 0.0
            (limit,) = [name for name in condition if name in _LIMITS]
            found.append(bool(_LIMITS[limit](value, condition[limit])))
        return found

    if statement.each:
        every = facts.numbers(*statement.each.split(" ", 1))
        cases = [{"name": name, "value": value} for name, value in every.items()]
        return cases, [hit for case in cases for hit in hits(case)], {}
    read = {name: facts.number(*place.split(" ", 1)) for name, place in statement.read.items()}
    return [], hits(read), read


# --- the claims and their tables -------------------------------------------------------------

_COLUMNS = ("claim", "where", "verdict", "what we measured")
_TRAINED = {"cpsgd", "mnist", "shakespeare", "accuracy-compression", "correction"}


@cache
def _content() -> dict[str, Any]:
    """The file: its texts, the titles of topics, and the claims."""
    text = resources.files("diffsketch.reproduction").joinpath("claims.toml").read_text("utf-8")
    data = tomllib.loads(text)
    data["claim"] = tuple(Statement(**each) for each in data["claim"])
    for one in data["claim"]:
        has_rule = bool(one.hits) or (one.rule or one.name) in RULES
        if one.topic not in data["topics"] or has_rule is bool(one.why):
            raise DataError(
                f"claims.toml: {one.name} must have a topic of the file, and either a rule or a "
                f"reason why nothing measures it"
            )
    return data


def statements() -> tuple[Statement, ...]:
    """The claims, in the order of the file."""
    found: tuple[Statement, ...] = _content()["claim"]
    return found


def count_standings(verdicts: Verdicts) -> dict[str, int]:
    """Count the claims by standing: all four, in their order."""
    counts = Counter(verdict.standing for verdict in verdicts.values())
    return {standing.value: counts[standing] for standing in Standing}


def summary_text(verdicts: Verdicts) -> str:
    """The counts as a sentence.

    >>> verdicts = dict.fromkeys(statements(), ClaimVerdict(Standing.HOLDS, ""))
    >>> summary_text(verdicts).partition(" hold,")[0]
    'Of 65 claims of the paper: 65'
    """
    holds, part, fails, without = count_standings(verdicts).values()
    return (
        f"Of {len(verdicts)} claims of the paper: {holds} hold, {part} hold in part, {fails} "
        f"fail, and {without} are not measured."
    )


def claim_tables(verdicts: Verdicts, *, reduced: bool) -> tuple[Exhibit, ...]:
    """The few claims that the paper is about; how many stand how; and a table for each topic.

    Guarantees (`tests/reproduction/test_verdicts.py`): every claim of the file is shown once.
    """
    content = _content()
    note = content["reduced"] if reduced else ""
    named = {one.name: one for one in verdicts}
    few = [(f"“{named[name].quote}”", str(verdicts[named[name]])) for name in content["short"]]
    counts = Counter((one.topic, verdict.standing) for one, verdict in verdicts.items())
    numbers = [
        (title, *(counts[topic, standing] for standing in Standing))
        for topic, title in content["topics"].items()
    ]
    numbers.append(("All", *count_standings(verdicts).values()))
    tables = [
        Table("claims-short", "In short", (_COLUMNS[0], _COLUMNS[2]), tuple(few)),
        Table("claims", "The paper's claims", ("topic", *map(str, Standing)), tuple(numbers),
              note + content["counts"]),
    ]  # fmt: skip
    for topic, title in content["topics"].items():
        own = {one: verdict for one, verdict in verdicts.items() if one.topic == topic}
        rows = tuple(
            (f"“{one.quote}”", one.where, str(verdict), verdict.measured)
            for one, verdict in own.items()
        )
        trained = any(_TRAINED & set(one.experiments) for one in own)
        caption = note + (content["panels"] if trained else "")
        tables.append(Table(f"claims-{topic}", title, _COLUMNS, rows, caption.strip()))
    return tuple(tables)

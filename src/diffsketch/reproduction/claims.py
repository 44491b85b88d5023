"""The paper's claims, one by one, with what was measured."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Mapping
from functools import cache
from importlib import resources

from diffsketch.errors import DataError
from diffsketch.pages.exhibits import Cell, Exhibit, Table
from diffsketch.reproduction.drawings.drawn import Fact
from diffsketch.reproduction.verdicts.verdict import (
    Facts,
    MissingFactError,
    Standing,
    Statement,
    Verdict,
    Verdicts,
)

__all__ = ["in_short", "in_tables", "in_words", "judged", "statements", "summary"]

_FILE = "claims.toml"
_COLUMNS = ("claim", "where", "verdict", "what we measured")
_OF_PANELS = (
    "An epsilon in the name of a panel is the paper's: of one round, claimed; coordinate unit, "
    "replace, local trust (for cpSGD: client unit, replace, distributed trust). Points are "
    "percentage points of test accuracy; ± is the standard deviation over the seeds. The paper "
    "does not say how much noise DiffSketch appends: its accuracy is that of the better of two "
    "readings, with the noise appended that Theorem 1 needs, and with none."
)
_TRAINED = {"cpsgd", "mnist", "shakespeare", "accuracy-compression", "correction"}
_REDUCED = "These are the verdicts of a reduced run: fewer seeds and rounds, so they may change. "


def judged(facts: Mapping[str, Mapping[str, Fact]]) -> dict[Statement, Verdict]:
    """Each claim with its verdict, in the order of the file.

    Verdicts are computed by the rules of `verdicts`, each of which states its thresholds; some of
    them take seconds. A claim whose experiment was not run is "not measured".

    Guarantees (`tests/reproduction/test_verdicts.py`): each rule can come out either way, and does
    as its facts do.

    Args:
        facts: By experiment, as the drawings give them.
    """
    asked = Facts(facts)
    return {statement: _verdict(statement, asked) for statement in statements()}


def in_tables(verdicts: Verdicts, *, reduced: bool) -> tuple[Exhibit, ...]:
    """Tables of all claims: how many stand how, then one table for each topic.

    Guarantees (`tests/reproduction/test_claims.py`): every claim of the file is shown once.

    Args:
        verdicts: Of `judged`.
        reduced: Whether they are those of a reduced run.
    """
    note = _REDUCED if reduced else ""
    tables = [_counts(verdicts, note)]
    for topic, title in _content()[1].items():
        rows = tuple(
            (f"“{statement.quote}”", statement.where, str(verdict), verdict.measured)
            for statement, verdict in verdicts.items()
            if statement.topic == topic
        )
        runs = any(each.topic == topic and _TRAINED & set(each.experiments) for each in verdicts)
        caption = note + (_OF_PANELS if runs else "")
        tables.append(Table(f"claims-{topic}", title, _COLUMNS, rows, caption.strip()))
    return tuple(tables)


def summary(verdicts: Verdicts) -> dict[str, int]:
    """How many claims stand how: all four words, in their order."""
    counts = Counter(verdict.standing for verdict in verdicts.values())
    return {standing.value: counts[standing] for standing in Standing}


def in_words(verdicts: Verdicts) -> str:
    """The same as a sentence.

    >>> in_words(dict.fromkeys(statements(), Verdict(Standing.HOLDS, ""))).partition(" hold,")[0]
    'Of 65 claims of the paper: 65'
    """
    holds, part, fails, without = summary(verdicts).values()
    return (
        f"Of {len(verdicts)} claims of the paper: {holds} hold, {part} hold in part, {fails} "
        f"fail, and {without} are not measured."
    )


def in_short(verdicts: Verdicts) -> Table:
    """A table of the few claims that the paper is about."""
    named = {statement.name: statement for statement in verdicts}
    few = [named[name] for name in _content()[2]]
    rows = tuple((f"“{statement.quote}”", str(verdicts[statement])) for statement in few)
    return Table("claims-short", "In short", (_COLUMNS[0], _COLUMNS[2]), rows)


def statements() -> tuple[Statement, ...]:
    """The claims, in the order of the file."""
    return _content()[0]


@cache
def _content() -> tuple[tuple[Statement, ...], dict[str, str], tuple[str, ...]]:
    """The claims, the titles of their topics, and the names of those to begin with."""
    from diffsketch.reproduction.verdicts.registry import RULES

    text = resources.files("diffsketch.reproduction").joinpath(_FILE).read_text("utf-8")
    data = tomllib.loads(text)
    topics: dict[str, str] = data["topics"]
    found = tuple(
        Statement(**{**each, "experiments": tuple(each.get("experiments", ()))})
        for each in data["claim"]
    )
    for statement in found:
        if statement.topic not in topics or (statement.name in RULES) is bool(statement.why):
            raise DataError(
                f"{_FILE}: {statement.name} must have a topic of the file, and either a rule or a "
                f"reason why nothing measures it"
            )
    return found, topics, tuple(data["short"])


def _verdict(statement: Statement, facts: Facts) -> Verdict:
    from diffsketch.reproduction.verdicts.registry import RULES

    if statement.why:
        return Verdict(Standing.NOT_MEASURED, "Nothing.", statement.why)
    try:
        return RULES[statement.name](statement, facts)
    except MissingFactError as missing:
        name = missing.experiment
        why = f"(run `diffsketch reproduce {name}`)"
        if facts.by_experiment.get(name):
            why = f"({name} has no number for it: {missing.name})"
        return Verdict(Standing.NOT_MEASURED, "Nothing.", why)


def _counts(verdicts: Verdicts, note: str) -> Table:
    counts = Counter((each.topic, verdict.standing) for each, verdict in verdicts.items())
    rows: list[tuple[Cell, ...]] = [
        (title, *(counts[topic, standing] for standing in Standing))
        for topic, title in _content()[1].items()
    ]
    totals = [sum(counts[topic, each] for topic in _content()[1]) for each in Standing]
    rows.append(("All", *totals))
    return Table(
        "claims",
        "The paper's claims",
        ("topic", *(str(standing) for standing in Standing)),
        tuple(rows),
        f"{note}Every claim that an experiment or a calculation can speak to, and those that "
        "nothing here measures. The authors write that they know of issues in their proof; these "
        "tables say where they are.",
    )

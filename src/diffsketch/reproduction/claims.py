"""The paper's claims as `claims.toml` has them, the facts they are judged by, and verdicts.

A claim is judged by conditions that are written beside it, or by a function of `rules`. Where the
paper leaves a choice open, the reading that does best is the one that counts.
"""

from __future__ import annotations

import math
import operator
import re
import string
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module, resources
from typing import Any, TypeAlias

from diffsketch.errors import DataError, DiffSketchError
from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit, rounded_up
from diffsketch.reproduction.figures import COORDINATE, SECURE_SUM, Fact

OURS, UNCOMPRESSED = "DiffSketch", "uncompressed"
NOTHING = "Nothing."
"""Text in place of a measurement, of claims that nothing here measures."""
_CLEAR = 2.0  # standard errors


class Standing(StrEnum):
    """The verdicts on a claim."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    NOT_MEASURED = "not measured"
    NOT_JUDGED = "not judged"  # by a reduced run


@dataclass(frozen=True, eq=False)
class Statement:
    """A claim of the paper, as `claims.toml` has it."""

    name: str  # unique
    label: str  # a few words, for the scoreboard
    quote: str  # the paper's words
    where: str  # in the paper
    figure: str = ""  # the experiment that shows it; the first of `experiments` if empty
    aside: str = ""  # counted apart: "slip", "disclaimer", or the claim that it repeats
    experiments: Sequence[str] = ()  # whose facts its rule reads
    rule: str = ""  # the name of its rule; its own name if empty
    values: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""  # nothing measures it; empty if something does
    read: Mapping[str, str] = field(default_factory=dict)  # facts by name: "experiment fact"
    each: str = ""  # in place of `read`: "experiment prefix", each fact that begins so as `value`
    hits: Sequence[Mapping[str, Any]] = ()  # conditions on them, in place of a rule
    measured: str = ""
    case: str = ""  # A case in it
    part: str = ""  # why it holds only in part; `{hits}` and `{total}` count the cases
    none: str = ""  # why it fails
    unmeasured: str = ""  # why the rule finds nothing to judge it by
    missing: str = "..."  # the fact that is missing where there is no case

    @property
    def place(self) -> str:
        """The experiment that shows it; empty if none does."""
        return self.figure or "".join(self.experiments[:1])


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


class MissingFactError(DiffSketchError):
    """A rule asked for a fact that no experiment gave."""

    def __init__(self, experiment: str, name: str) -> None:
        super().__init__(f"{experiment} has no fact {name!r}")
        self.experiment, self.name = experiment, name


@dataclass(frozen=True)
class Facts:
    """Facts by experiment and name; asking for one that is missing raises a `MissingFactError`."""

    by_experiment: Mapping[str, Mapping[str, Fact]]

    def get(self, experiment: str, name: str) -> Fact:
        """A fact, None if it was measured that there is none."""
        facts = self.by_experiment.get(experiment, {})
        if name not in facts:
            raise MissingFactError(experiment, name)
        return facts[name]

    def number(self, experiment: str, name: str) -> float:
        """A fact that is a number."""
        value = self.get(experiment, name)
        if value is None or isinstance(value, str):
            raise MissingFactError(experiment, name)
        return float(value)

    def numbers(self, experiment: str, prefix: str) -> dict[str, float]:
        """All numbers whose names begin so, by the rest of their names; one at least."""
        found = {
            name.removeprefix(prefix): float(fact)
            for name, fact in self.by_experiment.get(experiment, {}).items()
            if name.startswith(prefix) and fact is not None and not isinstance(fact, str)
        }
        if not found:
            raise MissingFactError(experiment, f"{prefix}...")
        return found

    def __getitem__(self, experiment: str) -> str:
        """The number of seeds of an experiment, as a sentence: `{seeds[mnist]}` in a text."""
        count = int(self.number(experiment, "seeds"))
        return "One seed." if count == 1 else f"{count} seeds."


Case: TypeAlias = Mapping[str, Any]
Cases: TypeAlias = Iterable[Case]
"""The cases of a rule: each with whether it is a `hit`, and with fields for the texts."""
Graded: TypeAlias = tuple[Cases, Sequence[bool] | None, Mapping[str, Any]]
"""Cases, what is graded in their place (None if the claim is not measured), and further fields."""


def percent(share: float) -> str:
    """A share.

    >>> percent(0.8912), percent(0.00012), percent(1.0), percent(0.99996)
    ('89.1%', '0.012%', '100%', '99.996%')
    """
    digits = 2 if 0 < abs(share) < 0.01 else 3
    while 0 < share < 1 and float(f"{100 * share:.{digits}g}") == 100:
        digits += 1  # not all
    return f"{float(f'{100 * share:.{digits}g}'):.15g}%"


def times(ratio: float) -> str:
    """A ratio.

    >>> times(50.97), times(1234.5), times(7.8)
    ('51x', '1,234x', '7.8x')
    """
    return f"{ratio:,.0f}x" if ratio >= 10 else f"{ratio:.2g}x"


def meaning(basis: Basis, scope: Scope = COORDINATE, *, rounds: int = 1, delta: float = 0.0) -> str:
    """Say what an epsilon is worth, to stand behind one or several.

    >>> meaning(Basis.CLAIMED)
    '(claimed; coordinate unit, replace, local trust; one round)'
    """
    span = "one round" if rounds == 1 else f"{rounds:,} rounds"
    at = f"; delta = {delta:g}" if delta else ""
    return f"({basis}; {scope}; {span}{at})"


SPECS: dict[str, Callable[[float], str]] = {
    "percent": percent,
    "times": times,
    "points": lambda difference: f"{100 * difference:+.1f} points",
    "epsilon": lambda value: "no claim" if math.isinf(value) else rounded_up(value),
}


@dataclass(frozen=True)
class Gap:
    """The difference of two lines: its mean over the seeds, and the standard error of that."""

    mean: float
    error: float

    def above(self, least: float) -> bool:
        """Whether it is so much; and, for a lead, more than two standard errors above 0."""
        return self.mean >= least and (least <= 0 or self.mean > _CLEAR * self.error)

    def __str__(self) -> str:
        sure = f" (standard error {100 * self.error:.1f})" if self.error else ""
        return SPECS["points"](self.mean) + sure


@dataclass(frozen=True)
class LineFacts:
    """The facts of a variant in a panel: `spread`, `noised`, `bytes-to`, ..."""

    facts: Mapping[str, Fact]

    def number(self, what: str) -> float | None:
        """A fact, None if there is no number."""
        value = self.facts.get(what)
        return None if value is None or isinstance(value, str) else float(value)

    @property
    def accuracy(self) -> float | None:
        """The mean over the seeds at the end; None if all of them diverged."""
        return self.number("accuracy")

    def __str__(self) -> str:
        if self.accuracy is None:
            return "diverged"
        spread = self.number("spread")
        return percent(self.accuracy) + (f" ± {100 * spread:.1f}" if spread is not None else "")


@dataclass(frozen=True)
class Panel:
    """A plot of a training figure."""

    experiment: str  # the figure
    name: str  # as the settings have it, such as "50x, epsilon 0.1"
    lines: Mapping[str, LineFacts]  # by variant
    gaps: Mapping[str, Gap]  # differences between two of them, seed by seed, by `<ours> - <other>`
    seeds: int  # how many

    @property
    def epsilon(self) -> float | None:
        """The epsilon in its name."""
        match = re.search(r"epsilon (\d+(?:\.\d+)?)", self.name)
        return None if match is None else float(match[1])

    @property
    def ratio(self) -> float | None:
        """The compression in its name."""
        match = re.search(r"(\d+(?:\.\d+)?)x\b", self.name)
        return None if match is None else float(match[1])

    def gap(self, ours: str, other: str) -> Gap | None:
        """The lead of `ours`; None unless the panel has both and both finished."""
        if not {ours, other} <= set(self.lines):
            return None
        unpaired = gap_of(self.lines[ours], self.lines[other], self.seeds)
        return unpaired and self.gaps.get(f"{ours} - {other}", unpaired)

    def leads(self, upper: str, lower: str, least: float) -> bool:
        """Whether a line leads another by so much; one that diverged is below all others."""
        gap = self.gap(upper, lower)
        if gap is None:
            return self.lines[upper].accuracy is not None
        return gap.above(least)

    def best(self, ours: str, other: str) -> tuple[str, str] | None:
        """The pair with the largest lead, of all readings of the two lines; None if there is none.

        A reading is a line whose name goes on from that of the method, proven ones apart. What the
        paper does not say, such as how much noise DiffSketch appends, is so judged in its favour;
        but a reading of ours is compared with the same reading of a baseline where that was run.
        """
        pairs = []
        for name in self.lines:
            rest = name.removeprefix(ours)
            if name.startswith(ours) and "proven" not in rest and rest[:1] in ("", " ", ","):
                same = f"{other}{rest}"
                like = same in self.lines and other != UNCOMPRESSED
                pairs.append((name, same if like else other))
        pairs = [pair for pair in pairs if pair[1] in self.lines]

        def lead(pair: tuple[str, str]) -> float:
            mine, theirs = (self.lines[name].accuracy for name in pair)
            return -2.0 if mine is None else mine - (-1.0 if theirs is None else theirs)

        return max(pairs, key=lead, default=None)

    def compared(self, ours: str, other: str) -> Case:
        """A case: the two lines and their difference."""
        gap, rest = self.gap(ours, other), ours.removeprefix(OURS).strip(" ,")
        read = f" ({rest})" if ours.startswith(OURS) and rest else ""
        return {
            "experiment": self.experiment,
            "panel": self.name,
            "ours": f"{self.lines[ours]}{read}",
            "other": self.lines[other],
            "gap": "" if gap is None else f", {gap}",
        }


def gap_of(first: LineFacts, second: LineFacts, seeds: int) -> Gap | None:
    """The difference of two lines that were not paired by seed; None if one did not finish."""
    if first.accuracy is None or second.accuracy is None:
        return None
    spreads = [line.number("spread") or 0.0 for line in (first, second)]
    return Gap(first.accuracy - second.accuracy, math.hypot(*spreads) / math.sqrt(seeds))


def panels_in(facts: Facts, experiment: str, *names: str) -> list[Panel]:
    """The panels of a training figure that have all of these lines; one at least.

    Where the first of two names is DiffSketch, any of its readings will do.
    """
    seeds = int(facts.number(experiment, "seeds"))
    lines: dict[str, dict[str, dict[str, Fact]]] = {}
    gaps: dict[str, dict[str, Gap]] = {}
    given = facts.by_experiment[experiment]
    for name, value in given.items():
        what, _, place = name.partition("/")
        panel, _, variant = place.partition("/")
        if what == "paired" and value is not None:
            spread = given.get(f"paired-spread/{place}")
            error = 0.0 if spread is None else float(spread) / math.sqrt(seeds)
            gaps.setdefault(panel, {})[variant] = Gap(float(value), error)
        elif variant and f"accuracy/{place}" in given:
            lines.setdefault(panel, {}).setdefault(variant, {})[what] = value
    if not lines:
        raise MissingFactError(experiment, "accuracy/...")
    found = []
    for one, own in lines.items():
        read = {name: LineFacts(each) for name, each in own.items()}
        panel_ = Panel(experiment, one, read, gaps.get(one, {}), seeds)
        compared = len(names) == 2 and names[0] == OURS
        fits = panel_.best(*names) if compared else set(names) <= set(panel_.lines)
        found += [panel_] if fits else []
    if not found:
        raise MissingFactError(experiment, f"accuracy/.../{names[0]}")
    return found


# --- verdicts --------------------------------------------------------------------------------

_RULES = "diffsketch.reproduction.rules"  # which reads what is here
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


def judged(
    facts: Mapping[str, Mapping[str, Fact]],
    *,
    reduced: bool = False,
    show: Callable[[float], None] = lambda _: None,
) -> dict[Statement, ClaimVerdict]:
    """Each claim with its verdict, in the order of the file.

    Some of the rules take seconds; `show` is told the share that is done. A claim whose experiment
    was not run is "not measured"; of a reduced run none is judged.

    Guarantees (`tests/reproduction/test_claims.py`): each rule can come out either way, and does
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
            why = f"(run `diffsketch reproduce {name}`)"
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
    """The function of `rules` that judges a claim; None if conditions do, or nothing."""
    name = (statement.rule or statement.name).replace("-", "_")
    found = None if statement.hits else vars(import_module(_RULES)).get(name)
    return found if getattr(found, "__module__", "") == _RULES else None


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


# --- the claims, by figure -------------------------------------------------------------------


@cache
def _content() -> dict[str, Any]:
    """The file: its texts, what there is to say of each figure, and the claims."""
    text = resources.files("diffsketch.reproduction").joinpath("claims.toml").read_text("utf-8")
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


_ASIDES = {"slip": "slips of the text", "disclaimer": "disclaimers of the authors"}
_REPEATS = "sentences that repeat another claim"


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
    >>> summary_text(verdicts).partition(" the text, ")[0]
    'Of 54 distinct claims of the paper: 54 hold (counted apart: 3 slips of'
    """
    words = {"holds": "hold", "holds in part": "hold in part", "fails": "fail"}
    counts = count_standings(verdicts)
    parts = [f"{count} {words.get(name, f'are {name}')}" for name, count in counts.items()]
    apart = Counter(_ASIDES.get(one.aside, _REPEATS) for one in verdicts if one.aside)
    kinds = [f"{apart[kind]} {kind}" for kind in (*_ASIDES.values(), _REPEATS) if apart[kind]]
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
    """DiffSketch against another line in each panel: as captioned, at its best, or proven."""
    parts = []
    for panel in panels_in(facts, name, OURS, other):
        best = panel.best(OURS, other) or (OURS, other)
        pair = best if column == "best" or OURS not in panel.lines else (OURS, other)
        text = re.sub(r" ± [\d.]+", "", "{ours} against {other}".format(**panel.compared(*pair)))
        if column == "proven":
            lines = [line for one, line in panel.lines.items() if ", proven" in one]
            most = max(lines, key=lambda line: line.accuracy or 0.0, default=None)
            text = "not run" if most is None else str(most).partition(" ±")[0]
        parts.append(f"{panel.name}: {text}")
    return ";\n".join(parts)

"""The paper's claims as data, and the facts that they are judged by.

An experiment gives its facts as numbers by name. Of a training figure the names are
`WHAT/PANEL/LINE`, such as `accuracy/50x, epsilon 1/DiffSketch`; `panels_in` reads them as panels
and lines, and `Gap` is the difference of two lines. Panels and lines have their names from the
settings, and mean nothing by them: a panel's epsilon and compression are facts (`panel-epsilon`,
`panel-ratio`), as are a line's `method`, `reading` and `group`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diffsketch.errors import DiffSketchError
from diffsketch.privacy.claim import Basis, Scope, rounded_down, rounded_up
from paper.figures import COORDINATE, Fact

OURS, UNCOMPRESSED = "diffsketch", "none"
"""Methods, as `diffsketch run` names them."""
CHANCE = 0.05
"""Of a lead that is none to be taken for one, among all panels and readings that were tried."""


@dataclass(frozen=True, eq=False)
class Statement:
    """A claim of the paper, as `claims.toml` has it."""

    name: str  # unique
    label: str  # a few words, for the scoreboard
    quote: str  # the paper's words
    where: str  # in the paper
    figure: str = ""  # the experiment that shows it; the first of `experiments` if empty
    aside: str = ""  # counted apart: "slip", "disclaimer", "setup", or the claim that it repeats
    kind: str = ""  # "headline": of the abstract or a caption; "textbook": known before the paper
    experiments: Sequence[str] = ()  # whose facts its rule reads
    rule: str = ""  # the name of its rule; its own name if empty
    requires: str = ""  # what the rule asks for, in place of the rule's own words
    values: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""  # nothing measures it; empty if something does
    read: Mapping[str, str] = field(default_factory=dict)  # facts by name: "experiment fact"
    hits: Sequence[Mapping[str, Any]] = ()  # conditions on them, in place of a rule
    measured: str = ""
    case: str = ""  # one case of those in `measured`
    part: str = ""  # why it holds only in part; `{hits}` and `{total}` count the cases
    none: str = ""  # why it fails
    unmeasured: str = ""  # why the rule finds nothing to judge it by
    missing: str = "..."  # the fact that is missing where there is no case

    @property
    def place(self) -> str:
        """The experiment that shows it; empty if none does."""
        return self.figure or "".join(self.experiments[:1])


class MissingFactError(DiffSketchError):
    """A rule asked for a fact that no experiment gave."""

    def __init__(self, experiment: str, name: str) -> None:
        super().__init__(f"{experiment} has no fact {name!r}")
        self.experiment, self.name = experiment, name


@dataclass(frozen=True)
class Facts:
    """Facts by experiment and name; asking for one that is missing raises a `MissingFactError`.

    `readings` has, by experiment, the ways of running DiffSketch that count; of an experiment that
    it does not name, all do. Panels that the paper does not have count only if `beyond`.
    """

    by_experiment: Mapping[str, Mapping[str, Fact]]
    readings: Mapping[str, Sequence[str]] = field(default_factory=dict)
    beyond: bool = False

    def counts(self, experiment: str, reading: str) -> bool:
        """Whether a reading of DiffSketch counts."""
        return reading in self.readings.get(experiment, (reading,))

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
Graded: TypeAlias = tuple[Cases, Sequence[bool | None] | None, Mapping[str, Any]]
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
    "lower": rounded_down,
}


@dataclass(frozen=True)
class Gap:
    """The difference of two lines: its mean over the seeds, and the standard error of that."""

    mean: float
    error: float
    seeds: int

    def clears(self, threshold: float, *, tests: int = 1) -> bool | None:
        """Whether it is clearly above the threshold; None where that is too close to tell.

        Clearly: by a one-sided t-test of the difference to the threshold, at 5% divided by the
        number of panels and readings that are tested (Bonferroni). One seed tells nothing.
        """
        from scipy import stats

        margin = self.mean - threshold
        if self.seeds < 2:
            return None
        limit = float(stats.t.ppf(1 - CHANCE / tests, self.seeds - 1)) * self.error
        return None if abs(margin) <= limit and self.error else margin >= 0

    def __str__(self) -> str:
        sure = f" (s.e. {100 * self.error:.1f})" if self.error else ""
        return SPECS["points"](self.mean) + sure


@dataclass(frozen=True)
class LineFacts:
    """The facts of a variant in a panel: `method`, `spread`, `noised`, `bytes-to`, ..."""

    facts: Mapping[str, Fact]

    @property
    def proven(self) -> bool:
        """Whether it is no method of the paper, but one with a proof beside it."""
        return self.facts.get("group") == "proven"

    @property
    def reading(self) -> str:
        """In which way the method was run, such as "without padding"; empty for the usual one."""
        return str(self.facts.get("reading", ""))

    def reads(self, method: str) -> bool:
        """Whether it is a reading of a method of the paper."""
        return self.facts.get("method") == method and not self.proven

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
    name: str  # as the settings have it
    fields: Mapping[str, Fact]  # those of `PanelFields`
    lines: Mapping[str, LineFacts]  # by variant
    gaps: Mapping[str, Gap]  # differences between two of them, seed by seed, by `<ours> - <other>`
    seeds: int  # how many

    @property
    def epsilon(self) -> float | None:
        """The epsilon that it is about, as the paper counts it."""
        return self._number("epsilon")

    @property
    def ratio(self) -> float | None:
        """The compression that it is about, as the paper counts it."""
        return self._number("ratio")

    def _number(self, name: str) -> float | None:
        value = self.fields.get(name)
        return None if value is None else float(value)

    def find(self, method: str, reading: str = "") -> str | None:
        """The name of the line of a method; None if it has none."""
        lines = self.lines.items()
        return next((n for n, o in lines if o.reads(method) and o.reading == reading), None)

    def named(self, method: str) -> str:
        """The name of the line of a method, which is there."""
        name = self.find(method)
        if name is None:
            raise MissingFactError(self.experiment, f"method/{self.name}/{method}")
        return name

    def gap(self, ours: str, other: str) -> Gap | None:
        """The lead of `ours`; None unless the panel has both and both finished."""
        if not {ours, other} <= set(self.lines):
            return None
        unpaired = gap_of(self.lines[ours], self.lines[other], self.seeds)
        return unpaired and self.gaps.get(f"{ours} - {other}", unpaired)

    def leads(self, upper: str, lower: str, least: float, *, tests: int = 1) -> bool | None:
        """Whether a line leads another by so much, clearly; None where it is too close to tell.

        One that diverged is below all others.
        """
        gap = self.gap(upper, lower)
        if gap is None:
            return self.lines[upper].accuracy is not None
        return gap.clears(least, tests=tests)

    def readings(self, ours: str, other: str) -> list[tuple[str, str]]:
        """Each line of the method `ours` with the line of `other` to compare it with.

        That is the same reading of `other` where it was run, and else `other` itself; without
        compression, the reading that does best, whatever serves the sketch.
        """
        whole = [name for name, line in self.lines.items() if line.reads(other)]
        most = max(whole, key=lambda name: self.lines[name].accuracy or 0.0, default=None)

        def beside(reading: str) -> str | None:
            if other == UNCOMPRESSED:
                return most
            # "with the least padding, server step 1" stands beside "server step 1".
            alike = (self.find(other, each) for each in (reading, reading.partition(", ")[2], ""))
            return next((name for name in alike if name is not None), None)

        pairs = [(n, beside(line.reading)) for n, line in self.lines.items() if line.reads(ours)]
        return [(name, theirs) for name, theirs in pairs if theirs is not None]

    def lead(self, ours: str, other: str) -> float:
        """The difference of two accuracies, where a line that diverged is below all others."""
        mine, theirs = (self.lines[name].accuracy for name in (ours, other))
        return -2.0 if mine is None else mine - (-1.0 if theirs is None else theirs)

    def best(self, ours: str, other: str) -> tuple[str, str] | None:
        """The pair of readings with the largest lead; None if there is none."""
        pairs = self.readings(ours, other)
        return max(pairs, key=lambda pair: self.lead(*pair), default=None)

    def compared(self, ours: str, other: str) -> Case:
        """A case: the two lines and their difference."""
        gap, line = self.gap(ours, other), self.lines[ours]
        read = f" ({line.reading})" if line.reads(OURS) and line.reading else ""
        return {
            "experiment": self.experiment,
            "panel": self.name,
            "ours": f"{line}{read}",
            "other": self.lines[other],
            "gap": "" if gap is None else f", {gap}",
        }


def gap_of(first: LineFacts, second: LineFacts, seeds: int) -> Gap | None:
    """The difference of two lines that were not paired by seed; None if one did not finish."""
    if first.accuracy is None or second.accuracy is None:
        return None
    spreads = [line.number("spread") or 0.0 for line in (first, second)]
    used = min(int(line.number("seeds") or seeds) for line in (first, second))
    return Gap(first.accuracy - second.accuracy, math.hypot(*spreads) / math.sqrt(used), used)


def panels_in(facts: Facts, experiment: str, *methods: str) -> list[Panel]:
    """The panels of a training figure that have lines of all of these methods; one at least.

    Panels and readings of DiffSketch that do not count are left out. Where the first of two methods
    is DiffSketch, any of its readings will do.
    """
    seeds = int(facts.number(experiment, "seeds"))
    lines: dict[str, dict[str, dict[str, Fact]]] = {}
    pairs: dict[str, dict[str, Gap]] = {}
    fields: dict[str, dict[str, Fact]] = {}
    known = facts.by_experiment[experiment]
    for name, value in known.items():
        what, _, place = name.partition("/")
        panel, _, variant = place.partition("/")
        if what.startswith("panel-"):
            fields.setdefault(panel, {})[what.removeprefix("panel-")] = value
        elif what == "paired" and value is not None:
            spread, count = (known.get(f"paired-{one}/{place}") for one in ("spread", "seeds"))
            used = seeds if count is None else int(count)
            error = 0.0 if spread is None else float(spread) / math.sqrt(used)
            pairs.setdefault(panel, {})[variant] = Gap(float(value), error, used)
        elif variant and f"method/{place}" in known:
            lines.setdefault(panel, {}).setdefault(variant, {})[what] = value
    found = []
    for name, variants in lines.items():
        about = fields.get(name, {})
        if about.get("beyond") and not facts.beyond:
            continue
        read = {variant: LineFacts(each) for variant, each in variants.items()}
        kept = {
            variant: line
            for variant, line in read.items()
            if not line.reads(OURS)
            or facts.counts(experiment, str(about.get("choice") or line.reading))
        }
        panel_ = Panel(experiment, name, about, kept, pairs.get(name, {}), seeds)
        compared = len(methods) == 2 and methods[0] == OURS
        fits = panel_.best(*methods) if compared else all(map(panel_.find, methods))
        found += [panel_] if fits else []
    if not found:
        raise MissingFactError(experiment, f"accuracy/.../{(*methods, 'line')[0]}")
    return found


@dataclass(frozen=True)
class Compared:
    """Panels and readings of a compression and an epsilon: the best of them counts."""

    tried: tuple[tuple[Panel, tuple[str, str]], ...]

    @property
    def best(self) -> tuple[Panel, tuple[str, str]]:
        """The panel and the pair of lines with the largest lead."""
        return max(self.tried, key=lambda each: each[0].lead(*each[1]))


def settings_in(facts: Facts, experiments: Iterable[str], ours: str, other: str) -> list[Compared]:
    """Each compression and epsilon of an experiment, with all readings that count."""
    groups: dict[Any, list[tuple[Panel, tuple[str, str]]]] = {}
    for experiment in experiments:
        for panel in panels_in(facts, experiment, ours, other):
            about = panel.name if panel.epsilon is None else (panel.ratio, panel.epsilon)
            some = groups.setdefault((experiment, about), [])
            some += [(panel, pair) for pair in panel.readings(ours, other)]
    return [Compared(tuple(some)) for some in groups.values()]

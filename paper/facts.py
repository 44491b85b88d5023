"""The paper's claims as data, and the facts that they are judged by.

An experiment gives its facts as numbers by name. Of a training figure the names are
`WHAT/PANEL/LINE`, such as `accuracy/50x, epsilon 1/DiffSketch`; `panels_in` reads them as panels
and lines, and `Gap` is the difference of two lines. Panels and lines have their names from the
settings, and mean nothing by them: a panel's epsilon and compression are facts (`panel-epsilon`,
`panel-ratio`), as are a line's `method`, `reading` and `group`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
    """A claim of the paper, as `claims.toml` has it; the file says what each field is for."""

    name: str  # unique
    label: str  # a few words, for tables
    quote: str  # the paper's words
    where: str  # in the paper
    figure: str = ""  # the experiment that shows it; the first of `experiments` if empty
    aside: str = ""  # counted apart: "slip", "disclaimer", "setup", or the claim that it repeats
    kind: str = ""  # "headline": of the abstract or a caption; "textbook": known before the paper
    experiments: Sequence[str] = ()  # whose facts its rule reads
    why: str = ""  # nothing measures it; empty if something does
    beyond: bool = False  # about what the paper does not show: all panels and readings count
    rule: str = "rows"  # the function of `rules` that gives its cases
    requires: str = ""  # what it takes to hold, in a sentence
    values: Mapping[str, Any] = field(default_factory=dict)  # thresholds, and what the rule takes
    rows: Sequence[Mapping[str, Any]] = ({},)  # its cases, where they are written down
    read: Mapping[str, str] = field(default_factory=dict)  # facts by name: "experiment fact"
    numbers: Mapping[str, str] = field(default_factory=dict)  # calculated for each case
    holds: Sequence[str] = ()  # conditions on a case
    partly: str = ""  # a condition that makes it hold in part if some case meets it
    by: str = "case"  # what is counted: cases, or each "condition" over all cases
    least: int = 1  # how many of them make it hold in part
    any: bool = False  # whether a single one makes it hold
    measured: str = ""
    case: str = ""  # one case of those in `measured`
    part: str = ""  # why it holds only in part; `{hits}` and `{total}` count the cases
    none: str = ""  # why it fails
    missing: str = "..."  # the fact that is missing where there is no case

    @property
    def place(self) -> str:
        """The experiment that shows it; empty if none does."""
        return self.figure or "".join(self.experiments[:1])


def as_number(fact: Fact) -> float | None:
    """A fact as a number, None if it is none."""
    return None if fact is None or isinstance(fact, str) else float(fact)


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

    def number(self, experiment: str, name: str) -> float:
        """A fact that is a number."""
        number = as_number(self.by_experiment.get(experiment, {}).get(name))
        if number is None:
            raise MissingFactError(experiment, name)
        return number

    def numbers(self, experiment: str, prefix: str) -> dict[str, float]:
        """All numbers whose names begin so, by the rest of their names; one at least."""
        numbers = {
            name.removeprefix(prefix): number
            for name, fact in self.by_experiment.get(experiment, {}).items()
            if name.startswith(prefix) and (number := as_number(fact)) is not None
        }
        if not numbers:
            raise MissingFactError(experiment, f"{prefix}...")
        return numbers

    def read(self, places: Mapping[str, str]) -> dict[str, float]:
        """Numbers by name, each from its place: "experiment fact"."""
        return {name: self.number(*place.split(" ", 1)) for name, place in places.items()}


Case: TypeAlias = dict[str, Any]
"""Fields of one thing that a rule judges; `hit` is the outcome of a test, None if undecided."""


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


def meaning(basis: Basis, scope: Scope = COORDINATE, *, delta: float = 0.0) -> str:
    """Say what an epsilon of one round is worth, to stand behind one or several.

    >>> meaning(Basis.CLAIMED)
    '(claimed; coordinate unit, replace, local trust; one round)'
    """
    at = f"; delta = {delta:g}" if delta else ""
    return f"({basis}; {scope}; one round{at})"


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
    def reading(self) -> str:
        """In which way the method was run, such as "without padding"; empty for the usual one."""
        return str(self.facts.get("reading", ""))

    def reads(self, method: str) -> bool:
        """Whether it is a reading of a method of the paper, and not one with a proof beside it."""
        return self.facts.get("method") == method and self.facts.get("group") != "proven"

    def number(self, what: str) -> float | None:
        """A fact, None if there is no number."""
        return as_number(self.facts.get(what))

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
    ratio: float | None  # the compression that it is about, as the paper counts it
    epsilon: float | None  # and the epsilon
    lines: Mapping[str, LineFacts]  # by variant
    gaps: Mapping[str, Gap]  # differences between two of them, seed by seed, by `<ours> - <other>`
    seeds: int  # how many
    choice: str = ""  # the reading that all of its lines have, if it is about one

    @property
    def setting(self) -> tuple[float | None, float] | str:
        """The compression and epsilon that it is about; its name if it is about none."""
        return self.name if self.epsilon is None else (self.ratio, self.epsilon)

    def find(self, method: str, reading: str = "") -> str | None:
        """The name of the line of a method; None if it has none."""
        lines = self.lines.items()
        return next((n for n, o in lines if o.reads(method) and o.reading == reading), None)

    def gap(self, ours: str, other: str) -> Gap | None:
        """The lead of `ours`, by seed if runs share them; None unless both finished."""
        first, second = self.lines[ours], self.lines[other]
        if first.accuracy is None or second.accuracy is None:
            return None
        spreads = [line.number("spread") or 0.0 for line in (first, second)]
        seeds = min(int(line.number("seeds") or self.seeds) for line in (first, second))
        error = math.hypot(*spreads) / math.sqrt(seeds)
        unpaired = Gap(first.accuracy - second.accuracy, error, seeds)
        return self.gaps.get(f"{ours} - {other}", unpaired)

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
        if ours == UNCOMPRESSED:
            return [(whole, name) for name, whole in self.readings(other, ours)]
        whole = [name for name, line in self.lines.items() if line.reads(UNCOMPRESSED)]
        most = max(whole, key=lambda name: self.lines[name].accuracy or 0.0, default=None)
        pairs = []
        for name, line in self.lines.items():
            if not line.reads(ours):
                continue
            # "with the least padding, server step 1" stands beside "server step 1".
            alike = (line.reading, line.reading.partition(", ")[2], "")
            beside = [each for reading in alike if (each := self.find(other, reading))]
            if other == UNCOMPRESSED:
                beside = [most] if most else []
            pairs += [(name, each) for each in beside if each != name][:1]
        return pairs

    def lead(self, ours: str, other: str) -> float:
        """The difference of two accuracies, where a line that diverged is below all others."""
        mine, theirs = (self.lines[name].accuracy for name in (ours, other))
        return -2.0 if mine is None else mine - (-1.0 if theirs is None else theirs)


def panels_in(facts: Facts, experiment: str) -> list[Panel]:
    """The panels of a training figure, and their lines, of those that count."""
    seeds, known = int(facts.number(experiment, "seeds")), facts.by_experiment[experiment]
    lines: dict[str, dict[str, dict[str, Fact]]] = {}
    gaps: dict[str, dict[str, Gap]] = {}
    fields: dict[str, dict[str, Fact]] = {}
    for name, value in known.items():
        what, _, place = name.partition("/")
        panel, _, variant = place.partition("/")
        if what.startswith("panel-"):
            fields.setdefault(panel, {})[what.removeprefix("panel-")] = value
        elif what == "paired" and value is not None:
            spread, count = (as_number(known.get(f"paired-{each}/{place}"))
                             for each in ("spread", "seeds"))  # fmt: skip
            used = int(count or seeds)
            gap = Gap(float(value), (spread or 0.0) / math.sqrt(used), used)
            gaps.setdefault(panel, {})[variant] = gap
        elif variant and f"method/{place}" in known:
            lines.setdefault(panel, {}).setdefault(variant, {})[what] = value
    panels = []
    for name, variants in lines.items():
        about, counted = fields.get(name, {}), dict[str, LineFacts]()
        if about.get("beyond") and not facts.beyond:
            continue
        for variant, each in variants.items():
            line = LineFacts(each)
            reading = str(about.get("choice") or line.reading)
            if not line.reads(OURS) or facts.counts(experiment, reading):
                counted[variant] = line
        ratio, epsilon = (as_number(about.get(what)) for what in ("ratio", "epsilon"))
        choice = str(about.get("choice") or "")
        differences = gaps.get(name, {})
        panels.append(Panel(experiment, name, ratio, epsilon, counted, differences, seeds, choice))
    return panels

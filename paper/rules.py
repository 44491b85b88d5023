"""Rules: what there is to judge a claim by, as cases.

A claim of `claims.toml` names its rule, a function of the claim and the facts. Each of its cases
has fields by name, which the claim's conditions and texts use. Of a test the outcome is a field as
well, `hit`: None is too close to tell. `tests` is how many share the 5%, `seeds` how many seeds
they had, and `lacking` the experiments that were not run.

An experiment gives its facts as numbers by name. Of a training figure the names are
`WHAT/PANEL/LINE`, such as `accuracy/50x, epsilon 1/DiffSketch`; `panels_in` reads them as panels
and lines, and `Gap` is the difference of two lines. Panels and lines have their names from the
settings, and mean nothing by them: a panel's epsilon and compression are facts (`panel-epsilon`,
`panel-ratio`), as are a line's `method`, `reading` and `group`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from diffsketch.errors import DiffSketchError
from diffsketch.privacy.claim import Basis, Scope, rounded_down, rounded_up
from paper.calculations import FORMULAS
from paper.figures import AllFacts, Fact
from paper.methods import COORDINATE

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

    by_experiment: AllFacts
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
    "bytes": lambda value: "never" if math.isinf(value) else f"{value:,.0f}",
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

    @property
    def how(self) -> str:
        """The reading, and whether most messages get Laplace noise, as the baseline's do."""
        noised = self.number("noised") or 0.0
        share = f"{percent(noised)} with Laplace noise" if noised > 0.5 else ""
        return "; ".join(filter(None, (self.reading, share)))

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
    seeds = int(facts.number(experiment, "seeds"))
    # By panel, and by line or pair of lines; what a panel is about has neither.
    by_panel: dict[str, dict[str, dict[str, Fact]]] = {}
    for name, value in facts.by_experiment[experiment].items():
        what, _, place = name.partition("/")
        panel, _, variant = place.partition("/")
        by_panel.setdefault(panel, {}).setdefault(variant, {})[what] = value
    panels = []
    for name, variants in by_panel.items():
        about = variants.get("", {})
        lines = {key: LineFacts(each) for key, each in variants.items() if "method" in each}
        if not lines or (about.get("panel-beyond") and not facts.beyond):
            continue
        ratio, epsilon = (as_number(about.get(what)) for what in ("panel-ratio", "panel-epsilon"))
        choice = str(about.get("panel-choice") or "")
        counted = {
            key: line
            for key, line in lines.items()
            if not line.reads(OURS) or facts.counts(experiment, choice or line.reading)
        }
        gaps = {}
        for pair, each in variants.items():
            mean, spread, count = (as_number(each.get(f"paired{end}"))
                                   for end in ("", "-spread", "-seeds"))  # fmt: skip
            if mean is not None:
                used = int(count or seeds)
                gaps[pair] = Gap(mean, (spread or 0.0) / math.sqrt(used), used)
        panels.append(Panel(experiment, name, ratio, epsilon, counted, gaps, seeds, choice))
    return panels


# --- rules -----------------------------------------------------------------------------------

Pair: TypeAlias = tuple[Panel, tuple[str, str]]
"""Two lines of a panel that are compared."""


def rows(claim: Statement, facts: Facts) -> Iterator[Case]:
    """The cases that the claim has itself, with the facts that each of them reads."""
    for row in claim.rows:
        yield {**row, **facts.read(row.get("read", {}))}


def series(claim: Statement, _: Facts) -> Iterator[Case]:
    """Formulas over one of their arguments: where they begin and end, and how they move.

    A value without a claim of privacy is infinite, and larger than all others.
    """
    for row in claim.rows:
        formula, over = FORMULAS[row["formula"]], row["over"]
        values = [formula(**{**row["with"], over: value}) for value in row["at"]]
        steps = list(itertools.pairwise(values))
        finite = sum(map(math.isfinite, values)) >= 2
        rises = finite and all(a < b or math.isinf(b) for a, b in steps)
        falls = finite and all(b < a or math.isinf(a) for a, b in steps)
        shown = [f"{SPECS['epsilon'](value)} at {row.get('symbol', over)} = {at:,}"
                 for at, value in zip(row["at"], values, strict=True)]  # fmt: skip
        yield {
            "moves": "rises" if rises else "falls" if falls else "moves both ways",
            "first": values[0],
            "last": values[-1],
            "by": ", ".join(shown),
        }


# --- audits ----------------------------------------------------------------------------------


def audits(claim: Statement, facts: Facts) -> Iterator[Case]:
    """The audits whose names begin and end as asked, but for what is proven.

    Those with a claim, or with `unclaimed` all: the claim is infinite then. `best` is what the best
    attack reaches as calculated, without trials.
    """
    measured, end = facts.by_experiment.get("audit", {}), claim.values.get("end", "")
    bounds = facts.numbers("audit", "lower/")
    asked = [name for kind in claim.values["kinds"] for name in bounds
             if name.startswith(kind) and name.endswith(end)]  # fmt: skip
    for name in asked:
        stated, best = (as_number(measured.get(f"{what}/{name}")) for what in ("claimed", "limit"))
        unclaimed = stated is None and not claim.values.get("unclaimed")
        if unclaimed or measured[f"basis/{name}"] == Basis.PROVEN:
            continue
        claimed, best = math.inf if stated is None else stated, best or 0.0
        text = f"claimed {rounded_up(claimed)}" if stated is not None else "no claim"
        attack = f" (the best attack reaches {rounded_down(best)})" if best else ""
        shown = f"{name}: {text}, measured >= {rounded_down(bounds[name])}{attack}"
        yield {
            "audit": shown,
            "name": name,
            "lower": bounds[name],
            "claimed": claimed,
            "best": best,
        }


def inversions(claim: Statement, facts: Facts) -> Iterator[Case]:
    """DiffSketch's messages at some `ratios`, and how much of their images attacks recover.

    Of the labels of a batch of ten luck finds as many as there are classes in it on average. Of
    other messages, `beside` has what is recovered at the first ratio.
    """
    similarities = facts.numbers("audit", "inversion/similarity/")
    cases, beside, luck = list[Case](), list[str](), 1 - 0.9**10
    for message, similarity in similarities.items():
        labels = facts.number("audit", f"inversion/labels/{message}")
        method, ratio = message.partition("x smaller")[0].split(", ")
        if float(ratio) not in claim.values["ratios"]:
            continue
        if method.startswith("DiffSketch"):
            case = {"ratio": float(ratio), "similarity": similarity, "labels": labels}
            cases.append({**case, "luck": luck})
        elif float(ratio) == claim.values["ratios"][0]:
            beside.append(f"{method}: {similarity:.2f}, {percent(labels)}")
    yield from ({**case, "beside": "; ".join(beside)} for case in cases)


# --- lines of the training figures -----------------------------------------------------------


def lines(claim: Statement, facts: Facts) -> Iterator[Case]:
    """Lines of some methods, each with its facts, and its time over that without compression.

    Those of some `panels` and `readings` only, if the claim has them; and with the facts that it
    `needs`.
    """
    values = claim.values
    for experiment in claim.experiments:
        for panel in panels_in(facts, experiment):
            whole = panel.find(UNCOMPRESSED)
            plain = panel.lines[whole].number("seconds") if whole else None
            for name, line in panel.lines.items():
                if (
                    not any(map(line.reads, values["methods"]))
                    or panel.name not in values.get("panels", (panel.name,))
                    or line.reading not in values.get("readings", (line.reading,))
                    or any(line.number(what) is None for what in values.get("needs", ()))
                ):
                    continue
                most = "at most " if line.facts.get("appended") == "least" else ""
                padding, taken = line.number("padding") or 0.0, line.number("seconds")
                yield {
                    "experiment": experiment, "panel": panel.name, "name": name, "line": line,
                    "accuracy": line.accuracy, "diverged": line.number("diverged") or 0.0,
                    "of": panel.seeds, "noised": line.number("noised"), "padding": padding,
                    "length": f"{most}{padding:g}",
                    "ratio": taken / plain if taken and plain else math.nan,
                }  # fmt: skip


def _most_ratio(claim: Statement) -> float:
    """The largest ratio that counts; a little more, since the paper rounds them."""
    return 1.05 * float(claim.values.get("most_ratio", math.inf))


def steps(claim: Statement, facts: Facts) -> Iterator[Case]:
    """Pairs of neighbours, by compression: an epsilon, or the bytes up until an accuracy."""
    curves: dict[str, list[tuple[float, float]]] = {}
    if claim.experiments[0] == "privacy-communication":
        means = facts.numbers("privacy-communication", f"MNIST/{claim.values['padding']}/epsilon/")
        curves[""] = [(float(name.removesuffix("x")), mean) for name, mean in means.items()]
    else:
        for panel in panels_in(facts, "accuracy-compression"):
            curves[panel.name] = [
                (ratio, line.number("bytes-to") or math.inf)
                for line in panel.lines.values()
                if (ratio := line.number("compression")) is not None
            ]
    for name, curve in curves.items():
        stated = sorted(each for each in curve if each[0] <= _most_ratio(claim))
        for (_, before), (ratio, after) in itertools.pairwise(stated):
            if math.isinf(before):  # counted by the step that led there
                continue
            yield {"panel": name, "ratio": ratio, "before": before, "after": after}


def communication(claim: Statement, facts: Facts) -> Iterator[Case]:
    """Bytes of raw Laplace noise over those of DiffSketch, up until 90% of the accuracy.

    Each with the reading that gets there with the fewest bytes, its server step among them. Where
    noise on vectors never gets there, all of its bytes count; where only DiffSketch does not, the
    ratio is 0; where neither does, the panel says nothing.
    """
    for panel in panels_in(facts, claim.experiments[0]):

        def fewest(method: str, what: str, panel: Panel = panel) -> tuple[float, str]:
            costs = [
                (cost, line.how if method == OURS else line.reading)
                for line in panel.lines.values()
                if line.reads(method) and (cost := line.number(what)) is not None
            ]
            return min(costs, default=(math.inf, ""))

        (mine, how), (theirs, step) = fewest(OURS, "bytes-to"), fewest("laplace", "bytes-to")
        total, _ = fewest("laplace", "bytes")
        run = any(line.reads(OURS) for line in panel.lines.values()) and total < math.inf
        if not run or mine == theirs == math.inf:
            continue
        reached = theirs < math.inf
        ratio = (theirs if reached else total) / mine
        notes = [each for each in (how, step and f"raw gradients: {step}") if each]
        shown = f"{'' if reached else 'over '}{times(ratio)}"
        shown += f" ({'; '.join(notes)})" if notes else ""
        yield {"panel": panel.name, "ratio": ratio,
               "shown": shown if mine < math.inf else "DiffSketch does not get there"}  # fmt: skip


# --- tests of leads --------------------------------------------------------------------------


def _settings(claim: Statement, facts: Facts) -> tuple[list[list[Pair]], list[str]]:
    """All pairs of lines to compare, those of a setting together; and experiments without any.

    Of some `panels` or some `lines` only, if the claim has them. A setting is a compression and an
    epsilon, or a panel; or each line, if the claim has them.
    """
    values, groups = claim.values, dict[Any, list[Pair]]()
    pairs = [*values["pairs"], *(values.get("beyond_pairs", ()) if facts.beyond else ())]
    for experiment, upper, lower in pairs:
        for panel in panels_in(facts, experiment) if experiment in facts.by_experiment else ():
            if panel.name not in values.get("panels", (panel.name,)):
                continue
            for pair in panel.readings(upper, lower):
                setting: Any = panel.name if panel.epsilon is None else (panel.ratio, panel.epsilon)
                if "lines" in values:
                    named = [(panel.name, name) for name in pair]
                    setting = next((each for each in named if [*each] in values["lines"]), None)
                if setting is not None:
                    groups.setdefault((experiment, setting), []).append((panel, pair))
    if not groups:
        raise MissingFactError(pairs[0][0], f"accuracy/.../{pairs[0][1]}")
    measured = {experiment for experiment, _ in groups}
    return list(groups.values()), sorted({pair[0] for pair in pairs} - measured)


def _best(tried: Iterable[Pair]) -> Pair:
    return max(tried, key=lambda each: each[0].lead(*each[1]))


def leads(claim: Statement, facts: Facts) -> Iterator[Case]:
    """A line leads another by `least`, in each setting, with the reading that does best.

    By a one-sided t-test of the difference; all readings that were tried count in the correction.
    `pairs` has the experiments, each with the two methods.
    """
    settings, lacking = _settings(claim, facts)
    tests = sum(map(len, settings))
    for tried in settings:
        # What learns less than a constant answer leads nobody, if another reading learns more.
        floor = claim.values.get("floor", {}).get(tried[0][0].experiment, 0.0)
        learnt = [(at, two) for at, two in tried if (at.lines[two[0]].accuracy or 0.0) >= floor]
        panel, pair = _best(learnt or tried)
        hit, gap = panel.leads(*pair, claim.values["least"], tests=tests), panel.gap(*pair)
        hit = hit if learnt else False
        close = ", too close to tell" if hit is None else ""
        ours, other = (panel.lines[name] for name in pair)
        read = f" ({ours.how})" if ours.reads(OURS) and ours.how else ""
        yield {
            "hit": hit, "tests": tests, "seeds": gap and gap.seeds, "lacking": lacking,
            "mean": gap and gap.mean, "gap": f"{gap}{close}" if gap else "one diverged",
            "experiment": panel.experiment, "panel": panel.name, "name": pair[0],
            "ours": f"{ours}{read}", "other": other, "read": read,
        }  # fmt: skip


def grows(claim: Statement, facts: Facts) -> Iterator[Case]:
    """At the same compression the lead is `least` at the smaller epsilon, and more there.

    The reading is that which does best at the smaller epsilon, at both of them if the other has it.
    """
    settings, lacking = _settings(claim, facts)
    ratios: dict[tuple[str, float | None], list[list[Pair]]] = {}
    for tried in sorted(settings, key=lambda each: -(each[0][0].epsilon or 0.0)):
        panel = tried[0][0]
        ratios.setdefault((panel.experiment, panel.ratio), []).append(tried)
    neighbours = [pair for each in ratios.values() for pair in itertools.pairwise(each)]
    tests = sum(len(smaller) for _, smaller in neighbours)
    for larger, smaller in neighbours:
        after, second = _best(smaller)
        alike = [pair for pair in larger if (pair[0].choice, pair[1]) == (after.choice, second)]
        before, first = _best(alike or larger)
        was, gap = before.gap(*first), after.gap(*second)
        hit = after.leads(*second, claim.values["least"], tests=tests)
        hit = hit and bool(gap and was and gap.mean > was.mean)  # None: too close to tell
        close = ", too close to tell" if hit is None else ""
        yield {"hit": hit, "tests": tests, "seeds": gap and gap.seeds, "lacking": lacking,
               "smaller": after.name, "second": f"{gap or 'diverged'}{close}",
               "larger": before.name, "first": was or "diverged"}  # fmt: skip


# --- how many messages need noise ------------------------------------------------------------


def messages(claim: Statement, facts: Facts) -> Iterator[Case]:
    """A share of MNIST's messages by ratio, with the reading that serves it best.

    The paper appends noise, and does not say how much; and alpha may be the percentile of sizes or
    of signed values. `bare` is the best share with nothing appended, `further` what there is at
    larger ratios than count.
    """
    choose = {"most": max, "least": min}[claim.values["best"]]
    shares: dict[str, dict[str, float]] = {}
    for name, value in facts.numbers("privacy-communication", "MNIST").items():
        signed, padding, kind, ratio = name.split("/")  # of `MNIST` or `MNIST, signed alpha`
        if kind == claim.values["what"] and facts.counts("privacy-communication", padding + signed):
            shares.setdefault(ratio, {})[f"{padding} appended{signed}"] = value
    cases, further = list[Case](), list[str]()
    for ratio, by_reading in shares.items():
        bare = {how: share for how, share in by_reading.items() if how.startswith("none")}
        read = bare if claim.values.get("bare") else by_reading
        if read:
            how = choose(read, key=read.__getitem__)
            if float(ratio.removesuffix("x")) <= _most_ratio(claim):
                cases.append({"ratio": ratio, "how": how, "share": read[how],
                              "bare": min(bare.values(), default=math.inf)})  # fmt: skip
            else:
                further.append(f"{percent(read[how])} at {ratio}")
    yield from ({**case, "further": ", ".join(further)} for case in cases)


def within(claim: Statement, facts: Facts) -> Iterator[Case]:
    """Shares of the messages of 7 x 15 that are within a requirement, by what was appended."""
    wanted, shares = f"{claim.values['requirement']:g}", dict[str, float]()
    for name, share in facts.numbers("local-epsilon", "needs-noise/7 x 15").items():
        training, _, padding, requirement = name.split("/")
        signed = ", signed alpha" if "signed" in training else ""
        if requirement == wanted and facts.counts("local-epsilon", f"{padding}{signed}"):
            how = f"{padding} appended{signed}"
            shares[how] = max(shares.get(how, 0.0), 1 - share)
    for how, share in shares.items():
        yield {"how": how, "share": share}


RULES: dict[str, Callable[[Statement, Facts], Iterator[Case]]] = {
    function.__name__: function
    for function in (
        rows, series, audits, inversions, lines, steps, communication, leads, grows, messages,
        within,
    )
}  # fmt: skip

"""Rules: what there is to judge a claim by, as cases.

A claim of `claims.toml` names its rule, a function of the claim and the facts. Each of its cases
has fields by name, which the claim's conditions and texts use. Of a test the outcome is a field as
well, `hit`: None is too close to tell. `tests` is how many share the 5%, `seeds` how many seeds
they had, and `lacking` the experiments that were not run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from diffsketch.privacy.claim import Basis, rounded_down, rounded_up
from paper.calculations import FORMULAS
from paper.facts import (
    OURS,
    SPECS,
    UNCOMPRESSED,
    Case,
    Facts,
    MissingFactError,
    Panel,
    Statement,
    as_number,
    panels_in,
    times,
)

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


def inversions(_: Statement, facts: Facts) -> Iterator[Case]:
    """Kinds of messages, DiffSketch's first, with how much of their images attacks recover.

    Of the labels of a batch of ten luck finds as many as there are classes in it on average.
    """
    similarities = facts.numbers("audit", "inversion/similarity/")
    for message in sorted(similarities, key=lambda name: "DiffSketch" not in name):
        labels = facts.number("audit", f"inversion/labels/{message}")
        yield {"message": message, "similarity": similarities[message], "labels": labels,
               "luck": 1 - 0.9**10}  # fmt: skip


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
        for (_, before), (ratio, after) in itertools.pairwise(sorted(curve)):
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
                (cost, line.reading)
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
                setting: Any = panel.setting
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
        panel, pair = _best(tried)
        hit, gap = panel.leads(*pair, claim.values["least"], tests=tests), panel.gap(*pair)
        close = ", too close to tell" if hit is None else ""
        ours, other = (panel.lines[name] for name in pair)
        read = f" ({ours.reading})" if ours.reads(OURS) and ours.reading else ""
        yield {
            "hit": hit, "tests": tests, "seeds": gap and gap.seeds, "lacking": lacking,
            "mean": gap and gap.mean, "gap": f"{gap}{close}" if gap else "one diverged",
            "experiment": panel.experiment, "panel": panel.name, "name": pair[0],
            "ours": f"{ours}{read}", "other": other,
        }  # fmt: skip


def _reading(pair: Pair) -> tuple[str, tuple[str, str]]:
    panel, names = pair
    return panel.choice, names


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
        best = _best(smaller)
        after, second = best
        alike = [pair for pair in larger if _reading(pair) == _reading(best)]
        before, first = _best(alike or larger)
        was, gap = before.gap(*first), after.gap(*second)
        hit = after.leads(*second, claim.values["least"], tests=tests)
        if hit and not (gap and was and gap.mean > was.mean):
            hit = False
        close = ", too close to tell" if hit is None else ""
        yield {"hit": hit, "tests": tests, "seeds": gap and gap.seeds, "lacking": lacking,
               "smaller": after.name, "second": f"{gap or 'diverged'}{close}",
               "larger": before.name, "first": was or "diverged"}  # fmt: skip


# --- how many messages need noise ------------------------------------------------------------


def messages(claim: Statement, facts: Facts) -> Iterator[Case]:
    """A share of MNIST's messages by ratio, with the reading that serves it best.

    The paper appends noise, and does not say how much; and alpha may be the percentile of sizes or
    of signed values. `bare` is the best share with nothing appended.
    """
    choose = {"most": max, "least": min}[claim.values["best"]]
    shares: dict[str, dict[str, float]] = {}
    for name, value in facts.numbers("privacy-communication", "MNIST").items():
        signed, padding, kind, ratio = name.split("/")  # of `MNIST` or `MNIST, signed alpha`
        if kind == claim.values["what"] and facts.counts("privacy-communication", padding + signed):
            shares.setdefault(ratio, {})[f"{padding} appended{signed}"] = value
    for ratio, by_reading in shares.items():
        bare = {how: share for how, share in by_reading.items() if how.startswith("none")}
        read = bare if claim.values.get("bare") else by_reading
        if read:
            how = choose(read, key=read.__getitem__)
            yield {"ratio": ratio, "how": how, "share": read[how],
                   "bare": min(bare.values(), default=math.inf)}  # fmt: skip


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

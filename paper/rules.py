"""Rules that judge the paper's claims by the facts of the experiments.

A claim of `claims.toml` names its rule (`rule`), or has the rule's name itself. A rule is a
function of the claim and the facts and returns one of two things:

* `Cases`: what it looked at, each case with whether it is a `hit` and with fields for the texts
  of the claim. It holds if all cases are hits, fails if none is, and holds in part otherwise. A hit
  of None is too close to tell, and is none.
* `Graded`: cases, a list of truth values that is graded in their place (all: holds; some: in part;
  none: fails; None: not measured), and further fields for the texts. A list of two is mostly a
  ladder: the weaker condition, for "in part", and the full one. `tests` among the fields is how
  many tests share the 5%, `seeds` how many seeds they had.

The first sentence of a rule's docstring is its line in the documents, filled in with the values
of the claim. `calculations` has the rules that need no facts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Basis, rounded_down, rounded_up
from paper.facts import (
    OURS,
    UNCOMPRESSED,
    Case,
    Cases,
    Compared,
    Facts,
    Graded,
    MissingFactError,
    Panel,
    Statement,
    gap_of,
    meaning,
    panels_in,
    settings_in,
    times,
)

_NOISY_SKETCH, _NOISY_VECTOR, _CPSGD, _BARE = "sketch-laplace", "laplace", "cpsgd", "sketch"
_WORTHLESS = 0.05


# --- data sets, and how gradients and model updates are distributed --------------------------


def datasets(claim: Statement, facts: Facts) -> Cases:
    """Devices and parameters must be equal, mean and deviation of the samples within 1%."""
    names = ("workers", "parameters", "mean", "stdev")
    for name, stated in claim.values["rows"].items():
        found = [facts.number("datasets", f"{name}/{what}") for what in names]
        near = all(abs(a - b) <= 0.01 * b for a, b in zip(found[2:], stated[2:], strict=True))
        hit = found[:2] == stated[:2] and near
        yield {"hit": hit, "name": name, **dict(zip(names, found, strict=True))}


def gaussian(claim: Statement, facts: Facts) -> Graded:
    """Zeros <= 1%, excess kurtosis within 1, distance <= 0.05; in part if two are so."""
    found = {name: facts.number(claim.experiments[0], name) for name in ("zeros", "kurtosis", "ks")}
    good = [found["zeros"] <= 0.01, abs(found["kurtosis"]) <= 1.0, found["ks"] <= 0.05]
    why = "in one of three respects only" if sum(good) == 1 else "far from it"
    return [], [sum(good) >= 2, all(good)], {**found, "why": why}


def similar(claim: Statement, facts: Facts) -> Cases:
    """Shapes with DiffSketch must be within 25% of those without compression, on average.

    Shapes are alpha / sigma and the Kolmogorov-Smirnov distance to a Gaussian, over all vectors
    that were looked at.
    """
    for experiment in claim.experiments:
        for name, text in (("ratio", "alpha / sigma"), ("ks", "distance to a Gaussian")):
            plain = facts.number(experiment, name)
            sketched = facts.number(experiment, f"DiffSketch/{name}")
            yield {"hit": abs(sketched - plain) <= 0.25 * plain, "experiment": experiment,
                   "what": text, "plain": plain, "sketched": sketched}  # fmt: skip


def theorem_2(_: Statement, facts: Facts) -> Graded:
    """The gap must stay below the bound, which must be within ten times of it; in part if it stays.

    What can be proven is a bound on the expected gap: that is what is judged.
    """
    names = ("bound-holds", "gap", "bound")
    share, gap, bound = (facts.number("convergence", name) for name in names)
    fields = {"share": share, "gap": gap, "bound": bound, "ratio": bound / gap}
    return [], [share >= 0.9, share >= 1 and bound <= 10 * gap], fields


# --- audits, beside what is claimed ----------------------------------------------------------


@dataclass(frozen=True)
class _Audited:
    """An audit: what is claimed (or infinite), measured, and reached by the best attack."""

    case: str
    claimed: float
    lower: float
    best: float | None

    @property
    def refuted(self) -> bool:
        """Whether a measurement, or a calculation that needs no trials, exceeds the claim."""
        return max(self.lower, self.best or 0.0) > self.claimed

    def __str__(self) -> str:
        stated = "no claim" if math.isinf(self.claimed) else f"claimed {rounded_up(self.claimed)}"
        exact = "" if self.best is None else f" (the best attack reaches {rounded_down(self.best)})"
        return f"{self.case}: {stated}, measured >= {rounded_down(self.lower)}{exact}"


def _audits(facts: Facts, *kinds: str, claims: bool = True) -> list[_Audited]:
    """The audits whose names begin so, but for what is proven; those with a claim, or all."""
    found = []
    for name, lower in facts.numbers("audit", "lower/").items():
        if name.startswith(kinds) and facts.get("audit", f"basis/{name}") != Basis.PROVEN:
            claimed = facts.get("audit", f"claimed/{name}")
            best = facts.by_experiment["audit"].get(f"limit/{name}")
            if claimed is not None or not claims:
                stated = math.inf if claimed is None else float(claimed)
                found.append(_Audited(name, stated, lower, None if best is None else float(best)))
    if not found:
        raise MissingFactError("audit", f"lower/{kinds[0]}...")
    return found


def _audit_cases(found: Iterable[_Audited]) -> list[Case]:
    return [{"hit": not each.refuted, "case": each} for each in found]


def proof_issues(_: Statement, facts: Facts) -> Graded:
    """An attack must exceed what Theorem 1 claims, in one case at least."""
    found = _audits(facts, "bare-known", "bare-unknown", "padded")
    refuted = [each for each in found if each.refuted]
    counts = {"refuted": len(refuted), "audits": len(found)}
    return _audit_cases(refuted or found), [bool(refuted)], counts


def theorem_1(_: Statement, facts: Facts) -> Graded:
    """No attack may exceed the claim.

    In part if none does, and a proven bound is below the claim at every size, while the hashes are
    secret and the other coordinates unknown.
    """
    claims = facts.numbers("audit", "secret/claimed/")
    bounds = facts.numbers("audit", "secret/bound/")
    cases = [
        {"size": size, "stated": stated, "bound": bounds[size]}
        for size, stated in claims.items()
        if size in bounds
    ]
    secret = _audits(facts, "bare-secret")
    stands = bool(facts.get("audit", "secret/holds")) and not any(one.refuted for one in secret)
    others = _audits(facts, "bare-unknown", "bare-known", "padded")
    refuted = [each for each in others if each.refuted]
    public = [str(each) for each in others if each.case.startswith("bare-unknown")]
    fields = {"refuted": len(refuted), "others": len(others), "audit": "; ".join(map(str, secret)),
              "public": "; ".join(public)}  # fmt: skip
    return cases, [stands, stands and not refuted], fields


def local_model(_: Statement, facts: Facts) -> Cases:
    """For whole clients, the unit of local privacy, no attack may show more than 1."""
    for each in _audits(facts, "padded", "Laplace", claims=False):
        if each.case.endswith(", client"):
            yield {"hit": each.lower <= 1, "case": each.case, "lower": each.lower}


def same_privacy(_: Statement, facts: Facts) -> Cases:
    """No attack may exceed what the paper claims for its Laplace noise; in part if some do."""
    return _audit_cases(_audits(facts, "Laplace"))


def inputs_hidden(_: Statement, facts: Facts) -> Cases:
    """A message must give similarities below 0.2, and labels at most 10 points above luck.

    Messages are gradients of one image, and of the paper's batch of ten. Luck finds one label in
    ten, and of the labels of a batch as many as there are classes in it on average.
    """
    found = facts.numbers("audit", "inversion")  # `inversion/...` and `inversion-batch/...`
    for name, value in sorted(found.items(), key=lambda each: "DiffSketch" not in each[0]):
        if name.startswith(("/similarity/", "-batch/similarity/")):
            labels = found[name.replace("similarity", "labels")]
            luck = 1 - 0.9**10 if name.startswith("-batch") else 0.1
            yield {"hit": value < 0.2 and labels < luck + 0.1, "similarity": value,
                   "message": name.partition("/similarity/")[2], "labels": labels,
                   "luck": luck}  # fmt: skip


def every_round(claim: Statement, facts: Facts) -> Graded:
    """No attack may exceed what is claimed of one round, for the paper's Laplace noise.

    Beside it, how the same noise adds up over a run, were its claim proven.
    """
    values, cases = claim.values, list(same_privacy(claim, facts))
    # A coordinate moves one cell in each row, by as much in each, and their noise is independent.
    cell = events.laplace(values["rows"] / values["per_round"])
    event = events.repeated(cell, values["rows"] * values["rounds"])
    whole = events.epsilon_for(event, values["delta"])
    run = meaning(Basis.PROVEN, rounds=values["rounds"], delta=values["delta"])
    return cases, [bool(case["hit"]) for case in cases], {"whole": whole, "run": run}


# --- accuracy: Figures 2 to 5 ----------------------------------------------------------------

_NAMES = {
    OURS: "DiffSketch", UNCOMPRESSED: "no compression", _CPSGD: "cpSGD",
    _NOISY_SKETCH: "Laplace on sketches", _NOISY_VECTOR: "Laplace on raw gradients",
    _BARE: "the sketch",
}  # fmt: skip


def _pairs_of(claim: Statement, facts: Facts) -> list[tuple[str, str, str]]:
    """Experiments with the two methods that are compared; further ones beyond the paper."""
    return [*claim.values["pairs"], *(claim.values.get("beyond_pairs", ()) if facts.beyond else ())]


def _wanted(claim: Statement, some: Sequence[Compared]) -> list[Compared]:
    """Settings of the claim's epsilons, and from its least to its largest compression."""
    low, high = claim.values.get("ratios", (0.0, math.inf))
    epsilons = claim.values.get("epsilons")
    found = []
    for each in some:
        panel = each.tried[0][0]
        known = epsilons is None or panel.epsilon in epsilons
        found += [each] if known and low <= (panel.ratio or 0.0) <= high else []
    return found


def leads(claim: Statement, facts: Facts) -> Graded:
    """In {each} panel {upper} must lead {lower} by {least:points}.

    Of the readings of a panel the best counts, and all of them count in the correction. `pairs` has
    the experiments, each with the two methods.
    """
    values, per_pair, lacking = claim.values, list[Compared](), list[str]()
    for experiment, upper, lower in _pairs_of(claim, facts):
        try:
            per_pair += _wanted(claim, settings_in(facts, [experiment], upper, lower))
        except MissingFactError:
            lacking.append(experiment)
    if not per_pair:
        raise MissingFactError(claim.values["pairs"][0][0], "accuracy/...")
    tests = sum(len(each.tried) for each in per_pair)
    cases, hits, used = [], [], []
    for each in per_pair:
        panel, pair = each.best
        hits.append(panel.leads(*pair, values["least"], tests=tests))
        compared, gap = panel.compared(*pair), panel.gap(*pair)
        used += [gap.seeds] if gap else []
        close = ", too close to tell" if hits[-1] is None else ""
        shown = f"{compared['gap']}{close}" if gap else ", one diverged"
        cases.append({**compared, "gap": shown, "mean": gap and gap.mean})
    means = sorted(case["mean"] for case in cases if case["mean"] is not None)
    fields = {
        "tests": tests, "seeds": min(used, default=0), "panels": len(cases),
        "lacking": lacking,
        "largest": max(means, default=0.0), "least_gap": min(means, default=0.0),
        "ranges": _ranges(facts) if values["pairs"][0][0] == "cpsgd" else "",
    }  # fmt: skip
    if values.get("any") and hits:
        hits = [True if True in hits else None if None in hits else False]
    return cases, hits, fields


def _ranges(facts: Facts) -> str:
    """The accuracies of cpSGD by its range X, where others were tried."""
    every = panels_in(replace(facts, beyond=True), "cpsgd")
    lines = [line for panel in every for line in panel.lines.values()]
    shown = [f"{each.reading} {each}" for each in lines if each.reads(_CPSGD) and each.reading]
    return f" cpSGD by its range: {'; '.join(shown)}." if shown else ""


def smaller_epsilon(claim: Statement, facts: Facts) -> Graded:
    """At the same compression {what} must be {least:points} at the smaller epsilon, and more there.

    `pairs` has the experiments, each with two methods: the lead is the first's over the second's;
    of one method alone it is what it loses from the larger epsilon to the smaller.
    """
    cases, hits, used = [], [], []
    least, pairs = claim.values["least"], list[tuple[Compared, Compared]]()
    for experiment, upper, lower in _pairs_of(claim, facts):
        groups: dict[float | None, list[Compared]] = {}
        for each in settings_in(facts, [experiment], upper, lower):
            groups.setdefault(each.tried[0][0].ratio, []).append(each)
        for some in groups.values():
            some.sort(key=lambda each: -(each.tried[0][0].epsilon or 0.0))
            pairs += itertools.pairwise(some)
    tests = sum(len(smaller.tried) for _, smaller in pairs)
    for larger, smaller in pairs:
        (before, first), (after, second) = larger.best, smaller.best
        if first[0] == first[1]:  # a method alone
            whole, less = before.lines[first[0]], after.lines[second[0]]
            gap = gap_of(whole, less, before.seeds)
            hits.append(gap.clears(least, tests=tests) if gap else less.accuracy is None)
            shown: tuple[Any, Any] = (whole, less)
        else:
            gap, other = after.gap(*second), before.gap(*first)
            grown = gap is not None and other is not None and gap.mean > other.mean
            hit = after.leads(*second, least, tests=tests)
            hits.append(hit if grown or hit is None else False)
            shown = (other or "diverged", gap or "diverged")
        used += [gap.seeds] if gap else []
        close = ", too close to tell" if hits[-1] is None else ""
        cases.append({"smaller": after.name, "second": f"{shown[1]}{close}", "larger": before.name,
                      "first": shown[0]})  # fmt: skip
    return cases, hits, {"tests": tests, "seeds": min(used, default=0)}


def communication(claim: Statement, facts: Facts) -> Cases:
    """For 90% of the uncompressed accuracy, raw Laplace noise must take {least:g} times the bytes.

    Each with the reading that gets there with the fewest bytes, its server step among them. Where
    noise on vectors never gets there, all of its bytes count; where only DiffSketch does not, the
    panel speaks against the claim; where neither does, it says nothing.
    """
    for panel in panels_in(facts, claim.experiments[0], OURS, _NOISY_VECTOR):

        def fewest(method: str, what: str, panel: Panel = panel) -> tuple[float | None, str]:
            some = [
                (cost, line.reading)
                for line in panel.lines.values()
                if line.reads(method) and (cost := line.number(what)) is not None
            ]
            return min(some, default=(None, ""))

        mine, how = fewest(OURS, "bytes-to")
        theirs, step = fewest(_NOISY_VECTOR, "bytes-to")
        total, _ = fewest(_NOISY_VECTOR, "bytes")
        if mine is None:
            if theirs is not None:
                yield {"hit": False, "panel": panel.name, "ratio": "DiffSketch does not get there"}
            continue
        ratio = (theirs or total or 0.0) / mine
        notes = [each for each in (how, step and f"raw gradients: {step}") if each]
        shown = f"{'' if theirs else 'over '}{times(ratio)}"
        shown += f" ({'; '.join(notes)})" if notes else ""
        yield {"hit": ratio >= claim.values["least"], "panel": panel.name, "ratio": shown}


def shakespeare_diverging(claim: Statement, facts: Facts) -> Graded:
    """At the smallest epsilon, half of the seeds of both baselines must diverge.

    Or what they learnt must be worse than 5%, where always the same answer is right more often.
    Smaller than those of the paper's figure, that is: where none such was run and nothing diverges,
    the claim is not measured.
    """
    found = [
        (panel.epsilon, panel, name)
        for panel in panels_in(facts, "shakespeare")
        for method in (_NOISY_SKETCH, _NOISY_VECTOR)
        if panel.epsilon is not None and (name := panel.find(method)) is not None
    ]
    smallest = min((epsilon for epsilon, _, _ in found), default=0.0)
    cases, hits = [], []
    for epsilon, panel, name in found:
        if epsilon == smallest:
            line = panel.lines[name]
            count = line.number("diverged") or 0.0
            lost = line.accuracy is None or line.accuracy < _WORTHLESS
            hits.append(lost or 2 * count >= panel.seeds)
            cases.append({"panel": panel.name, "name": name, "diverged": count, "of": panel.seeds,
                          "line": line})  # fmt: skip
    measured = any(hits) or not hits or smallest < claim.values["below"]
    return cases, hits if measured else None, {}


def correction_helps(claim: Statement, facts: Facts) -> Graded:
    """For each kind of hashes, one kind of masks must lead the sketch without by {least:points}."""
    cases, hits, used = [], [], []
    every = panels_in(facts, "correction", _BARE)
    masked = ("shared masks", "own masks")
    pairs = [
        (panel, [name for reading in masked if (name := panel.find(_BARE, reading))])
        for panel in every
    ]
    tests = sum(len(names) for _, names in pairs)
    for panel, names in pairs:
        plain, least = panel.named(_BARE), claim.values["least"]
        found = [panel.leads(name, plain, least, tests=tests) for name in names]
        hits.append(True if True in found else None if None in found else False)
        used += [gap.seeds for name in names if (gap := panel.gap(name, plain))]
        lines = [f"{name} {panel.lines[name]}" for name in (plain, *names)]
        cases.append({"panel": panel.name, "lines": ", ".join(lines)})
    return cases, hits, {"tests": tests, "seeds": min(used, default=0)}


def light_weight(_: Statement, facts: Facts) -> Graded:
    """A round, as DiffSketch is run, may take twice the time of one without compression.

    In part if it may without privacy, as the bare sketch. Times are simulated.
    """
    cases, bare, ours = list[Case](), list[float](), list[float]()
    for panel in panels_in(facts, "mnist", _BARE, UNCOMPRESSED):
        plain = panel.lines[panel.named(UNCOMPRESSED)].number("seconds")
        for name, line in panel.lines.items():
            taken = line.number("seconds")
            if taken and plain and (line.reads(OURS) or name == panel.named(_BARE)):
                (ours if line.reads(OURS) else bare).append(taken / plain)
                noise = f" and noise of {length:g} n" if (length := line.number("padding")) else ""
                cases.append({"panel": panel.name, "name": f"{name}{noise}",
                              "ratio": taken / plain})  # fmt: skip
    worst = max([*bare, *ours], default=0.0)
    fast = [max(some, default=math.inf) <= 2 for some in (bare, ours)]
    return cases, [any(fast), all(fast)] if cases else [], {"worst": worst}


def secure_computation(_: Statement, facts: Facts) -> Cases:
    """A member of a secure sum must send and receive twice the bytes of the plain message."""
    for name, value in facts.numbers("scope", "secure-sum/overhead/").items():
        agreements, numbers = (
            facts.number("scope", f"secure-sum/{what}/{name}") for what in ("agreements", "masks")
        )
        yield {"hit": value >= 2, "name": name, "bytes": value, "agreements": agreements,
               "numbers": numbers}  # fmt: skip


def _by_ratio(panel: Panel) -> list[tuple[float, str]]:
    """The names of its lines by their compression, the smallest first."""
    ratios = {name: line.number("compression") for name, line in panel.lines.items()}
    found = [(ratio, name) for name, ratio in ratios.items() if ratio is not None]
    return sorted(found, key=lambda each: each[0])


def by_compression(claim: Statement, facts: Facts) -> Graded:
    """{what} must end {at_most} {most:points} from no compression, after as many rounds.

    `ratios` from the least to the largest; `side` is "less" for what may be lost at most, and
    "more" for what is lost at least, in some panel.
    """
    low, high = claim.values["ratios"]
    some = [
        (panel, name, ratio)
        for panel in panels_in(facts, "accuracy-compression", UNCOMPRESSED)
        if panel.fields.get("task") in claim.values["tasks"]
        for ratio, name in _by_ratio(panel)
        if low <= ratio <= high and name != panel.named(UNCOMPRESSED)
    ]
    if claim.values["side"] == "more":  # the largest of each panel
        some = [max(each, key=lambda one: one[2])
                for _, each in itertools.groupby(some, key=lambda one: one[0].name)]  # fmt: skip
    cases, hits, used = [], [], []
    for panel, name, ratio in some:
        pair, least = (name, panel.named(UNCOMPRESSED)), -claim.values["most"]
        if claim.values["side"] == "more":
            hits.append(panel.leads(pair[1], pair[0], -least, tests=len(some)))
        else:
            hits.append(panel.leads(*pair, least, tests=len(some)))
        gap = panel.gap(*pair)
        used += [gap.seeds] if gap else []
        close = " (too close to tell)" if hits[-1] is None else ""
        cases.append({**panel.compared(*pair), "name": name, "ratio": ratio, "close": close})
    if claim.values["side"] == "more" and hits:
        hits = [True if True in hits else None if None in hits else False]
    return cases, hits, {"tests": len(some), "seeds": min(used, default=0)}


def faster(_: Statement, facts: Facts) -> Graded:
    """In every panel, each larger ratio must reach the same accuracy with fewer bytes."""
    cases, hits = [], []
    for panel in panels_in(facts, "accuracy-compression", UNCOMPRESSED):
        found = [(one, panel.lines[name].number("bytes-to")) for one, name in _by_ratio(panel)]
        for before, after in itertools.pairwise(cost for _, cost in found):
            hits.append(after is not None and (before is None or after < before))
        shown = [
            f"{times(ratio)} {'never' if cost is None else f'{cost / 1e6:.3g} MB'}"
            for ratio, cost in found
        ]
        cases.append({"panel": panel.name, "costs": ", ".join(shown)})
    return cases, hits, {}


# --- how much noise DiffSketch needs, and the epsilons it counts -----------------------------


def little_noise(claim: Statement, facts: Facts) -> Graded:
    """Most messages must need no Laplace noise, with appended noise no longer than the vector.

    In part if they need none in some panel, whatever is appended.
    """
    cases, few, short = [], [], []
    for experiment in claim.experiments:
        for panel in panels_in(facts, experiment):
            for line in panel.lines.values():
                share = line.number("noised")
                if share is not None and line.reads(OURS):
                    length = line.number("padding") or 0.0
                    few.append(share < 0.5)
                    short.append(share < 0.5 and length <= 1)
                    most = "at most " if line.facts.get("appended") == "least" else ""
                    cases.append({"experiment": experiment, "panel": panel.name, "share": share,
                                  "length": f"{most}{length:g}",
                                  "read": line.reading and f" ({line.reading})"})  # fmt: skip
    return cases, [any(few), all(short)] if cases else [], {}


def _at_best(facts: Facts, what: str, *, least: bool, bare: bool = False) -> list[Case]:
    """A share of MNIST's messages by ratio, with the reading that serves it best.

    The paper appends noise, and does not say how much; and alpha may be the percentile of sizes or
    of signed values. If `bare`, nothing is appended.
    """
    found: dict[str, dict[str, float]] = {}
    for name, value in facts.numbers("privacy-communication", "MNIST").items():
        read, padding, kind, ratio = name.split("/")  # of `MNIST` or `MNIST, signed alpha`
        counts = facts.counts("privacy-communication", f"{padding}{read}")
        if kind == what and counts and (padding == "none" or not bare):
            found.setdefault(ratio, {})[f"{padding} appended{read}"] = value
    choose = min if least else max
    best = {ratio: choose(shares, key=shares.__getitem__) for ratio, shares in found.items()}
    return [
        {"name": ratio, "how": best[ratio], "value": shares[best[ratio]]}
        for ratio, shares in found.items()
    ]


def free(_: Statement, facts: Facts) -> Graded:
    """Nothing appended: at every ratio, less than half of the messages may need noise."""
    cases = _at_best(facts, "noised", least=True, bare=True)
    return cases, [case["value"] < 0.5 for case in cases], {}


def most_rounds(_: Statement, facts: Facts) -> Graded:
    """At every ratio, less than half of the messages must need noise for epsilon 1.

    In part if they need no Laplace noise at some ratio, with appended noise that serves best.
    """
    cases = _at_best(facts, "noised", least=True)
    few = [case["value"] < 0.5 for case in cases]
    bare = [case["value"] < 0.5 for case in _at_best(facts, "noised", least=True, bare=True)]
    counts = {"few": sum(few), "bare": sum(bare), "ratios": len(few)}
    return cases, [any(few), bool(bare) and all(bare)] if few else [], counts


def averages(_: Statement, facts: Facts) -> Graded:
    """At every ratio, all messages must have a claim, or there is no average."""
    cases = _at_best(facts, "finite", least=False)
    return cases, [case["value"] >= 1 for case in cases], {}


def histogram(claim: Statement, facts: Facts) -> Graded:
    """Most messages must be within the requirement, with noise appended as the paper has it."""
    requirement, shares = f"{claim.values['requirement']:g}", dict[str, float]()
    for name, share in facts.numbers("local-epsilon", "needs-noise/7 x 15").items():
        training, _, padding, value = name.split("/")
        signed = ", signed alpha" if "signed" in training else ""
        if value == requirement and facts.counts("local-epsilon", f"{padding}{signed}"):
            how = f"{padding} appended{signed}"
            shares[how] = max(shares.get(how, 0.0), 1 - share)
    if not shares:
        raise MissingFactError("local-epsilon", "needs-noise/7 x 15/.../the padding")
    cases = [{"name": name, "share": share} for name, share in shares.items()]
    return cases, [any(share > 0.5 for share in shares.values())], {}


def compression_privacy(_: Statement, facts: Facts) -> Graded:
    """The mean epsilon must fall with every step to a larger ratio."""
    found = facts.numbers("privacy-communication", "epsilon/")
    ordered = sorted((float(name.removesuffix("x")), mean) for name, mean in found.items())
    hits = [after < before for (_, before), (_, after) in itertools.pairwise(ordered)]
    if not hits:
        raise MissingFactError("privacy-communication", "epsilon/<two ratios>")
    return [{"ratio": ratio, "mean": mean} for ratio, mean in ordered], hits, {}

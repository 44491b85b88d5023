"""Rules that judge the paper's claims by the facts of the experiments.

A claim of `claims.toml` names its rule (`rule`), or has the rule's name itself. A rule is a
function of the claim and the facts and returns one of two things:

* `Cases`: what it looked at, each case with whether it is a `hit` and with fields for the texts
  of the claim. It holds if all cases are hits, fails if none is, and holds in part otherwise.
* `Graded`: cases, a list of truth values that is graded in their place (all: holds; some: in part;
  none: fails; None: not measured), and further fields for the texts. A list of two is mostly a
  ladder: the weaker condition, for "in part", and the full one.

The docstring of a rule states its thresholds. `calculations` has the rules that need no facts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from diffsketch.privacy.accounting import events
from diffsketch.privacy.claim import Basis, rounded_down, rounded_up
from paper.facts import (
    OURS,
    SPECS,
    UNCOMPRESSED,
    BestReading,
    Case,
    Cases,
    Facts,
    Graded,
    MissingFactError,
    Panel,
    Statement,
    best_readings,
    gap_of,
    meaning,
    panels_in,
    times,
)

_NOISY_SKETCH, _NOISY_VECTOR, _CPSGD, _BARE = "sketch-laplace", "laplace", "cpsgd", "sketch"
_POINT, _WORTHLESS = 0.01, 0.05


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
    for name, value in found.items():
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


def _run_of(claim: Statement, facts: Facts) -> list[str]:
    """The experiments of a claim: the first, and those of the others that were run."""
    first, *others = claim.experiments
    return [first, *(one for one in others if facts.by_experiment.get(one))]


def panels(claim: Statement, facts: Facts) -> Graded:
    """In every panel (or in one, if `any`), `upper` must lead `lower` by `least`.

    Of DiffSketch the best reading of each compression and epsilon counts, over all panels with
    these. A negative `least` is what may be lost. `epsilons` and `ratios` choose panels: of those
    epsilons, and from the least to the largest compression.
    """
    values, cases, hits = claim.values, [], []
    upper, lower, least = values["upper"], values["lower"], values["least"]

    def wanted(panel: Panel) -> bool:
        low, high = values.get("ratios", (0.0, math.inf))
        known = panel.epsilon in values.get("epsilons", [panel.epsilon])
        return known and low <= (panel.ratio or 0.0) <= high

    if upper == OURS:
        for best in best_readings(facts, _run_of(claim, facts), upper, lower):
            if wanted(best.panel):
                hits.append(best.leads(least))
                cases.append(best.case)
        return cases, hits, {}
    for experiment in _run_of(claim, facts):
        for panel in panels_in(facts, experiment, upper, lower):
            if wanted(panel):
                above, below = panel.named(upper), panel.named(lower)
                hits.append(panel.leads(above, below, least))
                cases.append(panel.compared(below, above))
    return cases, [any(hits)] if values.get("any") else hits, {}


def five_to_fifty(claim: Statement, facts: Facts) -> Graded:
    """At every compression and epsilon, the lead must be 5 points, and clearly so.

    Over cpSGD, or over Laplace noise on sketches; of the readings, the best counts.
    """
    run = _run_of(claim, facts)
    found = [
        *best_readings(facts, [one for one in run if one == "cpsgd"], OURS, _CPSGD),
        *best_readings(facts, [one for one in run if one != "cpsgd"], OURS, _NOISY_SKETCH),
    ]
    hits = [best.leads(claim.values["least"]) for best in found]
    gaps = sorted(best.gap.mean for best in found if best.gap is not None)
    span = "in none of which both finished"
    if gaps:
        least, middle, most = (SPECS["points"](gaps[at]) for at in (0, len(gaps) // 2, -1))
        span = f"from {least} to {most}, the middle one {middle}"
    readings = sum(best.tried for best in found)
    return [], hits, {"panels": len(hits), "span": span, "readings": readings}


def over_cpsgd(claim: Statement, facts: Facts) -> Graded:
    """The largest difference must be 80% of the stated one; in part from 5 points on."""
    found = panels_in(facts, "cpsgd", OURS, _CPSGD)
    pairs = [pair for panel in found if (pair := panel.best(OURS, _CPSGD))]
    gaps = [panel.gap(*pair) for panel, pair in zip(found, pairs, strict=True)]
    most = max((gap.mean for gap in gaps if gap is not None), default=0.0)
    # cpSGD by the range X that coordinates are clipped to, where it was tried.
    ranges = [
        f"{line.reading} {line}"
        for panel in panels_in(facts, "cpsgd")
        for line in panel.lines.values()
        if line.reads(_CPSGD) and line.reading
    ]
    shown = f" cpSGD by its range: {'; '.join(ranges)}." if ranges else ""
    cases = [panel.compared(*pair) for panel, pair in zip(found, pairs, strict=True)]
    hits = [most >= 0.05, most >= 0.8 * claim.values["most"]]
    return cases, hits, {"largest": most, "ranges": shown}


def _pairs(found: Iterable[Panel]) -> Iterator[tuple[Panel, Panel]]:
    """Panels that differ in epsilon only: each with the next smaller one."""
    groups: dict[tuple[tuple[str, Any], ...], list[Panel]] = {}
    for panel in found:
        if panel.epsilon is not None:
            others = tuple((name, of) for name, of in panel.fields.items() if name != "epsilon")
            groups.setdefault(others, []).append(panel)
    for group in groups.values():
        yield from itertools.pairwise(sorted(group, key=lambda panel: -(panel.epsilon or 0.0)))


def cpsgd_smaller(claim: Statement, facts: Facts) -> Graded:
    """At the same bits, cpSGD must be a point worse at the smaller epsilon, and clearly so.

    The paper speaks of epsilons below its two, so only these count, where they were run. Else the
    claim is not measured, unless the accuracy falls between the two.
    """
    cases, hits = [], []
    pairs = list(_pairs(panels_in(facts, "cpsgd", _CPSGD)))
    below = [pair for pair in pairs if (pair[1].epsilon or 0.0) < claim.values["below"]]
    for larger, smaller in below or pairs:
        first, second = (panel.lines[panel.named(_CPSGD)] for panel in (larger, smaller))
        worse = gap_of(first, second, larger.seeds)
        hits.append(second.accuracy is None or (worse is not None and worse.above(_POINT)))
        cases.append({"smaller": smaller.name, "second": second, "larger": larger.name,
                      "first": first})  # fmt: skip
    measured = any(hits) or not hits or below
    return cases, hits if measured else None, {}


def mnist_smaller(claim: Statement, facts: Facts) -> Cases:
    """At the same size, the lead must be a point at the smaller epsilon and grow towards it."""
    by_ratio: dict[float | None, list[BestReading]] = {}
    for best in best_readings(facts, _run_of(claim, facts), OURS, _NOISY_SKETCH):
        by_ratio.setdefault(best.panel.ratio, []).append(best)
    for some in by_ratio.values():
        ordered = sorted(some, key=lambda best: -(best.panel.epsilon or 0.0))
        for larger, smaller in itertools.pairwise(ordered):
            before, after = larger.gap, smaller.gap
            if before is not None and after is not None:
                hit = smaller.leads(_POINT) and after.mean > before.mean
                yield {"hit": hit, "smaller": smaller.panel.name, "second": after,
                       "larger": larger.panel.name, "first": before}  # fmt: skip


def communication(claim: Statement, facts: Facts) -> Cases:
    """To reach the same accuracy, noise on vectors must need `least` times the bytes.

    The accuracy is 90% of the uncompressed run's. Where noise on vectors never reaches it, all of
    its bytes count; where only DiffSketch does not, the panel speaks against the claim; where
    neither does, it says nothing.
    """
    for panel in panels_in(facts, claim.experiments[0], OURS, _NOISY_VECTOR):
        pair = panel.best(OURS, _NOISY_VECTOR) or (OURS, _NOISY_VECTOR)
        mine, other = panel.lines[pair[0]].number("bytes-to"), panel.lines[pair[1]]
        theirs, total = other.number("bytes-to"), other.number("bytes")
        if mine is None:
            if theirs is not None:
                yield {"hit": False, "panel": panel.name, "ratio": "DiffSketch does not get there"}
            continue
        ratio = (theirs or total or 0.0) / mine
        shown = f"{'' if theirs else 'over '}{times(ratio)}"
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


def correction_helps(_: Statement, facts: Facts) -> Graded:
    """One kind of masks must be a point better than the sketch without, for each kind of hashes."""
    cases, hits = [], []
    for panel in panels_in(facts, "correction", _BARE):
        plain, masked = panel.named(_BARE), ("shared masks", "own masks")
        names = [name for reading in masked if (name := panel.find(_BARE, reading))]
        gaps = [panel.gap(name, plain) for name in names]
        hits.append(any(gap is not None and gap.above(_POINT, tried=len(masked)) for gap in gaps))
        lines = [f"{name} {panel.lines[name]}" for name in (plain, *names)]
        cases.append({"panel": panel.name, "lines": ", ".join(lines)})
    return cases, hits, {}


def federated(_: Statement, facts: Facts) -> Graded:
    """At 20x, within 2 points of no compression at epsilon 1; in part at a larger epsilon."""
    cases, near, strong = [], [], []
    for panel in panels_in(facts, "shakespeare", OURS, UNCOMPRESSED):
        if panel.epsilon is not None and panel.ratio is not None and panel.ratio >= 20:
            pair = panel.best(OURS, UNCOMPRESSED) or (OURS, UNCOMPRESSED)
            fits = panel.leads(*pair, -0.02)
            near += [f"{panel.epsilon:g}"] if fits else []
            strong += [fits] if panel.epsilon <= 1 else []
            cases.append(panel.compared(*pair))
    hits = [bool(near), bool(strong) and all(strong)] if cases else []
    return cases, hits, {"near": " and ".join(near)}


def light_weight(_: Statement, facts: Facts) -> Graded:
    """A round may take twice the (simulated) time of one without compression; in part ten times."""
    cases, ratios = [], []
    for panel in panels_in(facts, "mnist", _BARE, UNCOMPRESSED):
        plain = panel.lines[panel.named(UNCOMPRESSED)].number("seconds")
        for name in filter(None, map(panel.find, (_BARE, OURS))):
            line = panel.lines[name]
            taken = line.number("seconds")
            if taken and plain:
                ratios += [taken / plain] if line.reads(_BARE) else []
                noise = f" and noise of {length:g} n" if (length := line.number("padding")) else ""
                cases.append({"panel": panel.name, "name": f"{name}{noise}",
                              "ratio": taken / plain})  # fmt: skip
    worst = max(ratios, default=0.0)
    return cases, [worst <= 2, worst <= 10] if ratios else [], {"worst": worst}


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


def _compressed(facts: Facts) -> list[Panel]:
    """The panels of the paper's sketches, without those of sketches in few bits."""
    found = panels_in(facts, "accuracy-compression", UNCOMPRESSED)
    return [panel for panel in found if not panel.fields.get("few_bits")]


def minor(_: Statement, facts: Facts) -> Cases:
    """On MNIST, up to 55x, it must be within a point of no compression after as many rounds."""
    for panel in _compressed(facts):
        for name, line in panel.lines.items():
            ratio = line.number("compression")
            few = ratio is None or ratio > 55 or panel.fields.get("task") != "MNIST"
            whole = panel.named(UNCOMPRESSED)
            if name != whole and not few:
                hit = panel.leads(name, whole, -_POINT)
                yield {"hit": hit, "name": name, **panel.compared(name, whole)}


def faster(_: Statement, facts: Facts) -> Graded:
    """In every panel, each larger ratio must reach the same accuracy with fewer bytes."""
    cases, hits = [], []
    for panel in _compressed(facts):
        found = [(one, panel.lines[name].number("bytes-to")) for one, name in _by_ratio(panel)]
        for before, after in itertools.pairwise(cost for _, cost in found):
            hits.append(after is not None and (before is None or after < before))
        shown = [
            f"{times(ratio)} {'never' if cost is None else f'{cost / 1e6:.3g} MB'}"
            for ratio, cost in found
        ]
        cases.append({"panel": panel.name, "costs": ", ".join(shown)})
    return cases, hits, {}


def lower(_: Statement, facts: Facts) -> Graded:
    """The largest ratio of some panel must end below no compression, and clearly so."""
    cases, hits = [], []
    for panel in _compressed(facts):
        ratio, name = _by_ratio(panel)[-1]
        whole = panel.named(UNCOMPRESSED)
        gap = panel.gap(whole, name)
        hits.append(panel.leads(whole, name, 0.002))
        lost = "diverged" if gap is None else SPECS["points"](-gap.mean)
        cases.append({"panel": panel.name, "ratio": ratio, "line": panel.lines[name],
                      "lost": lost})  # fmt: skip
    return cases, [any(hits)], {}


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
        if kind == what and (padding == "none" or not bare):
            how = f"{padding} appended{read}"
            found.setdefault(ratio, {})[how] = value
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
    return cases, [any(few), all(bare)] if few else [], counts


def averages(_: Statement, facts: Facts) -> Graded:
    """At every ratio, all messages must have a claim, or there is no average."""
    cases = _at_best(facts, "finite", least=False)
    return cases, [case["value"] >= 1 for case in cases], {}


def histogram(claim: Statement, facts: Facts) -> Graded:
    """Most messages must be within the requirement, with noise appended as the paper has it."""
    requirement, shares = f"{claim.values['requirement']:g}", dict[str, float]()
    for name, share in facts.numbers("local-epsilon", "needs-noise/7 x 15").items():
        training, _, padding, value = name.split("/")
        if value == requirement:
            signed = ", signed alpha" if "signed" in training else ""
            how = f"{padding} appended{signed}"
            shares[how] = max(shares.get(how, 0.0), 1 - share)
    return (
        [{"name": name, "share": share} for name, share in shares.items()],
        [any(share > 0.5 for share in shares.values())],
        {},
    )


def compression_privacy(_: Statement, facts: Facts) -> Graded:
    """The mean epsilon must fall with every step to a larger ratio."""
    found = facts.numbers("privacy-communication", "epsilon/")
    ordered = sorted((float(name.removesuffix("x")), mean) for name, mean in found.items())
    hits = [after < before for (_, before), (_, after) in itertools.pairwise(ordered)]
    if not hits:
        raise MissingFactError("privacy-communication", "epsilon/<two ratios>")
    return [{"ratio": ratio, "mean": mean} for ratio, mean in ordered], hits, {}

"""Rules that judge the paper's claims, of the name of a claim in `claims.toml` or of its `rule`.

A rule is a function of the claim and the facts. It gives the cases that it looked at, each a `hit`
or not, with fields for the texts of the claim; or cases and what is to be graded in their place. A
claim holds if all are hits, fails if none is, and holds in part otherwise. The docstring states the
thresholds. Rules that take no facts calculate.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from diffsketch.privacy.claim import Basis, NoClaim, ProvenClaim, rounded_down, rounded_up
from diffsketch.privacy.clipping import CoordinateBound
from diffsketch.privacy.mechanisms.additive import LaplaceMechanism
from diffsketch.privacy.mechanisms.other_papers import BinomialMechanism
from diffsketch.privacy.mechanisms.padding import table_noise_like_padding
from diffsketch.privacy.theorems import ConvexProblem, lemma1_error, padding_for, theorem1, theorem2
from diffsketch.reproduction.claims import (
    OURS,
    SPECS,
    UNCOMPRESSED,
    Case,
    Cases,
    Facts,
    Graded,
    MissingFactError,
    Panel,
    Statement,
    gap_of,
    meaning,
    panels_in,
    times,
)
from diffsketch.sketch import CountSketch, SketchKey

_NOISY_SKETCH = "Laplace on sketches"
_NOISY_VECTOR = "Laplace on raw gradients"
_CPSGD = "cpSGD"
_POINT, _WORTHLESS = 0.01, 0.05
_ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
_DELTA = 1e-5
_KEY = SketchKey.from_integer(5)


# --- arithmetic: sizes, ratios, and places where the text contradicts itself -----------------


def stated_ratios(claim: Statement, _: Facts) -> Cases:
    """Each must be within 10% of parameters over cells, or of 32 over the bits of a number."""
    for *size, stated in claim.values["sizes"]:
        ratio = 32 / size[0]
        if len(size) == 2:
            ratio = CountSketch(claim.values["dim"], *size).compression
        yield {"hit": abs(ratio / stated - 1) <= 0.1, "size": size, "ratio": ratio,
               "stated": stated}  # fmt: skip


def full_bins(claim: Statement, _: Facts) -> Cases:
    """The probability that no bin of a row is empty must be 99% or more for every size."""
    for dim, cols in claim.values["sizes"]:
        chance = math.fsum(
            (-1) ** j * math.comb(cols, j) * (1 - j / cols) ** (dim - 1) for j in range(cols)
        )
        yield {"hit": chance >= 0.99, "chance": chance, "dim": dim, "cols": cols}


def _weight(filling: tuple[int, ...]) -> float:
    return math.prod(math.factorial(each) for each in filling) * math.sqrt(math.prod(filling))


def _inverses(filling: tuple[int, ...]) -> float:
    return math.fsum(1 / each for each in filling)


def lemma_2(claim: Statement, _: Facts) -> Graded:
    """Both quantities must be least at the most even filling, among all of a few sizes."""
    cases, hits = [], []
    for items, bins in claim.values["sizes"]:
        every = itertools.product(range(1, items + 1), repeat=bins)
        fillings = [filling for filling in every if sum(filling) == items]
        even = [each for each in fillings if max(each) - min(each) <= 1]
        for quantity in (_weight, _inverses):
            least = quantity(min(fillings, key=quantity))
            hits.append(all(quantity(each) <= least * (1 + 1e-12) for each in even))
        cases.append(f"{items} in {bins}")
    return [], [all(hits)], {"cases": ", ".join(cases)}


# --- formulas, computed with the library's calculators ---------------------------------------


def _claimed(dim: int, rows: int, cols: int) -> float:
    claim = theorem1(dim, rows, cols, alpha=_ALPHA, sigma=1.0)
    return float(claim.epsilon(delta=0.0, rounds=1))


def _rises(values: Iterable[float]) -> bool:
    """Whether they rise strictly, where those without a claim count as larger than all."""
    given = list(values)
    some = sum(math.isfinite(value) for value in given) >= 2
    return some and all(a < b or math.isinf(b) for a, b in itertools.pairwise(given))


def _falls(values: Iterable[float]) -> bool:
    return _rises(list(values)[::-1])


def _by(values: Mapping[int, float], name: str = "n") -> str:
    shown = SPECS["epsilon"]
    return ", ".join(f"{shown(value)} at {name} = {size:,}" for size, value in values.items())


def longer_vectors(claim: Statement, _: Facts) -> Cases:
    """The formula must move as the text says when the vector gets shorter."""
    claims = {dim: _claimed(dim, *claim.values["table"]) for dim in claim.values["dims"]}
    rises, falls = _rises(claims.values()), _falls(claims.values())
    moves = "rises" if rises else "falls" if falls else "moves both ways"
    hit = rises if claim.values["smaller_when"] == "smaller" else falls
    return [{"hit": hit, "by": _by(claims), "moves": moves}]


def vanishing(claim: Statement, _: Facts) -> Graded:
    """The formula must get below 0.01 and neighbours' tables be equal; in part if it does."""
    size, dims = claim.values["table"], claim.values["sketched"]
    claims = {dim: _claimed(dim, *size) for dim in claim.values["dims"]}
    small = list(claims.values())[-1] < 0.01 and _falls(claims.values())
    told = 0
    for dim in dims:
        sketch, seed = CountSketch(dim, *size), SketchKey.from_integer(dim).seed(0)
        first, second = torch.ones(2, dim)
        second[0] += claim.values["change"]
        told += not torch.equal(sketch.encode(first, seed), sketch.encode(second, seed))
    fields = {"by": _by(claims), "pairs": len(dims), "largest": max(dims), "told": told}
    return [], [small, small and not told], fields


def smaller_tables(claim: Statement, _: Facts) -> Cases:
    """The formula must rise with the rows and with the columns."""
    dim = claim.values["dim"]
    by_cols = {cols: _claimed(dim, 7, cols) for cols in claim.values["cols"]}
    by_rows = {rows: _claimed(dim, rows, 15) for rows in claim.values["rows"]}
    for name, found in (("k", by_cols), ("t", by_rows)):
        yield {"hit": _rises(found.values()), "by": _by(found, name)}


def longer_padding(claim: Statement, _: Facts) -> Graded:
    """Both what is claimed and what is proven must fall with the length of the noise."""
    dim, size = claim.values["dim"], claim.values["table"]
    claimed, proven, sketch = {}, {}, CountSketch(dim, *size)
    for each in claim.values["lengths"]:
        mechanism = table_noise_like_padding(sketch, _ALPHA, padding=each * dim, std=1.0)
        claimed[each] = _claimed(dim * (1 + each), *size)
        proven[each] = float(mechanism.claim.epsilon(delta=_DELTA, rounds=1))
    hits = [_falls(claimed.values()), _falls(proven.values())]
    return [], hits, {"by_claim": _by(claimed, "L"), "by_proof": _by(proven, "L")}


def less_noise(claim: Statement, _: Facts) -> Cases:
    """The variance that the appended noise adds to a cell must be below that of Laplace noise.

    With the least noise for which Theorem 1 claims the epsilon of the panel, for a Gaussian
    vector; Laplace noise has the scale `2 alpha t / epsilon`.
    """
    for dim, rows, cols, target in claim.values["panels"]:
        length = padding_for(target, dim, rows, cols, alpha=_ALPHA, sigma=1.0)
        laplace = 2 * (2 * _ALPHA * rows / target) ** 2
        ratio = math.inf if isinstance(length, NoClaim) else length / cols / laplace
        yield {"hit": ratio < 1, "rows": rows, "cols": cols, "target": target, "ratio": ratio}


def every_round(claim: Statement, _: Facts) -> Graded:
    """Laplace noise for the stated epsilon each round must still give 10 or less for a run.

    In part if it does give the stated one for a round.
    """
    values, rounds = claim.values, claim.values["rounds"]
    mechanism = LaplaceMechanism(CoordinateBound(1.0, values["rows"]), 1 / values["per_round"])
    once, whole = (
        float(mechanism.claim.epsilon(delta=delta, rounds=some))
        for delta, some in ((0.0, 1), (_DELTA, rounds))
    )
    run = meaning(Basis.PROVEN, rounds=rounds, delta=_DELTA)
    fits = once <= values["per_round"] * (1 + 1e-9)
    return [], [fits, fits and whole <= 10], {"once": once, "whole": whole, "run": run}


def weaker_unit(claim: Statement, _: Facts) -> Cases:
    """The same noise must give a whole client more than one coordinate.

    For Laplace noise, epsilon is the L1 distance of two tables over the scale. The tables of a
    vector that has the signs of the first row's hash and of its negative are farthest apart there.
    """
    rows, cols = claim.values["table"]
    sketch, seed = CountSketch(claim.values["dim"], rows, cols), SketchKey.from_integer(0).seed(0)
    first_row = torch.zeros(rows, cols)
    first_row[0] = 1.0
    vector = sketch.query(first_row, seed, combine="mean").sign()
    distance = float((sketch.encode(vector, seed) - sketch.encode(-vector, seed)).abs().sum())
    bound = distance / (2 * rows)  # the noise that gives one coordinate of size 1 an epsilon of 1
    return [{"hit": bound > 1, "bound": bound}]


def _cpsgd(levels: int, trials: int, cohort: int) -> tuple[BinomialMechanism, float]:
    """The mechanism of cpSGD on the paper's vectors, and the epsilon that is proven for it."""
    mechanism = BinomialMechanism(dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials,
                                  cohort=cohort, delta=_DELTA)  # fmt: skip
    claim = mechanism.claim
    proven = isinstance(claim, ProvenClaim)
    return mechanism, float(claim.epsilon(delta=_DELTA, rounds=1)) if proven else math.inf


def more_devices(claim: Statement, _: Facts) -> Graded:
    """The epsilon of cpSGD must fall with the devices, and be finite for those of a round."""
    values, few = claim.values, claim.values["in_a_round"]
    bounds = {
        cohort: _cpsgd(values["levels"], values["trials"], cohort)[1]
        for cohort in sorted({few, *values["cohorts"]})
    }
    falls = _falls(bounds.values())
    return [], [falls, falls and math.isfinite(bounds[few])], {"by": _by(bounds, "devices")}


def cpsgd_parameters(claim: Statement, _: Facts) -> Graded:
    """The bits must hold k and m (in part), and the theorem give the epsilon for a round."""
    cases, fits, proven = [], [], []
    for target, count, levels, trials in claim.values["rows"]:
        mechanism, value = _cpsgd(levels, trials, claim.values["cohort"])
        fits.append(mechanism.bits == count)
        proven.append(value <= target)
        reason = f"epsilon {value:.3g}"
        if isinstance(mechanism.claim, NoClaim):
            reason = mechanism.claim.reason
        cases.append({"target": target, "bits": count, "reason": reason})
    hits = [a and b for a, b in zip(fits, proven, strict=True)]
    why = f"{sum(hits)} of {len(hits)} rows"
    if all(fits) and not all(proven):
        why, hits = "the bits are right, the epsilon is not proven", [True, False]
    return cases, hits, {"fits": sum(fits), "met": sum(proven), "count": len(fits), "why": why}


def tighter_bound(claim: Statement, _: Facts) -> Cases:
    """Theorem 2's bound must fall with the columns and with the rows."""
    problem = ConvexProblem(claim.values["dim"], 1.0, 1.0, 1.0)
    for name, symbol in (("cols", "k"), ("rows", "t")):
        bound = {}
        for value in claim.values[name]:
            rows, cols = (7, value) if name == "cols" else (value, 22)
            error = lemma1_error(rows, cols, failure=0.05)
            bound[value] = theorem2(problem, 1000, error=error)
        yield {"hit": _falls(bound.values()), "by": _by(bound, symbol)}


# --- the Count Sketch itself, on vectors with fixed seeds ------------------------------------


def _gaussian(count: int, dim: int) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(dim))


def _errors(sketch: CountSketch, vector: Tensor, index: int) -> Tensor:
    """Estimate less vector, with the hashes of an index."""
    seed = _KEY.seed(index)
    return sketch.query(sketch.encode(vector, seed), seed) - vector


def linear(claim: Statement, _: Facts) -> Graded:
    """The table of a sum must be the sum of the tables: exactly, for whole numbers."""
    dim = claim.values["dim"]
    sketch, vectors = CountSketch(dim, *claim.values["table"]), _gaussian(2, dim).mul(100).round()
    hits = [
        torch.equal(sketch.encode(vectors.sum(0), seed), sketch.encode(vectors, seed).sum(0))
        for seed in map(_KEY.seed, range(20))
    ]
    return [], hits, {}


def lemma_1(claim: Statement, _: Facts) -> Cases:
    """The share of coordinates that miss the bound must be at most the stated failure."""
    size, dim, failure = (claim.values[key] for key in ("table", "dim", "failure"))
    error, sketch = lemma1_error(*size, failure=failure), CountSketch(dim, *size)
    dense = _gaussian(1, dim)[0]
    few = dense * (torch.arange(dim) % 500 == 0)
    for name, vector in (("Gaussian", dense), ("a few large", few)):
        missed = 0.0
        for index in range(20):
            wrong = _errors(sketch, vector, index).abs() > error * vector.norm()
            missed += float(wrong.double().mean()) / 20
        yield {"hit": missed <= failure, "missed": missed, "vector": name, "error": error}


def unbiased(claim: Statement, _: Facts) -> Cases:
    """Over the seeds, no coordinate's mean error may be over five standard errors.

    For 60 coordinates in two tables that happens by chance with a probability below 1e-4.
    """
    dim, count = 60, claim.values["trials"]
    vector = _gaussian(1, dim)[0]
    for rows in claim.values["rows"]:
        sketch = CountSketch(dim, rows, 8, "pairwise")
        errors = torch.stack([_errors(sketch, vector, index) for index in range(count)])
        standard = errors.std(0) / math.sqrt(count)
        worst = float((errors.mean(0) / standard).abs().max())
        yield {"hit": worst < 5, "worst": worst, "rows": rows, "dim": dim}


def recovered(claim: Statement, _: Facts) -> Graded:
    """The relative L2 error must be at most 50%; in part up to 100%, where zero is nearer."""
    cases = []
    for dim, rows, cols in claim.values["tables"]:
        vector = _gaussian(1, dim)[0]
        error = _errors(CountSketch(dim, rows, cols), vector, 0).norm() / vector.norm()
        cases.append({"error": float(error), "rows": rows, "cols": cols})
    worst = max(case["error"] for case in cases)
    return cases, [worst <= 0.5, worst <= 1], {}


def bounded_bins(claim: Statement, _: Facts) -> Cases:
    """At most 1% of the cells may be beyond 2 alpha, for vectors as Theorem 1 assumes them."""
    for dim, rows, cols in claim.values["tables"]:
        table = CountSketch(dim, rows, cols).encode(_gaussian(1, dim)[0], _KEY.seed(0))
        share = float((table.abs() > 2 * _ALPHA).double().mean())
        yield {"hit": share <= 0.01, "share": share, "rows": rows, "cols": cols, "dim": dim}


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
    """From the first to the last vector, alpha / sigma and kurtosis may change by 25% at most."""
    for experiment in claim.experiments:
        for name, words in (("ratio", "alpha / sigma"), ("kurtosis", "excess kurtosis")):
            first, last = (facts.number(experiment, f"{name}/{end}") for end in ("first", "last"))
            yield {"hit": abs(last - first) <= 0.25 * abs(first), "experiment": experiment,
                   "what": words, "first": first, "last": last}  # fmt: skip


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


def inputs_hidden(_: Statement, facts: Facts) -> Graded:
    """Similarities and labels must be below 0.2 and 20%; in part if an image is below 0.8.

    Of gradients of one image, and of the paper's batch of ten.
    """
    found = facts.numbers("audit", "inversion")  # `inversion/...` and `inversion-batch/...`
    cases = [
        (name.partition("/similarity/")[2], value, found[name.replace("similarity", "labels")])
        for name, value in found.items()
        if name.startswith(("/similarity/", "-batch/similarity/"))
    ]
    hidden = all(value < 0.2 and right < 0.2 for _, value, right in cases)
    blurred = any(value < 0.8 for _, value, _ in cases)
    names = ("message", "similarity", "labels")
    return [dict(zip(names, each, strict=True)) for each in cases], [hidden, blurred], {}


# --- accuracy: Figures 2 to 5 ----------------------------------------------------------------


def _run_of(claim: Statement, facts: Facts) -> list[str]:
    """The experiments of a claim: the first, and those of the others that were run."""
    first, *others = claim.experiments
    return [first, *(one for one in others if facts.by_experiment.get(one))]


def panels(claim: Statement, facts: Facts) -> Graded:
    """In every panel (or in one, if `any`), `upper` must lead `lower` by `least`.

    A negative `least` is what may be lost. `epsilons` and `ratio` choose panels: of those
    epsilons, and of that compression at least.
    """
    values, cases, hits = claim.values, [], []
    upper, lower = values["upper"], values["lower"]
    for experiment in _run_of(claim, facts):
        for panel in panels_in(facts, experiment, upper, lower):
            pair = (upper, lower)
            if upper == OURS:
                pair = panel.best(upper, lower) or pair
            if panel.epsilon not in values.get("epsilons", [panel.epsilon]):
                continue
            if "ratio" in values and (panel.ratio or 0.0) < values["ratio"]:
                continue
            hits.append(panel.leads(*pair, values["least"]))
            cases.append(panel.compared(*(pair[::-1] if values.get("any") else pair)))
    return cases, [any(hits)] if values.get("any") else hits, {}


def five_to_fifty(claim: Statement, facts: Facts) -> Graded:
    """Every panel must be 5 points above cpSGD or Laplace on sketches, and clearly so."""
    hits, gaps = [], []
    for name in _run_of(claim, facts):
        other = _CPSGD if name == "cpsgd" else _NOISY_SKETCH
        for panel in panels_in(facts, name, OURS, other):
            gap = panel.gap(*(panel.best(OURS, other) or (OURS, other)))
            gaps += [] if gap is None else [gap.mean]
            hits.append(gap is not None and gap.above(claim.values["least"]))
    span = "in none of which both finished"
    if gaps:
        ordered = sorted(gaps)
        least, middle, most = (SPECS["points"](ordered[at]) for at in (0, len(ordered) // 2, -1))
        span = f"from {least} to {most}, the middle one {middle}"
    return [], hits, {"panels": len(hits), "span": span}


def over_cpsgd(claim: Statement, facts: Facts) -> Graded:
    """The largest difference must be 80% of the stated one; in part from 5 points on."""
    found = panels_in(facts, "cpsgd", OURS, _CPSGD)
    pairs = [panel.best(OURS, _CPSGD) or (OURS, _CPSGD) for panel in found]
    gaps = [panel.gap(*pair) for panel, pair in zip(found, pairs, strict=True)]
    most = max((gap.mean for gap in gaps if gap is not None), default=0.0)
    # cpSGD by the range X that coordinates are clipped to, where it was tried.
    ranges = [
        f"{name.removeprefix(f'{_CPSGD}, ')} {line}"
        for panel in panels_in(facts, "cpsgd")
        for name, line in panel.lines.items()
        if name.startswith(f"{_CPSGD}, X")
    ]
    shown = f" cpSGD by its range: {'; '.join(ranges)}." if ranges else ""
    cases = [panel.compared(*pair) for panel, pair in zip(found, pairs, strict=True)]
    hits = [most >= 0.05, most >= 0.8 * claim.values["most"]]
    return cases, hits, {"largest": most, "ranges": shown}


def _pairs(found: Iterable[Panel]) -> Iterator[tuple[Panel, Panel]]:
    """Panels that differ in epsilon only: each with the next smaller one."""
    groups: dict[str, list[Panel]] = {}
    for panel in found:
        if panel.epsilon is not None:
            rest = re.sub(r",? ?epsilon \d+(?:\.\d+)?", "", panel.name).strip(", ")
            groups.setdefault(rest, []).append(panel)
    for group in groups.values():
        yield from itertools.pairwise(sorted(group, key=lambda panel: -(panel.epsilon or 0.0)))


def cpsgd_smaller(claim: Statement, facts: Facts) -> Graded:
    """At the same bits, cpSGD must be a point worse at the smaller epsilon, and clearly so.

    The paper speaks of epsilons below its two. Where none was run, and the accuracy does not fall
    between the two either, the claim is not measured.
    """
    cases, hits, smallest = [], [], math.inf
    for larger, smaller in _pairs(panels_in(facts, "cpsgd", _CPSGD)):
        first, second = larger.lines[_CPSGD], smaller.lines[_CPSGD]
        worse = gap_of(first, second, larger.seeds)
        hits.append(second.accuracy is None or (worse is not None and worse.above(_POINT)))
        smallest = min(smallest, smaller.epsilon or 0.0)
        cases.append({"smaller": smaller.name, "second": second, "larger": larger.name,
                      "first": first})  # fmt: skip
    measured = any(hits) or not hits or smallest < claim.values["below"]
    return cases, hits if measured else None, {}


def mnist_smaller(claim: Statement, facts: Facts) -> Cases:
    """At the same size, the lead must be a point at the smaller epsilon and grow towards it."""
    every = [panels_in(facts, one, OURS, _NOISY_SKETCH) for one in _run_of(claim, facts)]
    for larger, smaller in itertools.chain.from_iterable(map(_pairs, every)):
        before, after = (
            panel.gap(*(panel.best(OURS, _NOISY_SKETCH) or ("", ""))) for panel in (larger, smaller)
        )
        if before is not None and after is not None:
            hit = after.above(_POINT) and after.mean > before.mean
            yield {"hit": hit, "smaller": smaller.name, "second": after, "larger": larger.name,
                   "first": before}  # fmt: skip


def communication(claim: Statement, facts: Facts) -> Cases:
    """To reach the same accuracy, noise on vectors must need `least` times the bytes.

    The accuracy is 90% of the uncompressed run's. Where noise on vectors never reaches it, all of
    its bytes count; where DiffSketch does not, the panel speaks against the claim.
    """
    for panel in panels_in(facts, claim.experiments[0], OURS, _NOISY_VECTOR):
        ours, name = panel.best(OURS, _NOISY_VECTOR) or (OURS, _NOISY_VECTOR)
        mine, other = panel.lines[ours].number("bytes-to"), panel.lines[name]
        theirs, total = other.number("bytes-to"), other.number("bytes")
        if mine is None:
            who = "neither gets" if theirs is None else "DiffSketch does not get"
            yield {"hit": False, "panel": panel.name, "ratio": f"{who} there"}
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
        for name in (_NOISY_SKETCH, _NOISY_VECTOR)
        if panel.epsilon is not None and name in panel.lines
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


def correction_helps(_: Statement, facts: Facts) -> Cases:
    """In each panel, one of its readings must be a point better than the sketch without it."""
    plain, masked = "sketch", ("sketch, shared masks", "sketch, own masks")
    for panel in panels_in(facts, "correction", plain, masked[0]):
        gaps = [panel.gap(name, plain) for name in masked]
        hit = any(gap is not None and gap.above(_POINT) for gap in gaps)
        lines = [f"{name} {panel.lines[name]}" for name in (plain, *masked) if name in panel.lines]
        yield {"hit": hit, "panel": panel.name, "lines": ", ".join(lines)}


def federated(_: Statement, facts: Facts) -> Graded:
    """At 20x, within 5 points of no compression at epsilon 1; in part at a larger epsilon."""
    cases, near, strong = [], [], []
    for panel in panels_in(facts, "shakespeare", OURS, UNCOMPRESSED):
        if panel.epsilon is not None and panel.ratio is not None and panel.ratio >= 20:
            pair = panel.best(OURS, UNCOMPRESSED) or (OURS, UNCOMPRESSED)
            fits = panel.leads(*pair, -0.05)
            near += [f"{panel.epsilon:g}"] if fits else []
            strong += [fits] if panel.epsilon <= 1 else []
            cases.append(panel.compared(*pair))
    hits = [bool(near), bool(strong) and all(strong)] if cases else []
    return cases, hits, {"near": " and ".join(near)}


def light_weight(_: Statement, facts: Facts) -> Graded:
    """A round may take twice the (simulated) time of one without compression; in part ten times."""
    cases, ratios, bare = [], [], "sketch, no privacy"
    for panel in panels_in(facts, "mnist", bare, UNCOMPRESSED):
        plain = panel.lines[UNCOMPRESSED].number("seconds")
        for name in (bare, OURS):
            line = panel.lines.get(name)
            taken = None if line is None else line.number("seconds")
            if line is not None and taken and plain:
                ratios += [taken / plain] if name == bare else []
                noise = f" and noise of {length:g} n" if (length := line.number("padding")) else ""
                cases.append({"panel": panel.name, "name": f"{name}{noise}",
                              "ratio": taken / plain})  # fmt: skip
    worst = max(ratios, default=0.0)
    return cases, [worst <= 2, worst <= 10] if ratios else [], {"worst": worst}


def _by_ratio(panel: Panel) -> list[tuple[float, str]]:
    """The names of its lines by their compression, the smallest first."""
    ratios = {name: line.number("compression") for name, line in panel.lines.items()}
    found = [(ratio, name) for name, ratio in ratios.items() if ratio is not None]
    return sorted(found, key=lambda each: each[0])


def _compressed(facts: Facts) -> list[Panel]:
    """The panels of the paper's sketches, without those of sketches in few bits."""
    found = panels_in(facts, "accuracy-compression", UNCOMPRESSED)
    return [panel for panel in found if not panel.name.endswith("few bits")]


def minor(_: Statement, facts: Facts) -> Cases:
    """On MNIST, up to 55x, it must be within a point of no compression after as many rounds."""
    for panel in _compressed(facts):
        for name, line in panel.lines.items():
            ratio = line.number("compression")
            few = ratio is None or ratio > 55 or not panel.name.startswith("MNIST")
            if name != UNCOMPRESSED and not few:
                hit = panel.leads(name, UNCOMPRESSED, -_POINT)
                yield {"hit": hit, "name": name, **panel.compared(name, UNCOMPRESSED)}


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
        gap = panel.gap(UNCOMPRESSED, name)
        hits.append(panel.leads(UNCOMPRESSED, name, 0.002))
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
            for name, line in panel.lines.items():
                share = line.number("noised")
                if share is not None and name.startswith(OURS) and "proven" not in name:
                    length = line.number("padding") or 0.0
                    few.append(share < 0.5)
                    short.append(share < 0.5 and length <= 1)
                    rest = name.removeprefix(OURS).strip(" ,")
                    most = "at most " if "least" in rest else ""
                    cases.append({"experiment": experiment, "panel": panel.name, "share": share,
                                  "length": f"{most}{length:g}",
                                  "read": rest and f" ({rest})"})  # fmt: skip
    return cases, [any(few), all(short)] if cases else [], {}


def _at_best(facts: Facts, what: str, *, least: bool) -> list[Case]:
    """A share of MNIST's messages by ratio, with the appended noise that serves it best.

    The paper appends noise, and does not say how much.
    """
    found: dict[str, dict[str, float]] = {}
    for name, value in facts.numbers("privacy-communication", "MNIST/").items():
        padding, kind, ratio = name.split("/")[:3]
        if kind == what:
            found.setdefault(ratio, {})[padding] = value
    choose = min if least else max
    best = {ratio: choose(shares, key=shares.__getitem__) for ratio, shares in found.items()}
    return [
        {"name": ratio, "padding": best[ratio], "value": shares[best[ratio]]}
        for ratio, shares in found.items()
    ]


def most_rounds(_: Statement, facts: Facts) -> Graded:
    """At every ratio, less than half of the messages must need Laplace noise for epsilon 1."""
    cases = _at_best(facts, "noised", least=True)
    return cases, [case["value"] < 0.5 for case in cases], {}


def averages(_: Statement, facts: Facts) -> Graded:
    """At every ratio, all messages must have a claim, or there is no average."""
    cases = _at_best(facts, "finite", least=False)
    return cases, [case["value"] >= 1 for case in cases], {}


def _shares(facts: Facts, prefix: str, ending: str) -> dict[str, float]:
    """Shares of local-epsilon whose names begin and end so, by what is between."""
    found = facts.numbers("local-epsilon", prefix)
    return {
        name.removesuffix(ending): share for name, share in found.items() if name.endswith(ending)
    }


def histogram(claim: Statement, facts: Facts) -> Graded:
    """Most messages must be within the requirement; in part if only with appended noise."""
    shares = _shares(facts, "share-within/", f"/{claim.values['requirement']:g}")
    enough = [name for name, share in shares.items() if share > 0.5]
    cases = [{"name": name, "share": share} for name, share in shares.items()]
    return cases, [bool(enough), "none" in enough], {"enough": "".join(enough[:1])}


def compression_privacy(_: Statement, facts: Facts) -> Graded:
    """The mean epsilon must fall with every step to a larger ratio."""
    found = facts.numbers("privacy-communication", "epsilon/")
    ordered = sorted((float(name.removesuffix("x")), mean) for name, mean in found.items())
    hits = [after < before for (_, before), (_, after) in itertools.pairwise(ordered)]
    if not hits:
        raise MissingFactError("privacy-communication", "epsilon/<two ratios>")
    return [{"ratio": ratio, "mean": mean} for ratio, mean in ordered], hits, {}

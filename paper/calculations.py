"""Rules that calculate: they judge claims of the paper by arithmetic and formulas, not by facts.

They are called as those of `rules` are, where what a rule gives is explained; the facts that they
are given are unused. The docstring of a rule states its thresholds.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from diffsketch.privacy.claim import NoClaim, ProvenClaim, Relation
from diffsketch.privacy.clipping import CoordinateBound
from diffsketch.privacy.mechanisms.additive import GaussianMechanism
from diffsketch.privacy.mechanisms.binomial import BinomialMechanism
from diffsketch.privacy.theorems import theorem1
from diffsketch.sketch import CountSketch, SketchKey
from paper.bounds import ConvexProblem, lemma1_error, padding_for, theorem2
from paper.facts import SPECS, Cases, Facts, Graded, Statement

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
        # The noise that so many appended numbers give a cell on average, independent in each cell.
        bound = CoordinateBound(_ALPHA, sketch.rows)
        multiplier = math.sqrt(each * dim / sketch.cols) / bound.sensitivity(Relation.REPLACE)
        mechanism = GaussianMechanism(bound, multiplier, Relation.REPLACE)
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
        length = padding_for(target, dim, rows, cols, ratio=_ALPHA)
        laplace = 2 * (2 * _ALPHA * rows / target) ** 2
        ratio = math.inf if length is None else length / cols / laplace
        yield {"hit": ratio < 1, "rows": rows, "cols": cols, "target": target, "ratio": ratio}


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

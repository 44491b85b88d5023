"""Claims about formulas: computed with the library's calculators, whatever was run."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

import torch

from diffsketch.privacy.claim import Basis, NoClaim, ProvenClaim, Relation, Scope, Trust, Unit
from diffsketch.privacy.mechanisms import BinomialMechanism, CoordinateBound, LaplaceMechanism
from diffsketch.privacy.mechanisms.padding import table_noise_like_padding
from diffsketch.privacy.theorems import ConvexProblem, lemma1_error, padding_for, theorem1, theorem2
from diffsketch.reproduction.verdicts.verdict import Facts, Standing, Statement, Verdict, graded
from diffsketch.reproduction.verdicts.words import epsilon, listed, times, words
from diffsketch.sketch import CountSketch, SketchKey

__all__ = ["RULES"]

_ALPHA = 1.645  # the 90th percentile of a Gaussian's sizes, in standard deviations
_DELTA = 1e-5
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
_SECURE_SUM = Scope(Unit.CLIENT, Relation.REPLACE, Trust.DISTRIBUTED)


def longer_vectors(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The formula must move as the text says when the vector gets shorter."""
    values = statement.values
    rows, cols = values["table"]
    claims = {dim: _claimed(dim, rows, cols) for dim in values["dims"]}
    rising = _monotone(claims.values(), rising=True)
    falling = _monotone(claims.values(), rising=False)
    as_said = rising if values["smaller_when"] == "smaller" else falling
    measured = (
        f"For a {rows} x {cols} table epsilon is {_by(claims)} {words(Basis.CLAIMED)}: it "
        f"{'rises' if rising else 'falls' if falling else 'moves both ways'} with n."
    )
    return graded([as_said], measured, none="it is the other way round (a slip of the text)")


def vanishing(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The formula must get below 0.01, and neighbours' tables must not differ for certain.

    In part if only the formula does: whoever knows the hashes and the other coordinates compares
    two tables.
    """
    values = statement.values
    rows, cols = values["table"]
    claims = {dim: _claimed(dim, rows, cols) for dim in values["dims"]}
    small = list(claims.values())[-1] < 0.01 and _monotone(claims.values(), rising=False)
    told = _told_apart(values["sketched"], rows, cols, change=values["change"])
    measured = (
        f"For a {rows} x {cols} table the formula gives {_by(claims)} {words(Basis.CLAIMED)}. "
        f"Of {len(told)} pairs of neighbours with n up to {max(values['sketched']):,}, "
        f"{sum(told)} have different tables, which tells them apart for certain."
    )
    if small and any(told):
        return Verdict(Standing.IN_PART, measured, "the formula does; the sketch does not")
    return graded([small], measured, none="not even the formula")


def smaller_tables(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The formula must rise with the rows and with the columns."""
    dim = statement.values["dim"]
    by_cols = {cols: _claimed(dim, 7, cols) for cols in statement.values["cols"]}
    by_rows = {rows: _claimed(dim, rows, 15) for rows in statement.values["rows"]}
    hits = [_monotone(each.values(), rising=True) for each in (by_cols, by_rows)]
    measured = (
        f"n = {dim:,}: {_by(by_cols, 'k')}; {_by(by_rows, 't')} {words(Basis.CLAIMED)}. This is "
        "how the formula behaves; what it claims is judged above."
    )
    return graded(hits, measured, part="only for one of t and k", none="it is the other way round")


def longer_padding(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Both what is claimed and what is proven must fall with the length of the noise."""
    dim, (rows, cols) = statement.values["dim"], statement.values["table"]
    lengths = statement.values["lengths"]
    claimed = {each: _claimed(dim * (1 + each), rows, cols) for each in lengths}
    sketch = CountSketch(dim, rows, cols)
    proven = {}
    for each in lengths:
        mechanism = table_noise_like_padding(sketch, _ALPHA, padding=each * dim, std=1.0)
        proven[each] = float(mechanism.claim.epsilon(delta=_DELTA, rounds=1))
    hits = [_monotone(each.values(), rising=False) for each in (claimed, proven)]
    measured = (
        f"{rows} x {cols}, noise of length L times n: {_by(claimed, 'L')} "
        f"{words(Basis.CLAIMED)}; repaired (clipped, its scale fixed) {_by(proven, 'L')} "
        f"{words(Basis.PROVEN, delta=_DELTA)}."
    )
    return graded(hits, measured, part="only for one of the two", none="it does not")


def less_noise(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The variance that the appended noise adds to a cell must be below that of Laplace noise.

    With the least noise for which Theorem 1 claims the epsilon of the panel, for a Gaussian
    vector; Laplace noise has the scale `2 alpha t / epsilon`.
    """
    hits, texts = [], []
    for dim, rows, cols, target in statement.values["panels"]:
        length = padding_for(target, dim, rows, cols, alpha=_ALPHA, sigma=1.0)
        laplace = 2 * (2 * _ALPHA * rows / target) ** 2
        ratio = math.inf if isinstance(length, NoClaim) else length / cols / laplace
        hits.append(ratio < 1)
        texts.append(f"{rows} x {cols}, epsilon {target:g}: {times(ratio)}")
    measured = (
        "Variance of the appended noise that Theorem 1 asks for over that of Laplace noise every "
        f"round: {listed(texts)} {words(Basis.CLAIMED)}."
    )
    return graded(hits, measured, part="less noise in {hits} of {total} panels",
                  none="the appended noise is the larger one")  # fmt: skip


def every_round(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Laplace noise for the stated epsilon each round must still give 10 or less for a run."""
    values = statement.values
    mechanism = LaplaceMechanism(CoordinateBound(1.0, values["rows"]), 1 / values["per_round"])
    rounds = values["rounds"]
    whole = float(mechanism.claim.epsilon(delta=_DELTA, rounds=rounds))
    measured = (
        f"Laplace noise that proves {values['per_round']:g} for one round {words(Basis.PROVEN)} "
        f"proves {epsilon(whole)} for a run "
        f"{words(Basis.PROVEN, rounds=rounds, delta=_DELTA)}. What is claimed does not compose."
    )
    if whole <= 10:
        return Verdict(Standing.HOLDS, measured)
    return Verdict(Standing.FAILS, measured, "strong for one round only, and for one coordinate")


def weaker_unit(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The same noise must give a whole client more than one coordinate.

    For Laplace noise, epsilon is the L1 distance of two tables over the scale. The tables of a
    vector that has the signs of the first row's hash and of its negative are farthest apart there.
    """
    dim, (rows, cols) = statement.values["dim"], statement.values["table"]
    sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(0).seed(0)
    first_row = torch.zeros(rows, cols)
    first_row[0] = 1.0
    vector = sketch.query(first_row, seed, combine="mean").sign()
    distance = float((sketch.encode(vector, seed) - sketch.encode(-vector, seed)).abs().sum())
    client = distance / (2 * rows)  # the noise that gives one coordinate of size 1 an epsilon of 1
    measured = (
        f"Laplace noise on a {rows} x {cols} table that gives one coordinate epsilon 1 "
        f"{words(Basis.PROVEN)} leaves a client with {client:,.0f} or more (a calculated lower "
        f"bound; {_CLIENT}; one round)."
    )
    return graded([client > 1], measured, none="it is no weaker")


def more_devices(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The epsilon of cpSGD must fall with the devices in the sum, and be finite for a round's.

    In part if it falls, but is not finite for the devices of a round.
    """
    values = statement.values
    bounds = {
        cohort: _value(_binomial(values["levels"], values["trials"], cohort).claim)
        for cohort in sorted({values["in_a_round"], *values["cohorts"]})
    }
    falls = _monotone(bounds.values(), rising=False)
    measured = (
        f"k = {values['levels']}, m = {values['trials']}, by devices whose noise is in the sum: "
        f"{_by(bounds, 'devices')} {words(Basis.PROVEN, _SECURE_SUM, delta=_DELTA)}. The paper "
        f"samples {values['in_a_round']} a round."
    )
    if falls and math.isinf(bounds[values["in_a_round"]]):
        why = "with the devices in the sum, not with those one samples from"
        return Verdict(Standing.IN_PART, measured, why)
    return graded([falls], measured, none="it does not")


def cpsgd_parameters(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The bits must hold k and m, and cpSGD's theorem give the epsilon for a round's devices.

    In part if only the bits are right.
    """
    fits, proven, texts = [], [], []
    for target, bits, levels, trials in statement.values["rows"]:
        mechanism = _binomial(levels, trials, statement.values["cohort"])
        claim = mechanism.claim
        fits.append(mechanism.bits == bits)
        proven.append(_value(claim) <= target)
        reason = claim.reason if isinstance(claim, NoClaim) else f"epsilon {_value(claim):.3g}"
        texts.append(f"epsilon {target:g}, {bits} bits: {reason}")
    right = f"{sum(fits)} of {len(fits)} rows fit the bits, {sum(proven)} meet their epsilon"
    measured = f"{right} {words(Basis.CLAIMED, _SECURE_SUM)}: {listed(texts)}."
    if all(fits) and not all(proven):
        return Verdict(Standing.IN_PART, measured, "the bits are right, the epsilon is not proven")
    return graded([a and b for a, b in zip(fits, proven, strict=True)], measured,
                  part="{hits} of {total} rows", none="neither bits nor epsilon")  # fmt: skip


def tighter_bound(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Theorem 2's bound must fall with the columns and with the rows."""
    problem = ConvexProblem(statement.values["dim"], 1.0, 1.0, 1.0)
    bounds = []
    for name in ("cols", "rows"):
        size = {"rows": 7, "cols": 22}
        bound = {}
        for value in statement.values[name]:
            size[name] = value
            error = lemma1_error(size["rows"], size["cols"], failure=0.05)
            bound[value] = theorem2(problem, 1000, error=error)
        bounds.append(bound)
    hits = [_monotone(each.values(), rising=False) for each in bounds]
    measured = (
        f"The bound after 1,000 rounds for G = D = c = 1: {_by(bounds[0], 'k')}; "
        f"{_by(bounds[1], 't')} (Lemma 1's error for a failure of 5%)."
    )
    return graded(hits, measured, part="only for one of t and k", none="it is the other way round")


def _claimed(dim: int, rows: int, cols: int) -> float:
    claim = theorem1(dim, rows, cols, alpha=_ALPHA, sigma=1.0)
    return float(claim.epsilon(delta=0.0, rounds=1))


def _told_apart(dims: Iterable[int], rows: int, cols: int, *, change: float) -> list[bool]:
    told = []
    for dim in dims:
        sketch, seed = CountSketch(dim, rows, cols), SketchKey.from_integer(dim).seed(0)
        first = torch.ones(dim)
        second = first.clone()
        second[0] += change
        told.append(not torch.equal(sketch.encode(first, seed), sketch.encode(second, seed)))
    return told


def _binomial(levels: int, trials: int, cohort: int) -> BinomialMechanism:
    return BinomialMechanism(dim=7850, clip=1.0, limit=1.0, levels=levels, trials=trials,
                             cohort=cohort, delta=_DELTA)  # fmt: skip


def _value(claim: object) -> float:
    if isinstance(claim, ProvenClaim):
        return float(claim.epsilon(delta=_DELTA, rounds=1))
    return math.inf


def _monotone(values: Iterable[float], *, rising: bool) -> bool:
    """Strictly, but for those without a claim, which count as larger than all."""
    ordered = list(values) if rising else list(values)[::-1]
    some = sum(math.isfinite(value) for value in ordered) >= 2
    return some and all(a < b or math.isinf(b) for a, b in itertools.pairwise(ordered))


def _by(values: dict[int, float], name: str = "n") -> str:
    return ", ".join(f"{epsilon(value)} at {name} = {size:,}" for size, value in values.items())


RULES = {
    "longer-vectors": longer_vectors,
    "vanishing": vanishing,
    "smaller-tables": smaller_tables,
    "longer-padding": longer_padding,
    "less-noise": less_noise,
    "every-round": every_round,
    "weaker-unit": weaker_unit,
    "more-devices": more_devices,
    "cpsgd-parameters": cpsgd_parameters,
    "tighter-bound": tighter_bound,
}

"""Claims about gradients and model updates: how they are distributed."""

from __future__ import annotations

from diffsketch.reproduction.verdicts.verdict import (
    Facts,
    Rule,
    Standing,
    Statement,
    Verdict,
    graded,
)
from diffsketch.reproduction.verdicts.words import listed, percent

__all__ = ["RULES"]

_SOME_ZEROS = 0.01
_FAR = 0.05  # Kolmogorov-Smirnov distance
_HEAVY = 1.0  # excess kurtosis


def gaussian(experiment: str) -> Rule:
    """A rule: zeros at most 1%, excess kurtosis within 1, KS distance at most 0.05.

    Holds if all three are so, in part if two are.
    """

    def rule(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
        zeros, kurtosis, ks = (
            facts.number(experiment, name) for name in ("zeros", "kurtosis", "ks")
        )
        hits = [zeros <= _SOME_ZEROS, abs(kurtosis) <= _HEAVY, ks <= _FAR]
        measured = (
            f"{percent(zeros)} of the coordinates are exactly 0; excess kurtosis {kurtosis:.3g} "
            f"(a Gaussian has 0); Kolmogorov-Smirnov distance to the fitted Gaussian {ks:.2g}. "
            f"{facts.seeds(experiment)}"
        )
        if sum(hits) == 1:
            return Verdict(Standing.FAILS, measured, "in one of three respects only")
        return graded(hits, measured, part="in {hits} of {total} respects", none="far from it")

    return rule


def bounded(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """At most one coordinate in a thousand may exceed alpha; in part up to 11%."""
    beyond = facts.number("gradients", "above-alpha")
    largest = facts.below("gradients", "").get("largest")
    most = "" if largest is None else f" The largest is {float(largest):.3g} standard deviations."
    measured = (
        f"{percent(beyond)} of the coordinates exceed alpha, the 90th percentile.{most} "
        f"{facts.seeds('gradients')}"
    )
    if beyond <= 1e-3:
        return Verdict(Standing.HOLDS, measured)
    if beyond <= 0.11:
        why = "for nine coordinates in ten; a sensitivity needs all of them"
        return Verdict(Standing.IN_PART, measured, why)
    return Verdict(Standing.FAILS, measured)


def similar(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """From the first to the last vector, alpha / sigma and kurtosis may change by 25% at most."""
    hits, texts = [], []
    for experiment in ("gradients", "updates"):
        for name, words in (("ratio", "alpha / sigma"), ("kurtosis", "excess kurtosis")):
            first, last = (facts.number(experiment, f"{name}/{end}") for end in ("first", "last"))
            hits.append(abs(last - first) <= 0.25 * abs(first))
            texts.append(f"{experiment}, {words}: {first:.3g} to {last:.3g}")
    measured = f"First to last round looked at: {listed(texts)}."
    return graded(hits, measured, part="{hits} of {total} numbers", none="they change")


RULES: dict[str, Rule] = {
    "gaussian-gradients": gaussian("gradients"),
    "gaussian-updates": gaussian("updates"),
    "bounded": bounded,
    "similar": similar,
}

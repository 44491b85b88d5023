"""Claims about the paper's error correction, and about its data sets and Theorem 2."""

from __future__ import annotations

from diffsketch.reproduction.verdicts.panels import Panel
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

_PLAIN, _SHARED, _OWN = "sketch", "sketch, shared masks", "sketch, own masks"
_CONTROL = "noise instead of the sketch"


def correction_helps(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """In each panel, one of its readings must be a point better than the sketch without it."""
    hits, texts = [], []
    for panel in Panel.with_lines(facts, "correction", _PLAIN, _SHARED):
        gaps = [panel.gap(name, _PLAIN) for name in (_SHARED, _OWN)]
        hits.append(any(gap is not None and gap.above(0.01) for gap in gaps))
        lines = [f"{name} {panel.lines[name]}" for name in (_PLAIN, _SHARED, _OWN)
                 if name in panel.lines]  # fmt: skip
        texts.append(f"{panel.name}: {', '.join(lines)}")
    measured = f"{listed(texts)}. {facts.seeds('correction')}"
    return graded(hits, measured, part="with {hits} of {total} kinds of hashes",
                  none="it does not help")  # fmt: skip


def correction_private(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """With noise in place of the sketch, shared masks must teach the model nothing: 5 points."""
    without, shared = (
        facts.number("correction", f"accuracy/control/{_CONTROL}, {masks}")
        for masks in ("no masks", "shared masks")
    )
    mask, sketch = (facts.number("correction", f"{name}-bytes") for name in ("mask", "sketch"))
    measured = (
        f"With pure noise in place of the sketch the model reaches {percent(shared)} through the "
        f"masks, {percent(without)} without. A mask is computed from the raw gradient, has "
        f"{mask:,.0f} bytes beside the sketch's {sketch:,.0f}, and no claim covers it."
    )
    return graded([shared - without < 0.05], measured, none="the masks carry the gradients")


def datasets(statement: Statement, facts: Facts) -> Verdict:
    """Devices and parameters must be equal, mean and deviation of the samples within 1%."""
    hits, texts = [], []
    for name, stated in statement.values["rows"].items():
        found = [
            facts.number("datasets", f"{name}/{what}")
            for what in ("workers", "parameters", "mean", "stdev")
        ]
        exact = [a == b for a, b in zip(found[:2], stated[:2], strict=True)]
        near = [abs(a - b) <= 0.01 * b for a, b in zip(found[2:], stated[2:], strict=True)]
        hits.append(all(exact) and all(near))
        texts.append(f"{name}: {found[0]:,.0f}, {found[1]:,.0f}, {found[2]:.4g}, {found[3]:.4g}")
    measured = f"Devices, parameters, mean, deviation: {listed(texts)}."
    return graded(hits, measured, part="{hits} of {total} rows", none="other numbers")


def theorem_2(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The measured gap must be below the bound after every round looked at, with every seed.

    In part if it is so in nine cases of ten.
    """
    share = facts.number("convergence", "bound-holds")
    gap, bound = (facts.number("convergence", name) for name in ("gap", "bound"))
    measured = (
        f"Below the bound in {percent(share)} of the rounds looked at; at the end the gap is "
        f"{gap:.3g} and the bound {bound:.3g}. What can be proven bounds the expected gap, not the "
        f"gap with probability 1 - delta. {facts.seeds('convergence')}"
    )
    if share >= 1:
        return Verdict(Standing.HOLDS, measured)
    return Verdict(Standing.IN_PART if share >= 0.9 else Standing.FAILS, measured)


def same_rate(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """On logarithmic axes, the gap must fall at most 0.1 more slowly than without a sketch."""
    slopes = [facts.number("convergence", f"slope/{name}") for name in ("sketch", "uncompressed")]
    measured = (
        f"The gap falls as rounds to the power {slopes[0]:.2f} with the sketch and {slopes[1]:.2f} "
        "without; the theorem's bound as -0.50, with a constant that grows by n mu^2."
    )
    return graded([slopes[0] <= slopes[1] + 0.1], measured, none="it is slower")


RULES: dict[str, Rule] = {
    "correction-helps": correction_helps,
    "correction-private": correction_private,
    "datasets": datasets,
    "theorem-2": theorem_2,
    "same-rate": same_rate,
}

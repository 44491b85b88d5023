"""Claims about what compression costs and how training converges: Figures 3 to 5, Theorem 2."""

from __future__ import annotations

import itertools

from diffsketch.reproduction.verdicts.panels import OURS, UNCOMPRESSED, Line, Panel
from diffsketch.reproduction.verdicts.verdict import (
    Facts,
    MissingFactError,
    Rule,
    Standing,
    Statement,
    Verdict,
    graded,
)
from diffsketch.reproduction.verdicts.words import listed, points, times

__all__ = ["RULES"]

_SKETCH = "sketch, no privacy"


def marginal(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """At epsilon 1 and 20x to 75x, DiffSketch must be within 2 points of no compression."""
    hits, texts = [], []
    for experiment in ("mnist", "shakespeare"):
        for panel in Panel.at_best(facts, experiment, OURS, UNCOMPRESSED):
            if panel.epsilon == 1 and panel.ratio is not None and panel.ratio >= 20:
                gap = panel.gap(OURS, UNCOMPRESSED)
                hits.append(gap is not None and gap.mean >= -0.02)
                ours = panel.lines[OURS]
                lost = "" if gap is None else f", {gap}"
                texts.append(f"{experiment}, {panel.name}: {ours}{lost}")
    if not hits:
        raise MissingFactError("mnist", "accuracy/<20x to 75x, epsilon 1>/DiffSketch")
    measured = f"DiffSketch, and its difference to no compression: {listed(texts)}."
    return graded(hits, measured, part="in {hits} of {total} panels", none="in no panel")


def federated(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """At 20x and the smallest epsilon, at most 1, it must be within 5 points of no compression.

    In part if it is so only at a larger epsilon.
    """
    panels = [
        panel
        for panel in Panel.at_best(facts, "shakespeare", OURS, UNCOMPRESSED)
        if panel.epsilon is not None and panel.ratio is not None and panel.ratio >= 20
    ]
    if not panels:
        raise MissingFactError("shakespeare", "accuracy/<20x>/DiffSketch")
    near = []
    for panel in panels:
        gap = panel.gap(OURS, UNCOMPRESSED)
        near.append(gap is not None and gap.mean >= -0.05)
    texts = [
        f"{panel.name}: {panel.lines[OURS]}, without compression {panel.lines[UNCOMPRESSED]}"
        for panel in panels
    ]
    strong = [fits for panel, fits in zip(panels, near, strict=True) if (panel.epsilon or 0) <= 1]
    measured = f"{listed(texts)}. Nothing of it is proven: see Theorem 1."
    if strong and all(strong):
        return Verdict(Standing.HOLDS, measured)
    if any(near):
        enough = [f"{panel.epsilon:g}" for panel, fits in zip(panels, near, strict=True) if fits]
        why = f"the accuracy holds up at epsilon {' and '.join(enough)} only"
        return Verdict(Standing.IN_PART, measured, why)
    return Verdict(Standing.FAILS, measured, "the accuracy does not hold up")


def light_weight(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """A round with sketches must take at most twice the time of one without compression.

    In part up to ten times. They are times of simulated rounds on the machine of the run.
    """
    ratios, texts = [], []
    for panel in Panel.with_lines(facts, "mnist", _SKETCH, UNCOMPRESSED):
        plain = panel.lines[UNCOMPRESSED].number("seconds")
        for name in (_SKETCH, OURS):
            line = panel.lines.get(name)
            taken = None if line is None else line.number("seconds")
            if line is None or not taken or not plain:
                continue
            if name == _SKETCH:
                ratios.append(taken / plain)
            noise = f" and noise of {length:g} n" if (length := line.number("padding")) else ""
            texts.append(f"{panel.name}, {name}{noise}: {times(taken / plain)}")
    if not ratios:
        raise MissingFactError("mnist", f"seconds/.../{_SKETCH}")
    measured = (
        f"Time of a simulated round over that without compression: {listed(texts)}. "
        "docs/performance.md has the times of sketching alone."
    )
    if max(ratios) <= 2:
        return Verdict(Standing.HOLDS, measured)
    why = f"up to {times(max(ratios))} the time of a round"
    return Verdict(Standing.IN_PART if max(ratios) <= 10 else Standing.FAILS, measured, why)


def minor(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """On MNIST, up to 55x, it must be within a point of no compression after as many rounds."""
    hits, texts = [], []
    for panel in _compressed(facts):
        whole = panel.lines[UNCOMPRESSED]
        for name, line in panel.lines.items():
            ratio = line.number("compression")
            few = ratio is None or ratio > 55 or not panel.name.startswith("MNIST")
            if name == UNCOMPRESSED or few:
                continue
            gap = panel.gap(name, UNCOMPRESSED)
            hits.append(gap is not None and gap.mean >= -0.01)
            texts.append(f"{panel.name}, {name}: {line} against {whole}")
    if not hits:
        raise MissingFactError("accuracy-compression", "accuracy/...")
    measured = f"{listed(texts)}. {facts.seeds('accuracy-compression')}"
    return graded(hits, measured, part="{hits} of {total} lines", none="more is lost")


def faster(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """In every panel, each larger ratio must reach the same accuracy with fewer bytes."""
    hits, texts = [], []
    for panel in _compressed(facts):
        costs = [line.number("bytes-to") for _, line in _by_ratio(panel)]
        steps = itertools.pairwise(costs)
        hits += [
            after is not None and (before is None or after < before) for before, after in steps
        ]
        shown = [
            f"{times(ratio)} {'never' if cost is None else f'{cost / 1e6:.3g} MB'}"
            for (ratio, _), cost in zip(_by_ratio(panel), costs, strict=True)
        ]
        texts.append(f"{panel.name}: {', '.join(shown)}")
    measured = (
        f"Bytes up until 90% of the uncompressed accuracy: {listed(texts)}. "
        f"{facts.seeds('accuracy-compression')}"
    )
    return graded(hits, measured, part="in {hits} of {total} steps to a larger ratio",
                  none="larger ratios need more bytes")  # fmt: skip


def lower(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The largest ratio of some panel must end below no compression, and clearly so.

    The paper says "potentially": one panel is enough.
    """
    hits, texts = [], []
    for panel in _compressed(facts):
        ratio, line = _by_ratio(panel)[-1]
        name = next(name for name, each in panel.lines.items() if each is line)
        gap = panel.gap(UNCOMPRESSED, name)
        hits.append(line.accuracy is None or (gap is not None and gap.above(0.002)))
        lost = "diverged" if gap is None else points(-gap.mean)
        texts.append(f"{panel.name}, {times(ratio)}: {line}, {lost}")
    measured = f"At the largest ratio, and its difference to no compression: {listed(texts)}."
    return graded([any(hits)], measured, none="the largest ratio loses nothing")


def _compressed(facts: Facts) -> list[Panel]:
    return Panel.with_lines(facts, "accuracy-compression", UNCOMPRESSED)


def _by_ratio(panel: Panel) -> list[tuple[float, Line]]:
    """Its lines by their compression, the smallest first."""
    found = [
        (ratio, line)
        for line in panel.lines.values()
        if (ratio := line.number("compression")) is not None
    ]
    return sorted(found, key=lambda each: each[0])


RULES: dict[str, Rule] = {
    "marginal": marginal,
    "federated": federated,
    "light-weight": light_weight,
    "minor": minor,
    "faster": faster,
    "lower": lower,
}

"""Claims about how much noise DiffSketch needs, and about the epsilons it counts."""

from __future__ import annotations

import itertools

from diffsketch.privacy.claim import Basis
from diffsketch.reproduction.verdicts.panels import BARE, OURS, Panel
from diffsketch.reproduction.verdicts.verdict import (
    Facts,
    MissingFactError,
    Rule,
    Standing,
    Statement,
    Verdict,
    graded,
)
from diffsketch.reproduction.verdicts.words import listed, percent, times, words

__all__ = ["RULES"]


def little_noise(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Most messages must need no Laplace noise, with appended noise no longer than the vector."""
    hits, texts = [], []
    for experiment in ("mnist", "shakespeare"):
        for panel in Panel.with_lines(facts, experiment, OURS):
            line = panel.lines[OURS]
            share, length = line.number("noised"), line.number("padding") or 0.0
            if share is None:
                continue
            hits.append(share < 0.5 and length <= 1)
            text = f"{experiment}, {panel.name}: {percent(share)} with {length:g} n appended"
            bare = panel.lines.get(BARE)
            if bare is not None and (alone := bare.number("noised")) is not None:
                text += f" ({percent(alone)} with none)"
            texts.append(text)
    if not hits:
        raise MissingFactError("mnist", "noised/.../DiffSketch")
    measured = f"Messages that got Laplace noise: {listed(texts)}."
    return graded(hits, measured, part="in {hits} of {total} panels",
                  none="it is Laplace noise in most messages, or far more appended")  # fmt: skip


def free(statement: Statement, facts: Facts) -> Verdict:
    """For bare sketches, Theorem 1 must claim the requirement for most messages, at every size.

    In part from 5% of the messages on. Whether its claim is true is another question.
    """
    requirement = statement.values["requirement"]
    needs = facts.numbers("local-epsilon", "needs-noise/")
    ending = f"/none/{requirement:g}"
    shares = {
        name.partition("/")[0]: 1 - value
        for name, value in needs.items()
        if name.endswith(ending) and name.partition("/")[0].endswith(", bare")
    }
    if not shares:
        raise MissingFactError("local-epsilon", f"needs-noise/..., bare/...{ending}")
    texts = [f"{percent(share)} at {name}" for name, share in shares.items()]
    measured = (
        f"Without any noise, messages for which Theorem 1 claims at most {requirement:g} "
        f"{words(Basis.CLAIMED)}: {listed(texts)}. {facts.seeds('local-epsilon')}"
    )
    if min(shares.values()) > 0.5:
        return Verdict(Standing.HOLDS, measured)
    if max(shares.values()) >= 0.05:
        return Verdict(Standing.IN_PART, measured, "for the smaller part of the messages")
    return Verdict(Standing.FAILS, measured, "noise has to be added, in one way or the other")


def histogram(statement: Statement, facts: Facts) -> Verdict:
    """Most messages must be within the requirement; in part if only with appended noise."""
    requirement = statement.values["requirement"]
    paddings = [
        name.partition("/")[0]
        for name in facts.numbers("local-epsilon", "share-within/")
        if name.endswith(f"/{requirement:g}")
    ]
    shares = {name: _within(facts, name, requirement) for name in dict.fromkeys(paddings)}
    texts = [f"{percent(share)} with {name} appended" for name, share in shares.items()]
    measured = (
        f"Messages within {requirement:g} {words(Basis.CLAIMED)}: {listed(texts)}. "
        f"{facts.seeds('local-epsilon')}"
    )
    if shares.get("none", 0.0) > 0.5:
        return Verdict(Standing.HOLDS, measured)
    enough = [name for name, share in shares.items() if share > 0.5]
    if enough:
        return Verdict(Standing.IN_PART, measured, f"only with {enough[0]} of noise appended")
    return Verdict(Standing.FAILS, measured, "most are above it")


def most_rounds(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """At every ratio, most messages must need no Laplace noise."""
    shares = facts.numbers("privacy-communication", "noised/")
    texts = [f"{percent(share)} at {name}" for name, share in shares.items()]
    measured = (
        "Nothing appended, messages that need Laplace noise for epsilon 1 "
        f"{words(Basis.CLAIMED)}: {listed(texts)}. {facts.seeds('privacy-communication')}"
    )
    return graded([share < 0.5 for share in shares.values()], measured,
                  part="at {hits} of {total} ratios", none="most messages need it")  # fmt: skip


def compression_privacy(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The mean epsilon must fall with every step to a larger ratio."""
    means = {
        float(name.removesuffix("x")): value
        for name, value in facts.numbers("privacy-communication", "epsilon/").items()
    }
    ordered = [means[ratio] for ratio in sorted(means)]
    hits = [after < before for before, after in itertools.pairwise(ordered)]
    if not hits:
        raise MissingFactError("privacy-communication", "epsilon/<two ratios>")
    texts = [f"{means[ratio]:.3g} at {times(ratio)}" for ratio in sorted(means)]
    measured = f"Mean epsilon of messages with a claim: {listed(texts)} {words(Basis.CLAIMED)}."
    return graded(hits, measured, part="in {hits} of {total} steps", none="it does not fall")


def averages(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """Every message must have an epsilon, or they have no average; in part if at some ratios."""
    shares = facts.numbers("privacy-communication", "finite/")
    texts = [f"{percent(share)} at {name}" for name, share in shares.items()]
    measured = f"Messages for which Theorem 1 claims anything: {listed(texts)}."
    return graded([share >= 1 for share in shares.values()], measured,
                  part="at {hits} of {total} ratios there is an average",
                  none="without a claim for some there is no average")  # fmt: skip


def _within(facts: Facts, padding: str, requirement: float) -> float:
    return facts.number("local-epsilon", f"share-within/{padding}/{requirement:g}")


RULES: dict[str, Rule] = {
    "little-noise": little_noise,
    "free": free,
    "histogram": histogram,
    "most-rounds": most_rounds,
    "compression-privacy": compression_privacy,
    "averages": averages,
}

"""Claims about privacy that attacks can test: what an audit measured, beside what is claimed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from diffsketch.privacy.claim import Basis, Relation, Scope, Trust, Unit, rounded_down
from diffsketch.reproduction.verdicts.verdict import (
    Facts,
    MissingFactError,
    Rule,
    Standing,
    Statement,
    Verdict,
    graded,
)
from diffsketch.reproduction.verdicts.words import COORDINATE, epsilon, listed, percent, words

__all__ = ["RULES"]

_KNOWN, _UNKNOWN, _PADDED, _LAPLACE = "bare-known", "bare-unknown", "padded", "Laplace"
_CLIENT = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


@dataclass(frozen=True)
class _Audited:
    """An audit of one message.

    Attributes:
        case: Its name.
        claimed: Infinite if nothing is.
        lower: The bound that was measured.
        best: What the best attack of the kind reaches, by calculation; None if not known.
    """

    case: str
    claimed: float
    lower: float
    best: float | None

    @property
    def refuted(self) -> bool:
        """By a measurement, or by a calculation that needs no trials."""
        return max(self.lower, self.best or 0.0) > self.claimed

    def __str__(self) -> str:
        stated = "no claim" if math.isinf(self.claimed) else f"claimed {epsilon(self.claimed)}"
        exact = "" if self.best is None else f" (the best attack reaches {rounded_down(self.best)})"
        return f"{self.case}: {stated}, measured >= {rounded_down(self.lower)}{exact}"


def proof_issues(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """An attack must exceed what Theorem 1 claims, in one case at least."""
    found = _claims(_audits(facts, "bare-", _PADDED))
    refuted = [each for each in found if each.refuted]
    measured = f"{len(refuted)} of {len(found)} claims are exceeded. {_texts(refuted or found)}"
    return graded([bool(refuted)], measured, none="no attack exceeds a claim")


def inherent(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """The adversary of the definition, who knows all else, must not exceed the claim.

    In part if only an adversary who does not know the other coordinates does.
    """
    known, unknown = _audits(facts, _KNOWN), _audits(facts, _UNKNOWN)
    measured = (
        f"{_texts([*known, *unknown])} Whoever knows the hashes and the other coordinates reads "
        "the table: without noise nothing is random."
    )
    if any(each.refuted for each in known):
        return Verdict(Standing.FAILS, measured, "a public linear map hides nothing by itself")
    if any(each.refuted for each in unknown):
        return Verdict(Standing.IN_PART, measured, "not where the other coordinates are unknown")
    return Verdict(Standing.HOLDS, measured)


def theorem_1(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """No attack may exceed the claim, also under the theorem's own assumption.

    Fails if one does where the other coordinates are unknown and Gaussian; in part if attacks do
    only where they are known.
    """
    assumed = _claims(_audits(facts, _UNKNOWN))
    others = _claims(_audits(facts, _KNOWN, _PADDED))
    refuted = [each for each in others if each.refuted]
    measured = (
        f"Others unknown and Gaussian, as it assumes: {_texts(assumed)} Others known: "
        f"{len(refuted)} of {len(others)} claims are exceeded."
    )
    if any(each.refuted for each in assumed):
        return Verdict(Standing.FAILS, measured, "also under its own assumption")
    if refuted:
        return Verdict(
            Standing.IN_PART, measured, "no attack exceeds it while the others are unknown"
        )
    return Verdict(Standing.HOLDS, measured)


def local_model(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """For whole clients, the unit of local privacy, no attack may show more than 1."""
    found = [each for each in _audits(facts, _PADDED, _LAPLACE) if each.case.endswith(", client")]
    if not found:
        raise MissingFactError("audit", "lower/..., client")
    texts = listed(f"{each.case}: >= {each.lower:.3g}" for each in found)
    measured = (
        f"One message of this client or of another: {texts} {words(Basis.MEASURED, _CLIENT)}."
    )
    hits = [each.lower <= 1 for each in found]
    part, none = "in {hits} of {total} cases", "one message tells the client"
    return graded(hits, measured, part=part, none=none)


def same_privacy(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """No attack may exceed what the paper claims for its Laplace noise; in part if some do."""
    found = _claims(_audits(facts, _LAPLACE))
    measured = (
        f"{_texts(found)} The noise is for a coordinate of at most alpha, and one in ten is larger."
    )
    part = "{hits} of {total} claims stand"
    return graded([not each.refuted for each in found], measured, part=part,
                  none="all claims are exceeded")  # fmt: skip


def inputs_hidden(statement: Statement, facts: Facts) -> Verdict:  # noqa: ARG001
    """From bare sketches, similarity and labels must be near what luck gives: below 0.2 and 20%.

    Fails where an image is recovered with a similarity of 0.8 or nine labels in ten; in part
    between.
    """
    similarities = facts.numbers("audit", "inversion/similarity/")
    labels = facts.numbers("audit", "inversion/labels/")
    texts = [
        f"{name}: similarity {value:.2f}, labels {percent(labels.get(name, 0.0))}"
        for name, value in similarities.items()
    ]
    best, right = max(similarities.values()), max(labels.values(), default=0.0)
    measured = f"Images from one sketched gradient: {listed(texts)} (by luck: 0 and 10%)."
    if best < 0.2 and right < 0.2:
        return Verdict(Standing.HOLDS, measured)
    if best >= 0.8 or right >= 0.9:
        return Verdict(Standing.FAILS, measured, "the image or its label is read off")
    return Verdict(Standing.IN_PART, measured, "something is seen")


def _audits(facts: Facts, *kinds: str) -> list[_Audited]:
    """The audits whose names begin so, but for what is proven."""
    found = []
    for name, lower in facts.numbers("audit", "lower/").items():
        if name.startswith(kinds) and facts.get("audit", f"basis/{name}") != Basis.PROVEN:
            claimed = facts.get("audit", f"claimed/{name}")
            best = facts.below("audit", "").get(f"limit/{name}")
            found.append(
                _Audited(
                    name,
                    math.inf if claimed is None else float(claimed),
                    lower,
                    None if best is None else float(best),
                )
            )
    if not found:
        raise MissingFactError("audit", f"lower/{kinds[0]}...")
    return found


def _claims(found: list[_Audited]) -> list[_Audited]:
    """Those that something is claimed for.

    Raises:
        MissingFactError: There are none.
    """
    some = [each for each in found if math.isfinite(each.claimed)]
    if not some:
        raise MissingFactError("audit", "claimed/...")
    return some


def _texts(found: list[_Audited]) -> str:
    meaning = f"claimed, and measured lower bounds; {COORDINATE}; one round, the audit's delta"
    return f"{listed(map(str, found))} ({meaning})."


RULES: dict[str, Rule] = {
    "proof-issues": proof_issues,
    "inherent": inherent,
    "theorem-1": theorem_1,
    "local-model": local_model,
    "same-privacy": same_privacy,
    "inputs-hidden": inputs_hidden,
}

"""What audits measured, beside what is claimed or proven."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diffsketch.pages.exhibits import Axis, Cell, Plot, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["Audited", "audited_of", "draw", "epsilon_of", "plot_of", "table_of"]

_COLUMNS = (
    "case", "what is sent", "what differs", "adversary", "stated", "measured, at least",
    "best attack, exact", "trials", "confidence", "verdict",
)  # fmt: skip
_TITLES = {
    "sketches": "Sketches that Theorem 1 accepts without noise: one coordinate",
    "laplace": "Laplace noise for the paper's alpha: one coordinate",
    "clients": "A client's whole vector: nothing is claimed",
}
_FAR = 10.0
_CHANGES = {
    "alpha": "one coordinate: alpha or -alpha",
    "largest": "one coordinate: the largest, or its negative",
    "client": "the whole vector: this worker's or another's",
}


@dataclass(frozen=True, eq=False)
class Audited:
    """One audit.

    Attributes:
        name: Of the measurement.
        data: What was measured.
    """

    name: str
    data: Mapping[str, Any]

    @property
    def stated(self) -> Epsilon:
        """Claimed, proven, or infinite where nobody says anything."""
        return epsilon_of(self.data["claimed"])

    @property
    def measured(self) -> Epsilon:
        """The lower bound."""
        return epsilon_of(self.data["measured_lower_bound"])

    @property
    def refuted(self) -> bool:
        """Whether more was measured than is stated; never where nothing is stated."""
        return self.stated.basis is not Basis.NONE and float(self.measured) > float(self.stated)

    @property
    def limit(self) -> float | None:
        """The best attack's epsilon, where it is known; infinite if nothing limits it."""
        best = self.data["best_possible"]
        if best is None:
            return None
        return math.inf if best["epsilon"] is None else float(best["epsilon"])


def draw(experiment: Experiment, results: Results) -> Drawn:
    """Bars: what is stated and what was measured; proven mechanisms apart.

    Guarantees (`tests/reproduction/test_audits.py`): what is refuted is counted as such, and
    nothing else.

    Args:
        experiment: With measurements of the kind `audit`.
        results: Of all of them.
    """
    cases = audited_of(experiment, results)
    paper = [case for case in cases if case.stated.basis is not Basis.PROVEN]
    proven = [case for case in cases if case.stated.basis is Basis.PROVEN]
    inversions = _inversions(experiment, results)
    exhibits: list[Plot | Table] = []
    for name, (title, some) in _groups(paper).items():
        exhibits.append(plot_of(f"{experiment.name}-{name}", title, some))
    if paper:
        exhibits.append(table_of(f"{experiment.name}-cases", "What the paper sends", paper))
    if inversions:
        exhibits += _of_inversion(experiment, inversions)
    beside: tuple[Plot | Table, ...] = ()
    if proven:
        beside = (
            plot_of(f"{experiment.name}-proven-claims", "Proven mechanisms, audited alike", proven),
            table_of(f"{experiment.name}-proven-cases", "Audits of proven mechanisms", proven),
        )
    return Drawn(
        lead=_lead(paper, proven),
        exhibits=tuple(exhibits),
        proven=beside,
        text=_text(cases, reduced=experiment.reduced),
        facts=_facts(experiment, cases) | _inversion_facts(inversions),
    )


def audited_of(experiment: Experiment, results: Results) -> list[Audited]:
    """The audits of an experiment, but the inversion: of each measurement its first seed's.

    A bound carries its own confidence; several seeds would only be more audits.
    """
    return [
        Audited(each.name, each.first)
        for each in Measured.all_of(experiment, results, kind="audit")
        if "inversion" not in each.first
    ]


def _groups(cases: Sequence[Audited]) -> dict[str, tuple[str, list[Audited]]]:
    """For a plot each: what Theorem 1 accepts, Laplace noise, and whole clients."""
    groups: dict[str, tuple[str, list[Audited]]] = {}
    for case in cases:
        if case.measured.scope.unit is Unit.CLIENT:
            name = "clients"
        else:
            name = "laplace" if "Laplace noise" in str(case.data["title"]) else "sketches"
        groups.setdefault(name, (_TITLES[name], []))[1].append(case)
    return groups


def epsilon_of(data: Mapping[str, Any]) -> Epsilon:
    """The epsilon that an audit wrote, with all its words."""
    scope = Scope(Unit(data["unit"]), Relation(data["relation"]), Trust(data["trust"]))
    value = math.inf if data["epsilon"] is None else float(data["epsilon"])
    simulated = data.get("simulated", False)
    return Epsilon(value, data["delta"], data["rounds"], Basis(data["basis"]), scope, simulated)


def plot_of(name: str, title: str, cases: Sequence[Audited]) -> Plot:
    """Bars for each case: stated, measured, and what the best attack reaches."""
    places = tuple(float(place) for place in range(len(cases)))
    stated, measured = [case.stated for case in cases], [case.measured for case in cases]
    word = "proven" if stated[0].basis is Basis.PROVEN else "claimed"
    series = [
        _bars(word, places, [_drawn(float(each)) for each in stated], of=stated),
        _bars(
            "measured, at least", places, [_drawn(float(each)) for each in measured], of=measured
        ),
    ]
    series = [each for each in series if any(value is not None for value in each.y)]
    if any(case.limit is not None for case in cases):
        limits = [None if case.limit is None else _drawn(case.limit) for case in cases]
        scopes = {str(case.measured.scope) for case in cases if case.limit is not None}
        words = f"calculated, one message; {'; or '.join(sorted(scopes))}"
        series.append(replace(_bars("best attack, exact", places, limits), epsilon_text=words))
    bars = [value for each in series for value in each.y if value is not None]
    units = sorted({str(case.stated.scope) for case in cases})
    return Plot(
        name=name,
        title=title,
        x=Axis("what is audited"),
        # Of bars that are nearly as long, a logarithmic axis shows the ends alone.
        y=Axis("epsilon of one message", log=bool(bars) and max(bars) > _FAR * min(bars)),
        series=tuple(series),
        caption=(
            f"Of one message ({'; or '.join(units)}). A measured bar above the {word} one beside "
            "it refutes it. No bar: nothing is stated, nothing was found, or nothing limits the "
            f"best attack. Measured bounds hold with {_confidence(cases):.4g} confidence each, at "
            f"delta = {' or '.join(sorted({f'{each.delta:g}' for each in measured}))}, and are "
            "limited by the number of trials."
        ),
        categories=tuple(case.name for case in cases),
    )


def table_of(name: str, title: str, cases: Sequence[Audited]) -> Table:
    """A row for each case."""
    return Table(
        name,
        title,
        _COLUMNS,
        tuple(_row(case) for case in cases),
        "An epsilon is measured by an attack that tells two neighbours apart: the true one is at "
        "least that. It says nothing about attacks that nobody tried. That of the best attack is "
        "calculated, for the same neighbours, unit, relation, trust and delta.",
    )


def _row(case: Audited) -> tuple[Cell, ...]:
    limit = case.limit
    return (
        case.name,
        str(case.data["title"]),
        _CHANGES.get(str(case.data["change"]), "one coordinate"),
        str(case.data["adversary"]),
        case.stated,
        case.measured,
        None if limit is None else "unlimited" if math.isinf(limit) else round(limit, 4),
        int(case.data["trials_per_world"]),
        float(case.data["confidence"]),
        str(case.data["verdict"]),
    )


def _bars(
    name: str,
    places: tuple[float, ...],
    values: Sequence[float | None],
    *,
    of: Sequence[Epsilon] = (),
) -> Series:
    """Bars; the legend has the epsilon's words, where they are the same for all."""
    words = {(each.basis, each.scope) for each in of if each.basis is not Basis.NONE}
    some = next((each for each in of if each.basis is not Basis.NONE), None)
    return Series(
        name,
        places,
        tuple(values),
        kind="bars",
        dashed=name != "measured, at least",
        epsilon=some if len(words) == 1 else None,
        epsilon_text="by case, one message" if len(words) == 1 else "",
        epsilon_along="y",
    )


def _shown(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _drawn(value: float) -> float | None:
    """On a logarithmic axis."""
    return value if 0 < value < math.inf else None


def _confidence(cases: Sequence[Audited]) -> float:
    return min(float(case.data["confidence"]) for case in cases)


def _lead(paper: Sequence[Audited], proven: Sequence[Audited]) -> str:
    claims = [case for case in paper if case.stated.basis is Basis.CLAIMED]
    refuted = [case for case in claims if case.refuted]
    parts = [f"{len(refuted)} of {len(claims)} claimed epsilons are exceeded by what was measured"]
    if refuted:
        worst = max(refuted, key=lambda case: float(case.measured) / float(case.stated))
        parts.append(
            f"the worst, {worst.name}: claimed {float(worst.stated):.3g}, measured at least "
            f"{float(worst.measured):.3g} ({worst.stated.scope})"
        )
    wrong = [case for case in proven if case.refuted]
    if proven:
        parts.append(f"of {len(proven)} proven ones, {len(wrong) or 'none'} is exceeded")
    return "; ".join(parts) + "."


def _text(cases: Sequence[Audited], *, reduced: bool) -> tuple[str, ...]:
    if not cases:
        return ()
    tested = [case for case in cases if case.stated.basis is not Basis.NONE]
    alarm = min(1.0, sum(1 - float(case.data["confidence"]) for case in tested))
    text = (
        "Half of the trials choose the event, the other half judges it by two Clopper-Pearson "
        "bounds. The probability that a claim which is true is refuted is at most "
        f"{1 - _confidence(cases):.2g} for each case, and {alarm:.2g} for any of the {len(tested)}."
    )
    gradients = (
        "Vectors are gradients of MNIST in one round of training without compression: that of the "
        "worker whose largest coordinate is the most times its alpha, as privacy is about the "
        "worst case."
    )
    fewer = ("Reduced: with fewer trials bounds are lower, and fewer claims are refuted.",)
    return (text, gradients, *(fewer if reduced else ()))


def _facts(experiment: Experiment, cases: Sequence[Audited]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"seeds": 1, "confidence": _confidence(cases) if cases else None}
    for case in cases:
        facts[f"claimed/{case.name}"] = _shown(float(case.stated))
        facts[f"lower/{case.name}"] = float(case.measured)
        facts[f"measured/{case.name}"] = float(case.measured)
        facts[f"limit/{case.name}"] = None if case.limit is None else _shown(case.limit)
        facts[f"refuted/{case.name}"] = case.refuted
        facts[f"basis/{case.name}"] = str(case.stated.basis)
    proven = [case for case in cases if case.stated.basis is Basis.PROVEN]
    claims = [case for case in cases if case.stated.basis is Basis.CLAIMED]
    facts["broken"] = sum(case.refuted for case in claims)
    facts["claims"] = len(claims)
    facts["proven-stands"] = not any(case.refuted for case in proven) if proven else None
    facts["reduced"] = experiment.reduced
    return facts


def _inversions(experiment: Experiment, results: Results) -> list[Mapping[str, Any]]:
    for each in Measured.all_of(experiment, results, kind="audit"):
        if "inversion" in each.first:
            return list(each.first["inversion"])
    return []


def _of_inversion(experiment: Experiment, found: Sequence[Mapping[str, Any]]) -> list[Table]:
    rows = tuple(
        (
            str(each["message"]),
            None if (claim := each["claimed_by_theorem_1"]) is None else epsilon_of(claim),
            None if (claim := each["guaranteed"]) is None else epsilon_of(claim),
            round(float(each["mean_similarity"]), 3),
            round(float(each["least_similarity"]), 3),
            round(float(each["labels_right"]), 3),
        )
        for each in found
    )
    columns = (
        "message", "claimed", "proven", "similarity, mean", "similarity, least", "labels found",
    )  # fmt: skip
    caption = (
        "Images recovered from one gradient of one image. Similarity: correlation of estimate and "
        "image, each less the average public image; 0 for whoever learns nothing, and 10% of the "
        "labels are found by luck."
    )
    return [Table(f"{experiment.name}-inversion", "Images from messages", columns, rows, caption)]


def _inversion_facts(found: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for each in found:
        # Raw gradients are no sketches; what has a guarantee is not what the paper sends.
        message = str(each["message"])
        if each["claimed_by_theorem_1"] is not None:
            group = "inversion"
        elif each["guaranteed"] is not None:
            group = "inversion-proven"
            message += f", epsilon {float(each['guaranteed']['epsilon']):.3g}"
        else:
            group = "inversion-raw"
        facts[f"{group}/similarity/{message}"] = float(each["mean_similarity"])
        facts[f"{group}/labels/{message}"] = float(each["labels_right"])
    return facts

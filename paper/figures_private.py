"""The figures of privacy: audits, and what Theorem 1 claims for every message of a training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.pages.exhibits import Exhibit, Mark, Plot, Series, Table
from diffsketch.privacy.claim import Basis, Epsilon, Scope, Unit, rounded_down
from paper.experiments import Experiment, Results
from paper.figures import (
    COORDINATE,
    Fact,
    Figure,
    Measured,
    Rows,
    banded,
    mean_and_spread,
    mean_or_none,
    measured_of,
    plot,
    rounded,
    slug,
    table,
    texts,
)
from paper.projections import KeyTrust, SecretScope

_CLAIMED = f"claimed; {COORDINATE}"
_FAR = 10.0
_CHANGES = {
    "alpha": "one coordinate: alpha or -alpha",
    "largest": "one coordinate: the largest, or its negative",
    "client": "the whole vector: this worker's or another's",
    "added": "a whole vector, or zeros",
}


class AuditedCase:
    """An audit: what is stated, what was measured, and what the best attack reaches.

    Of a measurement it is the first seed's. A bound carries its own confidence; several seeds would
    only be more audits.
    """

    def __init__(self, measured: Measured) -> None:
        self.name, self.settings, self.data = measured.name, measured.settings, measured.first
        self.stated = epsilon_of(self.data["claimed"])  # infinite where nobody says anything
        self.measured = epsilon_of(self.data["measured_lower_bound"])
        best = self.data["best_possible"]  # None where it is not known
        unlimited = best is not None and best["epsilon"] is None
        self.limit = math.inf if unlimited else best and float(best["epsilon"])
        self.confidence = float(self.data["confidence"])
        self.proven = self.stated.basis is Basis.PROVEN
        # Never where nothing is stated.
        more = float(self.measured) > float(self.stated)
        self.refuted = self.stated.basis is not Basis.NONE and more
        claimed = None if math.isinf(self.stated) else float(self.stated)
        self.facts: dict[str, Fact] = {
            f"claimed/{self.name}": claimed,
            f"lower/{self.name}": float(self.measured),
        }

    @property
    def excess(self) -> float:
        """The measured epsilon over the stated one."""
        return float(self.measured) / float(self.stated)


def epsilon_of(data: Mapping[str, Any]) -> Epsilon:
    """The epsilon that an audit wrote, with all that it means."""
    kind = SecretScope if data["trust"] in list(KeyTrust) else Scope
    return Epsilon.from_json({"simulated": False, **data, "value": data["epsilon"]}, kind)


def audited_of(experiment: Experiment, results: Results) -> list[AuditedCase]:
    """The audits of an experiment, but the inversion and what is calculated."""
    found = measured_of(experiment, results, "audit")
    return [AuditedCase(each) for each in found if "measured_lower_bound" in each.first]


def draw_audits(experiment: Experiment, results: Results) -> Figure:
    """Bars: what is stated and what was measured; proven mechanisms apart.

    Guarantees (`paper/tests/test_figures_private.py`): what is refuted is counted as such,
    and nothing else.
    """
    cases, name, entry = audited_of(experiment, results), experiment.name, texts()["audits"]
    paper, proven = ([case for case in cases if case.proven is one] for one in (False, True))
    groups: dict[str, list[AuditedCase]] = {}
    for case in paper:
        group = "laplace" if "Laplace noise" in str(case.data["title"]) else "sketches"
        client = case.measured.scope.unit is Unit.CLIENT
        groups.setdefault("clients" if client else group, []).append(case)
    exhibits: list[Exhibit] = [
        _bars(f"{name}-{group}", texts()[f"audit-{group}"]["title"], some)
        for group, some in groups.items()
    ]
    if paper:
        exhibits.append(audit_table(f"{name}-cases", "What the paper sends", paper))
    found = [each.first for each in measured_of(experiment, results, "audit")]
    secret = [(one, each["delta"]) for each in found for one in each.get("secret", ())]
    if secret:
        exhibits.append(_secret_table(f"{name}-secret", secret))
    inverted, batches = (
        [one for each in found for one in each.get(key, ())] for key in ("inversion", "batches")
    )
    if inverted:
        exhibits.append(_inversion_table(f"{name}-inversion", [*inverted, *batches]))
    claims = [case for case in paper if case.stated.basis is Basis.CLAIMED]
    refuted = [case for case in claims if case.refuted]
    lead = [entry["lead"].format(refuted=len(refuted), claims=len(claims))]
    if refuted:
        worst = max(refuted, key=lambda case: case.excess)
        numbers = {"stated": float(worst.stated), "measured": float(worst.measured)}
        lead.append(entry["worst"].format(name=worst.name, scope=worst.stated.scope, **numbers))
    beside: tuple[Exhibit, ...] = ()
    wrong = sum(case.refuted for case in proven)
    if proven:
        lead.append(entry["proven"].format(count=len(proven), wrong=wrong or "none"))
        beside = (
            _bars(f"{name}-proven-claims", "Proven mechanisms, audited alike", proven),
            audit_table(f"{name}-proven-cases", "Audits of proven mechanisms", proven),
        )
    least = min((case.confidence for case in cases), default=None)
    text: list[str] = []
    if least is not None:
        tested = [1 - case.confidence for case in cases if case.stated.basis is not Basis.NONE]
        any_wrong = min(1.0, sum(tested))
        trials = entry["trials"].format(wrong=1 - least, any_wrong=any_wrong, tested=len(tested))
        text = [trials, entry["gradients"], *([entry["reduced"]] if experiment.reduced else [])]
    facts: dict[str, Fact] = {"seeds": 1, "confidence": least}
    for case in cases:
        finite = case.limit is not None and math.isfinite(case.limit)
        facts |= case.facts | {
            f"measured/{case.name}": float(case.measured),
            f"limit/{case.name}": case.limit if finite else None,
            f"refuted/{case.name}": case.refuted,
            f"basis/{case.name}": str(case.stated.basis),
        }
    facts |= {
        "broken": len(refuted),
        "claims": len(claims),
        "proven-stands": not wrong if proven else None,
        "reduced": experiment.reduced,
    }
    facts |= _inversion_facts(inverted, batches) | _secret_facts([one for one, _ in secret])
    return Figure("; ".join(lead) + ".", tuple(exhibits), beside, tuple(text), facts)


def _bars(name: str, title: str, cases: Sequence[AuditedCase]) -> Plot:
    """Bars for each case: stated, measured, and what the best attack reaches."""
    word, measured = "proven" if cases[0].proven else "claimed", "measured, at least"
    limited = {str(case.measured.scope) for case in cases if case.limit is not None}
    sets: dict[str, Sequence[Epsilon | float | None]] = {
        word: [case.stated for case in cases],
        measured: [case.measured for case in cases],
        "best attack, exact": [case.limit for case in cases],
    }
    series: list[Series] = []
    for legend, values in sets.items():
        # The legend has what the epsilon is worth, where it is the same for all.
        of = [value for value in values if isinstance(value, Epsilon)]
        known = [each for each in of if each.basis is not Basis.NONE]
        same = len({(each.basis, each.scope) for each in known}) == 1
        text = "" if of else f"calculated, one message; {'; or '.join(sorted(limited))}"
        # On a logarithmic axis.
        numbers = [None if value is None else float(value) for value in values]
        heights = tuple(v if v is not None and 0 < v < math.inf else None for v in numbers)
        if limited if not of else any(value is not None for value in heights):
            series.append(
                Series(
                    legend,
                    tuple(float(place) for place in range(len(cases))),
                    heights,
                    kind="bars",
                    dashed=legend != measured,
                    epsilon=known[0] if same else None,
                    epsilon_text="by case, one message" if same else text,
                    epsilon_along="y",
                )
            )
    tops = [value for each in series for value in each.y if value is not None]
    return plot(
        "audit-bars",
        name,
        series,
        categories=[case.name for case in cases],
        # Of bars that are nearly as long, a logarithmic axis shows the ends alone.
        log_y=bool(tops) and max(tops) > _FAR * min(tops),
        title=title,
        word=word,
        units="; or ".join(sorted({str(case.stated.scope) for case in cases})),
        confidence=min(case.confidence for case in cases),
        deltas=" or ".join(sorted({f"{case.measured.delta:g}" for case in cases})),
    )


def audit_table(name: str, title: str, cases: Sequence[AuditedCase]) -> Table:
    """A row for each case."""
    rows: Rows = []
    for case in cases:
        data, limit = case.data, case.limit
        rows.append(
            (
                case.name,
                str(data["title"]),
                _CHANGES.get(str(data["change"]), "one coordinate"),
                str(data["adversary"]),
                case.stated,
                case.measured,
                "unlimited" if limit == math.inf else limit and round(limit, 4),
                int(data["trials_per_world"]),
                case.confidence,
                str(data["verdict"]),
            )
        )
    return table("audits", name, rows, title=title)


def _inversion_table(name: str, inverted: Sequence[Mapping[str, Any]]) -> Table:
    rows: Rows = []
    for each in inverted:
        claims = [each["claimed_by_theorem_1"], each["guaranteed"]]
        numbers = (each["mean_similarity"], each["least_similarity"], each["labels_right"])
        epsilons = [None if claim is None else epsilon_of(claim) for claim in claims]
        rows.append((str(each["message"]), *epsilons, *(round(float(one), 3) for one in numbers)))
    return table("inversion", name, rows)


def _secret_table(name: str, found: Sequence[tuple[Mapping[str, Any], float]]) -> Table:
    """A row for each table: Theorem 1's claim, and what is calculated under its assumptions.

    Those are numbers without a basis: nothing guarantees Gaussian others and secret hashes.
    """
    rows: Rows = []
    for each, _ in found:
        claimed = None if each["claimed"] is None else _claim(each["claimed"])
        rows.append((str(each["table"]), claimed, rounded(each["exact"]), rounded(each["bound"])))
    return table("secret-hashes", name, rows, delta=found[0][1], scope=COORDINATE)


def _secret_facts(found: Sequence[Mapping[str, Any]]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {
        f"secret/{key}/{each['table']}": each[key]
        for each in found
        for key in ("claimed", "exact", "bound")
    }
    stated = [each for each in found if each["claimed"] is not None]
    if stated:
        facts["secret/holds"] = all(
            each["bound"] is not None and each["bound"] <= each["claimed"] for each in stated
        )
    return facts


def _inversion_facts(
    inverted: Sequence[Mapping[str, Any]], batches: Sequence[Mapping[str, Any]]
) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for each in batches:
        facts[f"inversion-batch/similarity/{each['message']}"] = float(each["mean_similarity"])
        facts[f"inversion-batch/labels/{each['message']}"] = float(each["labels_right"])
    for each in inverted:
        # Raw gradients are no sketches; what has a guarantee is not what the paper sends.
        message, group = str(each["message"]), "inversion-raw"
        if each["claimed_by_theorem_1"] is not None:
            group = "inversion"
        elif each["guaranteed"] is not None:
            group = "inversion-proven"
            message += f", epsilon {float(each['guaranteed']['epsilon']):.3g}"
        facts[f"{group}/similarity/{message}"] = float(each["mean_similarity"])
        facts[f"{group}/labels/{message}"] = float(each["labels_right"])
    return facts


# --- what Theorem 1 claims for every message -------------------------------------------------


class MessageClaims:
    """Theorem 1's claims for the messages of one table and padding, over the seeds."""

    def __init__(self, rows: int, found: Sequence[Mapping[str, Any]]) -> None:
        self.found, first = found, found[0]
        self.size, self.compression = f"{rows} x {first['cols']}", float(first["compression"])
        self.length = int(first["padding"])  # of the appended noise, in lengths of the vector
        self.padding = f"{self.length}n" if self.length else "none"
        # Over the seeds; None where one of them has no finite median, or no message with a claim.
        self.median = mean_or_none([each["median"] for each in found])
        self.claimed = None if self.median is None else _claim(self.median)
        self.finite_mean = mean_or_none([each["finite_mean"] for each in found])
        self.finite = 1 - statistics.fmean(each["without"] for each in found)
        # Of the repaired padding: the most over hashes and seeds.
        proven = [each["proven"] for each in found if each["proven"] is not None]
        most = max((value["most"] for value in proven), default=None)
        self.proven_value: float | None = most
        self.proven: Epsilon | None = None
        if most is not None:
            self.proven = Epsilon(most, proven[0]["delta"], 1, Basis.PROVEN, COORDINATE)

    def needs_noise(self, requirement: str) -> tuple[float, float | None]:
        """Share of messages that exceed the requirement, or have no claim; and its spread."""
        return mean_and_spread([each["needs_noise"][requirement] for each in self.found])


class MessageRun:
    """A training whose messages were looked at."""

    def __init__(self, measured: Measured) -> None:
        self.name, self.found, first = measured.name, measured.found, measured.first
        self.requirements = list(first["tables"][0]["needs_noise"])
        tables = zip(*(each["tables"] for each in self.found), strict=True)
        self.tables = [MessageClaims(first["table_rows"], each) for each in tables]
        # Share of messages that got Laplace noise in the run itself; None if it adds none.
        self.noised = mean_or_none([each["noised"] for each in self.found])
        self.ratio = statistics.fmean(each["ratio"]["mean"] for each in self.found)


def _claim(value: float) -> Epsilon:
    return Epsilon(value, 0.0, 1, Basis.CLAIMED, COORDINATE)


def _epsilons(
    name: str, x: Sequence[float], found: Sequence[Epsilon | None], text: str, **more: Any
) -> list[Series]:
    """The series of these epsilons; nothing if there is none."""
    first = next((each for each in found if each is not None), None)
    y = tuple(None if each is None else float(each) for each in found)
    more |= {"epsilon": first, "epsilon_text": text, "epsilon_along": "y"}
    return [] if first is None else [Series(name, tuple(x), y, **more)]


def _claims_table(experiment: Experiment, runs: Sequence[MessageRun]) -> Table:
    """A row for each training, table and padding."""
    requirements = runs[0].requirements
    before, after = texts()["claims"]["before"], texts()["claims"]["after"]
    above = [f"above {value} (needs noise)" for value in requirements]
    rows: Rows = [
        (run.name, claims.size, round(claims.compression, 1), claims.padding,
         claims.claimed, round(1 - claims.finite, 4),
         *(round(claims.needs_noise(value)[0], 4) for value in requirements), claims.proven)
        for run in runs
        for claims in run.tables
    ]  # fmt: skip
    return table("claims", f"{experiment.name}-claims", rows, [*before, *above, *after])


def draw_local_epsilon(experiment: Experiment, results: Results) -> Figure:
    """The histogram of the claims of all messages, and the share that needs noise.

    The first measurement is the figure's; of others, which differ in the table or in the noise of
    the training, the numbers are in the table.

    Guarantees (`paper/tests/test_figures_private.py`): shares are means over the seeds; a
    message without a claim needs noise.
    """
    runs = [MessageRun(one) for one in measured_of(experiment, results, "local-epsilon")]
    audits, first, name = audited_of(experiment, results), runs[0], experiment.name
    by_padding: dict[str, Series] = {}  # of two trainings with the same table, the first one's
    for run in runs:
        for size in dict.fromkeys(claims.size for claims in run.tables):
            own = [claims for claims in run.tables if claims.size == size and claims.length]
            x = [float(claims.length) for claims in own]
            for basis in ("claimed", "proven"):
                found: list[Epsilon | None] = [getattr(claims, basis) for claims in own]
                for series in _epsilons(f"{size}, {basis}", x, found, "by length, a round",
                                        dashed=basis == "claimed", role=size):  # fmt: skip
                    by_padding.setdefault(series.name, series)
    bare, most, entry = first.tables[0], first.tables[-1], texts()["needs-noise"]
    shares = (
        entry["share"].format(
            value=value,
            bare=bare.needs_noise(value)[0],
            most=most.needs_noise(value)[0],
            padding=most.padding,
        )
        for value in first.requirements
    )
    lead = entry["lead"].format(shares="; ".join(shares), claimed=_CLAIMED)
    if refuted := [case for case in audits if case.refuted]:
        worst = max(refuted, key=lambda case: case.excess)
        lead += entry["refuted"].format(
            measured=rounded_down(float(worst.measured)), stated=float(worst.stated)
        )
    ratios = ", ".join(f"{run.ratio:.3g} in {run.name}" for run in runs)
    text = entry["text"].format(ratios=ratios)
    if noised := [f"{run.noised:.1%} in {run.name}" for run in runs if run.noised is not None]:
        text += entry["noised"].format(noised=", ".join(noised))
    return Figure(
        lead=lead,
        exhibits=(_histogram(name, first), _shares(name, runs), _claims_table(experiment, runs)),
        proven=(
            plot("by-padding", f"{name}-proven", list(by_padding.values())),
            *_audits_beside(name, audits),
        ),
        text=(text,),
        facts=_local_facts(runs) | {k: v for case in audits for k, v in case.facts.items()},
    )


def _audits_beside(name: str, audits: Sequence[AuditedCase]) -> list[Table]:
    title = "What an audit measures"
    return [audit_table(f"{name}-audits", title, audits)] if audits else []


def _histogram(name: str, run: MessageRun) -> Plot:
    """The claims of all messages of a run, for each padding."""
    edges, series = tuple(run.found[0]["edges"]), []
    messages = sum(int(each["messages"]) for each in run.found)
    for claims in run.tables:
        counts = zip(*(each["counts"] for each in claims.found), strict=True)
        series.append(
            Series(
                f"{claims.padding} appended ({1 - claims.finite:.0%} without a claim)",
                edges,
                tuple(sum(some) / messages for some in counts),
                kind="steps",
                role=f"{claims.padding} appended",
                epsilon=_claim(0.0),
                epsilon_text="of each message, one round",
                epsilon_along="x",
            )
        )
    marks = [
        Mark(float(value), f"requirement {value}", axis="x", epsilon=_claim(float(value)))
        for value in run.requirements
    ]
    return plot("histogram", f"{name}-histogram", series, marks=marks, table=run.tables[0].size,
                claimed=_CLAIMED, messages=messages, seeds=len(run.found))  # fmt: skip


def _shares(name: str, runs: Sequence[MessageRun]) -> Plot:
    """Bars: the share of messages that need noise, for each padding."""
    series = []
    for run in runs:
        for requirement in run.requirements:
            found = [claims.needs_noise(requirement) for claims in run.tables]
            series.append(
                Series(
                    f"{run.name}: above {requirement}",
                    tuple(float(place) for place in range(len(found))),
                    **banded(found, kind="bars"),
                    epsilon=_claim(float(requirement)),
                )
            )
    paddings = [claims.padding for claims in runs[0].tables]
    return plot("needs-noise", f"{name}-needs-noise", series, categories=paddings, claimed=_CLAIMED)


def _local_facts(runs: Sequence[MessageRun]) -> dict[str, Fact]:
    first = runs[0]
    facts: dict[str, Fact] = {
        "seeds": len(first.found),
        "rounds": int(first.found[0]["rounds"]),
        "messages": sum(int(each["messages"]) for each in first.found),
    }
    for run in runs:
        facts |= {f"noised/{run.name}": run.noised, f"ratio/{run.name}": run.ratio}
        for claims in run.tables:
            padding = claims.padding
            for value in run.requirements:
                share, spread = claims.needs_noise(value)
                name = f"{claims.size.replace(' ', '')}/{padding}/{value}"
                if run is first:
                    facts[f"share-within/{padding}/{value}"] = 1 - share
                    facts[f"spread/share-within/{padding}/{value}"] = spread
                facts.setdefault(f"needs-noise/{name}", share)
                facts[f"needs-noise/{run.name}/{name}"] = share
            if run is first:
                facts |= {
                    f"finite/{padding}": claims.finite,
                    f"median/{padding}": claims.median,
                    f"claimed/{padding}": claims.median,
                    f"proven/{padding}": claims.proven_value,
                }
    for value in first.requirements:
        lengths = [each["needed"][value] for each in first.tables[0].found]
        facts[f"needed/{value}"] = mean_or_none(lengths)
    return facts


def draw_privacy_communication(experiment: Experiment, results: Results) -> Figure:
    """Epsilon over the compression ratio, claimed beside proven, and the share without a claim.

    Guarantees (`paper/tests/test_figures_private.py`): a mean is over the messages with a
    claim, and is left out where there are none.
    """
    runs = [MessageRun(one) for one in measured_of(experiment, results, "local-epsilon")]
    audits, name, entry = audited_of(experiment, results), experiment.name, texts()
    exhibits: list[Exhibit] = []
    proven: list[Exhibit] = []
    for run in runs:
        place = f"{name}-{slug(run.name)}"
        claimed, without, series = list[Series](), list[Series](), list[Series]()
        for padding, some in _by_padding(run).items():
            x, role = tuple(claims.compression for claims in some), f"{padding} appended"
            means = [None if (one := c.finite_mean) is None else _claim(one) for c in some]
            claimed += _epsilons(role, x, means, "mean over messages with a claim, a round",
                                 dashed=True, role=role)  # fmt: skip
            without.append(Series(role, x, tuple(1 - claims.finite for claims in some), role=role))
            repaired = _epsilons(f"{role}, proven", x, [claims.proven for claims in some],
                                 "by ratio, a round", role=role)  # fmt: skip
            if repaired:
                medians = tuple(claims.median for claims in some)
                series += [
                    *repaired,
                    Series(f"{role}, claimed", x, medians, dashed=True, role=role,
                           epsilon=_claim(0.0), epsilon_text="median by ratio, a round",
                           epsilon_along="y"),
                ]  # fmt: skip
        own = audits if run is runs[0] else []
        series += _audited_series(own, dim=int(run.found[0]["dim"]))
        fields: dict[str, Any] = {
            "run": run.name,
            "claimed": _CLAIMED,
            "end": entry["over-ratio"]["end" if claimed else "nothing"],
            "audited": entry["proven-over-ratio"]["audited"] if own else "",
        }
        exhibits.append(plot("over-ratio", f"{place}-claimed", claimed, **fields))
        exhibits.append(plot("without", f"{place}-without", without, **fields))
        if series:
            proven.append(plot("proven-over-ratio", f"{place}-proven", series, **fields))
    return Figure(
        lead=_ratio_lead(runs[0], audits),
        exhibits=(*exhibits, _claims_table(experiment, runs)),
        proven=(*proven, *_audits_beside(name, audits)),
        text=(entry["proven-over-ratio"]["text"],),
        facts=_ratio_facts(runs) | {k: v for case in audits for k, v in case.facts.items()},
    )


def _by_padding(run: MessageRun) -> dict[str, list[MessageClaims]]:
    """The tables by the appended noise, in the order of the compression."""
    found: dict[str, list[MessageClaims]] = {claims.padding: [] for claims in run.tables}
    for claims in sorted(run.tables, key=lambda claims: claims.compression):
        found[claims.padding].append(claims)
    return found


def _audited_series(audits: Sequence[AuditedCase], *, dim: int) -> list[Series]:
    """The measured bounds of audits of tables, over their ratios."""
    groups: dict[str, list[tuple[float, Epsilon]]] = {}
    for case in audits:
        given = case.settings
        if given.get("case") == "padded":
            how = "bare" if not given["padding"] else f"{given['padding']}n appended"
            ratio = dim / (int(given["rows"]) * int(given["cols"]))
            groups.setdefault(f"{how}, {given['change']}", []).append((ratio, case.measured))
    series = []
    for name, pairs in groups.items():
        x, bounds = zip(*sorted(pairs, key=lambda pair: pair[0]), strict=True)
        series += _epsilons(f"measured, at least: {name}", x, bounds, "lower bounds, a message",
                            kind="points")  # fmt: skip
    return series


def _ratio_lead(run: MessageRun, audits: Sequence[AuditedCase]) -> str:
    bare, entry = next(iter(_by_padding(run).values())), texts()["over-ratio"]
    some = [(one.finite_mean, one.compression) for one in bare if one.finite_mean is not None]
    if not some:
        return str(entry["no-claim"].format(run=run.name))
    lead: str = entry["lead"].format(
        run=run.name, least=bare[0], most=bare[-1], first=some[0], last=some[-1], claimed=_CLAIMED
    )
    if refuted := [float(case.measured) for case in audits if case.refuted]:
        counts = {"audits": len(audits), "refuted": len(refuted)}
        lead += entry["refuted"].format(**counts, least=min(refuted))
    return lead


def _ratio_facts(runs: Sequence[MessageRun]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {"seeds": len(runs[0].found)}
    last = runs[0].requirements[-1]
    for run in runs:
        for claims in run.tables:
            ratio = f"{claims.compression:.0f}x"
            numbers: dict[str, Fact] = {
                "epsilon": claims.finite_mean,
                "median": claims.median,
                "finite": claims.finite,
                "noised": claims.needs_noise(last)[0],
                "proven": claims.proven_value,
            }
            for what, value in numbers.items():
                facts[f"{run.name}/{claims.padding}/{what}/{ratio}"] = value
                if run is runs[0] and claims.padding == "none":
                    facts[f"{what}/{ratio}"] = value
    return facts

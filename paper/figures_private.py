"""Records of privacy: audits, and what Theorem 1 claims for every message of a training."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.privacy.claim import Basis, Epsilon, Scope, Unit
from paper.experiments import Experiment, Results
from paper.figures import (
    COORDINATE,
    Figure,
    Measured,
    Record,
    draw,
    mean_and_spread,
    mean_or_none,
    measured_of,
    share_of,
    texts,
)
from paper.projections import KeyTrust, SecretScope

_CHANGES = {
    "alpha": "one coordinate: alpha or -alpha",
    "largest": "one coordinate: the largest, or its negative",
    "client": "the whole vector: this worker's or another's",
    "added": "a whole vector, or zeros",
}


def claimed_epsilon(value: float | None) -> Epsilon | None:
    """The claim of Theorem 1 about one message, if it makes one."""
    return None if value is None else Epsilon(value, 0.0, 1, Basis.CLAIMED, COORDINATE)


def epsilon_of(data: Mapping[str, Any]) -> Epsilon:
    """The epsilon that an audit wrote, with all that it means."""
    kind = SecretScope if data["trust"] in list(KeyTrust) else Scope
    return Epsilon.from_json({"simulated": False, **data, "value": data["epsilon"]}, kind)


# --- audits ----------------------------------------------------------------------------------


def case_of(audit: Measured) -> Record:
    """An audit: what is stated, what was measured, and what the best attack reaches.

    Of a measurement it is the first seed's. A bound carries its own confidence; several seeds would
    only be more audits.
    """
    data = audit.first
    stated, measured = (epsilon_of(data[name]) for name in ("claimed", "measured_lower_bound"))
    best = data["best_possible"]  # None where it is not known, without a number if unlimited
    limit = None if best is None else best["epsilon"]
    proven = stated.basis is Basis.PROVEN
    # More than is stated, if anything is, or than the exact limit of what is proven.
    refuted = stated.basis is not Basis.NONE and float(measured) > float(stated)
    beyond = proven and limit is not None and float(measured) > limit
    return {
        **data,
        **audit.settings,
        "name": audit.name,
        "differs": data["change"],
        "change": _CHANGES.get(str(data["change"]), "one coordinate"),
        "scope": str(measured.scope),
        "basis": str(stated.basis),
        "proven": proven,
        "planted": data.get("planted_error") is not None,
        "wrong": refuted or beyond,
        "stated": stated,
        "measured": measured,
        # Infinite where nobody says anything.
        "claimed": None if math.isinf(stated) else float(stated),
        "limit": limit,
        "best": "unlimited" if best is not None and limit is None else limit,
        # Bars of nothing, of 0 and of infinity have no place on a logarithmic axis.
        "stated_bar": stated if 0 < float(stated) < math.inf else None,
        "measured_bar": measured if float(measured) > 0 else None,
    }


def cases_of(experiment: Experiment, results: Results) -> list[Record]:
    """The audits of an experiment, but the inversion and what is calculated."""
    audits = measured_of(experiment, results)
    return [case_of(audit) for audit in audits if "measured_lower_bound" in audit.first]


def draw_audits(experiment: Experiment, results: Results) -> Figure:
    """Bars: what is stated and what was measured, of proven mechanisms apart.

    What is calculated for secret hashes are numbers without a basis: nothing guarantees Gaussian
    others and secret hashes.

    Guarantees (`paper/tests/test_figures_private.py`): an inversion of what is raw or proven is no
    fact about what the paper sends.
    """
    cases, titles = cases_of(experiment, results), texts()["audit"]["groups"]
    for case in cases:
        client = case["measured"].scope.unit is Unit.CLIENT
        group = "laplace" if "Laplace noise" in case["title"] else "sketches"
        case["group"] = "clients" if client else group
        case["group_title"] = titles[case["group"]]
    calculated = [audit.first for audit in measured_of(experiment, results)]
    secret = [
        {**row, "stated": row["claimed"], "claimed": claimed_epsilon(row["claimed"]),
         "delta": data["delta"], "scope": COORDINATE}
        for data in calculated
        for row in data.get("secret", ())
    ]  # fmt: skip
    inverted = [
        _inverted(row, kind)
        for kind in ("inversion", "batches")
        for data in calculated
        for row in data.get(kind, ())
    ]
    confidence = min((case["confidence"] for case in cases), default=None)
    stated = [row for row in secret if row["stated"] is not None]
    holds = all(row["bound"] is not None and row["bound"] <= row["stated"] for row in stated)
    records = {
        "cases": cases, "secret": secret, "inverted": inverted,
        "all": [{"confidence": confidence}],
        "all_secret": [{"holds": holds}] if stated else [],
    }  # fmt: skip
    return draw(experiment, records)


def _inverted(row: Mapping[str, Any], kind: str) -> Record:
    """Images from messages. Raw gradients, and messages with a proof, are not the paper's."""
    stated, proven = row["claimed_by_theorem_1"], row["guaranteed"]
    return {
        **row,
        "claimed": None if stated is None else epsilon_of(stated),
        "proven": None if proven is None else epsilon_of(proven),
        "group": "inversion-batch" if kind == "batches" else "inversion",
        "of_the_paper": kind == "batches" or stated is not None,
    }


# --- what Theorem 1 claims for every message -------------------------------------------------


def draw_claims(experiment: Experiment, results: Results) -> Figure:
    """The claims of Theorem 1 for the messages of trainings, by table and appended noise.

    The first measurement is the figure's; of others, which differ in the table or in the noise of
    the training, the numbers are in the table.

    Guarantees (`paper/tests/test_figures_private.py`): shares are means over the seeds; a
    message without a claim needs noise; a mean is over the messages with a claim, and is left out
    where there are none.
    """
    trainings = measured_of(experiment, results, "local-epsilon")
    claims, needs, bins = list[Record](), list[Record](), list[Record]()
    for training in trainings:
        for tables in zip(*(each["tables"] for each in training.by_seed), strict=True):
            claim = _claim(training, tables)
            # Of two trainings with the same table, the first one's is in the figure.
            claim["first_of_size"] = claim["size"] not in [
                each["size"] for each in claims if each["run"] != training.name
            ]
            claim["first"] = training is trainings[0]
            claims.append(claim)
            needs += _needs(claim, tables)
            bins += _bins(claim, training, tables)
    cases = cases_of(experiment, results)
    dim = trainings[0].first["dim"]
    for case in cases:
        case["run"] = trainings[0].name
        if case["case"] == "padded":
            case["ratio"] = dim / (case["rows"] * case["cols"])
            case["appended"] = f"{case['padding']}n appended" if case["padding"] else "bare"
    records = {"claims": claims, "needs": needs, "bins": bins, "cases": cases}
    return draw(experiment, records)


def _claim(training: Measured, tables: Sequence[Mapping[str, Any]]) -> Record:
    """Theorem 1's claims for the messages of one table and padding, over the seeds."""
    first, length = tables[0], int(tables[0]["padding"])  # in lengths of the vector
    finite = 1 - statistics.fmean(each["without"] for each in tables)
    # Of the repaired padding: the most over hashes and seeds.
    bounds, proven = [each["proven"] for each in tables if each["proven"] is not None], None
    if bounds:
        most = max(bound["most"] for bound in bounds)
        proven = Epsilon(most, bounds[0]["delta"], 1, Basis.PROVEN, COORDINATE)
    return {
        "run": training.name,
        "size": f"{training.first['table_rows']} x {first['cols']}",
        "compression": float(first["compression"]),
        "table": f"{training.first['table_rows']}x{first['cols']}",
        "length": float(length),
        "padded": length > 0,
        "padding": f"{length}n" if length else "none",
        "finite": finite,
        "without": 1 - finite,
        "claimed": claimed_epsilon(mean_or_none(each["median"] for each in tables)),
        "claimed_mean": claimed_epsilon(mean_or_none(each["finite_mean"] for each in tables)),
        "proven": proven,
        "repaired": bool(bounds),
    }


def _needs(claim: Record, tables: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The share of messages that exceed each requirement, or have no claim."""
    needs = []
    for requirement in tables[0]["needs_noise"]:
        share, spread = mean_and_spread([each["needs_noise"][requirement] for each in tables])
        claim[f"above {requirement}"] = share
        needs.append({
            **claim, "requirement": requirement, "share": share, "within": 1 - share,
            **share_of(share, spread), "epsilon": claimed_epsilon(float(requirement)),
            "value": float(requirement),
        })  # fmt: skip
    return needs


def _bins(claim: Record, training: Measured, tables: Sequence[Mapping[str, Any]]) -> list[Record]:
    """The histogram of all messages' claims. The last bin's end is a place of its own."""
    messages = sum(int(each["messages"]) for each in training.by_seed)
    counts = [sum(column) for column in zip(*(each["counts"] for each in tables), strict=True)]
    common = {**claim, "messages": messages, "epsilon": claimed_epsilon(0.0)}
    return [
        {**common, "edge": edge, "share": None if count is None else count / messages}
        for edge, count in zip(training.first["edges"], [*counts, None], strict=True)
    ]

"""Records of measurements: audits, Theorem 1's claims, distributions, and the paper's tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from diffsketch.files import finite
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS
from paper.calculations import ALPHA, DELTA, cpsgd_bits, cpsgd_epsilon, theorem_1
from paper.experiments import Experiment, Results
from paper.figures import (
    COORDINATE,
    SECURE_SUM,
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
from paper.secret_hashes import epsilon_bound

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
    return Epsilon.from_json({"simulated": False, **data, "value": data["epsilon"]})


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
    return {
        **data,
        **audit.settings,
        "name": audit.name,
        "change": _CHANGES.get(str(data["change"]), "one coordinate"),
        "scope": str(measured.scope),
        "basis": str(stated.basis),
        "proven": proven,
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


def secret_hashes(dim: int, rows: int, cols: int) -> Record:
    """Theorem 1's claim and the proven bound, hashes being secret; None for what is infinite."""
    stated = finite(theorem_1(dim, rows, cols))
    bound = finite(epsilon_bound(dim, rows, cols, alpha=ALPHA, delta=DELTA))
    return {"table": f"{rows} x {cols} of {dim:,}", "stated": stated, "bound": bound,
            "claimed": claimed_epsilon(stated), "delta": DELTA, "scope": COORDINATE}  # fmt: skip


def draw_audits(experiment: Experiment, results: Results) -> Figure:
    """Bars and tables: what is stated and what was measured, of proven mechanisms apart.

    What is calculated for secret hashes are numbers without a basis: nothing guarantees Gaussian
    others and secret hashes.
    """
    audits, titles = measured_of(experiment, results), texts()["audit"]["groups"]
    cases = [case_of(audit) for audit in audits if "measured_lower_bound" in audit.first]
    for case in cases:
        client = case["measured"].scope.unit is Unit.CLIENT
        group = "laplace" if "Laplace noise" in case["title"] else "sketches"
        case["group"] = "clients" if client else group
        case["group_title"] = titles[case["group"]]
    secret = [secret_hashes(*sizes) for sizes in experiment.options.get("secret", ())]
    inverted = [
        {**row, "claimed": epsilon_of(row["claimed_by_theorem_1"])}
        for audit in audits
        for row in audit.first.get("batches", ())
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


# --- what Theorem 1 claims for every message -------------------------------------------------


def draw_claims(experiment: Experiment, results: Results) -> Figure:
    """The claims of Theorem 1 for the messages of trainings, by table and appended noise.

    The first measurement is the figure's; of others, which differ in the table or in the noise of
    the training, the numbers are in the table.

    Guarantees (`paper/tests/test_figures_measured.py`): shares are means over the seeds; a
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
    return draw(experiment, {"claims": claims, "needs": needs, "bins": bins})


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


# --- distributions of gradients and model updates --------------------------------------------

_NUMBERS = ("zeros", "sigma", "alpha", "ratio", "beyond", "largest", "kurtosis", "ks", "ks_nonzero")


def draw_distributions(experiment: Experiment, results: Results) -> Figure:
    """Histograms of each vector with a Gaussian, and a table of all vectors.

    Option `what`: the vectors, such as "gradients". The first measurement is the figure's; of
    others there are facts, with their names before them, and a table.

    Guarantees (`paper/tests/test_figures_measured.py`): densities integrate to the share of the
    vector's coordinates within the plot; facts are means over vectors and seeds.
    """
    trainings = measured_of(experiment, results)
    data, rows, every = trainings[0].first, list[Record](), list[Record]()
    for training in trainings:
        about = {"training": training.name, "first": training is trainings[0]}
        same = zip(*(each["vectors"] for each in training.by_seed), strict=True)
        vectors = [_vector(place, seeds) for place, seeds in enumerate(same, 1)]
        rows += [{**about, **vector} for vector in vectors]
        every.append({**about, **_means(vectors)})
    bins = [point for vector in data["vectors"] for point in densities(data, vector)]
    # As far as the logarithmic plot has anything else.
    least = min(point["density"] for point in bins if point["density"]) / 3
    places = [(first + second) / 2 for first, second in pairwise(data["edges"])]
    heights = [math.exp(-place * place / 2) / math.sqrt(2 * math.pi) for place in places]
    bell = [
        {"place": place, "density": height}
        for place, height in zip(places, heights, strict=True)
        if height > least
    ]
    records = {"bins": bins, "bell": bell, "vectors": rows, "trainings": every}
    return draw(experiment, records)


def densities(data: Mapping[str, Any], vector: Mapping[str, Any]) -> list[Record]:
    """The density of one vector's standardised coordinates at the edge where each bin begins."""
    edges = data["edges"]
    scale = int(data["dim"]) * (edges[1] - edges[0])
    about = {"round": vector["round"] + 1, "device": vector["device"]}
    return [
        {**about, "place": edge, "density": None if count is None else count / scale}
        for edge, count in zip(edges, [*vector["counts"], None], strict=True)
    ]


def _vector(place: int, seeds: Sequence[Mapping[str, Any]]) -> Record:
    """A vector, with its means over the seeds."""
    devices = {str(vector["device"]) for vector in seeds}
    device = devices.pop() if len(devices) == 1 else "one of each seed"
    index = int(seeds[0]["round"]) + 1
    return {"place": place, "round": index, "device": device, **_means(seeds)}


def _means(vectors: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    means = {}
    for name in _NUMBERS:
        values = [vector[name] for vector in vectors if vector[name] is not None]
        means[name] = statistics.fmean(values) if values else None
    return means


# --- the paper's tables ----------------------------------------------------------------------


def draw_datasets(experiment: Experiment, results: Results) -> Figure:
    """The table of data sets."""
    rows = []
    for each in measured_of(experiment, results):
        data, samples = each.first, each.first["samples"]
        rows.append({
            "name": each.name, "devices": data["devices"],
            "parameters": next(iter(data["parameters"].values())),
            "mean": round(samples["mean"], 1), "std": round(samples["std"], 1),
            "trained": data["trained"]["mean"], "test": data["test"],
        })  # fmt: skip
    return draw(experiment, {"rows": rows})


def draw_cpsgd(experiment: Experiment, _: Results) -> Figure:
    """The paper's k and m, the bits that they take, and what cpSGD's theorem says of them.

    All of it is calculated: for the devices of a round, and for all that there are.
    """
    rows: list[Record] = []
    for row in PAPER_SETTINGS:
        code = {"levels": row.levels, "trials": row.trials}
        proven = {}
        for name, cohort in (("round", 10), ("everyone", 6000)):
            value = cpsgd_epsilon(cohort, **code)
            basis = Basis.PROVEN if value < math.inf else Basis.NONE
            proven[name] = Epsilon(value, DELTA, 1, basis, SECURE_SUM)
        rows.append({
            **row._asdict(), **proven, "target": f"{row.claimed:g}",
            "bits_needed": cpsgd_bits(10, **code), "compression": 32 / row.bits,
            "claimed": Epsilon(row.claimed, DELTA, 1, Basis.CLAIMED, SECURE_SUM),
        })  # fmt: skip
    return draw(experiment, {"rows": rows})

"""Drawings: the results of an experiment as lists of records, which `figures.toml` describes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from diffsketch.app.run_records import RunLine, RunRecord
from diffsketch.app.settings import RunConfig
from diffsketch.files import finite
from diffsketch.privacy.claim import Basis, Epsilon, Unit, rounded_up
from diffsketch.privacy.mechanisms.binomial import PAPER_SETTINGS
from diffsketch.training.data import load_shakespeare
from diffsketch.training.tasks import load_task
from diffsketch.wire.message import payload_within
from paper.calculations import ALPHA, DELTA, cpsgd_bits, cpsgd_epsilon, epsilon_bound, theorem_1
from paper.experiments import Experiment, PanelFields, Results, Variant, texts
from paper.figures import (
    SECURE_SUM,
    Figure,
    Measured,
    Record,
    Records,
    band_of,
    draw,
    mean_and_spread,
    mean_or_none,
    measured_of,
)
from paper.methods import COORDINATE

# --- training runs ---------------------------------------------------------------------------

_TARGET = 0.9  # of the uncompressed run's last accuracy, for `bytes_to`
_REPEATED = ("none", "diffsketch", "cpsgd")  # of the paper's: proven ones stand beside these


def draw_trained(experiment: Experiment, results: Results) -> Figure:
    """The figure of training runs, and of controls that replace the sketch by noise.

    Guarantees (`paper/tests/test_drawings_trained.py`): facts and lines are means over the
    seeds; a run that diverges is marked, and its line ends where the first of its seeds did.
    """
    records = trained(experiment, results)
    return draw(experiment, {**records, **_controls(experiment, results, records["lines"])})


def trained(experiment: Experiment, results: Results) -> Records:
    """Records of all runs, panel by panel.

    `lines` has one for each variant, `points` one for each round of its curve, and `pairs` the
    differences between variants whose method is the option `ours` and all others of the panel.
    """
    panels: dict[str, list[Record]] = {}
    for variant in experiment.variants:
        line = line_of(variant, [results[job] for job in experiment.jobs_of(variant)])
        for panel in variant.panels:
            about = experiment.panels.get(panel, PanelFields())
            fields = {f"panel_{name}": value for name, value in asdict(about).items()}
            panels.setdefault(panel, []).append({**line, **fields, "panel": panel})
    every = [line for lines in panels.values() for line in lines]
    for lines in panels.values():
        whole = max((line["accuracy"] or 0.0 for line in lines if line["whole"]), default=0.0)
        with_proof = any(line["proven"] for line in lines)
        for line in lines:
            good = (each for each in line["curve"] if each["accuracy"] >= _TARGET * whole > 0)
            line["bytes_to"] = next((each["up"] for each in good), None)
            line["repeated"] = with_proof and line["repeatable"]
    points = [{**line, **point} for line in every for point in line["curve"]]
    pairs = _pairs(panels, str(experiment.options.get("ours")))
    return {"lines": every, "points": points, "pairs": pairs}


def line_of(variant: Variant, runs: Sequence[Mapping[str, Any]]) -> Record:
    """The outcome of a variant's runs, one for each seed; with the style of its series."""
    summaries, line = [run["summary"] for run in runs], _averaged(runs)
    first, config = summaries[0], summaries[0]["config"]
    # Those that stopped, and those that ended worse than they began and than they had been.
    ends = {name: line.outcomes[name] for name in ("diverged", "diverging", "out of budget")}
    ended = ", ".join(
        word if number == len(runs) == 1 else f"{number} of {len(runs)} seeds {word}"
        for word, number in ends.items()
        if number
    )
    # After the last round; of a run that diverged, before it did.
    finished = ends["diverged"] < len(runs)
    accuracy, spread = (line.mean("accuracy"), line.spread) if finished else (None, None)
    # Share of the messages that needed noise, for those that Theorem 1 validates.
    noised = mean_or_none(each["noised_share"] for each in summaries)
    # Message over vector in float32: the paper's ratio, without any header.
    share = payload_within(first["message_bytes"]) / (4 * first["dim"])
    epsilon = _epsilon_of_run(line)
    pure = "added=gaussian" not in (config.get("method_settings") or "")
    message_epsilon, epsilon_text = _epsilon_of_message(epsilon, config.get("per_round"), pure=pure)
    run_epsilon = epsilon if message_epsilon.basis is Basis.PROVEN else None
    proven = variant.group == "proven"
    # A proven line has the colour of the method that it repairs.
    name = texts()["methods"].get(variant.method, variant.method)
    role = ", ".join(filter(None, (name, variant.reading)))
    size = f"{config['rows']} x {config['cols']}, " if "rows" in config else ""
    needed = "" if noised is None else f"; noise needed in {noised:.1%} of the messages"
    padding = config.get("padding")
    return {
        **{name: first[name] for name in ("config", "message_bytes", "rounds")},
        **{name: getattr(variant, name) for name in ("method", "reading", "group")},
        "line": variant.name, "proven": proven, "whole": config["method"] == "none",
        "repeatable": variant.group == "paper" and config["method"] in _REPEATED,
        "appended": variant.settings.get("appended"),
        "padding": None if padding is None else padding / first["dim"],
        "accuracies": line.values("accuracy"), "accuracy": accuracy, "spread": spread,
        **band_of(accuracy, spread),
        "diverged": ends["diverged"] + ends["diverging"], "outcome": ended or "finished",
        "noised": noised, "ended": ended, "runs": len(runs), "seconds": line.seconds,
        # Bytes of all workers in a run, headers included.
        "up": line.mean("bytes_up"),
        "megabytes": line.mean(lambda run: (run.value("bytes_up") + run.value("bytes_down")) / 1e6),
        "compression": line.compression("up"), "ratio": 1 / share,
        "curve": points_of(line, share),
        "epsilon": message_epsilon, "epsilon_text": epsilon_text, "run_epsilon": run_epsilon,
        # Of a client it is that of the run.
        "message_epsilon": None if message_epsilon == run_epsilon else message_epsilon,
        "dashed": message_epsilon.basis is not Basis.PROVEN,
        "role": "none" if config["method"] == "none" else role if proven else variant.name,
        "note": f"{config['method']}, {size}{1 / share:.3g}x{needed}",
    }  # fmt: skip


def _averaged(runs: Sequence[Mapping[str, Any]]) -> RunLine:
    """The runs of several seeds, as the library averages them."""
    return RunLine("", tuple(
        RunRecord(Path(), RunConfig(), run.get("summary"), run["curve"], run.get("times", {}))
        for run in runs
    ))  # fmt: skip


def points_of(line: RunLine, share: float = 1.0) -> list[Record]:
    """Means of measurements after the rounds that all curves have, without round 0.

    If they have none in common, since one stopped at once, there is one point: of their last ones.
    `uploads` are rounds over the paper's ratio: times the share that a message is of the vector.
    """
    columns = [
        column
        for index, column in line.columns().items()
        if index > 0 and [point["round"] for point in column] == [index] * len(line.runs)
    ]
    points = []
    for column in columns or [[run.curve[-1] for run in line.runs]]:
        accuracy, spread = mean_and_spread([point["accuracy"] for point in column])
        up, down = (
            statistics.fmean(point[way] for point in column) for way in ("bytes_up", "bytes_down")
        )
        index = min(point["round"] for point in column)
        points.append({
            "round": index, "uploads": index * share, "up": up, "bytes": up + down,
            "accuracy": accuracy, **band_of(accuracy, spread),
        })  # fmt: skip
    return points


def _pairs(panels: Mapping[str, Sequence[Record]], ours: str) -> list[Record]:
    """Differences of the lines of a method to all others of their panel, seed by seed."""
    pairs = []
    for first, second in (pair for lines in panels.values() for pair in product(lines, lines)):
        if first is second or first["method"] != ours:
            continue
        # Of different numbers of seeds, the first ones of both.
        gaps = [a - b for a, b in zip(first["accuracies"], second["accuracies"], strict=False)]
        gap, spread = mean_and_spread(gaps)
        # In points, with twice the standard error to both sides.
        wide = 2 * (spread or 0.0) / math.sqrt(len(gaps))
        points = {"points": 100 * gap, "low": 100 * (gap - wide), "high": 100 * (gap + wide)}
        pairs.append({
            **first, **points, "other": second["line"],
            "other_accuracy": second["accuracy"], "gap": gap, "gap_spread": spread,
            "points_spread": spread and 100 * spread, "runs": len(gaps),
        })  # fmt: skip
    return pairs


def _epsilon_of_run(line: RunLine) -> Epsilon:
    """The epsilon of the seed that cost most: of all its rounds if proven, of one if claimed."""
    most = max((Epsilon.from_json(run.value("epsilon")) for run in line.runs), key=float)
    once = most.rounds == 1 and most.scope.unit is not Unit.COORDINATE
    # Of devices that send once in a run: it is that of the run, and not "per round".
    return replace(most, rounds=line.rounds) if most.basis is Basis.PROVEN and once else most


def _epsilon_of_message(
    epsilon: Epsilon, per_round: float | None, *, pure: bool
) -> tuple[Epsilon, str]:
    """The epsilon that one message guarantees or claims, and its value as a text.

    For what is proven about a client, or by appended noise, whose guarantee depends on the hashes,
    it is the epsilon of the whole run, without a text: the run is what such a number is for.
    """
    of_coordinate = epsilon.basis is not Basis.NONE and epsilon.scope.unit is Unit.COORDINATE
    if epsilon.basis is Basis.CLAIMED:
        # Theorem 1 and the paper's Laplace noise claim it without the delta that runs ask at, but
        # Gaussian noise is for that delta.
        epsilon = replace(epsilon, delta=0.0) if pure and per_round is not None else epsilon
    elif per_round is None or not of_coordinate:
        return epsilon, ""
    else:
        epsilon = replace(epsilon, value=float(per_round), delta=0.0, rounds=1)
    delta = "" if pure else f" at delta {epsilon.delta:g}"
    return epsilon, f"{epsilon.shown()} a round{delta}"


# --- the error correction, beside what is learnt from the masks alone ------------------------


def _controls(experiment: Experiment, results: Results, lines: Sequence[Record]) -> Records:
    """Runs in which noise replaces the sketch, and what masks cost."""
    controls, points, beside = list[Record](), list[Record](), list[Record]()
    for control in measured_of(experiment, results):
        accuracy, spread = mean_and_spread([run["accuracy"] for run in control.by_seed])
        drifts = (run["curve"][-1].get("drift") for run in control.by_seed)
        controls.append({
            **control.settings, "line": control.name, "accuracy": accuracy, "spread": spread,
            "message_bytes": control.first["message_bytes"],
            "mask_bytes": control.first["mask_bytes"], "drift": mean_or_none(drifts),
        })  # fmt: skip
        points += [
            {"line": control.name, "panel": panel, **point}
            for panel in dict.fromkeys(line["panel"] for line in lines)
            for point in points_of(_averaged(control.by_seed))
        ]
    for line in lines if controls else ():
        if line["reading"]:  # bytes that a worker sends in a round beside its table
            whole = line["up"] / line["rounds"] / line["config"]["workers"]
            beside.append({"reading": line["reading"], "bytes": whole - line["message_bytes"]})
    return {"controls": controls, "control_points": points, "beside": beside}


# --- audits ----------------------------------------------------------------------------------


def claimed_epsilon(value: float | None) -> Epsilon | None:
    """The claim of Theorem 1 about one message, if it makes one."""
    return None if value is None else Epsilon(value, 0.0, 1, Basis.CLAIMED, COORDINATE)


def epsilon_of(data: Mapping[str, Any]) -> Epsilon:
    """The epsilon that an audit wrote, with all that it means."""
    return Epsilon.from_json({"simulated": False, **data, "value": data["epsilon"]})


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
        "change": texts()["audit"]["changes"].get(data["change"], "one coordinate"),
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
        group = "laplace" if "laplace" in case["case"] else "sketches"
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

    Guarantees (`paper/tests/test_drawings_measured.py`): shares are means over the seeds; a
    message without a claim needs noise; a mean is over the messages with a claim, and is left out
    where there are none.
    """
    claims, needs, bins = list[Record](), list[Record](), list[Record]()
    for place, training in enumerate(measured_of(experiment, results)):
        about = {"run": training.name, "first": place == 0, "rows": training.first["table_rows"]}
        for tables in zip(*(each["tables"] for each in training.by_seed), strict=True):
            claim = {**_table(about, tables[0]), **_claim(tables)}
            claims.append(claim)
            needs += _needs(claim, tables)
            bins += _bins(claim, training, tables)
        # Where each message has the least that it needs, its claim is the requirement, or none.
        for tables in zip(*(each["least"] for each in training.by_seed), strict=True):
            needs += _needs({**_table(about, tables[0]), "padding": "least"}, tables)
    return draw(experiment, {"claims": claims, "needs": needs, "bins": bins})


def _table(about: Record, table: Mapping[str, Any]) -> Record:
    """A training with the size of a table."""
    rows, cols = about["rows"], table["cols"]
    size = {"size": f"{rows} x {cols}", "table": f"{rows}x{cols}"}
    return {**about, **size, "compression": float(table["compression"])}


def _claim(tables: Sequence[Mapping[str, Any]]) -> Record:
    """Theorem 1's claims for the messages of one table and padding, over the seeds."""
    length = int(tables[0]["padding"])  # in lengths of the vector
    finite = 1 - statistics.fmean(each["without"] for each in tables)
    # Of the repaired padding: the most over hashes and seeds.
    bounds, proven = [each["proven"] for each in tables if each["proven"] is not None], None
    if bounds:
        most = max(bound["most"] for bound in bounds)
        proven = Epsilon(most, bounds[0]["delta"], 1, Basis.PROVEN, COORDINATE)
    return {
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
            **band_of(share, spread), "epsilon": claimed_epsilon(float(requirement)),
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

_NUMBERS = ("zeros", "sigma", "alpha", "ratio", "beyond", "largest", "kurtosis", "ks")


def draw_distributions(experiment: Experiment, results: Results) -> Figure:
    """Histograms of each vector with a Gaussian, and a table of means over all vectors.

    Option `what`: the vectors, such as "gradients". The first measurement is the figure's; of
    others there are facts, with their names before them, and a row of the table.

    Guarantees (`paper/tests/test_drawings_measured.py`): densities integrate to the share of the
    vector's coordinates within the plot; facts are means over vectors and seeds.
    """
    trainings = measured_of(experiment, results)
    data, every = trainings[0].first, list[Record]()
    for training in trainings:
        vectors = [vector for seed in training.by_seed for vector in seed["vectors"]]
        means = {name: statistics.fmean(each[name] for each in vectors) for name in _NUMBERS}
        about = {"training": training.name, "first": training is trainings[0]}
        every.append({**about, "vectors": len(vectors), **means})
    shown = data["vectors"][::3]  # more would hide each other
    bins = [point for vector in shown for point in densities(data, vector)]
    # As far as the logarithmic plot has anything else.
    least = min(point["density"] for point in bins if point["density"]) / 3
    places = ((first + second) / 2 for first, second in pairwise(data["edges"]))
    bell = [{"place": place, "density": statistics.NormalDist().pdf(place)} for place in places]
    bell = [point for point in bell if point["density"] > least]
    return draw(experiment, {"bins": bins, "bell": bell, "trainings": every})


def densities(data: Mapping[str, Any], vector: Mapping[str, Any]) -> list[Record]:
    """The density of one vector's standardised coordinates at the edge where each bin begins."""
    edges = data["edges"]
    scale = int(data["dim"]) * (edges[1] - edges[0])
    about = {"round": vector["round"] + 1, "device": vector["device"]}
    return [
        {**about, "place": edge, "density": None if count is None else count / scale}
        for edge, count in zip(edges, [*vector["counts"], None], strict=True)
    ]


# --- the paper's tables ----------------------------------------------------------------------


def draw_datasets(experiment: Experiment, _: Results) -> Figure:
    """The table of data sets, counted as it is drawn.

    Samples are those before a text is divided; `trained` are those that a device trains on.
    """
    rows = []
    for name, kind in experiment.options.items():
        task = load_task(kind, seed=0)
        samples = trained = task.devices.sizes.numpy()
        if kind == "shakespeare":
            roles = load_shakespeare()
            samples = np.array([len(roles[role]) for role in task.devices.names])
        rows.append({
            "name": name, "devices": len(task.devices), "parameters": task.dim,
            "mean": round(float(samples.mean()), 1), "std": round(float(samples.std(ddof=1)), 1),
            "trained": float(trained.mean()), "test": len(task.test),
        })  # fmt: skip
    return draw(experiment, {"rows": rows})


def draw_cpsgd(experiment: Experiment, _: Results) -> Figure:
    """The paper's k and m, the bits that they take, and what cpSGD's theorem says of them.

    All of it is calculated: for the devices of a round, and for all that there are.
    """
    rows: list[Record] = []
    for row in PAPER_SETTINGS:
        code = {"levels": row.levels, "trials": row.trials}
        sums = {"round": cpsgd_epsilon(10, **code), "everyone": cpsgd_epsilon(6000, **code)}
        rows.append({
            **row._asdict(), **sums, "target": f"{row.claimed:g}",
            "bound": rounded_up(sums["everyone"]),
            "bits_needed": cpsgd_bits(10, **code), "compression": 32 / row.bits,
            "claimed": Epsilon(row.claimed, DELTA, 1, Basis.CLAIMED, SECURE_SUM),
        })  # fmt: skip
    return draw(experiment, {"rows": rows})

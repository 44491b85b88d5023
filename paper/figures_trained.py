"""Records of training runs: lines with means over the seeds, points of curves, differences."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

from diffsketch.app.run_records import RunLine, RunRecord
from diffsketch.app.settings import RunConfig
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.wire.message import payload_within
from paper.experiments import Experiment, PanelFields, Results, Variant
from paper.figures import (
    Figure,
    Record,
    Records,
    draw,
    mean_and_spread,
    mean_or_none,
    measured_of,
    name_of,
    share_of,
)

_TARGET = 0.9  # of the uncompressed run's last accuracy, for `bytes_to`
_REPEATED = ("none", "diffsketch", "cpsgd")  # of the paper's: proven ones stand beside these


def draw_trained(experiment: Experiment, results: Results) -> Figure:
    """The figure of training runs, and of controls that replace the sketch by noise.

    Guarantees (`paper/tests/test_figures_trained.py`): facts and lines are means over the
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
            enough = [
                point["up"] for point in line["curve"] if point["accuracy"] >= _TARGET * whole > 0
            ]
            line["bytes_to"] = enough[0] if enough else None
            line["repeated"] = with_proof and line["repeatable"]
    points = [{**line, **point} for line in every for point in line["curve"]]
    return {
        "lines": every,
        "points": points,
        "pairs": _pairs(panels, str(experiment.options.get("ours"))),
    }


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
    role = ", ".join(filter(None, (name_of(variant.method), variant.reading)))
    size = f"{config['rows']} x {config['cols']}, " if "rows" in config else ""
    needed = "" if noised is None else f"; noise needed in {noised:.1%} of the messages"
    padding = config.get("padding")
    return {
        **{name: first[name] for name in ("config", "dim", "message_bytes", "rounds")},
        **{name: getattr(variant, name) for name in ("method", "reading", "group")},
        "line": variant.name,
        "proven": proven,
        "whole": config["method"] == "none",
        "repeatable": variant.group == "paper" and config["method"] in _REPEATED,
        "appended": variant.settings.get("appended"),
        "padding": None if padding is None else padding / first["dim"],
        "accuracies": line.values("accuracy"),
        "accuracy": accuracy,
        "spread": spread,
        **share_of(accuracy, spread),
        "noised": noised,
        "diverged": ends["diverged"] + ends["diverging"],
        "runs": len(runs),
        "seconds": line.seconds,
        # Bytes of all workers in a run, headers included.
        "up": line.mean("bytes_up"),
        "megabytes": line.mean(lambda run: (run.value("bytes_up") + run.value("bytes_down")) / 1e6),
        "compression": line.compression("up"),
        "ratio": 1 / share,
        "curve": points_of(line, share),
        "outcome": ended or "finished",
        "ended": ended,
        "epsilon": message_epsilon,
        "epsilon_text": epsilon_text,
        "run_epsilon": run_epsilon,
        # Of a client it is that of the run.
        "message_epsilon": None if message_epsilon == run_epsilon else message_epsilon,
        "dashed": message_epsilon.basis is not Basis.PROVEN,
        "role": "none" if config["method"] == "none" else role if proven else variant.name,
        "note": f"{config['method']}, {size}{1 / share:.3g}x{needed}",
    }


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
            "accuracy": accuracy, **share_of(accuracy, spread),
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
    if epsilon.basis is Basis.CLAIMED:
        # Theorem 1 and the paper's Laplace noise claim it without the delta that runs ask at, but
        # Gaussian noise is for that delta.
        epsilon = replace(epsilon, delta=0.0) if pure and per_round is not None else epsilon
    elif (
        epsilon.basis is Basis.NONE
        or epsilon.scope.unit is not Unit.COORDINATE
        or per_round is None
    ):
        return epsilon, ""
    else:
        epsilon = replace(epsilon, value=float(per_round), delta=0.0, rounds=1)
    delta = "" if pure else f" at delta {epsilon.delta:g}"
    return epsilon, f"{epsilon.shown()} a round{delta}"


# --- the error correction, beside what is learnt from the masks alone ------------------------


def _controls(experiment: Experiment, results: Results, lines: Sequence[Record]) -> Records:
    """Runs in which noise replaces the sketch, and what masks cost."""
    controls, points, beside = list[Record](), list[Record](), list[Record]()
    for control in measured_of(experiment, results, "masks"):
        accuracy, spread = mean_and_spread([run["accuracy"] for run in control.by_seed])
        drifts = (run["curve"][-1].get("drift") for run in control.by_seed)
        stays = control.settings.get("correction") == "drift"  # own masks stay with the worker
        controls.append({
            **control.settings, "line": control.name, "accuracy": accuracy, "spread": spread,
            "message_bytes": control.first["message_bytes"],
            "mask_bytes": 0 if stays else control.first["mask_bytes"],
            "drift": mean_or_none(drifts),
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

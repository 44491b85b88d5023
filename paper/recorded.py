"""A run's `results.json`: written with the page, and read back to draw and judge it again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffsketch.app.files import read_json, versions
from diffsketch.errors import MismatchError
from paper.claims import Verdicts
from paper.experiments import FORMAT, Experiment, Job, Results
from paper.figures import Fact, Figure
from paper.jobs import Store

_CURVE = ("round", "loss", "accuracy", "bytes_up", "bytes_down", "noised_share", "left_out")


@dataclass(frozen=True)
class Made:
    """The things that a page is made of: a command and a run."""

    command: str
    versions: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)  # by key of a job, if another's
    drawn_by: str = ""  # digest of the source, if it is not that of the run


def results_json(
    figures: Sequence[tuple[Experiment, Figure]],
    results: Results,
    *,
    made: Made,
    verdicts: Verdicts,
) -> bytes:
    """The content of `results.json`: everything that was measured, facts and verdicts.

    No times of the clock are in it but in the facts, so that the same work gives the same bytes.
    """

    def fact(value: Fact) -> Fact:
        # JSON has no word for what is not finite.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def keyed(job: Job) -> dict[str, Any]:
        later = made.sources.get(job.key)
        return {"seed": job.seed, "key": job.key, **({"source": later} if later else {})}

    experiments = {}
    for experiment, figure in figures:
        runs = [
            {"name": variant.name, "panels": list(variant.panels), "group": variant.group,
             **keyed(job), **_run_record(results[job])}
            for variant in experiment.variants
            for job in experiment.jobs_of(variant)
        ]  # fmt: skip
        measurements = [
            {"name": item.name, "kind": item.kind, "settings": dict(item.settings),
             **keyed(job), "result": results[job]}
            for item in experiment.measurements
            for job in experiment.jobs_of(item)
        ]  # fmt: skip
        experiments[experiment.name] = {
            "facts": {name: fact(value) for name, value in figure.facts.items()},
            "runs": runs,
            "measurements": measurements,
        }
    content = {
        "format": FORMAT,
        "command": made.command,
        "versions": dict(made.versions),
        "reduced": any(experiment.reduced for experiment, _ in figures),
        "claims": [
            {"name": claim.name, "claim": claim.quote, "where": claim.where,
             "verdict": str(verdict), "measured": verdict.measured, "rule": verdict.rule}
            for claim, verdict in verdicts.items()
        ],
        "experiments": experiments,
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _run_record(result: Mapping[str, Any]) -> dict[str, Any]:
    """A run; its curve has a list for each quantity, a third of the bytes of a record a round."""
    curve = result["curve"]
    columns = {name: [point.get(name) for point in curve] for name in _CURVE}
    columns["epsilon"] = [point["epsilon"]["value"] for point in curve]
    if any("drift" in point for point in curve):
        columns["drift"] = [point.get("drift") for point in curve]
    # The versions are those of all; every other run would repeat them.
    summary = {name: value for name, value in result["summary"].items() if name != "versions"}
    return {"summary": summary, "curve": columns}


def recorded_results(
    path: Path, experiments: Sequence[Experiment], store: Store
) -> tuple[dict[Job, Mapping[str, Any]], Made]:
    """Read a full run's results of all jobs; of those that it lacks, from the store.

    Raises:
        MismatchError: It is not the file of a full run, or lacks a job that the store lacks, too.
    """
    data, here = read_json(path), versions()["source"]
    if data.get("format") != FORMAT or data.get("reduced") is not False:
        raise MismatchError(
            f"{path}: must be the results of a full run, with the format {FORMAT!r}, got "
            f"format={data.get('format')!r}, reduced={data.get('reduced')!r}"
        )
    by_key = {}
    for experiment in data["experiments"].values():
        for run in experiment["runs"]:
            by_key[run["key"]] = _run_of(run, experiment["facts"]), run.get("source", "")
        for item in experiment["measurements"]:
            by_key[item["key"]] = item["result"], item.get("source", "")
    results: dict[Job, Mapping[str, Any]] = {}
    sources: dict[str, str] = {}
    for experiment, name, job in (
        (each.name, name, job) for each in experiments for name, job in each.named_jobs
    ):
        result, later = by_key.get(job.key) or (store.find(job), here)
        if result is None:
            raise MismatchError(
                f"{path}: lacks {experiment}, {name}, seed {job.seed}; python -m paper makes it"
            )
        results[job] = result
        sources |= {job.key: later} if later else {}
    drawn_by = "" if here == data["versions"]["source"] else here
    return results, Made(data["command"], data["versions"], sources, drawn_by)


def _run_of(record: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A training run as jobs give it; of its time the mean over the seeds was kept."""
    summary, columns = record["summary"], record["curve"]
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for point in points:
        point["epsilon"] = {"value": point["epsilon"]}
    seconds = facts.get(f"seconds/{record['panels'][0]}/{record['name']}")
    times = {} if seconds is None else {"training": seconds * summary["rounds"]}
    return {"summary": summary, "times": times, "curve": points}

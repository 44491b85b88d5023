"""A recorded run, read back from its `results.json`, so that it can be drawn and judged again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsketch.app.files import read_json
from diffsketch.errors import MismatchError
from paper.experiments import FORMAT, Experiment, Job
from paper.jobs import Store


@dataclass(frozen=True)
class Recorded:
    """Results of jobs by key, each with the source that made it ("" for the run's own)."""

    by_key: Mapping[str, tuple[Mapping[str, Any], str]]
    versions: Mapping[str, str]  # of the run

    @classmethod
    def read(cls, path: Path) -> Recorded:
        """Read the file of a full run.

        Raises:
            MismatchError: It is not one, or of a reduced run.
        """
        data = read_json(path)
        if data.get("format") != FORMAT or data.get("reduced") is not False:
            raise MismatchError(
                f"{path}: must be the results of a full run, with the format {FORMAT!r}, got "
                f"format={data.get('format')!r}, reduced={data.get('reduced')!r}"
            )
        by_key = {}
        for experiment in data["experiments"].values():
            for run in experiment["runs"]:
                result = _run_of(run, experiment["facts"])
                by_key[run["key"]] = result, run.get("source", "")
            for item in experiment["measurements"]:
                by_key[item["key"]] = item["result"], item.get("source", "")
        return cls(by_key, data["versions"])

    def results(
        self, experiments: Sequence[Experiment], store: Store, *, source: str
    ) -> tuple[dict[Job, Mapping[str, Any]], dict[str, str]]:
        """Results of all jobs that have one here or else in the store, and sources of later ones.

        `source` is the digest that stands for what is in the store.
        """
        results: dict[Job, Mapping[str, Any]] = {}
        sources: dict[str, str] = {}
        for job in {job for each in experiments for job in each.jobs}:
            result, later = self.by_key.get(job.key) or (store.find(job), source)
            if result is not None:
                results[job] = result
                sources |= {job.key: later} if later else {}
        return results, sources


def _run_of(record: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A training run as jobs give it; of its time the mean over the seeds was kept."""
    summary, columns = record["summary"], record["curve"]
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for point in points:
        point["epsilon"] = {"value": point["epsilon"]}
    seconds = facts.get(f"seconds/{record['panels'][0]}/{record['name']}")
    times = {} if seconds is None else {"training": seconds * summary["rounds"]}
    return {"summary": summary, "times": times, "curve": points}

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
    """Results by the keys of their jobs, and what they were made by."""

    by_key: Mapping[str, Mapping[str, Any]]
    versions: Mapping[str, str]
    sources: Mapping[str, str]  # by key, where another source made it than the run's

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
        by_key: dict[str, Mapping[str, Any]] = {}
        sources: dict[str, str] = {}
        for experiment in data["experiments"].values():
            for one in experiment["runs"]:
                by_key[one["key"]] = _run_of(one, experiment["facts"])
            for one in experiment["measurements"]:
                by_key[one["key"]] = one["result"]
            for one in (*experiment["runs"], *experiment["measurements"]):
                if "source" in one:
                    sources[one["key"]] = one["source"]
        return cls(by_key, data["versions"], sources)

    def results(
        self, experiments: Sequence[Experiment], store: Store, *, source: str
    ) -> tuple[dict[Job, Mapping[str, Any]], dict[str, str]]:
        """Results of all jobs that have one here or else in the store, and sources of later ones.

        `source` is the digest that stands for what is in the store.
        """
        found: dict[Job, Mapping[str, Any]] = {}
        sources: dict[str, str] = {}
        for job in dict.fromkeys(job for each in experiments for job in each.jobs):
            result = self.by_key.get(job.key)
            if result is not None:
                found[job] = result
                if job.key in self.sources:
                    sources[job.key] = self.sources[job.key]
            elif (result := store.find(job)[0]) is not None:
                found[job], sources[job.key] = result, source
        return found, sources


def _run_of(record: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """A training run as jobs give it; of its time the mean over the seeds was kept."""
    summary, columns = record["summary"], record["curve"]
    points = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    for point in points:
        point["epsilon"] = {"value": point["epsilon"]}
    seconds = facts.get(f"seconds/{record['panels'][0]}/{record['name']}")
    times = {} if seconds is None else {"training": seconds * summary["rounds"]}
    return {"summary": summary, "times": times, "curve": points}

"""`results.json`: everything that was measured, and the facts that the claims are judged by.

No times of the clock are in it, so that the same work gives the same bytes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results
from diffsketch.reproduction.verdicts.verdict import Verdicts

__all__ = ["records"]

_FORMAT = "diffsketch reproduction 1"
_CURVE = ("round", "loss", "accuracy", "bytes_up", "bytes_down", "noised_share", "left_out")


def records(
    drawn: Sequence[tuple[Experiment, Drawn]],
    results: Results,
    *,
    command: str,
    versions: Mapping[str, str],
    verdicts: Verdicts,
) -> bytes:
    """The content of the file.

    Args:
        drawn: Experiments and what was drawn of them.
        results: Of their jobs.
        command: That makes it again.
        versions: Of what made it.
        verdicts: About the claims.
    """
    content = {
        "format": _FORMAT,
        "command": command,
        "versions": dict(versions),
        "reduced": any(experiment.reduced for experiment, _ in drawn),
        "claims": [
            {
                "name": statement.name,
                "claim": statement.quote,
                "where": statement.where,
                "verdict": str(verdict),
                "measured": verdict.measured,
            }
            for statement, verdict in verdicts.items()
        ],
        "experiments": {
            experiment.name: {
                "place": experiment.place,
                "facts": {name: _fact(fact) for name, fact in one.facts.items()},
                "runs": _runs(experiment, results),
                "measurements": _measurements(experiment, results),
            }
            for experiment, one in drawn
        },
    }
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _fact(fact: Fact) -> Fact:
    """JSON has no word for what is not finite."""
    return str(fact) if isinstance(fact, float) and not math.isfinite(fact) else fact


def _runs(experiment: Experiment, results: Results) -> list[dict[str, Any]]:
    return [
        {
            "name": variant.name,
            "panels": list(variant.panels),
            "group": variant.group,
            "seed": job.seed,
            "key": job.key,
            # The versions are those of all; every other run would repeat them.
            "summary": {
                name: value for name, value in results[job]["summary"].items() if name != "versions"
            },
            "curve": _columns(results[job]["curve"]),
        }
        for variant in experiment.variants
        for job in experiment.runs(variant)
    ]


def _columns(curve: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """A list for each quantity instead of a record for each round: a third of the bytes."""
    found = {name: [one.get(name) for one in curve] for name in _CURVE}
    found["epsilon"] = [one["epsilon"]["value"] for one in curve]
    if any("drift" in one for one in curve):
        found["drift"] = [one.get("drift") for one in curve]
    return found


def _measurements(experiment: Experiment, results: Results) -> list[dict[str, Any]]:
    return [
        {
            "name": item.name,
            "kind": item.kind,
            "settings": dict(item.settings),
            "seed": job.seed,
            "key": job.key,
            "result": results[job],
        }
        for item in experiment.measurements
        for job in experiment.measured(item)
    ]

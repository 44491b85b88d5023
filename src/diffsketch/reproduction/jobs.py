"""Pieces of work: what is run or measured once, and kept under a digest of its settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from diffsketch.app.settings import Value

__all__ = ["RUN", "Job", "Results"]

RUN = "run"
"""The kind of a training run; all other kinds are measurements."""

_FORMAT = "diffsketch reproduction 1"


@dataclass(frozen=True, eq=False)
class Job:
    """A piece of work. Two with the same kind, settings and seed are the same.

    Attributes:
        kind: `run`, or one of `diffsketch.reproduction.measurements`.
        settings: Without the seed.
        seed: Fixes all random numbers.
    """

    kind: str
    settings: Mapping[str, Value]
    seed: int

    @cached_property
    def key(self) -> str:
        """A digest of all of it, by which its result is found again."""
        content = [_FORMAT, self.kind, dict(self.settings), self.seed]
        text = json.dumps(content, sort_keys=True, allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)


Results = Mapping[Job, Mapping[str, Any]]
"""What each job came to, as JSON has it.

Of a training run: `{"summary": ..., "times": ..., "curve": [...]}`, the content of the run
directory's `summary.json`, `times.json` and `metrics.jsonl`. Of a measurement: what it returned.
"""

"""What the measurements of an experiment came to, over their seeds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["Measured"]


@dataclass(frozen=True, eq=False)
class Measured:
    """One measurement, over its seeds. Drawings derive from it what they read from theirs.

    Attributes:
        name: Of the measurement.
        found: What each seed came to.
    """

    name: str
    found: tuple[Mapping[str, Any], ...]

    @classmethod
    def all_of(cls, experiment: Experiment, results: Results, *, kind: str = "") -> list[Self]:
        """The measurements of an experiment, in its order.

        Args:
            experiment: Whose they are.
            results: Of all of them.
            kind: Only those of this kind; all of them if empty.
        """
        return [
            cls(each.name, tuple(results[job] for job in experiment.measured(each)))
            for each in experiment.measurements
            if each.kind == kind or not kind
        ]

    @property
    def first(self) -> Mapping[str, Any]:
        """What the first seed came to: enough for what is the same with every seed."""
        return self.found[0]

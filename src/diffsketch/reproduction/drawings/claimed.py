"""What Theorem 1 claims for the messages of a training, read from what was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffsketch.pages.exhibits import Cell, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.reproduction.drawings.audits import Audited
from diffsketch.reproduction.drawings.drawn import Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.drawings.trained import mean_and_spread
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["CLAIMED", "SCOPE", "Claims", "Run", "facts_of_audits", "runs_of", "table_of_claims"]

SCOPE = Scope(Unit.COORDINATE, Relation.REPLACE, Trust.LOCAL)
"""What Theorem 1, and the repaired padding, are about."""
CLAIMED = f"claimed; {SCOPE}"


@dataclass(frozen=True, eq=False)
class Claims:
    """What Theorem 1 claims for the messages of one table and padding, over the seeds.

    Attributes:
        found: One for each seed, as the measurement has them.
    """

    found: tuple[Mapping[str, Any], ...]

    @property
    def cols(self) -> int:
        """Columns of the table."""
        return int(self.found[0]["cols"])

    @property
    def padding(self) -> str:
        """In lengths of the vector; "none" without."""
        count = int(self.found[0]["padding"])
        return f"{count}n" if count else "none"

    @property
    def length(self) -> int:
        """The same as a number."""
        return int(self.found[0]["padding"])

    @property
    def compression(self) -> float:
        """Coordinates of the vector to a cell."""
        return float(self.found[0]["compression"])

    def mean(self, name: str) -> float | None:
        """Over the seeds; None if one of them has none."""
        values = [each[name] for each in self.found]
        return None if None in values else statistics.fmean(values)

    @property
    def finite(self) -> float:
        """Share of messages that something is claimed for."""
        return 1 - (self.mean("without") or 0.0)

    def needs_noise(self, requirement: str) -> tuple[float, float | None]:
        """Share of messages that exceed the requirement, or have no claim; and its spread."""
        return mean_and_spread([each["needs_noise"][requirement] for each in self.found])

    @property
    def proven(self) -> Epsilon | None:
        """Of the repaired padding: the most over hashes and seeds."""
        values = [each["proven"] for each in self.found if each["proven"] is not None]
        if not values:
            return None
        most = max(value["most"] for value in values)
        return Epsilon(most, values[0]["delta"], 1, Basis.PROVEN, SCOPE)

    @property
    def claimed(self) -> Epsilon | None:
        """The median claim, as an epsilon with its words; None if it is infinite."""
        median = self.mean("median")
        return None if median is None else Epsilon(median, 0.0, 1, Basis.CLAIMED, SCOPE)


class Run(Measured):
    """A training whose messages were looked at."""

    @property
    def tables(self) -> list[Claims]:
        """For each table and padding."""
        return [Claims(rows) for rows in zip(*(each["tables"] for each in self.found), strict=True)]

    @property
    def by_padding(self) -> dict[str, list[Claims]]:
        """By the appended noise, in the order of the compression."""
        found: dict[str, list[Claims]] = {}
        for claims in self.tables:
            found.setdefault(claims.padding, []).append(claims)
        return {name: sorted(some, key=lambda c: c.compression) for name, some in found.items()}

    @property
    def rows(self) -> int:
        """Of the tables."""
        return int(self.first["table_rows"])

    @property
    def requirements(self) -> list[str]:
        """That messages are held against."""
        return list(self.first["tables"][0]["needs_noise"])

    @property
    def noised(self) -> float | None:
        """Share of messages that got Laplace noise in the run itself; None if it adds none."""
        values = [each["noised"] for each in self.found]
        return None if None in values else statistics.fmean(values)


def runs_of(experiment: Experiment, results: Results) -> list[Run]:
    """The measurements of the kind `local-epsilon`."""
    return Run.all_of(experiment, results, kind="local-epsilon")


def table_of_claims(experiment: Experiment, runs: Sequence[Run]) -> Table:
    """A row for each training, table and padding."""
    requirements = runs[0].requirements
    columns = (
        "training", "table", "compression", "appended", "median, claimed", "without a claim",
        *(f"above {value} (needs noise)" for value in requirements),
        "proven of the repaired padding",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for run in runs:
        for claims in run.tables:
            shares = [round(claims.needs_noise(value)[0], 4) for value in requirements]
            rows.append(
                (run.name, f"{run.rows} x {claims.cols}", round(claims.compression, 1),
                 claims.padding, claims.claimed, round(1 - claims.finite, 4), *shares,
                 claims.proven)
            )  # fmt: skip
    return Table(
        f"{experiment.name}-claims", "Theorem 1 for every message", columns, tuple(rows),
        "The repaired padding clips coordinates to a fixed bound of 1.645 standard deviations of "
        "the appended numbers; its epsilon is the most over the hashes tried. Theorem 1's is the "
        "median over all messages.",
    )  # fmt: skip


def facts_of_audits(audits: Sequence[Audited]) -> dict[str, Fact]:
    """What is stated and what was measured, by the audit's name."""
    facts: dict[str, Fact] = {}
    for case in audits:
        stated = float(case.stated)
        facts[f"claimed/{case.name}"] = stated if math.isfinite(stated) else None
        facts[f"lower/{case.name}"] = float(case.measured)
    return facts

"""What a claim, the facts about it and a verdict are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

from diffsketch.errors import DiffSketchError
from diffsketch.reproduction.drawings.drawn import Fact

__all__ = [
    "Facts",
    "MissingFactError",
    "Rule",
    "Standing",
    "Statement",
    "Verdict",
    "Verdicts",
    "graded",
]


class Standing(StrEnum):
    """How a claim stands."""

    HOLDS = "holds"
    IN_PART = "holds in part"
    FAILS = "fails"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True, eq=False)
class Statement:
    """A claim of the paper.

    Attributes:
        name: Of its rule.
        topic: Which table it is shown in.
        quote: The paper's words.
        where: In the paper.
        experiments: Whose facts its rule reads.
        values: The paper's numbers in it, and what our calculation takes.
        why: Nothing measures it; empty if something does.
    """

    name: str
    topic: str
    quote: str
    where: str
    experiments: tuple[str, ...] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Verdict:
    """How a claim stands, and what that rests on.

    Attributes:
        standing: One of four.
        measured: The numbers, in words.
        why: Not more, or less: a few words behind the standing, or none.
    """

    standing: Standing
    measured: str
    why: str = ""

    def __str__(self) -> str:
        if not self.why:
            return str(self.standing)
        return f"{self.standing}{' ' if self.why.startswith('(') else ': '}{self.why}"


Verdicts: TypeAlias = Mapping[Statement, Verdict]
"""About the claims, in their order."""


class MissingFactError(DiffSketchError):
    """A rule asked for a fact that no experiment gave."""

    def __init__(self, experiment: str, name: str) -> None:
        super().__init__(f"{experiment} has no fact {name!r}")
        self.experiment, self.name = experiment, name


@dataclass(frozen=True)
class Facts:
    """Facts by experiment and name, asked for in a way that says what is missing."""

    by_experiment: Mapping[str, Mapping[str, Fact]]

    def get(self, experiment: str, name: str) -> Fact:
        """A fact, None if it was measured that there is none.

        Raises:
            MissingFactError: The experiment was not run.
        """
        facts = self.by_experiment.get(experiment, {})
        if name not in facts:
            raise MissingFactError(experiment, name)
        return facts[name]

    def number(self, experiment: str, name: str) -> float:
        """A fact that is a number.

        Raises:
            MissingFactError: There is none.
        """
        value = self.get(experiment, name)
        if value is None or isinstance(value, str):
            raise MissingFactError(experiment, name)
        return float(value)

    def seeds(self, experiment: str) -> str:
        """How many seeds an experiment has, as a sentence."""
        count = int(self.number(experiment, "seeds"))
        return "One seed." if count == 1 else f"{count} seeds."

    def below(self, experiment: str, prefix: str) -> dict[str, Fact]:
        """All facts whose names begin so, by the rest of their names, in their order.

        Raises:
            MissingFactError: There is none.
        """
        facts = self.by_experiment.get(experiment, {})
        found = {
            name.removeprefix(prefix): fact
            for name, fact in facts.items()
            if name.startswith(prefix)
        }
        if not found:
            raise MissingFactError(experiment, f"{prefix}...")
        return found

    def numbers(self, experiment: str, prefix: str) -> dict[str, float]:
        """As `below`, but only those that are numbers, of which there must be one or more."""
        found = {
            name: float(fact)
            for name, fact in self.below(experiment, prefix).items()
            if fact is not None and not isinstance(fact, str)
        }
        if not found:
            raise MissingFactError(experiment, f"{prefix}...")
        return found


Rule: TypeAlias = Callable[[Statement, Facts], Verdict]


def graded(hits: Sequence[bool], measured: str, *, part: str = "", none: str = "") -> Verdict:
    """Holds if everything does, fails if nothing does, and in part otherwise.

    >>> print(graded([True, False], "3 and 4", part="{hits} of {total} sizes"))
    holds in part: 1 of 2 sizes

    Args:
        hits: Whether each case is as the paper says; there is one or more.
        measured: For the verdict.
        part: Why only in part; `{hits}` and `{total}` are their numbers.
        none: Why not at all.
    """
    count = sum(hits)
    if count == len(hits) and count:
        return Verdict(Standing.HOLDS, measured)
    if count == 0:
        return Verdict(Standing.FAILS, measured, none)
    return Verdict(Standing.IN_PART, measured, part.format(hits=count, total=len(hits)))

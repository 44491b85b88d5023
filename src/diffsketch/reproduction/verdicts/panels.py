"""The facts of training figures by panel and line, and how two lines compare."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from diffsketch.reproduction.drawings.drawn import Fact
from diffsketch.reproduction.verdicts.verdict import Facts, MissingFactError
from diffsketch.reproduction.verdicts.words import percent, points

__all__ = [
    "BARE", "CPSGD", "NOISY_SKETCH", "NOISY_VECTOR", "OURS", "UNCOMPRESSED", "Gap", "Line", "Panel",
]  # fmt: skip

OURS = "DiffSketch"
BARE = f"{OURS} without padding"
NOISY_SKETCH = "Laplace on sketches"
NOISY_VECTOR = "Laplace on raw gradients"
UNCOMPRESSED = "uncompressed"
CPSGD = "cpSGD"

_CLEAR = 2.0  # standard errors


@dataclass(frozen=True)
class Gap:
    """How much better one line is than another.

    Attributes:
        mean: Over the seeds, of their difference.
        error: Standard error of that; 0 for a single seed.
    """

    mean: float
    error: float

    def above(self, least: float) -> bool:
        """Whether it is so much, and more than two standard errors above 0."""
        return self.mean >= least and self.mean > _CLEAR * self.error

    def __str__(self) -> str:
        sure = f" (standard error {100 * self.error:.1f})" if self.error else ""
        return points(self.mean) + sure


@dataclass(frozen=True)
class Line:
    """What a variant came to in a panel.

    Attributes:
        accuracy: Mean over the seeds at the end; None if all of them diverged.
        facts: Its others, by what they say: `spread`, `noised`, `bytes-to`, ...
    """

    accuracy: float | None
    facts: Mapping[str, Fact]

    def number(self, what: str) -> float | None:
        """A fact about it, None if there is no number."""
        value = self.facts.get(what)
        return None if value is None or isinstance(value, str) else float(value)

    def __str__(self) -> str:
        if self.accuracy is None:
            return "diverged"
        spread = self.number("spread")
        return percent(self.accuracy) + (f" ± {100 * spread:.1f}" if spread is not None else "")


@dataclass(frozen=True)
class Panel:
    """A plot of a training figure.

    Attributes:
        name: As the settings have it, such as "50x, epsilon 0.1".
        lines: By variant.
        gaps: Differences between two of them, seed by seed, by `<ours> - <other>`.
        seeds: How many.
    """

    name: str
    lines: Mapping[str, Line]
    gaps: Mapping[str, Gap]
    seeds: int

    @property
    def epsilon(self) -> float | None:
        """That the panel is about, by its name."""
        return _found(r"epsilon (\d+(?:\.\d+)?)", self.name)

    @property
    def ratio(self) -> float | None:
        """The compression that the panel is about, by its name."""
        return _found(r"(\d+(?:\.\d+)?)x\b", self.name)

    @property
    def rest(self) -> str:
        """Its name without the epsilon: panels with the same rest differ in nothing else."""
        return re.sub(r",? ?epsilon \d+(?:\.\d+)?", "", self.name).strip(", ")

    def gap(self, ours: str, other: str) -> Gap | None:
        """How much better `ours` is; None unless the panel has both and both finished."""
        first, second = self.lines.get(ours), self.lines.get(other)
        if first is None or second is None or first.accuracy is None or second.accuracy is None:
            return None
        if (paired := self.gaps.get(f"{ours} - {other}")) is not None:
            return paired
        spreads = [line.number("spread") or 0.0 for line in (first, second)]
        return Gap(first.accuracy - second.accuracy, math.hypot(*spreads) / math.sqrt(self.seeds))

    @classmethod
    def all_of(cls, facts: Facts, experiment: str) -> list[Panel]:
        """The panels of a training figure, in their order.

        Raises:
            MissingFactError: There are none.
        """
        seeds = int(facts.number(experiment, "seeds"))
        names: dict[str, list[str]] = {}
        for place in facts.below(experiment, "accuracy/"):
            panel, _, variant = place.partition("/")
            names.setdefault(panel, []).append(variant)
        return [
            cls(panel, {name: _line(facts, experiment, f"{panel}/{name}") for name in variants},
                _gaps(facts, experiment, panel, seeds), seeds)
            for panel, variants in names.items()
        ]  # fmt: skip

    @classmethod
    def with_lines(cls, facts: Facts, experiment: str, *names: str) -> list[Panel]:
        """Those panels that have all of these lines.

        Raises:
            MissingFactError: There are none.
        """
        found = [panel for panel in cls.all_of(facts, experiment) if set(names) <= set(panel.lines)]
        if not found:
            raise MissingFactError(experiment, f"accuracy/.../{names[0]}")
        return found

    @classmethod
    def at_best(cls, facts: Facts, experiment: str, *names: str) -> list[Panel]:
        """As `with_lines`, DiffSketch being the more accurate of its two readings in each panel.

        The paper does not say how much noise it appends. With what Theorem 1 needs, hardly any
        message gets Laplace noise; with none, nearly all do. Its claims are judged by the better.

        Raises:
            MissingFactError: There are none.
        """
        panels = [panel._at_best() for panel in cls.all_of(facts, experiment)]
        found = [panel for panel in panels if set(names) <= set(panel.lines)]
        if not found:
            raise MissingFactError(experiment, f"accuracy/.../{names[0]}")
        return found

    def _at_best(self) -> Panel:
        readings = [name for name in (OURS, BARE) if name in self.lines]
        if not readings:
            return self
        best = max(readings, key=lambda name: self.lines[name].accuracy or 0.0)
        prefix = f"{best} - "
        gaps = {
            f"{OURS} - {name.removeprefix(prefix)}": gap
            for name, gap in self.gaps.items()
            if name.startswith(prefix)
        }
        others = {name: gap for name, gap in self.gaps.items() if not name.startswith(f"{OURS} ")}
        lines = {**self.lines, OURS: self.lines[best]}
        return Panel(self.name, lines, {**others, **gaps}, self.seeds)


def _line(facts: Facts, experiment: str, place: str) -> Line:
    others = {
        name.removesuffix(f"/{place}"): fact
        for name, fact in facts.by_experiment[experiment].items()
        if name.endswith(f"/{place}")
    }
    accuracy = others.get("accuracy")
    return Line(None if accuracy is None else float(accuracy), others)


def _gaps(facts: Facts, experiment: str, panel: str, seeds: int) -> dict[str, Gap]:
    gaps = {}
    prefix = f"paired/{panel}/"
    for name, mean in facts.by_experiment[experiment].items():
        if name.startswith(prefix) and mean is not None:
            pair = name.removeprefix(prefix)
            spread = facts.by_experiment[experiment].get(f"paired-spread/{panel}/{pair}")
            error = 0.0 if spread is None else float(spread) / math.sqrt(seeds)
            gaps[pair] = Gap(float(mean), error)
    return gaps


def _found(pattern: str, text: str) -> float | None:
    match = re.search(pattern, text)
    return None if match is None else float(match[1])

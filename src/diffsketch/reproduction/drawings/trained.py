"""What the runs of a variant came to, over its seeds: numbers for lines, tables and facts."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

from scipy.optimize import brentq

from diffsketch.app.session import epsilon_from_data
from diffsketch.privacy.accounting.composition import gaussian_epsilon
from diffsketch.privacy.claim import Basis, Epsilon, Unit
from diffsketch.reproduction.experiment import Experiment, Variant
from diffsketch.reproduction.jobs import Results
from diffsketch.wire.formats import HEADER_BYTES

__all__ = ["Point", "Trained", "at", "mean_and_spread", "panels_of", "points_of", "slug", "trained"]


@dataclass(frozen=True)
class Point:
    """A place on a curve: the model after some round.

    Attributes:
        round: Rounds that were done.
        accuracy: Mean over the seeds.
        spread: Standard deviation over the seeds; None for a single one.
        up: Bytes that all workers sent by then, headers included; mean over the seeds.
        both: Bytes up and down.
    """

    round: int
    accuracy: float
    spread: float | None
    up: float
    both: float


@dataclass(frozen=True, eq=False)
class Trained:
    """The runs of a variant, one for each seed.

    Attributes:
        variant: Whose they are.
        runs: What each came to, as `Results` has it.
    """

    variant: Variant
    runs: tuple[Mapping[str, Any], ...]

    @property
    def name(self) -> str:
        """Of the variant."""
        return self.variant.name

    @property
    def summaries(self) -> list[Mapping[str, Any]]:
        """Of each run."""
        return [run["summary"] for run in self.runs]

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that the runs used, with those that were not given."""
        config: Mapping[str, Any] = self.summaries[0]["config"]
        return config

    @property
    def accuracies(self) -> list[float]:
        """Of each run, after its last round. Of one that diverged, before it did."""
        return [one["accuracy"] for one in self.summaries]

    @property
    def accuracy(self) -> float | None:
        """Mean over the seeds after the last round; None where all of them diverged."""
        return None if self.stopped == len(self.runs) else statistics.fmean(self.accuracies)

    @property
    def spread(self) -> float | None:
        """Standard deviation over the seeds of the same."""
        return None if self.accuracy is None else mean_and_spread(self.accuracies)[1]

    @property
    def best(self) -> float:
        """Mean over the seeds of the best accuracy of all evaluations."""
        return statistics.fmean(one["best_accuracy"] for one in self.summaries)

    @property
    def stopped(self) -> int:
        """Seeds whose weights or loss were no numbers any more."""
        return sum(one["outcome"] == "diverged" for one in self.summaries)

    @property
    def diverged(self) -> int:
        """Seeds that stopped so, or ended worse than they began and than they had been."""
        return sum(one["outcome"] == "diverged" or one["diverging"] for one in self.summaries)

    @property
    def ended(self) -> str:
        """Which seeds did not end well, in words; empty if all did."""
        count, parts = len(self.runs), []
        for number, word in (
            (self.stopped, "diverged"),
            (self.diverged - self.stopped, "diverging"),
            (sum(one["outcome"] == "budget" for one in self.summaries), "out of budget"),
        ):
            if number:
                parts.append(word if number == count == 1 else f"{number} of {count} seeds {word}")
        return ", ".join(parts)

    @property
    def noised(self) -> float | None:
        """Share of the messages that needed noise, for those that Theorem 1 validates."""
        shares = [one["noised_share"] for one in self.summaries]
        return None if None in shares else statistics.fmean(shares)

    @property
    def up(self) -> float:
        """Bytes that all workers sent in a run, headers included."""
        return statistics.fmean(one["bytes_up"] for one in self.summaries)

    @property
    def both(self) -> float:
        """Bytes that were sent up and down in a run."""
        return statistics.fmean(one["bytes_up"] + one["bytes_down"] for one in self.summaries)

    @property
    def compression(self) -> float:
        """Bytes of the vectors in float32 over those of what was sent up, headers included."""
        raw = sum(int(one["uncompressed_bytes_up"]) for one in self.summaries)
        return raw / max(1, sum(int(one["bytes_up"]) for one in self.summaries))

    @property
    def share(self) -> float:
        """Of the vector in float32, what a message is: the paper's ratio, without any header."""
        summary = self.summaries[0]
        return float((summary["message_bytes"] - HEADER_BYTES) / (4 * summary["dim"]))

    @property
    def seconds(self) -> float | None:
        """Of a round of training, where it was timed."""
        times = [run.get("times", {}).get("training") for run in self.runs]
        rounds = sum(one["rounds"] for one in self.summaries)
        return sum(times) / rounds if rounds and None not in times else None

    @cached_property
    def points(self) -> tuple[Point, ...]:
        """The curve over the seeds, from its first round on: while no seed has stopped."""
        return points_of([run["curve"] for run in self.runs])

    @property
    def epsilon(self) -> Epsilon:
        """Of the run that cost most: of all its rounds if proven, of one if claimed."""
        every = [(epsilon_from_data(one["epsilon"]), one["rounds"]) for one in self.summaries]
        most, rounds = max(every, key=lambda each: float(each[0]))
        once = most.rounds == 1 and most.scope.unit is not Unit.COORDINATE
        if most.basis is Basis.PROVEN and once:
            # Of devices that send once in a run: it is that of the run, and not "per round".
            most = replace(most, rounds=rounds)
        return most

    @property
    def per_round(self) -> tuple[Epsilon, str]:
        """What one message guarantees or claims to, and its value in words.

        For what is proven about a client it is the epsilon of the whole run, without words: the
        run is what such a number is for. For appended noise, whose guarantee depends on the
        hashes, it is that of a round which, repeated, costs what the run did.
        """
        epsilon = self.epsilon
        if epsilon.basis is Basis.NONE:
            return epsilon, ""
        if epsilon.basis is Basis.CLAIMED and self.config.get("per_round") is not None:
            # Theorem 1 and the paper's Laplace noise claim it without the delta that runs ask at.
            epsilon = replace(epsilon, delta=0.0)
        if epsilon.basis is Basis.PROVEN:
            if epsilon.scope.unit is not Unit.COORDINATE:
                return epsilon, ""
            given = self.config.get("per_round")
            if given is None:
                epsilon = _round_of(epsilon)
                words = f"{epsilon.shown()} a round at delta {epsilon.delta:g}"
                return epsilon, f"{words}, on average"
            epsilon = Epsilon(float(given), 0.0, 1, epsilon.basis, epsilon.scope, epsilon.simulated)
        return epsilon, f"{epsilon.shown()} a round"


def trained(experiment: Experiment, results: Results) -> list[Trained]:
    """The variants of an experiment with what their runs came to."""
    return [
        Trained(variant, tuple(results[job] for job in experiment.runs(variant)))
        for variant in experiment.variants
    ]


def panels_of(lines: Sequence[Trained]) -> dict[str, list[Trained]]:
    """The variants by the panels that they belong to, in their order."""
    panels: dict[str, list[Trained]] = {}
    for line in lines:
        for panel in line.variant.panels:
            panels.setdefault(panel, []).append(line)
    return panels


def points_of(curves: Sequence[Sequence[Mapping[str, Any]]]) -> tuple[Point, ...]:
    """Means of measurements after the rounds that all curves have, without round 0.

    If they have none in common, since one stopped at once, there is one point: of their last ones.
    """
    by_round = [{one["round"]: one for one in curve if one["round"] > 0} for curve in curves]
    shared = sorted(set(by_round[0]).intersection(*by_round))
    if shared:
        return tuple(_point([curve[index] for curve in by_round]) for index in shared)
    return (_point([curve[-1] for curve in curves]),)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float | None]:
    """The mean, and the standard deviation if there are several.

    >>> mean_and_spread([1.0, 3.0]), mean_and_spread([1.0])
    ((2.0, 1.4142135623730951), (1.0, None))
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None


def at(points: Sequence[Point], up: float) -> float | None:
    """The accuracy after so many bytes up, between evaluations in a straight line.

    None before the first evaluation; after the last one, that of the last.
    """
    if not points or up < points[0].up:
        return None
    for before, after in pairwise(points):
        if up <= after.up:
            sent = after.up - before.up
            part = (up - before.up) / sent if sent else 0.0
            return before.accuracy + part * (after.accuracy - before.accuracy)
    return points[-1].accuracy


def slug(text: str) -> str:
    """For names of files: letters, digits and dashes.

    >>> slug("50x, epsilon 0.1")
    '50x-epsilon-0-1'
    """
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def _point(records: Sequence[Mapping[str, Any]]) -> Point:
    accuracy, spread = mean_and_spread([one["accuracy"] for one in records])
    up = statistics.fmean(one["bytes_up"] for one in records)
    down = statistics.fmean(one["bytes_down"] for one in records)
    return Point(min(one["round"] for one in records), accuracy, spread, up, up + down)


def _round_of(total: Epsilon) -> Epsilon:
    """Of one of `rounds` equal releases with Gaussian noise that together have this epsilon."""
    value, delta = float(total), total.delta

    def excess(shift: float) -> float:
        return gaussian_epsilon(shift, delta) - value

    if value == 0 or math.isinf(value):
        return total
    most = 1.0
    while excess(most) < 0:
        most *= 2
    shift = float(brentq(excess, 0.0, most, xtol=1e-12)) / math.sqrt(total.rounds)
    return Epsilon(
        gaussian_epsilon(shift, delta), delta, 1, total.basis, total.scope, total.simulated
    )

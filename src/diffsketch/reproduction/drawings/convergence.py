"""Theorem 2's bound beside the gap that was measured."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

from diffsketch.pages.exhibits import Axis, Cell, Plot, Series, Table
from diffsketch.reproduction.drawings.drawn import Drawn, Fact
from diffsketch.reproduction.drawings.measured import Measured
from diffsketch.reproduction.drawings.trained import mean_and_spread
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Results

__all__ = ["Descent", "draw", "slope"]


class Descent(Measured):
    """A convex run whose gap was measured beside the bounds on it."""

    @property
    def rounds(self) -> list[int]:
        """Where the gap was measured."""
        return list(self.first["rounds"])

    def mean(self, what: str) -> list[float]:
        """Over the seeds, at each place."""
        rows = zip(*(each[what] for each in self.found), strict=True)
        return [statistics.fmean(row) for row in rows]

    @property
    def below(self) -> float:
        """Share of places and seeds where the measured gap is at most the bound."""
        bound = "theorem2" if "theorem2" in self.first else "proven"
        kept = [
            bool(gap <= limit)
            for each in self.found
            for gap, limit in zip(each["gap"], each[bound], strict=True)
        ]
        return sum(kept) / len(kept)


def draw(experiment: Experiment, results: Results) -> Drawn:
    """Gap and bounds over the rounds, on logarithmic axes.

    Guarantees (`tests/reproduction/test_convergence.py`): a gap above the bound is counted.

    Args:
        experiment: With measurements of the kind `convergence`; the first with a sketch is what
            the theorem is about.
        results: Of them.
    """
    lines = Descent.all_of(experiment, results)
    sketched = next(line for line in lines if "theorem2" in line.first)
    facts = _facts(lines, sketched)
    return Drawn(
        lead=_lead(facts, sketched),
        exhibits=(_plot(experiment, lines), _table(experiment, sketched)),
        proven=(_constants(experiment, lines),),
        text=_text(sketched),
        facts=facts,
    )


def slope(rounds: Sequence[int], values: Sequence[float]) -> float | None:
    """Of the values over the rounds, both logarithmic, from the middle of the run on.

    None if a value is not positive, which has no logarithm.
    """
    late = [(r, v) for r, v in zip(rounds, values, strict=True) if r >= math.sqrt(rounds[-1])]
    if len(late) < 2 or any(value <= 0 for _, value in late):
        return None
    x, y = np.log([r for r, _ in late]), np.log([v for _, v in late])
    return float(np.polyfit(x, y, 1)[0])


def _plot(experiment: Experiment, lines: Sequence[Descent]) -> Plot:
    series = []
    for line in lines:
        places, gap = tuple(float(r) for r in line.rounds), line.mean("gap")
        rows = list(zip(*(each["gap"] for each in line.found), strict=True))
        several = len(line.found) > 1
        series.append(
            Series(
                f"measured, {line.name}", places, tuple(gap), role=line.name,
                low=tuple(min(row) for row in rows) if several else (),
                high=tuple(max(row) for row in rows) if several else (),
                kind="band" if several else "line",
            )
        )  # fmt: skip
        for what, words in (("theorem2", "Theorem 2"), ("proven", "bound on the expected gap")):
            if what in line.first:
                series.append(
                    Series(f"{words}, {line.name}", places, tuple(line.mean(what)), dashed=True,
                           role=f"{words}, {line.name}")
                )  # fmt: skip
    count = len(lines[0].found)
    spread = f"Mean of {count} seeds; the band is from the least to the most." if count > 1 else ""
    return Plot(
        name=f"{experiment.name}-gap",
        title="Gap of the averaged model, and bounds on it",
        x=Axis("rounds", log=True),
        y=Axis("F(average) - F(comparator)", log=True),
        series=tuple(series),
        caption=f"{spread} Bounds have constants that were measured along the runs.".strip(),
    )


def _table(experiment: Experiment, line: Descent) -> Table:
    gap, stated, proven = (line.mean(name) for name in ("gap", "theorem2", "proven"))
    wanted = sorted({0, len(gap) // 4, len(gap) // 2, 3 * len(gap) // 4, len(gap) - 1})
    rows: list[tuple[Cell, ...]] = [
        (line.rounds[i], _rounded(gap[i]), _rounded(stated[i]), _rounded(proven[i]),
         _rounded(stated[i] / gap[i]) if gap[i] > 0 else None)
        for i in wanted
    ]  # fmt: skip
    columns = ("rounds", "measured gap", "Theorem 2", "bound on the expected gap",
               "Theorem 2 / measured")  # fmt: skip
    return Table(f"{experiment.name}-numbers", f"{line.name}: gap and bounds", columns, tuple(rows))


def _constants(experiment: Experiment, lines: Sequence[Descent]) -> Table:
    columns = (
        "run", "G, measured", "G, of any gradient", "D, measured", "F(comparator)",
        "norm of the comparator", "n mu^2 of Lemma 1", "variance of the query, proven",
    )  # fmt: skip
    rows: list[tuple[Cell, ...]] = []
    for line in lines:
        first = line.first
        noise = None if "error" not in first else first["dim"] * first["error"] ** 2
        rows.append(
            (
                line.name,
                *(_rounded(statistics.fmean(each[name] for each in line.found)) for name in
                  ("gradient_norm", "gradient_norm_always", "distance", "reference",
                   "reference_norm")),
                _rounded(noise),
                _rounded(first.get("variance")),
            )
        )  # fmt: skip
    return Table(
        f"{experiment.name}-constants", "What the bounds are made of", columns, tuple(rows),
        "G and D are measured along the run, so the bounds are evaluated and not known beforehand.",
    )  # fmt: skip


def _facts(lines: Sequence[Descent], sketched: Descent) -> dict[str, Fact]:
    gap, bound, proven = (sketched.mean(name) for name in ("gap", "theorem2", "proven"))
    last = [each["gap"][-1] for each in sketched.found]
    facts: dict[str, Fact] = {
        "seeds": len(sketched.found),
        "rounds": sketched.rounds[-1],
        "bound-holds": sketched.below,
        "gap": gap[-1],
        "spread/gap": mean_and_spread(last)[1],
        "bound": bound[-1],
        "proven": proven[-1],
        "gap/first": gap[0],
        "ratio": bound[-1] / gap[-1] if gap[-1] > 0 else None,
        "slope/bound": slope(sketched.rounds, bound),
        "useful-after": _useful_after(bound[-1], sketched.rounds[-1], gap[0]),
    }
    for line in lines:
        word = "sketch" if line is sketched else line.name
        facts[f"slope/{word}"] = slope(line.rounds, line.mean("gap"))
        facts[f"gap/{word}"] = line.mean("gap")[-1]
        facts[f"bound-holds/{word}"] = line.below
    return facts


def _useful_after(bound: float, rounds: int, start: float) -> float | None:
    """Rounds until the bound is below the gap of the first model: it falls as 1 / sqrt(rounds)."""
    return rounds * (bound / start) ** 2 if start > 0 else None


def _lead(facts: Mapping[str, Fact], line: Descent) -> str:
    share, gap, bound = (float(facts[name] or 0.0) for name in ("bound-holds", "gap", "bound"))
    useful = float(facts["useful-after"] or 0.0)
    where = "every round looked at" if share >= 1 else f"{share:.0%} of the rounds looked at"
    times = f", {bound / gap:,.0f} times the measured gap of {gap:.3g}" if gap > 0 else ""
    return (
        f"With measured constants the bound holds at {where}: after {line.rounds[-1]:,} rounds it "
        f"is {bound:.3g}{times}. It says nothing that the model before training does not fulfil "
        f"until about round {useful:,.0f}."
    )


def _text(line: Descent) -> tuple[str, ...]:
    reference = statistics.fmean(each["reference"] for each in line.found)
    return (
        "The problem: logistic regression on the 2,000 images of the ten workers, which is convex. "
        "Each worker draws its batch with replacement, hashes are fresh in every round, steps fall "
        "as c / sqrt(i), and what is evaluated is the average of all models so far, as in the "
        "theorem; no noise is added.",
        f"The images can be separated, so F has no minimum but 0 at infinity. The comparator is "
        f"the point that a few steps of L-BFGS reach (F = {reference:.3g}); the proof never uses "
        "that it is the minimum, so the bound holds against any point. A better one is farther "
        "away, which makes D, and with it the bound, larger.",
        "What is proven is a bound on the expected gap; the paper states one with probability "
        "1 - delta, which its proof does not give.",
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")

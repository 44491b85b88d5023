"""Several audits in one run, as tables for a terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from diffsketch.auditing.audits import DEFAULT_CONFIDENCE, AuditResult, Case, Verdict, audit
from diffsketch.auditing.cases import cases

_STYLES = {
    Verdict.CONTRADICTED: "bold red",
    Verdict.LESS_NOISE: "bold red",
    Verdict.CONSISTENT: "green",
    Verdict.NOTHING_CLAIMED: "dim",
}
_WORD = 11  # letters of the longest word of a verdict


@dataclass(frozen=True, eq=False)
class Suite:
    """Results of a run of several audits."""

    results: tuple[AuditResult, ...]
    confidence: float
    seed: int

    @property
    def false_alarm(self) -> float:
        """An upper bound on the probability that any correct mechanism was contradicted."""
        correct = sum(
            result.case.claim.noise_is_proven and result.case.planted is None
            for result in self.results
        )
        return min(1.0, correct * (1 - self.confidence))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        return {
            "seed": self.seed,
            "confidence_of_each_bound": self.confidence,
            "false_alarm_probability_of_each_case_at_most": 1 - self.confidence,
            "false_alarm_probability_of_this_run_at_most": self.false_alarm,
            "reading": "Where epsilon is null, nothing limits it.",
            "audits": [result.to_json() for result in self.results],
        }


def run_suite(
    makers: Iterable[Callable[[], Case]],
    *,
    quick: bool = False,
    trials: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    delta: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda _, __: None,
) -> Suite:
    """Run cases, one after the other; arguments as of `audit`. Quick runs have half of the trials.

    `on_progress` is called with the share of the work that is done, and what is being done.
    """
    chosen = [make() for make in makers]
    # Quick runs are for a look: the bounds of half of the trials are a little lower.
    fewer = 2 if quick else 1
    counts = [case.trials // fewer if trials is None else trials for case in chosen]
    # Roughly as they take time, for progress bars.
    # A trial costs about as much as a thousand numbers, however few it has.
    costs = [count * (1000 + case.width) for case, count in zip(chosen, counts, strict=True)]
    total, done = sum(costs), 0

    def reporter(cost: int, name: str) -> Callable[[float], None]:
        nonlocal done
        start, done = done, done + cost
        on_progress(start / total, name)
        return lambda share: on_progress((start + share * cost) / total, name)

    results = [
        audit(case, trials=count, confidence=confidence, delta=delta, seed=seed,
              on_progress=reporter(cost, case.name))
        for case, count, cost in zip(chosen, counts, costs, strict=True)
    ]  # fmt: skip
    on_progress(1.0, "done")
    return Suite(tuple(results), confidence, seed)


def report(suite: Suite) -> tuple[Table | str, ...]:
    """Make what to print: the tables, and how to read them."""
    parts: list[Table | str] = []
    plain = [result for result in suite.results if not result.case.planted]
    planted = [result for result in suite.results if result.case.planted]
    parts += [_audits(plain, suite.confidence)] if plain else []
    parts += [_planted(planted)] if planted else []
    if suite.results:
        whole = f", and {suite.false_alarm:.2g} in this whole run" if suite.false_alarm else ""
        parts.append(
            "Measured is what an attack achieved: the true epsilon is at least that. A correct "
            f"mechanism is contradicted with probability at most {1 - suite.confidence:.2g} in a "
            f"case{whole}."
        )
    if planted:
        detected = sum(result.is_wrong for result in planted)
        parts.append(f"Planted errors found: {detected} of {len(planted)}.")
    parts += [
        f"{result.trials:,} trials may be too few to find {result.case.name}: it takes some "
        f"{result.case.trials:,}."
        for result in planted
        if result.trials < result.case.trials and not result.is_wrong
    ]
    return tuple(parts)


def listing() -> Table:
    """Make the table of the names that can be asked for."""
    table = Table(title="Cases, and the errors that can be planted in them", title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("what, against whom, and what is protected")
    table.add_column("errors")
    for name, make in cases().items():
        if "+" not in name:
            case = make()
            errors = [other.partition("+")[2] for other in cases() if other.startswith(f"{name}+")]
            what = f"{case.title}; {case.game.adversary}; {case.scope.short}"
            table.add_row(name, what, ", ".join(errors))
    return table


def _table(title: str, left: Sequence[str], right: Sequence[str]) -> Table:
    """Make a table with texts to the left and numbers to the right, which are never cut off."""
    # Without its edges there is room for all columns of an audit in 80 letters.
    table = Table(title=title, title_justify="left", pad_edge=False, show_edge=False)
    for heading in left:
        table.add_column(heading, overflow="fold")
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _audits(results: Sequence[AuditResult], confidence: float) -> Table:
    table = _table(
        f"Lower bounds on epsilon, each with {confidence:.4g} confidence",
        ["case, adversary and\nwhat is protected"],
        ["delta", "epsilon\nstated", "epsilon\nmeasured"],
    )
    table.add_column("verdict", width=_WORD)
    for result in results:
        case, stated = result.case, result.claimed
        rounds = f", {case.rounds} rounds" if case.rounds > 1 else ""
        lines = [f"[bold]{case.name}[/bold]", str(case.game.adversary), case.scope.short + rounds]
        lines += ["simulated noise: engines refuse it"] if case.simulated else []
        basis = stated.basis_text.replace(", ", ",\n")
        table.add_row(
            "\n".join(lines),
            f"{stated.delta:g}",
            "none" if math.isinf(float(stated)) else f"{stated.shown()}\n{basis}",
            measured_text(result, ("\nexact:\n", "")),
            f"[{_STYLES[result.verdict]}]{result.verdict}[/]",
            end_section=True,
        )
    return table


def _planted(results: Sequence[AuditResult]) -> Table:
    """Make a row for each error: in how many cases it shows, and where it shows least.

    That is where the bound is least above what is stated; or, if an error is missed, where it is.
    """
    title = "Planted errors: epsilon stated, and measured where it shows least"
    table = _table(title, ["error"], [])
    for heading in ("case", "stated", "measured", "found"):
        table.add_column(heading, justify="left" if heading == "case" else "right", no_wrap=True)
    by_error: dict[str, list[AuditResult]] = {}
    # The weakest case of an error comes first: it is the one to show.
    for result in sorted(results, key=lambda result: result.excess):
        by_error.setdefault(result.case.name.partition("+")[2], []).append(result)
    for error, ordered in by_error.items():
        missed = [result for result in ordered if not result.is_wrong]
        shown, colour = missed or ordered[:1], "bold red" if missed else "green"
        table.add_row(
            f"[bold]{error}[/bold]\n{ordered[0].case.planted}",
            "\n".join(result.case.name.partition("+")[0] for result in shown),
            "\n".join(f"{result.stated:.2g}" for result in shown),
            "\n".join(result.measured.lower_bound.shown(2) for result in shown),
            f"[{colour}]{len(ordered) - len(missed)} of {len(ordered)}[/]",
            end_section=True,
        )
    return table


def measured_text(result: AuditResult, around: tuple[str, str]) -> str:
    """Format the lower bound, and the exact limit between the two texts, where it is known."""
    text = f">= {result.measured.lower_bound.shown()}"
    if result.limit is None:
        return text
    exact = "infinite" if math.isinf(result.limit) else f"{result.limit:.3g}"
    return f"{text}{around[0]}{exact}{around[1]}"

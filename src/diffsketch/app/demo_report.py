"""What the demonstration prints: its tables, and how to read them.

Imports `demo` and nothing else of ours; only the command line imports it.
"""

from __future__ import annotations

from rich.table import Table

from diffsketch.app.demo import DemoResult, Recovery

__all__ = ["report"]


def report(result: DemoResult) -> tuple[Table | str, ...]:
    """What to print: the two tables, and how to read them."""
    one_round = _table(f"One sketch of a gradient with {result.dim:,} coordinates")
    for recovery in result.by_compression:
        one_round.add_row(f"{recovery.compression:.1f}x", *_cells(recovery))
    fixed = result.by_rounds[0].compression
    averaged = _table(f"Average over rounds of fresh hashes at {fixed:.0f}x", first="rounds")
    for recovery in result.by_rounds:
        averaged.add_row(str(recovery.rounds), *_cells(recovery))
    above = [r.compression for r in result.by_compression if r.mean_error > 1]
    reading = [
        "Error is ||estimate - gradient|| / ||gradient||; theory is sqrt(compression / rounds), "
        "for the mean query."
    ]
    if above:
        reading.append(
            f"From {min(above):.0f}x on, the error of one sketch exceeds 1. That is expected: the "
            "mean query is unbiased, so averaging over rounds with fresh hashes recovers the "
            "direction (here of one fixed gradient)."
        )
    return (one_round, averaged, *reading, "A bare sketch gives no privacy guarantee.")


def _table(title: str, *, first: str = "compression") -> Table:
    table = Table(title=title, title_justify="left")
    headings = ("table", "error\nmedian", "error\nmean", "theory\nmean", "cosine\nmedian")
    for heading in (first, *headings, "cosine\nmean"):
        table.add_column(heading, justify="right")
    return table


def _cells(recovery: Recovery) -> tuple[str, ...]:
    errors = (recovery.median_error, recovery.mean_error, recovery.predicted_mean_error)
    cosines = (recovery.median_cosine, recovery.mean_cosine)
    numbers = tuple(f"{value:.2f}" for value in (*errors, *cosines))
    return (f"{recovery.rows} x {recovery.cols}", *numbers)

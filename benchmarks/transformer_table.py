"""The tables and the figure of `benchmarks.transformer`, from its lines of results."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpt import GPT, SIZES
from benchmarks.transformer import ROWS, TUNING_SEED

DOCS = Path(__file__).parents[1] / "docs"
PAGE, FIGURE = DOCS / "results.md", DOCS / "images" / "transformer.svg"
TABLES = DOCS.parent / "benchmarks" / "results" / "transformer" / "tables.md"
BEGIN, END = "<!-- benchmarks.transformer: begin -->", "<!-- benchmarks.transformer: end -->"
WIDTH, HEIGHT, MARGIN = 460, 380, 50
# What the page shows: the references, the best peers, and ours at each price. TABLES has all rows.
SHOWN = ("diloco-muon", "local-4x2-muon", "none", "sketch-2-bits", "local-4x2", "local-4x4",
         "diloco", "sparseloco-256", "local-10x2", "powersgd-2", "local-8x1",
         "sparseloco-64")  # fmt: skip


@dataclass(frozen=True)
class Summary:
    """A row's results in one setting: the losses of its seeds, and how many fewer bytes."""

    name: str
    losses: tuple[float, ...]
    up: float
    down: float
    rate: float
    outer: tuple[float, float]

    @property
    def loss(self) -> float:
        """Mean over the seeds."""
        return statistics.mean(self.losses)

    @property
    def total(self) -> float:
        """Times fewer bytes in both directions together."""
        return 2 / (1 / self.up + 1 / self.down)


def summaries(
    results: Sequence[Mapping[str, Any]], params: str, workers: int
) -> dict[str, Summary]:
    """Summarise the runs of a setting by row, the lowest loss first."""
    rows = {}
    for name in ROWS:
        runs = [run for run in results if run["row"] == name and run["seed"] != TUNING_SEED
                and (run["params"], run["workers"]) == (params, workers)]  # fmt: skip
        if runs:
            dense = 4 * GPT(SIZES[params]).dim * runs[0]["steps"]
            losses = tuple(math.inf if run["loss"] is None else run["loss"] for run in runs)
            rows[name] = Summary(name, losses, dense / runs[0]["up"], dense / runs[0]["down"],
                                 runs[0]["rate"], tuple(runs[0]["outer"]))  # fmt: skip
    return dict(sorted(rows.items(), key=lambda item: item[1].loss))


def short_table(rows: Mapping[str, Summary], workers: int) -> list[str]:
    """Lines of the page's table in Markdown, without what was tuned and without single seeds."""
    lines = [
        f"| sent by {workers} workers | when | x up | x down | loss |",
        "|---|---|---|---|---|",
    ]
    for row in rows.values():
        kind = ROWS[row.name]
        text = f"**{kind.text}**" if kind.ours else kind.text
        when = "every step" if kind.every == 1 else f"every {kind.every}"
        if row.name in SHOWN:
            lines.append(f"| {text} | {when} | {row.up:,.0f} | {row.down:,.0f} | {row.loss:.3f} |")
    return lines


def table(rows: Mapping[str, Summary], workers: int) -> list[str]:
    """Lines of a table in Markdown, with all that was chosen and measured."""
    lines = [
        f"| sent by {workers} workers | when | x up | x down | rate | outer | loss | seeds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows.values():
        kind = ROWS[row.name]
        text = f"**{kind.text}**" if kind.ours else kind.text
        outer = "" if kind.every == 1 else f"{row.outer[0]:g}/{row.outer[1]:g}"
        seeds = " ".join(f"{loss:.3f}" for loss in row.losses)
        when = "every step" if kind.every == 1 else f"every {kind.every}"
        lines.append(
            f"| {text} | {when} | {row.up:,.0f} | {row.down:,.0f} | {row.rate:.1e} | {outer} | "
            f"{row.loss:.3f} | {seeds} |"
        )
    return lines


def goals(rows: Mapping[str, Summary]) -> list[str]:
    """Compare ours with the peers that they have to beat, in sentences: by one inner optimizer."""
    ours = [row for row in rows.values() if ROWS[row.name].ours]
    lines = []

    def compare(text: str, least: float, every: bool, peer: str, share: float) -> None:
        fitting = [row for row in ours if min(row.up, row.down) >= least
                   and (ROWS[row.name].every == 1) == every
                   and ROWS[row.name].muon == ROWS[peer].muon]  # fmt: skip
        best = min(fitting, key=lambda row: row.loss, default=None)
        if best is not None and peer in rows:
            ratio = best.loss / rows[peer].loss
            said = "reached" if ratio <= share else "NOT reached"
            lines.append(f"- {text}: {ROWS[best.name].text}, {best.loss:.3f}, is "
                         f"{abs(ratio - 1):.1%} {'above' if ratio > 1 else 'below'} "
                         f"{ROWS[peer].text}, {rows[peer].loss:.3f}: {said}.")  # fmt: skip

    compare("950x both ways at no more than the loss of DiLoCo", 950, False, "diloco", 1.0)
    compare("The same with Muon", 950, False, "diloco-muon", 1.0)
    compare("2,300x both ways within 2.5% of it", 2300, False, "diloco", 1.025)
    compare("50x in every step, ahead of PowerSGD", 49.5, True, "powersgd-2", 1.0)
    for name in ("sparseloco-64", "sparseloco-256"):
        if name in rows:
            fewest = max((row for row in ours if row.loss <= rows[name].loss
                          and not ROWS[row.name].muon),
                         key=lambda row: row.total)  # fmt: skip
            lines.append(f"- At no more than the loss of {ROWS[name].text} ({rows[name].loss:.3f}),"
                         f" {ROWS[fewest.name].text} ({fewest.loss:.3f}) takes "
                         f"{fewest.total / rows[name].total:.1f} times fewer bytes up and down "
                         "together.")  # fmt: skip
    return lines


def figure(settings: Mapping[int, Mapping[str, Summary]]) -> str:
    """Draw the loss over the bytes of both directions, a panel for each number of workers."""
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH * len(settings)}" '
             f'height="{HEIGHT}" font-family="sans-serif" font-size="9">',
             '<rect width="100%" height="100%" fill="white"/>']  # fmt: skip
    for panel, (workers, rows) in enumerate(settings.items()):
        shown = [row for row in rows.values() if row.loss < 3]
        low, high = min(row.loss for row in shown) - 0.05, max(row.loss for row in shown) + 0.05
        left, right = panel * WIDTH + MARGIN, (panel + 1) * WIDTH - 70
        most = max(row.total for row in shown)

        def across(total: float) -> float:
            share = 1 - math.log(total) / math.log(most)  # noqa: B023
            return left + share * (right - left)  # noqa: B023

        def down(loss: float) -> float:
            return MARGIN + (high - loss) / (high - low) * (HEIGHT - 2 * MARGIN)  # noqa: B023

        parts.append(f'<text x="{left}" y="24" font-size="13">{workers} workers: validation loss '
                     "over bytes up and down</text>")  # fmt: skip
        for factor in (1, 10, 100, 1000):
            x = across(factor)
            parts.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{MARGIN}" y2="{HEIGHT - MARGIN}" '
                         f'stroke="#ddd"/><text x="{x:.0f}" y="{HEIGHT - 34}" '
                         f'text-anchor="middle">1/{factor:,}</text>')  # fmt: skip
        for tenth in range(math.ceil(low * 5), math.floor(high * 5) + 1):
            y = down(tenth / 5)
            parts.append(f'<line x1="{left}" x2="{right}" y1="{y:.0f}" y2="{y:.0f}" '
                         f'stroke="#ddd"/><text x="{left - 24}" y="{y + 3:.0f}">{tenth / 5:.1f}'
                         "</text>")  # fmt: skip
        for row in shown:
            colour = "#c0392b" if ROWS[row.name].ours else "#34495e"
            x, y = across(row.total), down(row.loss)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{colour}"/>'
                         f'<text x="{x + 5:.1f}" y="{y + 3:.1f}" fill="{colour}">{row.name}</text>'
                         )  # fmt: skip
    return "\n".join([*parts, "</svg>\n"])


def write_table(results: Sequence[Mapping[str, Any]], options: argparse.Namespace) -> None:
    """Write a page of all tables, the short one in `docs/results.md`, and the figure."""
    params = options.params[0]
    settings = {workers: summaries(results, params, workers) for workers in options.workers}
    if missing := [workers for workers, rows in settings.items() if not rows]:
        raise SystemExit(f"{options.out} must have runs of {params} with {missing} workers")
    shown, tables = [BEGIN], []
    for number, (workers, rows) in enumerate(settings.items()):
        table_of_all = short_table(rows, workers) if number == 0 else [f"With {workers} workers:"]
        shown += ["", *table_of_all, "", *goals(rows)]
        tables += ["", *table(rows, workers), "", *goals(rows)]
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + "\n".join([*shown, "", END]) + after)
    TABLES.write_text("\n".join(["# Loss over bytes: all rows", *tables, ""]))
    FIGURE.parent.mkdir(exist_ok=True)
    FIGURE.write_text(figure(settings))
    print("\n".join([*shown, *tables]))

"""What the benchmarks print and write: tables, ratios and a JSON file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import Timing

__all__ = ["LIMIT_OF", "Report", "print_table", "print_timings", "readable", "summarise"]

LIMIT_OF = {"encode": "sum", "query": "fill_"}  # what an operation cannot beat


@dataclass
class Report:
    """All results so far, and the seconds per coordinate that tell which peers take too long."""

    device: torch.device
    repeat: int
    threads: tuple[int, ...]
    cases: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    edges: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    rates: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def note(self, text: str) -> None:
        """Print and keep a remark."""
        print(f"  note: {text}", flush=True)
        self.notes.append(text)

    def save(self, path: Path | None) -> None:
        """Write the JSON file; also called after each case, so that a broken run leaves one."""
        if path is None:
            return
        settings = {"device": self.device.type, "repeat": self.repeat, "threads": self.threads}
        parts = {
            "settings": settings, "notes": self.notes,
            "cases": self.cases, "batches": self.batches, "memory": self.memory,
            "calls": self.calls, "edges": self.edges,
        }  # fmt: skip
        path.write_text(json.dumps(self.result | parts, indent=1) + "\n")

    def print_summary(self) -> None:
        """One line for each case and operation: the fastest peer, ours, and the ratios."""
        lines = []
        for case in self.cases:
            for operation, found in case["summary"].items():
                shape = f"{case['dim']:,} to {case['rows']}x{case['cols']:,}"
                peer = found["fastest_peer"]
                line = [
                    shape, str(case["threads"]), operation, peer or "-",
                    readable(found["fastest_peer_s"]) if peer else "-",
                ]  # fmt: skip
                for family in ("blocked", "pairwise"):
                    ours = found[family]
                    faster = f"{ours['times_faster_than_peer']:.1f}x" if peer else "-"
                    line += [readable(ours["median_s"]), faster]
                line.append(f"{found['blocked']['times_limit']:.2f} {found['limit']}")
                lines.append(line)
        headers = ["case", "threads", "", "fastest peer", "its time"]
        headers += ["blocked", "faster", "pairwise", "faster", "blocked takes"]
        print_table("Summary", headers, lines)


def summarise(timings: Sequence[Timing]) -> dict[str, dict[str, Any]]:
    """For encode and query: the fastest peer, ours, and the ratios to it and to the limit."""
    summary = {}
    for operation, limit in LIMIT_OF.items():
        same = [timing for timing in timings if timing.job.operation == operation]
        peers = [timing for timing in same if not timing.job.ours]
        best = min(peers, key=lambda timing: timing.median, default=None)
        bound = next(timing.median for timing in timings if timing.job.name == limit)
        summary[operation] = {
            "fastest_peer": best and best.job.name,
            "fastest_peer_s": best and best.median,
            "limit": limit,
            "limit_s": bound,
        } | {
            timing.job.name: {
                "median_s": timing.median,
                "times_faster_than_peer": best and best.median / timing.median,
                "times_limit": timing.median / bound,
            }
            for timing in same
            if timing.job.ours
        }
    return summary


def print_timings(timings: Sequence[Timing], threads: int) -> None:
    """All jobs with their times, as multiples of our `blocked` too."""
    blocked = {t.job.operation: t.median for t in timings if t.job.name == "blocked"}
    lines = []
    for timing in sorted(timings, key=lambda timing: timing.job.operation):
        job, median, least = timing.job, timing.median, min(timing.samples)
        ratio = f"{median / blocked[job.operation]:.2f}" if job.operation in blocked else "-"
        lines.append([job.name, job.operation, readable(median), readable(least), ratio])
    headers = ["", "operation", "median", "least", "times blocked"]
    print_table(f"{threads} threads", headers, lines)


def readable(seconds: float) -> str:
    """A time with its unit.

    >>> readable(0.0123), readable(9e-6)
    ('12.3 ms', '9.00 µs')
    """
    scale, unit = (1, "s") if seconds >= 1 else (1e3, "ms") if seconds >= 1e-3 else (1e6, "µs")
    value = seconds * scale
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, with Rich where it is installed."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        print(f"\n{title}")
        for row in (headers, *rows):
            print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)))
        return
    table = Table(title=title, title_justify="left")
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console = Console()
    (console if console.is_terminal else Console(width=160)).print(table)

"""What a comparison prints and writes: one table over the seeds, JSON with all curves, and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from diffsketch.files import replace_files
from diffsketch.privacy.claim import Basis
from diffsketch.app.compare import Result
from diffsketch.app.config import METHOD_NAMES
from diffsketch.app.report import epsilon_from_data
from diffsketch.app.words import bytes_in_words

__all__ = ["report", "rows_of", "write_results"]

_COLUMNS = (
    "name", "seed", "outcome", "diverging", "rounds", "loss", "accuracy", "best_accuracy",
    "message_bytes", "bytes_up", "bytes_down", "compression", "epsilon", "delta", "basis", "unit",
    "relation", "trust", "noised_share", "milliseconds_per_round",
)  # fmt: skip

_ENDED = {"diverged": "diverged", "diverging": "diverging", "budget": "out of\nbudget"}


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each name: means over its seeds, and how far they spread.

    The spread is the standard deviation over the seeds; None for a single one. Epsilon is the
    largest of them.
    """
    names = list(dict.fromkeys(result.name for result in results))
    return [_row(name, [one for one in results if one.name == name]) for name in names]


def report(rows: Sequence[Mapping[str, Any]], *, seeds: Sequence[int]) -> tuple[Table | str, ...]:
    """The table, and how to read it."""
    many = len(seeds) > 1
    title = f"Means over {len(seeds)} seeds" if many else f"Seed {seeds[0]}"
    table = Table(title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for heading in ("accuracy", "rounds,\nms each", "message,\nall bytes", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("epsilon", no_wrap=True)
    for row in rows:
        table.add_row(
            _name(row["name"]),
            _accuracy(row),
            f"{row['rounds']:,}\n{_milliseconds(row)}",
            f"{row['message_bytes']:,} B\n{bytes_in_words(row['bytes'])}",
            f"{row['compression']:.3g}x" if row["bytes"] else "-",
            _epsilon(row),
            end_section=True,
        )
    reading = (
        "Runs with one seed have the same batches, devices and first weights. Accuracy is that of "
        "the last round"
        + (", ± the standard deviation over the seeds" if many else "")
        + ". All bytes are those of the messages up and down with their headers; the ratio is that "
        "of vectors in float32 to them."
    )
    return table, reading, *_assumed(rows)


def write_results(
    results: Sequence[Result], rows: Sequence[Mapping[str, Any]], directory: Path
) -> list[Path]:
    """Write `comparison.json` and `comparison.csv`; both or none."""
    runs = [
        {
            "name": one.name,
            "seed": one.seed,
            "summary": one.summary,
            "times": one.times,
            "curve": one.curve,
        }
        for one in results
    ]
    text = json.dumps({"rows": list(rows), "runs": runs}, indent=1, allow_nan=False)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_row(one) for one in results)
    contents = {
        directory / "comparison.json": text.encode() + b"\n",
        directory / "comparison.csv": stream.getvalue().encode(),
    }
    replace_files(contents)
    return list(contents)


def _row(name: str, results: Sequence[Result]) -> dict[str, Any]:
    summaries = [one.summary for one in results if one.summary is not None]
    accuracies = [one["accuracy"] for one in summaries]
    largest = max((one["epsilon"] for one in summaries), key=_size)
    bytes_of = [one["bytes_up"] + one["bytes_down"] for one in summaries]
    raw = sum(one["uncompressed_bytes_up"] + one["uncompressed_bytes_down"] for one in summaries)
    timed = [one for one in results if one.summary is not None and one.times]
    seconds = sum(one.times["training"] for one in timed)
    steps = sum(one.summary["rounds"] for one in timed if one.summary is not None)
    ended: dict[str, int] = {}
    for one in summaries:
        kind = "diverging" if one["diverging"] and one["outcome"] == "finished" else one["outcome"]
        ended[kind] = ended.get(kind, 0) + 1
    return {
        "name": name,
        "seeds": len(summaries),
        "accuracy": statistics.fmean(accuracies),
        "accuracy_spread": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "rounds": max(one["rounds"] for one in summaries),
        "message_bytes": summaries[0]["message_bytes"],
        "bytes": statistics.fmean(bytes_of),
        "compression": raw / max(sum(bytes_of), 1),
        "milliseconds_per_round": 1000 * seconds / steps if steps else None,
        "epsilon": largest,
        "assumes": list(dict.fromkeys(text for one in summaries for text in one["assumes"])),
        "ended": ended,
    }


def _size(epsilon: Mapping[str, Any]) -> float:
    return math.inf if epsilon["value"] is None else float(epsilon["value"])


def _name(name: str) -> str:
    """With its settings below each other, if it is made of them and not a name that was given."""
    made = name.partition(":")[0] in METHOD_NAMES
    first, *rest = re.split("[:,]", name) if made else [name]
    return "\n".join([f"[bold]{escape(first)}[/bold]", *(escape(part) for part in rest)])


def _milliseconds(row: Mapping[str, Any]) -> str:
    value = row["milliseconds_per_round"]
    return "-" if value is None else f"{value:.3g}"


def _accuracy(row: Mapping[str, Any]) -> str:
    text = f"{100 * row['accuracy']:.2f}%"
    if row["accuracy_spread"] is not None:
        text += f"\n± {100 * row['accuracy_spread']:.2f}"
    for kind, count in row["ended"].items():
        if kind != "finished":
            text += f"\n{count} of {row['seeds']}" if row["seeds"] > 1 else ""
            text += f"\n[red]{_ENDED[kind]}[/red]"
    return text


def _epsilon(row: Mapping[str, Any]) -> str:
    """As `epsilon_in_words`, in a narrow column."""
    epsilon = epsilon_from_data(row["epsilon"])
    if epsilon.basis is Basis.NONE:
        return "no claim"
    scope, at = epsilon.scope, f"at {epsilon.delta:g}"
    about = f"{scope.unit},\n{scope.relation},\n{scope.trust}"
    if math.isinf(float(epsilon)):
        rounds = f"over {epsilon.rounds:,} rounds"
        return f"{epsilon.basis_text} per round,\nnothing {at}\n{rounds}\n{about}"
    times = " a round" if epsilon.basis is Basis.CLAIMED else ""
    return f"{epsilon.shown()}{times}\n{at}\n{epsilon.basis_text};\n{about}"


def _assumed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What privacy rests on, and for which methods."""
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        for text in row["assumes"]:
            methods.setdefault(text, {})[row["name"].partition(":")[0]] = None
    return [escape(f"{', '.join(names)}: {text}") for text, names in methods.items()]


def _csv_row(result: Result) -> dict[str, Any]:
    summary = result.summary or {}
    epsilon = summary.get("epsilon", {})
    row: dict[str, Any] = {"name": result.name, "seed": result.seed}
    for column in _COLUMNS[2:]:
        row[column] = summary.get(column, epsilon.get(column))
    row["epsilon"] = epsilon.get("value")
    rounds = summary.get("rounds", 0)
    if rounds and result.times:
        row["milliseconds_per_round"] = 1000 * result.times["training"] / rounds
    return row

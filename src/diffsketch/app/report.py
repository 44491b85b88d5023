"""What a run prints at its end: a table, what its epsilon means, and the files."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from diffsketch.app.words import bytes_in_words, epsilon_in_words, sentence, time_in_words

__all__ = ["epsilon_from_data", "report"]

_ENDED = {
    "finished": "all rounds done",
    "budget": "stopped: one more round would exceed the budget",
    "diverged": "stopped: diverged",
}


def report(summary: dict[str, Any], times: dict[str, float]) -> tuple[Table | str, ...]:
    """The parts to print.

    Args:
        summary: Of `summarise`, or read from `summary.json`.
        times: Seconds, as in `times.json`.
    """
    config = summary["config"]
    title = f"{config['task']}, {config['algorithm']}, {config['method']}"
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, value in _rows(summary, times):
        table.add_row(name, value)
    parts: list[Table | str] = [table, summary["claim"]]
    if summary["assumes"]:
        parts.append(" ".join(summary["assumes"]))
    if summary["reason"]:
        parts.append(sentence(f"{_ENDED[summary['outcome']]}: {summary['reason']}"))
    return tuple(parts)


def epsilon_from_data(data: dict[str, Any]) -> Epsilon:
    """The epsilon that `epsilon_data` wrote."""
    scope = Scope(Unit(data["unit"]), Relation(data["relation"]), Trust(data["trust"]))
    value = float("inf") if data["value"] is None else data["value"]
    return Epsilon(
        value, data["delta"], data["rounds"], Basis(data["basis"]), scope, data["simulated"]
    )


def _rows(summary: dict[str, Any], times: dict[str, float]) -> list[tuple[str, str]]:
    done, planned = summary["rounds"], summary["planned_rounds"]
    rows = [
        ("accuracy", _accuracy(summary)),
        ("rounds", f"{done:,}" if done == planned else f"{done:,} of {planned:,}"),
        ("bytes up", _bytes(summary, "up")),
        ("bytes down", _bytes(summary, "down")),
        ("message", f"{summary['message_bytes']:,} B for {summary['dim']:,} numbers"),
        ("epsilon", _epsilon(summary)),
    ]
    if summary["noised_share"] is not None:
        rows.append(("noise needed", f"{summary['noised_share']:.1%} of messages"))
    if summary["left_out"]:
        rows.append(("not finite", f"{summary['left_out']:,} vectors of workers"))
    if times:
        each = time_in_words(times["training"] / max(done, 1))
        rows.append(("time", f"{times['total']:.1f} s, of training {each} a round"))
    return rows


def _accuracy(summary: dict[str, Any]) -> str:
    text = "none" if summary["accuracy"] is None else f"{summary['accuracy']:.2%}"
    return f"{text}, diverging" if summary["diverging"] else text


def _bytes(summary: dict[str, Any], way: str) -> str:
    text = bytes_in_words(summary[f"bytes_{way}"])
    ratio = summary[f"compression_{way}"]
    return text if ratio is None else f"{text}, compression {ratio:.3g}x"


def _epsilon(summary: dict[str, Any]) -> str:
    epsilon = epsilon_from_data(summary["epsilon"])
    return epsilon_in_words(epsilon)

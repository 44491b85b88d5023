"""Progress while a run trains: a bar where there is a terminal, lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from diffsketch.app.status import Status
from diffsketch.app.words import bytes_in_words, epsilon_in_words

__all__ = ["Show", "showing"]

_LINE_SECONDS = 5.0
_BAR_SECONDS = 0.1


class Show(Protocol):
    """Shows how far a run is."""

    def __call__(self, status: Status) -> None:
        """After a round."""


@contextmanager
def showing(console: Console, *, rounds: int) -> Iterator[Show]:
    """What to call after each round while the run goes on.

    Args:
        console: Where to show it.
        rounds: All rounds of the run.
    """
    if not console.is_terminal:
        yield _Lines(console)
        return
    bar = Progress(
        TextColumn("round {task.completed:,.0f}/{task.total:,.0f}"),
        BarColumn(bar_width=None),
        TimeRemainingColumn(),
        console=console,
        expand=True,
    )
    task = bar.add_task("", total=rounds)
    last = 0.0
    with Live(bar, console=console, transient=True, refresh_per_second=10) as live:

        def show(status: Status) -> None:
            nonlocal last
            now = time.monotonic()
            # A round may take less time than drawing the bar.
            if now - last >= _BAR_SECONDS or status.round_index == status.rounds:
                last = now
                bar.update(task, completed=status.round_index)
                # A line of its own, so that nothing is cut off in a narrow terminal.
                live.update(Group(bar, Text(in_words(status))))

        yield show


def in_words(status: Status) -> str:
    """Loss, accuracy, bytes and epsilon with its basis."""
    parts = []
    if status.loss is not None and status.accuracy is not None:
        parts += [f"loss {status.loss:.4g}", f"accuracy {status.accuracy:.1%}"]
    up, down = status.totals.bytes_up, status.totals.bytes_down
    parts.append(f"up {bytes_in_words(up)}, down {bytes_in_words(down)}")
    parts.append(epsilon_in_words(status.epsilon()))
    return " | ".join(parts)


class _Lines:
    """A line every few seconds, and one for the last round."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def __call__(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS or status.round_index == status.rounds:
            self._last = now
            line = f"round {status.round_index:,}/{status.rounds:,} | {in_words(status)}"
            self._console.print(line, highlight=False, markup=False, soft_wrap=True)

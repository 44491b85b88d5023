"""Progress of a reproduction: two bars where there is a terminal, lines now and then elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from diffsketch.reproduction.costs import minutes_in_words
from diffsketch.reproduction.work import State

__all__ = ["showing"]

_LINE_SECONDS = 30.0
_SPEED_SECONDS = 300.0  # over which the time left is estimated: jobs differ
_WIDEST = 48  # letters of what is being done


@contextmanager
def showing(console: Console, *, experiments: int) -> Iterator[Callable[[State], None]]:
    """What to call now and then while the work goes on.

    Args:
        console: Where to show it.
        experiments: All of them.
    """
    if not console.is_terminal:
        yield _Lines(console, experiments)
        return
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[share]}"),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        speed_estimate_period=_SPEED_SECONDS,
    ) as progress:
        whole = progress.add_task("experiments", total=experiments, share="")
        work = progress.add_task("work", total=1.0, share="")

        def show(state: State) -> None:
            progress.update(
                whole,
                completed=state.experiments,
                share=f"{state.experiments} of {experiments}",
            )
            total = max(state.total, 1e-9)
            now = "; ".join(state.now)
            now = now if len(now) <= _WIDEST else f"{now[: _WIDEST - 1]}…"
            progress.update(
                work,
                total=total,
                completed=state.done,
                share=f"{state.done / total:.0%}",
                description=escape(now) or "work",
            )

        yield show


class _Lines:
    """A line every half minute."""

    def __init__(self, console: Console, experiments: int) -> None:
        self._console, self._experiments = console, experiments
        self._begin = self._last = time.monotonic()

    def __call__(self, state: State) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS or state.done <= 0:
            return
        self._last = now
        left = (now - self._begin) * (state.total - state.done) / state.done
        line = (
            f"{state.done / state.total:.0%} of the work, {state.experiments} of "
            f"{self._experiments} experiments, about {minutes_in_words(left)} left"
        )
        self._console.print(line, highlight=False, markup=False, soft_wrap=True)

"""The terminal of a command: what it prints, how far it is, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

Progressed: TypeAlias = Callable[..., None]
LINE_SECONDS, BAR_SECONDS = 10.0, 0.1  # between two lines, and between two states of a bar
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def command_line() -> list[str]:
    """Return the words of this command, for the record."""
    return ["diffsketch", *sys.argv[1:]]


class LastingConsole(Console):
    """Goes on silently where a pipe is closed, as by `| head`: a run is more than what it prints.

    Guarantees (`tests/test_cli.py`): a run whose reader is gone ends as it would have.
    """

    def on_broken_pipe(self) -> None:
        """Drop all output from now on. Rich would exit."""
        self.quiet = True
        # What is still buffered, or printed at exit, has to go somewhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

    @contextmanager
    def progress(self, what: str, *, total: int | None = None) -> Iterator[Progressed]:
        """Show how far some work is: a bar on a terminal, elsewhere a line now and then.

        Yields a function to call with the number that is done (without `total`, the share), and
        with a text.

        Args:
            what: Name of the work, or of its units if there is a total.
            total: Number of units.
        """
        pause = BAR_SECONDS if self.is_terminal else LINE_SECONDS
        due = 0.0 if self.is_terminal else time.monotonic() + pause
        columns = (TextColumn("{task.description}"), BarColumn(None), TimeRemainingColumn())
        bar = Progress(*columns, console=self, expand=True)
        task = bar.add_task(what, total=total or 1)
        # Transient: what is left in the end is the report, and no bar.
        live = Live(bar, console=self, transient=True)

        def show(done: float, text: str = "") -> None:
            nonlocal due
            # A unit of work may take less time than showing that it is done.
            if time.monotonic() < due and done != total:
                return
            due = time.monotonic() + pause
            head = f"{what} {done:.0%}" if total is None else f"{what} {done:,}/{total:,}"
            if self.is_terminal:
                bar.update(task, completed=done, description=head)
                # A line of its own, so that nothing is cut off in a narrow terminal.
                live.update(Group(bar, Text(text)))
            else:
                print_line(self, f"{head} | {text}" if text else head)

        with live if self.is_terminal else nullcontext():
            yield show

    def show(self, *parts: Any, wrote: Iterable[Path | str] = ()) -> None:
        """Print tables and texts, then the names of files, each in a line."""
        for part in parts:
            self.print(part, highlight=False)
        for path in wrote:
            print_line(self, f"Wrote {path}")


def print_line(console: Console, text: str) -> None:
    """Print a line unwrapped and without markup, so that it can be copied."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


class Interrupts:
    """While it is open, the first signal is noted and the second acts as it did before.

    Guarantees (`tests/app/test_session.py`): handlers are as before afterwards. Outside of the
    main thread, where Python handles no signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.signal: int | None = None  # the one that came
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    @property
    def exit_status(self) -> int:
        """Exit status of a program that the signal has ended: 130 for Ctrl-C."""
        return 128 + self.signal if self.signal is not None else 0

    def _note(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.signal = number
        # From now on a second signal acts as it did before: whoever cannot wait can end the run.
        self.__exit__()

"""The terminal of a command: what it prints, how far it is, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from rich.console import Console
from rich.progress import Progress

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


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
    def progress(self, title: str) -> Iterator[Callable[..., None]]:
        """A bar, and a function to call with the share that is done, and what is being done."""
        with Progress(console=self, transient=True) as progress:
            task = progress.add_task(title, total=1.0)
            yield lambda done, what="": progress.update(
                task, completed=done, description=f"{title} {what}"
            )

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
        self.__exit__()

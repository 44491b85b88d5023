"""Where commands print: a console that outlives whoever reads from it."""

from __future__ import annotations

import os
import sys

from rich.console import Console

__all__ = ["LastingConsole"]


class LastingConsole(Console):
    """Goes on silently where a pipe is closed, as by `| head`: a run is more than what it prints.

    Guarantees (`tests/app/test_cli_words.py`): a run whose reader is gone ends as it would have.
    """

    def on_broken_pipe(self) -> None:
        """Called when a write fails. Rich would exit."""
        self.quiet = True
        # What is still buffered, or printed at exit, has to go somewhere.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)

"""Errors in one line, in the words of the command line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer

from diffsketch.errors import ArgumentError, DiffSketchError

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "UsageError", "errors_in_one_line", "one_line_usage"]

# Where it is defined depends on Typer's version: in click, or in a copy of it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

# What options are called elsewhere, and where an error names one of them.
_RENAMED = {"message_bytes": "bytes", "target_epsilon": "epsilon", "vector_norm": "norm"}
_ARGUMENT = re.compile(r"^\w+(?= (?:must|needs) )|(?<=, got )\w+(?==)|(?<= and )\w+(?==)")


@contextmanager
def errors_in_one_line(*, debug: bool) -> Iterator[None]:
    """Print an expected error as `error: ...` and exit; anything else is a bug and passes."""
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (DiffSketchError, OSError) as error:
        if debug:
            traceback.print_exc()
        typer.echo(f"error: {_one_line(error)}", err=True)
        raise typer.Exit(EXIT_ERROR) from None


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Replacing a file names two: the second is the one that the user knows.
        name = error.filename2 or error.filename
        return f"{name}: {error.strerror}" if name else error.strerror
    text = " ".join(str(error).split())
    if not isinstance(error, ArgumentError):
        return text
    # As the user knows them: `message_bytes must ..., got message_bytes=4` is about `--bytes`.
    return _ARGUMENT.sub(lambda found: _flag(found[0]), text)


def _flag(name: str) -> str:
    return "--" + _RENAMED.get(name, name).replace("_", "-")


def one_line_usage(error: Any) -> str:
    """A mistake in the command itself, and where to read how it goes."""
    where = f"{error.ctx.command_path} --help" if error.ctx else "diffsketch --help"
    return f"{' '.join(error.format_message().split())} (see {where})"

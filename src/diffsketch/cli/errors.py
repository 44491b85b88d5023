"""Errors in one line, in the words of the command line."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

from diffsketch.errors import ArgumentError, DiffSketchError

__all__ = ["EXIT_ERROR", "EXIT_INTERRUPTED", "UsageError", "errors_in_one_line", "one_line_usage"]

# Where it is defined depends on Typer's version: in click, or in a copy of it.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

# What options are called elsewhere, and where an error may name one of them: at its beginning, and
# before each value.
_RENAMED = {"target_epsilon": "epsilon", "vector_norm": "norm"}
_ARGUMENT = re.compile(r"^\w+(?: \* \w+)*(?= (?:must|needs) )|(?<= )\w+(?==)")


@contextmanager
def errors_in_one_line(context: typer.Context) -> Iterator[None]:
    """Print an expected error as `error: ...` and exit; anything else is a bug and passes.

    Args:
        context: Of the command: whose options are named by their flags.
    """
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except (DiffSketchError, OSError) as error:
        if context.obj:
            traceback.print_exc()
        typer.echo(f"error: {_one_line(error, _flags(context))}", err=True)
        raise typer.Exit(EXIT_ERROR) from None


def _flags(context: typer.Context) -> dict[str, str]:
    """The flags of a command, by the names that its errors may have for them."""
    flags = {str(one.name): str(one.opts[0]) for one in context.command.params if one.opts}
    renamed = {name: f"--{option}" for name, option in _RENAMED.items() if option in flags}
    return {**flags, **renamed}


def _one_line(error: Exception, flags: Mapping[str, str]) -> str:
    if isinstance(error, OSError) and error.strerror:
        # Replacing a file names two: the second is the one that the user knows.
        name = error.filename2 or error.filename
        return f"{name}: {error.strerror}" if name else error.strerror
    text = " ".join(str(error).split())
    if not isinstance(error, ArgumentError):
        return text
    # As the user knows them: `message_bytes must ..., got message_bytes=4` is about `--bytes`.
    # A name that is no option of the command is somebody else's, and stays as it is.
    return _ARGUMENT.sub(
        lambda found: " ".join(flags.get(word, word) for word in found[0].split(" ")), text
    )


def one_line_usage(error: Any) -> str:
    """A mistake in the command itself, and where to read how it goes."""
    where = f"{error.ctx.command_path} --help" if error.ctx else "diffsketch --help"
    return f"{' '.join(error.format_message().split())} (see {where})"

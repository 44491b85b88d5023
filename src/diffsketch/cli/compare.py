"""`diffsketch compare`: several methods on the same batches and devices, in one table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffsketch.cli.consoles import LastingConsole
from diffsketch.cli.errors import errors_in_one_line
from diffsketch.cli.options import with_settings
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "compare"]

EPILOG = (
    "Example: [bold]diffsketch compare --rows 7 --cols 22 --seeds 3 --method none --method sketch "
    "--method diffsketch:per_round=0.1[/bold]"
)


@with_settings(without=["method"])
def compare(
    context: typer.Context,
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME or NAME:key=value,key=value with any of the settings below; repeat it."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            help=r"TOML file: settings of all runs, then a \[\[run]] table with those of each."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(help="How many seeds, from --seed on, each method is run with.")
    ] = 1,
    jobs: Annotated[int, typer.Option(help="Processes at a time.")] = 1,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for comparison.json, comparison.csv and all runs; new or empty.",
            show_default="the first free of runs/compare, -2, -3, ...",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Continue the comparison in this directory.")
    ] = None,
    settings: dict[str, Any] | None = None,
) -> None:
    """Run several methods on the same batches and devices, and print one table.

    Settings below are for all runs; those of methods (such as --rows) for the methods that have
    them. What a NAME:key=value has goes first; a table of --config that has another value is
    an error.

    Exit status: 0 if all runs ended, even if some diverged (the last line says so), 2 on an error,
    130 after Ctrl-C and 143 after SIGTERM.
    """
    with errors_in_one_line(context):
        from diffsketch.app.compare import check_flags, parse_method, read_comparison

        console, command = LastingConsole(), ["diffsketch", *sys.argv[1:]]
        if resume is not None:
            if method or config or output or settings or seeds != 1:
                raise ArgumentError(
                    f"--resume takes everything from {resume}: leave out all but --jobs"
                )
            from diffsketch.app import compare as sessions

            status = sessions.resume(resume, console, jobs=jobs, command=command)
        else:
            shared, each = read_comparison(config) if config is not None else ({}, [])
            check_flags(settings or {}, each)
            each = [*each, *(parse_method(text) for text in method or ())]
            from diffsketch.app import compare as sessions

            status = sessions.start(
                {**shared, **(settings or {})}, each, output, console,
                seeds=seeds, jobs=jobs, command=command,
            )  # fmt: skip
        if status:
            raise typer.Exit(status)

"""`diffsketch reproduce`: the paper's figures and tables, run again, as a page to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from diffsketch.cli.consoles import LastingConsole
from diffsketch.cli.errors import errors_in_one_line

__all__ = ["EPILOG", "reproduce"]

EPILOG = (
    "Examples: [bold]diffsketch reproduce --quick[/bold], "
    "[bold]diffsketch reproduce mnist audit[/bold]"
)


def reproduce(
    context: typer.Context,
    name: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Only these experiments (see --list); all without."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Reduced: fewer seeds, rounds and panels; minutes.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for the page, the numbers and the cache; continued if it has them.",
            show_default="runs/reproduction, or runs/reproduction-quick with --quick",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes at a time.", show_default="as many as there are cores"),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the experiments, with rough times, and exit.")
    ] = False,
) -> None:
    """Run the paper's evaluation again, and make a page of it: what it claims, and what is true.

    Writes index.html, which needs no network, pictures, all numbers as CSV and results.json.
    Results are cached by their settings: interrupted, the same command continues, and a second
    run only draws.

    Exit status: 0, also if claims fail or runs diverge (the page says so), 2 on an error, 130
    after Ctrl-C and 143 after SIGTERM.
    """
    with errors_in_one_line(context):
        console = LastingConsole()
        processes = jobs if jobs is not None else _cores()
        if show_list:
            from diffsketch.reproduction.experiments import listing

            for part in listing(processes):
                console.print(part, highlight=False)
            return
        default = Path("runs") / ("reproduction-quick" if quick else "reproduction")
        # Imported here: `--help` and `--list` need neither PyTorch nor pictures.
        from diffsketch.reproduction import reproduce as logic

        status = logic.reproduce(
            name or [], output or default, console, reduced=quick, jobs=processes
        )
        if status:
            raise typer.Exit(status)


def _cores() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0))

"""`diffsketch report`: a page of one's own runs, to look at."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from diffsketch.cli.consoles import LastingConsole
from diffsketch.cli.errors import errors_in_one_line
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "report"]

EPILOG = (
    "Examples: [bold]diffsketch report runs[/bold], "
    "[bold]diffsketch report runs/compare runs/mnist-none --output pages/first[/bold]"
)


def report(
    context: typer.Context,
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN_DIR...",
            help="Directories of runs or comparisons, or with some of them below.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory for index.html, figures and data; must be new or empty.",
            show_default="the first free of runs/report, -2, -3, ...",
        ),
    ] = None,
    title: Annotated[str, typer.Option(help="Of the page.", show_default="from the tasks")] = "",
    no_pictures: Annotated[
        bool, typer.Option("--no-pictures", help="No SVG and PNG files: faster.")
    ] = False,
) -> None:
    """Make a page of runs: accuracy, bytes, epsilon and time per round side by side.

    One HTML file that needs no network, with interactive plots; also SVG and PNG pictures, and all
    numbers as CSV. Seeds of the same settings become one line with its spread. Runs that are under
    way are shown as far as they are; nothing in their directories is changed.

    Exit status: 0, or 2 on an error; then nothing was written.
    """
    with errors_in_one_line(context):
        if output is not None and output.is_dir() and any(output.iterdir()):
            raise ArgumentError(
                f"output must be a new or empty directory, got output={str(output)!r}"
            )
        from diffsketch.app.files import free_name
        from diffsketch.pages.page import write_page
        from diffsketch.pages.runs import page_of_runs

        command = shlex.join(["diffsketch", *sys.argv[1:]])
        page = page_of_runs(runs, title=title, command=command)
        path = output or free_name(Path("runs") / "report")
        written = write_page(page, path, pictures=not no_pictures)
        console = LastingConsole()
        for line in _wrote(path, written):
            console.print(line, highlight=False, markup=False, soft_wrap=True)


def _wrote(path: Path, written: list[Path]) -> list[str]:
    """The page itself, and for each folder how many files."""
    folders = [file.parent for file in written]
    lines = [f"Wrote {file}" for file in written if file.parent == path]
    below = [folder for folder in dict.fromkeys(folders) if folder != path]
    return lines + [f"Wrote {folder} ({folders.count(folder)} files)" for folder in below]

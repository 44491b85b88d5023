"""`diffsketch demo`: what is kept and what is lost of a gradient in its sketch."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diffsketch.cli.errors import errors_in_one_line
from diffsketch.cli.names import FamilyName

__all__ = ["demo"]


def demo(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option(help="Directory for recovery.png and recovery.csv; made if missing.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(min=0, help="Number that fixes all hashes of the run.")] = 0,
    family: Annotated[
        FamilyName,
        typer.Option(help="Hash family: blocked is the fast one, pairwise hashes each coordinate."),
    ] = FamilyName.blocked,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Directory with MNIST's idx files, instead of the copy in the package."),
    ] = None,
) -> None:
    """Sketch a gradient on MNIST at several compressions and measure how well it comes back.

    Prints a table and writes a picture and a CSV file. The first run also compiles the kernels.
    """
    with errors_in_one_line(context):
        from rich.progress import Progress

        from diffsketch.app import demo as logic
        from diffsketch.app.demo import report
        from diffsketch.files import prepare_output

        console = Console()
        prepare_output(output)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Sketching a gradient", total=1.0)
            result = logic.run_demo(
                seed=seed,
                family=family.value,
                data_dir=data_dir,
                on_progress=lambda done: progress.update(task, completed=done),
            )
        # Written before anything is printed, which a closed pipe would interrupt.
        paths = logic.write_results(result, output)
        for part in report(result):
            console.print(part)
        for path in paths:
            # Not wrapped, so that it can be copied.
            console.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)

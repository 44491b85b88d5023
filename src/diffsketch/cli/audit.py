"""`diffsketch audit`: what attacks achieve, against what is claimed or proven."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from diffsketch.cli.errors import errors_in_one_line
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "audit"]

EPILOG = (
    "Example: [bold]diffsketch audit --method sketch-gaussian --dim 7850 "
    '--settings "rows=1 cols=154 clip=1 noise_multiplier=4"[/bold]'
)


def audit(
    context: typer.Context,
    output: Annotated[
        Path,
        typer.Option(
            help="Directory for audit.json, audit.png and inversion.png; made if missing."
        ),
    ] = Path("runs/audit"),
    case: Annotated[
        list[str] | None, typer.Option(help="Only this case (see --list); may be repeated.")
    ] = None,
    plant: Annotated[
        list[str] | None,
        typer.Option(
            help="Only cases that this error applies to, with it and without: small-noise, "
            "row-blind, no-clip, reused-noise, no-draw or float-noise; may be repeated."
        ),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help="Only this method, with the settings that follow.")
    ] = None,
    settings: Annotated[
        str, typer.Option(help="Of the method: name=value, with spaces between.")
    ] = "",
    dim: Annotated[int, typer.Option(help="Length of the method's vectors.")] = 100,
    cohort: Annotated[int, typer.Option(help="Members of the method's round.")] = 2,
    show_list: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Hardly any planted errors, and half of the trials.")
    ] = False,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each world; by default what each case needs.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="With which each lower bound holds; the rest are false alarms.")
    ] = 0.999,
    delta: Annotated[
        float | None,
        typer.Option(help="Where epsilon is bounded; by default where a case shows most."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Number that fixes all but exact noise.")] = 0,
) -> None:
    """Attack bare sketches, what methods send, and planted errors; measure epsilon from below.

    Prints tables, and writes them as JSON with pictures. What an attack achieves is a lower bound
    on epsilon: it can refute a claim, never prove one.
    """
    with errors_in_one_line(context):
        from rich.progress import Progress

        from diffsketch.auditing import report as reports
        from diffsketch.auditing.audits import check_settings
        from diffsketch.auditing.cases import select
        from diffsketch.auditing.releases import own_release
        from diffsketch.files import prepare_output

        console = Console()
        if show_list:
            console.print(reports.listing())
            return
        check_settings(trials=trials, confidence=confidence, delta=delta, seed=seed)
        release = None
        if method is not None:
            release = own_release(method, settings, dim=dim, cohort=cohort)
        elif settings:
            raise ArgumentError("--settings must come with --method")
        selection = select(names=case or (), plants=plant or (), release=release, is_quick=quick)
        prepare_output(output)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Auditing", total=1.0)
            suite = reports.run_suite(
                selection, trials=trials, confidence=confidence, delta=delta, seed=seed,
                on_progress=lambda done, what: progress.update(
                    task, completed=done, description=f"Auditing {what}"
                ),
            )  # fmt: skip
        paths = reports.write_results(suite, output)
        for part in reports.report(suite):
            console.print(part, highlight=False)
        for path in paths:
            console.print(f"Wrote {path}", highlight=False, markup=False, soft_wrap=True)

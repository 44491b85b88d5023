"""The command line: parses, calls, and turns errors into one line. No logic.

One module for each command. Imports the rest of the package only when a command runs, so that
`--help` does not wait for PyTorch. Nothing of ours imports it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from diffsketch import __version__
from diffsketch.cli import audit, compare, demo, plan, report, reproduce, run
from diffsketch.cli.errors import EXIT_ERROR, EXIT_INTERRUPTED, UsageError, one_line_usage
from diffsketch.cli.names import FamilyName, RelationName, SamplingName, TrustName, UnitName

__all__ = ["FamilyName", "RelationName", "SamplingName", "TrustName", "UnitName", "app", "main"]

# Not a docstring, of which every line break would be kept.
HELP = (
    "Train models over many workers with private, compressed messages.\n\n"
    "A Count Sketch squeezes a vector, such as a gradient, into a table many times smaller. Tables "
    "of several workers add up to the table of their sum, and whoever has the hash seed can "
    "estimate the sum from it. Start with [bold]diffsketch run[/bold], which trains a model on "
    "MNIST and says what it cost and what privacy it gave; [bold]diffsketch demo[/bold] shows what "
    "one sketch keeps and loses."
)

app = typer.Typer(
    name="diffsketch",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    epilog="Example: [bold]diffsketch run --output runs/first --seed 1[/bold]",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"diffsketch {__version__}")
        raise typer.Exit


@app.callback(help=HELP)
def _options(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="On an error, show the full traceback as well.")
    ] = False,
    version: Annotated[  # noqa: ARG001
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Options that come before the command."""
    context.obj = debug


app.command(epilog=run.EPILOG)(run.run)
app.command(epilog=compare.EPILOG)(compare.compare)
app.command()(demo.demo)
app.command(epilog=plan.EPILOG)(plan.plan)
app.command(epilog=audit.EPILOG)(audit.audit)
app.command(epilog=report.EPILOG)(report.report)
app.command(epilog=reproduce.EPILOG)(reproduce.reproduce)


def main() -> None:
    """Run the command line; the entry point of the `diffsketch` script."""
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except UsageError as error:
        typer.echo(f"error: {one_line_usage(error)}", err=True)
        sys.exit(EXIT_ERROR)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)

"""The command line: parses, calls, and turns errors into one line. No logic.

Imports the rest of the package only when a command runs, so that `--help` does not wait for
PyTorch. Nothing of ours imports this module.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from diffsketch import __version__
from diffsketch.errors import ArgumentError, DiffSketchError

__all__ = ["app", "main"]

# Where it is defined depends on Typer's version: in click, or in a copy of it.
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

# What options are called elsewhere, and where an error names one of them.
_RENAMED = {"message_bytes": "bytes", "target_epsilon": "epsilon", "vector_norm": "norm"}
_ARGUMENT = re.compile(r"^\w+(?= must )|(?<=, got )\w+(?==)|(?<= and )\w+(?==)")

# Not a docstring, of which every line break would be kept.
HELP = (
    "Compress long vectors, such as gradients, into small tables that can be added up.\n\n"
    "A Count Sketch squeezes a vector into a table many times smaller. Tables of several workers "
    "add up to the table of their sum, and whoever has the hash seed can estimate the sum from it. "
    "Start with [bold]diffsketch demo[/bold], which shows on MNIST what is kept and what is lost."
)

app = typer.Typer(
    name="diffsketch",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    no_args_is_help=True,
    epilog="Example: [bold]diffsketch demo --output runs/demo --seed 1[/bold]",
)


class FamilyName(StrEnum):
    """The hash families, as the command line spells them."""

    blocked = "blocked"
    pairwise = "pairwise"


class UnitName(StrEnum):
    """What a guarantee protects, as the command line spells it."""

    coordinate = "coordinate"
    example = "example"
    client = "client"


class RelationName(StrEnum):
    """Which data sets are neighbours, as the command line spells it."""

    add_or_remove = "add-or-remove"
    replaced = "replace"


class TrustName(StrEnum):
    """Whom one trusts, as the command line spells it."""

    local = "local"
    distributed = "distributed"
    central = "central"


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


@app.command()
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
    with _errors_in_one_line(debug=bool(context.obj)):
        from rich.progress import Progress

        from diffsketch import demo as logic
        from diffsketch.demo_report import report
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


@app.command(
    epilog="Example: [bold]diffsketch plan --dim 7850 --workers 1000 --rounds 100 --epsilon 4 "
    "--delta 1e-5 --unit client --trust distributed --bytes 2000[/bold]"
)
def plan(
    context: typer.Context,
    dim: Annotated[int, typer.Option(help="Length of the vectors, such as gradients.")],
    workers: Annotated[int, typer.Option(help="Workers that send a message in each round.")],
    rounds: Annotated[int, typer.Option(help="Rounds that the target is for, all together.")],
    epsilon: Annotated[float, typer.Option(help="Target: the most that all rounds may cost.")],
    message_bytes: Annotated[
        int, typer.Option("--bytes", help="The most bytes of one worker's message in a round.")
    ],
    delta: Annotated[
        float, typer.Option(help="Delta of the target; 0 for pure differential privacy.")
    ] = 1e-5,
    unit: Annotated[
        UnitName, typer.Option(help="Whose data is protected: coordinate is the weakest unit.")
    ] = UnitName.client,
    relation: Annotated[
        RelationName, typer.Option(help="Whether neighbours lack the unit or have another one.")
    ] = RelationName.replaced,
    trust: Annotated[
        TrustName,
        typer.Option(
            help="Whom to trust: nobody (local), a secure sum (distributed) or a server (central)."
        ),
    ] = TrustName.distributed,
    norm: Annotated[
        float, typer.Option(help="Norm of a unit's vector; longer ones are clipped.")
    ] = 1.0,
    spread: Annotated[
        float,
        typer.Option(help="Variance among the vectors over what they have in common; 0: all same."),
    ] = 0.0,
    examples: Annotated[
        int, typer.Option(help="Examples of each worker, for the unit example.")
    ] = 1,
    alternatives: Annotated[int, typer.Option(help="Other methods to list, at most.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    code: Annotated[
        bool, typer.Option("--code", help="Print Python code that runs the best plan.")
    ] = False,
) -> None:
    """Find the private method with the least error for a budget of epsilon and of bytes.

    Compares vectors and sketches with several kinds of noise, and predicts their errors.
    """
    with _errors_in_one_line(debug=bool(context.obj)):
        import json

        from diffsketch import plan as logic

        if as_json and code:
            raise ArgumentError("--json and --code do not go together: the JSON has the code, too")
        request = logic.PlanRequest(
            dim=dim, workers=workers, rounds=rounds, target_epsilon=epsilon, delta=delta,
            unit=logic.Unit(unit), relation=logic.Relation(relation), trust=logic.Trust(trust),
            message_bytes=message_bytes, vector_norm=norm, spread=spread, examples=examples,
        )  # fmt: skip
        found = logic.plan(request, alternatives=alternatives)
        if as_json:
            typer.echo(json.dumps(logic.to_data(found), indent=2))
        elif code:
            typer.echo(logic.python_code(found.best, request), nl=False)
        else:
            console = Console()
            for part in logic.report(found):
                console.print(part, highlight=False)


@app.command(epilog="Example: [bold]diffsketch audit --plant reused-noise[/bold]")
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
            help="Only this error, beside its correct twin: small-noise, reused-noise, "
            "no-clipping or shared-seed; may be repeated."
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the cases and exit.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer cases, and half of the trials.")
    ] = False,
    trials: Annotated[
        int | None, typer.Option(help="Trials of each world; by default what each case needs.")
    ] = None,
    confidence: Annotated[
        float, typer.Option(help="With which each lower bound holds; the rest are false alarms.")
    ] = 0.99,
    delta: Annotated[
        float | None,
        typer.Option(help="Where epsilon is bounded; by default where a case shows most."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Number that fixes the run.")] = 0,
) -> None:
    """Attack bare sketches, proven mechanisms and planted errors; measure epsilon from below.

    Prints tables, and writes them as JSON with pictures. What an attack achieves is a lower bound
    on epsilon: it can refute a claim, never prove one.
    """
    with _errors_in_one_line(debug=bool(context.obj)):
        from rich.progress import Progress

        from diffsketch.audit import report as reports
        from diffsketch.audit.run import check_settings
        from diffsketch.audit.suite import run_suite, select
        from diffsketch.files import prepare_output

        console = Console()
        if show_list:
            console.print(reports.listing())
            return
        selection = select(cases=case or (), plants=plant or (), quick=quick)
        check_settings(trials=trials, confidence=confidence, delta=delta, seed=seed)
        prepare_output(output)
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task("Auditing", total=1.0)
            suite = run_suite(
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


@contextmanager
def _errors_in_one_line(*, debug: bool) -> Iterator[None]:
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
    return _ARGUMENT.sub(lambda found: f"--{_RENAMED.get(found[0], found[0])}", text)


def main() -> None:
    """Run the command line; the entry point of the `diffsketch` script."""
    try:
        status = app(standalone_mode=False)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except _UsageError as error:
        typer.echo(f"error: {_one_line_usage(error)}", err=True)
        sys.exit(EXIT_ERROR)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(status if isinstance(status, int) else 0)


def _one_line_usage(error: Any) -> str:
    where = f"{error.ctx.command_path} --help" if error.ctx else "diffsketch --help"
    return f"{' '.join(error.format_message().split())} (see {where})"


if __name__ == "__main__":
    main()

"""`diffsketch run`: train a model, and say what it cost and what privacy it gave."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from diffsketch.cli.consoles import LastingConsole
from diffsketch.cli.errors import errors_in_one_line
from diffsketch.cli.options import with_settings
from diffsketch.errors import ArgumentError

__all__ = ["EPILOG", "run"]

EPILOG = (
    "Examples: [bold]diffsketch run --method none[/bold], "
    "[bold]diffsketch run --task shakespeare --server-step 0.3 --rounds 100[/bold], "
    "[bold]diffsketch run --resume runs/mnist-diffsketch[/bold]"
)


@with_settings()
def run(
    context: typer.Context,
    output: Annotated[
        Path | None,
        typer.Option(
            help="Directory of the run; must be new or empty.",
            show_default="the first free of runs/TASK-METHOD, -2, -3, ...",
        ),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file with any of the settings below; flags go first.")
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Continue the run in this directory, with the settings that it has."),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that is in --output.")
    ] = False,
    settings: dict[str, Any] | None = None,
) -> None:
    """Train a model with a method, and show accuracy, bytes and epsilon with its basis.

    Without options: MNIST over 10 workers by distributed SGD, each message a table of 7 x 22
    numbers. What has no default below comes from the task, with the paper's hyper-parameters, or
    from the method.

    Writes config.toml, metrics.jsonl, model.safetensors, summary.json and checkpoints,
    from which --resume continues to the same bits after any interruption. The same settings write
    the same files, but for command.txt and times.json.

    Exit status: 0 if all rounds are done or the budget is spent, 2 on an error or if training
    diverged, 130 after Ctrl-C and 143 after SIGTERM.
    """
    with errors_in_one_line(context):
        console = LastingConsole()
        if resume is not None:
            others = {"output": output, "config": config, "overwrite": overwrite or None}
            given = [name for name, value in others.items() if value is not None]
            given += list(settings or {})
            if given:
                flags = ", ".join("--" + name.replace("_", "-") for name in given)
                raise ArgumentError(
                    f"--resume takes all settings from {resume / 'config.toml'}: leave out {flags}"
                )
            from diffsketch.app import session as sessions

            status = sessions.resume(resume, console)
        else:
            if overwrite and output is None:
                raise ArgumentError("overwrite needs --output: other runs get new directories")
            from diffsketch.app.settings import RunConfig, read_settings

            values = read_settings(config) if config is not None else {}
            chosen = RunConfig(**{**values, **(settings or {})})
            from diffsketch.app import session as sessions

            command = ["diffsketch", *sys.argv[1:]]
            status = sessions.start(chosen, output, console, overwrite=overwrite, command=command)
        if status:
            raise typer.Exit(status)

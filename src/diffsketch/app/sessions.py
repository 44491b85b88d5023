"""A session of a run: begin or continue it, train until it ends, and leave its files.

`start` and `resume` are what the command line calls; `session` is what a comparison runs many of.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import safetensors.torch
import torch
from rich.console import Console

from diffsketch.training.simulate import Simulation
from diffsketch.training.aggregate import NonFiniteUpdate
from diffsketch.app.build import Built, build
from diffsketch.app.config import RunConfig
from diffsketch.app.directory import RunDirectory, free_name
from diffsketch.app.interrupts import Interrupts
from diffsketch.app.loop import Loop
from diffsketch.app.metrics import Metrics
from diffsketch.app.progress import showing
from diffsketch.app.report import report
from diffsketch.app.status import Outcome, Status
from diffsketch.app.summary import summarise
from diffsketch.app.words import sentence

__all__ = ["resume", "session", "start"]

EXIT_DIVERGED = 2
_MOST_WARNINGS = 3


def start(
    config: RunConfig,
    output: Path | None,
    console: Console,
    *,
    command: list[str],
    overwrite: bool = False,
) -> int:
    """Begin a run and train until it ends; the exit status.

    Args:
        config: What is given; what is not comes from the task and the method.
        output: The directory; by default a new one below `runs`.
        console: Where to show it.
        command: For the record.
        overwrite: Whether a run in the directory may be replaced.

    Raises:
        DiffSketchError: Something that is given is wrong; nothing was written then.
    """
    with threads(config.threads):
        built = build(config)
        chosen = built.config
        path = output or free_name(Path("runs") / f"{chosen.task}-{chosen.method}")
        with RunDirectory.create(path, chosen, command=command, overwrite=overwrite) as directory:
            return _show_session(built, directory, console)


def resume(path: Path, console: Console) -> int:
    """Continue a run until it ends; the exit status.

    Raises:
        DiffSketchError: There is no run, or it is damaged, or of another version.
    """
    with RunDirectory.open(path) as directory:
        summary = directory.summary()
        if summary is not None and directory.finished:
            _print(console, f"The run in {path} is finished: there is nothing to continue.")
            for part in report(summary, directory.times()):
                console.print(part, highlight=False)
            return 0
        with threads(directory.config.threads):
            return _show_session(build(directory.config), directory, console)


def session(
    built: Built,
    directory: RunDirectory,
    *,
    show: Callable[[Status], None],
    stop: Callable[[], bool],
) -> Outcome:
    """Train until the run ends or is interrupted; if it ends, write its results.

    Raises:
        CheckpointFailed: A file could not be written.
    """
    simulation = built.simulation
    with Metrics(directory.metrics) as metrics:
        loop = Loop(simulation, directory, metrics=metrics, show=show, stop=stop)
        outcome = loop.run()
        if outcome.kind != "interrupted":
            loop.write_results(
                model=_model_bytes(built, simulation),
                summary=summarise(simulation, loop, outcome, directory=directory),
            )
    return outcome


@contextmanager
def warnings_in_lines(console: Console) -> Iterator[None]:
    """Print warnings of workers that are left out as lines, the first few of them."""
    shown = 0

    def show(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        nonlocal shown
        shown += 1
        if shown <= _MOST_WARNINGS or not issubclass(category, NonFiniteUpdate):
            _print(console, f"warning: {message}")
        if shown == _MOST_WARNINGS:
            _print(console, "warning: more of these are counted, but not shown")

    with warnings.catch_warnings():
        warnings.simplefilter("always", NonFiniteUpdate)
        warnings.showwarning = show
        yield


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Give PyTorch so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _show_session(built: Built, directory: RunDirectory, console: Console) -> int:
    path = directory.path
    with (
        Interrupts() as interrupts,
        showing(console, rounds=built.config.rounds or 0) as show,
        warnings_in_lines(console),
    ):
        outcome = session(built, directory, show=show, stop=lambda: interrupts.signal is not None)
    if outcome.kind == "interrupted":
        _print(
            console,
            f"{sentence(outcome.reason)} Continue with: diffsketch run --resume {path}",
        )
        return interrupts.exit_status
    for part in report(directory.summary() or {}, directory.times()):
        console.print(part, highlight=False)
    for file in directory.files():
        _print(console, f"Wrote {file}")
    return EXIT_DIVERGED if outcome.kind == "diverged" else 0


def _model_bytes(built: Built, simulation: Simulation) -> bytes:
    named = built.named_weights(simulation.averaged_weights)
    return safetensors.torch.save({name: part.cpu().contiguous() for name, part in named.items()})


def _print(console: Console, text: str) -> None:
    # Not wrapped, so that it can be copied.
    console.print(text, highlight=False, markup=False, soft_wrap=True)

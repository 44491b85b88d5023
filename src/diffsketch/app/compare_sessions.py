"""A comparison from its plan to its files: begin it, or continue what was interrupted."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from diffsketch.errors import ArgumentError, DiffSketchError
from diffsketch.files import prepare_output
from diffsketch.app import compare_report
from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.compare import Result, members_of, run_members
from diffsketch.app.compare_plan import Contender, contenders_of, has_others, read_plan, write_plan
from diffsketch.app.config import RunConfig
from diffsketch.app.directory import free_name, locked
from diffsketch.app.interrupts import Interrupts
from diffsketch.app.sessions import warnings_in_lines
from diffsketch.app.settings import Value, describe

__all__ = ["resume", "start"]


def start(
    shared: Mapping[str, Value],
    each: Sequence[tuple[str, Mapping[str, Value]]],
    output: Path | None,
    console: Console,
    *,
    seeds: int,
    jobs: int,
    command: list[str],
) -> int:
    """Compare; the exit status.

    Args:
        shared: Settings of all runs; the seed is the first one.
        each: Name and settings of each.
        output: A new or empty directory; by default a new one below `runs`.
        console: Where to show it.
        seeds: How many there are.
        jobs: Processes at a time.
        command: For the record.

    Raises:
        DiffSketchError: Something that is given is wrong; nothing was written then.
    """
    _check_count("seeds", seeds)
    _check_count("jobs", jobs)
    common = dict(shared)
    first = int(common.pop("seed", 0) or 0)
    end = describe(RunConfig)["seed"].metadata["below"]
    if first + seeds > end:
        raise ArgumentError(
            f"seeds must be at most {end - first}, so that all are below {end}, got seeds={seeds} "
            f"and seed={first}"
        )
    contenders = contenders_of(common, each, fields_of=settings_of_methods())
    numbers = list(range(first, first + seeds))
    for contender in contenders:
        _check(contender, first)
    if output is not None and has_others(output):
        raise ArgumentError(
            f"output must be a new or empty directory, got output={str(output)!r}; a comparison "
            "in it is continued with --resume"
        )
    path = output or free_name(Path("runs") / "compare")
    prepare_output(path)
    with _alone(path):
        write_plan(contenders, numbers, path)
        return _run(contenders, numbers, path, console, jobs=jobs, command=command)


def resume(path: Path, console: Console, *, jobs: int, command: list[str]) -> int:
    """Continue a comparison; the exit status.

    Raises:
        DataError: There is none, or its plan is damaged or was changed.
        MismatchError: A run that is there is not one of the plan.
        RunBusy: Another process is at it.
    """
    _check_count("jobs", jobs)
    contenders, seeds = read_plan(path)
    with _alone(path):
        return _run(contenders, seeds, path, console, jobs=jobs, command=command)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from this comparison."""
    lock = locked(path)
    try:
        yield
    finally:
        os.close(lock)


def _run(
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    path: Path,
    console: Console,
    *,
    jobs: int,
    command: list[str],
) -> int:
    members = members_of(contenders, seeds, path)
    with (
        Interrupts() as interrupts,
        Progress(console=console, transient=True) as progress,
        warnings_in_lines(progress.console),
    ):
        task = progress.add_task("Comparing", total=1.0)
        results = run_members(
            members,
            jobs=jobs,
            command=command,
            on_progress=lambda done, what: progress.update(
                task, completed=done, description=f"Comparing {what}"
            ),
            stop=lambda: interrupts.signal is not None,
        )
    if any(result.summary is None for result in results):
        text = f"Interrupted. Continue with: diffsketch compare --resume {path}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return interrupts.exit_status
    rows = compare_report.rows_of(results)
    paths = compare_report.write_results(results, rows, path)
    for part in compare_report.report(rows, seeds=seeds):
        console.print(part, highlight=False)
    for file in paths:
        console.print(f"Wrote {file}", highlight=False, markup=False, soft_wrap=True)
    if diverged := sum(_diverged(result) for result in results):
        console.print(f"Diverged: {diverged} of {len(results)} runs.", highlight=False)
    return 0


def _diverged(result: Result) -> bool:
    return result.summary is not None and result.summary["outcome"] == "diverged"


def _check(contender: Contender, seed: int) -> None:
    """Build its simulation once, so that a mistake is found before anything is run."""
    try:
        build(contender.config(seed))
    except DiffSketchError as error:
        error.args = (f"{error} (in {contender.name})",)
        raise


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(f"{name} must be a whole number >= 1, got {name}={value}")

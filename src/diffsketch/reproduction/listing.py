"""The list of experiments, with rough times. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from diffsketch.reproduction.costs import minutes_in_words, wall_seconds
from diffsketch.reproduction.loading import SETTINGS, names, outline

__all__ = ["listing"]


def listing(processes: int, folder: Path = SETTINGS) -> tuple[Table | str, ...]:
    """A table of all experiments, and how to read it.

    Args:
        processes: That the times are for.
        folder: Of the settings files.
    """
    table = Table(title="Experiments", title_justify="left", pad_edge=False)
    table.add_column("name", no_wrap=True)
    table.add_column("what it is")
    for heading in ("jobs", "time", "--quick"):
        table.add_column(heading, justify="right", no_wrap=True)
    every = [[outline(name, reduced=less, folder=folder) for less in (False, True)]
             for name in names(folder)]  # fmt: skip
    for full, less in every:
        times = [minutes_in_words(wall_seconds(one.jobs, processes)) for one in (full, less)]
        table.add_row(full.name, f"{full.title} ({full.place})", str(len(full.jobs)), *times)
    jobs = [{job for one in column for job in one.jobs} for column in zip(*every, strict=True)]
    if jobs:
        times = [minutes_in_words(wall_seconds(one, processes)) for one in jobs]
        table.add_section()
        table.add_row("all", "each job once", str(len(jobs[0])), *times)
    with_processes = "1 process" if processes == 1 else f"{processes} processes"
    return table, f"Times are rough, with {with_processes} on cores of a server."

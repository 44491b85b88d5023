"""Where runs are: in directories that are given, in comparisons, and in directories below."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from diffsketch.app.compare import has_plan, members_of, read_plan
from diffsketch.app.files import START, has_run
from diffsketch.errors import DataError

__all__ = ["Found", "find_runs"]

_DEPTH = 4  # directories below the one that is given: runs/COMPARISON/NAME/seed-0 is the usual most


@dataclass
class Found:
    """What was found.

    Attributes:
        runs: Their directories, each once, with their names in the comparisons that they are of;
            None for a run of its own.
        notes: What a reader should know: runs of comparisons that have not begun.
    """

    runs: dict[Path, str | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def find_runs(paths: Iterable[Path]) -> Found:
    """The runs in some directories.

    Args:
        paths: Of runs, of comparisons, or directories with some of them below.

    Raises:
        DataError: There is none in one of them, or the plan of a comparison is damaged.
        MismatchError: A plan is of another version's format.
    """
    found, seen = Found(), set[Path]()
    for path in paths:
        if not path.is_dir():
            what = "is no directory" if path.exists() else "no such directory"
            raise DataError(f"{path}: {what}; it must be that of a run or of a comparison")
        runs = list(_below(path, found.notes, depth=_DEPTH))
        if not runs:
            raise DataError(
                f"{path}: there is no run in it, nor in the directories below it: none has a "
                f"{START}"
            )
        for run, name in runs:
            if run.resolve() not in seen:
                seen.add(run.resolve())
                found.runs[run] = name
    found.notes = list(dict.fromkeys(found.notes))
    return found


def _below(path: Path, notes: list[str], *, depth: int) -> Iterator[tuple[Path, str | None]]:
    """Runs at a path and below it, with their names in comparisons."""
    if has_run(path):
        whole = path.resolve()
        yield path, _planned(whole.parent.parent)[0].get(whole)
    elif has_plan(path):
        names, planned = _planned(path)
        if len(names) < planned:
            notes.append(f"{planned - len(names)} of {planned} runs of {path} have not begun.")
        yield from names.items()
    elif depth:
        for below in sorted(path.iterdir()):
            # Links are not followed: they may lead back.
            if below.is_dir() and not below.is_symlink() and not below.name.startswith("."):
                yield from _below(below, notes, depth=depth - 1)


def _planned(path: Path) -> tuple[dict[Path, str], int]:
    """The runs of a comparison that have begun, with their names, and how many it will have."""
    if not has_plan(path):
        return {}, 0
    contenders, seeds = read_plan(path)
    members = members_of(contenders, seeds, path)
    return {one.path: one.name for one in members if has_run(one.path)}, len(members)

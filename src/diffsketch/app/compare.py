"""Comparing methods: the same batches and the same devices for all, one run directory for each.

What a round trains on depends on the seed, the round and the device, and never on the method: so
runs with one seed are paired. Each run is a run like any other: interrupted, a comparison goes on
from the checkpoints of its runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from diffsketch.errors import DiffSketchError, MismatchError
from diffsketch.training.aggregate import NonFiniteUpdate
from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.compare_plan import Contender
from diffsketch.app.config import RunConfig
from diffsketch.app.defaults import METHOD_SETTINGS, with_task_defaults
from diffsketch.app.directory import RunDirectory, recovered
from diffsketch.app.metrics import read_metrics
from diffsketch.app.pool import PoolBroken, Stop, Tell, run_all
from diffsketch.app.sessions import session, threads
from diffsketch.app.status import Status

__all__ = [
    "ComparisonBroken",
    "Member",
    "Result",
    "finished",
    "members_of",
    "run_members",
    "run_one",
]


class ComparisonBroken(DiffSketchError):  # noqa: N818 - it says what happened
    """A process that ran a part of a comparison is gone. What it had checkpointed is kept."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    name: str
    seed: int
    path: Path
    config: RunConfig


@dataclass(frozen=True)
class Result:
    """What one run came to.

    Attributes:
        name: Of the row in the table.
        seed: Of the run.
        summary: What its `summary.json` says; None if it was interrupted.
        times: Its seconds; empty if they are not known.
        curve: Its measurements.
    """

    name: str
    seed: int
    summary: dict[str, Any] | None
    times: dict[str, float]
    curve: list[dict[str, Any]]


def members_of(
    contenders: Iterable[Contender], seeds: Sequence[int], directory: Path
) -> list[Member]:
    """All runs of a comparison, those with the same seed together."""
    found = list(contenders)
    return [
        Member(one.name, seed, directory / one.folder / f"seed-{seed}", one.config(seed))
        for seed in seeds
        for one in found
    ]


def run_members(
    members: Sequence[Member],
    *,
    jobs: int,
    command: list[str],
    on_progress: Callable[[float, str], None],
    stop: Callable[[], bool],
) -> list[Result]:
    """Run those that are not finished, and read the results of all.

    Args:
        members: What to run.
        jobs: Processes at a time.
        command: For the record.
        on_progress: Told the share of all rounds that is done, and what is being run.
        stop: Asked now and then whether to interrupt.

    Raises:
        DiffSketchError: A run failed, for another reason than that it diverged.
        MismatchError: What is there is not the run of a member.
    """
    results = {member: found for member in members if (found := finished(member)) is not None}
    rest = [member for member in members if member not in results]

    def watch(shares: Sequence[float | None]) -> None:
        part = sum(share or 0.0 for share in shares)
        begun = zip(rest, shares, strict=True)
        now = [f"{one.name}, seed {one.seed}" for one, share in begun if share not in (None, 1.0)]
        on_progress((len(results) + part) / len(members), "; ".join(now))

    watch([None] * len(rest))
    work = partial(run_one, command=command)
    try:
        # Counted in the summary.
        quiet = (NonFiniteUpdate,)
        made = run_all(work, rest, processes=jobs, watch=watch, stop=stop, quiet=quiet)
    except PoolBroken as error:
        raise ComparisonBroken("a process of the comparison was ended") from error
    results |= dict(zip(rest, made, strict=True))
    return [results[member] for member in members]


def run_one(member: Member, *, command: list[str], tell: Tell, stop: Stop) -> Result:
    """Run it to its end, from its checkpoint if it has one; its summary is None if interrupted.

    Args:
        member: What to run.
        command: For the record.
        tell: Told the share of its rounds that is done.
        stop: Asked before every round whether to interrupt.

    Raises:
        DiffSketchError: It failed, for another reason than that it diverged.
        MismatchError: What is there is not this run.
    """

    def show(status: Status) -> None:
        tell(status.round_index / max(status.rounds, 1))

    with threads(member.config.threads):
        if recovered(member.path):
            with RunDirectory.open(member.path) as directory:
                _check_member(member, directory)
                session(build(directory.config), directory, show=show, stop=stop)
                return _result(member, directory)
        if stop():
            return Result(member.name, member.seed, None, {}, [])
        built = build(member.config)
        with RunDirectory.create(member.path, built.config, command=command) as directory:
            session(built, directory, show=show, stop=stop)
            return _result(member, directory)


def finished(member: Member) -> Result | None:
    """The result of a run, if it is finished.

    Raises:
        DataError: A file of it is damaged.
        MismatchError: What is there is not this run, or was begun by another version.
    """
    if not recovered(member.path):
        return None
    with RunDirectory.open(member.path) as directory:
        _check_member(member, directory)
        return _result(member, directory) if directory.finished else None


def _check_member(member: Member, directory: RunDirectory) -> None:
    """Raise unless the run that is there has the settings that the plan has for it.

    What the data and the method decide is left out: it follows from the rest.
    """
    planned = with_task_defaults(member.config, fields=settings_of_methods()[member.config.method])
    for name, wanted in asdict(planned).items():
        found = getattr(directory.config, name)
        decided = name == "workers" or name in METHOD_SETTINGS
        if found != wanted and not (wanted is None and decided):
            raise MismatchError(
                f"{directory.path}: is no run of this comparison, whose plan has {name}={wanted!r} "
                f"for it: it has {name}={found!r}"
            )


def _result(member: Member, directory: RunDirectory) -> Result:
    curve = read_metrics(directory.metrics)
    return Result(member.name, member.seed, directory.summary(), directory.times(), curve)

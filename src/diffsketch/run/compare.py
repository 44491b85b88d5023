"""Comparing methods: the same batches and the same devices for all, one run directory for each.

What a round trains on depends on the seed, the round and the device, and never on the method: so
runs with one seed are paired. Each run is a run like any other: interrupted, a comparison goes on
from the checkpoints of its runs.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, cast

from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.learning.aggregate import NonFiniteUpdate
from diffsketch.run.build import build, settings_of_methods
from diffsketch.run.compare_plan import Contender
from diffsketch.run.config import RunConfig
from diffsketch.run.defaults import METHOD_SETTINGS, TASK_DEFAULTS, with_task_defaults
from diffsketch.run.directory import RunDirectory
from diffsketch.run.metrics import read_metrics
from diffsketch.run.sessions import session, threads
from diffsketch.run.status import Status

__all__ = ["ComparisonBroken", "Member", "Result", "members_of", "run_members"]

_LOOK_SECONDS = 0.25


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
    tracker = _Tracker(members, on_progress)
    results = {member: found for member in members if (found := _finished(member)) is not None}
    for member in results:
        tracker.end(member)
    rest = [member for member in members if member not in results]
    if min(jobs, len(rest)) > 1:
        made = _in_processes(rest, jobs=jobs, command=command, tracker=tracker, stop=stop)
        results |= dict(zip(rest, made, strict=True))
        return [results[member] for member in members]
    for member in rest:
        tracker.begin(member)
        results[member] = _run_one(member, command, show=tracker.show, stop=stop)
        tracker.end(member)
    return [results[member] for member in members]


class _Tracker:
    """How much of all rounds is done."""

    def __init__(self, members: Sequence[Member], tell: Callable[[float, str], None]) -> None:
        self._members, self._tell = members, tell
        self._done = 0

    def begin(self, member: Member) -> None:
        self._now = f"{member.name}, seed {member.seed}"
        self._tell(self._done / len(self._members), self._now)

    def show(self, status: Status) -> None:
        part = status.round_index / max(status.rounds, 1)
        self._tell((self._done + part) / len(self._members), self._now)

    def end(self, member: Member) -> None:
        self._done += 1
        self._tell(self._done / len(self._members), f"{member.name}, seed {member.seed}")

    def look(self, running: Iterable[Member]) -> None:
        """For runs in other processes: at what they have written."""
        part, names = 0.0, []
        for member in running:
            try:
                curve = read_metrics(member.path / "metrics.jsonl")
            except DataError:
                continue  # said by whoever needs them; this is only for the display
            if curve:
                planned = member.config.rounds or TASK_DEFAULTS[member.config.task]["rounds"]
                part += curve[-1]["round"] / cast(int, planned)
                names.append(f"{member.name}, seed {member.seed}")
        self._tell((self._done + part) / len(self._members), "; ".join(names))


def _run_one(
    member: Member,
    command: list[str],
    *,
    show: Callable[[Status], None],
    stop: Callable[[], bool],
) -> Result:
    with threads(member.config.threads):
        if (member.path / "run.json").exists():
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


def _finished(member: Member) -> Result | None:
    """The result of a run, if it is finished."""
    if not (member.path / "run.json").exists():
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


_stopped: Event | None = None  # in a process of the pool: set when the comparison is interrupted


def _enter_process(event: Event) -> None:
    global _stopped  # how a pool hands something to its processes
    _stopped = event
    # The parent decides: Ctrl-C reaches all processes of a terminal.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_process(member: Member, command: list[str]) -> Result:
    def stop() -> bool:
        return _stopped is not None and _stopped.is_set()

    with warnings.catch_warnings():
        # Counted in the summary; lines of several processes would get into each other.
        warnings.simplefilter("ignore", NonFiniteUpdate)
        return _run_one(member, command, show=lambda _: None, stop=stop)


def _in_processes(
    members: Sequence[Member],
    *,
    jobs: int,
    command: list[str],
    tracker: _Tracker,
    stop: Callable[[], bool],
) -> list[Result]:
    # Not forked: threads of PyTorch and Numba do not survive that.
    context = multiprocessing.get_context("spawn")
    event = context.Event()
    with ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_enter_process, initargs=(event,)
    ) as pool:
        futures: dict[Future[Result], Member] = {
            pool.submit(_in_process, member, command): member for member in members
        }
        waiting = set(futures)
        try:
            while waiting:
                done, waiting = wait(waiting, timeout=_LOOK_SECONDS, return_when=FIRST_COMPLETED)
                for future in done:
                    future.result()
                    tracker.end(futures[future])
                tracker.look(futures[future] for future in waiting if future.running())
                if stop():
                    event.set()
            return [future.result() for future in futures]
        except BaseException as error:
            event.set()
            pool.shutdown(cancel_futures=True)
            if isinstance(error, BrokenProcessPool):
                raise ComparisonBroken("a process of the comparison was ended") from error
            raise

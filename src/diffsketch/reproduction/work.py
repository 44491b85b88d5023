"""Doing the jobs of experiments: each once, several at a time, none lost when another fails."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from diffsketch.app.pool import Stop, Tell, run_all
from diffsketch.errors import DiffSketchError, MismatchError
from diffsketch.reproduction.costs import seconds_of
from diffsketch.reproduction.experiment import Experiment
from diffsketch.reproduction.jobs import Job, Results
from diffsketch.reproduction.store import Store, made_by
from diffsketch.training.simulation import NonFiniteUpdate

__all__ = ["Failure", "Outcome", "Piece", "State", "do_jobs", "in_order", "pieces_of"]

_LONG = 0.02  # of what each process has to do: longer ones come first


@dataclass(frozen=True)
class Piece:
    """A job, and what it is called.

    Attributes:
        job: What to do.
        label: Of the first experiment that it belongs to: "mnist, DiffSketch, seed 3".
        seconds: That it takes, roughly.
    """

    job: Job
    label: str
    seconds: float


@dataclass(frozen=True)
class Failure:
    """A job that failed.

    Attributes:
        label: Of the job.
        reason: In a line.
        trace: Where, for whoever mends it.
    """

    label: str
    reason: str
    trace: str


@dataclass(frozen=True)
class State:
    """How far the work is.

    Attributes:
        done: Seconds of work that are done, as they were estimated.
        total: Of all that is to do.
        experiments: All of whose jobs are done.
        now: What is being done.
    """

    done: float
    total: float
    experiments: int
    now: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How the work went.

    Attributes:
        results: Of all jobs that are done, now or before.
        made: How many of them now.
        notes: What was made again, and why.
        failures: Of the jobs that failed.
        interrupted: Whether it was stopped before all was done.
    """

    results: Results
    made: int
    notes: tuple[str, ...]
    failures: tuple[Failure, ...]
    interrupted: bool


@dataclass(frozen=True)
class _Done:
    """What a process says about a job."""

    done: bool
    note: str = ""
    failure: Failure | None = None


def pieces_of(experiments: Sequence[Experiment]) -> list[Piece]:
    """All jobs, each once, in the order of the experiments."""
    found: dict[Job, Piece] = {}
    for experiment in experiments:
        named = [(one.name, experiment.runs(one)) for one in experiment.variants]
        named += [(one.name, experiment.measured(one)) for one in experiment.measurements]
        for name, jobs in named:
            for job in jobs:
                label = f"{experiment.name}, {name}, seed {job.seed}"
                found.setdefault(job, Piece(job, label, seconds_of(job)))
    return list(found.values())


def in_order(pieces: Sequence[Piece], processes: int) -> list[Piece]:
    """As they are done: long ones first, then one experiment after the other.

    What comes last is short, so that all processes end at about the same time.
    """
    limit = _LONG * sum(piece.seconds for piece in pieces) / processes
    long = [piece for piece in pieces if piece.seconds > limit]
    return [
        *sorted(long, key=lambda piece: -piece.seconds),
        *(piece for piece in pieces if piece.seconds <= limit),
    ]


def do_jobs(
    experiments: Sequence[Experiment],
    store: Store,
    *,
    processes: int,
    command: list[str],
    show: Callable[[State], None],
    stop: Stop,
) -> Outcome:
    """Do what is not in the store, and read the results of all from it.

    Guarantees (`tests/reproduction/test_reproduce.py`): what is in the store is not done again; a
    job of two experiments is done once; a job that fails takes nothing from the others;
    interrupted and continued, the results are the same, bit by bit.

    Args:
        experiments: What belongs to them.
        store: Where results are kept.
        processes: At a time.
        command: For the record.
        show: Told now and then how far it is.
        stop: Asked now and then whether to interrupt.

    Raises:
        PoolBroken: A process was killed; what is done is kept.
    """
    pieces = pieces_of(experiments)
    found = {piece.job: store.find(piece.job) for piece in pieces}
    notes = [one.note for one in found.values() if one.note]
    rest = in_order([one for one in pieces if found[one.job].result is None], processes)

    groups = [frozenset(experiment.jobs) for experiment in experiments]

    def watch(shares: Sequence[float | None]) -> None:
        show(_state(groups, rest, shares))

    watch([None] * len(rest))
    source = {piece.job.kind: made_by(piece.job.kind) for piece in rest}
    work = partial(_do, directory=store.directory, command=command, source=source)
    done = run_all(work, rest, processes=processes, watch=watch, stop=stop)
    failures = [one.failure for one in done if one.failure is not None]
    notes += [one.note for one in done if one.note]
    for piece, one in zip(rest, done, strict=True):
        if one.done:
            found[piece.job] = store.find(piece.job)
            if found[piece.job].result is None:
                failures.append(Failure(piece.label, f"lost: {found[piece.job].note}", ""))
    results = {job: one.result for job, one in found.items() if one.result is not None}
    return Outcome(
        results=results,
        made=sum(piece.job in results for piece in rest),
        notes=tuple(notes),
        failures=tuple(failures),
        interrupted=len(results) + len(failures) < len(pieces),
    )


def _state(
    groups: Sequence[frozenset[Job]], rest: Sequence[Piece], shares: Sequence[float | None]
) -> State:
    left = {piece.job for piece, share in zip(rest, shares, strict=True) if share != 1.0}
    both = list(zip(rest, shares, strict=True))
    return State(
        done=sum(piece.seconds * (share or 0.0) for piece, share in both),
        total=sum(piece.seconds for piece in rest),
        experiments=sum(left.isdisjoint(jobs) for jobs in groups),
        now=tuple(piece.label for piece, share in both if share not in (None, 1.0)),
    )


def _do(
    piece: Piece,
    *,
    directory: Path,
    command: list[str],
    source: Mapping[str, Mapping[str, str]],
    tell: Tell,
    stop: Stop,
) -> _Done:
    """One job, in whichever process; what fails is said and not raised."""
    try:
        if made_by(piece.job.kind) != source[piece.job.kind]:
            # A process reads it later than its parent, which could not use what it makes.
            raise MismatchError("the source of diffsketch was changed while the command began")
        with warnings.catch_warnings():
            # Counted in the summary, and what diverges is drawn so.
            warnings.simplefilter("ignore", NonFiniteUpdate)
            made = Store(directory).make(piece.job, command=command, tell=tell, stop=stop)
    except Exception as error:  # whatever it is, the others go on
        expected = isinstance(error, DiffSketchError | OSError)
        reason = " ".join(str(error).split())
        reason = reason if expected else f"{type(error).__name__}: {reason}"
        return _Done(False, failure=Failure(piece.label, reason, traceback.format_exc()))
    note = f"{piece.label}: {made.note}" if made.note else ""
    return _Done(made.done, note)

"""Jobs of experiments, done several at a time; results are kept, so that nothing is done twice.

Below a directory: `results/KEY.json`, a file with a digest for each job that is done, and
`runs/KEY/`, the run directory of each training run, with its checkpoint while it is under way.

Which results are used again: those of the same job (kind, settings and seed make the key) that
were made with the same versions of diffsketch, PyTorch and NumPy on the same kind of machine, by
the same source of all that computes them. The source of what only shows them (figures, pages,
commands) is not compared, so that a changed figure is drawn from the old results. Any other result,
and one whose file is damaged, is made again, and a note says why.
"""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import paper.readings
import paper.repaired
import paper.rotated  # noqa: F401 - all three register methods that runs have
from diffsketch.app.compare import Member, config_of, run_one
from diffsketch.app.files import has_run, read_sealed, sealed, source_digest, versions
from diffsketch.app.pool import Stop, Tell, run_all
from diffsketch.compiled import torch_threads
from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.files import prepare_output, replace_file
from diffsketch.methods.gate import NonFiniteUpdate
from paper.experiments import (
    MEASUREMENTS,
    RUN,
    Experiment,
    Job,
    Results,
    function_of,
    seconds_of,
)

_FORMAT = "diffsketch result 1"
_COMPUTING = ("app", "methods", "privacy", "sketch", "training", "wire")
_MEASURING = ("auditing", "secure_sum")
_HERE = Path(__file__).parent
_METHODS = ("readings.py", "repaired.py", "rotated.py")
_OWN = (
    "measurements.py", "bounds.py", "noise_control.py", "audits.py", "inversion.py",
    "secret_hashes.py", "projection_cases.py", "projections.py", "scope.py", "successors.py",
)  # fmt: skip


class _Interrupted(Exception):  # noqa: N818 - not an error
    """Raised through a measurement that is to stop."""


class Store:
    """Results below a directory, which nobody else writes to.

    Guarantees (`paper/tests/test_jobs.py`): a file is whole or not there; one that is
    damaged, was changed or is another job's is not used; a run goes on from its checkpoint, to
    the same result.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def file(self, job: Job) -> Path:
        """The file of a job's result."""
        return self.directory / "results" / f"{job.key}.json"

    def run_directory(self, job: Job) -> Path:
        """The run directory of a training run."""
        return self.directory / "runs" / job.key

    def find(self, job: Job) -> tuple[Mapping[str, Any] | None, str]:
        """The result of a job; or None, and why one that is there may not be used."""
        path = self.file(job)
        try:
            data = read_sealed(path)
        except FileNotFoundError:
            return None, ""
        except DataError as error:
            return None, f"{error}; made again"
        if {name: data.get(name) for name in ("format", "kind", "settings", "seed")} != _head(job):
            return None, f"{path}: the result of something else; made again"
        here, there = made_by(job.kind), data["made_by"]
        for name, value in here.items():
            if there.get(name) != value:
                made = f"{name} {there.get(name)} (here {value})"
                return None, f"{path}: made by {made}; made again"
        return data["result"], ""

    def make(self, job: Job, *, command: list[str], tell: Tell, stop: Stop) -> tuple[bool, str]:
        """Run or measure it, and keep the result."""
        if stop():
            return False, ""

        def on_progress(share: float) -> None:
            tell(share)
            if stop():
                raise _Interrupted

        result: Mapping[str, Any] | None = None
        note = ""
        with torch_threads(1), suppress(_Interrupted):
            if job.kind == RUN:
                result, note = self._train(job, command=command, tell=tell, stop=stop)
            else:
                measure = function_of(MEASUREMENTS[job.kind])
                result = measure(job.settings, seed=job.seed, on_progress=on_progress)
        if result is None:
            return False, note
        prepare_output(self.file(job).parent)
        content = {**_head(job), "made_by": made_by(job.kind), "result": result}
        try:
            replace_file(self.file(job), sealed(content))
        except (TypeError, ValueError) as error:
            raise DiffSketchError(f"{job.kind} gave what JSON has no word for: {error}") from error
        return True, note

    def _train(
        self, job: Job, *, command: list[str], tell: Tell, stop: Stop
    ) -> tuple[Mapping[str, Any] | None, str]:
        path = self.run_directory(job)
        if path.exists() and not has_run(path):
            shutil.rmtree(path)  # of a process that was killed before the run had begun
        there, note = path.exists(), ""
        member = Member(job.key, job.seed, path, config_of(job.settings, job.seed))
        try:
            found = run_one(member, command=command, tell=tell, stop=stop)
        except (DataError, MismatchError) as error:
            if not there:
                raise
            note = f"{error}; begun again"
            shutil.rmtree(path)
            found = run_one(member, command=command, tell=tell, stop=stop)
        if found is None:
            return None, note
        return {"summary": found.summary, "times": found.times, "curve": found.curve}, note


def made_by(kind: str) -> dict[str, str]:
    """Versions and source that the results of jobs of a kind depend on besides their settings."""
    here = versions()
    source = source_digest(*_COMPUTING) + source_digest(*_METHODS, root=_HERE)
    if kind != RUN:
        source += source_digest(*_MEASURING) + source_digest(*_OWN, root=_HERE)
    compared = {name: here[name] for name in ("diffsketch", "torch", "numpy", "machine")}
    return {**compared, "source": source}


def _head(job: Job) -> dict[str, Any]:
    return {"format": _FORMAT, "kind": job.kind, "settings": dict(job.settings), "seed": job.seed}


@dataclass(frozen=True)
class Failure:
    """A job that failed: its label, the reason in a line, and the traceback."""

    label: str
    reason: str
    trace: str


@dataclass(frozen=True)
class State:
    """Progress of the work."""

    done: float  # seconds of work that are done, as they were estimated
    total: float  # seconds of all that is to do
    experiments: int  # how many have all of their jobs done
    now: tuple[str, ...]  # labels of the jobs that are under way


@dataclass(frozen=True)
class JobsOutcome:
    """The end of the work."""

    results: Results  # those of all jobs that are done, now or before
    made: int  # how many of them were made now
    notes: tuple[str, ...]  # what was made again, and why
    failures: tuple[Failure, ...]  # the jobs that failed
    interrupted: bool  # whether it was stopped before all was done


def labels_of(experiments: Sequence[Experiment]) -> dict[Job, str]:
    """A label of each job, such as "mnist, DiffSketch, seed 3", by the first that has it."""
    found: dict[Job, str] = {}
    for experiment in experiments:
        for name, job in experiment.named_jobs:
            found.setdefault(job, f"{experiment.name}, {name}, seed {job.seed}")
    return found


def do_jobs(
    experiments: Sequence[Experiment],
    store: Store,
    *,
    processes: int,
    command: list[str],
    show: Callable[[State], None],
    stop: Stop,
) -> JobsOutcome:
    """Do what is not in the store, and read the results of all from it.

    Guarantees (`paper/tests/test_reproduce.py`): what is in the store is not done again; a
    job of two experiments is done once; a job that fails takes nothing from the others;
    interrupted and continued, the results are the same, bit by bit. If a process is killed,
    `PoolBroken` is raised, and what is done is kept.
    """
    labels = labels_of(experiments)
    found = {job: store.find(job) for job in labels}
    notes = [note for _, note in found.values() if note]
    costs = {job: seconds_of(job) for job, (result, _) in found.items() if result is None}
    # The longest first: what comes last is short, so that all processes end at about the same time.
    rest = sorted(costs, key=lambda job: -costs[job])

    def watch(shares: Sequence[float]) -> None:
        share = dict(zip(rest, shares, strict=True))
        left = {job for job in rest if share[job] != 1.0}
        show(State(
            done=sum(costs[job] * share[job] for job in rest),
            total=sum(costs.values()),
            experiments=sum(left.isdisjoint(one.jobs) for one in experiments),
            now=tuple(labels[job] for job in rest if 0 < share[job] < 1),
        ))  # fmt: skip

    watch([0.0] * len(rest))
    work = partial(_do, directory=store.directory, command=command)
    done = run_all(work, rest, processes=processes, watch=watch, stop=stop)
    failures = []
    for job, (made, note, trace) in zip(rest, done, strict=True):
        if trace:
            failures.append(Failure(labels[job], note, trace))
        elif note:
            notes.append(f"{labels[job]}: {note}")
        if made:
            found[job] = store.find(job)
            if found[job][0] is None:  # by a process that read another source than this one
                failures.append(Failure(labels[job], f"lost: {found[job][1]}", ""))
    results = {job: result for job, (result, _) in found.items() if result is not None}
    return JobsOutcome(
        results=results,
        made=sum(job in results for job in rest),
        notes=tuple(notes),
        failures=tuple(failures),
        interrupted=len(results) + len(failures) < len(labels),
    )


def _do(
    job: Job, *, directory: Path, command: list[str], tell: Tell, stop: Stop
) -> tuple[bool, str, str]:
    """Do one job, in whichever process: whether it is done, a note, and "".

    A failure is not raised: it is returned as the note, with its traceback.
    """
    try:
        with warnings.catch_warnings():
            # Counted in the summary, and what diverges is drawn so.
            warnings.simplefilter("ignore", NonFiniteUpdate)
            return *Store(directory).make(job, command=command, tell=tell, stop=stop), ""
    except Exception as error:  # whatever it is, the others go on
        reason = " ".join(str(error).split())
        if not isinstance(error, DiffSketchError | OSError):
            reason = f"{type(error).__name__}: {reason}"
        return False, reason, traceback.format_exc()

"""Jobs of experiments, done several at a time; results are kept, so that nothing is done twice.

Below a directory: `results/KEY.json`, a file with a digest for each job that is done, and
`runs/KEY/`, the run directory of a training run that is under way. Jobs take minutes at most: one
that is stopped begins again.

Which results are used again: those of the same job (kind, settings and seed make the key) that
were made with the same versions of diffsketch, PyTorch and NumPy on the same kind of machine, by
the same source of all that computes them. The source of what only shows them (figures, pages,
commands) is not compared, so that a changed figure is drawn from the old results. Any other result,
and one whose file is damaged, is made again, and a note says so.
"""

from __future__ import annotations

import shutil
import traceback
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import paper.methods  # noqa: F401 - registers those that runs have
from diffsketch.app.compare import Member, config_of, run_one
from diffsketch.app.files import read_sealed, sealed, source_digest, versions
from diffsketch.app.pool import Stop, Tell, run_all
from diffsketch.app.terminal import Progressed
from diffsketch.compiled import torch_threads
from diffsketch.errors import DataError, DiffSketchError
from diffsketch.files import prepare_output, replace_file
from diffsketch.methods.gate import NonFiniteUpdate
from paper.experiments import MEASUREMENTS, RUN, Experiment, Job, Results, seconds_of

_FORMAT = "diffsketch result 1"
_COMPUTING = ("app", "methods", "privacy", "sketch", "training", "wire")
_MEASURING = ("auditing",)
_HERE = Path(__file__).parent
# Of this package; a module is added here when a measurement imports it.
_OWN = ("measurements.py", "audits.py", "inversion.py", "projections.py")


class _Interrupted(Exception):  # noqa: N818 - not an error
    """Raised through a measurement that is to stop."""


class Store:
    """Results below a directory, which nobody else writes to.

    Guarantees (`paper/tests/test_jobs.py`): a file is whole or not there; one that is
    damaged, was changed or is another job's is not used.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def file(self, job: Job) -> Path:
        """The file of a job's result."""
        return self.directory / "results" / f"{job.key}.json"

    def find(self, job: Job) -> Mapping[str, Any] | None:
        """The result of a job, if there is one that may be used."""
        try:
            data = read_sealed(self.file(job))
        except (FileNotFoundError, DataError):
            return None
        result: Mapping[str, Any] = data.pop("result", {})
        return result if data == _head(job) else None

    def make(self, job: Job, *, tell: Tell, stop: Stop) -> bool:
        """Run or measure it, and keep the result; whether it is done, and was not stopped."""
        if stop():
            return False

        def on_progress(share: float) -> None:
            tell(share)
            if stop():
                raise _Interrupted

        result: Mapping[str, Any] | None = None
        with torch_threads(1), suppress(_Interrupted):
            if job.kind == RUN:
                result = self._train(job, tell=tell, stop=stop)
            else:
                measure = resolve_name(MEASUREMENTS[job.kind])
                result = measure(job.settings, seed=job.seed, on_progress=on_progress)
        if result is None:
            return False
        prepare_output(self.file(job).parent)
        try:
            replace_file(self.file(job), sealed({**_head(job), "result": result}))
        except (TypeError, ValueError) as error:
            raise DiffSketchError(f"{job.kind} gave what JSON has no word for: {error}") from error
        return True

    def _train(self, job: Job, *, tell: Tell, stop: Stop) -> Mapping[str, Any] | None:
        path = self.directory / "runs" / job.key
        shutil.rmtree(path, ignore_errors=True)  # of a process that was stopped or killed
        member = Member(job.key, job.seed, path, config_of(job.settings, job.seed))
        record = run_one(member, command=["python", "-m", "paper"], tell=tell, stop=stop)
        if record is None:
            return None
        shutil.rmtree(path)  # all that is wanted of it is in the result
        return {"summary": record.summary, "times": record.times, "curve": record.curve}


def made_by(kind: str) -> dict[str, str]:
    """Versions and source that the results of jobs of a kind depend on besides their settings."""
    here = versions()
    source = source_digest(*_COMPUTING) + source_digest("methods.py", root=_HERE)
    if kind != RUN:
        source += source_digest(*_MEASURING) + source_digest(*_OWN, root=_HERE)
    compared = {name: here[name] for name in ("diffsketch", "torch", "numpy", "machine")}
    return {**compared, "source": source}


def _head(job: Job) -> dict[str, Any]:
    """All that decides a result, beside which it is kept."""
    return {"format": _FORMAT, "kind": job.kind, "settings": dict(job.settings), "seed": job.seed,
            "made_by": made_by(job.kind)}  # fmt: skip


@dataclass(frozen=True)
class Failure:
    """A job that failed: its label, the reason in a line, and the traceback."""

    label: str
    reason: str
    trace: str


@dataclass(frozen=True)
class JobsOutcome:
    """The end of the work."""

    results: Results  # those of all jobs that are done, now or before
    made: int  # how many of them were made now
    again: int  # how many had a file that could not be used: damaged, or made by other code
    failures: tuple[Failure, ...]  # the jobs that failed
    interrupted: bool  # whether it was stopped before all was done


def labels_of(experiments: Sequence[Experiment]) -> dict[Job, str]:
    """A label of each job, such as "mnist, DiffSketch, seed 3", by the first that has it."""
    labels: dict[Job, str] = {}
    for experiment in experiments:
        for name, job in experiment.named_jobs:
            labels.setdefault(job, f"{experiment.name}, {name}, seed {job.seed}")
    return labels


def do_jobs(
    experiments: Sequence[Experiment], store: Store, *, processes: int, show: Progressed, stop: Stop
) -> JobsOutcome:
    """Do what is not in the store, and read the results of all from it.

    `show` is told the share of the estimated time that is done, and what is under way.

    Guarantees (`paper/tests/test_reproduce.py`): what is in the store is not done again; a
    job of two experiments is done once; a job that fails takes nothing from the others;
    interrupted and continued, the results are the same, bit by bit. If a process is killed,
    `PoolBroken` is raised, and what is done is kept.
    """
    labels = labels_of(experiments)
    kept = {job: store.find(job) for job in labels}
    costs = {job: seconds_of(job) for job, result in kept.items() if result is None}
    again = sum(store.file(job).exists() for job in costs)
    # The longest first: what comes last is short, so that all processes end at about the same time.
    rest = sorted(costs, key=lambda job: -costs[job])

    def watch(shares: Sequence[float]) -> None:
        share = dict(zip(rest, shares, strict=True))
        left = {job for job in rest if share[job] != 1.0}
        whole = sum(left.isdisjoint(each.jobs) for each in experiments)
        now = [labels[job] for job in rest if 0 < share[job] < 1]
        seconds = sum(costs[job] * share[job] for job in rest)
        text = "; ".join([f"{whole} of {len(experiments)} experiments", *now])
        show(seconds / max(sum(costs.values()), 1e-9), text)

    watch([0.0] * len(rest))
    work = partial(_do, store=store)
    done = run_all(work, rest, processes=processes, watch=watch, stop=stop)
    failures = []
    for job, (made, reason, trace) in zip(rest, done, strict=True):
        if trace:
            failures.append(Failure(labels[job], reason, trace))
        if made:
            kept[job] = store.find(job)
            if kept[job] is None:
                reason = "lost: made by a process that read another source than this one"
                failures.append(Failure(labels[job], reason, ""))
    results = {job: result for job, result in kept.items() if result is not None}
    return JobsOutcome(
        results=results,
        made=sum(job in results for job in rest),
        again=again,
        failures=tuple(failures),
        interrupted=len(results) + len(failures) < len(labels),
    )


def _do(job: Job, *, store: Store, tell: Tell, stop: Stop) -> tuple[bool, str, str]:
    """Do one job, in whichever process: whether it is done, or why it failed and the traceback."""
    try:
        with warnings.catch_warnings():
            # Counted in the summary, and what diverges is drawn so.
            warnings.simplefilter("ignore", NonFiniteUpdate)
            return store.make(job, tell=tell, stop=stop), "", ""
    except Exception as error:  # whatever it is, the others go on
        reason = " ".join(str(error).split())
        if not isinstance(error, DiffSketchError | OSError):
            reason = f"{type(error).__name__}: {reason}"
        return False, reason, traceback.format_exc()

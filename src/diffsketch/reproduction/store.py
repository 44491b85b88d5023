"""Results of jobs, kept by their settings, so that nothing is computed twice.

Below a directory: `results/KEY.json`, a sealed file for each job that is done, and `runs/KEY/`,
the run directory of each training run, with its checkpoint while it is under way.

Which results are used again: those of the same job (kind, settings and seed make the key) that
were made with the same versions of diffsketch, PyTorch and NumPy on the same kind of machine, by
the same source of all that computes them. The source of what only shows them (drawings, pages,
commands) is not compared, so that a changed drawing draws the old results. Any other result, and
one whose file is damaged, is made again, and a note says why.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsketch.app.compare import Contender, Member, run_one
from diffsketch.app.files import has_run, read_sealed, sealed, source_digest, versions
from diffsketch.app.pool import Stop, Tell
from diffsketch.app.session import threads
from diffsketch.errors import DataError, DiffSketchError, MismatchError
from diffsketch.files import prepare_output, replace_file
from diffsketch.reproduction.jobs import RUN, Job
from diffsketch.reproduction.measurements.registry import measurement

__all__ = ["Found", "Made", "Store", "made_by"]

_FORMAT = "diffsketch result 1"
_SIMULATING = tuple(f"training/{name}.py" for name in ("simulation",))
_COMPUTING = (*_SIMULATING, "app", "methods", "privacy", "sketch", "training", "wire")
_MEASURING = ("audit", "experiments/measurements")


class _Interrupted(Exception):  # noqa: N818 - not an error
    """Raised through a measurement that is to stop."""


@dataclass(frozen=True)
class Found:
    """What there is of a job.

    Attributes:
        result: As JSON has it; None if there is none that may be used.
        note: Why one that is there is not used; else empty.
    """

    result: Mapping[str, Any] | None
    note: str = ""


@dataclass(frozen=True)
class Made:
    """How making a result went.

    Attributes:
        done: Whether there is one now; else it was interrupted.
        note: What had to be begun again, and why; else empty.
    """

    done: bool
    note: str = ""


class Store:
    """Results below a directory, which nobody else writes to.

    Guarantees (`tests/reproduction/test_store.py`): a file is whole or not there; one that is
    damaged, was changed or is another job's is not used; a run goes on from its checkpoint, to
    the same result.

    Args:
        directory: Made when the first result is.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def find(self, job: Job) -> Found:
        """The result of a job, if it is there and may be used."""
        path = self._file(job)
        try:
            data = read_sealed(path)
        except FileNotFoundError:
            return Found(None)
        except DataError as error:
            return Found(None, f"{error}; made again")
        if {name: data.get(name) for name in ("format", "kind", "settings", "seed")} != _head(job):
            return Found(None, f"{path}: the result of something else; made again")
        here, there = made_by(job.kind), data.get("made_by")
        if there != here:
            return Found(None, f"{path}: made by {_difference(there, here)}; made again")
        return Found(data["result"])

    def make(self, job: Job, *, command: list[str], tell: Tell, stop: Stop) -> Made:
        """Run or measure it, and keep the result.

        Args:
            job: What to do.
            command: For the record.
            tell: Told the share that is done.
            stop: Asked now and then whether to interrupt: a run leaves a checkpoint then.

        Raises:
            DiffSketchError: It failed.
        """
        if stop():
            return Made(False)
        result: Mapping[str, Any] | None
        with threads(1):
            if job.kind == RUN:
                result, note = self._train(job, command=command, tell=tell, stop=stop)
            else:
                result, note = _measure(job, tell=tell, stop=stop), ""
        if result is None:
            return Made(False, note)
        prepare_output(self._file(job).parent)
        content = {**_head(job), "made_by": made_by(job.kind), "result": result}
        try:
            replace_file(self._file(job), sealed(content))
        except (TypeError, ValueError) as error:
            raise DiffSketchError(f"{job.kind} gave what JSON has no word for: {error}") from error
        return Made(True, note)

    def run_directory(self, job: Job) -> Path:
        """Of a training run."""
        return self.directory / "runs" / job.key

    def _file(self, job: Job) -> Path:
        return self.directory / "results" / f"{job.key}.json"

    def _train(
        self, job: Job, *, command: list[str], tell: Tell, stop: Stop
    ) -> tuple[dict[str, Any] | None, str]:
        path = self.run_directory(job)
        if path.exists() and not has_run(path):
            shutil.rmtree(path)  # of a process that was killed before the run had begun
        there = path.exists()
        member = Member(job.key, job.seed, path, Contender(job.key, job.settings).config(job.seed))
        note = ""
        try:
            found = run_one(member, command=command, tell=tell, stop=stop)
        except (DataError, MismatchError) as error:
            if not there:
                raise
            note = f"{error}; begun again"
            shutil.rmtree(path)
            found = run_one(member, command=command, tell=tell, stop=stop)
        if found.summary is None:
            return None, note
        return {"summary": found.summary, "times": found.times, "curve": found.curve}, note


def made_by(kind: str) -> dict[str, str]:
    """What the results of jobs of a kind depend on besides their settings."""
    here = versions()
    parts = _COMPUTING if kind == RUN else (*_COMPUTING, *_MEASURING)
    compared = {name: here[name] for name in ("diffsketch", "torch", "numpy", "machine")}
    return {**compared, "source": source_digest(*parts)}


def _measure(job: Job, *, tell: Tell, stop: Stop) -> Mapping[str, Any] | None:
    def on_progress(share: float) -> None:
        tell(share)
        if stop():
            raise _Interrupted

    try:
        return measurement(job.kind)(job.settings, seed=job.seed, on_progress=on_progress)
    except _Interrupted:
        return None


def _head(job: Job) -> dict[str, Any]:
    return {
        "format": _FORMAT,
        "kind": job.kind,
        "settings": dict(job.settings),
        "seed": job.seed,
    }


def _difference(there: object, here: Mapping[str, str]) -> str:
    """The first thing that is not as it is here, in words."""
    for name, value in here.items():
        found = there.get(name) if isinstance(there, dict) else None
        if found != value:
            return f"{name} {found} (here {value})"
    return "something else"

"""Runs in child processes that are killed at chosen moments: the script of `test_resume.py`.

    python killing.py DIRECTORY

All imports and the data are loaded once; each run is a forked process of its own. A *moment* is a
call of something that a run does with the world: a round, a write, a flush to the disk, a rename.
A process is killed with SIGKILL right before its n-th moment, or right after it.
"""

from __future__ import annotations

import io
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console

from diffsketch.engines.simulate import Simulation
from diffsketch.learning.task import Task
from diffsketch.learning.tasks import load_task
from diffsketch.run import build, metrics, sessions
from diffsketch.run.config import RunConfig
from diffsketch.run.loop import CheckpointFailed

FINAL = ("config.toml", "run.json", "metrics.jsonl", "model.safetensors", "summary.json")
SMALL: dict[str, Any] = {"workers": 3, "samples": 20, "evaluate_every": 2, "checkpoint_seconds": 0}
CASES = {
    "sgd": RunConfig(
        rounds=3, momentum=0.9, averaging=0.5, rows=3, cols=22, schedule="cosine", **SMALL
    ),
    # More rounds than the budget allows: it stops in between.
    "budget": RunConfig(
        task="mnist-devices", rounds=40, cohort=2, sampling="uniform", method="sketch-skellam",
        rows=1, cols=16, clip=1.0, noise_multiplier=4.0, budget=2.0, **SMALL,
    ),
}  # fmt: skip


class Moments:
    """Counts what happens, and ends the process at one of the counts."""

    def __init__(self, last: int | None) -> None:
        self.count, self._last = 0, last

    def around(self, owner: Any, name: str) -> Any:
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            self._pass()
            result = real(*arguments, **options)
            self._pass()
            return result

        return mock.patch.object(owner, name, wrapper)

    def _pass(self) -> None:
        if self.count == self._last:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1


class HalfLines(metrics.Metrics):
    """Writes a line in two parts, to be killed in between."""

    def append(self, record: Any) -> None:
        real = self._stream

        class Slow(io.RawIOBase):
            def write(self, line: Any) -> int:
                os.write(real.fileno(), line[:10])
                os.fsync(real.fileno())
                return 10 + (real.write(line[10:]) or 0)

        self._stream = Slow()  # type: ignore[assignment]
        try:
            super().append(record)
        finally:
            self._stream = real


@contextmanager
def counted(moments: Moments) -> Iterator[None]:
    with (
        mock.patch.object(sessions, "Metrics", HalfLines),
        moments.around(Simulation, "step"),
        moments.around(os, "fsync"),
        moments.around(Path, "replace"),
        moments.around(Path, "unlink"),
    ):
        yield


@cache
def loaded(**arguments: Any) -> Task:
    return load_task(**arguments)


def session(path: Path, config: RunConfig, last: int | None) -> int:
    """Begin or continue the run, in this process; how many moments it had."""
    moments, console = Moments(last), Console(file=io.StringIO())
    with counted(moments):
        if (path / "run.json").exists():
            sessions.resume(path, console)
        else:
            # Killed before it had begun: what there may be are files without a run.
            for leftover in path.glob("*") if path.exists() else ():
                leftover.unlink()
            for leftover in path.glob(".*.tmp") if path.exists() else ():
                leftover.unlink()
            sessions.start(config, path, console, command=["diffsketch", "run"])
    return moments.count


def forked(work: Callable[[], int]) -> int | None:
    """What a child process computes; None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.write(writing, str(work()).encode())
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL, status
        return None
    assert os.WEXITSTATUS(status) == 0, "a run failed"
    return int(text)


def contents(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in FINAL}


def kill_everywhere(directory: Path, case: str) -> dict[str, Any]:
    """Kill a run at one of five moments, at each of the last ones, and once again and again.

    Compared with a run that is left alone.
    """
    config = CASES[case]
    whole = directory / "whole"
    moments = forked(lambda: session(whole, config, None))
    assert moments is not None
    expected, differing = contents(whole), []
    for last in sorted({*range(0, moments, 5), *range(moments - 12, moments)}):
        path = directory / f"killed-{last}"
        assert forked(lambda: session(path, config, last)) is None, last  # noqa: B023
        assert forked(lambda: session(path, config, None)) is not None, last  # noqa: B023
        if contents(path) != expected:
            differing.append(last)
    path, kills = directory / "again", 0
    while forked(lambda: session(path, config, 25)) is None:
        kills += 1
        assert kills < moments, "no progress"
    if contents(path) != expected:
        differing.append(-1)
    summary = json.loads(expected["summary.json"])
    return {"moments": moments, "kills": kills, "differing": differing, "summary": summary}


def fill_the_disk(directory: Path) -> dict[str, Any]:
    """Let files grow no further than a checkpoint needs, from the third round on."""
    config = CASES["sgd"]
    whole, path = directory / "whole", directory / "full"
    forked(lambda: session(whole, config, None))

    def fail() -> int:
        real, rounds = Simulation.step, 0

        def step(self: Simulation) -> Any:
            nonlocal rounds
            rounds += 1
            if rounds == 3:
                # Python ignores the signal, so that writing fails as on a full disk.
                resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
            return real(self)

        with mock.patch.object(Simulation, "step", step):
            try:
                session(path, config, None)
            except CheckpointFailed as error:
                (directory / "message").write_text(str(error))
        return rounds

    rounds = forked(fail)
    before = sorted(item.name for item in path.iterdir())
    message = (directory / "message").read_text()
    forked(lambda: session(path, config, None))
    same = contents(path) == contents(whole)
    return {"rounds": rounds, "files": before, "message": message, "same": same}


def main() -> None:
    torch.set_num_threads(1)
    root = Path(sys.argv[1])
    results = {}
    with mock.patch.object(build, "load_task", lambda name, **rest: loaded(name=name, **rest)):
        for case, config in CASES.items():
            # In this process first: what is loaded and compiled now, forks need not.
            session(root / case / "warm", config, None)
            results[case] = kill_everywhere(root / case, case)
        results["full-disk"] = fill_the_disk(root)
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main()

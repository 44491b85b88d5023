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
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from rich.console import Console

from diffsketch import files
from diffsketch.app import build
from diffsketch.app import compare as compare_sessions
from diffsketch.app import files as metrics
from diffsketch.app import session as sessions
from diffsketch.app.session import CheckpointFailed
from diffsketch.app.settings import RunConfig
from diffsketch.errors import DataError
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Task, load_task

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

    def half_written(self) -> Any:
        """Files of which there is half, for a moment."""
        real = files._write

        def write(path: Path, content: bytes) -> None:
            path.write_bytes(content[: len(content) // 2])
            self._pass()
            real(path, content)

        return mock.patch.object(files, "_write", write)

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
        moments.around(Path, "mkdir"),
        moments.half_written(),
    ):
        yield


@cache
def loaded(**arguments: Any) -> Task:
    return load_task(**arguments)


def session(path: Path, config: RunConfig, last: int | None) -> int:
    """Continue the run, or begin it, in this process; how many moments it had."""
    moments, console = Moments(last), Console(file=io.StringIO())
    with counted(moments):
        try:
            sessions.resume(path, console)
        except DataError as error:
            if "not the directory of a run" not in str(error):
                raise
            sessions.start(config, path, console, command=["diffsketch", "run"])
    return moments.count


def compared(path: Path, last: int | None) -> int:
    """The same for a comparison of two runs."""
    moments, console = Moments(last), Console(file=io.StringIO())
    each: list[Any] = [
        ("a", {"method": "none"}),
        ("b", {"method": "sketch", "rows": 1, "cols": 16}),
    ]
    common: dict[str, Any] = {"jobs": 1, "command": ["diffsketch", "compare"]}
    with counted(moments):
        try:
            compare_sessions.resume(path, console, **common)
        except DataError as error:
            if "not the directory of a comparison" not in str(error):
                raise
            compare_sessions.start({**SMALL, "rounds": 1}, each, path, console, seeds=1, **common)
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


def contents(path: Path, names: tuple[str, ...] = FINAL) -> dict[str, bytes]:
    found = (one for name in names for one in path.rglob(name))
    return {str(one.relative_to(path)): one.read_bytes() for one in found}


def kill_everywhere(
    directory: Path, work: Callable[[Path, int | None], int], *, begun: bool = False
) -> dict[str, Any]:
    """Kill it at every moment until a run has begun, then at one of many, and at the last ones.

    And once again and again. Compared with one that is left alone.

    Args:
        directory: For all of them.
        work: What continues or begins it, in a directory, and is killed at a moment.
        begun: Whether to take its beginning like the rest.
    """
    whole = directory / "whole"
    moments = forked(lambda: work(whole, None))
    assert moments is not None
    expected, differing, beginning = contents(whole), [], 0
    for last in range(moments):
        path = directory / f"killed-{last}"
        if (begun or beginning < last) and last < moments - 6 and last % 29:
            continue
        assert forked(lambda: work(path, last)) is None, last  # noqa: B023
        if not any(path.rglob("run.json")):
            beginning = last + 1
        assert forked(lambda: work(path, None)) is not None, last  # noqa: B023
        if contents(path) != expected:
            differing.append(last)
    path, kills = directory / "again", 0
    while forked(lambda: work(path, 40)) is None:
        kills += 1
        assert kills < moments, "no progress"
    if contents(path) != expected:
        differing.append(-1)
    return {"moments": moments, "kills": kills, "differing": differing, "beginning": beginning}


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
            work = partial(lambda path, last, config: session(path, config, last), config=config)
            results[case] = kill_everywhere(root / case, work, begun=case != "sgd")
            summary = (root / case / "whole" / "summary.json").read_text()
            results[case]["summary"] = json.loads(summary)
        compared(root / "compare" / "warm", None)
        results["compare"] = kill_everywhere(root / "compare", compared)
        results["full-disk"] = fill_the_disk(root)
    print(json.dumps(results))  # noqa: T201


if __name__ == "__main__":
    main()

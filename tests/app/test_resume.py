"""Killed at any moment and continued, a run ends with the same files; Ctrl-C says how."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from diffsketch import files
from diffsketch.app import build, compare, session
from diffsketch.app.files import RunDirectory
from diffsketch.app.settings import RunConfig
from diffsketch.errors import DataError
from diffsketch.training.simulation import Simulation
from diffsketch.training.tasks import Examples, Task, load_task
from tests.app.commands import done, interrupted, read, read_lines

FINAL = ("config.toml", "run.json", "metrics.jsonl", "model.safetensors", "summary.json")
SMALL: dict[str, Any] = {"workers": 3, "samples": 20, "evaluate_every": 2, "checkpoint_seconds": 0}
SGD = RunConfig(
    rounds=3, momentum=0.9, rows=3, cols=22, schedule="cosine", **SMALL
)  # fmt: skip
# More rounds than the budget allows: it stops in between.
BUDGET = RunConfig(
    task="mnist-devices", rounds=40, cohort=2, sampling="uniform", method="sketch-skellam",
    rows=1, cols=16, clip=1.0, noise_multiplier=4.0, budget=2.0, **SMALL,
)  # fmt: skip


class Killed(BaseException):
    """Stands for SIGKILL."""


class Moments:
    """Names what a run does with the world, and ends it at one of these moments.

    A *moment* is before, within or after a round, a write, a flush to the disk, a rename. From the
    last one on nothing is done any more, also by what cleans up: as if the process were dead.
    """

    def __init__(self, last: int | None = None) -> None:
        self.labels: list[str] = []
        self._last, self._dead = last, False

    def note(self, label: str) -> None:
        if self._dead or len(self.labels) == self._last:
            self._dead = True
            raise Killed
        self.labels.append(label)

    def around(self, owner: Any, name: str) -> Any:
        real = getattr(owner, name)

        def wrapper(*arguments: Any, **options: Any) -> Any:
            paths = [one.name for one in arguments if isinstance(one, Path)]
            what = f"{name} {re.sub('[0-9]+', '', paths[-1]) if paths else ''}"
            self.note(f"before {what}")
            result = real(*arguments, **options)
            self.note(f"after {what}")
            return result

        return mock.patch.object(owner, name, wrapper)

    @contextmanager
    def counted(self) -> Iterator[None]:
        write, append = files._write, RunDirectory.add_measurement

        def half_file(path: Path, content: bytes) -> None:
            self.note(f"before write {re.sub('[0-9]+', '', path.name)}")
            path.write_bytes(content[: len(content) // 2])
            self.note(f"half of {re.sub('[0-9]+', '', path.name)}")
            write(path, content)

        def half_line(directory: RunDirectory, record: Any) -> None:
            path = directory.metrics
            content = path.read_bytes() if path.exists() else b""
            path.write_bytes(content + json.dumps(record).encode()[:10])
            self.note("half of a line")
            path.write_bytes(content)
            append(directory, record)

        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(files, "_write", half_file))
            stack.enter_context(mock.patch.object(RunDirectory, "add_measurement", half_line))
            for owner, name in (
                (Simulation, "step"), (os, "fsync"), (Path, "replace"), (Path, "unlink"),
                (Path, "mkdir"),
            ):  # fmt: skip
                stack.enter_context(self.around(owner, name))
            yield


class LastLine(Moments):
    """Killed in the middle of a line with this number, whenever that is: saves follow the clock."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    def note(self, label: str) -> None:
        self._number -= label == "half of a line"
        if not self._number:
            self._dead = True
        super().note(label)


NOT_BEGUN = re.compile("no such directory|not the directory of a")


def run(config: RunConfig, path: Path, moments: Moments) -> None:
    """Continue the run, or begin it."""
    with moments.counted():
        try:
            session.resume(path)
        except DataError as error:
            if not NOT_BEGUN.search(str(error)):
                raise
            session.start(config, path)


def run_comparison(path: Path, moments: Moments) -> None:
    common: dict[str, Any] = {"jobs": 1, "page": False}
    each: list[Any] = [
        ("a", {"method": "none"}), ("b", {"method": "sketch", "rows": 1, "cols": 16}),
    ]  # fmt: skip
    with moments.counted():
        try:
            compare.resume(path, **common)
        except DataError as error:
            if not NOT_BEGUN.search(str(error)):
                raise
            compare.start({**SMALL, "rounds": 1}, each, path, seeds=1, **common)


CASES: dict[str, Callable[[Path, Moments], None]] = {
    "sgd": lambda path, moments: run(SGD, path, moments),
    "budget": lambda path, moments: run(BUDGET, path, moments),
    "compare": run_comparison,
}


def contents(path: Path) -> dict[str, bytes]:
    found = (one for name in FINAL for one in path.rglob(name))
    return {str(one.relative_to(path)): one.read_bytes() for one in found}


@pytest.fixture
def small_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Loads data once, with few examples to evaluate on."""

    @cache
    def loaded(name: str, **options: Any) -> Task:
        task = load_task(name, **options)
        test = Examples(task.test.inputs[:200], task.test.labels[:200])
        return dataclasses.replace(task, test=test)

    monkeypatch.setattr(build, "load_task", loaded)


@pytest.mark.slow
@pytest.mark.usefixtures("small_task")
@pytest.mark.parametrize("case", CASES)
def test_killed_at_any_moment(tmp_path: Path, case: str) -> None:
    work, whole, known = CASES[case], Moments(), set[str]()
    work(tmp_path / "compiled", Moments())  # compiled loops are cached on disk, by moments too
    work(tmp_path / "whole", whole)
    expected, labels = contents(tmp_path / "whole"), whole.labels
    if case != "sgd":  # the others have kinds of moments in common with it
        moments = Moments()
        CASES["sgd"](tmp_path / "sgd", moments)
        known = set(moments.labels)
    # The first and the last of each kind of moment.
    first = {label: index for index, label in reversed(list(enumerate(labels)))}
    last = {label: index for index, label in enumerate(labels)}
    points = {*first.values(), *last.values()} if case == "sgd" else set(last.values())
    points = {point for point in points if labels[point] not in known} | set(
        range(0, len(labels), 29)
    )
    assert {f"half of .{name}..tmp" for name in FINAL} <= set(labels)
    assert {"before step ", "half of a line", "before fsync "} <= set(labels)
    for point in sorted(points):
        path = tmp_path / f"killed-{point}"
        with pytest.raises(Killed):
            work(path, Moments(point))
        work(path, Moments())
        assert contents(path) == expected, labels[point]
    # Again and again.
    kills, path = 0, tmp_path / "again"
    while True:
        try:
            work(path, Moments(40))
            break
        except Killed:
            kills += 1
            assert kills < len(labels), "no progress"
    assert kills >= 2
    assert contents(path) == expected
    if case == "budget":
        summary = read(tmp_path / "whole" / "summary.json")
        assert summary["outcome"] == "budget"
        assert 0 < summary["rounds"] < summary["planned_rounds"]
        assert 0 < summary["epsilon"]["value"] <= 2
        assert "above the budget of 2" in summary["reason"]


@pytest.mark.usefixtures("small_task")
def test_measurements_that_are_not_cut_back_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The negative control of the test above."""
    whole = Moments()
    run(SGD, tmp_path / "whole", whole)
    monkeypatch.setattr(RunDirectory, "write_metrics", lambda *_: None)
    real = RunDirectory.write_results  # which has them too

    def as_they_are(directory: RunDirectory, *, curve: Any, **parts: Any) -> None:
        content = directory.metrics.read_bytes()
        real(directory, curve=curve, **parts)
        directory.metrics.write_bytes(content)

    monkeypatch.setattr(RunDirectory, "write_results", as_they_are)
    with pytest.raises(Killed):
        run(SGD, tmp_path / "killed", LastLine(whole.labels.count("half of a line")))
    run(SGD, tmp_path / "killed", Moments())
    assert contents(tmp_path / "killed") != contents(tmp_path / "whole")


SETTINGS = [
    "--workers", "3", "--samples", "20", "--rounds", "400", "--evaluate-every", "100",
    "--checkpoint-seconds", "0.05", "--rows", "1", "--cols", "32",
]  # fmt: skip


@pytest.mark.slow
def test_killed_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a real SIGKILL and Ctrl-C."""
    arguments = ["run", *SETTINGS, "--output", "run"]
    whole, path = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    path.mkdir()
    with monkeypatch.context() as patched:
        patched.chdir(whole)
        patched.setattr(sys, "argv", ["diffsketch", *arguments])
        done(*arguments)

    command = [sys.executable, "-m", "diffsketch", *arguments]
    alone = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    metrics = path / "run" / "metrics.jsonl"
    with subprocess.Popen(command, cwd=path, env=alone, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        deadline = time.monotonic() + 120
        while not (metrics.exists() and metrics.stat().st_size > 0):
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.kill()
    assert not (path / "run" / "summary.json").exists()

    monkeypatch.chdir(path)
    result = interrupted(50, "run", "--resume", "run")
    assert "Continue with: diffsketch run --resume run" in result.output
    assert result.stderr == ""
    assert not (path / "run" / "summary.json").exists()

    done("run", "--resume", "run")
    for name in FINAL:
        assert (path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes(), name
    lines = read_lines(path / "run" / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(0, 401, 100))

"""Killed at any moment and continued, a run ends with the same files; Ctrl-C says how."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.app.commands import interrupted_in_round, invoke, read_lines
from tests.app.killing import FINAL

KILLING = Path(__file__).parent / "killing.py"
SETTINGS = [
    "--workers", "3", "--samples", "20", "--rounds", "1200", "--evaluate-every", "100",
    "--checkpoint-seconds", "0.05", "--rows", "1", "--cols", "32",
]  # fmt: skip
# One thread each, so that forks are safe and tests do not wait for each other.
ALONE = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of runs that were killed, and of one that filled the disk."""
    directory = tmp_path_factory.mktemp("killed")
    command = [sys.executable, str(KILLING), str(directory)]
    done = subprocess.run(  # noqa: S603
        command, env=ALONE, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = {**json.loads(done.stdout), "directory": directory}
    return result


@pytest.mark.parametrize(("case", "outcome"), [("sgd", "finished"), ("budget", "budget")])
def test_killed_at_any_moment(killed: dict[str, Any], case: str, outcome: str) -> None:
    result = killed[case]
    assert result["differing"] == []
    assert result["moments"] > 50
    assert result["kills"] >= 2
    summary = result["summary"]
    assert summary["outcome"] == outcome
    if case == "budget":
        assert 0 < summary["rounds"] < summary["planned_rounds"]
        assert 0 < summary["epsilon"]["value"] <= 2
        assert "above the budget of 2" in summary["reason"]


@pytest.mark.parametrize("case", ["sgd", "compare"])
def test_killed_while_it_begins(killed: dict[str, Any], case: str) -> None:
    """All moments up to the first run's `run.json` are among those that were tried."""
    result = killed[case]
    assert result["differing"] == []
    assert result["beginning"] >= 20


def test_full_disk_keeps_the_checkpoint(killed: dict[str, Any]) -> None:
    result = killed["full-disk"]
    assert result["rounds"] == 3
    assert "File too large; the checkpoint after 2 rounds is intact" in result["message"]
    assert f"diffsketch run --resume {killed['directory'] / 'full'}" in result["message"]
    assert result["files"] == [
        "checkpoint.safetensors", "command.txt", "config.toml", "metrics.jsonl", "run.json",
        "times.json",
    ]  # fmt: skip
    assert result["same"]


def when_begun(process: subprocess.Popen[bytes], path: Path) -> None:
    """Wait until there are measurements."""
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size > 0):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_killed_interrupted_and_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["run", *SETTINGS, "--output", "run"]
    whole, path = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    path.mkdir()
    with monkeypatch.context() as patched:
        patched.chdir(whole)
        patched.setattr(sys, "argv", ["diffsketch", *arguments])
        assert invoke(*arguments).exit_code == 0

    command = [sys.executable, "-m", "diffsketch.cli", *arguments]
    with subprocess.Popen(command, cwd=path, env=ALONE, stdout=subprocess.DEVNULL) as process:  # noqa: S603
        when_begun(process, path / "run" / "metrics.jsonl")
        process.kill()
    assert not (path / "run" / "summary.json").exists()

    monkeypatch.chdir(path)
    with interrupted_in_round(150):
        result = invoke("run", "--resume", "run")
    assert result.exit_code == 130, result.output
    assert "Continue with: diffsketch run --resume run" in result.output
    assert result.stderr == ""
    assert not (path / "run" / "summary.json").exists()

    assert invoke("run", "--resume", "run").exit_code == 0
    for name in FINAL:
        assert (path / "run" / name).read_bytes() == (whole / "run" / name).read_bytes(), name
    lines = read_lines(path / "run" / "metrics.jsonl")
    assert [line["round"] for line in lines] == list(range(0, 1201, 100))

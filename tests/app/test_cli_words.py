"""Errors name flags that there are, and a closed pipe ends no run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diffsketch.app.settings import read_settings
from diffsketch.errors import ArgumentError
from diffsketch.methods import PlainSketch
from tests.app.commands import invoke, refused


def test_only_options_become_flags(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    def fail(*_: object) -> Any:
        raise ArgumentError("scale must be finite, got scale=inf and rows=3, cols=4")

    monkeypatch.setattr(PlainSketch, "_encode", fail)
    said = refused(invoke("run", "--method", "sketch"))
    assert said == "error: scale must be finite, got scale=inf and --rows=3, --cols=4\n"
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workers", "40000", "--samples", "2"], "--workers * --samples must be <= 60000, "),
        (["--workers", "40000", "--samples", "2"], "got --workers=40000, --samples=2"),
        (["--task", "shakespeare", "--workers", "10000"], "error: --workers must be <= 138, the"),
        (
            ["--method", "sketch-skellam", "--clip", "1", "--budget", "5", "--bits", "2"],
            "got --bits=2",
        ),
        (
            [
                "--task", "mnist-devices", "--sampling", "poisson", "--method", "sketch-gaussian",
                "--trust", "central", "--clip", "1", "--noise-multiplier", "1",
            ],
            "--relation must be add-or-remove for poisson sampling, got --relation='replace'",
        ),
    ],
)  # fmt: skip
def test_words_of_errors(here: Path, arguments: list[str], said: str) -> None:
    assert said in refused(invoke("run", *arguments))
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(("flag", "value"), [("--rotate", True), ("--no-rotate", False)])
def test_switches_go_both_ways(here: Path, flag: str, value: bool) -> None:
    arguments = [
        "run", "--workers", "3", "--samples", "10", "--rounds", "1", "--method", "cpsgd",
        "--levels", "4", "--trials", "4000", flag, "--output", "out",
    ]  # fmt: skip
    result = invoke(*arguments)
    assert result.exit_code == 0, result.output
    assert read_settings(here / "out" / "config.toml")["rotate"] is value


def test_a_closed_pipe_ends_no_run(here: Path) -> None:
    command = [
        sys.executable, "-m", "diffsketch.cli", "run", "--workers", "3", "--samples", "10",
        "--rounds", "20", "--method", "none", "--output", "out",
    ]  # fmt: skip
    reading, writing = os.pipe()
    os.close(reading)  # whoever read is gone
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(  # noqa: S603
        command, stdout=writing, stderr=subprocess.PIPE, env=environment, check=False, timeout=120
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (here / "out" / "summary.json").exists()


def test_help_tells_exit_status() -> None:
    for command in ("run", "compare"):
        printed = invoke(command, "--help", columns=200).output
        assert "Exit status: 0 if all r" in printed


def test_refusals_are_short(here: Path) -> None:
    (here / "run.toml").write_text("xyzzy = 1\n")
    said = refused(invoke("run", "--config", "run.toml"))
    assert "unknown key 'xyzzy'; see --help for all of them" in said

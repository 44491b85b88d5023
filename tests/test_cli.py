"""The command line: help, one-line errors that name options, closed pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diffsketch import __version__
from diffsketch.app import session
from diffsketch.cli import main
from diffsketch.errors import ArgumentError
from diffsketch.files import replace_file, replace_files
from diffsketch.methods import PlainSketch
from diffsketch.sketch import SketchKey
from tests.app.commands import done, invoke, plain, refused, uncoloured
from tests.helpers.commands import python


def test_help_and_version() -> None:
    printed = plain(done("--help").output)
    commands = ("run", "compare", "plan", "audit", "report", "key")
    for text in ("Count Sketch", *commands, "--version", "Example: diffsketch run"):
        assert text in printed
    for command in ("run", "compare"):
        assert "Exit status: 0" in plain(done(command, "--help").output)
    assert done("--version").stdout == f"diffsketch {__version__}\n"


def test_flags_have_no_value() -> None:
    shown = uncoloured(invoke("audit", "--help").output)
    assert "--quick" in shown
    assert "--quick  <" not in " ".join(shown.split("--quick")[1].split())[:3]
    assert "unexpected extra argument" in invoke("audit", "--quick", "true").stderr


def test_help_and_version_import_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from diffsketch.cli import app\n"
        "for words in ('--help', '--version', 'run --help', 'plan --help', 'mean --help'):\n"
        "    app(words.split(), standalone_mode=False)\n"
        "heavy = {'torch', 'numba', 'numpy', 'duckdb', 'matplotlib', 'plotly', 'scipy'}\n"
        "heavy.add('dp_accounting')\n"
        "sys.exit(not heavy.isdisjoint(sys.modules))\n"
    )
    assert python("-c", code).returncode == 0


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["run", "--family", "x"], ["audit", "--seed", "-1"], ["--x"]]
)
def test_wrong_usage_exits_2(arguments: list[str]) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_command_there_is_help_and_no_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["diffsketch"])
    with pytest.raises(SystemExit):
        main()
    printed = capfd.readouterr()
    assert "Train models over many workers" in printed.out + printed.err
    assert "error:" not in printed.out + printed.err


def test_what_lacks_its_value_is_named(here: Path) -> None:
    said = invoke("run", "--resume", "--rounds", "5").stderr
    assert "--resume" in said
    assert "needs a value, got the option --rounds" in plain(said).replace("│ ", "")
    assert "File exists" in refused(invoke("key", here))
    assert list(here.iterdir()) == []


def test_expected_errors_are_one_line_and_bugs_are_not_disguised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["run", "--output", str(tmp_path / "out"), "--data-dir", str(tmp_path / "none")]
    assert str(tmp_path / "none") in refused(invoke(*arguments))

    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(session, "start", fail)
    assert isinstance(invoke("run").exception, ZeroDivisionError)

    def crave(*_: object, **__: object) -> None:
        np.zeros(2**55)

    monkeypatch.setattr(session, "start", crave)
    assert "not enough memory: Unable to allocate" in refused(invoke("run"))
    monkeypatch.setattr(session, "start", lambda *_, **__: torch.zeros(2**55))
    assert "not enough memory: " in refused(invoke("run"))


@pytest.mark.parametrize("where", ["diffsketch.app.session.start", "diffsketch.cli.app"])
def test_interrupt_exits_130_quietly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], where: str
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(where, interrupt)
    monkeypatch.setattr(sys, "argv", ["diffsketch", "run", "--output", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 130
    assert capfd.readouterr().err == ""


def test_output_that_is_a_file_is_refused_and_kept(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("mine")
    said = refused(invoke("audit", "--case", "bare-known", "--output", target))
    assert "must be a directory" in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert target.read_text() == "mine"


def test_file_is_kept_if_replacing_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    replace_file(tmp_path / "file", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_files_come_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    replace_files({first: b"1", second: b"2"})
    assert (first.read_bytes(), second.read_bytes()) == (b"1", b"2")
    first.unlink()
    real = Path.replace

    def fail(self: Path, target: Path) -> Path:
        if target == second:
            raise PermissionError(13, "Permission denied", str(target))
        return real(self, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(PermissionError):
        replace_files({first: b"new", second: b"new"})
    assert [path.name for path in tmp_path.iterdir()] == ["second"]
    assert second.read_bytes() == b"2"


def test_only_options_become_flags(monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    def fail(*_: object) -> Any:
        raise ArgumentError("scale must be finite, got scale=inf and rows=3, cols=4")

    monkeypatch.setattr(PlainSketch, "_encode", fail)
    said = refused(invoke("run", "--method", "sketch"))
    assert said == "error: scale must be finite, got scale=inf and --rows=3, --cols=4\n"
    assert list(here.iterdir()) == []


def test_errors_name_options(here: Path) -> None:
    images = "--workers * --samples must be <= 60000, the number of training images, got "
    poisson = "--task mnist-devices --workers 20 --sampling poisson --method sketch-gaussian "
    for words, said in (
        ("--workers 40000 --samples 2", images + "--workers=40000, --samples=2"),
        ("--task shakespeare --workers 10000", "error: --workers must be <= 138, the"),
        ("--method sketch-skellam --clip 1 --budget 5 --bits 2", "got --bits=2"),
        (poisson + "--trust central --clip 1 --noise-multiplier 1", "got --relation='replace'"),
        ("--cols 2147483647", "of memory, got 601 GB, of the shape (7, 2147483647)"),
    ):
        assert said in refused(invoke("run", *words.split()))
    assert list(here.iterdir()) == []


@pytest.mark.slow
def test_a_closed_pipe_ends_no_run(here: Path) -> None:
    words = "-m diffsketch run --workers 3 --samples 10 --rounds 20 --method none --output out"
    reading, writing = os.pipe()
    os.close(reading)  # whoever read is gone
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    pipes = {"capture_output": False, "stdout": writing, "stderr": subprocess.PIPE}
    ended = python(*words.split(), **pipes, env=environment, timeout=120)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert (here / "out" / "summary.json").exists()


def test_keys_are_secret_new_and_never_overwritten(here: Path) -> None:
    path = here / "sketch.key"
    assert f"DIFFSKETCH_KEY_FILE={path}" in plain(done("key", path).output).replace("\n", "")
    assert path.stat().st_mode & 0o777 == 0o600
    first = SketchKey(bytes.fromhex(path.read_text()))
    assert "sketch.key: File exists" in refused(invoke("key", path))
    assert SketchKey(bytes.fromhex(path.read_text())) == first
    printed = done("key")
    assert SketchKey(bytes.fromhex(printed.stdout.strip())) != first
    said = "on every client, and on the server if it must reconstruct the model"
    assert f"set DIFFSKETCH_KEY to it {said}" in printed.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--rounds 1.5", "'--rounds': it must be a whole number, got '1.5'"),
        ("--learning-rate fast", "'--learning-rate': it must be a number, got 'fast'"),
        ("--hashes fixd", "'--hashes': it must be one of fresh, fixed, got 'fixd'"),
        ("--method sketsh", "got 'sketsh'; did you mean sketch or diffsketch?"),
    ],
)
def test_wrong_values_are_told_in_our_words(words: str, said: str) -> None:
    result = python("-m", "diffsketch", "run", *words.split())
    assert result.returncode == 2
    assert said in result.stderr
    assert "Input should" not in result.stderr
    assert "Value error" not in result.stderr


def test_whole_numbers_may_be_written_as_powers_of_ten(tmp_path: Path) -> None:
    small = ("--workers", "2", "--samples", "5")
    done("run", *small, "--rounds", "1e1", "--output", tmp_path / "run")
    assert "rounds = 10\n" in (tmp_path / "run" / "config.toml").read_text()

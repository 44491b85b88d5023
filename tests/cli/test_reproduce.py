"""`diffsketch reproduce` on the command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from diffsketch.cli import app
from diffsketch.reproduction.experiments import names


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "100"})


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory that commands are run in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_list(here: Path) -> None:
    result = invoke("--list")
    assert result.exit_code == 0, result.output
    for name in names():
        assert name in result.output
    assert "Times are rough" in result.output
    assert "with 3 processes" in invoke("--list", "--jobs", "3").output
    assert list(here.iterdir()) == []


def test_help() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for text in ("--quick", "--list", "--jobs", "--output", "a second run only draws"):
        assert text in " ".join(result.output.split()), text


def test_list_and_help_import_nothing_heavy() -> None:
    script = (
        "import sys\nfrom diffsketch.reproduction.experiments import listing\nlisting(2)\n"
        "import diffsketch.cli\nsys.exit(any(name in sys.modules for name in ('torch', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0  # noqa: S603


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["mnst"],
            "error: name must be that of an experiment, got name='mnst'; did you mean mnist",
        ),
        (["--jobs", "0"], "--jobs must be a whole number >= 1, got --jobs=0"),
        (["--quick", "nothing-like-it"], "nothing-like-it"),
    ],
)
def test_mistakes(here: Path, arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert said in result.stderr
    assert list(here.iterdir()) == []


def test_files_of_others_stay(here: Path) -> None:
    (here / "out").mkdir()
    (here / "out" / "mine").write_text("mine")
    result = invoke("--quick", "--output", "out")
    assert result.exit_code == 2
    assert "--output must be new, empty, or of an earlier diffsketch reproduce" in result.stderr
    assert [path.name for path in (here / "out").iterdir()] == ["mine"]

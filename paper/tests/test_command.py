"""The command `python -m paper`: help, the list, one-line errors."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from paper.__main__ import app
from paper.experiments import names
from tests.app.commands import done, invoke, plain, refused


def test_help_and_the_list_say_what_there_is_and_import_nothing_heavy(here: Path) -> None:
    printed = plain(done("--help", program=app).output)
    for text in (
        "NAME",
        "Shows that all works",
        "--list",
        "Exit status: 0",
        "Examples: python -m pap",
    ):
        assert text in printed
    assert "bool" not in printed.lower()  # flags have no value
    listed = done("--list", "--jobs", "3", program=app).output
    for text in (*names(), "Times are rough", "with 3 processes"):
        assert text in listed
    assert list(here.iterdir()) == []
    code = (
        "import sys\n"
        "from paper.__main__ import app\n"
        "for words in ('--help', '--list'):\n"
        "    app(words.split(), standalone_mode=False)\n"
        "heavy = {'torch', 'numba', 'numpy', 'matplotlib', 'plotly', 'scipy', 'dp_accounting'}\n"
        "sys.exit(not heavy.isdisjoint(sys.modules))\n"
    )
    root = Path(__file__).parents[2]
    ended = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)  # noqa: S603
    assert ended.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mnst"], "got name='mnst'; did you mean mnist"),
        (["--jobs", "0"], "--jobs must be a whole number >= 1, got --jobs=0"),
        (["--list", "--jobs", "0"], "--jobs must be a whole number >= 1, got --jobs=0"),
        (["--quick", "true"], "got name='true'; see python -m paper --list"),
        (["--quick", "--output", "out"], "--output='out'; or one of an earlier python -m paper"),
    ],
)
def test_errors_name_options_and_write_nothing(here: Path, arguments: list[str], said: str) -> None:
    (here / "out").mkdir()
    (here / "out" / "mine").write_text("mine")
    assert said in refused(invoke(*arguments, program=app))
    assert sorted(path.name for path in here.rglob("*")) == ["mine", "out"]


def test_a_missing_extra_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = ("diffsketch.pages.pictures", "paper.document", "paper.reproduce")
    for name in ("diffsketch.pages.charts", "diffsketch.pages.page", *again):
        package, _, module = name.rpartition(".")
        monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.delattr(importlib.import_module(package), module, raising=False)
    for name in ("matplotlib", *(one for one in sys.modules if one.startswith("matplotlib."))):
        monkeypatch.setitem(sys.modules, name, None)
    said = refused(invoke("--output", tmp_path / "new", program=app))
    assert 'paper needs the extra pages: python -m pip install ".[pages]" in the' in said
    assert list(tmp_path.iterdir()) == []
    done("--list", program=app)

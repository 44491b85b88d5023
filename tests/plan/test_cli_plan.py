"""`diffsketch plan`: its table, its JSON, its code, and errors in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from diffsketch.cli import RelationName, TrustName, UnitName, app, main
from diffsketch.plan import Relation, Trust, Unit
from diffsketch.privacy import BudgetExceeded

ARGUMENTS = [
    "plan", "--dim", "7850", "--workers", "1000", "--rounds", "100", "--epsilon", "4",
    "--delta", "1e-5", "--unit", "client", "--trust", "distributed", "--bytes", "2000",
]  # fmt: skip
EASY = [
    "plan", "--dim", "500", "--workers", "300", "--rounds", "1", "--epsilon", "8",
    "--bytes", "2000", "--trust", "central",
]  # fmt: skip


def plain(text: str) -> str:
    """Without colours, where they are forced, and without line breaks of a narrow terminal."""
    return " ".join(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text).split())


def run(arguments: list[str], columns: int = 100) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.parametrize("columns", [80, 120])
def test_table_words_and_warning(columns: int) -> None:
    output = run(ARGUMENTS, columns)
    assert all(len(line) <= columns for line in output.splitlines())
    assert "…" not in output  # nothing is cut off
    printed = plain(output)
    for text in (
        "method", "table", "bits", "clip", "noise", "bytes", "ratio", "error", "epsilon",
        "sketch + Skellam", "distributed trust", "Best: ", "A secure sum hides",
        "(proven; client unit, replace, distributed trust)", "at delta = 1e-05 over 100 rounds",
        "Warning: Worse than sending nothing", "What would help:",
    ):  # fmt: skip
        assert text in printed, text


def test_no_warning_where_there_is_nothing_to_warn_of() -> None:
    printed = plain(run(EASY))
    assert "Warning" not in printed
    assert "What would help" not in printed


def test_json() -> None:
    data = json.loads(run([*ARGUMENTS, "--json", "--alternatives", "2"], columns=20))
    assert data["request"]["dim"] == 7850
    assert len(data["alternatives"]) == 2
    best: dict[str, Any] = data["best"]
    assert best["message_bytes"] <= 2000
    assert best["worse_than_nothing"]
    assert best["total_epsilon"]["value"] <= 4
    assert best["total_epsilon"]["trust"] == "distributed"
    assert data["warnings"]


@pytest.mark.parametrize("trust", ["local", "distributed", "central"])
def test_code_runs(trust: str) -> None:
    names: dict[str, Any] = {}
    exec(run([*EASY, "--trust", trust, "--code"], columns=20), names)  # noqa: S102
    vector = torch.ones(500) / 500**0.5
    messages = [names["send"](vector, worker, 0) for worker in range(300)]
    error = float((names["receive"](messages, 0) - vector).norm())
    again = names["run_round"]([vector] * 300, 0)  # as much as the budget allows
    assert torch.equal(again, names["receive"](messages, 0))
    with pytest.raises(BudgetExceeded):
        names["run_round"]([vector] * 300, 1)
    assert error < (3 if trust == "local" else 0.9)
    assert float((names["receive"](messages[:0] + messages, 0) + vector).norm()) > error


def test_help_is_quick_and_names_the_options() -> None:
    printed = plain(run(["plan", "--help"], columns=200))
    for text in ("--bytes", "--epsilon", "--trust", "--json", "Example: diffsketch plan"):
        assert text in printed
    code = (
        "import sys\n"
        "from diffsketch.cli import app\n"
        "app(['plan', '--help'], standalone_mode=False)\n"
        "sys.exit(any(name in sys.modules for name in ('torch', 'scipy', 'dp_accounting')))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True)  # noqa: S603
    assert done.returncode == 0


def test_json_and_code_exclude_each_other() -> None:
    result = CliRunner().invoke(app, [*EASY, "--json", "--code"])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert "--json and --code do not go together" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["--norm", "1e-30"],
        ["--norm", "9.876e29", "--trust", "central"],
        ["--dim", "100000000000", "--bytes", "80000000000", "--norm", "1.234e-30"],
        ["--workers", "2", "--trust", "local", "--epsilon", "1e-6"],
    ],
    ids=str,
)
def test_extreme_numbers_fit_the_table(arguments: list[str]) -> None:
    output = run([*ARGUMENTS, *arguments], columns=80)
    assert "…" not in output
    assert all(len(line) <= 80 for line in output.splitlines())
    assert not re.search(r"\d{12}", output)


def test_many_workers_keep_their_secure_sum() -> None:
    printed = plain(run([*ARGUMENTS, "--workers", "1000000000"]))
    assert "sketch + Skellam" in printed
    assert "shared in a secure sum was not tried: with more than 100,000 workers" in printed
    assert "was not tried" not in plain(run(ARGUMENTS))


def test_messages_that_are_larger_are_called_so() -> None:
    few = ["plan", "--dim", "1", "--workers", "50", "--rounds", "1", "--epsilon", "1",
           "--bytes", "52"]  # fmt: skip
    printed = plain(run(few))
    assert "times larger than the vector" in printed
    assert "times less than the vector" not in printed
    assert "count as equal" in printed


def test_names_are_those_of_the_library() -> None:
    for mine, theirs in ((UnitName, Unit), (RelationName, Relation), (TrustName, Trust)):
        assert {name.value for name in mine} == {name.value for name in theirs}


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--dim", "0", "--dim must be in 1.."),
        ("--epsilon", "nan", "--epsilon must be > 0 and finite, got --epsilon=nan"),
        ("--delta", "2", "--delta must be in [0, 1)"),
        ("--bytes", "10", "--bytes must be >= 52"),
        ("--examples", "3", "--examples must be 1 unless the unit is example"),
        ("--norm", "0", "--norm must be in 1e-30..1e30, got --norm=0.0"),
        ("--norm", "1e300", "--norm must be in 1e-30..1e30"),
        ("--norm", "1e-300", "--norm must be in 1e-30..1e30"),
        ("--alternatives", "-1", "--alternatives must be >= 0"),
        ("--unit", "person", "person"),
    ],
)
def test_bad_input_is_one_line(
    option: str, value: str, message: str,
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["diffsketch", *ARGUMENTS, option, value])
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    printed = capfd.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err

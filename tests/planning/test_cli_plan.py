"""`diffsketch plan`: its table, its JSON, its code, and errors in one line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from diffsketch.app.plans import flower_plan, python_code, run_command
from diffsketch.app.settings import RelationName, SamplingName, TrustName, UnitName
from diffsketch.planning import (
    SAMPLINGS,
    PlanRequest,
    PlanWarning,
    Relation,
    Trust,
    Unit,
    plan,
)
from tests.app.commands import done, invoke, plain, refused

ARGUMENTS = [
    "plan", "--dim", "7850", "--workers", "1000", "--rounds", "100", "--epsilon", "4",
    "--delta", "1e-5", "--unit", "client", "--trust", "distributed", "--bytes", "2000",
]  # fmt: skip
EASY = [
    "plan", "--dim", "500", "--workers", "300", "--rounds", "1", "--epsilon", "8",
    "--bytes", "2000", "--trust", "central",
]  # fmt: skip


def run(arguments: list[str], columns: int = 100) -> str:
    return done(*arguments, columns=columns).output


def test_table_words_and_warning() -> None:
    output = run(ARGUMENTS, 80)
    assert all(len(line) <= 80 for line in output.splitlines())
    assert "…" not in output  # nothing is cut off
    printed = plain(output)
    for text in (
        "method", "trust", "shape", "bits", "noise", "bytes", "error", "epsilon",
        "sketch-skellam", "distributed trust", "Best: sketch-gaussian", "A secure sum hides",
        "(proven; client unit, replace, distributed trust)", "at delta = 1e-05 over 100 rounds",
        "Warning: One round alone is worse than sending nothing", "What would help:", "Run it:",
        "diffsketch run --task mnist-devices --workers 1000", "In Flower: FlowerPlan(",
    ):  # fmt: skip
        assert text in printed, text


@pytest.mark.slow
def test_no_warning_where_there_is_nothing_to_warn_of() -> None:
    printed = plain(run(EASY))
    assert "Warning" not in printed
    assert "What would help" not in printed
    assert "In Python: --code prints a program." in printed
    rounds = [*EASY, "--rounds", "2"]
    assert "In Python: --code prints the function of a round." in plain(run(rounds))
    assert "def run_round(vectors, round_index)" in run([*rounds, "--code"], columns=20)


def test_code_of_one_round_is_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = run([*EASY, "--code"], columns=20)
    assert "from_integer" not in source
    monkeypatch.chdir(tmp_path)
    np.save("vectors.npy", np.full((300, 500), 500**-0.5))
    names: dict[str, Any] = {}
    exec(source, names)  # noqa: S102
    assert names["found"].count == 300
    assert float(abs(names["found"].mean - 500**-0.5).mean()) < 0.02  # a standard deviation: 0.003
    printed = capsys.readouterr().out
    assert re.search(r"epsilon = [78]\S* at delta = 1e-05 over 1 round \(proven; client", printed)


@pytest.mark.slow
def test_the_command_can_be_copied() -> None:
    """From a terminal of 80 columns: lines end in backslashes, and a shell reads them as one."""
    lines = run([*ARGUMENTS, "--trust", "central"], columns=80).splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("diffsketch run"))
    end = next(i for i in range(start, len(lines)) if not lines[i].endswith("\\"))
    words = shlex.split("\n".join(lines[start : end + 1]).replace("\\\n", ""))
    request = PlanRequest(
        dim=7850, cohort=1000, rounds=100, target_epsilon=4.0, message_bytes=2000, trust="central"
    )
    with pytest.warns(PlanWarning):
        assert words == shlex.split(run_command(plan(request).best, request) or "")


@pytest.mark.slow
def test_population_cohort_and_sampling() -> None:
    devices = ["plan", "--dim", "7850", "--population", "6000", "--cohort", "1000", "--rounds",
               "60", "--epsilon", "8", "--bytes", "500"]  # fmt: skip
    printed = plain(run(devices))
    assert "at delta = 1e-05 over 10 rounds" in printed
    assert "takes part in 10 of the 60 rounds at most" in printed
    uniform = plain(run([*devices, "--sampling", "uniform"]))
    assert "at delta = 1e-05 over 60 rounds" in uniform
    assert "--sampling shuffled would count 10 of 60" in uniform
    secret = ["--sampling", "poisson", "--trust", "central", "--relation", "add-or-remove"]
    assert "drawn on its own, with probability 0.167" in plain(run([*devices, *secret]))


@pytest.mark.parametrize(
    "arguments",
    [
        ["--norm", "9.876e29", "--trust", "central"],
        ["--dim", "100000000000", "--bytes", "80000000000", "--norm", "1.234e-30"],
        ["--workers", "2", "--trust", "local", "--epsilon", "1e-6"],
    ],
    ids=str,
)
@pytest.mark.slow
def test_extreme_numbers_fit_the_table(arguments: list[str]) -> None:
    output = run([*ARGUMENTS, *arguments], columns=80)
    assert "…" not in output
    assert all(len(line) <= 80 for line in output.splitlines())
    assert not re.search(r"\d{12}", output)


def test_messages_that_are_larger_are_called_so() -> None:
    few = ["plan", "--dim", "1", "--workers", "50", "--rounds", "1", "--epsilon", "1e-6",
           "--bytes", "20"]  # fmt: skip
    printed = plain(run(few))
    assert "times larger than the vector" in printed
    assert "times less than the vector" not in printed
    assert "ties within 1% are broken by weaker trust, then fewer bytes" in printed


def test_names_are_those_of_the_library() -> None:
    for mine, theirs in ((UnitName, Unit), (RelationName, Relation), (TrustName, Trust)):
        assert set(get_args(mine)) == set(theirs)
    assert set(get_args(SamplingName)) == set(SAMPLINGS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--dim 0", "--dim must be >= 1"),
        ("--epsilon nan", "--epsilon must be a number, got --epsilon=nan"),
        ("--epsilon 0", "--epsilon must be a number > 0 and finite, got --epsilon=0"),
        ("--bytes 5", "--bytes must be >= 6"),
        ("--norm 0", "--norm must be a number > 0 and finite, got --norm=0.0"),
        ("--unit person --records 9", "--relation must be add-or-remove for --unit=person"),
        ("--cohort 10", "--workers stands for --cohort and --population: leave them out"),
        ("--population 10", "--workers stands for"),
        ("--sampling poisson", "--sampling must not be poisson but for client unit"),
        ("--unit example", "--records must be given for the units example and person"),
        (None, "--cohort must be given, or --workers"),
    ],
)
def test_bad_input_is_one_line(arguments: str | None, message: str) -> None:
    words = ["plan", "--dim", "9", "--rounds", "1", "--epsilon", "1", "--bytes", "99"]
    if arguments is not None:
        words = [*ARGUMENTS, *arguments.split()]
    result = invoke(*words)
    assert message in refused(result)
    assert result.stdout == ""


def test_without_an_epsilon_it_is_about_bare_sketches() -> None:
    printed = plain(run(["plan", "--dim", "7850", "--workers", "10", "--rounds", "5000",
                         "--bytes", "8"]))  # fmt: skip
    assert "3,925x" in printed
    assert 'sketch_state(model, "sketch", rows=1, cols=22, bits=2, seed=7)' in printed
    assert "No privacy" in printed
    whole = ["plan", "--dim", "7850", "--workers", "10", "--rounds", "5", "--bytes"]
    fits = plain(run([*whole, "31404"]))
    assert "Best: no sketch. Vectors as they are fit, with 31,404 bytes a message" in fits
    assert "In DDP" not in fits
    most = plain(run([*whole, "31403"]))
    assert "Best: 2 bits a cell" in most
    assert "In DDP" in most


@pytest.mark.slow  # sampled releases are composed by Fourier transforms
@pytest.mark.filterwarnings("ignore::diffsketch.planning.PlanWarning")
def test_silos() -> None:
    """Words, the command, Flower's plan, and code that makes the method that was planned."""
    words = [
        "plan", "--dim", "7850", "--workers", "4", "--records", "30", "--rate", "0.1", "--unit",
        "example", "--relation", "add-or-remove", "--rounds", "9", "--epsilon", "2", "--bytes",
        "14000", "--spread", "10",
    ]  # fmt: skip
    printed = plain(run(words))
    for text in (
        "In each round a silo draws each example in secret, with probability 0.1, sketches each",
        "example unit, add-or-remove, distributed trust", "Sums are divided by 120",
        "The noise of all 4 silos", "In Python: --code prints the function of a silo.",
        "Train functions reply with SiloReply", "diffsketch run --workers 4 --samples 300",
    ):  # fmt: skip
        assert text in printed, text
    request = PlanRequest(
        7850, 4, 9, 2.0, 14_000, unit="person", relation="add-or-remove", records=30.0, rate=0.1
    )
    best, names = plan(request).best, dict[str, Any]()
    source = python_code(best, request)
    exec(source, names)  # noqa: S102 - our own
    assert "Records(inputs, labels, persons)" in source
    assert names["method"].unit == "person"
    assert run_command(best, request) is None  # no task has persons
    assert "'unit': 'person'" in (flower_plan(best, request) or "")

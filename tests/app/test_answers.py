"""`diffsketch mean`, `count` and `quantiles`: what is shown and written, and who pays."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path

import duckdb
import numpy as np
import pytest

from diffsketch import Account
from tests.app.commands import done, invoke, plain, refused

WORDS = "epsilon = 1 at delta = 1e-06 over 1 round (proven; client unit, replace, central trust)"
MEAN = ("mean", "people.csv", "--columns", "age,income", "--bounds", "0:120,0:250000")


@pytest.fixture
def people(here: Path) -> Path:
    rng = np.random.default_rng(4)
    ages, incomes = rng.uniform(20, 70, 4000), rng.uniform(0, 9e4, 4000)
    cities = ["=Rome"] * 2500 + ["[red]\x1b[31mBath"] * 1499 + ["Ys"]
    rows = zip(ages, incomes, rng.integers(900, size=4000), cities, strict=True)
    lines = [",".join(map(str, row)) for row in rows]
    (here / "people.csv").write_text("\n".join(["age,income,who,city", *lines]))
    return here


def test_a_table_with_intervals_and_the_words_of_epsilon(people: Path) -> None:
    shown = plain(done(*MEAN, "--epsilon", "1").output)
    assert "means (4,000 people)" in shown
    assert all(text in shown for text in ("age 4", "income 4", "95% from", WORDS))
    shown = plain(done("quantiles", "people.csv", "--column", "age", "--bounds", "0:120",
                       "--epsilon", "1", "--levels", "0.5", "--person", "who").output)  # fmt: skip
    assert "people)" in shown
    assert "0.5 4" in shown
    assert not (people / "account").exists()


def test_keys_are_shown_as_they_are_and_do_nothing(people: Path) -> None:
    result = done("count", "people.csv", "--column", "city", "--epsilon", "1",
                  "--output", "out.csv")  # fmt: skip
    assert "\x1b" not in result.output
    assert "[red]\N{REPLACEMENT CHARACTER}[31mBath" in result.output
    assert "Ys" not in result.output
    rows = list(csv.reader((people / "out.csv").read_text().splitlines()))
    assert rows[0] == ["name", "estimate", "low", "high", "privacy"]
    assert [rows[1][0], rows[1][4]] == ["'=Rome", WORDS]  # no formula of a spreadsheet


def test_every_form_has_the_same_answer(people: Path) -> None:
    names = [f"out.{form}" for form in ("csv", "json", "parquet", "png", "svg")]
    outputs = [word for name in names for word in ("--output", name)]
    shown = done(*MEAN, "--epsilon", "1", *outputs).output
    assert shown.count("Wrote") == 5
    written = json.loads((people / "out.json").read_text())
    assert written["epsilon"]["trust"] == "central"
    table = duckdb.read_parquet(str(people / "out.parquet")).fetchall()
    rows = list(csv.reader((people / "out.csv").read_text().splitlines()))[1:]
    for (name, *numbers, words), line, row in zip(table, rows, written["rows"], strict=True):
        assert [name, *map(str, numbers), words] == line
        assert list(row.values()) == [name, *numbers]
        assert words == WORDS
    assert (people / "out.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (people / "out.svg").read_bytes()


def test_the_account_remembers_over_commands(people: Path) -> None:
    paid = ("--account", "people.account", "--epsilon", "1")
    assert "spent in all of 1.6: epsilon = 0.8" in plain(
        done(*MEAN, *paid, "--budget", "1.6").output
    )
    done("count", "people.csv", "--column", "city", *paid)
    done("quantiles", "people.csv", "--column", "age", "--bounds", "0:120", *paid)
    assert "budget" in refused(invoke(*MEAN, *paid))
    assert "budget" in refused(invoke(*MEAN, *paid, "--budget", "9"))
    assert Account.open(people / "people.account").rounds == 3


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*MEAN[:3], "age,city", *MEAN[4:]), "column 'city' .* '=Rome' in row 1"),
        ((*MEAN[:3], "age,incom", *MEAN[4:]), "did you mean income"),
        ((*MEAN[:5], "120:0,0:1"), "bounds of age"),
        ((*MEAN[:5], "120,0:1"), "--bounds must be low:high"),
        ((*MEAN[:5], "0:120:4,0:1"), "--bounds must be low:high"),
        ((*MEAN, "--person", "nobody"), "'nobody'"),
        ((*MEAN, "--output", "x.xls"), "--output must end"),
        ((*MEAN, "--output", "none/x.csv"), "--output must end"),
        ((*MEAN, "--delta", "0.9"), "--delta must"),
        (("mean", "none.csv", *MEAN[2:]), "none.csv: No such file"),
        (("quantiles", "people.csv", "--column", "age", "--bounds", "0:9", "--levels", "x"),
         "--levels must"),
    ],
)  # fmt: skip
def test_bad_input_is_one_line_and_costs_nothing(
    people: Path, arguments: tuple[str, ...], words: str
) -> None:
    said = refused(invoke(*arguments, "--epsilon", "1", "--account", "paid"))
    assert re.search(words, said), said
    if (people / "paid").exists():
        assert Account.open(people / "paid").rounds == 0


def test_a_warning_is_shown(here: Path) -> None:
    (here / "few.csv").write_text("age\n1\n2\n")
    shown = done("mean", "few.csv", "--columns", "age", "--bounds", "0:9", "--epsilon", "1").output
    assert "Warning: This is worse than nothing" in plain(shown)


def test_a_picture_without_its_extra_costs_nothing(
    people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = refused(invoke(*MEAN, "--epsilon", "1", "--account", "paid", "--output", "x.png"))
    assert "mean needs the extra pages" in said
    assert not (people / "paid").exists()


@pytest.mark.usefixtures("people")
def test_a_budget_needs_an_account() -> None:
    assert "--account" in refused(invoke(*MEAN, "--epsilon", "1", "--budget", "3"))

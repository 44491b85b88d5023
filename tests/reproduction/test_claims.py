"""Every claim is judged, and shown with its verdict."""

from __future__ import annotations

import pytest

from diffsketch.pages.exhibits import Table
from diffsketch.reproduction.claims import (
    in_short,
    in_tables,
    in_words,
    judged,
    statements,
    summary,
)
from diffsketch.reproduction.loading import names
from diffsketch.reproduction.verdicts.registry import RULES
from diffsketch.reproduction.verdicts.verdict import Standing, Verdicts
from tests.reproduction.claim_cases import local


@pytest.fixture(scope="module")
def nothing_run() -> Verdicts:
    """Without any experiment."""
    return judged({})


def test_every_claim_is_shown_once_and_in_order_of_the_file(nothing_run: Verdicts) -> None:
    tables = in_tables(nothing_run, reduced=False)
    shown = [str(row[0]) for table in tables[1:] if isinstance(table, Table) for row in table.rows]
    assert sorted(shown) == sorted(f"“{each.quote}”" for each in statements())
    assert len(shown) == len(set(shown)) >= 60
    assert len({each.name for each in statements()}) == len(statements())


def test_the_page_begins_with_a_few_of_them() -> None:
    verdicts = judged(local(0.0, {}))
    few, all_of_them = in_short(verdicts), {f"“{s.quote}”": str(v) for s, v in verdicts.items()}
    assert len(few.rows) >= 5
    assert all(all_of_them[str(quote)] == verdict for quote, verdict in few.rows)
    assert any(str(verdict).startswith("fails") for _, verdict in few.rows)
    counts = summary(verdicts)
    assert f"{counts['fails']} fail, and {counts['not measured']} are" in in_words(verdicts)


def test_counts_add_up(nothing_run: Verdicts) -> None:
    counts = summary(nothing_run)
    assert list(counts) == ["holds", "holds in part", "fails", "not measured"]
    assert sum(counts.values()) == len(statements())
    first = in_tables(nothing_run, reduced=False)[0]
    assert isinstance(first, Table)
    assert first.rows[-1] == ("All", *counts.values())


def test_what_was_not_run_is_not_measured_and_says_what_to_run(nothing_run: Verdicts) -> None:
    for statement, verdict in nothing_run.items():
        if statement.experiments:
            assert verdict.standing is Standing.NOT_MEASURED
            assert any(str(verdict) == f"not measured (run `diffsketch reproduce {name}`)"
                       for name in statement.experiments)  # fmt: skip


def test_a_fact_that_an_experiment_did_not_give_is_named() -> None:
    facts = {"mnist": {"seeds": 5.0}}
    verdicts = {each.name: str(verdict) for each, verdict in judged(facts).items()}
    expected = "not measured (mnist has no number for it: accuracy/...)"
    assert verdicts["mnist-accuracy"] == expected


def test_a_reduced_run_says_so_in_every_table(nothing_run: Verdicts) -> None:
    for exhibit in in_tables(nothing_run, reduced=True):
        assert exhibit.caption.startswith("These are the verdicts of a reduced run")
    for exhibit in in_tables(nothing_run, reduced=False):
        assert "reduced" not in exhibit.caption


def test_claims_without_a_rule_say_why(nothing_run: Verdicts) -> None:
    for statement, verdict in nothing_run.items():
        if statement.name not in RULES:
            assert str(verdict) == f"not measured: {statement.why}"


def test_every_epsilon_of_a_calculation_has_its_words(nothing_run: Verdicts) -> None:
    for statement, verdict in nothing_run.items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name


def test_claims_name_experiments_that_there_are() -> None:
    named = {name for each in statements() for name in each.experiments}
    assert named <= set(names())

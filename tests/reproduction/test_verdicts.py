"""Every rule comes out as its facts do, either way; and every claim is shown with its verdict."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffsketch.pages.exhibits import Table
from diffsketch.reproduction import rules
from diffsketch.reproduction.claims import (
    ClaimVerdict,
    Facts,
    MissingFactError,
    Standing,
    Verdicts,
)
from diffsketch.reproduction.experiments import load, names
from diffsketch.reproduction.verdicts import (
    RULES,
    claim_tables,
    count_standings,
    judge,
    judged,
    statements,
    summary_text,
)
from tests.reproduction.claim_cases import (
    FAILS,
    FLIPS,
    HOLDS,
    OURS,
    RAW,
    SKETCH,
    WHOLE,
    Flip,
    against,
    local,
)


@pytest.fixture(scope="module")
def nothing_run() -> Verdicts:
    """The verdicts without any experiment."""
    return judged({})


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_rule_says_what_its_facts_do(flip: Flip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in flip.patches.items():
        monkeypatch.setattr(rules, name, stand_in)
    verdict = run(flip)
    assert verdict.standing is flip.expected, verdict.measured
    assert str(verdict).startswith(flip.expected)
    assert verdict.measured.endswith(".")


def run(flip: Flip) -> ClaimVerdict:
    statement = next(each for each in statements() if each.name == flip.claim)
    changed = replace(statement, values={**statement.values, **flip.values})
    return judge(changed, Facts(flip.facts))


def test_every_rule_is_shown_to_come_out_both_ways() -> None:
    found: dict[str, set[Standing]] = {each.name: set() for each in statements() if not each.why}
    ruled = {each.rule or each.name for each in statements() if not each.why and not each.hits}
    assert ruled == set(RULES)
    for flip in FLIPS:
        found[flip.claim].add(flip.expected)
    one_sided = [name for name, seen in found.items() if len(seen) < 2 or HOLDS not in seen]
    assert not one_sided


def test_facts_say_what_is_missing() -> None:
    facts = Facts({"mnist": {"a": None, "b": "text", "c": 2}})
    assert facts.get("mnist", "a") is None
    assert facts.number("mnist", "c") == 2.0
    for name in ("a", "b", "none"):
        with pytest.raises(MissingFactError, match=f"mnist has no fact '{name}'"):
            facts.number("mnist", name)
    with pytest.raises(MissingFactError, match="cpsgd has no fact"):
        facts.numbers("cpsgd", "accuracy/")


def test_a_gap_within_its_error_is_no_gap() -> None:
    noisy = against("mnist", (0.8, 0.78))
    noisy["mnist"]["paired/50x, epsilon 0.1/DiffSketch - Laplace on sketches"] = 0.02
    noisy["mnist"]["paired-spread/50x, epsilon 0.1/DiffSketch - Laplace on sketches"] = 0.05
    assert run(Flip("mnist-accuracy", FAILS, noisy)).standing is FAILS
    noisy["mnist"]["paired-spread/50x, epsilon 0.1/DiffSketch - Laplace on sketches"] = 0.002
    assert run(Flip("mnist-accuracy", HOLDS, noisy)).standing is HOLDS


@pytest.mark.parametrize(
    ("experiment", "lines"),
    [
        ("cpsgd", {OURS, "cpSGD", WHOLE}),
        ("mnist", {OURS, SKETCH, RAW, WHOLE, "DiffSketch without padding", "sketch, no privacy"}),
        ("shakespeare", {OURS, SKETCH, RAW, WHOLE}),
        ("accuracy-compression", {WHOLE}),
        ("correction", {"sketch", "sketch, shared masks", "sketch, own masks"}),
    ],
)
def test_rules_read_lines_that_the_settings_have(experiment: str, lines: set[str]) -> None:
    panels: dict[str, set[str]] = {}
    for variant in load(experiment, reduced=False, complete=False).variants:
        for panel in variant.panels:
            panels.setdefault(panel, set()).add(variant.name)
    assert any(lines <= found for found in panels.values())


def test_every_claim_is_shown_once_and_in_order_of_the_file(nothing_run: Verdicts) -> None:
    tables = claim_tables(nothing_run, reduced=False)
    shown = [str(row[0]) for table in tables[2:] if isinstance(table, Table) for row in table.rows]
    assert sorted(shown) == sorted(f"“{each.quote}”" for each in statements())
    assert len(shown) == len(set(shown)) >= 60
    assert len({each.name for each in statements()}) == len(statements())
    assert {name for each in statements() for name in each.experiments} <= set(names())


def test_the_page_begins_with_a_few_of_them_and_their_counts() -> None:
    verdicts = judged(local(0.0, {}))
    few, *others = claim_tables(verdicts, reduced=False)
    assert isinstance(few, Table)
    all_of_them = {f"“{s.quote}”": str(v) for s, v in verdicts.items()}
    assert len(few.rows) >= 5
    assert all(all_of_them[str(quote)] == verdict for quote, verdict in few.rows)
    assert any(str(verdict).startswith("fails") for _, verdict in few.rows)
    counts = count_standings(verdicts)
    assert f"{counts['fails']} fail, and {counts['not measured']} are" in summary_text(verdicts)
    assert list(counts) == ["holds", "holds in part", "fails", "not measured"]
    assert sum(counts.values()) == len(statements())
    numbers = others[0]
    assert isinstance(numbers, Table)
    assert numbers.rows[-1] == ("All", *counts.values())


def test_what_was_not_run_is_not_measured_and_says_what_to_run(nothing_run: Verdicts) -> None:
    for statement, verdict in nothing_run.items():
        if statement.why:
            assert str(verdict) == f"not measured: {statement.why}"
        elif statement.experiments:
            assert verdict.standing is Standing.NOT_MEASURED
            assert any(str(verdict) == f"not measured (run `diffsketch reproduce {name}`)"
                       for name in statement.experiments)  # fmt: skip


def test_a_fact_that_an_experiment_did_not_give_is_named() -> None:
    facts = {"mnist": {"seeds": 5.0}}
    verdicts = {each.name: str(verdict) for each, verdict in judged(facts).items()}
    expected = "not measured (mnist has no number for it: accuracy/...)"
    assert verdicts["mnist-accuracy"] == expected


def test_a_reduced_run_says_so_in_every_table(nothing_run: Verdicts) -> None:
    for exhibit in claim_tables(nothing_run, reduced=True)[1:]:
        assert exhibit.caption.startswith("These are the verdicts of a reduced run")
    for exhibit in claim_tables(nothing_run, reduced=False):
        assert "reduced" not in exhibit.caption


def test_every_epsilon_of_a_calculation_has_its_words(nothing_run: Verdicts) -> None:
    for statement, verdict in nothing_run.items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name

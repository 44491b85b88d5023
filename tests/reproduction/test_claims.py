"""Every rule comes out as its facts do, either way; and every claim is shown with its verdict."""

from __future__ import annotations

from dataclasses import replace
from types import FunctionType

import pytest

from diffsketch.pages.exhibits import Table
from diffsketch.reproduction import rules
from diffsketch.reproduction.claims import (
    ClaimVerdict,
    Facts,
    MissingFactError,
    Standing,
    Verdicts,
    claim_tables,
    count_standings,
    judge,
    judged,
    statements,
    summary_text,
)
from diffsketch.reproduction.experiments import load, names
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
def verdicts() -> Verdicts:
    """The verdicts of one experiment, and of one that gave next to nothing."""
    return judged({**local(0.0, {}), "mnist": {"seeds": 5.0}})


def run(flip: Flip) -> ClaimVerdict:
    statement = next(each for each in statements() if each.name == flip.claim)
    changed = replace(statement, values={**statement.values, **flip.values})
    return judge(changed, Facts(flip.facts))


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_rule_says_what_its_facts_do(flip: Flip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in flip.patches.items():
        monkeypatch.setattr(rules, name, stand_in)
    verdict = run(flip)
    assert verdict.standing is flip.expected, verdict.measured
    assert str(verdict).startswith(flip.expected)
    assert verdict.measured.endswith(".")


def test_every_rule_is_used_and_shown_to_come_out_both_ways() -> None:
    found: dict[str, set[Standing]] = {each.name: set() for each in statements() if not each.why}
    ruled = {each.rule or each.name for each in statements() if not each.why and not each.hits}
    functions = {name for name, one in vars(rules).items()
                 if isinstance(one, FunctionType) and one.__module__ == rules.__name__}  # fmt: skip
    assert {name.replace("-", "_") for name in ruled} == {n for n in functions if n[0] != "_"}
    for flip in FLIPS:
        found[flip.claim].add(flip.expected)
    assert not [name for name, seen in found.items() if len(seen) < 2 or HOLDS not in seen]


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
    facts, place = against("mnist", (0.8, 0.78)), f"50x, epsilon 0.1/{OURS} - {SKETCH}"
    for spread, standing in ((0.05, FAILS), (0.002, HOLDS)):
        facts["mnist"] |= {f"paired/{place}": 0.02, f"paired-spread/{place}": spread}
        assert run(Flip("mnist-accuracy", standing, facts)).standing is standing


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


def test_every_claim_is_shown_once_after_a_few_of_them_and_the_counts(verdicts: Verdicts) -> None:
    few, numbers, *tables = claim_tables(verdicts, reduced=False)
    assert isinstance(few, Table)
    assert isinstance(numbers, Table)
    shown = [row for table in tables if isinstance(table, Table) for row in table.rows]
    said = {f"“{one.quote}”": str(verdict) for one, verdict in verdicts.items()}
    assert sorted((row[0], row[2]) for row in shown) == sorted(said.items())
    assert len({each.name for each in statements()}) == len(statements()) == len(said) >= 60
    assert {name for each in statements() for name in each.experiments} <= set(names())
    assert len(few.rows) >= 5
    assert all(said[str(quote)] == verdict for quote, verdict in few.rows)
    assert any(str(verdict).startswith("fails") for _, verdict in few.rows)
    counts = count_standings(verdicts)
    assert list(counts) == ["holds", "holds in part", "fails", "not measured"]
    assert sum(counts.values()) == len(statements())
    assert numbers.rows[-1] == ("All", *counts.values())
    assert f"{counts['fails']} fail, and {counts['not measured']} are" in summary_text(verdicts)
    for reduced, few_of_all in ((True, 1), (False, 0)):
        for table in claim_tables(verdicts, reduced=reduced)[few_of_all:]:
            assert table.caption.startswith("These are the verdicts of a reduced run") is reduced


def test_what_was_not_run_is_not_measured_and_says_what_to_run(verdicts: Verdicts) -> None:
    missing = "not measured (mnist has no number for it: accuracy/...)"
    for statement, verdict in verdicts.items():
        if statement.why:
            assert str(verdict) == f"not measured: {statement.why}"
        elif statement.name == "mnist-accuracy":
            assert str(verdict) == missing
        elif statement.experiments and "local-epsilon" not in statement.experiments:
            said = [f"not measured (run `diffsketch reproduce {n}`)" for n in statement.experiments]
            assert str(verdict) in (*said, missing)


def test_every_epsilon_of_a_calculation_has_its_words(verdicts: Verdicts) -> None:
    for statement, verdict in verdicts.items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name

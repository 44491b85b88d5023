"""Every rule comes out as its facts do, either way; and every claim is shown with its verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import FunctionType

import pytest

from paper import calculations, rules
from paper.claims import (
    ClaimVerdict,
    Standing,
    Verdicts,
    count_standings,
    figure_row,
    judge,
    judged,
    statements,
    summary_text,
)
from paper.experiments import load, names
from paper.facts import Facts, MissingFactError
from paper.tests.claim_cases import (
    FAILS,
    FLIPS,
    HOLDS,
    OURS,
    RAW,
    SKETCH,
    WHOLE,
    Flip,
    against,
    cpsgd,
    line,
    local,
    shaped,
)


@pytest.fixture(scope="module")
def verdicts() -> Verdicts:
    """The verdicts of one experiment, and of one that gave next to nothing."""
    return judged({**local({}), "mnist": {"seeds": 5.0}})


def run(flip: Flip) -> ClaimVerdict:
    statement = next(each for each in statements() if each.name == flip.claim)
    changed = replace(statement, values={**statement.values, **flip.values})
    return judge(changed, Facts(flip.facts))


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_rule_says_what_its_facts_do(flip: Flip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in flip.patches.items():
        for module in (rules, calculations):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, stand_in)
    verdict = run(flip)
    assert verdict.standing is flip.expected, verdict.measured
    assert str(verdict).startswith(flip.expected)
    assert verdict.measured.endswith(".")


def test_every_rule_is_used_and_shown_to_come_out_both_ways() -> None:
    found: dict[str, set[Standing]] = {each.name: set() for each in statements() if not each.why}
    ruled = {each.rule or each.name for each in statements() if not each.why and not each.hits}
    functions = {name for each in (rules, calculations) for name, one in vars(each).items()
                 if isinstance(one, FunctionType) and one.__module__ == each.__name__}  # fmt: skip
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


def test_the_reading_that_does_best_counts_and_is_compared_with_its_like() -> None:
    facts = against("mnist", (0.5, 0.7))
    assert run(Flip("mnist-accuracy", FAILS, facts)).standing is FAILS
    panel, masked = "50x, epsilon 0.1", "with masks"
    facts["mnist"] |= line(panel, OURS, 0.8, reading=masked)
    verdict = run(Flip("mnist-accuracy", HOLDS, facts))
    assert verdict.standing is HOLDS
    assert "80% (with masks) against 70%" in verdict.measured
    # Not against what has no masks, where the other was run with them; and nothing that is proven.
    facts["mnist"] |= line(panel, SKETCH, 0.85, reading=masked)
    facts["mnist"] |= line(panel, OURS, 0.9, group="proven")
    assert run(Flip("mnist-accuracy", FAILS, facts)).standing is FAILS


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


def test_distinct_claims_are_counted_and_the_rest_apart(verdicts: Verdicts) -> None:
    assert len({each.name for each in statements()}) == len(statements()) >= 60
    assert {name for each in statements() for name in each.experiments} <= {
        *names(),
        "choices",
        "scope",
    }
    asides = Counter(each.aside for each in statements() if each.aside)
    assert asides["slip"] == asides["disclaimer"] == 3
    repeated = {name for name in asides if name not in ("slip", "disclaimer", "setup")}
    assert repeated <= {each.name for each in statements() if not each.aside}
    counts = count_standings(verdicts)
    assert sum(counts.values()) == len(statements()) - asides.total()
    said = summary_text(verdicts)
    assert said.startswith(f"Of {sum(counts.values())} distinct claims of the paper: ")
    assert f"{counts['not measured']} are not measured (counted apart: slips of the text 3" in said


def test_a_reduced_run_judges_nothing() -> None:
    found = judged(local({"none": 0.9}), reduced=True)
    assert list(found) == list(statements())
    assert {str(verdict) for verdict in found.values()} == {
        "not judged (a reduced run judges nothing)"
    }
    assert list(count_standings(found)) == ["not judged"]


def test_a_figure_in_one_row() -> None:
    facts = against("mnist", (0.5, 0.7), (0.9, 0.8))
    panel = "50x, epsilon 0.1"
    facts["mnist"] |= {
        **line(panel, OURS, 0.8, reading="least", compression=50.0),
        **line(panel, OURS, 0.6, group="proven", compression=50.0),
        **line(panel, RAW, 0.7, group="proven", compression=1.0),  # which sends far more
    }
    row = figure_row("mnist", facts)
    assert row["letter"] == "not measured"  # with the error correction, which choices has
    assert row["best"].splitlines()[0] == f"{panel}: 80% (least) against 70%;"
    assert row["proven"].splitlines()[0] == f"{panel}: 60% ({OURS}  proven);"
    assert figure_row("gradients", facts)["letter"] == "not measured"
    assert figure_row("cpsgd", cpsgd(0.9, 0.8))["letter"].splitlines() == [
        "4 bits (10x), epsilon 5: 90% against 80%;", "4 bits (10x), epsilon 10: 90% against 80%",
    ]  # fmt: skip
    assert "50% of the coordinates" in figure_row("gradients", shaped(zeros=0.5))["letter"]
    assert all(text for name in names() for text in figure_row(name, {}).values())


def test_what_was_not_run_is_not_measured_and_says_what_to_run(verdicts: Verdicts) -> None:
    missing = "not measured (mnist has no number for it: accuracy/...)"
    for statement, verdict in verdicts.items():
        if statement.why:
            assert str(verdict) == f"not measured: {statement.why}"
        elif statement.name == "mnist-accuracy":
            assert str(verdict) == missing
        elif statement.experiments and "local-epsilon" not in statement.experiments:
            said = [f"not measured (run `python -m paper {n}`)" for n in statement.experiments]
            assert str(verdict) in (*said, missing)


def test_every_epsilon_of_a_calculation_has_its_words(verdicts: Verdicts) -> None:
    for statement, verdict in verdicts.items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name

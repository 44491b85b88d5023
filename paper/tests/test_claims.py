"""Every rule comes out as its facts do, either way; and every claim is shown with its verdict."""

from __future__ import annotations

import string
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paper import calculations
from paper.calculations import FORMULAS
from paper.claims import (
    ClaimVerdict,
    Standing,
    Verdicts,
    changed_beyond,
    configurations,
    count_standings,
    figure_row,
    judge,
    judged,
    statements,
    summary_text,
)
from paper.experiments import load, names
from paper.rules import RULES, Facts, Gap, MissingFactError
from paper.tests.claim_cases import (
    CLOSE,
    FAILS,
    FLIPS,
    HOLDS,
    OURS,
    RAW,
    SKETCH,
    WHOLE,
    Flip,
    against,
    bytes_to,
    cpsgd,
    figure,
    line,
    local,
    shaped,
)

CLAIMS = Path(calculations.__file__).with_name("claims.toml")


@pytest.fixture(scope="module")
def verdicts() -> Verdicts:
    """The verdicts of one experiment, and of one that gave next to nothing."""
    return judged({**local({"none": 0.1}), "mnist": {"seeds": 5.0}})


def run(flip: Flip) -> ClaimVerdict:
    statement = next(each for each in statements() if each.name == flip.claim)
    rows, values = flip.rows or statement.rows, {**statement.values, **flip.values}
    return judge(replace(statement, values=values, rows=rows), Facts(flip.facts))


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_rule_says_what_its_facts_do(flip: Flip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in flip.patches.items():
        monkeypatch.setattr(calculations, name, stand_in)
        if name in FORMULAS:
            monkeypatch.setitem(FORMULAS, name, stand_in)
    verdict = run(flip)
    assert verdict.standing is flip.expected, verdict.measured
    assert str(verdict).startswith(flip.expected)
    assert verdict.measured.endswith(".")


def test_every_rule_is_used_and_every_claim_shown_to_come_out_both_ways() -> None:
    measured = [each for each in statements() if not each.why]
    assert {each.rule for each in measured} == set(RULES)
    texts = [str((each.numbers, each.rows)) for each in measured]
    assert not [name for name in FORMULAS if not any(name in text for text in texts)]
    seen: dict[str, set[Standing]] = {each.name: set() for each in measured}
    for flip in FLIPS:
        seen[flip.claim].add(flip.expected)
    assert not [name for name, each in seen.items() if len(each) < 2 or HOLDS not in each]


def test_facts_say_what_is_missing() -> None:
    facts = Facts({"mnist": {"a": None, "b": "text", "c": 2}})
    assert facts.number("mnist", "c") == 2.0
    for name in ("a", "b", "none"):
        with pytest.raises(MissingFactError, match=f"mnist has no fact '{name}'"):
            facts.number("mnist", name)
    with pytest.raises(MissingFactError, match="cpsgd has no fact"):
        facts.numbers("cpsgd", "accuracy/")


@pytest.mark.parametrize(
    ("mean", "spread", "tests", "clear"),
    [
        # The claim is a lead of a point. By t with 4 degrees of freedom: 2.13 at 5%, 4.60 at 0.5%.
        (0.02, 0.005, 1, True),  # 4.5 standard errors above the threshold
        (0.02, 0.005, 10, None),  # which is too little for one of ten
        (0.02, 0.02, 1, None),  # clearly above 0, and not above a point
        (0.0, 0.005, 1, False),
        (0.01, 0.0, 1, True),
    ],
)
def test_a_lead_is_tested_against_the_threshold_and_all_tests_count(
    mean: float, spread: float, tests: int, clear: bool | None
) -> None:
    assert Gap(mean, spread / 5**0.5, 5).clears(0.01, tests=tests) is clear
    assert Gap(mean, 0.0, 1).clears(0.01) is None  # one seed tells nothing


def test_what_is_too_close_to_tell_is_said_and_counts_for_nothing() -> None:
    facts, place = against("choices", (0.8, 0.78)), f"50x, epsilon 0.1/{OURS} - {SKETCH}"
    for spread, standing in ((0.06, CLOSE), (0.002, HOLDS)):
        facts["choices"] |= {f"paired/{place}": 0.02, f"paired-spread/{place}": spread}
        verdict = run(Flip("mnist-accuracy", standing, facts))
        assert verdict.standing is standing
    facts["choices"][f"paired-spread/{place}"] = 0.06
    close = run(Flip("mnist-accuracy", CLOSE, facts))
    assert close.why == "in no panel (1 too close to tell; five seeds only)"
    assert close.rule == (
        "In every panel DiffSketch must lead Laplace noise on sketches, by however little: the "
        "caption states no margin. One-sided t-test, 5%/1, 5 seeds."
    )
    facts["choices"][f"paired-seeds/{place}"] = 10
    assert "10 seeds" in run(Flip("mnist-accuracy", CLOSE, facts)).rule


def test_only_panels_and_readings_of_the_paper_count() -> None:
    """Further ones would turn the verdict, and are shown beside it."""
    facts = {"choices": figure({"50x, epsilon 1": {OURS: 0.5, SKETCH: 0.7}})}
    facts["choices"] |= {"panel-choice/50x, epsilon 1": "shared masks"}
    facts["choices"] |= {"panel-choice/50x, epsilon 0.1": "short padding",
                         "panel-ratio/50x, epsilon 0.1": 50.0,
                         "panel-epsilon/50x, epsilon 0.1": 0.1}  # fmt: skip
    facts["choices"] |= line("50x, epsilon 0.1", OURS, 0.9, spread=0.002)
    facts["choices"] |= line("50x, epsilon 0.1", SKETCH, 0.7, spread=0.002)
    verdicts = judged(facts)
    (claim,) = [one for one in verdicts if one.name == "mnist-accuracy"]
    assert verdicts[claim].standing is FAILS
    changed = {one.name: (own, other) for one, own, other in changed_beyond(facts, verdicts)}
    assert changed["mnist-accuracy"][0] is verdicts[claim]
    assert changed["mnist-accuracy"][1].standing is Standing.IN_PART
    facts["choices"]["panel-beyond/50x, epsilon 1"] = "none of the paper's"
    again = judged(facts)[claim]
    assert str(again).startswith("not measured (not measured yet: choices")


def test_a_configuration_is_judged_alone() -> None:
    """Of two readings one leads at one epsilon, the other at the other: no row has both."""
    facts: dict[str, dict[str, Any]] = {"choices": {"seeds": 5}}
    leads = {"fixed hashes, shared masks": (0.8, 0.5), "own masks": (0.5, 0.8)}
    for choice, (few, many) in leads.items():
        for epsilon, ours in ((0.1, few), (1.0, many)):
            panel = f"50x, epsilon {epsilon:g}, {choice}"
            about = {"ratio": 50.0, "epsilon": epsilon, "choice": choice}
            facts["choices"] |= {f"panel-{name}/{panel}": value for name, value in about.items()}
            facts["choices"] |= line(panel, OURS, ours, spread=0.002)
            facts["choices"] |= line(panel, SKETCH, 0.6, spread=0.002)
    verdicts = {one.name: each for one, each in judged(facts).items()}
    assert verdicts["mnist-accuracy"].standing is HOLDS  # with the best reading of each panel
    columns, rows = configurations(facts)
    at = [one.name for one in columns].index("mnist-accuracy")
    standings = [found[at].standing for _, found in rows]
    assert standings[:2] == [Standing.IN_PART, Standing.IN_PART]
    assert set(standings[2:]) == {Standing.NOT_MEASURED}


def test_a_claim_about_several_figures_says_which_was_not_measured() -> None:
    verdict = run(Flip("five-to-fifty", HOLDS, cpsgd(0.9, 0.5)))
    assert verdict.standing is Standing.IN_PART
    assert verdict.why.endswith("(not measured yet: choices, shakespeare)")


def test_the_reading_that_does_best_counts_and_is_compared_with_its_like() -> None:
    facts = against("shakespeare", (0.5, 0.7))
    assert run(Flip("shakespeare-accuracy", FAILS, facts)).standing is FAILS
    panel, step = "50x, epsilon 0.1", "server step 1"
    facts["shakespeare"] |= line(panel, OURS, 0.8, reading=f"least, {step}", spread=0.002)
    assert run(Flip("shakespeare-accuracy", HOLDS, facts)).standing is HOLDS
    # Not against another step, where the other was run with it; and nothing that is proven.
    facts["shakespeare"] |= line(panel, SKETCH, 0.85, reading=step, spread=0.002)
    facts["shakespeare"] |= line(panel, OURS, 0.9, group="proven", spread=0.002)
    assert run(Flip("shakespeare-accuracy", FAILS, facts)).standing is FAILS


def test_raw_noise_has_its_own_best_server_step() -> None:
    facts = bytes_to("shakespeare", 1e4, 2e5)
    assert "20x" in run(Flip("shakespeare-communication", HOLDS, facts)).measured
    facts["shakespeare"] |= line("50x, epsilon 1", RAW, 0.88, reading="server step 1")
    facts["shakespeare"][f"bytes-to/50x, epsilon 1/{RAW} server step 1 paper"] = 9e3
    verdict = run(Flip("shakespeare-communication", FAILS, facts))
    assert verdict.standing is FAILS
    assert "0.9x (raw gradients: server step 1)" in verdict.measured


@pytest.mark.parametrize(
    ("experiment", "lines"),
    [
        ("cpsgd", {OURS, "cpSGD", WHOLE}),
        ("mnist", {OURS, SKETCH, RAW, WHOLE, "DiffSketch without padding", "sketch, no privacy"}),
        ("shakespeare", {OURS, SKETCH, RAW, WHOLE, "DiffSketch with the least padding"}),
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
    assert {name for each in statements() for name in each.experiments} <= set(names())
    asides = Counter(each.aside for each in statements() if each.aside)
    assert asides["slip"] == asides["disclaimer"] == 3
    repeated = {name for name in asides if name not in ("slip", "disclaimer", "setup")}
    assert repeated <= {each.name for each in statements() if not each.aside}
    assert all(bool(each.requires) is not bool(each.why) for each in statements())
    counts = count_standings(verdicts)
    assert sum(counts.values()) == len(statements()) - asides.total()
    kinds = Counter(each.kind for each in statements() if not each.aside)
    assert set(kinds) == {"headline", "", "textbook"}
    said = summary_text(verdicts)
    assert f"Of the {kinds['headline']} claims of title, abstract and captions: " in said
    assert f"Of {kinds['textbook']} textbook facts and definitions: " in said
    assert "Counted apart: slips of the text 3" in said


def test_a_reduced_run_judges_nothing() -> None:
    found = judged(local({"none": 0.9}), reduced=True)
    assert list(found) == list(statements())
    assert {str(verdict) for verdict in found.values()} == {
        "not judged (a reduced run judges nothing)"
    }
    assert list(count_standings(found)) == ["not judged"]


def test_a_figure_in_one_row() -> None:
    assert figure_row("mnist", against("mnist", (0.5, 0.7)))["letter"] == "not measured"
    assert "50% of the coordinates" in figure_row("gradients", shaped(zeros=0.5))["letter"]
    assert all(text for name in names() for text in figure_row(name, {}).values())


def test_a_figure_reads_what_its_texts_use() -> None:
    for name, row in tomllib.loads(CLAIMS.read_text("utf-8"))["figure"].items():
        fields = string.Formatter().parse(row["letter"] + row["proven"])
        assert {field for _, field, _, _ in fields if field} == set(row.get("read", {})), name


def test_what_was_not_run_is_not_measured_and_says_what_to_run(verdicts: Verdicts) -> None:
    for statement, verdict in verdicts.items():
        if statement.why:
            assert str(verdict) == f"not for an experiment: {statement.why}"
        elif statement.experiments and "local-epsilon" not in statement.experiments:
            said = [f"not measured (run `python -m paper {n}`)" for n in statement.experiments]
            assert str(verdict) in said or str(verdict).startswith(
                "not measured (not measured yet: mnist has no number for it, "
            )


def test_every_rule_is_shown_in_a_line(verdicts: Verdicts) -> None:
    """With what it asks for; thresholds are filled in."""
    lines = {one.name: each.rule for one, each in verdicts.items() if each.rule}
    assert lines["recovered"].endswith("up to 100%, where zero is nearer. Calculated.")
    assert lines["histogram"].endswith("as the paper has it. Means of 5 seeds; no test.")
    assert not [line for line in lines.values() if "{" in line or "\n" in line]


def test_every_epsilon_of_a_calculation_has_its_words(verdicts: Verdicts) -> None:
    for statement, verdict in verdicts.items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name

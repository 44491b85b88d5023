"""Every rule can come out either way, and does as its facts do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffsketch.reproduction.claims import statements
from diffsketch.reproduction.loading import outline
from diffsketch.reproduction.verdicts.registry import RULES
from diffsketch.reproduction.verdicts.verdict import Facts, MissingFactError, Standing, Verdict
from tests.reproduction.calculated_flips import CALCULATED
from tests.reproduction.claim_cases import FAILS, HOLDS, OURS, RAW, SKETCH, WHOLE, Flip, against
from tests.reproduction.measured_flips import MEASURED

FLIPS = (*CALCULATED, *MEASURED)


@pytest.mark.parametrize("flip", FLIPS, ids=str)
def test_a_rule_says_what_its_facts_do(flip: Flip, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, stand_in in flip.patches.items():
        monkeypatch.setattr(name, stand_in)
    verdict = run(flip)
    assert verdict.standing is flip.expected, verdict.measured
    assert str(verdict).startswith(flip.expected)
    assert verdict.measured.endswith(".")


def run(flip: Flip) -> Verdict:
    statement = next(each for each in statements() if each.name == flip.rule)
    changed = replace(statement, values={**statement.values, **flip.values})
    return RULES[flip.rule](changed, Facts(flip.facts))


def test_every_rule_is_shown_to_come_out_both_ways() -> None:
    found: dict[str, set[Standing]] = {name: set() for name in RULES}
    for flip in FLIPS:
        found[flip.rule].add(flip.expected)
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
        facts.below("cpsgd", "accuracy/")


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
    for variant in outline(experiment, reduced=False).variants:
        for panel in variant.panels:
            panels.setdefault(panel, set()).add(variant.name)
    assert any(lines <= found for found in panels.values())

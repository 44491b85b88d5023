"""Every claim is judged, and every rule can come out either way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from diffsketch.experiments.claims import in_short, in_words, judge, judged, statements, summary
from diffsketch.experiments.loading import names, outline
from diffsketch.experiments.verdicts.registry import RULES
from diffsketch.experiments.verdicts.verdict import Facts, MissingFactError, Standing, Verdict
from diffsketch.report.exhibits import Table
from diffsketch.sketch import CountSketch
from tests.experiments.claim_cases import (
    FAILS,
    HOLDS,
    OURS,
    PART,
    RAW,
    SKETCH,
    WHOLE,
    Flip,
    against,
    audited,
    by_ratio,
    bytes_to,
    converged,
    counted,
    cpsgd,
    figure,
    inverted,
    local,
    masks,
    noised,
    ratios,
    rising_theorem,
    shaped,
    timed,
)

FORMULAS = "diffsketch.experiments.verdicts.formulas"
SKETCHED = "diffsketch.experiments.verdicts.sketched"


class Squares(CountSketch):
    """No sketch: not linear."""

    def encode(self, vector: Any, seed: Any, **_: Any) -> Any:
        return super().encode(vector, seed).square() + 1e3


class Shrinking(CountSketch):
    """A sketch whose estimates are half of what they should be."""

    def query(self, table: Any, seed: Any, **_: Any) -> Any:
        return super().query(table, seed) / 2


class Exact(CountSketch):
    """A sketch whose tables are small, and whose estimates are right: what the paper hopes for."""

    def encode(self, vector: Any, seed: Any, **_: Any) -> Any:
        table: Any = super().encode(vector, seed) * 0
        table.whole = vector
        return table

    def query(self, table: Any, seed: Any, **_: Any) -> Any:  # noqa: ARG002
        return table.whole


class Rough(Exact):
    """Estimates that are 70% off."""

    def query(self, table: Any, seed: Any, **_: Any) -> Any:  # noqa: ARG002
        return table.whole * 0.3


PANELS = ("20x, epsilon 1", "20x, epsilon 5")
FLIPS = [
    # Sizes and text
    Flip("sizes-mnist", HOLDS),
    Flip("sizes-mnist", PART, values={"tables": [[7, 22, 50], [7, 15, 20]]}),
    Flip("sizes-mnist", FAILS, values={"tables": [[7, 22, 75], [7, 15, 50]]}),
    Flip("sizes-shakespeare", FAILS),
    Flip("sizes-shakespeare", HOLDS, values={"tables": [[10, 245, 16], [10, 190, 20]]}),
    Flip("bits", PART),
    Flip("bits", HOLDS, values={"rows": [[4, 8], [5, 6]]}),
    Flip("bits", FAILS, values={"rows": [[4, 10]]}),
    Flip("histogram-text", FAILS),
    Flip("histogram-text", HOLDS, values={"text": 0.1}),
    Flip("full-bins", HOLDS),
    Flip("full-bins", FAILS, values={"sizes": [[30, 22]]}),
    Flip("lemma-2", HOLDS),
    Flip("lemma-2", FAILS, patches={"diffsketch.experiments.verdicts.sizes._inverses": min}),
    # Formulas
    Flip("longer-vectors", FAILS),
    Flip("longer-vectors", HOLDS, values={"smaller_when": "larger"}),
    Flip("longer-vectors", HOLDS, patches={f"{FORMULAS}.theorem1": rising_theorem}),
    Flip("vanishing", PART),
    Flip("vanishing", HOLDS, values={"change": 0.0}),
    Flip("vanishing", FAILS, patches={f"{FORMULAS}.theorem1": rising_theorem}),
    Flip("smaller-tables", HOLDS),
    Flip("smaller-tables", FAILS, patches={f"{FORMULAS}.theorem1": rising_theorem}),
    Flip("longer-padding", HOLDS),
    Flip("longer-padding", PART, patches={f"{FORMULAS}.theorem1": rising_theorem}),
    Flip("less-noise", PART),
    Flip("less-noise", HOLDS, values={"panels": [[7850, 7, 15, 0.1]]}),
    Flip("less-noise", FAILS, values={"panels": [[39720, 10, 190, 1.0]]}),
    Flip("every-round", FAILS),
    Flip("every-round", HOLDS, values={"per_round": 0.01}),
    Flip("weaker-unit", HOLDS),
    Flip("weaker-unit", FAILS, values={"dim": 1}),
    Flip("more-devices", PART),
    Flip("more-devices", HOLDS, values={"in_a_round": 1000}),
    Flip("more-devices", FAILS, values={"cohorts": [11]}),
    Flip("cpsgd-parameters", PART),
    Flip("cpsgd-parameters", HOLDS, values={"cohort": 6000, "rows": [[5.0, 4, 12, 4]]}),
    Flip("cpsgd-parameters", FAILS, values={"rows": [[5.0, 4, 23, 9]]}),
    Flip("tighter-bound", HOLDS),
    Flip("tighter-bound", FAILS, values={"cols": [88, 22], "rows": [11, 7]}),
    # Count Sketch
    Flip("linear", HOLDS),
    Flip("linear", FAILS, patches={f"{SKETCHED}.CountSketch": Squares}),
    Flip("lemma-1", HOLDS),
    Flip("lemma-1", FAILS, patches={f"{SKETCHED}.lemma1_error": lambda *_, **__: 0.001}),
    Flip("unbiased", HOLDS, values={"seeds": 300}),
    Flip("unbiased", FAILS, values={"seeds": 300}, patches={f"{SKETCHED}.CountSketch": Shrinking}),
    Flip("recovered", FAILS),
    Flip("recovered", PART, patches={f"{SKETCHED}.CountSketch": Rough}),
    Flip("recovered", HOLDS, patches={f"{SKETCHED}.CountSketch": Exact}),
    Flip("bounded-bins", FAILS),
    Flip("bounded-bins", HOLDS, patches={f"{SKETCHED}.CountSketch": Exact}),
    # Baselines
    Flip("five-to-fifty", HOLDS, facts=cpsgd(0.9, 0.5) | against("mnist", (0.8, 0.7), (0.9, 0.8))
         | against("shakespeare", (0.4, 0.3))),
    Flip("five-to-fifty", PART, facts=cpsgd(0.9, 0.5) | against("mnist", (0.8, 0.7), (0.9, 0.9))
         | against("shakespeare", (0.4, 0.4))),
    Flip("five-to-fifty", FAILS, facts=cpsgd(0.9, 0.9) | against("mnist", (0.8, 0.79))
         | against("shakespeare", (0.4, 0.4))),
    Flip("over-cpsgd", HOLDS, facts=cpsgd(0.9, 0.45)),
    Flip("over-cpsgd", PART, facts=cpsgd(0.9, 0.8)),
    Flip("over-cpsgd", FAILS, facts=cpsgd(0.9, 0.89)),
    Flip("cpsgd-panels", HOLDS, facts=cpsgd(0.9, 0.8)),
    Flip("cpsgd-panels", FAILS, facts=cpsgd(0.9, 0.899)),
    Flip("cpsgd-smaller", Standing.NOT_MEASURED, facts=cpsgd(0.9, 0.8)),
    Flip("cpsgd-smaller", FAILS, facts=cpsgd(0.9, 0.8), values={"below": 6.0}),
    Flip("cpsgd-smaller", HOLDS, facts={"cpsgd": figure({
        "4 bits (10x), epsilon 10": {"cpSGD": 0.8}, "4 bits (10x), epsilon 5": {"cpSGD": 0.7}})}),
    Flip("cpsgd-smaller", HOLDS, facts={"cpsgd": figure({
        "4 bits (10x), epsilon 10": {"cpSGD": 0.8}, "4 bits (10x), epsilon 5": {"cpSGD": None}})}),
    Flip("combination", HOLDS, facts=cpsgd(0.9, 0.8)),
    Flip("combination", FAILS, facts=cpsgd(0.9, 0.89)),
    Flip("mnist-communication", HOLDS, facts=bytes_to("mnist", 1e4, 5e5)),
    Flip("mnist-communication", HOLDS, facts=bytes_to("mnist", 1e4, None)),
    Flip("mnist-communication", FAILS, facts=bytes_to("mnist", 1e4, 5e4)),
    Flip("mnist-communication", FAILS, facts=bytes_to("mnist", None, 5e5)),
    Flip("shakespeare-communication", HOLDS, facts=bytes_to("shakespeare", 1e4, 5e5)),
    Flip("shakespeare-communication", HOLDS, facts=bytes_to("shakespeare", 1e4, 8e4)),
    Flip("shakespeare-communication", FAILS, facts=bytes_to("shakespeare", 1e4, 1e4)),
    Flip("shakespeare-communication", FAILS, facts=bytes_to("shakespeare", None, None)),
    Flip("mnist-accuracy", HOLDS, facts=against("mnist", (0.8, 0.7), (0.9, 0.88))),
    Flip("mnist-accuracy", PART, facts=against("mnist", (0.8, 0.7), (0.88, 0.9))),
    Flip("mnist-accuracy", FAILS, facts=against("mnist", (0.7, 0.8), (0.88, 0.879))),
    Flip("mnist-smaller", HOLDS, facts=against("mnist", (0.8, 0.7), (0.9, 0.88))),
    Flip("mnist-smaller", FAILS, facts=against("mnist", (0.8, 0.78), (0.9, 0.8))),
    Flip("shakespeare-accuracy", HOLDS, facts=against("shakespeare", (0.4, None), (0.4, 0.3))),
    Flip("shakespeare-accuracy", FAILS, facts=against("shakespeare", (0.4, 0.4), (None, 0.3))),
    Flip("shakespeare-diverging", HOLDS, facts={"shakespeare": figure(
        {PANELS[0]: {SKETCH: None, RAW: None}},
        diverged={(PANELS[0], SKETCH): 5, (PANELS[0], RAW): 3})}),
    Flip("shakespeare-diverging", PART, facts={"shakespeare": figure(
        {PANELS[0]: {SKETCH: None, RAW: 0.3}},
        diverged={(PANELS[0], SKETCH): 5, (PANELS[0], RAW): 0})}),
    Flip("shakespeare-diverging", Standing.NOT_MEASURED, facts={"shakespeare": figure(
        {PANELS[0]: {SKETCH: 0.3, RAW: 0.3}}, diverged={(PANELS[0], SKETCH): 0})}),
    Flip("shakespeare-diverging", FAILS, values={"below": 2.0}, facts={"shakespeare": figure(
        {PANELS[0]: {SKETCH: 0.3, RAW: 0.3}, PANELS[1]: {SKETCH: None, RAW: None}},
        diverged={(PANELS[0], SKETCH): 0, (PANELS[0], RAW): 1, (PANELS[1], SKETCH): 5})}),
    Flip("correction-helps", HOLDS, facts=masks(0.8, 0.9)),
    Flip("correction-helps", PART, facts=masks(0.89, 0.87)),
    Flip("correction-helps", FAILS, facts=masks(0.89, 0.87, fixed=0.88)),
    Flip("correction-private", FAILS, facts=masks(0.89, 0.82)),
    Flip("correction-private", HOLDS, facts=masks(0.89, 0.12)),
    # Trade-offs
    Flip("marginal", HOLDS, facts={
        "mnist": figure({"50x, epsilon 1": {OURS: 0.88, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: 0.41, WHOLE: 0.42}})}),
    Flip("marginal", PART, facts={
        "mnist": figure({"50x, epsilon 1": {OURS: 0.88, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: 0.31, WHOLE: 0.42}})}),
    Flip("marginal", FAILS, facts={
        "mnist": figure({"50x, epsilon 1": {OURS: 0.7, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: None, WHOLE: 0.42}})}),
    Flip("federated", HOLDS, facts={"shakespeare": figure({PANELS[0]: {OURS: 0.4, WHOLE: 0.42}})}),
    Flip("federated", PART, facts={"shakespeare": figure(
        {PANELS[0]: {OURS: 0.2, WHOLE: 0.42}, PANELS[1]: {OURS: 0.4, WHOLE: 0.42}})}),
    Flip("federated", FAILS, facts={"shakespeare": figure({PANELS[0]: {OURS: None, WHOLE: 0.42}})}),
    Flip("light-weight", HOLDS, facts=timed(1.5, 1.0)),
    Flip("light-weight", PART, facts=timed(5.0, 1.0)),
    Flip("light-weight", FAILS, facts=timed(50.0, 1.0)),
    Flip("minor", HOLDS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.885, 47, 1e6))),
    Flip("minor", PART, facts=ratios(
        (WHOLE, 0.89, 1, 9e6), ("25x", 0.89, 25, 1e6), ("50x", 0.8, 47, 1e6))),
    Flip("minor", FAILS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.87, 47, 1e6))),
    Flip("faster", HOLDS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.89, 47, 1e6))),
    Flip("faster", PART, facts=ratios(
        (WHOLE, 0.89, 1, 9e6), ("50x", 0.89, 47, 1e6), ("75x", 0.89, 70, None))),
    Flip("faster", FAILS, facts=ratios((WHOLE, 0.89, 1, 9e5), ("50x", 0.89, 47, 1e6))),
    Flip("lower", HOLDS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("490x", 0.87, 400, 1e6))),
    Flip("lower", HOLDS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("490x", None, 400, None))),
    Flip("lower", FAILS, facts=ratios((WHOLE, 0.89, 1, 9e6), ("490x", 0.892, 400, 1e6))),
    # Noise
    Flip("little-noise", HOLDS, facts=noised(0.01, 0)),
    Flip("little-noise", FAILS, facts=noised(0.01, 400)),
    Flip("little-noise", FAILS, facts=noised(1.0, 0)),
    Flip("free", HOLDS, facts=local(0.9, {})),
    Flip("free", PART, facts=local(0.3, {})),
    Flip("free", FAILS, facts=local(0.0, {})),
    Flip("histogram", HOLDS, facts=local(0.0, {"none": 0.9, "20n": 1.0})),
    Flip("histogram", PART, facts=local(0.0, {"none": 0.0, "20n": 0.1, "200n": 0.99})),
    Flip("histogram", FAILS, facts=local(0.0, {"none": 0.0, "20n": 0.1})),
    Flip("most-rounds", HOLDS, facts=by_ratio(noised=(0.4, 0.1))),
    Flip("most-rounds", PART, facts=by_ratio(noised=(0.9, 0.1))),
    Flip("most-rounds", FAILS, facts=by_ratio(noised=(1.0, 0.8))),
    Flip("compression-privacy", HOLDS, facts=by_ratio(epsilon=(5.0, 2.0))),
    Flip("compression-privacy", FAILS, facts=by_ratio(epsilon=(2.0, 5.0))),
    Flip("averages", HOLDS, facts=by_ratio(finite=(1.0, 1.0))),
    Flip("averages", PART, facts=by_ratio(finite=(0.9, 1.0))),
    Flip("averages", FAILS, facts=by_ratio(finite=(0.0, 0.5))),
    # Assumptions
    Flip("gaussian-gradients", HOLDS, facts=shaped()),
    Flip("gaussian-gradients", PART, facts=shaped(zeros=0.5)),
    Flip("gaussian-gradients", FAILS, facts=shaped(zeros=0.5, ks=0.4)),
    Flip("gaussian-gradients", FAILS, facts=shaped(zeros=0.5, ks=0.4, kurtosis=9.0)),
    Flip("gaussian-updates", HOLDS, facts=shaped("updates")),
    Flip("gaussian-updates", FAILS, facts=shaped("updates", ks=0.2, kurtosis=9.0)),
    Flip("bounded", HOLDS, facts=shaped(above_alpha=0.0)),
    Flip("bounded", PART, facts=shaped()),
    Flip("bounded", FAILS, facts=shaped(above_alpha=0.2)),
    Flip("similar", HOLDS, facts=shaped() | shaped("updates")),
    Flip("similar", PART, facts=shaped(kurtosis__last=9.0) | shaped("updates")),
    Flip("similar", FAILS, facts=shaped(kurtosis__last=9.0, ratio__last=1.0)
         | shaped("updates", kurtosis__last=9.0, ratio__last=1.0)),
    # Audits
    Flip("proof-issues", HOLDS, facts=audited(bare_known=(0.2, 8.0), bare_unknown=(0.2, 0.1))),
    Flip("proof-issues", FAILS, facts=audited(bare_known=(0.2, 0.1), bare_unknown=(0.2, 0.1))),
    Flip("inherent", FAILS, facts=audited(bare_known=(0.2, 8.0), bare_unknown=(0.2, 0.1))),
    Flip("inherent", PART, facts=audited(bare_known=(0.2, 0.1), bare_unknown=(0.2, 0.4))),
    Flip("inherent", HOLDS, facts=audited(bare_known=(0.2, 0.1), bare_unknown=(0.2, 0.1))),
    Flip("theorem-1", FAILS, facts=audited(bare_known=(0.2, 0.1), bare_unknown=(0.2, 0.4))),
    Flip("theorem-1", FAILS, facts=audited(0.9, padded=(1.0, 0.1), bare_unknown=(0.2, 0.1))),
    Flip("theorem-1", PART, facts=audited(bare_known=(0.2, 8.0), bare_unknown=(0.2, 0.1))),
    Flip("theorem-1", HOLDS, facts=audited(padded=(0.2, 0.1), bare_unknown=(0.2, 0.1))),
    Flip("local-model", FAILS, facts=audited(padded__client=(None, 9.0))),
    Flip("local-model", PART, facts=audited(padded__client=(None, 9.0),
                                            Laplace__client=(None, 0.5))),
    Flip("local-model", HOLDS, facts=audited(padded__client=(None, 0.5))),
    Flip("same-privacy", HOLDS, facts=audited(Laplace__alpha=(1.0, 0.9))),
    Flip("same-privacy", PART, facts=audited(Laplace__alpha=(1.0, 0.9),
                                             Laplace__largest=(1.0, 4.0))),
    Flip("same-privacy", FAILS, facts=audited(Laplace__largest=(1.0, 4.0))),
    Flip("inputs-hidden", HOLDS, facts=inverted(0.05, 0.1)),
    Flip("inputs-hidden", PART, facts=inverted(0.5, 0.4)),
    Flip("inputs-hidden", FAILS, facts=inverted(0.5, 1.0)),
    # Data sets and Theorem 2
    Flip("datasets", HOLDS, facts=counted(39720)),
    Flip("datasets", PART, facts=counted(39408)),
    Flip("datasets", FAILS, facts=counted(39408, mnist=7840)),
    Flip("theorem-2", HOLDS, facts=converged(1.0, -0.5)),
    Flip("theorem-2", PART, facts=converged(0.95, -0.5)),
    Flip("theorem-2", FAILS, facts=converged(0.5, -0.5)),
    Flip("same-rate", HOLDS, facts=converged(1.0, -0.45)),
    Flip("same-rate", FAILS, facts=converged(1.0, -0.2)),
]  # fmt: skip


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


def test_every_claim_is_shown_once_and_in_order_of_the_file() -> None:
    tables = judge({}, reduced=False)
    shown = [str(row[0]) for table in tables[1:] if isinstance(table, Table) for row in table.rows]
    assert sorted(shown) == sorted(f"“{each.quote}”" for each in statements())
    assert len(shown) == len(set(shown)) >= 60
    assert len({each.name for each in statements()}) == len(statements())


def test_the_page_begins_with_a_few_of_them() -> None:
    facts = local(0.0, {})
    few, all_of_them = in_short(facts), {f"“{s.quote}”": str(v) for s, v in judged(facts).items()}
    assert len(few.rows) >= 5
    assert all(all_of_them[str(quote)] == verdict for quote, verdict in few.rows)
    assert any(str(verdict).startswith("fails") for _, verdict in few.rows)
    counts = summary(facts)
    assert f"{counts['fails']} fail, and {counts['not measured']} are" in in_words(facts)


def test_counts_add_up() -> None:
    counts = summary({})
    assert list(counts) == ["holds", "holds in part", "fails", "not measured"]
    assert sum(counts.values()) == len(statements())
    first = judge({}, reduced=False)[0]
    assert isinstance(first, Table)
    assert first.rows[-1] == ("All", *counts.values())


def test_what_was_not_run_is_not_measured_and_says_what_to_run() -> None:
    for statement, verdict in judged({}).items():
        if statement.experiments:
            assert verdict.standing is Standing.NOT_MEASURED
            assert any(str(verdict) == f"not measured (run `diffsketch reproduce {name}`)"
                       for name in statement.experiments)  # fmt: skip


def test_a_fact_that_an_experiment_did_not_give_is_named() -> None:
    facts = {"mnist": {"seeds": 5.0}}
    verdicts = {each.name: str(verdict) for each, verdict in judged(facts).items()}
    expected = "not measured (mnist has no number for it: accuracy/...)"
    assert verdicts["mnist-accuracy"] == expected


def test_a_reduced_run_says_so_in_every_table() -> None:
    for exhibit in judge({}, reduced=True):
        assert exhibit.caption.startswith("These are the verdicts of a reduced run")
    for exhibit in judge({}, reduced=False):
        assert "reduced" not in exhibit.caption


def test_claims_without_a_rule_say_why() -> None:
    for statement, verdict in judged({}).items():
        if statement.name not in RULES:
            assert str(verdict) == f"not measured: {statement.why}"


def test_every_epsilon_of_a_calculation_has_its_words() -> None:
    for statement, verdict in judged({}).items():
        if "epsilon" in verdict.measured:
            text = verdict.measured
            assert all(word in text for word in ("unit", "replace", "trust")), statement.name
            assert any(word in text for word in ("claimed", "proven", "measured")), statement.name


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


def test_claims_name_experiments_that_there_are() -> None:
    named = {name for each in statements() for name in each.experiments}
    assert named <= set(names())


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

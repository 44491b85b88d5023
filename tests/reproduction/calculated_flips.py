"""Rules that calculate, both ways: sizes and text, formulas, and the Count Sketch itself."""

from __future__ import annotations

from typing import Any

from diffsketch.sketch import CountSketch
from tests.reproduction.claim_cases import FAILS, HOLDS, PART, Flip, rising_theorem

FORMULAS = "diffsketch.reproduction.verdicts.formulas"
SKETCHED = "diffsketch.reproduction.verdicts.sketched"


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


CALCULATED = [
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
    Flip("lemma-2", FAILS, patches={"diffsketch.reproduction.verdicts.sizes._inverses": min}),
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
]  # fmt: skip

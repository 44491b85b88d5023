"""Facts for the rules of claims, both ways: those under which a claim holds, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from diffsketch.sketch import CountSketch
from paper.claims import Standing

HOLDS, PART, FAILS = Standing.HOLDS, Standing.IN_PART, Standing.FAILS
CLOSE = Standing.UNDECIDED
OURS, SKETCH, RAW, WHOLE = (
    "DiffSketch", "Laplace on sketches", "Laplace on raw gradients", "uncompressed",
)  # fmt: skip
PANELS = ("20x, epsilon 1", "20x, epsilon 5")
SMALLEST, FEW_BITS = "20x, epsilon 0.1", "8 bits (4x), epsilon 2.5"
# Which methods lines are of, and what panels are about: nothing is read out of their names.
METHODS = {
    OURS: "diffsketch", SKETCH: "sketch-laplace", RAW: "laplace", WHOLE: "none", "cpSGD": "cpsgd",
}  # fmt: skip
FIELDS: dict[str, dict[str, Any]] = {
    PANELS[0]: {"ratio": 20.0, "epsilon": 1.0},
    PANELS[1]: {"ratio": 20.0, "epsilon": 5.0},
    SMALLEST: {"ratio": 20.0, "epsilon": 0.1},
    FEW_BITS: {"ratio": 4.0, "epsilon": 2.5},
    "50x, epsilon 0.1": {"ratio": 50.0, "epsilon": 0.1},
    "50x, epsilon 1": {"ratio": 50.0, "epsilon": 1.0},
    "4 bits (10x), epsilon 5": {"ratio": 10.0, "epsilon": 5.0},
    "4 bits (10x), epsilon 10": {"ratio": 10.0, "epsilon": 10.0},
    "MNIST, sketch without privacy": {"task": "MNIST"},
}
Made = dict[str, dict[str, Any]]


class Flip(NamedTuple):
    """A claim, its expected verdict, facts by experiment, and what is otherwise in the claim.

    `values` and `rows` are instead of some of its own; `patches` has, by its name in
    `calculations`, what stands in for a calculator.
    """

    claim: str
    expected: Standing
    facts: Made = {}  # noqa: RUF012
    values: Mapping[str, Any] = {}
    patches: Mapping[str, Any] = {}
    rows: Sequence[Mapping[str, Any]] = ()

    def __str__(self) -> str:
        return f"{self.claim} {self.expected}"


def line(
    panel: str, method: str, accuracy: float | None, *, reading: str = "", group: str = "paper",
    **facts: Any,
) -> dict[str, Any]:  # fmt: skip
    """Facts of a line whose name says nothing about it."""
    known = {"method": METHODS[method], "reading": reading, "group": group, "accuracy": accuracy}
    place = f"{panel}/{method} {reading} {group}"
    return {f"{what}/{place}": value for what, value in {**known, **facts}.items()}


def figure(lines: Mapping[str, Mapping[str, float | None]], **others: Any) -> dict[str, Any]:
    """Facts of a training figure: accuracies by panel and variant; `what={(panel, name): x}`."""
    facts: dict[str, Any] = {"seeds": 5}
    for panel, variants in lines.items():
        facts |= {f"panel-{key}/{panel}": value for key, value in FIELDS.get(panel, {}).items()}
        for name, accuracy in variants.items():
            facts[f"method/{panel}/{name}"] = METHODS.get(name, "sketch")
            facts[f"accuracy/{panel}/{name}"] = accuracy
            facts[f"spread/{panel}/{name}"] = None if accuracy is None else 0.002
    for what, values in others.items():
        for (panel, name), value in values.items():
            facts[f"{what.replace('_', '-')}/{panel}/{name}"] = value
    return facts


def cpsgd(ours: float, theirs: float, whole: float = 0.9) -> Made:
    """Two epsilons; cpSGD is as good at both."""
    row = {OURS: ours, "cpSGD": theirs, WHOLE: whole}
    wide = {"cpSGD, X = 30": 0.4, "cpSGD, X = 100": 0.2}
    return {"cpsgd": figure({"4 bits (10x), epsilon 5": row, "4 bits (10x), epsilon 10": row})
            | figure({"range X, 4 bits (10x), epsilon 5": wide})}  # fmt: skip


def against(experiment: str, *rows: tuple[float | None, float | None]) -> Made:
    """DiffSketch against Laplace on sketches, at epsilon 0.1 and at 1."""
    panels = ("50x, epsilon 0.1", "50x, epsilon 1")
    return {experiment: figure({p: {OURS: a, SKETCH: b, WHOLE: 0.89}
                                for p, (a, b) in zip(panels, rows, strict=False)})}  # fmt: skip


def bytes_to(experiment: str, ours: float | None, raw: float | None, total: float = 1e6) -> Made:
    panel = "50x, epsilon 1"
    return {experiment: figure(
        {panel: {OURS: 0.88, RAW: 0.88}},
        bytes_to={(panel, OURS): ours, (panel, RAW): raw},
        bytes={(panel, OURS): 1e5, (panel, RAW): total},
    )}  # fmt: skip


def ratios(*rows: tuple[str, float | None, float, float | None]) -> Made:
    """Facts of accuracy-compression: name, accuracy, ratio, bytes."""
    panel = "MNIST, sketch without privacy"
    return {"accuracy-compression": figure(
        {panel: {name: accuracy for name, accuracy, _, _ in rows}},
        compression={(panel, name): ratio for name, _, ratio, _ in rows},
        bytes_to={(panel, name): cost for name, _, _, cost in rows},
    )}  # fmt: skip


def noised(share: float, padding: float) -> Made:
    panel = "50x, epsilon 1"
    facts = figure(
        {panel: {OURS: 0.88}}, noised={(panel, OURS): share}, padding={(panel, OURS): padding}
    )
    return {"mnist": facts, "shakespeare": facts}


def timed(bare_: float, plain: float, *, run: float = 1e3) -> Made:
    panel = "50x, epsilon 1"
    bare = "sketch, no privacy"
    times = {(panel, bare): bare_, (panel, WHOLE): plain, (panel, OURS): run}
    return {"mnist": figure({panel: {bare: 0.88, WHOLE: 0.89, OURS: 0.8}}, seconds=times)}


def diverged(*lines: tuple[float | None, int]) -> Made:
    """Noise on sketches and on raw gradients at the smallest epsilon: accuracies, and how many."""
    pairs = dict(zip((SKETCH, RAW), lines, strict=True))
    return {"shakespeare": figure(
        {SMALLEST: {name: accuracy for name, (accuracy, _) in pairs.items()}},
        diverged={(SMALLEST, name): count for name, (_, count) in pairs.items()},
        reading={(SMALLEST, name): "server step 1" for name in pairs},
    )}  # fmt: skip


def masks(plain: float, shared: float, *, fixed: float = 0.6, own: float = 0.0) -> Made:
    control = "accuracy/control/noise instead of the sketch, "
    facts = figure({
        "fresh hashes": {"sketch": plain, "sketch, shared masks": shared},
        "fixed hashes": {"sketch": fixed, "sketch, shared masks": shared},
    })  # fmt: skip
    facts |= {f"reading/{panel} hashes/sketch, shared masks": "shared masks"
              for panel in ("fresh", "fixed")}  # fmt: skip
    facts |= {f"{control}no masks": 0.1, f"{control}shared masks": shared,
              "mask-bytes": 981, "sketch-bytes": 620, "sent-beside/own masks": own}  # fmt: skip
    return {"correction": facts}


def audited(best: float | None = None, **cases: tuple[float | None, float]) -> Made:
    """Facts of audits by name: claimed, and measured. Two underscores are a comma."""
    facts: dict[str, Any] = {"seeds": 1}
    for given, (claimed, lower) in cases.items():
        name = given.replace("__", ", ").replace("_", "-")
        facts |= {f"claimed/{name}": claimed, f"lower/{name}": lower, f"limit/{name}": best,
                  f"basis/{name}": "none" if claimed is None else "claimed"}  # fmt: skip
    return {"audit": facts}


def inverted(similarity: float, labels: float, *, other: float | None = None) -> Made:
    """Messages of two ratios, alike but for the other's similarity; and some that do not count."""
    ends = "x smaller, batch of 10"
    both = {f"DiffSketch at epsilon 1, 51{ends}": similarity,
            f"DiffSketch at epsilon 1, 75{ends}": similarity if other is None else other,
            f"DiffSketch at epsilon 1, 187{ends}": 0.3, f"bare sketch, 51{ends}": 0.3}  # fmt: skip
    facts = {f"inversion/similarity/{name}": value for name, value in both.items()}
    return {"audit": {**facts, **{f"inversion/labels/{name}": labels for name in both}}}


def shaped(experiment: str = "gradients", **facts: float) -> Made:
    """Gaussian, but for what is given; underscores are dashes."""
    usual = {"seeds": 5, "zeros": 0.0, "kurtosis": 0.1, "ks": 0.01, "above-alpha": 0.1,
             "largest": 4.0}  # fmt: skip
    usual |= {"ratio": 1.6, "DiffSketch/ratio": 1.5, "DiffSketch/ks": 0.011}
    given = {name.replace("__", "/").replace("_", "-"): value for name, value in facts.items()}
    return {experiment: {**usual, **given}}


def local(within: dict[str, float]) -> Made:
    """Shares of messages within 0.1 by padding."""
    shares = {f"needs-noise/7 x 15, bare/7x15/{name}/0.1": 1 - one for name, one in within.items()}
    return {"local-epsilon": {"seeds": 5, **shares}}


def epsilons(few: float, more: float) -> Made:
    """Mean epsilons at 51x and at 75x, with 1,000 lengths appended."""
    made: dict[str, Any] = {"seeds": 5}
    made |= {f"MNIST/1000n/epsilon/{ratio}": mean for ratio, mean in (("51x", few), ("75x", more))}
    return {"privacy-communication": made}


def padded(what: str, bare: tuple[float, float], more: tuple[float, float],
           signed: tuple[float, float] | None = None) -> Made:  # fmt: skip
    """Shares at 50x and at 75x, with nothing and with 100 lengths appended."""
    made: dict[str, Any] = {"seeds": 5}
    for place, values in (
        ("MNIST/none", bare), ("MNIST/100n", more), ("MNIST, signed alpha/none", signed),
    ):  # fmt: skip
        for ratio, value in zip(("51x", "75x"), values or (), strict=False):
            made[f"{place}/{what}/{ratio}"] = value
    return {"privacy-communication": made}


def chosen(lead: float, *, tried: int, spread: float) -> Made:
    """DiffSketch leads by so much, seed by seed, in the last of so many choices of a panel."""
    panels = [f"50x, epsilon 1, choice {place}" for place in range(tried)]
    facts = figure({panel: {OURS: 0.5, SKETCH: 0.5} for panel in panels})
    for panel in panels:
        facts |= {f"panel-ratio/{panel}": 50.0, f"panel-epsilon/{panel}": 1.0}
    facts |= {f"accuracy/{panels[-1]}/{OURS}": 0.5 + lead}
    place = f"{panels[-1]}/{OURS} - {SKETCH}"
    facts |= {f"paired/{place}": lead, f"paired-spread/{place}": spread}
    return {"choices": facts}


def few_bits(accuracy: float) -> Made:
    """Sketches with 4 bits a cell, beside no compression."""
    lines = {WHOLE: 0.89, "500x": accuracy}
    return {"accuracy-compression": figure({"MNIST, sketch with few bits": lines})}


def theorem(*, bound: float = 0.1, secret: float = 0.0, public: float = 0.4, known: float = 8.0
            ) -> Made:  # fmt: skip
    """Facts about Theorem 1's claim of 0.2 with secret hashes, public ones, and all known."""
    made = audited(bare_secret=(0.2, secret), bare_unknown=(0.2, public), bare_known=(0.2, known))
    made["audit"] |= {"secret/claimed/1 x 2 of 2,000": 0.2, "secret/bound/1 x 2 of 2,000": bound,
                      "secret/claimed/7 x 22": None, "secret/bound/7 x 22": 0.5,
                      "secret/holds": bound <= 0.2}  # fmt: skip
    return made


def counted(shakespeare: float, mnist: float = 7850) -> Made:
    rows = {"MNIST": (10, mnist, 200, 0), "Shakespeare": (46, shakespeare, 743.6, 549.6),
            "MNIST*": (6000, mnist, 10, 0)}  # fmt: skip
    words = ("workers", "parameters", "mean", "stdev")
    return {"datasets": {f"{name}/{word}": value for name, row in rows.items()
                         for word, value in zip(words, row, strict=True)}}  # fmt: skip


def rising_theorem(dim: int, rows: int, cols: int, **_: float) -> Any:
    """A Theorem 1 that is the other way round."""
    return SimpleNamespace(epsilon=lambda **_: dim * 1e-12 + 1 / (rows * cols))


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


def over(formula: str, name: str, at: list[int], **settings: Any) -> dict[str, Any]:
    """A row of a claim that is about how a formula moves."""
    return {"formula": formula, "over": name, "at": at, "with": settings}


TABLE = {"rows": 7, "cols": 15}
CPSGD = {"levels": 12, "trials": 4}

FLIPS = [
    # Sizes and text
    Flip("sizes-mnist", HOLDS),
    Flip("sizes-mnist", FAILS, rows=[{"table": [7, 22], "stated": 75}]),
    Flip("sizes-shakespeare", FAILS),
    Flip("sizes-shakespeare", HOLDS, rows=[{"table": [10, 245], "stated": 16}]),
    Flip("bits", PART),
    Flip("bits", HOLDS, rows=[{"bits": 4, "stated": 8}, {"bits": 5, "stated": 6}]),
    Flip("bits", FAILS, rows=[{"bits": 4, "stated": 10}]),
    Flip("histogram-text", FAILS),
    Flip("histogram-text", HOLDS, values={"text": 0.1}),
    # Formulas
    Flip("longer-vectors", FAILS),
    Flip("longer-vectors", HOLDS, patches={"theorem1": rising_theorem}),
    Flip("vanishing", PART),
    Flip("vanishing", HOLDS, rows=[over("told_apart", "dim", [100, 1000], change=0.0, **TABLE)]),
    Flip("vanishing", FAILS, patches={"theorem1": rising_theorem}),
    Flip("smaller-tables", HOLDS),
    Flip("smaller-tables", FAILS, patches={"theorem1": rising_theorem}),
    Flip("longer-padding", HOLDS),
    Flip("longer-padding", FAILS, patches={"theorem1": rising_theorem}),
    Flip("less-noise", PART),
    Flip("less-noise", HOLDS, rows=[{"table": [7850, 7, 15], "target": 0.1}]),
    Flip("less-noise", FAILS, rows=[{"table": [39720, 10, 190], "target": 1.0}]),
    Flip("more-devices", PART),
    Flip("more-devices", HOLDS, rows=[over("cpsgd_epsilon", "cohort", [1000, 2000], **CPSGD)]),
    Flip("more-devices", FAILS, rows=[over("cpsgd_epsilon", "cohort", [10, 11], **CPSGD)]),
    Flip("cpsgd-parameters", PART),
    Flip("cpsgd-parameters", HOLDS, values={"cohort": 6000},
         rows=[{"target": 5.0, "bits": 4, **CPSGD}]),
    Flip("cpsgd-parameters", FAILS, rows=[{"target": 5.0, "bits": 5, **CPSGD}]),
    Flip("theorem-2", HOLDS),
    Flip("theorem-2", FAILS, patches={"lemma1_error": lambda *_, **__: 0.001}),
    Flip("same-rate", HOLDS),
    Flip("same-rate", FAILS, patches={
        "expected_gap": lambda rounds, variance: rounds ** (-0.25 if variance else -0.5)}),
    Flip("tighter-bound", HOLDS),
    Flip("tighter-bound", FAILS,
         rows=[over("convergence_bound", "cols", [88, 22], dim=7850, rows=7)]),
    # Count Sketch
    Flip("recovered", FAILS),
    Flip("recovered", PART, patches={"CountSketch": Rough}),
    Flip("recovered", HOLDS, patches={"CountSketch": Exact}),
    Flip("bounded-bins", FAILS),
    Flip("bounded-bins", HOLDS, patches={"CountSketch": Exact}),
    # Baselines
    Flip("five-to-fifty", HOLDS, cpsgd(0.9, 0.5) | against("choices", (0.8, 0.7), (0.9, 0.8))
         | against("shakespeare", (0.4, 0.3))),
    Flip("five-to-fifty", FAILS, cpsgd(0.9, 0.9) | against("choices", (0.8, 0.79))
         | against("shakespeare", (0.4, 0.4))),
    Flip("over-cpsgd", HOLDS, cpsgd(0.9, 0.45)),
    Flip("over-cpsgd", FAILS, cpsgd(0.9, 0.8)),
    Flip("cpsgd-panels", HOLDS, cpsgd(0.9, 0.8)),
    Flip("cpsgd-panels", FAILS, cpsgd(0.9, 0.899)),
    Flip("cpsgd-smaller", FAILS, {"cpsgd": figure({FEW_BITS: {"cpSGD": 0.895, WHOLE: 0.9}})}),
    Flip("cpsgd-smaller", HOLDS, {"cpsgd": figure({FEW_BITS: {"cpSGD": 0.7, WHOLE: 0.9}})}),
    Flip("cpsgd-smaller", HOLDS, {"cpsgd": figure({FEW_BITS: {"cpSGD": None, WHOLE: 0.9}})}),
    Flip("combination", HOLDS, cpsgd(0.9, 0.8)),
    Flip("combination", FAILS, cpsgd(0.9, 0.89)),
    Flip("mnist-communication", HOLDS, bytes_to("mnist", 1e4, 5e5)),
    Flip("mnist-communication", HOLDS, bytes_to("mnist", 1e4, None)),
    Flip("mnist-communication", FAILS, bytes_to("mnist", 1e4, 5e4)),
    Flip("mnist-communication", FAILS, bytes_to("mnist", None, 5e5)),
    Flip("shakespeare-communication", HOLDS, bytes_to("shakespeare", 1e4, 5e5)),
    Flip("shakespeare-communication", HOLDS, bytes_to("shakespeare", 1e4, 1.5e4)),
    Flip("shakespeare-communication", FAILS, bytes_to("shakespeare", 1e4, 9e3)),
    Flip("shakespeare-communication", FAILS, bytes_to("shakespeare", None, 1e4)),
    Flip("mnist-accuracy", HOLDS, against("choices", (0.8, 0.7), (0.9, 0.88))),
    Flip("mnist-accuracy", PART, against("choices", (0.8, 0.7), (0.88, 0.9))),
    Flip("mnist-accuracy", CLOSE, chosen(0.012, tried=1, spread=0.02)),
    Flip("mnist-accuracy", HOLDS, chosen(0.035, tried=1, spread=0.02)),
    Flip("mnist-accuracy", CLOSE, chosen(0.035, tried=20, spread=0.02)),
    Flip("mnist-accuracy", FAILS, against("choices", (0.7, 0.8), (0.88, 0.89))),
    Flip("mnist-smaller", HOLDS, against("choices", (0.8, 0.7), (0.9, 0.88))),
    Flip("mnist-smaller", FAILS, against("choices", (0.8, 0.78), (0.9, 0.8))),
    Flip("shakespeare-accuracy", HOLDS, against("shakespeare", (0.4, None), (0.4, 0.3))),
    # A lead between two that learn nothing is none.
    Flip("shakespeare-accuracy", FAILS, against("shakespeare", (0.12, 0.01))),
    Flip("shakespeare-accuracy", FAILS, {"shakespeare": figure(
        {PANELS[0]: {OURS: 0.3, "step 1": 0.012, SKETCH: 0.35, "other": 0.001}},
        method={(PANELS[0], "step 1"): "diffsketch", (PANELS[0], "other"): "sketch-laplace"},
        reading={(PANELS[0], "step 1"): "x, step 1", (PANELS[0], "other"): "step 1"},
    )}),
    Flip("shakespeare-accuracy", FAILS, against("shakespeare", (0.4, 0.4), (None, 0.3))),
    Flip("shakespeare-diverging", HOLDS, diverged((None, 5), (None, 3))),
    Flip("shakespeare-diverging", HOLDS, diverged((0.02, 0), (0.01, 0))),
    Flip("shakespeare-diverging", PART, diverged((0.02, 0), (0.2, 0))),
    Flip("shakespeare-diverging", PART, diverged((None, 5), (0.3, 0))),
    Flip("shakespeare-diverging", FAILS, diverged((0.3, 0), (0.3, 1))),
    Flip("correction-helps", HOLDS, masks(0.8, 0.9)),
    Flip("correction-helps", PART, masks(0.89, 0.87)),
    Flip("correction-helps", FAILS, masks(0.89, 0.87, fixed=0.88)),
    Flip("correction-private", PART, masks(0.89, 0.82)),
    Flip("correction-private", FAILS, masks(0.89, 0.82, own=98.1)),
    Flip("correction-private", HOLDS, masks(0.89, 0.12)),
    # Trade-offs
    Flip("marginal", HOLDS, {
        "mnist": figure({"50x, epsilon 1": {OURS: 0.88, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: 0.41, WHOLE: 0.42}})}),
    Flip("marginal", PART, {
        "mnist": figure({"50x, epsilon 1": {OURS: 0.88, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: 0.31, WHOLE: 0.32}})
        | line(PANELS[0], WHOLE, 0.38, reading="server step 1")}),
    Flip("marginal", FAILS, {
        "mnist": figure({"50x, epsilon 1": {OURS: 0.7, WHOLE: 0.89}}),
        "shakespeare": figure({PANELS[0]: {OURS: None, WHOLE: 0.42}})}),
    Flip("federated", HOLDS, {"shakespeare": figure({PANELS[0]: {OURS: 0.41, WHOLE: 0.42}})}),
    Flip("federated", FAILS, {"shakespeare": figure({PANELS[0]: {OURS: None, WHOLE: 0.42}})}),
    Flip("light-weight", HOLDS, timed(1.5, 1.0, run=1.9)),
    Flip("light-weight", PART, timed(1.5, 1.0)),
    Flip("light-weight", FAILS, timed(50.0, 1.0)),
    Flip("minor", HOLDS, ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.885, 47, 1e6))),
    Flip("minor", FAILS, ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.87, 47, 1e6))),
    Flip("faster", HOLDS, ratios((WHOLE, 0.89, 1, 9e6), ("50x", 0.89, 47, 1e6))),
    Flip("faster", PART, ratios(
        (WHOLE, 0.89, 1, 9e6), ("50x", 0.89, 47, 1e6), ("75x", 0.89, 70, None))),
    # Ratios that the paper does not have count for nothing.
    Flip("faster", HOLDS, ratios(
        (WHOLE, 0.89, 1, 9e6), ("50x", 0.89, 47, 1e6), ("490x", 0.89, 480, 2e6))),
    # What one step loses, the next does not win back.
    Flip("faster", PART, ratios(
        (WHOLE, 0.89, 1, 9e6), ("10x", 0.89, 10, 2e6), ("25x", 0.8, 25, None),
        ("50x", 0.89, 47, 1e6))),
    Flip("faster", FAILS, ratios((WHOLE, 0.89, 1, 9e5), ("50x", 0.89, 47, 1e6))),
    Flip("lower", HOLDS, ratios((WHOLE, 0.89, 1, 9e6), ("75x", 0.87, 75, 1e6))),
    Flip("lower", HOLDS, ratios((WHOLE, 0.89, 1, 9e6), ("75x", None, 75, None))),
    Flip("lower", FAILS, ratios((WHOLE, 0.89, 1, 9e6), ("75x", 0.892, 75, 1e6))),
    # Cost and reach
    Flip("combined", HOLDS, few_bits(0.885)),
    Flip("combined", FAILS, few_bits(0.8)),
    # Noise
    Flip("little-noise", HOLDS, noised(0.01, 0)),
    Flip("little-noise", PART, noised(0.01, 400)),
    Flip("little-noise", FAILS, noised(1.0, 0)),
    Flip("free", HOLDS, padded("noised", (0.4, 0.1), (1.0, 1.0))),
    Flip("free", HOLDS, padded("noised", (1.0, 1.0), (1.0, 1.0), signed=(0.4, 0.1))),
    Flip("free", PART, padded("noised", (0.9, 0.1), (0.0, 0.0))),
    Flip("free", FAILS, padded("noised", (1.0, 0.8), (0.0, 0.0))),
    Flip("histogram", HOLDS, local({"none": 0.0, "20n": 0.1, "200n": 0.99})),
    Flip("histogram", FAILS, local({"none": 0.0, "20n": 0.1})),
    Flip("most-rounds", HOLDS, padded("noised", (0.4, 0.1), (0.4, 0.1))),
    Flip("most-rounds", PART, padded("noised", (1.0, 0.9), (0.4, 0.1))),
    Flip("most-rounds", PART, padded("noised", (1.0, 0.9), (0.9, 0.1))),
    Flip("most-rounds", FAILS, padded("noised", (1.0, 0.9), (0.9, 0.9))),
    Flip("compression-privacy", HOLDS, epsilons(5.0, 2.0)),
    Flip("compression-privacy", FAILS, epsilons(2.0, 5.0)),
    Flip("averages", HOLDS, padded("finite", (0.0, 0.5), (1.0, 1.0))),
    Flip("averages", PART, padded("finite", (0.0, 0.5), (0.9, 1.0))),
    Flip("averages", FAILS, padded("finite", (0.0, 0.5), (0.9, 0.9))),
    # Assumptions
    Flip("gaussian-gradients", HOLDS, shaped()),
    Flip("gaussian-gradients", PART, shaped(zeros=0.5)),
    Flip("gaussian-gradients", FAILS, shaped(zeros=0.5, ks=0.4)),
    Flip("gaussian-gradients", FAILS, shaped(zeros=0.5, ks=0.4, kurtosis=9.0)),
    Flip("gaussian-updates", HOLDS, shaped("updates")),
    Flip("gaussian-updates", FAILS, shaped("updates", ks=0.2, kurtosis=9.0)),
    Flip("bounded", HOLDS, shaped()),
    Flip("bounded", FAILS, shaped(above_alpha=0.2)),
    Flip("similar", HOLDS, shaped() | shaped("updates")),
    Flip("similar", PART, shaped(DiffSketch__ratio=1.0) | shaped("updates")),
    Flip("similar", FAILS, shaped(DiffSketch__ratio=1.0, DiffSketch__ks=0.02)
         | shaped("updates", DiffSketch__ratio=2.5, DiffSketch__ks=0.001)),
    # Audits
    Flip("proof-issues", HOLDS, audited(bare_known=(0.2, 8.0), bare_unknown=(0.2, 0.1))),
    Flip("proof-issues", FAILS, audited(bare_known=(0.2, 0.1), bare_unknown=(0.2, 0.1))),
    Flip("inherent", PART, theorem()),
    Flip("inherent", HOLDS, theorem(public=0.1, known=0.1)),
    Flip("theorem-1", PART, theorem()),
    Flip("theorem-1", PART, theorem(public=0.1)),
    Flip("theorem-1", FAILS, theorem(bound=0.3)),
    Flip("theorem-1", FAILS, theorem(secret=0.3)),
    Flip("theorem-1", HOLDS, theorem(public=0.1, known=0.1)),
    Flip("local-model", FAILS, audited(padded__client=(None, 9.0))),
    Flip("local-model", HOLDS, audited(padded__client=(None, 0.5))),
    Flip("same-privacy", HOLDS, audited(Laplace__alpha=(1.0, 0.9))),
    Flip("same-privacy", FAILS, audited(Laplace__largest=(1.0, 4.0))),
    Flip("every-round", HOLDS, audited(Laplace__alpha=(1.0, 0.9))),
    Flip("every-round", PART, audited(Laplace__alpha=(1.0, 0.9), Laplace__largest=(1.0, 4.0))),
    Flip("inputs-hidden", HOLDS, inverted(0.05, 0.7)),
    Flip("inputs-hidden", PART, inverted(0.05, 0.7, other=0.5)),
    Flip("inputs-hidden", FAILS, inverted(0.5, 0.7)),
    Flip("inputs-hidden", FAILS, inverted(0.05, 0.8)),
    # Data sets
    Flip("datasets", HOLDS, counted(39720)),
    Flip("datasets", PART, counted(39408)),
    Flip("datasets", FAILS, counted(39408, mnist=7840)),
]  # fmt: skip

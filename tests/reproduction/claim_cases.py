"""Facts for the rules of claims, both ways: those under which a claim holds, and others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from diffsketch.reproduction.verdicts.verdict import Standing

HOLDS, PART, FAILS = Standing.HOLDS, Standing.IN_PART, Standing.FAILS
Made = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Flip:
    """A rule, what it is fed, and what it must say.

    Attributes:
        rule: Its name.
        expected: Its verdict.
        facts: By experiment.
        values: Instead of some of the claim's own.
        patches: By dotted name below the package: what stands in for a calculator.
    """

    rule: str
    expected: Standing
    facts: Made = field(default_factory=dict)
    values: Mapping[str, Any] = field(default_factory=dict)
    patches: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.rule} {self.expected}"


def figure(lines: Mapping[str, Mapping[str, float | None]], **others: Any) -> dict[str, Any]:
    """Facts of a training figure: accuracies by panel and variant; `what={(panel, name): x}`."""
    facts: dict[str, Any] = {"seeds": 5}
    for panel, variants in lines.items():
        for name, accuracy in variants.items():
            facts[f"accuracy/{panel}/{name}"] = accuracy
            facts[f"spread/{panel}/{name}"] = None if accuracy is None else 0.002
    for what, values in others.items():
        for (panel, name), value in values.items():
            facts[f"{what.replace('_', '-')}/{panel}/{name}"] = value
    return facts


OURS, SKETCH, RAW, WHOLE = (
    "DiffSketch", "Laplace on sketches", "Laplace on raw gradients", "uncompressed",
)  # fmt: skip


def cpsgd(ours: float, theirs: float, whole: float = 0.9) -> Made:
    """Two epsilons; cpSGD is as good at both."""
    row = {OURS: ours, "cpSGD": theirs, WHOLE: whole}
    return {"cpsgd": figure({"4 bits (10x), epsilon 5": row, "4 bits (10x), epsilon 10": row})}


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
    """Of accuracy-compression: name, accuracy, ratio, bytes."""
    panel = "MNIST, sketch without privacy"
    return {"accuracy-compression": figure(
        {panel: {name: accuracy for name, accuracy, _, _ in rows}},
        compression={(panel, name): ratio for name, _, ratio, _ in rows},
        bytes_to={(panel, name): cost for name, _, _, cost in rows},
    )}  # fmt: skip


def noised(share: float, padding: float) -> Made:
    panel = "50x, epsilon 1"
    place = {(panel, OURS): 0.0}
    return {
        name: figure({panel: {OURS: 0.88}}, noised=dict.fromkeys(place, share),
                     padding=dict.fromkeys(place, padding))
        for name in ("mnist", "shakespeare")
    }  # fmt: skip


def timed(ours: float, plain: float) -> Made:
    panel = "50x, epsilon 1"
    bare = "sketch, no privacy"
    times = {(panel, bare): ours, (panel, WHOLE): plain, (panel, OURS): 1e3}
    return {"mnist": figure({panel: {bare: 0.88, WHOLE: 0.89, OURS: 0.8}}, seconds=times)}


def masks(plain: float, shared: float, *, fixed: float = 0.6) -> Made:
    control = "accuracy/control/noise instead of the sketch, "
    facts = figure({
        "fresh hashes": {"sketch": plain, "sketch, shared masks": shared},
        "fixed hashes": {"sketch": fixed, "sketch, shared masks": shared},
    })  # fmt: skip
    facts |= {f"{control}no masks": 0.1, f"{control}shared masks": shared,
              "mask-bytes": 981, "sketch-bytes": 664}  # fmt: skip
    return {"correction": facts}


def audited(best: float | None = None, **cases: tuple[float | None, float]) -> Made:
    """By name: what is claimed, and what was measured. Two underscores are a comma."""
    facts: dict[str, Any] = {"seeds": 1}
    for given, (claimed, lower) in cases.items():
        name = given.replace("__", ", ").replace("_", "-")
        facts |= {f"claimed/{name}": claimed, f"lower/{name}": lower, f"limit/{name}": best,
                  f"basis/{name}": "none" if claimed is None else "claimed"}  # fmt: skip
    return {"audit": facts}


def inverted(similarity: float, labels: float) -> Made:
    return {"audit": {"inversion/similarity/7 x 22": similarity, "inversion/labels/7 x 22": labels,
                      "inversion-raw/similarity/gradient": 1.0}}  # fmt: skip


def shaped(experiment: str = "gradients", **facts: float) -> Made:
    """Gaussian, but for what is given; underscores are dashes."""
    usual = {"seeds": 5, "zeros": 0.0, "kurtosis": 0.1, "ks": 0.01, "above-alpha": 0.1,
             "largest": 4.0}  # fmt: skip
    for name in ("ratio", "kurtosis"):
        usual |= {f"{name}/first": 1.6, f"{name}/last": 1.6}
    given = {name.replace("__", "/").replace("_", "-"): value for name, value in facts.items()}
    return {experiment: {**usual, **given}}


def local(bare: float, within: dict[str, float]) -> Made:
    """Share of bare messages within 1, and shares within 0.1 by padding."""
    facts = {"seeds": 5, "needs-noise/7 x 15, bare/7x15/none/1": 1 - bare,
             "needs-noise/7x15/none/1": 0.5}  # fmt: skip
    facts |= {f"share-within/{name}/0.1": share for name, share in within.items()}
    return {"local-epsilon": facts}


def by_ratio(**facts: tuple[float | None, float | None]) -> Made:
    """Facts of privacy-communication at 50x and at 75x."""
    made: dict[str, Any] = {"seeds": 5}
    for what, values in facts.items():
        made |= {f"{what}/{ratio}": v for ratio, v in zip(("51x", "75x"), values, strict=True)}
    return {"privacy-communication": made}


def counted(shakespeare: float, mnist: float = 7850) -> Made:
    rows = {"MNIST": (10, mnist, 200, 0), "Shakespeare": (46, shakespeare, 743.6, 549.6),
            "MNIST*": (6000, mnist, 10, 0)}  # fmt: skip
    words = ("workers", "parameters", "mean", "stdev")
    return {"datasets": {f"{name}/{word}": value for name, row in rows.items()
                         for word, value in zip(words, row, strict=True)}}  # fmt: skip


def converged(share: float, slope: float) -> Made:
    return {"convergence": {"seeds": 5, "bound-holds": share, "gap": 0.5, "bound": 50.0,
                            "slope/sketch": slope, "slope/uncompressed": -0.5}}  # fmt: skip


def rising_theorem(dim: int, rows: int, cols: int, **_: float) -> Any:
    """A Theorem 1 that is the other way round."""
    return SimpleNamespace(epsilon=lambda **_: dim * 1e-12 + 1 / (rows * cols))

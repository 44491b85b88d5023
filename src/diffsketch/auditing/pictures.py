"""Pictures of audits, and all files that a run of them writes."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from diffsketch.auditing.audits import AuditResult, Verdict
from diffsketch.auditing.exploits import EXPLOITS
from diffsketch.auditing.report import Suite, measured_text
from diffsketch.files import replace_files

_COLOURS = {
    Verdict.CONTRADICTED: "#c0392b",
    Verdict.LESS_NOISE: "#c0392b",
    Verdict.CONSISTENT: "#2e6f9e",
    Verdict.NOTHING_CLAIMED: "#8a8a8a",
}
_TICKS = (0, 0.1, 0.4, 1, 2, 4, 8, 16, 32, 64, 128)
_BESIDE = 2.4  # the axis over the largest value on it, which leaves space for the text there


def write_results(suite: Suite, directory: Path) -> list[Path]:
    """Write `audit.json` and the pictures; all of them or none."""
    text = json.dumps(suite.to_json(), indent=2, allow_nan=False)
    contents = {"audit.json": text.encode() + b"\n"}
    if suite.results:
        # All planted errors would be two hundred lines; those of engines are shown beside what they
        # broke.
        drawn = [
            each for each in suite.results if not each.case.planted or each.case.name in EXPLOITS
        ]
        contents["audit.png"] = audit_picture(drawn, confidence=suite.confidence)
    replace_files({directory / name: content for name, content in contents.items()})
    return [directory / name for name in contents]


def audit_picture(results: Sequence[AuditResult], *, confidence: float) -> bytes:
    """Draw, as a PNG, the claimed epsilon and the measured lower bound of each case."""
    figure = Figure(figsize=(11, 1.6 + 0.5 * len(results)), dpi=130, layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(results))[::-1]
    measured = [float(result.measured.lower_bound) for result in results]
    axes.barh(places, measured, height=0.55, color=[_COLOURS[r.verdict] for r in results])
    labels = []
    for place, result in zip(places, results, strict=True):
        case, stated, bound = result.case, result.claimed, float(result.measured.lower_bound)
        basis, taken = "no claim", [bound]
        if math.isfinite(float(stated)):
            basis = stated.basis_text
            axes.vlines(float(stated), place - 0.38, place + 0.38, color="black", linewidth=2.5)
            taken.append(float(stated))
        if result.limit is not None and math.isfinite(result.limit):
            axes.plot(result.limit, place, "D", color="0.4", markersize=5)
            taken.append(result.limit)
        # To the right of what is nearby.
        far = 1.4 * bound + 0.6 if result.limit is None else math.inf
        axes.annotate(
            measured_text(result, (" (exact: ", ")")), (max(x for x in taken if x < far), place),
            xytext=(6, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
        rounds = f" over {case.rounds} rounds" if case.rounds > 1 else ""
        error = f": {case.planted}" if case.planted else ""
        labels.append(
            f"{case.name}{rounds}{error}\n{basis}; {case.scope.short}; delta {stated.delta:g}; "
            f"{case.game.adversary}"
        )
    axes.set_yticks(places, labels, fontsize=8)
    # Both 0.2 and 10 are to be seen; a logarithm would have no place for 0.
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    stated_too = [float(each) for r in results for each in (r.claimed, r.limit) if each is not None]
    # Only finite values: an infinite limit has no place on an axis.
    end = _BESIDE * max(1.0, *measured, *(each for each in stated_too if math.isfinite(each)))
    axes.set_xlim(0, end)
    ticks = [tick for tick in _TICKS if tick <= end]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.set_ylim(-0.6, len(results) - 0.4)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("epsilon, at the delta and unit that each line names")
    axes.set_title(f"Measured lower bounds ({confidence:.4g} confidence each) against claims")
    handles: list[Patch | Line2D] = [
        Patch(color=colour, label=f"measured lower bound: {verdict}")
        for verdict, colour in _COLOURS.items()
    ]
    handles += [
        Line2D([], [], color="black", linewidth=2.5, label="claimed or proven epsilon"),
        Line2D([], [], color="0.4", marker="D", linestyle="", label="exact, best attack"),
    ]
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png")
    return stream.getvalue()

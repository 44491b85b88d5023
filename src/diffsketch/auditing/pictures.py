"""The audit's pictures. The only module of this folder that imports matplotlib."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from diffsketch.auditing.inversion import SIDE, InversionResult, Recovery
from diffsketch.auditing.run import AuditResult, Verdict
from diffsketch.privacy.claim import Epsilon

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["audit_picture", "inversion_picture"]

_COLOURS = {
    Verdict.CONTRADICTED: "#c0392b",
    Verdict.LESS_NOISE: "#c0392b",
    Verdict.CONSISTENT: "#2e6f9e",
    Verdict.NOTHING_CLAIMED: "#8a8a8a",
}
_TICKS = (0, 0.1, 0.4, 1, 2, 4, 8, 16, 32, 64, 128)
_ROOM = 2.4  # the axis over the largest value on it, for the text beside that
_SHOWN = 10  # images in a row


def audit_picture(results: Sequence[AuditResult], *, confidence: float) -> bytes:
    """A PNG: for each case, the claimed epsilon and the measured lower bound."""
    figure = Figure(figsize=(11, 1.6 + 0.5 * len(results)), dpi=130, layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(results))[::-1]
    measured = [float(result.measured.lower_bound) for result in results]
    axes.barh(places, measured, height=0.55, color=[_COLOURS[r.verdict] for r in results])
    for place, result in zip(places, results, strict=True):
        _annotate(axes, float(place), result)
    axes.set_yticks(places, [_label(result) for result in results], fontsize=8)
    # Both 0.2 and 10 are to be seen; a logarithm would have no place for 0.
    axes.set_xscale("function", functions=(lambda x: np.sqrt(np.maximum(x, 0)), np.square))
    drawn = [*measured, *(_finite(r.claimed) for r in results)]
    drawn += [_finite(r.limit) for r in results if r.limit is not None]
    end = _ROOM * max(1.0, *drawn)
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
    handles.append(Line2D([], [], color="black", linewidth=2.5, label="claimed or proven epsilon"))
    handles.append(
        Line2D([], [], color="0.4", marker="D", linestyle="", label="exact, best attack")
    )
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    return _png(figure)


def inversion_picture(result: InversionResult) -> bytes:
    """A PNG: private images, and what came back of them from each kind of message."""
    rows = [("the client's image", "", result.images)]
    rows += [(recovery.name, _caption(recovery), recovery.images) for recovery in result.recoveries]
    guess = np.broadcast_to(result.average, result.images.shape)
    rows.append(("no message", "the average of public images", guess))
    shown = min(_SHOWN, len(result.images))
    figure = Figure(figsize=(4.2 + 0.78 * shown, 0.86 * len(rows) + 0.7), dpi=130)
    figure.suptitle("What a server that knows the hashes sees of one image's gradient", fontsize=12)
    grid = figure.add_gridspec(
        len(rows), shown + 1, width_ratios=[4.6, *[1] * shown], wspace=0.06, hspace=0.1,
        left=0.01, right=0.99, bottom=0.01, top=0.93,
    )  # fmt: skip
    for index, (name, caption, images) in enumerate(rows):
        text = figure.add_subplot(grid[index, 0])
        text.axis("off")
        text.text(0, 0.78, name, fontsize=10, fontweight="bold", va="bottom")
        text.text(0, 0.7, caption, fontsize=7.5, va="top", linespacing=1.3)
        for column in range(shown):
            axes = figure.add_subplot(grid[index, column + 1])
            axes.imshow(images[column].reshape(SIDE, SIDE), cmap="gray", vmin=0, vmax=1)
            axes.axis("off")
    return _png(figure)


def _caption(recovery: Recovery) -> str:
    lines = []
    if math.isinf(float(recovery.epsilon)):
        lines.append(f"nothing proven ({recovery.epsilon.scope})")
    else:
        lines.append(_words(recovery.epsilon))
    if recovery.claimed is not None:
        claims = not math.isinf(float(recovery.claimed))
        lines.append(f"Theorem 1: {_words(recovery.claimed) if claims else 'no claim'}")
    lines.append(
        f"similarity {recovery.similarities.mean():.2f}, labels right {recovery.labels_right:.0%}"
    )
    return "\n".join(lines)


def _words(epsilon: Epsilon) -> str:
    scope = epsilon.scope
    return (
        f"epsilon = {epsilon.shown()}, delta = {epsilon.delta:g}\n"
        f"({epsilon.basis_text}; {scope.unit} unit, {scope.relation}, {scope.trust} trust)"
    )


def _annotate(axes: Axes, place: float, result: AuditResult) -> None:
    claimed, measured = float(result.claimed), float(result.measured.lower_bound)
    if math.isfinite(claimed):
        axes.vlines(claimed, place - 0.38, place + 0.38, color="black", linewidth=2.5)
    places = [measured]
    text = f">= {result.measured.lower_bound.shown()}"
    if math.isfinite(claimed):
        places.append(claimed)
    if result.limit is not None:
        exact = result.limit
        text += f" (exact: {exact:.3g})" if math.isfinite(exact) else " (exact: infinite)"
        if math.isfinite(exact):
            axes.plot(exact, place, "D", color="0.4", markersize=5)
            places.append(exact)
    # To the right of what is nearby.
    far = 1.4 * measured + 0.6 if result.limit is None else math.inf
    beside = max(each for each in places if each < far)
    axes.annotate(
        text, (beside, place), xytext=(6, 0), textcoords="offset points", va="center", fontsize=8
    )


def _label(result: AuditResult) -> str:
    scope = result.case.scope
    error = f": {result.case.planted}" if result.case.planted else ""
    basis = result.claimed.basis_text if math.isfinite(float(result.claimed)) else "no claim"
    rounds = f" over {result.case.rounds} rounds" if result.case.rounds > 1 else ""
    return (
        f"{result.case.name}{rounds}{error}\n"
        f"{basis}; {scope.unit}, {scope.relation}, {scope.trust}; "
        f"delta {result.claimed.delta:g}; {result.case.game.adversary}"
    )


def _finite(epsilon: Epsilon | float) -> float:
    value = float(epsilon)
    return value if math.isfinite(value) else 0.0


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png")
    return stream.getvalue()

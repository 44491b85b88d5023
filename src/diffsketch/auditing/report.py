"""Several audits and the gradient inversion in one run, and their tables, JSON and pictures."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from rich.table import Table

from diffsketch.auditing.audits import (
    DEFAULT_CONFIDENCE,
    AuditResult,
    Verdict,
    audit,
    check_settings,
)
from diffsketch.auditing.cases import EXPLOITS, INVERSION, Selection, cases
from diffsketch.auditing.inversion import SIDE, ImageRecovery, InversionResult, invert
from diffsketch.files import replace_files
from diffsketch.privacy.claim import ProvenClaim

_INVERSION_COST = 10**8  # as of trials and numbers in them
_MANY_IMAGES = 100
# On a terminal, and in a picture.
_STYLES = {
    Verdict.CONTRADICTED: ("bold red", "#c0392b"),
    Verdict.LESS_NOISE: ("bold red", "#c0392b"),
    Verdict.CONSISTENT: ("green", "#2e6f9e"),
    Verdict.NOTHING_CLAIMED: ("dim", "#8a8a8a"),
}
_TICKS = (0, 0.1, 0.4, 1, 2, 4, 8, 16, 32, 64, 128)
_BESIDE = 2.4  # the axis over the largest value on it, which leaves space for the text there
_SHOWN = 10  # images in a row


@dataclass(frozen=True, eq=False)
class Suite:
    """Results of a run of several audits."""

    results: tuple[AuditResult, ...]
    inversion: InversionResult | None
    confidence: float
    seed: int

    @property
    def false_alarm(self) -> float:
        """An upper bound on the probability that any correct mechanism was contradicted."""
        correct = sum(
            isinstance(result.case.claim, ProvenClaim) and result.case.planted is None
            for result in self.results
        )
        return min(1.0, correct * (1 - self.confidence))

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain data."""
        found = self.inversion and [recovery.to_json() for recovery in self.inversion.recoveries]
        return {
            "seed": self.seed,
            "confidence_of_each_bound": self.confidence,
            "false_alarm_probability_of_each_case_at_most": 1 - self.confidence,
            "false_alarm_probability_of_this_run_at_most": self.false_alarm,
            "reading": "Where epsilon is null, nothing limits it.",
            "audits": [result.to_json() for result in self.results],
            "inversion": found,
        }


def run_suite(
    selection: Selection,
    *,
    trials: int | None = None,
    confidence: float = DEFAULT_CONFIDENCE,
    delta: float | None = None,
    seed: int = 0,
    on_progress: Callable[[float, str], None] = lambda _, __: None,
) -> Suite:
    """Run what was selected, one after the other; arguments as of `audit`.

    `on_progress` is called with the share of the work that is done, and what is being done.
    """
    check_settings(trials=trials, confidence=confidence, delta=delta, seed=seed)
    chosen = [make() for make in selection.cases.values()]
    fewer = 2 if selection.is_quick else 1
    counts = [case.trials // fewer if trials is None else trials for case in chosen]
    # Roughly as they take time, for progress bars.
    costs = [count * (1000 + case.width) for case, count in zip(chosen, counts, strict=True)]
    total, done = sum(costs) + _INVERSION_COST * selection.inversion, 0

    def reporter(cost: int, name: str) -> Callable[[float], None]:
        nonlocal done
        start, done = done, done + cost
        on_progress(start / total, name)
        return lambda share: on_progress((start + share * cost) / total, name)

    results = [
        audit(case, trials=count, confidence=confidence, delta=delta, seed=seed,
              on_progress=reporter(cost, case.name))
        for case, count, cost in zip(chosen, counts, costs, strict=True)
    ]  # fmt: skip
    found = None
    if selection.inversion:
        images = 1 if selection.is_quick else 10
        told = reporter(_INVERSION_COST, INVERSION)
        found = invert(per_class=images, seed=seed, on_progress=told)
    on_progress(1.0, "done")
    return Suite(tuple(results), found, confidence, seed)


def write_results(suite: Suite, directory: Path) -> list[Path]:
    """Write `audit.json` and the pictures; all of them or none."""
    text = json.dumps(suite.to_json(), indent=2, allow_nan=False)
    contents = {"audit.json": text.encode() + b"\n"}
    if suite.results:
        drawn = [
            each for each in suite.results if not each.case.planted or each.case.name in EXPLOITS
        ]
        contents["audit.png"] = audit_picture(drawn, confidence=suite.confidence)
    if suite.inversion is not None:
        contents["inversion.png"] = inversion_picture(suite.inversion)
    replace_files({directory / name: content for name, content in contents.items()})
    return [directory / name for name in contents]


def report(suite: Suite) -> tuple[Table | str, ...]:
    """Make what to print: the tables, and how to read them."""
    parts: list[Table | str] = []
    plain = [result for result in suite.results if not result.case.planted]
    planted = [result for result in suite.results if result.case.planted]
    parts += [_audits(plain, suite.confidence)] if plain else []
    parts += [_planted(planted)] if planted else []
    if suite.results:
        whole = f", and {suite.false_alarm:.2g} in this whole run" if suite.false_alarm else ""
        parts.append(
            "Measured is what an attack achieved: the true epsilon is at least that. A correct "
            f"mechanism is contradicted with probability at most {1 - suite.confidence:.2g} in a "
            f"case{whole}."
        )
    if planted:
        found = sum(result.is_wrong for result in planted)
        parts.append(f"Planted errors found: {found} of {len(planted)}.")
    parts += [
        f"{result.trials:,} trials may be too few to find {result.case.name}: it takes some "
        f"{result.case.trials:,}."
        for result in planted
        if result.trials < result.case.trials and not result.is_wrong
    ]
    if suite.inversion is not None:
        count = len(suite.inversion.labels)
        parts.append(_inversion(suite.inversion))
        parts.append(
            "Similarity is the correlation of estimate and image, each less the average of public "
            "images: 0 for whoever learns nothing. Labels by luck: 10%."
        )
        if count < _MANY_IMAGES:
            parts.append(f"With {count} images only, these numbers vary much by chance.")
    return tuple(parts)


def listing() -> Table:
    """Make the table of the names that can be asked for."""
    table = Table(title="Cases, and the errors that can be planted in them", title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("what, against whom, and what is protected")
    table.add_column("errors")
    for name, make in cases().items():
        if "+" not in name:
            case = make()
            errors = [other.partition("+")[2] for other in cases() if other.startswith(f"{name}+")]
            what = f"{case.title}; {case.game.adversary}; {case.scope.short}"
            table.add_row(name, what, ", ".join(errors))
    table.add_row(INVERSION, "images from gradients; public hashes; client, replace, local")
    return table


def _table(title: str, first: str, right: Sequence[str], **more: Any) -> Table:
    table = Table(title=title, title_justify="left", **more)
    table.add_column(first, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right")
    return table


def _audits(results: Sequence[AuditResult], confidence: float) -> Table:
    table = _table(
        f"Lower bounds on epsilon, each with {confidence:.4g} confidence",
        "case, adversary and\nwhat is protected",
        ("delta", "epsilon\nstated", "epsilon\nmeasured"),
        pad_edge=False,
    )
    table.add_column("verdict", min_width=11)
    for result in results:
        case, stated = result.case, result.claimed
        rounds = f", {case.rounds} rounds" if case.rounds > 1 else ""
        lines = [f"[bold]{case.name}[/bold]", str(case.game.adversary), case.scope.short + rounds]
        lines += ["simulated noise: engines refuse it"] if case.simulated else []
        unlimited = math.isinf(float(stated))
        table.add_row(
            "\n".join(lines),
            f"{stated.delta:g}",
            "none" if unlimited else f"{stated.shown()}\n{stated.basis_text}",
            _measured(result, ("\nexact:\n", "")),
            f"[{_STYLES[result.verdict][0]}]{result.verdict}[/]",
            end_section=True,
        )
    return table


def _planted(results: Sequence[AuditResult]) -> Table:
    """Make a row for each case, a column for each error: stated, measured, whether it was found."""
    found = {tuple(result.case.name.split("+")): result for result in results}
    errors = list(dict.fromkeys(error for _, error in found))
    title = "Planted errors: epsilon stated, and measured"
    table = _table(title, "case", [error.replace("-", "\n") for error in errors], pad_edge=False)
    for name in dict.fromkeys(name for name, _ in found):
        cells = []
        for error in errors:
            result = found.get((name, error))
            if result is None:
                cells.append("")
                continue
            stated = min(float(result.claimed), math.inf if result.limit is None else result.limit)
            colour, word = ("green", "") if result.is_wrong else ("bold red", "\nmissed")
            shown = result.measured.lower_bound.shown(2)
            cells.append(f"{stated:.2g}\n[{colour}]{shown}{word}[/]")
        table.add_row(name, *cells)
    return table


def _inversion(result: InversionResult) -> Table:
    table = _table(
        f"What a server recovers of {len(result.labels)} images from their gradients",
        "message, and what limits it",
        ("similarity\nmean", "least", "labels\nright"),
    )
    for recovery in result.recoveries:
        table.add_row(
            f"[bold]{recovery.name}[/bold]\n{_limits(recovery, nothing='nothing')}",
            f"{recovery.similarities.mean():.2f}",
            f"{recovery.similarities.min():.2f}",
            f"{recovery.labels_right:.0%}",
            end_section=True,
        )
    return table


def _limits(recovery: ImageRecovery, *, nothing: str) -> str:
    """Say what limits a recovery: the guarantee of the sender, and what the paper claims."""
    lines = []
    for prefix, epsilon, none in (
        ("", recovery.epsilon, nothing),
        ("Theorem 1: ", recovery.claimed, "no claim"),
    ):
        if epsilon is not None and math.isinf(float(epsilon)):
            lines.append(f"{prefix}{none}\n({epsilon.scope.short})")
        elif epsilon is not None:
            lines.append(
                f"{prefix}epsilon = {epsilon.shown()}, delta = {epsilon.delta:g}\n"
                f"({epsilon.terms('short')})"
            )
    return "\n".join(lines)


def _measured(result: AuditResult, around: tuple[str, str]) -> str:
    """Format the lower bound, and the exact limit between the two texts, where it is known."""
    text = f">= {result.measured.lower_bound.shown()}"
    if result.limit is None:
        return text
    exact = "infinite" if math.isinf(result.limit) else f"{result.limit:.3g}"
    return f"{text}{around[0]}{exact}{around[1]}"


def audit_picture(results: Sequence[AuditResult], *, confidence: float) -> bytes:
    """Draw, as a PNG, the claimed epsilon and the measured lower bound of each case."""
    figure = Figure(figsize=(11, 1.6 + 0.5 * len(results)), dpi=130, layout="constrained")
    axes = figure.subplots()
    places = np.arange(len(results))[::-1]
    measured = [float(result.measured.lower_bound) for result in results]
    axes.barh(places, measured, height=0.55, color=[_STYLES[r.verdict][1] for r in results])
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
            _measured(result, (" (exact: ", ")")), (max(x for x in taken if x < far), place),
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
        for verdict, (_, colour) in _STYLES.items()
    ]
    handles += [
        Line2D([], [], color="black", linewidth=2.5, label="claimed or proven epsilon"),
        Line2D([], [], color="0.4", marker="D", linestyle="", label="exact, best attack"),
    ]
    figure.legend(handles=handles, fontsize=8, loc="outside lower center", ncols=3)
    return _png(figure)


def inversion_picture(result: InversionResult) -> bytes:
    """Draw, as a PNG, private images and those recovered from each kind of message."""
    rows = [("the client's image", "", result.images)]
    for each in result.recoveries:
        found = f"similarity {each.similarities.mean():.2f}, labels right {each.labels_right:.0%}"
        caption = f"{_limits(each, nothing='nothing proven')}\n{found}"
        rows.append((each.name, caption, each.images))
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


def _png(figure: Figure) -> bytes:
    stream = io.BytesIO()
    FigureCanvasAgg(figure)
    figure.savefig(stream, format="png")
    return stream.getvalue()

"""What the audit prints and writes: tables, how to read them, JSON and pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from diffsketch.auditing.catalogue import INVERSION, cases
from diffsketch.auditing.exploits import EXPLOITS
from diffsketch.auditing.inversion import InversionResult
from diffsketch.auditing.pictures import audit_picture, inversion_picture
from diffsketch.auditing.run import AuditResult, Verdict
from diffsketch.auditing.suite import Suite
from diffsketch.files import replace_files
from diffsketch.privacy.claim import Epsilon, Scope

__all__ = ["listing", "report", "write_results"]

_MANY_IMAGES = 100
_STYLES = {
    Verdict.CONTRADICTED: "bold red",
    Verdict.LESS_NOISE: "bold red",
    Verdict.CONSISTENT: "green",
    Verdict.NOTHING_CLAIMED: "dim",
}


def report(suite: Suite) -> tuple[Table | str, ...]:
    """What to print: the tables, and how to read them."""
    parts: list[Table | str] = []
    if suite.results:
        plain = [result for result in suite.results if not result.case.planted]
        planted = [result for result in suite.results if result.case.planted]
        parts += [_audits(plain, suite.confidence)] if plain else []
        parts += [_planted(planted)] if planted else []
        parts += _reading(suite)
    if suite.inversion is not None:
        parts += [_inversion(suite.inversion)]
        parts.append(
            "Similarity is the correlation of estimate and image, each less the average of public "
            "images: 0 for whoever learns nothing. Labels by luck: 10%."
        )
        count = len(suite.inversion.labels)
        if count < _MANY_IMAGES:
            parts.append(f"With {count} images only, these numbers vary much by chance.")
    return tuple(parts)


def listing() -> Table:
    """The names that can be asked for."""
    table = Table(title="Cases, and the errors that can be planted in them", title_justify="left")
    table.add_column("case", no_wrap=True)
    table.add_column("what, against whom, and what is protected")
    table.add_column("errors")
    for name, make in cases().items():
        if "+" not in name:
            case = make()
            errors = [other.partition("+")[2] for other in cases() if other.startswith(f"{name}+")]
            what = f"{case.title}; {case.game.adversary}; {_scope(case.scope)}"
            table.add_row(name, what, ", ".join(errors))
    table.add_row(INVERSION, "images from gradients; public hashes; client, replace, local")
    return table


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


def _audits(results: Sequence[AuditResult], confidence: float) -> Table:
    table = Table(
        title=f"Lower bounds on epsilon, each with {confidence:.4g} confidence",
        title_justify="left",
        pad_edge=False,
    )
    table.add_column("case, adversary and\nwhat is protected", no_wrap=True)
    for heading in ("delta", "epsilon\nstated", "epsilon\nmeasured"):
        table.add_column(heading, justify="right")
    table.add_column("verdict", min_width=11)
    for result in results:
        case = result.case
        lines = [f"[bold]{case.name}[/bold]", str(case.game.adversary), _scope(case.scope)]
        if case.rounds > 1:
            lines[-1] += f", {case.rounds} rounds"
        if case.simulated:
            lines.append("simulated noise: engines refuse it")
        table.add_row(
            "\n".join(lines),
            f"{result.claimed.delta:g}",
            _claimed(result.claimed),
            _measured(result),
            f"[{_STYLES[result.verdict]}]{result.verdict}[/]",
            end_section=True,
        )
    return table


def _planted(results: Sequence[AuditResult]) -> Table:
    """A row for each case, a column for each error: stated, measured, and whether it was found."""
    errors = dict.fromkeys(result.case.name.partition("+")[2] for result in results)
    rows: dict[str, dict[str, AuditResult]] = {}
    for result in results:
        name, _, error = result.case.name.partition("+")
        rows.setdefault(name, {})[error] = result
    table = Table(
        title="Planted errors: epsilon stated, and measured", title_justify="left", pad_edge=False
    )
    table.add_column("case", no_wrap=True)
    for error in errors:
        table.add_column(error.replace("-", "\n"), justify="right")
    for name, found in rows.items():
        table.add_row(name, *(_cell(found.get(error)) for error in errors))
    return table


def _cell(result: AuditResult | None) -> str:
    if result is None:
        return ""
    bound = float(result.claimed)
    if result.limit is not None:
        bound = min(bound, result.limit)
    colour = "green" if result.is_wrong else "bold red"
    word = "" if result.is_wrong else "\nmissed"
    return f"{bound:.2g}\n[{colour}]{result.measured.lower_bound.shown(2)}{word}[/]"


def _scope(scope: Scope) -> str:
    return f"{scope.unit}, {scope.relation}, {scope.trust}"


def _claimed(epsilon: Epsilon) -> str:
    return "none" if math.isinf(float(epsilon)) else f"{epsilon.shown()}\n{epsilon.basis_text}"


def _measured(result: AuditResult) -> str:
    text = f">= {result.measured.lower_bound.shown()}"
    if result.limit is not None:
        exact = "infinite" if math.isinf(result.limit) else f"{result.limit:.3g}"
        text += f"\nexact:\n{exact}"
    return text


def _reading(suite: Suite) -> list[str]:
    lines = [
        "Measured is what an attack achieved: the true epsilon is at least that. A correct "
        f"mechanism is contradicted with probability at most {1 - suite.confidence:.2g} in a case"
        + (f", and {suite.false_alarm:.2g} in this whole run." if suite.false_alarm else ".")
    ]
    planted = [result for result in suite.results if result.case.planted]
    if planted:
        found = sum(result.is_wrong for result in planted)
        lines.append(f"Planted errors found: {found} of {len(planted)}.")
    for result in planted:
        few = result.trials < result.case.trials
        if few and not result.is_wrong:
            lines.append(
                f"{result.trials:,} trials may be too few to find {result.case.name}: it takes "
                f"some {result.case.trials:,}."
            )
    return lines


def _inversion(result: InversionResult) -> Table:
    table = Table(
        title=f"What a server recovers of {len(result.labels)} images from their gradients",
        title_justify="left",
    )
    table.add_column("message, and what limits it", no_wrap=True)
    for heading in ("similarity\nmean", "least", "labels\nright"):
        table.add_column(heading, justify="right")
    for recovery in result.recoveries:
        lines = [f"[bold]{recovery.name}[/bold]", _in_words(recovery.epsilon, none="nothing")]
        if recovery.claimed is not None:
            lines.append(f"Theorem 1: {_in_words(recovery.claimed, none='no claim')}")
        table.add_row(
            "\n".join(lines),
            f"{recovery.similarities.mean():.2f}",
            f"{recovery.similarities.min():.2f}",
            f"{recovery.labels_right:.0%}",
            end_section=True,
        )
    return table


def _in_words(epsilon: Epsilon, *, none: str) -> str:
    if math.isinf(float(epsilon)):
        return f"{none}\n({_scope(epsilon.scope)})"
    return (
        f"epsilon = {epsilon.shown()}, delta = {epsilon.delta:g}\n"
        f"({epsilon.basis_text}; {_scope(epsilon.scope)})"
    )

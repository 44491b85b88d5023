"""Small runs for the tests of their pages: settings, runs that are made up, parts of a page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from diffsketch.app.settings import RunConfig
from diffsketch.pages.exhibits import Page, Plot, Series, Table
from diffsketch.pages.runs_reading import Point, Run
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit

SMALL = ["--workers", "3", "--samples", "20", "--rounds", "4", "--evaluate-every", "2"]
SCRIPT = "<script>alert(1)</script>"
SCOPE = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)


def plot_of(page: Page, name: str) -> Plot:
    found = {one.name: one for section in page.sections for one in section.exhibits}
    plot = found[name]
    assert isinstance(plot, Plot)
    return plot


def series_of(page: Page, plot: str, name: str) -> Series:
    return next(one for one in plot_of(page, plot).series if one.name == name)


def results_of(page: Page) -> dict[str, dict[str, Any]]:
    table = next(one for one in page.sections[0].exhibits if isinstance(one, Table))
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return {str(row["Run"]): row for row in rows}


def point(index: int, accuracy: float, *, loss: float | None = 1.0) -> Point:
    spent = Epsilon(float("inf"), 1e-5, index, Basis.NONE, SCOPE)
    return Point(index, accuracy, loss, 100 * index, 10 * index, spent, None)


def made(
    curve: tuple[Point, ...] = (point(0, 0.1),),
    *,
    outcome: str = "finished",
    name: str | None = None,
    path: str = "somewhere",
    **settings: Any,
) -> Run:
    config = RunConfig(**{"method": "none", "algorithm": "sgd", "rounds": 10, **settings})
    last = curve[-1]
    summary = {
        "outcome": outcome, "reason": "", "diverging": False, "rounds": last.round_index,
        "accuracy": last.accuracy, "best_accuracy": last.accuracy, "message_bytes": 7,
        "bytes_up": last.bytes_up, "bytes_down": last.bytes_down, "claim": "", "assumes": [],
        "uncompressed_bytes_up": 0, "uncompressed_bytes_down": 0, "noised_share": None,
        "epsilon": {
            "value": None, "delta": 1e-5, "basis": "none", "unit": "client",
            "relation": "replace", "trust": "local", "rounds": last.round_index,
            "simulated": False,
        },
    }  # fmt: skip
    return Run(
        path=Path(path),
        config=config,
        curve=curve,
        summary=summary if outcome not in ("interrupted", "under way") else None,
        rounds=last.round_index,
        seconds=None,
        outcome=outcome,
        versions={},
        command="",
        name=name,
    )

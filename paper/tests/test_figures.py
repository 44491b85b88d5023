"""Plots, tables and facts of records, as an entry of `figures.toml` describes them."""

from __future__ import annotations

from typing import Any

import pytest

from diffsketch.pages.exhibits import Mark, Table
from diffsketch.privacy.claim import Basis, Epsilon, Relation, Scope, Trust, Unit
from paper import figures
from paper.experiments import Variant
from paper.figures import draw, exhibits_of
from paper.methods import COORDINATE
from paper.tests.made_up import experiment_of

PLOT: dict[str, Any] = {
    "name": "{panel}", "title": "Of {panel}", "x": {"field": "x", "label": "x"},
    "y": {"field": "y", "label": "y"}, "low": "low", "high": "high",
    "series": [{"of": "points", "name": "{line}"}],
    "marks": [{"of": "points", "value": "y", "label": "first of {line}"}],
}  # fmt: skip


def point(line: str, x: float, y: Any, **more: Any) -> dict[str, Any]:
    return {"panel": "a", "line": line, "x": x, "y": y, "low": None, "high": None, **more}


def plots_of(*points: dict[str, Any], **entry: Any) -> list[Any]:
    return exhibits_of("made-up", [{**PLOT, **entry}], {"points": points})


def test_records_of_a_name_are_a_line_in_the_plot_of_its_name() -> None:
    first, second = plots_of(
        point("one", 2.0, 0.2, role="role"), point("one", 1.0, 0.1, role="role"),
        point("empty", 1.0, None), point("other", 1.0, 0.5, panel="b"),
    )  # fmt: skip
    assert [plot.name for plot in (first, second)] == ["made-up-a", "made-up-b"]
    assert first.title == "Of a"
    (line,) = first.series  # what has no number is left out
    assert (line.x, line.y, line.kind, line.role) == ((1.0, 2.0), (0.1, 0.2), "line", "role")
    assert first.marks == (Mark(0.2, "first of one"),)  # the second has the same label
    plain = [{"of": "points", "name": "{line}", "plain": True, "dashed": True}]
    (line,) = plots_of(point("one", 1.0, 0.1, role="role"), series=plain)[0].series
    assert (line.role, line.dashed) == ("", True)


@pytest.mark.parametrize(("low", "kind"), [(0.05, "band"), (None, "line")])
def test_there_is_a_spread_where_all_records_have_one(low: float | None, kind: str) -> None:
    points = (point("one", 1.0, 0.1, low=0.0, high=0.2), point("one", 2.0, 0.1, low=low, high=0.2))
    (line,) = plots_of(*points)[0].series
    assert (line.kind, line.low) == (kind, (0.0, low) if low else ())


def test_steps_end_at_the_last_place_and_bars_stand_at_their_categories() -> None:
    steps = [{"of": "points", "name": "{line}", "kind": "steps"}]
    (line,) = plots_of(point("one", 0.0, 0.3), point("one", 1.0, None), series=steps)[0].series
    assert (line.x, line.y) == ((0.0, 1.0), (0.3,))
    bars = plots_of(point("z", 9, 0.1), point("z", 3, 0.2), point("y", 3, 0.5), categories=True)[0]
    assert bars.categories == ("9", "3")
    assert [line.x for line in bars.series] == [(0.0, 1.0), (1.0,)]


def test_the_legend_says_what_epsilons_are_worth_only_where_all_are_alike() -> None:
    client = Scope(Unit.CLIENT, Relation.REPLACE, Trust.LOCAL)
    epsilons = [Epsilon(1.0, 0.0, 1, Basis.CLAIMED, scope) for scope in (COORDINATE, client)]
    named = [{"of": "points", "name": "{line}", "epsilon_text": "each"}]
    for second, worth in ((epsilons[0], epsilons[0]), (epsilons[1], None)):
        points = (point("one", 1.0, epsilons[0]), point("one", 2.0, second))
        (line,) = plots_of(*points, series=named)[0].series
        assert (line.epsilon, line.epsilon_along) == (worth, "y")
        assert line.epsilon_text == ("each" if worth else "")


def test_figures_have_the_tables_and_facts_of_their_drawing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = {"of": "rows", "name": "{group}", "columns": {"{unit}": "value", "other": "nothing"}}
    drawing = {
        "exhibit": [{**rows, "where": {"group": "x"}}, {"use": "shared", "proven": True}],
        "facts": [{"of": "rows", "where": {"group": "x"}, "names": {"fact/{value}": "value"}}],
        "text": ["Of {seeds}, {what}."],
    }
    content = {"curves": drawing, "shared": {**rows, "where": {"group": "y"}}}
    monkeypatch.setattr(figures, "texts", lambda: content)
    variants, options = (Variant("v", ("a",), {}),), {"what": "more"}
    experiment = experiment_of("made-up", "curves", seeds=2, variants=variants, options=options)
    records = [{"group": group, "value": value, "unit": "m"} for group, value in
               (("x", 1), ("y", 2), ("x", 3))]  # fmt: skip
    figure = draw(experiment, {"rows": records})
    assert figure.exhibits == (Table("made-up-x", "", ("m", "other"), ((1, None), (3, None))),)
    assert [table.name for table in figure.proven] == ["made-up-y"]
    assert figure.facts == {"seeds": 2, "fact/1": 1, "fact/3": 3}
    assert figure.text == ("Of 2 seeds, more.",)

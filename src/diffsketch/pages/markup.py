"""Parts of a page as HTML: plots with their controls, tables, sections. All text is escaped."""

from __future__ import annotations

import html
import itertools
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from diffsketch.pages.exhibits import Cell, Exhibit, Mark, Plot, Section, Series, Table
from diffsketch.pages.interactive import figure, group_of, switched
from diffsketch.pages.labels import DASH, cell_text, drawable, epsilon_text
from diffsketch.pages.palette import NEUTRAL, Look, has_symbols, role_of
from diffsketch.privacy.claim import Basis, Epsilon

__all__ = ["json_text", "plot_html", "prose", "section_html", "table_html"]

_VERDICTS = (
    ("holds in part", "part"),
    ("holds", "holds"),
    ("fails", "fails"),
    ("not measured", "unmeasured"),
)
_LONG = 60  # characters of a cell that deserves a wide column
_SHAPES = {
    "circle": '<circle cx="13" cy="6" r="4"/>',
    "square": '<path d="M9 2h8v8h-8z"/>',
    "diamond": '<path d="M13 1l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M13 1l5 9h-10z"/>',
    "triangle-down": '<path d="M13 11l5-9h-10z"/>',
    "pentagon": '<path d="M13 1l5 4-2 6h-6l-2-6z"/>',
    "star": '<path d="M13 0l1.6 4H19l-3.4 2.7 1.3 4.3-3.9-2.6-3.9 2.6 1.3-4.3L7 4h4.4z"/>',
    "hexagon": '<path d="M10 1.5h6l3 4.5-3 4.5h-6L7 6z"/>',
}


def json_text(value: object) -> str:
    r"""JSON that may stand inside a script element: no text in it can end the element.

    >>> json_text("</script>")
    '"\\u003c/script\\u003e"'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def prose(text: str) -> str:
    """Escaped text, in which backquotes mark code.

    >>> prose("a < b: `make test`")
    'a &lt; b: <code>make test</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def section_html(section: Section, looks: Mapping[str, Look], *, files: bool) -> str:
    """A section: heading, lead, text, exhibits, and what is folded away."""
    name = html.escape(section.name)
    badge = f'<span class="badge">{html.escape(section.badge)}</span>' if section.badge else ""
    parts = [
        f'<section id="section-{name}" aria-labelledby="heading-{name}">',
        f'<div class="heading"><h2 id="heading-{name}">{html.escape(section.title)}</h2>'
        f"{badge}</div>",
    ]
    if section.lead:
        parts.append(f'<p class="lead">{prose(section.lead)}</p>')
    parts += [f'<p class="text">{prose(text)}</p>' for text in section.text]
    for plots, exhibits in itertools.groupby(section.exhibits, lambda each: isinstance(each, Plot)):
        inner = "\n".join(_exhibit_html(exhibit, looks, files=files) for exhibit in exhibits)
        parts.append(f'<div class="grid">\n{inner}\n</div>' if plots else inner)
    for heading, table in section.details.items():
        inner = table_html(table, files=files, folded=True)
        parts.append(f"<details><summary>{html.escape(heading)}</summary>\n{inner}\n</details>")
    return "\n".join([*parts, "</section>"])


def _exhibit_html(exhibit: Exhibit, looks: Mapping[str, Look], *, files: bool) -> str:
    if isinstance(exhibit, Plot):
        return plot_html(exhibit, looks, files=files)
    return table_html(exhibit, files=files)


def plot_html(plot: Plot, looks: Mapping[str, Look], *, files: bool) -> str:
    """A plot: its data, the place where it is drawn, and buttons for all that a pointer can do.

    Args:
        plot: What to show.
        looks: By role.
        files: Whether `figures` and `data` stand beside the page and are linked.
    """
    name, title = html.escape(plot.name), html.escape(plot.title)
    spec = {"figure": figure(plot, looks), "switched": switched(plot, looks)}
    spoken = html.escape(f"Plot: {plot.title}. {plot.caption}".strip())
    series = [_series_button(plot, index, looks) for index in range(len(plot.series))]
    marks = [_mark_button(index, mark) for index, mark in enumerate(plot.marks)]
    legend = "\n".join(f"<li>{button}</li>" for button in series + marks)
    caption = f"<figcaption>{prose(plot.caption)}</figcaption>" if plot.caption else ""
    return f"""<figure class="card plot" id="exhibit-{name}" aria-labelledby="title-{name}">
<div class="plot-head"><h3 id="title-{name}">{title}</h3>{_tools(plot)}</div>
{_axes(plot)}
<div class="canvas-box" tabindex="0" role="group" aria-label="{title}: plus and minus zoom, \
arrow keys move, 0 resets">
<div class="canvas" role="img" aria-label="{spoken}"></div>
</div>
<ul class="legend" aria-label="Show and hide">
{legend}
</ul>
{caption}
{_downloads(plot.name, ("svg", "png", "csv")) if files else ""}
<script type="application/json">{json_text(spec)}</script>
</figure>"""


def _axes(plot: Plot) -> str:
    """The choice of an x axis, where there is one."""
    if not plot.other_x:
        return ""
    choices = "".join(
        f'<label><input type="radio" name="axis-{html.escape(plot.name)}" value="{index}"'
        f"{'' if index else ' checked'}>{html.escape(axis.label)}</label>"
        for index, axis in enumerate((plot.x, *plot.other_x))
    )
    return f'<fieldset class="axes"><legend>over</legend>{choices}</fieldset>'


def _tools(plot: Plot) -> str:
    parts = []
    if _log_is_sensible(plot):
        pressed = str(plot.y.log).lower()
        parts.append(
            f'<button type="button" class="button" data-action="log" aria-pressed="{pressed}">'
            "log y</button>"
        )
    for action, sign, words in (("in", "+", "Zoom in"), ("out", "\N{MINUS SIGN}", "Zoom out")):
        parts.append(
            f'<button type="button" class="button icon" data-action="{action}" '
            f'aria-label="{words}">{sign}</button>'
        )
    parts.append('<button type="button" class="button" data-action="reset">reset</button>')
    return f'<div class="tools">{"".join(parts)}</div>'


def _log_is_sensible(plot: Plot) -> bool:
    """Whether both scales show everything, and something else: not shares, and over a range."""
    if any(series.kind in ("bars", "steps") for series in plot.series):
        return False
    numbers = [
        number
        for series in plot.series
        for value in (*series.y, *series.low, *series.high)
        if (number := drawable(value)) is not None
    ]
    numbers += [mark.value for mark in plot.marks if mark.axis == "y"]
    if not numbers or min(numbers) <= 0:
        return False
    return plot.y.log or (not plot.y.percent and max(numbers) >= 3 * min(numbers))


def _series_button(plot: Plot, index: int, looks: Mapping[str, Look]) -> str:
    series = plot.series[index]
    name = html.escape(series.name)
    if series.ended:
        name += f' <span class="meaning">&times; {html.escape(series.ended)}</span>'
    meaning = _meaning(series.epsilon, series.epsilon_text)
    title = f' title="{html.escape(series.note)}"' if series.note else ""
    return (
        f'<button type="button" aria-pressed="true" data-group="{group_of(index)}"{title}>'
        f"{_swatch(series, looks[role_of(series)])}"
        f'<span class="words">{name}{meaning}</span></button>'
    )


def _mark_button(index: int, mark: Mark) -> str:
    line = f'<path d="M1 6h24" stroke="{NEUTRAL}" stroke-width="2" stroke-dasharray="2 3"/>'
    return (
        f'<button type="button" aria-pressed="true" data-group="mark-{index}">'
        f'<svg viewBox="0 0 26 12" aria-hidden="true">{line}</svg>'
        f'<span class="words">{html.escape(mark.label)}{_meaning(mark.epsilon)}</span></button>'
    )


def _swatch(series: Series, look: Look) -> str:
    if series.kind in ("bars", "steps"):
        fill = f'fill="{look.colour}" fill-opacity="{0.15 if series.dashed else 0.75}"'
        shape = f'<rect x="6" y="1" width="14" height="10" rx="2" {fill} stroke="{look.colour}"/>'
    else:
        dashes = ' stroke-dasharray="6 4"' if series.dashed else ""
        line = f'<path d="M1 6h24" stroke="{look.colour}" stroke-width="2.5"{dashes}/>'
        open_point = series.kind == "points" and series.dashed
        paint = f'fill="{"none" if open_point else look.colour}" stroke="{look.colour}"'
        point = f"<g {paint}>{_SHAPES[look.symbol]}</g>"
        shape = point if series.kind == "points" else line + point * has_symbols(series)
    return f'<svg viewBox="0 0 26 12" aria-hidden="true">{shape}</svg>'


def _meaning(epsilon: Epsilon | None, instead: str = "") -> str:
    """What an epsilon is worth, on a line of its own: value; basis; unit, relation, trust."""
    if epsilon is None:
        return f' <span class="meaning">{html.escape(instead)}</span>' if instead else ""
    basis = "no claim" if epsilon.basis is Basis.NONE else epsilon.basis_text
    return (
        f' <span class="meaning">{html.escape(instead or epsilon_text(epsilon))} '
        f'<span class="basis basis-{epsilon.basis}">{basis}</span> '
        f"{html.escape(str(epsilon.scope))}</span>"
    )


def table_html(table: Table, *, files: bool, folded: bool = False) -> str:
    """A table whose headings sort it."""
    name = html.escape(table.name)
    numeric = [_is_numeric(table, column) for column in range(len(table.columns))]
    heads = "".join(
        f'<th scope="col" aria-sort="none"{_numeric_class(numeric[column])}>'
        f'<button type="button">{html.escape(heading)}</button></th>'
        for column, heading in enumerate(table.columns)
    )
    rows = "\n".join(
        f"<tr>{''.join(_cell_html(cell, numeric[i]) for i, cell in enumerate(row))}</tr>"
        for row in table.rows
    )
    caption = f'<p class="caption">{prose(table.caption)}</p>' if table.caption else ""
    card = "" if folded else ' class="card table-card"'
    return f"""<div{card} id="exhibit-{name}">
<h3 id="title-{name}">{html.escape(table.title)}</h3>
<div class="scroll" tabindex="0" role="region" aria-labelledby="title-{name}">
<table aria-labelledby="title-{name}">
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table>
</div>
{caption}
{_downloads(table.name, ("csv",)) if files else ""}
</div>"""


def _is_numeric(table: Table, column: int) -> bool:
    cells = [row[column] for row in table.rows if row[column] is not None]
    return bool(cells) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in cells
    )


def _numeric_class(numeric: bool) -> str:
    return ' class="number"' if numeric else ""


def _cell_html(cell: Cell, numeric: bool) -> str:
    css, attributes = _numeric_class(numeric), ""
    if isinstance(cell, Epsilon):
        css = ' class="long"'
    if cell is None:
        return f'<td{css}><span aria-label="none">{DASH}</span></td>'
    text = cell_text(cell)
    inner = prose(text)
    if isinstance(cell, Epsilon):
        inner = _meaning(cell).replace('class="meaning"', 'class="epsilon"').strip()
    if isinstance(cell, str):
        css = ' class="long"' if len(cell) > _LONG else css
        inner = _with_chip(cell)
    elif not isinstance(cell, bool):
        attributes = _number_attribute(float(cell))
    return f'<td{css} data-sort="{html.escape(text)}"{attributes}>{inner}</td>'


def _number_attribute(value: float) -> str:
    """As JavaScript reads it; what is no number has none, and is sorted as text."""
    if math.isnan(value):
        return ""
    shown: Any = repr(value) if math.isfinite(value) else ("Infinity", "-Infinity")[value < 0]
    return f' data-number="{shown}"'


def _with_chip(text: str) -> str:
    """A verdict at the beginning of a cell, as a coloured chip."""
    for words, kind in _VERDICTS:
        if re.match(rf"{words}\b", text, re.IGNORECASE):
            rest = prose(text[len(words) :].lstrip(f" :;,.-{DASH}"))
            return f'<span class="chip chip-{kind}">{text[: len(words)]}</span> {rest}'.rstrip()
    return prose(text)


def _downloads(name: str, kinds: tuple[str, ...]) -> str:
    folder = {"svg": "figures", "png": "figures", "csv": "data"}
    links = "".join(
        f'<a href="{folder[kind]}/{html.escape(name)}.{kind}">{kind.upper()}</a>' for kind in kinds
    )
    return f'<p class="downloads">{links}</p>'

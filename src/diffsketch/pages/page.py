"""A page as one HTML file that needs nothing else, and its files on disk.

The HTML is the Jinja2 template `assets/page.html`, which escapes all text.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from diffsketch.files import prepare_output, replace_files
from diffsketch.pages import charts
from diffsketch.pages.exhibits import (
    Cell,
    Page,
    Plot,
    Series,
    Table,
    all_exhibits,
    cell_text,
    is_numeric,
    meanings,
    to_csv,
    to_latex,
)
from diffsketch.privacy.claim import Epsilon

_LONG = 60  # characters of a cell that deserves a wide column


def render(page: Page) -> str:
    """Make the page's HTML: plotly.js, style, scripts and all numbers inside.

    It links to the files in `data/` beside it, as `write_page` makes them.

    Guarantees (`tests/pages/test_browser.py`, in Chromium):
        * Nothing is requested from anywhere. The page's own policy forbids it as well: of
          scripts only these, known by their hashes, run.
        * Text is shown as it is, whatever is in it (`tests/pages/test_page.py`).
    """
    looks = charts.looks_of(all_exhibits(page), page.roles)
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True
    )
    filters: dict[str, Callable[..., Any]] = {
        "by_kind": lambda exhibits: [
            (are_plots, list(group))
            for are_plots, group in itertools.groupby(exhibits, lambda part: isinstance(part, Plot))
        ],
        "cell_text": cell_text,
        "legend": _legend,
        "meanings": lambda plots: meanings(plots).items(),
        "numeric": lambda table: [is_numeric(table, at) for at, _ in enumerate(table.columns)],
        "prose": prose,
        "sort_number": _sort_number,
        "spec": lambda plot: json_text(charts.spec(plot, looks)),
    }
    environment.filters |= filters
    environment.tests |= {
        "epsilon": lambda cell: isinstance(cell, Epsilon),
        "long": _is_long,
        "wordy": lambda table: any(_is_long(cell) for row in table.rows for cell in row),
        "with_symbols": charts.has_symbols,
    }
    # first.js sets the theme before anything is shown; plotly.js is three megabytes, so page.js
    # comes after it.
    scripts = [asset("first.js"), str(get_plotlyjs()), asset("page.js")]
    # Hashes and no nonce: a file has no server to make one.
    digests = [hashlib.sha256(script.encode("utf-8")).digest() for script in scripts]
    hashes = [f"'sha256-{base64.b64encode(digest).decode('ascii')}'" for digest in digests]
    policy = (  # Plotly sets styles, hence those are free
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return environment.from_string(asset("page.html")).render(
        page=page,
        looks=looks,
        neutral=charts.NEUTRAL,
        policy=policy,
        style=Markup(asset("page.css")),  # noqa: S704 - our own
        scripts=[Markup(script) for script in scripts],  # noqa: S704 - our own and Plotly's
    )


def asset(name: str) -> str:
    """Read a file of the page's own: template, style or script."""
    file = resources.files("diffsketch.pages").joinpath("assets", name)
    return file.read_text(encoding="utf-8")


def json_text(value: object) -> Markup:
    r"""Format JSON that may stand inside a script element: no text in it can end the element.

    >>> str(json_text("</script>"))
    '"\\u003c/script\\u003e"'
    """
    return htmlsafe_json_dumps(value, allow_nan=False, separators=(",", ":"))


def prose(text: str) -> Markup:
    """Escape text, in which backquotes mark code.

    >>> str(prose("a < b: `make test`"))
    'a &lt; b: <code>make test</code>'
    """
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _is_long(cell: Cell) -> bool:
    return isinstance(cell, Epsilon) or (isinstance(cell, str) and len(cell) > _LONG)


def _legend(plots: Sequence[Plot]) -> dict[str, tuple[Series, str]]:
    """The names in plots that share a legend: one series of each, and the places of all."""
    places: dict[str, list[str]] = {}
    first: dict[str, Series] = {}
    for plot in plots:
        for index, series in enumerate(plot.series):
            first.setdefault(series.name, series)
            places.setdefault(series.name, []).append(f"{plot.name}/series-{index}")
    return {name: (series, " ".join(places[name])) for name, series in first.items()}


def _sort_number(cell: Cell) -> str:
    """Format a number as JavaScript reads it; empty for what is sorted as text."""
    if isinstance(cell, str | bool) or cell is None or math.isnan(float(cell)):
        return ""
    value = float(cell)
    return repr(value) if math.isfinite(value) else ("Infinity", "-Infinity")[value < 0]


def write_page(page: Page, directory: Path, *, figures: bool = False) -> list[Path]:
    """Write `index.html` and `data/<name>.csv`, all or none; with `figures` also PDF, SVG, LaTeX.

    The page itself needs no other file. Whatever else is in the directory, which is made if it does
    not exist, is left as it is. The same page gives the same bytes.

    Returns the files, `index.html` first. Raises an `OSError` where a file cannot be written.
    """
    contents = {directory / "index.html": render(page).encode("utf-8")}
    for exhibit in all_exhibits(page):
        path = directory / "data" / exhibit.name
        contents[path.with_suffix(".csv")] = to_csv(exhibit)
        if figures and isinstance(exhibit, Table):
            contents[path.with_suffix(".tex")] = to_latex(exhibit)
        elif figures and isinstance(exhibit, Plot):
            from diffsketch.pages.pictures import picture  # which takes as long as the page

            looks = charts.looks_of(all_exhibits(page), page.roles)
            for form in ("pdf", "svg"):
                contents[path.with_suffix(f".{form}")] = picture(exhibit, looks, form=form)
    # Before anything is replaced, so that a missing permission leaves the old page whole.
    for folder in sorted({path.parent for path in contents}):
        prepare_output(folder)
    replace_files(contents)
    return list(contents)

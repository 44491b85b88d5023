"""A page as one HTML file that needs nothing else: no network, no other file."""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Mapping
from importlib import resources
from string import Template

from diffsketch.pages.checks import check_page
from diffsketch.pages.exhibits import Page
from diffsketch.pages.interactive import library
from diffsketch.pages.markup import prose, section_html
from diffsketch.pages.palette import looks_of_page

__all__ = ["render"]


def render(page: Page, *, files: bool = False) -> str:
    """The page as HTML: plotly.js, style, scripts and all numbers inside.

    Guarantees (`tests/pages/test_browser.py`, in Chromium):
        * Nothing is requested from anywhere. The page's own policy forbids it as well: of
          scripts only these, known by their hashes, run.
        * Text is shown as it is, whatever is in it (`tests/pages/test_page.py`).

    Args:
        page: What to show.
        files: Whether `figures/` and `data/` stand beside the page and are linked from it, as
            `write_page` makes them.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many.
    """
    check_page(page)
    looks = looks_of_page(page)
    scripts = {"first": _asset("first.js"), "library": library(), "script": _asset("page.js")}
    sections = "\n".join(section_html(section, looks, files=files) for section in page.sections)
    return Template(_asset("page.html")).substitute(
        policy=_policy(scripts),
        title=html.escape(page.title),
        style=_asset("page.css"),
        lead=f'<p class="lead">{prose(page.lead)}</p>' if page.lead else "",
        notice=f'<p class="notice" role="note">{prose(page.notice)}</p>' if page.notice else "",
        navigation=_navigation(page),
        sections=sections,
        origin=_origin(page.origin, files=files),
        **scripts,
    )


def _asset(name: str) -> str:
    file = resources.files("diffsketch.pages").joinpath("assets", name)
    return file.read_text(encoding="utf-8")


def _policy(scripts: Mapping[str, str]) -> str:
    """What the browser may do for this page. Plotly sets styles, hence those are free."""
    hashes = []
    for script in scripts.values():
        digest = hashlib.sha256(script.encode("utf-8")).digest()
        hashes.append(f"'sha256-{base64.b64encode(digest).decode('ascii')}'")
    return (
        f"default-src 'none'; script-src {' '.join(hashes)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _navigation(page: Page) -> str:
    if len(page.sections) < 2:
        return ""
    items = "".join(
        f'<li><a href="#section-{html.escape(section.name)}">{html.escape(section.title)}</a></li>'
        for section in page.sections
    )
    return f'<nav class="contents" aria-label="Sections"><ol>{items}</ol></nav>'


def _origin(origin: Mapping[str, str], *, files: bool) -> str:
    words = "".join(
        f"<dt>{html.escape(name)}</dt><dd>{prose(value)}</dd>" for name, value in origin.items()
    )
    made = f"<h2>What made this page</h2>\n<dl>{words}</dl>" if words else ""
    beside = (
        "<p>The same figures as pictures are in <code>figures</code> beside this page, all "
        "numbers in <code>data</code>.</p>"
        if files
        else ""
    )
    return f"{made}\n{beside}".strip()

"""The page as text: whole, escaped, and closed to the world. In a browser: test_browser.py."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diffsketch.pages.exhibits import (
    Cell,
    Page,
    Plot,
    Section,
    Table,
    all_exhibits,
    to_csv,
    to_latex,
)
from diffsketch.pages.page import json_text, render, write_page
from tests.pages.sample import ERRORS, NASTY, PAGE, SETTINGS

VOID = {"meta", "link", "input", "br", "img"}
SVG = {"path", "rect", "circle"}


class Outline(HTMLParser):
    """Elements with their attributes and text; fails on what is not closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.fixture(scope="module")
def text() -> str:
    return render(PAGE)


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_well_formed_and_has_all_parts(outline: Outline) -> None:
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("section") == 3
    assert tags.count("figure") == 5
    assert tags.count("table") == 2
    assert tags.count("details") == 2  # settings and notes
    ids = [each["id"] for _, each in outline.elements if "id" in each]
    assert len(ids) == len(set(ids))
    links = [each["href"] for tag, each in outline.elements if tag == "a"]
    inside = {link[1:] for link in links if link is not None and link.startswith("#")}
    assert inside <= set(ids)
    assert "section-mnist" in inside
    assert ("b", "Figure 3") in outline.texts
    assert "data/error.csv" in links


def test_nothing_is_asked_from_elsewhere(outline: Outline) -> None:
    for tag, attributes in outline.elements:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        for link in (attributes.get("href") or "", attributes.get("style") or ""):
            assert "://" not in link or link.startswith("data:"), (tag, link)
    assert not [tag for tag, _ in outline.elements if tag in ("img", "iframe", "object", "base")]


def test_only_the_scripts_that_the_policy_names_can_run(outline: Outline, text: str) -> None:
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy is not None
    rules = html.unescape(policy[1])
    named = set(re.findall(r"'sha256-([^']*)'", rules))
    assert "default-src 'none'" in rules
    assert "unsafe-eval" not in rules
    assert "script-src 'unsafe-inline'" not in rules
    scripts = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    hashes = [hashlib.sha256(script.encode()).digest() for script in scripts]
    assert {base64.b64encode(digest).decode() for digest in hashes} == named
    assert len(scripts) == 3
    kinds = [each.get("type") for tag, each in outline.elements if tag == "script"]
    assert kinds.count("application/json") == len(kinds) - 3 == 5


def test_text_is_shown_as_it_is(outline: Outline) -> None:
    shown = [data for tag, data in outline.texts if tag != "script"]
    assert any(NASTY in data for data in shown)
    for place in ("h3", "td", "p", "dd", "span", "b"):
        assert any(NASTY[:24] in data for tag, data in outline.texts if tag == place), place


def test_numbers_inside_are_json_and_end_no_script_element(outline: Outline) -> None:
    parts = [data for tag, data in outline.texts if tag == "script" and data.startswith("{")]
    specs = [json.loads(part) for part in parts]
    assert len(specs) == 5
    assert [axis["label"] for axis in specs[0]["axes"][1:]] == ["rounds", "seconds"]
    nasty = ["</script>", "<!--<script>", "a&b", "]]>"]
    assert not set(json_text(nasty)) & set("<>&")
    assert json.loads(json_text(nasty)) == nasty


def test_a_legend_names_methods_once_for_all_its_plots(text: str) -> None:
    legend = re.findall(r'<button type="button" aria-pressed="true" data-series="([^"]*)"', text)
    places = [place for one in legend for place in one.split()]
    plots = [one for one in all_exhibits(PAGE) if isinstance(one, Plot)]
    assert sorted(places) == sorted(
        f"{plot.name}/series-{index}" for plot in plots for index, _ in enumerate(plot.series)
    )
    shared = "accuracy/series-1 error/series-0"  # DiffSketch 50x, in two plots
    assert shared in legend
    words = re.findall(r'<span class="words">(.*?)</span></button>', text)
    assert len(words) == len(legend)
    assert not any("trust" in one for one in words)


def test_what_an_epsilon_is_worth_is_said_once_a_figure(outline: Outline) -> None:
    words = " ".join("".join(data for tag, data in outline.texts if tag == "span").split())
    assert words.count("ε = 7.99 at δ = 1e-05 over 60 rounds") == 2  # and in a table
    assert "ε = 7.99 at δ = 1e-05 over 60 rounds" in words
    assert "client unit, replace, distributed trust" in words
    assert "ε = 1 a round" in words
    assert "ε ≥ 3.44 at δ = 1e-05 after 1 round" in words  # of a mark; a lower bound goes down
    kinds = {each.get("class") for tag, each in outline.elements if tag == "span"}
    for basis in ("proven", "claimed", "measured", "none"):
        assert f"basis basis-{basis}" in kinds


def cells(*column: Cell) -> list[str]:
    """HTML of the cells of a table with one column."""
    table = Table("t", "T", ("value",), tuple((cell,) for cell in column))
    text = render(Page("t", "", (Section("s", "S", exhibits=(table,)),)))
    return re.findall(r"<tr>(<td.*?</td>)</tr>", text)


def test_cells_sort_by_their_numbers() -> None:
    number, nothing, infinite, undefined, truth = cells(1234.5, None, math.inf, math.nan, True)
    assert 'data-sort="1,234" data-number="1234.5"' in number
    assert "data-sort" not in nothing
    assert 'data-number="Infinity"' in infinite
    assert "data-number" not in undefined + truth


def test_small_pages() -> None:
    text = render(Page("Title", "", (Section("one", "One"),)))
    for absent in ('class="contents"', 'class="notice" role', 'downloads">', "What made this page"):
        assert absent not in text
    render(Page("Nothing", "", ()))


SMALL = Page("Small", "", (Section("s", "S", exhibits=(ERRORS,), details={"more": (SETTINGS,)}),))


def below(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.*"))


@pytest.mark.parametrize("figures", [False, True])
def test_everything_is_written(tmp_path: Path, figures: bool) -> None:
    target = tmp_path / "new" / "page"
    written = write_page(SMALL, target, figures=figures)
    names = ["index.html", "data/error.csv", "data/settings.csv"]
    if figures:
        names[2:2] = ["data/error.pdf", "data/error.svg"]
        names.append("data/settings.tex")
        assert (target / "data/error.pdf").read_bytes().startswith(b"%PDF")
        assert (target / "data/settings.tex").read_bytes() == to_latex(SETTINGS)
    assert [path.relative_to(target).as_posix() for path in written] == names
    assert below(target) == sorted(path.relative_to(target).as_posix() for path in written)
    assert (target / "index.html").read_text(encoding="utf-8") == render(SMALL)
    assert (target / "data/settings.csv").read_bytes() == to_csv(SETTINGS)


def test_all_or_none(tmp_path: Path) -> None:
    write_page(SMALL, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in below(tmp_path)}
    (tmp_path / "data" / "claims.csv").mkdir()  # in the way
    with pytest.raises(IsADirectoryError):
        write_page(PAGE, tmp_path)
    (tmp_path / "data" / "claims.csv").rmdir()
    assert {name: (tmp_path / name).read_bytes() for name in below(tmp_path)} == before

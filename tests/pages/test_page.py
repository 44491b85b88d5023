"""The page as text: whole, escaped, and closed to the world. In a browser: test_browser.py."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diffsketch.pages.charts import looks_of, picture
from diffsketch.pages.exhibits import Cell, Page, Plot, Section, Table, all_exhibits
from diffsketch.pages.page import json_text, render, write_page
from diffsketch.pages.tables import to_csv
from tests.pages.sample import ACCURACY, ERRORS, NASTY, PAGE, SETTINGS, VERDICTS

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
    return render(PAGE, files=True)


@pytest.fixture(scope="module")
def outline(text: str) -> Outline:
    parser = Outline()
    parser.feed(text)
    parser.close()
    assert parser.open == []
    return parser


def test_the_page_is_well_formed_and_has_all_parts(outline: Outline) -> None:
    tags = [tag for tag, _ in outline.elements]
    assert tags.count("section") == 4  # with the scoreboard
    assert tags.count("figure") == 5
    assert tags.count("table") == 2
    assert tags.count("details") == 3  # settings, notes, and the numbers of a verdict
    ids = [each["id"] for _, each in outline.elements if "id" in each]
    assert len(ids) == len(set(ids))
    links = [each["href"] for tag, each in outline.elements if tag == "a"]
    inside = {link[1:] for link in links if link is not None and link.startswith("#")}
    assert inside <= set(ids)
    assert "section-mnist" in inside
    # Each verdict is linked from the scoreboard, and back; the index has the figure's number.
    for one in VERDICTS:
        assert {f"claim-{one.name}", f"board-{one.name}"} <= inside
    assert ("b", "Figure 3") in outline.texts
    assert {"figures/error.png", "data/error.csv"} <= set(links)


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
    for place in ("h3", "td", "p", "q", "dd", "span", "a"):
        assert any(NASTY[:24] in data for tag, data in outline.texts if tag == place), place


def test_numbers_inside_are_json_and_end_no_script_element(outline: Outline) -> None:
    parts = [data for tag, data in outline.texts if tag == "script" and data.startswith("{")]
    specs = [json.loads(part) for part in parts]
    assert len(specs) == 5
    assert [axis["label"] for axis in specs[0]["axes"][1:]] == ["rounds", "seconds"]
    nasty = ["</script>", "<!--<script>", "a&b", "]]>"]
    assert not set(json_text(nasty)) & set("<>&")
    assert json.loads(json_text(nasty)) == nasty


def test_the_scoreboard_has_its_columns(text: str) -> None:
    columns = re.findall(r"<h2>([^<]*) <b>(\d+)</b></h2>", text)
    expected = [("holds", "1"), ("holds in part", "1"), ("fails", "1"), ("counted apart", "1")]
    assert columns == expected
    assert '<p class="score">Of 3 distinct claims 1 holds.</p>' in text


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


def test_verdicts_are_chips() -> None:
    verdicts = {
        "holds": ("holds", ""),
        "Holds in part: 2 points below": ("part", " 2 points below"),
        "fails, by 3": ("fails", " by 3"),
        "not measured": ("unmeasured", ""),
        "not judged": ("unmeasured", ""),
        "holdsworth": None,
        "it fails": None,
    }
    for made, expected in zip(cells(*verdicts), verdicts.values(), strict=True):
        if expected is None:
            assert "chip" not in made
        else:
            kind, rest = expected
            assert re.search(rf'<span class="chip chip-{kind}">[^<]*</span>{rest}</td>', made)


def test_cells_sort_by_their_numbers() -> None:
    number, nothing, infinite, undefined, truth = cells(1234.5, None, math.inf, math.nan, True)
    assert 'data-sort="1,234" data-number="1234.5"' in number
    assert "data-sort" not in nothing
    assert 'data-number="Infinity"' in infinite
    assert "data-number" not in undefined + truth


def test_small_pages() -> None:
    text = render(Page("Title", "", (Section("one", "One"),)))
    absent_parts = ('class="contents"', 'id="section-board"', 'class="notice" role', 'downloads">')
    for absent in (*absent_parts, "What made this page"):
        assert absent not in text
    render(Page("Nothing", "", ()))


SMALL = Page("Small", "", (Section("s", "S", exhibits=(ERRORS,), details={"more": (SETTINGS,)}),))


def below(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.*"))


def test_everything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page"
    written = write_page(SMALL, target)
    assert written[0] == target / "index.html"
    assert [path.relative_to(target).as_posix() for path in written] == [
        "index.html", "data/error.csv", "figures/error.png", "data/settings.csv",
    ]  # fmt: skip
    assert below(target) == sorted(path.relative_to(target).as_posix() for path in written)
    assert (target / "index.html").read_text(encoding="utf-8") == render(SMALL, files=True)
    assert (target / "data/settings.csv").read_bytes() == to_csv(SETTINGS)
    assert (target / "figures/error.png").read_bytes() == picture(ERRORS)


def test_without_pictures(tmp_path: Path) -> None:
    write_page(SMALL, tmp_path, pictures=False)
    assert below(tmp_path) == ["data/error.csv", "data/settings.csv", "index.html"]
    assert "figures/" not in (tmp_path / "index.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_pictures_have_the_colours_of_their_page(tmp_path: Path) -> None:
    page = Page("t", "", (Section("s", "S", exhibits=(ACCURACY, ERRORS)),))
    write_page(page, tmp_path)
    looks = looks_of(all_exhibits(page))
    assert (tmp_path / "figures/error.png").read_bytes() == picture(ERRORS, looks)
    # Alone it would have others: a control of the test above.
    swapped = replace(ERRORS, series=ERRORS.series[::-1])
    assert picture(swapped) != picture(swapped, looks)


def test_all_or_none(tmp_path: Path) -> None:
    write_page(SMALL, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in below(tmp_path)}
    (tmp_path / "data" / "claims.csv").mkdir()  # in the way
    with pytest.raises(IsADirectoryError):
        write_page(PAGE, tmp_path, pictures=False)
    (tmp_path / "data" / "claims.csv").rmdir()
    assert {name: (tmp_path / name).read_bytes() for name in below(tmp_path)} == before

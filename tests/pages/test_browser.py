"""The page in a real browser: Debian's Chromium, headless, driven by Playwright.

Without Chromium or Playwright the tests are skipped, unless the environment variable
`DIFFSKETCH_BROWSER` is "required", as `.ci/run` sets it: then they fail. Screenshots are kept below
`DIFFSKETCH_SCREENSHOTS`, by default `build/screenshots`.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import plotly.graph_objects as go
import pytest

from diffsketch.pages.charts import NEUTRAL
from diffsketch.pages.exhibits import Axis, Mark, Page, Plot, Section, Series
from diffsketch.pages.page import render, write_page
from tests.pages.sample import ACCURACY, NASTY, PAGE

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api import Page as Tab

pytestmark = pytest.mark.slow  # a browser takes seconds
Opener = Callable[..., "Visit"]
SCREENSHOTS = Path(os.environ.get("DIFFSKETCH_SCREENSHOTS") or "build/screenshots")
PLOTS = [
    exhibit
    for section in PAGE.sections
    for exhibit in section.exhibits
    if isinstance(exhibit, Plot)
]
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]


def unavailable() -> str:
    """Why there is no browser, or nothing."""
    if find_spec("playwright") is None:
        return "playwright is not installed"
    return "" if chromium() else "there is no chromium on the PATH (Debian: apt install chromium)"


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser")


class Visit:
    """A page in a tab of its own, with all that it says and asks for."""

    def __init__(self, tab: Tab, path: Path) -> None:
        self.tab, self.url = tab, path.as_uri()
        self.problems: list[str] = []
        tab.on("console", lambda message: self._heard(message.type, message.text))
        tab.on("pageerror", lambda error: self.problems.append(f"page error: {error}"))
        tab.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))
        tab.context.on("request", lambda request: self._asked(request.url))
        tab.goto(self.url)

    def _heard(self, kind: str, text: str) -> None:
        self.problems.append(f"console {kind}: {text}")

    def _asked(self, url: str) -> None:
        if url.split("#")[0] != self.url and not url.startswith(("data:", "blob:")):
            self.problems.append(f"request: {url}")

    def figure(self, name: str) -> Locator:
        """A plot, scrolled to and drawn."""
        figure = self.tab.locator(f"#exhibit-{name}")
        figure.scroll_into_view_if_needed()
        figure.locator(".canvas .main-svg").first.wait_for()
        return figure

    def state(self, name: str) -> Any:
        """State of a plot in Plotly: its traces, and those that are there to see."""
        return self.figure(name).evaluate(
            """figure => {
                const canvas = figure.querySelector(".canvas");
                return {
                    shown: canvas.data.filter((trace) => trace.visible !== false)
                        .filter((trace) => trace.x.some((value) => value !== null)).length,
                    drawn: canvas.querySelectorAll(".plot g.trace").length,
                    hidden: canvas.data.filter((trace) => trace.visible === false)
                        .map((trace) => trace.legendgroup),
                    x: canvas.layout.xaxis.title.text, xType: canvas._fullLayout.xaxis.type,
                    yType: canvas._fullLayout.yaxis.type,
                    range: canvas._fullLayout.xaxis.range.map(Number),
                    first: canvas.data[1] && canvas.data[1].x.slice(0, 2),
                    marks: canvas.layout.shapes.map((shape) => shape.visible),
                    text: canvas.layout.font.color, width: canvas._fullLayout.width,
                };
            }"""
        )


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    reason = unavailable()
    if reason and os.environ.get("DIFFSKETCH_BROWSER") == "required":
        pytest.fail(f"DIFFSKETCH_BROWSER is required, but {reason}")
    if reason:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(PAGE, tmp_path_factory.mktemp("page"))[0]


@pytest.fixture
def open_page(browser: Browser, written: Path) -> Iterator[Opener]:
    contexts = []

    def opener(
        path: Path = written,
        *,
        viewport: dict[str, int] = DESKTOP,
        scheme: str = "light",
        touch: bool = False,
        stored: dict[str, str] | None = None,
    ) -> Visit:
        context = browser.new_context(
            viewport=viewport,  # type: ignore[arg-type]
            color_scheme=scheme,  # type: ignore[arg-type]
            has_touch=touch,
            is_mobile=touch,
            reduced_motion="reduce",
        )
        contexts.append(context)
        context.set_default_timeout(20_000)
        # Before any script of the page: for files, Chromium on a busy machine forgets what was
        # stored in 1 of 30 reloads, so that a reload would test Chromium instead of the page.
        for name, value in (stored or {}).items():
            context.add_init_script(f"localStorage.setItem({name!r}, {value!r})")
        return Visit(context.new_page(), path)

    yield opener
    for context in contexts:
        context.close()


def test_every_plot_is_drawn_when_it_comes_near_and_nothing_leaves(open_page: Opener) -> None:
    visit = open_page(viewport={"width": 1280, "height": 400})
    last = visit.tab.locator("figure.plot").last
    assert last.locator(".main-svg").count() == 0  # not yet
    for plot in PLOTS:
        state = visit.state(plot.name)
        assert state["drawn"] == state["shown"] > 0, plot.name
        assert state["width"] > 250
    assert last.locator(".main-svg").count() > 0
    assert visit.tab.title() == PAGE.title
    assert visit.tab.locator("#exhibit-nasty h3").text_content() == NASTY
    assert visit.tab.locator("main img, main iframe").count() == 0
    spoken = visit.tab.locator("#exhibit-accuracy [role=img]").get_attribute("aria-label")
    assert spoken is not None
    assert ACCURACY.title in spoken
    assert ACCURACY.caption in spoken
    assert visit.problems == []


PLANTED = {
    '<img src="https://example.invalid/a.png">': "request: https://example.invalid/a.png",
    "<script>console.error('said')</script>": "console error: said",
    "<script>throw new Error('thrown')</script>": "page error: thrown",
}


def test_what_must_not_be_is_found(open_page: Opener, tmp_path: Path) -> None:
    """A control of the checks: without the page's policy all is heard of, with it stopped."""
    text = render(PAGE).replace("</body>", f"{''.join(PLANTED)}</body>")
    guarded, free = tmp_path / "guarded.html", tmp_path / "free.html"
    guarded.write_text(text, encoding="utf-8")
    free.write_text(re.sub(r"<meta http-equiv=[^>]*>", "", text), encoding="utf-8")
    without = open_page(free)
    without.tab.wait_for_timeout(300)
    assert set(PLANTED.values()) <= set(without.problems)
    stopped = open_page(guarded)
    stopped.tab.wait_for_timeout(300)
    violations = [each for each in stopped.problems if "Content Security Policy" in each]
    assert len(violations) >= len(PLANTED)
    # Playwright tells of a request even if the policy stops it; of scripts nothing is heard.
    assert not {"console error: said", "page error: thrown"} & set(stopped.problems)


def test_series_axes_and_zoom_by_pointer_and_keyboard(open_page: Opener) -> None:
    visit = open_page()
    before = visit.state("accuracy")
    assert (before["x"], before["xType"]) == ("bytes from all workers", "log")
    buttons = visit.tab.locator("#section-mnist .legend button")
    shared = buttons.filter(has_text="DiffSketch 50x")
    shared.click()  # also in the plot beside it
    assert visit.state("accuracy")["hidden"] == ["series-1"] * 2
    assert visit.state("error")["hidden"] == ["series-0"]
    shared.click()
    diverged = buttons.nth(3)
    diverged.click()
    after = visit.state("accuracy")
    # Its line, its spread and its cross.
    assert after["hidden"] == ["series-3"] * 3
    assert after["drawn"] == after["shown"] == before["drawn"] - 3
    assert diverged.get_attribute("aria-pressed") == "false"
    diverged.press("Enter")
    assert visit.state("accuracy")["drawn"] == before["drawn"]
    axes = visit.figure("accuracy").locator(".axes")
    axes.select_option("2")
    after = visit.state("accuracy")
    assert (after["x"], after["xType"]) == ("seconds", "linear")
    assert after["first"] == pytest.approx(ACCURACY.series[0].other_x["seconds"][:2])
    axes.press("ArrowUp")
    assert visit.state("accuracy")["x"] == "rounds"
    assert visit.figure("accuracy").locator("[data-action=log]").count() == 0  # of shares
    figure = visit.figure("error")
    figure.locator("[data-action=log]").press("Space")
    assert visit.state("error")["yType"] == "log"
    low, high = visit.state("error")["range"]
    figure.locator(".canvas-box").press("+")
    inner = visit.state("error")["range"]
    assert low < inner[0] < inner[1] < high
    figure.locator(".canvas-box").press("ArrowRight")
    moved = visit.state("error")["range"]
    assert moved[0] > inner[0]
    shared.click()
    assert visit.state("error")["range"] == pytest.approx(moved)  # toggling keeps the zoom
    shared.click()
    figure.locator("[data-action=reset]").click()
    assert visit.state("error")["range"] == pytest.approx([low, high])
    assert visit.problems == []


def hovered(visit: Visit, name: str, point: dict[str, int]) -> str:
    """Text that is shown when the pointer is over a point."""
    show = "(figure, point) => Plotly.Fx.hover(figure.querySelector('.canvas'), [point])"
    visit.figure(name).evaluate(show, point)
    return visit.tab.locator(f"#exhibit-{name} .hoverlayer").text_content() or ""


def test_hover_shows_values_and_notes(open_page: Opener) -> None:
    visit = open_page()
    hover = hovered(visit, "accuracy", {"curveNumber": 3, "pointNumber": 9})
    for words in ("DiffSketch 50x", "bytes from all workers: 66,400", "claimed", "mean of five"):
        assert words in hover
    nasty = hovered(visit, "nasty", {"curveNumber": 0, "pointNumber": 0})
    assert "".join(NASTY.split()) in "".join(nasty.split())  # as text, but for breaks
    assert visit.problems == []


def test_the_theme_is_remembered(open_page: Opener) -> None:
    visit = open_page(scheme="dark")
    theme = "document.documentElement.dataset.theme"
    assert visit.tab.evaluate(theme) == "dark"  # as the system has it
    dark = visit.state("accuracy")["text"]
    visit.tab.locator("#theme").press("Enter")
    assert visit.tab.evaluate(theme) == "light"
    assert visit.state("accuracy")["text"] != dark
    stored = visit.tab.evaluate("({...localStorage})")
    assert stored == {"diffsketch-theme": "light"}
    assert visit.problems == []
    again = open_page(scheme="dark", stored=stored)
    assert again.tab.evaluate(theme) == "light"
    broken = open_page(scheme="dark", stored={"diffsketch-theme": "pink"})
    assert broken.tab.evaluate(theme) == "dark"  # what is no theme is as nothing
    assert again.problems + broken.problems == []


def test_tables_sort(open_page: Opener) -> None:
    visit = open_page()
    table = visit.tab.locator("#exhibit-claims table")
    heading = table.locator("th").nth(4)

    def column() -> list[str]:
        return table.locator("tbody tr td:nth-child(5)").all_text_contents()

    assert heading.get_attribute("aria-sort") == "none"
    heading.locator("button").click()
    assert column() == ["664", "1,300", "31,400", "–"]  # noqa: RUF001 - by size, not by letters
    assert heading.get_attribute("aria-sort") == "ascending"
    heading.locator("button").press("Enter")
    assert column() == ["31,400", "1,300", "664", "–"]  # noqa: RUF001 - nothing stays last
    assert heading.get_attribute("aria-sort") == "descending"
    table.locator("th").nth(3).locator("button").press("Space")
    assert heading.get_attribute("aria-sort") == "none"
    assert column() == ["664", "31,400", "1,300", "–"]  # noqa: RUF001 - by epsilon: 1, 3.4, 8
    assert visit.problems == []


def test_the_keyboard_reaches_the_content(open_page: Opener) -> None:
    visit = open_page()
    visit.tab.keyboard.press("Tab")
    assert visit.tab.evaluate("document.activeElement.className") == "skip"
    visit.tab.keyboard.press("Enter")
    assert visit.tab.evaluate("document.activeElement.id") == "content"
    visit.tab.locator(".contents a[href='#section-mnist']").press("Enter")
    assert visit.tab.url.endswith("#section-mnist")
    assert visit.tab.locator("#section-mnist h2").is_visible()
    assert visit.problems == []


@pytest.mark.parametrize("viewport", [{"width": 1440, "height": 500}, PHONE])
def test_the_index_stays_in_view(open_page: Opener, viewport: dict[str, int]) -> None:
    visit = open_page(viewport=viewport)
    for place in ("#section-mnist h2", ".contents a >> nth=0"):
        visit.tab.locator(".contents a[href='#section-mnist']").click()
        box = visit.tab.locator(place).bounding_box()
        assert box is not None
        assert box["y"] >= 0
        assert box["y"] + box["height"] <= viewport["height"]
    assert visit.problems == []


def test_paper_has_every_plot(open_page: Opener) -> None:
    visit = open_page(scheme="dark")
    assert visit.tab.locator("#exhibit-nasty .main-svg").count() == 0
    assert visit.tab.pdf().startswith(b"%PDF")
    # Drawn before it was printed, without having been scrolled to.
    assert visit.tab.locator("#exhibit-nasty .main-svg").count() > 0
    assert visit.tab.evaluate("document.documentElement.dataset.theme") == "dark"  # again
    assert visit.tab.locator("details[open]").count() == 0
    assert visit.problems == []


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("desktop", "light")])
def test_nothing_overflows_and_screenshots_are_kept(
    open_page: Opener, size: str, scheme: str
) -> None:
    phone = size == "phone"
    visit = open_page(viewport=PHONE if phone else DESKTOP, scheme=scheme, touch=phone)
    width = visit.tab.evaluate("innerWidth")
    for plot in PLOTS:
        assert visit.state(plot.name)["width"] <= width
    if phone:
        assert width == PHONE["width"]
    # A table with words is never cut off: it is read from top to bottom.
    boxes = visit.tab.locator("#exhibit-claims .scroll, .row > div").all()
    assert len(boxes) == 1 + 3
    for box in boxes:
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
        right = box.evaluate("box => box.getBoundingClientRect().right")
        assert right <= width
    for summary in visit.tab.locator("summary").all():
        summary.click()
    assert visit.tab.evaluate("document.documentElement.scrollWidth") <= width
    visit.tab.evaluate("scrollTo(0, 0)")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"page-{size}-{scheme}.png"
    visit.tab.screenshot(path=path, full_page=True)
    assert path.stat().st_size > 50_000
    assert visit.problems == []


def test_what_is_too_wide_would_be_found(open_page: Opener, tmp_path: Path) -> None:
    path = tmp_path / "wide.html"
    wide = '<p style="width: 900px">wide</p></main>'
    path.write_text(render(PAGE).replace("</main>", wide), encoding="utf-8")
    visit = open_page(path, viewport=PHONE)
    assert visit.tab.evaluate("document.documentElement.scrollWidth") > PHONE["width"]


# -- Figures that the page's script makes of plots ---------------------------------------------

BAND = Series("a", (1.0, 2.0, 3.0, 4.0), (5.0, 6.0, None, 8.0), (4.0, 5.0, None, 7.0),
              (6.0, 7.0, None, 9.0), kind="band")  # fmt: skip
ZERO = Series("a", (0.0, 1.0, 2.0), (2.0, 2.0, 0.0), (1.0, -1.0, 0.0), (4.0, 4.0, 4.0), kind="band")
GONE = Series("a", (1.0, 2.0, 3.0), (5.0, 6.0, math.nan), ended="diverged")
CLOSE = Series("a", (1e6, 1e7), (0.99995, 1.0))
FLAT = Series("a", (0.0, 1.0, 2.0), (None, 1.0, 1.0))
LOG, SHARE = Axis("y", log=True), Axis("share", percent=True)
MARKED = (Mark(0.9, "y"), Mark(1e5, "x", axis="x"), Mark(0.0, "gone", axis="x"))
DRAWN = (
    *PLOTS,
    Plot("band", "", Axis("x"), Axis("y"), (BAND,)),
    Plot("zero", "", Axis("x", log=True), LOG, (ZERO,)),
    Plot("gone", "", Axis("x"), Axis("y"), (GONE,)),
    Plot("close", "", Axis("Bytes sent", log=True, unit="B"), SHARE, (CLOSE,)),
    Plot("flat", "", Axis("x"), SHARE, (FLAT,)),
    replace(ACCURACY, name="marked", marks=MARKED),
)


@pytest.fixture(scope="module")
def figures(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Plotly is given for each plot, and of one with its second axis."""
    page = Page("t", "", (Section("s", "S", exhibits=DRAWN),), roles=PAGE.roles)
    path = write_page(page, tmp_path_factory.mktemp("figures"))[0]
    visit, found = Visit(browser.new_page(), path), {}
    given = """figure => {
        const { data, layout } = figure.querySelector(".canvas");
        return { data, layout };
    }"""
    for plot in DRAWN:
        found[plot.name] = visit.figure(plot.name).evaluate(given)
    visit.figure("marked").locator(".axes").select_option("1")
    found["switched"] = visit.figure("marked").evaluate(given)
    assert visit.problems == []
    visit.tab.close()
    return found


def test_plotly_knows_all_that_it_is_given(figures: dict[str, Any]) -> None:
    for figure in figures.values():
        go.Figure(**figure)  # which refuses what it does not know
    with pytest.raises(ValueError, match="Invalid"):
        go.Figure(data=[{"type": "scatter", "marker": {"symbol": "no symbol"}}])


def test_a_band_belongs_to_its_line(figures: dict[str, Any]) -> None:
    shade, line = figures["band"]["data"]
    # Up along the high end, back along the low one; what follows a gap is on its own.
    assert shade["x"] == [1, 2, 2, 1, None, 4, 4, None]
    assert shade["y"] == [6, 7, 5, 4, None, 9, 7, None]
    assert shade["fill"] == "toself"
    assert line["y"] == [5, 6, None, 8]
    assert line["customdata"] == [" (4 to 6)", " (5 to 7)", "", " (7 to 9)"]
    assert line["line"]["dash"] == "solid"
    shade, line = figures["zero"]["data"]
    assert (line["x"], line["y"]) == ([None, 1, 2], [2, 2, None])
    assert shade["y"] == [4, 4, 0.5, 0.5, None]  # half of the least positive number


def test_kinds_of_series(figures: dict[str, Any]) -> None:
    line, points = figures["error"]["data"]
    assert line["y"][2] is None
    assert points["mode"] == "markers"
    assert points["error_y"]["array"][0] == pytest.approx(0.2)
    assert points["error_y"]["arrayminus"][4] == pytest.approx(1.0)
    claimed, measured = figures["privacy"]["data"]
    assert claimed["type"] == measured["type"] == "bar"
    assert claimed["marker"]["pattern"]["shape"] == "/"  # dashed
    assert "pattern" not in measured["marker"]
    assert figures["privacy"]["layout"]["xaxis"]["ticktext"][1] == "Skellam"
    steps, fit = figures["histogram"]["data"]
    assert steps["line"]["shape"] == "hv"
    assert len(steps["x"]) == len(steps["y"]) == len(steps["customdata"]) == 21
    assert steps["customdata"][0] == "-3 to -2.7"
    assert (fit["line"]["dash"], fit["line"]["color"]) == ("6px,4px", NEUTRAL)


def test_ends_hovers_and_names(figures: dict[str, Any]) -> None:
    curves = figures["accuracy"]["data"]
    _, line, end = (trace for trace in curves if trace["legendgroup"] == "series-3")
    assert (end["x"], end["y"]) == (line["x"][-1:], line["y"][-1:])
    assert "diverged in round 22" in end["hovertemplate"]
    # The last point that can be drawn, where the last one cannot.
    assert figures["gone"]["data"][1]["x"] == [2]
    hover = curves[3]["hovertemplate"].replace("<br>", " ")
    for words in ("bytes from all workers: %{x}", "test accuracy: %{y}%{customdata}",
                  "ε = 1 a round (claimed; coordinate unit, add-or-remove, local trust)",
                  "<i>mean of five seeds</i>"):  # fmt: skip
        assert words in hover
    text = json.dumps(figures["nasty"])
    assert not any(part in text for part in ("<script", "<img", "$"))
    assert "%{x}" in text.replace("%&#123;x}", "")  # of the template, not of the name


def test_marks_and_ticks(figures: dict[str, Any]) -> None:
    layout = figures["marked"]["layout"]
    across, upright, gone = layout["shapes"]
    assert (across["yref"], across["y0"], across["y1"], across["xref"]) == ("y", 0.9, 0.9, "paper")
    assert (upright["xref"], upright["x0"], upright["yref"]) == ("x", 1e5, "paper")
    assert not gone["visible"]  # 0, of a logarithmic axis
    # Plotly takes words on a logarithmic axis at the logarithm, and lines at the number.
    assert layout["annotations"][1]["x"] == pytest.approx(5)
    other = figures["switched"]["layout"]["shapes"]
    assert [shape["visible"] for shape in other] == [True, False, False]
    layout = figures["close"]["layout"]
    assert " ".join(layout["xaxis"]["ticktext"]).startswith("100 kB 200 kB 500 kB 1 MB 2 MB")
    digits = int(layout["yaxis"]["tickformat"][1])
    assert f"{0.99995:.{digits}%}" != f"{0.99996:.{digits}%}"
    assert layout["yaxis"]["range"][0] > 0.99  # as close as its numbers
    # Plotly would show a line that is flat at 100% from 0% to 200%.
    assert figures["flat"]["layout"]["yaxis"]["range"] == pytest.approx([0.95, 1.004])

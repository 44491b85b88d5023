"""The documentation as a site: built strictly, complete, without a network, in a real browser."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import zlib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import diffsketch
from tests.helpers.documents import ROOT
from tests.pages.test_browser import SCREENSHOTS, browser  # noqa: F401 - a fixture

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("mkdocs") is None, reason="mkdocs is not installed"),
]
PACKAGES = ["sketch", "privacy", "methods", "planning", "auditing", "ddp", "secure_sum", "wire"]
VISITED = ["index.html", "guides/ddp.html", "notebooks/5-my-model.html", "reference/privacy.html"]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    settings = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(  # noqa: S603 - fixed arguments
        command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_has_a_place(site: Path) -> None:
    data = (site / "objects.inv").read_bytes()
    listed = zlib.decompress(data.split(b"\n", 4)[4]).decode()
    names = {line.split()[0] for line in listed.splitlines()}
    for package in PACKAGES:
        module = importlib.import_module(f"diffsketch.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                assert f"diffsketch.{package}.{name}" in names
            for maker, _ in inspect.getmembers(thing, inspect.ismethod):  # perhaps inherited
                assert f"diffsketch.{package}.{name}.{maker}" in names or "from_" not in maker


def test_the_front_door_links_all_its_names(site: Path) -> None:
    text = (site / "reference" / "diffsketch.html").read_text(encoding="utf-8")
    for name in diffsketch.__all__:
        assert re.search(rf"<code>{name}</code>|id=\"[\w.]*\.{name}\"", text), name
    assert "][" not in re.sub(r"<[^>]*>", "", text.split("</nav>")[-1])  # a link to nowhere
    methods = (site / "reference" / "methods.html").read_text(encoding="utf-8")
    order = re.findall(r'<h2 id="diffsketch\.methods\.(\w+)"', methods)
    assert order[-4:] == ["CpSgd", "DiffSketch", "RawLaplace", "SketchLaplace"]


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]*(?:src|href)=\"?https?://", text), path


@pytest.mark.parametrize("width", [1440, 390])
def test_pages_fit_and_search_finds(site: Path, browser: Browser, width: int) -> None:  # noqa: F811
    tab = browser.new_page(viewport={"width": width, "height": 900})
    heard: list[str] = []
    tab.on("console", lambda message: heard.append(message.text))
    tab.on("pageerror", lambda error: heard.append(str(error)))
    for page in VISITED:
        tab.goto((site / page).as_uri())
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, page
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        tab.screenshot(path=SCREENSHOTS / f"site-{Path(page).stem}-{width}.png")
    if width < 1000:
        tab.locator("label[for=__search].md-header__button").click()
    tab.locator("input.md-search__input").focus()
    tab.get_by_text("Type to start searching").wait_for(state="attached")
    tab.locator("input.md-search__input").press_sequentially("LocalSteps")
    first = tab.locator(".md-search-result__item").first
    first.wait_for(state="attached")
    assert "LocalSteps" in first.inner_text() or "diffsketch.ddp" in first.inner_text()
    tab.close()
    assert heard == []

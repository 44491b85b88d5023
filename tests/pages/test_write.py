"""A page on disk: all files or none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from diffsketch.errors import ArgumentError
from diffsketch.pages.exhibits import Page, Section
from diffsketch.pages.page import render
from diffsketch.pages.palette import looks_of_page
from diffsketch.pages.static import to_png, to_svg
from diffsketch.pages.tabular import to_csv
from diffsketch.pages.write import write_page
from tests.pages.sample import ACCURACY, ERRORS, PAGE, SETTINGS

SMALL = Page("Small", "", (Section("s", "S", exhibits=(ERRORS,), details={"more": SETTINGS}),))


def below(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*.*"))


def test_everything_is_written(tmp_path: Path) -> None:
    target = tmp_path / "new" / "page"
    written = write_page(SMALL, target)
    assert written[0] == target / "index.html"
    assert [path.relative_to(target).as_posix() for path in written] == [
        "index.html", "data/error.csv", "figures/error.svg", "figures/error.png",
        "data/settings.csv",
    ]  # fmt: skip
    assert below(target) == sorted(path.relative_to(target).as_posix() for path in written)
    assert (target / "index.html").read_text(encoding="utf-8") == render(SMALL, files=True)
    assert (target / "data/settings.csv").read_bytes() == to_csv(SETTINGS)
    assert (target / "figures/error.svg").read_bytes() == to_svg(ERRORS)
    assert (target / "figures/error.png").read_bytes() == to_png(ERRORS)


def test_without_pictures(tmp_path: Path) -> None:
    write_page(SMALL, tmp_path, pictures=False)
    assert below(tmp_path) == ["data/error.csv", "data/settings.csv", "index.html"]
    assert "figures/" not in (tmp_path / "index.html").read_text(encoding="utf-8")


def test_pictures_have_the_colours_of_their_page(tmp_path: Path) -> None:
    page = Page("t", "", (Section("s", "S", exhibits=(ACCURACY, ERRORS)),))
    write_page(page, tmp_path)
    assert (tmp_path / "figures/error.svg").read_bytes() == to_svg(ERRORS, looks_of_page(page))
    # Alone it would have others: a control of the test above.
    swapped = replace(ERRORS, series=ERRORS.series[::-1])
    assert to_svg(swapped) != to_svg(swapped, looks_of_page(page))


def test_all_or_none(tmp_path: Path) -> None:
    write_page(SMALL, tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in below(tmp_path)}
    (tmp_path / "data" / "claims.csv").mkdir()  # in the way
    with pytest.raises(IsADirectoryError):
        write_page(PAGE, tmp_path, pictures=False)
    (tmp_path / "data" / "claims.csv").rmdir()
    assert {name: (tmp_path / name).read_bytes() for name in below(tmp_path)} == before


def test_a_wrong_name_leaves_no_trace(tmp_path: Path) -> None:
    wrong = Page("t", "", (Section("s", "S", exhibits=(replace(ERRORS, name="../../x"),)),))
    with pytest.raises(ArgumentError, match="name of exhibit"):
        write_page(wrong, tmp_path / "page")
    assert list(tmp_path.iterdir()) == []

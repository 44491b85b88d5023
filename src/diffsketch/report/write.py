"""A page on disk: the HTML file, its figures as pictures, its numbers as CSV."""

from __future__ import annotations

from pathlib import Path

from diffsketch.files import prepare_output, replace_files
from diffsketch.report.checks import all_exhibits, check_page
from diffsketch.report.exhibits import Page, Plot
from diffsketch.report.page import render
from diffsketch.report.palette import looks_of_page
from diffsketch.report.static import to_png, to_svg
from diffsketch.report.tabular import to_csv

__all__ = ["write_page"]


def write_page(page: Page, directory: Path, *, pictures: bool = True) -> list[Path]:
    """Write `index.html`, `figures/<name>.svg` and `.png`, and `data/<name>.csv`, all or none.

    The page itself needs no other file. What else is in the directory is left as it is. The same
    page gives the same bytes.

    Args:
        page: What to show.
        directory: Made if it does not exist.
        pictures: Whether to make `figures`; without them the page has no links to files.

    Returns:
        The files, `index.html` first.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many.
        OSError: A file cannot be written.
    """
    check_page(page)
    directory = Path(directory)
    looks = looks_of_page(page)
    index = render(page, files=pictures).encode("utf-8")
    contents = {directory / "index.html": index}
    for exhibit in all_exhibits(page):
        contents[directory / "data" / f"{exhibit.name}.csv"] = to_csv(exhibit)
        if pictures and isinstance(exhibit, Plot):
            contents[directory / "figures" / f"{exhibit.name}.svg"] = to_svg(exhibit, looks)
            contents[directory / "figures" / f"{exhibit.name}.png"] = to_png(exhibit, looks)
    for folder in sorted({path.parent for path in contents}):
        prepare_output(folder)
    replace_files(contents)
    return list(contents)

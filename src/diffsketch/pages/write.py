"""A page on disk: the HTML file, its figures as pictures, its numbers as CSV."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from diffsketch.errors import MismatchError
from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.checks import all_exhibits, check_page
from diffsketch.pages.exhibits import Page, Plot
from diffsketch.pages.page import render
from diffsketch.pages.palette import looks_of_page
from diffsketch.pages.static import to_png, to_svg
from diffsketch.pages.tabular import to_csv

__all__ = ["Pictures", "forms_of", "pictures_of", "write_page"]

Pictures: TypeAlias = Mapping[str, Mapping[str, bytes]]
"""By name of the plot and by form, "svg" and "png": the content of a file."""


def pictures_of(page: Page) -> Pictures:
    """All plots of a page as pictures, in its colours. To draw them takes most of a page's time.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many.
    """
    check_page(page)
    looks = looks_of_page(page)
    return {
        exhibit.name: {"svg": to_svg(exhibit, looks), "png": to_png(exhibit, looks)}
        for exhibit in all_exhibits(page)
        if isinstance(exhibit, Plot)
    }


def forms_of(name: str, pictures: Pictures) -> Mapping[str, bytes]:
    """The picture of a plot in each of its forms.

    Raises:
        MismatchError: There is none, as the pictures are those of another page.
    """
    if name not in pictures:
        raise MismatchError(f"pictures must have one of each plot of the page, got none of {name}")
    return pictures[name]


def write_page(page: Page, directory: Path, *, pictures: Pictures | bool = True) -> list[Path]:
    """Write `index.html`, `figures/<name>.svg` and `.png`, and `data/<name>.csv`, all or none.

    The page itself needs no other file. What else is in the directory is left as it is. The same
    page gives the same bytes.

    Args:
        page: What to show.
        directory: Made if it does not exist.
        pictures: Whether to make `figures`; without them the page has no links to files. Or what
            `pictures_of` made of this page, if that is needed elsewhere, too.

    Returns:
        The files, `index.html` first.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many, or the pictures are those
            of another page.
        OSError: A file cannot be written.
    """
    check_page(page)
    directory = Path(directory)
    index = render(page, files=pictures is not False).encode("utf-8")
    if pictures is True:
        pictures = pictures_of(page)
    contents = {directory / "index.html": index}
    for exhibit in all_exhibits(page):
        contents[directory / "data" / f"{exhibit.name}.csv"] = to_csv(exhibit)
        if pictures is not False and isinstance(exhibit, Plot):
            for form, content in forms_of(exhibit.name, pictures).items():
                contents[directory / "figures" / f"{exhibit.name}.{form}"] = content
    for folder in sorted({path.parent for path in contents}):
        prepare_output(folder)
    replace_files(contents)
    return list(contents)

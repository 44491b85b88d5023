"""The page as a Markdown document with pictures, to be read where there is no browser."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.exhibits import Exhibit, Page, Plot, Section, Table, check_page
from diffsketch.pages.page import Pictures, forms_of
from diffsketch.pages.tables import image_link, table_markdown
from diffsketch.reproduction.claims import summary
from diffsketch.reproduction.verdicts.verdict import Standing, Verdicts

__all__ = ["document", "write_document"]

_NAME = "reproduction.md"
_FOLDER = "images/reproduction"
_DEVIATIONS = "Where this is not as in the paper"
_COMMANDS = "Commands"
_SMALL = 40  # rows of a table that is worth reading here

_HOW = """## How to run it

```bash
diffsketch reproduce            # everything; continue with the same command if interrupted
diffsketch reproduce --quick    # a reduced run of a few minutes, to see that it works
diffsketch reproduce mnist      # one figure; `diffsketch reproduce --list` has their names
```

It writes an interactive page with the same figures, all numbers as CSV, and the settings of every \
run. This document was made by the same command, from the numbers of a run; nothing in it is \
written by hand."""


def document(page: Page, verdicts: Verdicts, *, links: Mapping[str, str] | None = None) -> str:
    """The page in Markdown: lead, how to run it, then its sections with pictures and tables.

    Of what is folded away on the page it has deviations and the command of each experiment.
    Tables of more than 40 rows are left to the page, except for those of the claims. The same page
    and verdicts give the same text.

    Guarantees (`tests/reproduction/test_document.py`): every plot is linked, every epsilon has its
    words, and text cannot break out of a table.

    Args:
        page: What to show, as `sections.page_of` makes it.
        verdicts: About the claims, for their count.
        links: By name of the plot, its picture from where the document is; SVG if not given.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many.
    """
    check_page(page)
    if links is None:
        links = {name: f"{_FOLDER}/{name}.svg" for name in _plots(page)}
    parts = [f"# {_prose(page.title)}"]
    if page.notice:
        parts.append(f"> **{_prose(page.notice)}**")
    parts += [_prose(page.lead), _counted(verdicts), _HOW]
    for section in page.sections:
        parts += _section(section, links)
    if page.origin:
        rows = tuple(page.origin.items())
        made = Table("origin", "", ("what", "value"), rows)
        parts += ["## What made this document", table_markdown(made)]
    return "\n\n".join(part for part in parts if part) + "\n"


def write_document(
    page: Page, verdicts: Verdicts, directory: Path, *, pictures: Pictures
) -> list[Path]:
    """Write `reproduction.md` and `images/reproduction/<plot>.svg` or `.png`, all or none.

    Of the two forms of a picture the smaller one is kept; that of an earlier call in the other
    form is removed. What else is in the directory is left as it is.

    Args:
        page: What to show.
        verdicts: About the claims.
        directory: Such as `docs`; made if it does not exist.
        pictures: Of the page, as `pictures_of` draws them.

    Returns:
        The files, the document first.

    Raises:
        ArgumentError: A name has other than letters, digits and dashes, or appears twice.
        MismatchError: Numbers that belong together are not equally many, or the pictures are those
            of another page.
        OSError: A file cannot be written.
    """
    check_page(page)
    directory = Path(directory)
    contents: dict[Path, bytes] = {}
    links, outdated = {}, []
    for name in _plots(page):
        forms = forms_of(name, pictures)
        best = min(forms, key=lambda form: len(forms[form]))
        links[name] = f"{_FOLDER}/{name}.{best}"
        contents[directory / links[name]] = forms[best]
        outdated += [directory / f"{_FOLDER}/{name}.{form}" for form in forms if form != best]
    text = document(page, verdicts, links=links)
    files = {directory / _NAME: text.encode("utf-8"), **contents}
    for folder in sorted({path.parent for path in files}):
        prepare_output(folder)
    replace_files(files)
    for path in outdated:
        path.unlink(missing_ok=True)
    return list(files)


def _counted(verdicts: Verdicts) -> str:
    counts = summary(verdicts)
    words = (
        f"{counts[Standing.HOLDS]} hold, {counts[Standing.IN_PART]} hold in part, "
        f"{counts[Standing.FAILS]} fail, {counts[Standing.NOT_MEASURED]} were not measured"
    )
    return f"**{sum(counts.values())} claims of the paper: {words}.**"


def _section(section: Section, links: Mapping[str, str]) -> list[str]:
    badge = f" ({section.badge})" if section.badge else ""
    parts = [f"## {_prose(section.title + badge)}"]
    if section.lead:
        parts.append(f"**{_prose(section.lead)}**")
    parts += [_prose(text) for text in section.text]
    for exhibit in section.exhibits:
        parts += _exhibit(exhibit, links)
    if (deviations := section.details.get(_DEVIATIONS)) is not None:
        parts += [f"### {_DEVIATIONS}: {_prose(section.title)}", table_markdown(deviations)]
    if (commands := section.details.get(_COMMANDS)) is not None:
        parts.append(f"Made by `{commands.rows[0][1]}`.")
    return parts


def _exhibit(exhibit: Exhibit, links: Mapping[str, str]) -> list[str]:
    heading, caption = f"### {_prose(exhibit.title)}", _prose(exhibit.caption)
    if isinstance(exhibit, Plot):
        return [heading, image_link(exhibit.title, links[exhibit.name]), caption]
    if len(exhibit.rows) > _SMALL and not exhibit.name.startswith("claims"):
        rows = f"{len(exhibit.rows)} rows: on the page, and in `data/{exhibit.name}.csv` beside it."
        return [heading, rows, caption]
    return [heading, table_markdown(exhibit), caption]


def _plots(page: Page) -> list[str]:
    """Their names, in the order of the page."""
    exhibits = (exhibit for section in page.sections for exhibit in section.exhibits)
    return [exhibit.name for exhibit in exhibits if isinstance(exhibit, Plot)]


def _prose(text: str) -> str:
    """Text as it is, in one line, in which backquotes mark code."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text).strip())
    return "".join(
        part if index % 2 else re.sub(r"([\\*_\[\]<>])", r"\\\1", part)
        for index, part in enumerate(parts)
    )

"""Tables and links to pictures as Markdown, for documents that are read where there is no page."""

from __future__ import annotations

import re

from diffsketch.errors import check
from diffsketch.pages.checks import check_table
from diffsketch.pages.exhibits import Cell, Table
from diffsketch.pages.labels import cell_text

__all__ = ["image_link", "table_markdown"]


def table_markdown(table: Table) -> str:
    """A table as Markdown, numbers to the right, without title and caption.

    Raises:
        ArgumentError: The table has no columns, or a name that no file can have.
        MismatchError: A row has more or fewer cells than there are columns.

    >>> print(table_markdown(Table("t", "T", ("method", "bytes"), (("none", 31400),))))
    | method | bytes |
    | --- | ---: |
    | none | 31,400 |
    """
    check_table(table)
    check(len(table.columns) > 0, "columns", "not be empty", table.columns)
    rules = [
        "---:" if _is_numeric([row[column] for row in table.rows]) else "---"
        for column in range(len(table.columns))
    ]
    lines = [[_escaped(heading) for heading in table.columns], rules]
    lines += [[_escaped(cell_text(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def image_link(text: str, path: str) -> str:
    r"""A picture in Markdown, with the text for those who do not see it.

    >>> image_link("Accuracy [MNIST]", "images/a b.png")
    '![Accuracy \\[MNIST\\]](<images/a b.png>)'
    """
    check(bool(path) and not set(path) & set("<>\n"), "path", "be without <, > and breaks", path)
    safe = re.fullmatch(r"[\w./-]+", path) is not None
    return f"![{_escaped(text)}]({path if safe else f'<{path}>'})"


def _is_numeric(cells: list[Cell]) -> bool:
    there = [cell for cell in cells if cell is not None]
    return bool(there) and all(
        isinstance(cell, int | float) and not isinstance(cell, bool) for cell in there
    )


def _escaped(text: str) -> str:
    """Text as it is: no cell ends early, nothing becomes a tag or a link; code stays code."""
    one_line = re.sub(r"\s+", " ", text).strip()
    parts = re.split(r"(`[^`]+`)", one_line)
    for index, part in enumerate(parts):
        marked = part if index % 2 else re.sub(r"([\\*_\[\]<>`])", r"\\\1", part)
        parts[index] = marked.replace("|", r"\|")
    return "".join(parts)

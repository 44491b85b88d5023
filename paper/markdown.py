"""Tables and pictures of a page in Markdown."""

from __future__ import annotations

import re

from diffsketch.errors import check
from diffsketch.pages.exhibits import Table, cell_text, is_numeric


def table_markdown(table: Table) -> str:
    """Format a table as Markdown, numbers to the right, without title and caption.

    >>> print(table_markdown(Table("t", "T", ("method", "bytes"), (("none", 31400),))))
    | method | bytes |
    | --- | ---: |
    | none | 31,400 |
    """
    check(len(table.columns) > 0, "columns", "not be empty", table.columns)
    rules = ["---:" if is_numeric(table, place) else "---" for place, _ in enumerate(table.columns)]
    lines = [[table_cell(heading) for heading in table.columns], rules]
    lines += [[table_cell(cell_text(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def image_link(text: str, path: str) -> str:
    r"""Link a picture in Markdown, with the text for those who do not see it.

    >>> image_link("Accuracy [MNIST]", "images/a b.png")
    '![Accuracy \\[MNIST\\]](<images/a b.png>)'
    """
    check(bool(path) and not set(path) & set("<>\n"), "path", "be without <, > and breaks", path)
    safe = re.fullmatch(r"[\w./-]+", path) is not None
    return f"![{table_cell(text)}]({path if safe else f'<{path}>'})"


def table_cell(text: str) -> str:
    """Escape text for Markdown: no cell ends early, nothing becomes a tag; code stays code."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text).strip())
    for index, part in enumerate(parts):
        marked = part if index % 2 else re.sub(r"([\\*_\[\]<>`])", r"\\\1", part)
        parts[index] = marked.replace("|", r"\|")
    return "".join(parts)

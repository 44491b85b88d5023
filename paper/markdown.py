"""The page as Markdown documents, to be read where there is no browser."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffsketch.errors import check
from diffsketch.pages.exhibits import Exhibit, Page, Plot, Section, Table, cell_text, is_numeric
from paper.claims import counts_text
from paper.figures import texts
from paper.scoreboard import ClaimedPage, ClaimedSection, VerdictEntry

PICTURES = "images/reproduction"
_PLOTS = 5  # of a section that its document has
_SMALL = 12  # rows of a table that is worth reading in the document


def documents(page: ClaimedPage, *, links: Mapping[str, str] | None = None) -> dict[str, str]:
    """The page in Markdown, by path: a summary of one screen, and a file for each section.

    Long tables are left to the CSV files beside it. The same page gives the same text.

    Guarantees (`paper/tests/test_document.py`): every plot is linked, a page begins with its
    figure and has at most 700 words, and text cannot break out of a table.
    """
    links = links or {plot.name: f"{PICTURES}/{plot.name}.svg" for plot in documented_plots(page)}
    templates = Environment(  # noqa: S701 - Markdown has an escaping of its own
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    templates.filters |= {
        "md": escaped,
        "table": table_markdown,
        "first_sentence": first_sentence,
        "image": lambda plot: image_link(plot.title, f"../{links[plot.name]}"),
        "standings": _standings,
    }
    small = thumbnails(page)
    shown = [section for section in page.sections if section.name in small]
    others = [section for section in page.sections if section.name not in small]
    width = math.ceil(len(shown) / 2)
    rows = [row for row in (shown[:width], shown[width:]) if row]
    summary = templates.get_template("summary.md.jinja")
    pages = {"reproduction.md": summary.render(page=page, rows=rows, others=others)}
    template = templates.get_template("section.md.jinja")
    for section in page.sections:
        below = texts()["page"]["how"] if section.name == "reading" else ""
        text = template.render(section=section, text_below=below, **_parts_of(section, links))
        pages[f"reproduction/{section.name}.md"] = text
    # Parts that are left out leave empty lines.
    return {path: re.sub(r"\n{3,}", "\n\n", text).strip() + "\n" for path, text in pages.items()}


def _parts_of(section: Section, links: Mapping[str, str]) -> dict[str, object]:
    plots = [each for each in section.every_exhibit if isinstance(each, Plot)]
    tables = [each for each in section.every_exhibit if isinstance(each, Table)]
    details = {table.title: table for table in tables if is_detail(table)}
    tables = [table for table in tables if not is_detail(table)]
    # A section without a plot begins with its table; a long one only if there is nothing else.
    small = [table for table in tables if not details or len(table.rows) <= _SMALL]
    whole = [] if plots else small[:1]
    return {
        "heading": ": ".join(filter(None, (section.badge, section.title))),
        "plots": plots,
        "further": [plot for plot in plots[1:] if plot.name in links],
        "whole": whole,
        "tables": [table for table in tables if table not in whole],
        "details": details,
        "verdicts": verdicts_of(section),
    }


def documented_plots(page: Page) -> list[Plot]:
    """The plots of the documents: the first ones of each section; the page has all."""
    return [
        plot
        for section in page.sections
        for plot in [each for each in section.every_exhibit if isinstance(each, Plot)][:_PLOTS]
    ]


def is_detail(exhibit: Exhibit) -> bool:
    """Whether an exhibit is about settings, and has no numbers of its own."""
    return "-details-" in exhibit.name


def thumbnails(page: Page) -> dict[str, Plot]:
    """The plots of the summary, by section: of the paper's figures that have claims."""
    plots = {}
    for section in page.sections:
        drawn = [each for each in section.exhibits if isinstance(each, Plot)]
        if section.badge.startswith("Figure") and drawn and verdicts_of(section):
            plots[section.name] = drawn[0]
    return plots


def verdicts_of(section: Section) -> tuple[VerdictEntry, ...]:
    """The claims of a section, if it is about any."""
    return section.verdicts if isinstance(section, ClaimedSection) else ()


def first_sentence(text: str) -> str:
    r"""The first sentence of a text: it ends before a capital letter.

    >>> first_sentence("5.1 of 10. Seeds differ.")
    '5.1 of 10.'
    """
    return re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0]


def _standings(verdicts: Sequence[VerdictEntry]) -> str:
    return counts_text(Counter(entry.standing for entry in verdicts))


def table_markdown(table: Table) -> str:
    """Format a table as Markdown, numbers to the right, without title and caption.

    >>> print(table_markdown(Table("t", "T", ("method", "bytes"), (("none", 31400),))))
    | method | bytes |
    | --- | ---: |
    | none | 31,400 |
    """
    check(len(table.columns) > 0, "columns", "not be empty", table.columns)
    rules = ["---:" if is_numeric(table, place) else "---" for place, _ in enumerate(table.columns)]
    lines = [[escaped(heading) for heading in table.columns], rules]
    lines += [[escaped(cell_text(cell)) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def image_link(text: str, path: str) -> str:
    r"""Link a picture in Markdown, with the text for those who do not see it.

    >>> image_link("Accuracy [MNIST]", "images/a b.png")
    '![Accuracy \\[MNIST\\]](<images/a b.png>)'
    """
    check(bool(path) and not set(path) & set("<>\n"), "path", "be without <, > and breaks", path)
    safe = re.fullmatch(r"[\w./-]+", path) is not None
    return f"![{escaped(text)}]({path if safe else f'<{path}>'})"


def escaped(text: str) -> str:
    """Escape text for Markdown: no cell ends early, nothing becomes a tag; code stays code."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text).strip())
    for index, part in enumerate(parts):
        marked = part if index % 2 else re.sub(r"([\\*_\[\]<>`])", r"\\\1", part)
        parts[index] = marked.replace("|", r"\|")
    return "".join(parts)

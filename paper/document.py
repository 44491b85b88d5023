"""The page of all experiments, and the same as Markdown documents with pictures and data."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.charts import looks_of
from diffsketch.pages.exhibits import (
    Exhibit,
    Page,
    Plot,
    Section,
    Table,
    all_exhibits,
    cell_text,
    is_numeric,
    to_csv,
)
from diffsketch.pages.pictures import picture, thumbnail
from paper import claims
from paper.claims import Standing, Verdicts
from paper.experiments import Experiment, texts
from paper.figures import AllFacts, Figure, Figures, exhibits_of, table
from paper.rules import Statement

PICTURES = "images/reproduction"
_COLOURED = ("Laplace on sketches", "Laplace on raw gradients", "DiffSketch")
"""Methods in the colours of the paper's captions (blue and orange), and ours in the next."""
_KINDS = ("Theorem", "Figure", "Table")
_SHOWN = 6  # plots of a figure that are not folded away
_PLOTS = 5  # of a section that its document has
_SMALL = 12  # rows of a table that is worth reading in the document


@dataclass(frozen=True)
class Origin:
    """The origin of a page: a command and a run."""

    command: str
    versions: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)  # by key of a job, if another's
    drawn_by: str = ""  # digest of the source, if it is not that of the run
    seconds: AllFacts = field(default_factory=dict)  # of a round, of lines that were recorded
    notice: str = ""  # to be read first: what is reduced, left out, or went wrong


def page_of(figures: Figures, verdicts: Verdicts, origin: Origin) -> Page:
    """The page: how the claims stand, and a section for each experiment; theorems first.

    Guarantees (`paper/tests/test_document.py`): every claim is on it once.
    """
    text = texts()["page"]
    facts = {experiment.name: figure.facts for experiment, figure in figures}
    by_section: dict[str, dict[Statement, claims.ClaimVerdict]] = {}
    for statement, verdict in verdicts.items():
        # Textbook facts and what is counted apart stand on a page of their own.
        place = "apart" if statement.aside or statement.place not in facts else statement.place
        place = "textbook" if statement.kind == "textbook" else place
        by_section.setdefault(place, {})[statement] = verdict
    sections = [
        section_of(experiment, figure, facts, by_section.get(experiment.name, {}))
        for experiment, figure in sorted(figures, key=lambda each: _order(each[0]))
    ]
    sections += [
        Section(name, text[name], exhibits=(claims_table(name, by_section[name]),))
        for name in ("textbook", "apart")
        if name in by_section
    ]
    if not any(experiment.reduced for experiment, _ in figures):
        sections += _across(facts, verdicts)
    reading = tuple(each.format(panels=claims.panels_note()) for each in text["reading-text"])
    sections.append(Section("reading", text["reading"], text=reading))
    later = Counter(origin.sources.values())
    last_seed = max((job.seed for experiment, _ in figures for job in experiment.jobs), default=0)
    lines = {
        "Made by": f"`{origin.command}`",
        "with": ", ".join(
            f"{name} {origin.versions[name]}" for name in ("diffsketch", "torch", "numpy", "python")
        ),
        "source of the run": f"digest {origin.versions['source']} of the package's modules",
        "runs added later": ", ".join(f"{n} by digest {source}" for source, n in later.items()),
        "drawn and judged again by": origin.drawn_by and f"digest {origin.drawn_by}",
        "machine": f"{origin.versions['machine']}, one thread for each run",
        "seeds": f"0 to {last_seed}" if last_seed else "0",
    }
    return Page(
        title=text["title"],
        lead=f"{text['lead']} {claims.summary_text(verdicts)}",
        sections=tuple(sections),
        notice=origin.notice,
        origin={name: value for name, value in lines.items() if value},
        roles=_COLOURED,
    )


def _across(facts: AllFacts, verdicts: Verdicts) -> list[Section]:
    """Two sections: one configuration at a time, and what further panels would change."""
    columns, judged = claims.configurations(facts)
    labels = [claim.label for claim in columns]
    rows = [(name, *(str(verdict.standing) for verdict in row)) for name, row in judged]
    together = []
    for name, *cells in rows:
        held = [label for label, cell in zip(labels, cells, strict=True) if cell == Standing.HOLDS]
        together += [f"{name}: {', '.join(held)}"] if len(held) > 1 else []
    changed = [
        (claim.label, str(verdict.standing), str(beyond))
        for claim, verdict, beyond in claims.changed_beyond(facts, verdicts)
    ]
    about = texts()["configurations"]
    first = table(about, "configurations", rows, ("configuration", *labels))
    second = table(texts()["beyond"], "beyond", changed)
    said = about["together"].format("; ".join(together)) if together else about["apart"]
    return [
        Section("configurations", first.title, exhibits=(first,), text=(said,)),
        Section("beyond", second.title, exhibits=(second,)),
    ]


def _order(experiment: Experiment) -> tuple[int, str]:
    """The place of a section: theorems, figures and tables by their numbers, then all else."""
    kind = experiment.place.partition(" ")[0]
    return (_KINDS.index(kind), experiment.place) if kind in _KINDS else (len(_KINDS), "")


def claims_table(name: str, verdicts: Verdicts) -> Table:
    """The claims of a section with their verdicts; by labels where they are those of no figure."""
    labels = {statement.name: statement.label for statement in claims.statements()}
    rows = []
    for claim, verdict in verdicts.items():
        repeated = labels.get(claim.aside)  # the numbers are with the claim that it repeats
        aside = f" ({f'says the same: {repeated}' if repeated else claim.aside})"
        words = claim.label if name in ("textbook", "apart") else f"“{claim.quote}”"
        measured = "" if repeated or verdict.measured == claims.NOTHING else verdict.measured
        judged = f"{verdict}{aside if claim.aside else ''}"
        rule = "" if repeated else verdict.rule
        rows.append((f"{words} ({claim.where})", judged, measured, rule))
    return table(texts()["claims-table"], f"{name}-details-claims", rows)


def section_of(
    experiment: Experiment, figure: Figure, facts: AllFacts, verdicts: Verdicts
) -> Section:
    """The section of an experiment: a row of what came out, the paper's figure, and its claims.

    All else is folded away: further plots, what is proven, tables, notes, settings.
    """
    plots, tables = plots_and_tables(figure.exhibits)
    shown = plots[:_SHOWN] or tables[:1]
    folded = {
        "Further plots": plots[_SHOWN:],
        "What is true: proven and measured": figure.proven,
        "Numbers": [each for each in tables if each not in shown],
        **{each.title: [each] for each in details_of(experiment)},
    }
    row = claims.figure_row(experiment.name, facts)
    worth = texts()["page"]["worth"].get(experiment.name, "")
    judged = any(variant.group != "proven" for variant in experiment.variants)
    standings = Counter(str(verdict.standing) for verdict in verdicts.values())
    return Section(
        name=experiment.name,
        title=experiment.title,
        lead=f"{claims.counts_text(standings)}." if verdicts else "",
        row={
            "the paper says": experiment.says,
            "we find": row["letter"],
            "proven instead": " ".join(filter(None, (row["proven"], worth))),
        },
        exhibits=(*shown, *([claims_table(experiment.name, verdicts)] if verdicts else ())),
        notes=(*figure.text, *([claims.panels_note()] if judged else [])),
        details={heading: tuple(parts) for heading, parts in folded.items() if parts},
        badge=experiment.place,
    )


def plots_and_tables(exhibits: Sequence[Exhibit]) -> tuple[list[Plot], list[Table]]:
    """The plots of these, and the tables."""
    plots = [each for each in exhibits if isinstance(each, Plot)]
    return plots, [each for each in exhibits if isinstance(each, Table)]


def notice_of(*, reduced: bool, left_out: Sequence[str], failed: Sequence[str] = ()) -> str:
    """A notice for the reader to see first: what is reduced, left out, or went wrong."""
    parts = [texts()["page"]["reduced"]] if reduced else []
    if left_out:
        parts.append(f"Not asked for, so left out: {', '.join(left_out)}.")
    if failed:
        parts.append(f"Left out after an error: {', '.join(failed)}.")
    return " ".join(parts)


# --- what is folded away below a figure ------------------------------------------------------


def command_of(names: Sequence[str], *, reduced: bool) -> str:
    """The command that makes a page again, but for where it is written.

    >>> command_of(["mnist"], reduced=True)
    'python -m paper mnist --quick'
    """
    return " ".join(["python -m paper", *names, *(["--quick"] if reduced else [])])


def details_of(experiment: Experiment) -> list[Exhibit]:
    """Tables of the paper's values, of deviations, and of runs and measurements; none empty."""
    given = {name: value for name, value in experiment.paper.items() if value != "not given"}
    if missing := [name for name in experiment.paper if name not in given]:
        given[", ".join(missing)] = "not given"
    parts = [
        {"name": part.name, "kind": part.kind, "seeds": len(experiment.jobs_of(part)),
         "settings": ", ".join(f"{key} = {value}" for key, value in part.settings.items())}
        for part in experiment.parts
    ]  # fmt: skip
    records = {
        "values": [{"name": name, "value": value} for name, value in given.items()],
        "deviations": [asdict(each) for each in experiment.deviations],
        "parts": parts,
    }
    command = command_of([experiment.name], reduced=experiment.reduced)
    return exhibits_of(experiment.name, texts()["details"]["exhibit"], records, command=command)


# --- Markdown, to be read where there is no browser ------------------------------------------


def documents(page: Page, *, links: Mapping[str, str] | None = None) -> dict[str, str]:
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


def _parts_of(section: Section, links: Mapping[str, str]) -> dict[str, Any]:
    plots, every = plots_and_tables(section.every_exhibit)
    details = {each.title: each for each in every if is_detail(each)}
    tables = [each for each in every if not is_detail(each)]
    # A section without a plot begins with its table; a long one only if there is nothing else.
    small = [each for each in tables if not details or len(each.rows) <= _SMALL]
    whole = [] if plots else small[:1]
    return {
        "heading": ": ".join(filter(None, (section.badge, section.title))),
        "plots": plots,
        "further": [plot for plot in plots[1:] if plot.name in links],
        "whole": whole,
        "tables": [each for each in tables if each not in whole],
        "details": details,
    }


def documented_plots(page: Page) -> list[Plot]:
    """The plots of the documents: the first ones of each section; the page has all."""
    every = (plots_and_tables(section.every_exhibit)[0][:_PLOTS] for section in page.sections)
    return [plot for plots in every for plot in plots]


def is_detail(exhibit: Exhibit) -> bool:
    """Whether an exhibit is about settings or claims, and has no numbers of its own."""
    return "-details-" in exhibit.name


def thumbnails(page: Page) -> dict[str, Plot]:
    """The plots of the summary, by section: of the paper's figures that have claims."""
    plots = {}
    for section in page.sections:
        drawn, _ = plots_and_tables(section.exhibits)
        if section.badge.startswith("Figure") and drawn and section.lead:
            plots[section.name] = drawn[0]
    return plots


def first_sentence(text: str) -> str:
    r"""The first sentence of a text: it ends before a capital letter.

    >>> first_sentence("5.1 of 10. Seeds differ.")
    '5.1 of 10.'
    """
    return re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0]


def table_markdown(exhibit: Table) -> str:
    """Format a table as Markdown, numbers to the right, without title and caption.

    >>> print(table_markdown(Table("t", "T", ("method", "bytes"), (("none", 31400),))))
    | method | bytes |
    | --- | ---: |
    | none | 31,400 |
    """
    places = range(len(exhibit.columns))
    rules = ["---:" if is_numeric(exhibit, place) else "---" for place in places]
    lines = [[escaped(heading) for heading in exhibit.columns], rules]
    lines += [[escaped(cell_text(cell)) for cell in row] for row in exhibit.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def image_link(text: str, path: str) -> str:
    r"""Link a picture in Markdown, with the text for those who do not see it.

    >>> image_link("Accuracy [MNIST]", "images/a.png")
    '![Accuracy \\[MNIST\\]](images/a.png)'
    """
    return f"![{escaped(text)}]({path})"


def escaped(text: str) -> str:
    """Escape text for Markdown: no cell ends early, nothing becomes a tag; code stays code."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text).strip())
    for index, part in enumerate(parts):
        marked = part if index % 2 else re.sub(r"([\\*_\[\]<>`])", r"\\\1", part)
        parts[index] = marked.replace("|", r"\|")
    return "".join(parts)


def write_document(
    page: Page, directory: Path, *, show: Callable[[float], None] = lambda _: None
) -> list[Path]:
    """Write `reproduction.md`, its details with their data, and `images/reproduction/`.

    All or none. Of the two forms of a picture the smaller one is kept. Pictures, texts and tables
    of an earlier call are removed; what else is in the directory is left as it is. Returns the
    files, the summary first. `show` is told the share of the pictures that is drawn.

    Raises:
        OSError: A file cannot be written.
    """
    contents: dict[str, bytes] = {}
    links = {}
    plots, looks = documented_plots(page), looks_of(all_exhibits(page), page.roles)
    for count, plot in enumerate(plots):
        show(count / len(plots))
        forms = {form: picture(plot, looks, form=form) for form in ("svg", "png")}
        best = min(forms, key=lambda form: len(forms[form]))
        links[plot.name] = f"{PICTURES}/{plot.name}.{best}"
        contents[links[plot.name]] = forms[best]
    for name, plot in thumbnails(page).items():
        contents[f"{PICTURES}/small-{name}.png"] = thumbnail(plot, looks)
    for exhibit in all_exhibits(page):
        if not is_detail(exhibit):
            contents[f"reproduction/data/{exhibit.name}.csv"] = to_csv(exhibit)
    pages = {path: text.encode() for path, text in documents(page, links=links).items()}
    files = {directory / path: content for path, content in {**pages, **contents}.items()}
    folders = sorted({path.parent for path in files})
    for folder in folders:
        prepare_output(folder)
    replace_files(files)
    for path in (path for folder in folders if folder != directory for path in folder.glob("*")):
        if path.suffix in (".svg", ".png", ".csv", ".md") and path not in files:
            path.unlink()  # of an earlier page
    return list(files)

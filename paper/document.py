"""The page of all experiments, the same as Markdown documents, and the numbers as JSON."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffsketch.app.settings import RunConfig, Value, describe
from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.charts import looks_of
from diffsketch.pages.exhibits import Cell, Page, Plot, Section, Table, all_exhibits
from diffsketch.pages.pictures import picture
from diffsketch.training.defaults import TASK_DEFAULTS
from paper import METHODS
from paper.claims import (
    NOTHING,
    Verdicts,
    figure_row,
    panels_note,
    statements,
    summary_text,
)
from paper.experiments import FORMAT, Experiment, Results
from paper.figures import Fact, Figure, Rows, table, texts
from paper.markdown import image_link, table_cell, table_markdown
from paper.scoreboard import ClaimedPage, ClaimedSection, VerdictEntry, board_of

_ROW = {
    "says": "the paper says",
    "letter": "to the letter",
    "best": "at its best",
    "proven": "proven",
}
_COLOURED = ("Laplace on sketches", "Laplace on raw gradients", "DiffSketch")
"""Methods in the colours of the paper's captions (blue and orange), and ours in the next."""
_KINDS = ("Theorem", "Figure", "Table")
_SHOWN = 6  # plots of a figure that are not folded away
_FURTHER, _PROVEN, _TABLES = "Further plots", "What is true: proven and measured", "Numbers"
_DEVIATIONS = "Where this is not as in the paper"
_COMMANDS = "Commands"
_FOLDER, _DETAILS = "images/reproduction", "reproduction"
_CLAIM_COLUMNS = ("claim", "where", "verdict", "what we measured")
_SMALL = 40  # rows of a table that is worth reading in the document
_CURVE = ("round", "loss", "accuracy", "bytes_up", "bytes_down", "noised_share", "left_out")


def page_of(
    figures: Sequence[tuple[Experiment, Figure]],
    verdicts: Verdicts,
    *,
    notice: str,
    versions: Mapping[str, str],
    command: str,
) -> ClaimedPage:
    """The page: a scoreboard of the claims, and a section for each experiment; theorems first.

    Guarantees (`paper/tests/test_document.py`): every claim is on it once.
    """
    text = texts()["page"]
    seeds = {job.seed for one, _ in figures for job in one.jobs}
    known = ", ".join(
        f"{one} {versions[one]}" for one in ("diffsketch", "torch", "numpy", "python")
    )
    facts = {one.name: figure.facts for one, figure in figures}
    rest = {one: each for one, each in verdicts.items() if one.place not in facts}
    ordered = sorted(figures, key=lambda each: _order(each[0]))
    sections: list[Section] = [
        section_of(
            *each,
            row=figure_row(each[0].name, facts),
            verdicts={one: of for one, of in verdicts.items() if one.place == each[0].name},
        )
        for each in ordered
    ]
    if rest:
        sections.append(ClaimedSection("others", text["others"], verdicts=_entries(rest)))
    sections.append(Section("reading", text["reading"], text=tuple(text["reading-text"])))
    return ClaimedPage(
        title=text["title"],
        lead=text["lead"],
        sections=tuple(sections),
        notice=notice,
        origin={
            "Command": f"`{command}`",
            "Versions": known,
            "Source": f"digest {versions['source']} of the package's modules",
            "Machine": f"{versions['machine']}, one thread for each run",
            "Seeds": f"0 to {max(seeds)}" if any(seeds) else "0",
            "Settings": "those of the package, folded away below each figure",
        },
        roles=_COLOURED,
        score=summary_text(verdicts),
    )


def _order(experiment: Experiment) -> tuple[int, str]:
    """The place of a section: theorems, figures and tables by their numbers, then all else."""
    kind = experiment.place.partition(" ")[0]
    return (_KINDS.index(kind), experiment.place) if kind in _KINDS else (len(_KINDS), "")


def _entries(verdicts: Verdicts) -> tuple[VerdictEntry, ...]:
    """The claims of a section, with their verdicts."""
    labels = {one.name: one.label for one in statements()}
    return tuple(
        VerdictEntry(
            one.name, one.label, str(of.standing), one.quote, one.where, of.why,
            "" if of.measured == NOTHING else of.measured,
            aside=f"says the same: {labels[one.aside]}" if one.aside in labels else one.aside,
        )
        for one, of in verdicts.items()
    )  # fmt: skip


def section_of(
    experiment: Experiment,
    figure: Figure,
    *,
    row: Mapping[str, str],
    verdicts: Verdicts,
) -> ClaimedSection:
    """The section of an experiment: a row of what came out, the paper's figure, and its claims.

    All else is folded away: further plots, what is proven, tables, notes, settings.
    """
    plots = [one for one in figure.exhibits if isinstance(one, Plot)]
    tables = [one for one in figure.exhibits if isinstance(one, Table)]
    shown = plots[:_SHOWN] or tables[:1]
    folded = {
        _FURTHER: plots[_SHOWN:],
        _PROVEN: figure.proven,
        _TABLES: [one for one in tables if one not in shown],
    }
    return ClaimedSection(
        name=experiment.name,
        title=experiment.title,
        row={_ROW["says"]: experiment.says, **{_ROW[key]: text for key, text in row.items()}},
        exhibits=tuple(shown),
        verdicts=_entries(verdicts),
        notes=(
            figure.lead,
            *figure.text,
            *([panels_note()] if any(one.group != "proven" for one in experiment.variants) else []),
        ),
        details={
            **{heading: tuple(some) for heading, some in folded.items() if some},
            **{heading: (one,) for heading, one in details_of(experiment).items()},
        },
        badge=experiment.place,
    )


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


def run_command(settings: Mapping[str, Value], *, seed: int) -> str:
    """The command of a training run alone, with what its task does not have anyway.

    >>> run_command({"task": "mnist", "method": "none", "rounds": 10, "workers": 10}, seed=3)
    'diffsketch run --method none --rounds 10 --seed 3'
    """
    known = describe(RunConfig)
    usual = TASK_DEFAULTS[str(settings.get("task", "mnist"))]
    ours = settings.get("method") in METHODS
    words = ["python", "-m", "paper.run"] if ours else ["diffsketch", "run"]
    for name, value in settings.items():
        default, flag = known[name].default, known[name].flag
        if value == default or (default is None and value == usual.get(name)):
            continue
        words += [flag, str(value)]
    return shlex.join([*words, "--seed", str(seed)])


def details_of(experiment: Experiment) -> dict[str, Table]:
    """Tables of settings, the paper's values, deviations and commands, by heading; none empty."""
    first, *others = [dict(one.settings) for one in experiment.variants] or [{}]
    shared = {
        key: value
        for key, value in first.items()
        if all(key in one and one[key] == value for one in others)
    }

    def cell(value: Any) -> Cell:
        found: Cell = str(value).lower() if isinstance(value, bool) else value
        return found

    def listed(settings: Mapping[str, Any], without: Mapping[str, Any] = {}) -> str:
        own = {key: value for key, value in settings.items() if key not in without}
        return ", ".join(f"{key} = {cell(value)}" for key, value in own.items())

    seeds, variants = experiment.seeds, experiment.variants
    rows: dict[str, Rows] = {
        "common": [(name, cell(value)) for name, value in shared.items()],
        "each": [
            (one.name, ", ".join(one.panels), one.group, seeds, listed(one.settings, shared))
            for one in variants
        ],
        "measured": [
            (one.name, one.kind, len(experiment.jobs_of(one)), listed(one.settings))
            for one in experiment.measurements
        ],
        "paper-values": list(experiment.paper.items()),
        "deviations": [(one.what, one.why) for one in experiment.deviations],
        "commands": [
            ("all of it", command_of([experiment.name], reduced=experiment.reduced)),
            *((one.name, run_command(one.settings, seed=0)) for one in variants),
        ],
    }
    said = f"Seeds are 0 to {seeds - 1}." if variants and seeds > 1 else ""
    return {
        texts()[f"details-{kind}"]["heading"]: table(
            f"details-{kind}", f"{experiment.name}-details-{kind}", some,
            place=experiment.place, seeds=said,
        )
        for kind, some in rows.items()
        if some
    }  # fmt: skip


# --- the page as Markdown, to be read where there is no browser ------------------------------


def documents(page: ClaimedPage, *, links: Mapping[str, str] | None = None) -> dict[str, str]:
    """The page in Markdown, by path: a summary, and a file of details for each section.

    Tables of more than 40 rows are left to the page. The same page gives the same text.

    Guarantees (`paper/tests/test_document.py`): every plot is linked, every epsilon says
    what it is worth, and text cannot break out of a table.
    """
    links = links or {plot.name: f"{_FOLDER}/{plot.name}.svg" for plot in _plots(page)}
    details = {f"{_DETAILS}/{one.name}.md": one for one in page.sections}
    summary = ["| " + " | ".join(["figure", *_ROW.values()]) + " |", "| --- " * 5 + "|"]
    for path, part in details.items():
        if part.row:
            cells = [table_cell(text) for text in part.row.values()]
            summary.append(f"| {' | '.join([f'[{table_cell(part.badge)}]({path})', *cells])} |")
    places = {one.name: section.name for section in page.sections for one in _verdicts_of(section)}
    board = {
        heading: [f"[{table_cell(one.label)}]({_DETAILS}/{places[one.name]}.md)" for one in entries]
        for heading, entries in board_of(page).items()
    }
    parts = [
        f"# {_prose(page.title)}",
        page.notice and f"> **{_prose(page.notice)}**",
        _prose(page.lead),
        f"**{_prose(page.score)}**",
        *(f"- **{name} ({len(listed)})**: {', '.join(listed)}" for name, listed in board.items()),
        "## Figure by figure",
        "\n".join(summary),
        _prose(texts()["page"]["row"]),
        texts()["page"]["how"],
        *(f"[{_prose(one.title)}]({path})" for path, one in details.items() if not one.row),
    ]  # fmt: skip
    if page.origin:
        made = Table("origin", "", ("what", "value"), tuple(page.origin.items()))
        parts += ["## What made this document", table_markdown(made)]
    found = {"reproduction.md": parts}
    for path, section in details.items():
        found[path] = _section_markdown(section, {name: f"../{to}" for name, to in links.items()})
    return {path: "\n\n".join(part for part in some if part) + "\n" for path, some in found.items()}


def _section_markdown(section: Section, links: Mapping[str, str]) -> list[str]:
    """Everything in a section but its settings, which the page has."""
    row = Table("row", "", tuple(section.row), (tuple(section.row.values()),))
    parts = [
        f"# {_prose(': '.join(part for part in (section.badge, section.title) if part))}",
        "[To the summary](../reproduction.md)",
        table_markdown(row) if section.row else "",
        *map(_prose, section.text),
        "## Claims" if _verdicts_of(section) else "",
        _claims_markdown(section),
    ]
    folds = {**({"": section.exhibits} if section.exhibits else {}), **section.details}
    for heading, exhibits in folds.items():
        if heading == _COMMANDS:
            parts.append(f"Made by `{exhibits[0].rows[0][1]}`.")  # type: ignore[union-attr]
        if heading not in ("", _FURTHER, _PROVEN, _TABLES, _DEVIATIONS):
            continue
        parts.append(f"## {heading or 'The figure'}")
        for exhibit in exhibits:
            if isinstance(exhibit, Plot):
                shown = image_link(exhibit.title, links[exhibit.name])
            elif len(exhibit.rows) > _SMALL:
                rows, file = len(exhibit.rows), f"`data/{exhibit.name}.csv`"
                shown = f"{rows} rows: on the page, and in {file} beside it."
            else:
                shown = table_markdown(exhibit)
            parts += [f"### {_prose(exhibit.title)}", shown, _prose(exhibit.caption)]
    return [*parts, *(["## Notes", *map(_prose, section.notes)] if section.notes else [])]


def _verdicts_of(section: Section) -> tuple[VerdictEntry, ...]:
    return section.verdicts if isinstance(section, ClaimedSection) else ()


def _claims_markdown(section: Section) -> str:
    rows = tuple(
        (f"“{one.quote}”", one.where, _verdict_text(one), one.measured)
        for one in _verdicts_of(section)
    )
    return table_markdown(Table("claims", "", _CLAIM_COLUMNS, rows)) if rows else ""


def _verdict_text(one: VerdictEntry) -> str:
    why = f"{' ' if one.why.startswith('(') else ': '}{one.why}" if one.why else ""
    return f"{one.standing}{why}" + (f" ({one.aside})" if one.aside else "")


def _plots(page: Page) -> list[Plot]:
    """The plots, in the order of the page."""
    return [exhibit for exhibit in all_exhibits(page) if isinstance(exhibit, Plot)]


def _prose(text: str) -> str:
    """Text as it is, in one line, in which backquotes mark code."""
    parts = re.split(r"(`[^`]+`)", re.sub(r"\s+", " ", text).strip())
    return "".join(
        part if index % 2 else re.sub(r"([\\*_\[\]<>])", r"\\\1", part)
        for index, part in enumerate(parts)
    )


def write_document(
    page: ClaimedPage, directory: Path, *, show: Callable[[float], None] = lambda _: None
) -> list[Path]:
    """Write `reproduction.md`, its details and `images/reproduction/<plot>.svg` or `.png`.

    All or none. Of the two forms of a picture the smaller one is kept; that of an earlier call in
    the other form is removed. What else is in the directory is left as it is. Returns the files,
    the summary first. `show` is told the share of the pictures that is drawn.

    Raises:
        OSError: A file cannot be written.
    """
    contents: dict[Path, bytes] = {}
    links, outdated = {}, []
    plots, looks = _plots(page), looks_of(all_exhibits(page), page.roles)
    for count, plot in enumerate(plots):
        show(count / len(plots))
        png, svg = (picture(plot, looks, form=form) for form in ("png", "svg"))
        best, other = ("svg", "png") if len(svg) <= len(png) else ("png", "svg")
        links[plot.name] = f"{_FOLDER}/{plot.name}.{best}"
        contents[directory / links[plot.name]] = svg if best == "svg" else png
        outdated.append(directory / f"{_FOLDER}/{plot.name}.{other}")
    found = documents(page, links=links)
    files = {**{directory / path: text.encode() for path, text in found.items()}, **contents}
    for folder in sorted({path.parent for path in files}):
        prepare_output(folder)
    replace_files(files)
    for path in outdated:
        path.unlink(missing_ok=True)
    return list(files)


# --- results.json ----------------------------------------------------------------------------


def records(
    figures: Sequence[tuple[Experiment, Figure]],
    results: Results,
    *,
    command: str,
    versions: Mapping[str, str],
    verdicts: Verdicts,
) -> bytes:
    """The content of `results.json`: everything that was measured, facts and verdicts.

    No times of the clock are in it but in the facts, so that the same work gives the same bytes.
    """

    def fact(value: Fact) -> Fact:
        # JSON has no word for what is not finite.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    experiments = {}
    for experiment, figure in figures:
        runs = [
            {"name": variant.name, "panels": list(variant.panels), "group": variant.group,
             "seed": job.seed, "key": job.key, **_run_record(results[job])}
            for variant in experiment.variants
            for job in experiment.jobs_of(variant)
        ]  # fmt: skip
        measurements = [
            {"name": item.name, "kind": item.kind, "settings": dict(item.settings),
             "seed": job.seed, "key": job.key, "result": results[job]}
            for item in experiment.measurements
            for job in experiment.jobs_of(item)
        ]  # fmt: skip
        experiments[experiment.name] = {
            "place": experiment.place,
            "facts": {name: fact(value) for name, value in figure.facts.items()},
            "runs": runs,
            "measurements": measurements,
        }
    content = {
        "format": FORMAT,
        "command": command,
        "versions": dict(versions),
        "reduced": any(experiment.reduced for experiment, _ in figures),
        "claims": [
            {"name": one.name, "claim": one.quote, "where": one.where, "verdict": str(verdict),
             "measured": verdict.measured}
            for one, verdict in verdicts.items()
        ],
        "experiments": experiments,
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _run_record(result: Mapping[str, Any]) -> dict[str, Any]:
    """A run; its curve has a list for each quantity, a third of the bytes of a record a round."""
    curve = result["curve"]
    columns = {name: [one.get(name) for one in curve] for name in _CURVE}
    columns["epsilon"] = [one["epsilon"]["value"] for one in curve]
    if any("drift" in one for one in curve):
        columns["drift"] = [one.get("drift") for one in curve]
    # The versions are those of all; every other run would repeat them.
    summary = {name: value for name, value in result["summary"].items() if name != "versions"}
    return {"summary": summary, "curve": columns}

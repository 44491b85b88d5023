"""The page of all experiments, the same as Markdown documents, and the numbers as JSON."""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffsketch.app.settings import RunConfig, Value, describe
from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.charts import looks_of
from diffsketch.pages.exhibits import Cell, Page, Plot, Section, Table, all_exhibits
from diffsketch.pages.pictures import picture, thumbnail
from diffsketch.pages.tables import to_csv
from diffsketch.training.defaults import TASK_DEFAULTS
from paper import METHODS
from paper.claims import (
    NOTHING,
    Standing,
    Verdicts,
    changed_beyond,
    configurations,
    figure_row,
    panels_note,
    statements,
    summary_text,
)
from paper.experiments import FORMAT, Experiment, Job, Lacking, Results
from paper.figures import Fact, Figure, Rows, table, texts
from paper.markdown import image_link, table_cell, table_markdown
from paper.scoreboard import ClaimedPage, ClaimedSection, VerdictEntry

_ROW = {"says": "the paper says", "letter": "we find", "proven": "proven instead"}
_COLOURED = ("Laplace on sketches", "Laplace on raw gradients", "DiffSketch")
"""Methods in the colours of the paper's captions (blue and orange), and ours in the next."""
_KINDS = ("Theorem", "Figure", "Table")
_SHOWN = 6  # plots of a figure that are not folded away
_FURTHER, _PROVEN, _TABLES = "Further plots", "What is true: proven and measured", "Numbers"
_DEVIATIONS, _PAPER = "Where this is not as in the paper", "The paper's values"
_FOLDER, _DETAILS = "images/reproduction", "reproduction"
_CLAIM_COLUMNS = ("claim", "verdict", "what we measured", "rule")
_SAME = "says the same: "
_NOT_GIVEN = "not given"  # a value of the paper
_IN_A_ROW = 4  # thumbnails
_PICTURES = 5  # of a section that its document has
_SMALL = 12  # rows of a table that is worth reading in the document
_SHORT = ("textbook", "apart")  # sections with the labels of claims in place of quotes
_APART = ("beyond", "configurations", "lacking")  # no figures of the paper's
_CURVE = ("round", "loss", "accuracy", "bytes_up", "bytes_down", "noised_share", "left_out")


@dataclass(frozen=True)
class Made:
    """The things that a page is made of: a command, a run, and what of it is not measured yet."""

    command: str
    versions: Mapping[str, str]
    sources: Mapping[str, str] = field(default_factory=dict)  # by key of a job, if another's
    drawn_by: str = ""  # digest of the source, if it is not that of the run
    lacking: Mapping[str, Sequence[Lacking]] = field(default_factory=dict)  # by experiment


def page_of(
    figures: Sequence[tuple[Experiment, Figure]], verdicts: Verdicts, made: Made, *, notice: str
) -> ClaimedPage:
    """The page: a scoreboard of the claims, and a section for each experiment; theorems first.

    Guarantees (`paper/tests/test_document.py`): every claim is on it once.
    """
    text = texts()["page"]
    seeds = {job.seed for one, _ in figures for job in one.jobs}
    facts = {one.name: figure.facts for one, figure in figures}
    # Textbook facts and what is counted apart stand on a page of their own.
    rest = {
        one: each
        for one, each in verdicts.items()
        if one.place not in facts or one.aside or one.kind == "textbook"
    }
    ordered = sorted(figures, key=lambda each: _order(each[0]))
    sections: list[Section] = [
        section_of(
            *each,
            row=figure_row(each[0].name, facts),
            verdicts={
                one: of
                for one, of in verdicts.items()
                if one.place == each[0].name and one not in rest
            },
        )
        for each in ordered
    ]
    for name in ("textbook", "apart"):
        some = {one: of for one, of in rest.items() if (one.kind == "textbook") is (name[0] == "t")}
        if some:
            sections.append(ClaimedSection(name, text[name], verdicts=_entries(some)))
    if not any(one.reduced for one, _ in figures):
        sections += _across(facts, verdicts)
    lacking = [(name, *one) for name, some in made.lacking.items() for one in some]
    if lacking:
        groups: dict[tuple[str, int, int], list[str]] = {}
        for name, run, recorded, planned in lacking:
            groups.setdefault((name, recorded, planned), []).append(run)
        rows: Rows = [
            (*key, len(some), "; ".join(some) if len(some) <= _SMALL else "all others")
            for key, some in groups.items()
        ]
        missing = table("lacking", "lacking", rows)
        sections.append(Section("lacking", missing.title, exhibits=(missing,)))
    sections.append(Section("reading", text["reading"], text=tuple(text["reading-text"])))
    later = Counter(made.sources.values())
    origin = {
        "Made by": f"`{made.command}`",
        "with": ", ".join(
            f"{one} {made.versions[one]}" for one in ("diffsketch", "torch", "numpy", "python")
        ),
        "source of the run": f"digest {made.versions['source']} of the package's modules",
        "runs added later": ", ".join(f"{n} by digest {one}" for one, n in later.items()),
        "drawn and judged again by": made.drawn_by and f"digest {made.drawn_by}",
        "not measured yet": f"{len(lacking)} runs and measurements" if lacking else "",
        "machine": f"{made.versions['machine']}, one thread for each run",
        "seeds": f"0 to {max(seeds)}" if any(seeds) else "0",
    }
    return ClaimedPage(
        title=text["title"],
        lead=text["lead"],
        sections=tuple(sections),
        notice=notice,
        origin={name: value for name, value in origin.items() if value},
        roles=_COLOURED,
        score=summary_text(verdicts),
    )


def _across(facts: Mapping[str, Mapping[str, Fact]], verdicts: Verdicts) -> list[Section]:
    """Two sections: one configuration at a time, and what further panels would change."""
    columns, rows = configurations(facts)
    changed: Rows = [
        (one.label, str(own.standing), str(other))
        for one, own, other in changed_beyond(facts, verdicts)
    ]
    cells: Rows = [(name, *(str(each.standing) for each in found)) for name, found in rows]
    held = {
        name: [one.label for one, each in zip(columns, found, strict=True)
               if each.standing is Standing.HOLDS]
        for name, found in rows
    }  # fmt: skip
    several = [f"{name}: {', '.join(some)}" for name, some in held.items() if len(some) > 1]
    together = "; ".join(several) or "no row, of what was measured, makes two of them true"
    headings = ("configuration", *(one.label for one in columns))
    tables = {
        "configurations": table("configurations", "configurations", cells, headings),
        "beyond": table("beyond", "beyond", changed),
    }
    text = {"configurations": (f"True together: {together}.",)}
    return [
        Section(name, one.title, exhibits=(one,), text=text.get(name, ()))
        for name, one in tables.items()
    ]


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
            "" if of.measured == NOTHING else of.measured, rule=of.rule,
            aside=f"{_SAME}{labels[one.aside]}" if one.aside in labels else one.aside,
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
    """The page in Markdown, by path: a summary of one screen, and a file for each section.

    Long tables are left to the CSV files beside it. The same page gives the same text.

    Guarantees (`paper/tests/test_document.py`): every plot is linked, a page begins with its
    figure and has at most 700 words, and text cannot break out of a table.
    """
    links = links or {plot.name: f"{_FOLDER}/{plot.name}.svg" for plot in _plots(page)}
    details = {f"{_DETAILS}/{one.name}.md": one for one in page.sections}
    figures = [one for one in page.sections if _first_plot(one) and one.badge.startswith("Figure")]
    others = {path: one for path, one in details.items() if one not in figures}
    parts = [
        f"# {_prose(page.title)}",
        page.notice and f"> **{_prose(page.notice)}**",
        _prose(page.lead),
        f"**{_prose(page.score)}**",
        *(_thumbnails(figures[at : at + _IN_A_ROW]) for at in range(0, len(figures), _IN_A_ROW)),
        ", ".join(f"[{_prose(one.badge or one.title)}]({path})" for path, one in others.items())
        + ".",
        "; ".join(f"{what}: {value}" for what, value in page.origin.items()) + ".",
    ]
    found = {"reproduction.md": parts}
    for path, section in details.items():
        found[path] = _section_markdown(section, {name: f"../{to}" for name, to in links.items()})
    found[f"{_DETAILS}/reading.md"].append(texts()["page"]["how"])
    return {path: "\n\n".join(part for part in some if part) + "\n" for path, some in found.items()}


def _first_plot(section: Section) -> Plot | None:
    return next((one for one in section.exhibits if isinstance(one, Plot)), None)


def _thumbnails(sections: Sequence[Section]) -> str:
    """A row of figures: in small, what the paper says, and how its claims stand."""
    columns = [
        (
            f"[{_prose(one.badge)}]({_DETAILS}/{one.name}.md)",
            image_link(one.title, f"{_FOLDER}/small-{one.name}.png"),
            f"The paper: {table_cell(one.row.get(_ROW['says'], ''))}",
            "Ours: " + ", ".join(
                f"{standing} {count}"
                for standing, count in Counter(v.standing for v in _verdicts_of(one)).items()
            ),
        )
        for one in sections
    ]  # fmt: skip
    lines = [" | ".join(row) for row in zip(*columns, strict=True)]
    return "\n".join(f"| {line} |" for line in [lines[0], " | ".join(["---"] * len(columns)),
                                                *lines[1:]])  # fmt: skip


def _section_markdown(section: Section, links: Mapping[str, str]) -> list[str]:
    """A section: its figure first, then what is said and found, then rules and data."""
    exhibits = [*section.exhibits, *(one for some in section.details.values() for one in some)]
    plots = [one for one in exhibits if isinstance(one, Plot)]
    tables = {one.name: one for one in exhibits if isinstance(one, Table)}
    of_details = f"{section.name}-details-"
    commands = tables.get(f"{of_details}commands")
    name = ": ".join(part for part in (section.badge, section.title) if part)
    parts = [f"# {_prose(name)}"]
    if plots:
        parts += [_image(plots[0], links), _prose(_first_sentence(plots[0].caption))]
    parts += [
        "[To the summary](../reproduction.md)",
        *(f"**{_prose(what).capitalize()}.** {_prose(text)}" for what, text in section.row.items()),
        *map(_prose, section.text),
    ]
    deviations = tables.get(f"{of_details}deviations")
    values = tables.get(f"{of_details}paper-values")
    if values is not None:
        said = [f"- {row[0]}: {row[1]}" for row in values.rows if row[1] != _NOT_GIVEN]
        missing = [str(row[0]) for row in values.rows if row[1] == _NOT_GIVEN]
        said += [f"- not given: {', '.join(missing)}"] if missing else []
        parts += ["**In the paper:**", "\n".join(map(_prose, said))]
    if deviations is not None:
        ours = [f"- {_prose(_first_sentence(str(row[0])))}" for row in deviations.rows]
        parts += ["**Our choices, not the paper's:**", "\n".join(ours)]
    if _verdicts_of(section):
        parts += ["## Claims and rules", _claims_markdown(section)]
    shown = [one for one in tables.values() if not one.name.startswith(of_details)]
    small = [one for one in shown if len(one.rows) <= _SMALL and len(one.columns) <= _SMALL]
    whole = shown if section.name in _APART else [] if plots else small[:1]
    for each in whole:
        parts += [table_markdown(each), _prose(each.caption)]
    if rest := [one for one in plots[1:] if one.name in links]:
        parts += ["## Further plots", *(_image(one, links) for one in rest)]
    files = [f"[{_prose(one.title)}](data/{one.name}.csv)" for one in shown if one not in whole]
    if plots:
        files.append(f"numbers of each plot by its name, such as `data/{plots[0].name}.csv`")
    if files:
        parts += ["## Data", f"{', '.join(files)}."]
    if commands is not None:
        settings = f"`paper/settings/{section.name}.toml`"
        parts.append(f"Made by `{commands.rows[0][1]}`; settings: {settings}.")
    return parts


def _first_sentence(text: str) -> str:
    r"""The first sentence of a text: it ends before a capital letter.

    >>> _first_sentence("5.1 of 10. Seeds differ.")
    '5.1 of 10.'
    """
    return re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0]


def _image(plot: Plot, links: Mapping[str, str]) -> str:
    return image_link(plot.title, links[plot.name])


def _verdicts_of(section: Section) -> tuple[VerdictEntry, ...]:
    return section.verdicts if isinstance(section, ClaimedSection) else ()


def _claims_markdown(section: Section) -> str:
    """A row for each claim: in the paper's words, but in few where it is no claim of a figure."""
    short = section.name in _SHORT
    rows = tuple(  # of what repeats another claim the numbers are that one's
        (f"{one.label if short else f'“{one.quote}”'} ({one.where})", _verdict_text(one),
         *(("", "") if one.aside.startswith(_SAME) else (one.measured, one.rule)))
        for one in _verdicts_of(section)
    )  # fmt: skip
    return table_markdown(Table("claims", "", _CLAIM_COLUMNS, rows)) if rows else ""


def _verdict_text(one: VerdictEntry) -> str:
    why = f"{' ' if one.why.startswith('(') else ': '}{one.why}" if one.why else ""
    return f"{one.standing}{why}" + (f" ({one.aside})" if one.aside else "")


def _plots(page: Page) -> list[Plot]:
    """The plots of the documents: the first ones of each section; the page has all."""
    return [
        exhibit
        for section in page.sections
        for exhibit in [one for one in section.every_exhibit if isinstance(one, Plot)][:_PICTURES]
    ]


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
    """Write `reproduction.md`, its details with their data, and `images/reproduction/`.

    All or none. Of the two forms of a picture the smaller one is kept. Pictures, texts and tables
    of an earlier call are removed; what else is in the directory is left as it is. Returns the
    files, the summary first. `show` is told the share of the pictures that is drawn.

    Raises:
        OSError: A file cannot be written.
    """
    contents: dict[Path, bytes] = {}
    links = {}
    plots, looks = _plots(page), looks_of(all_exhibits(page), page.roles)
    for count, plot in enumerate(plots):
        show(count / len(plots))
        png, svg = (picture(plot, looks, form=form) for form in ("png", "svg"))
        best = "svg" if len(svg) <= len(png) else "png"
        links[plot.name] = f"{_FOLDER}/{plot.name}.{best}"
        contents[directory / links[plot.name]] = svg if best == "svg" else png
    for section in page.sections:
        if (first := _first_plot(section)) is not None:
            contents[directory / f"{_FOLDER}/small-{section.name}.png"] = thumbnail(first, looks)
    for exhibit in all_exhibits(page):
        if "-details-" not in exhibit.name:
            contents[directory / f"{_DETAILS}/data/{exhibit.name}.csv"] = to_csv(exhibit)
    found = documents(page, links=links)
    files = {**{directory / path: text.encode() for path, text in found.items()}, **contents}
    folders = sorted({path.parent for path in files})
    for folder in folders:
        prepare_output(folder)
    replace_files(files)
    for path in (path for folder in folders if folder != directory for path in folder.glob("*")):
        if path.suffix in (".svg", ".png", ".csv", ".md") and path not in files:
            path.unlink()  # of an earlier page
    return list(files)


# --- results.json ----------------------------------------------------------------------------


def records(
    figures: Sequence[tuple[Experiment, Figure]],
    results: Results,
    *,
    made: Made,
    verdicts: Verdicts,
) -> bytes:
    """The content of `results.json`: everything that was measured, facts and verdicts.

    No times of the clock are in it but in the facts, so that the same work gives the same bytes.
    """

    def fact(value: Fact) -> Fact:
        # JSON has no word for what is not finite.
        return str(value) if isinstance(value, float) and not math.isfinite(value) else value

    def keyed(job: Job) -> dict[str, Any]:
        later = made.sources.get(job.key)
        return {"seed": job.seed, "key": job.key, **({"source": later} if later else {})}

    experiments = {}
    for experiment, figure in figures:
        runs = [
            {"name": variant.name, "panels": list(variant.panels), "group": variant.group,
             **keyed(job), **_run_record(results[job])}
            for variant in experiment.variants
            for job in experiment.jobs_of(variant)
        ]  # fmt: skip
        measurements = [
            {"name": item.name, "kind": item.kind, "settings": dict(item.settings),
             **keyed(job), "result": results[job]}
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
        "command": made.command,
        "versions": dict(made.versions),
        "reduced": any(experiment.reduced for experiment, _ in figures),
        "claims": [
            {"name": one.name, "claim": one.quote, "where": one.where, "verdict": str(verdict),
             "measured": verdict.measured, "rule": verdict.rule}
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

"""The page of all experiments, the files of its Markdown documents, and the numbers as JSON."""

from __future__ import annotations

import json
import math
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from diffsketch.app.settings import RunConfig, Value, describe
from diffsketch.files import prepare_output, replace_files
from diffsketch.pages.charts import looks_of
from diffsketch.pages.exhibits import Exhibit, Plot, Section, Table, all_exhibits, to_csv
from diffsketch.pages.pictures import picture, thumbnail
from diffsketch.training.defaults import TASK_DEFAULTS
from paper import METHODS, claims
from paper.claims import ClaimVerdict, Standing, Verdicts
from paper.experiments import FORMAT, Experiment, Job, Lacking, Results
from paper.facts import Statement
from paper.figures import Fact, Figure, exhibits_of, table, texts
from paper.markdown import PICTURES, documented_plots, documents, is_detail, thumbnails
from paper.scoreboard import ClaimedPage, ClaimedSection, VerdictEntry

_COLOURED = ("Laplace on sketches", "Laplace on raw gradients", "DiffSketch")
"""Methods in the colours of the paper's captions (blue and orange), and ours in the next."""
_KINDS = ("Theorem", "Figure", "Table")
_SHOWN = 6  # plots of a figure that are not folded away
_SAME = "says the same: "
_FEW = 12  # runs that are not measured yet, and are named
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
    facts = {experiment.name: figure.facts for experiment, figure in figures}
    by_section: dict[str, dict[Statement, ClaimVerdict]] = {}
    for statement, verdict in verdicts.items():
        # Textbook facts and what is counted apart stand on a page of their own.
        place = "apart" if statement.aside or statement.place not in facts else statement.place
        place = "textbook" if statement.kind == "textbook" else place
        by_section.setdefault(place, {})[statement] = verdict
    sections: list[Section] = [
        section_of(
            experiment,
            figure,
            row=claims.figure_row(experiment.name, facts),
            verdicts=by_section.get(experiment.name, {}),
        )
        for experiment, figure in sorted(figures, key=lambda each: _order(each[0]))
    ]
    sections += [
        ClaimedSection(name, text[name], verdicts=_entries(by_section[name]))
        for name in ("textbook", "apart")
        if name in by_section
    ]
    if not any(experiment.reduced for experiment, _ in figures):
        sections += _across(facts, verdicts)
    lacking = [(name, *run) for name, runs in made.lacking.items() for run in runs]
    if lacking:
        sections.append(_lacking(lacking))
    reading = tuple(each.format(panels=claims.panels_note()) for each in text["reading-text"])
    sections.append(Section("reading", text["reading"], text=reading))
    later = Counter(made.sources.values())
    last_seed = max(job.seed for experiment, _ in figures for job in experiment.jobs)
    origin = {
        "Made by": f"`{made.command}`",
        "with": ", ".join(
            f"{name} {made.versions[name]}" for name in ("diffsketch", "torch", "numpy", "python")
        ),
        "source of the run": f"digest {made.versions['source']} of the package's modules",
        "runs added later": ", ".join(f"{n} by digest {source}" for source, n in later.items()),
        "drawn and judged again by": made.drawn_by and f"digest {made.drawn_by}",
        "not measured yet": f"{len(lacking)} runs and measurements" if lacking else "",
        "machine": f"{made.versions['machine']}, one thread for each run",
        "seeds": f"0 to {last_seed}" if last_seed else "0",
    }
    return ClaimedPage(
        title=text["title"],
        lead=text["lead"],
        sections=tuple(sections),
        notice=notice,
        origin={name: value for name, value in origin.items() if value},
        roles=_COLOURED,
        score=claims.summary_text(verdicts),
    )


def _across(facts: Mapping[str, Mapping[str, Fact]], verdicts: Verdicts) -> list[Section]:
    """Two sections: one configuration at a time, and what further panels would change."""
    columns, judged = claims.configurations(facts)
    headings = ("configuration", *(claim.label for claim in columns))
    rows = [(name, *(str(verdict.standing) for verdict in row)) for name, row in judged]
    together = []
    for name, row in judged:
        held = [
            claim.label
            for claim, verdict in zip(columns, row, strict=True)
            if verdict.standing is Standing.HOLDS
        ]
        together += [f"{name}: {', '.join(held)}"] if len(held) > 1 else []
    changed = [
        (claim.label, str(verdict.standing), str(beyond))
        for claim, verdict, beyond in claims.changed_beyond(facts, verdicts)
    ]
    about = texts()["configurations"]
    first = table(about, "configurations", rows, headings)
    second = table(texts()["beyond"], "beyond", changed)
    said = about["together"].format("; ".join(together)) if together else about["apart"]
    return [
        Section("configurations", first.title, exhibits=(first,), text=(said,)),
        Section("beyond", second.title, exhibits=(second,)),
    ]


def _lacking(lacking: Sequence[tuple[str, str, int, int]]) -> Section:
    """Runs that are not measured yet: a row for each experiment and numbers of seeds."""
    groups: dict[tuple[str, int, int], list[str]] = {}
    for name, run, recorded, planned in lacking:
        groups.setdefault((name, recorded, planned), []).append(run)
    rows = [
        (*key, len(runs), "; ".join(runs) if len(runs) <= _FEW else "all others")
        for key, runs in groups.items()
    ]
    missing = table(texts()["lacking"], "lacking", rows)
    return Section("lacking", missing.title, exhibits=(missing,))


def _order(experiment: Experiment) -> tuple[int, str]:
    """The place of a section: theorems, figures and tables by their numbers, then all else."""
    kind = experiment.place.partition(" ")[0]
    return (_KINDS.index(kind), experiment.place) if kind in _KINDS else (len(_KINDS), "")


def _entries(verdicts: Verdicts) -> tuple[VerdictEntry, ...]:
    """The claims of a section, with their verdicts."""
    labels = {statement.name: f"{_SAME}{statement.label}" for statement in claims.statements()}
    return tuple(
        VerdictEntry(
            claim.name, claim.label, str(verdict.standing), claim.quote, claim.where, verdict.why,
            "" if verdict.measured == claims.NOTHING else verdict.measured, rule=verdict.rule,
            aside=labels.get(claim.aside, claim.aside),
        )
        for claim, verdict in verdicts.items()
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
    plots = [each for each in figure.exhibits if isinstance(each, Plot)]
    tables = [each for each in figure.exhibits if isinstance(each, Table)]
    shown = plots[:_SHOWN] or tables[:1]
    folded = {
        "Further plots": plots[_SHOWN:],
        "What is true: proven and measured": figure.proven,
        "Numbers": [each for each in tables if each not in shown],
        **{each.title: [each] for each in details_of(experiment)},
    }
    worth = texts()["page"]["worth"].get(experiment.name, "")
    judged = any(variant.group != "proven" for variant in experiment.variants)
    return ClaimedSection(
        name=experiment.name,
        title=experiment.title,
        row={
            "the paper says": experiment.says,
            "we find": row["letter"],
            "proven instead": " ".join(filter(None, (row["proven"], worth))),
        },
        exhibits=tuple(shown),
        verdicts=_entries(verdicts),
        notes=(*figure.text, *([claims.panels_note()] if judged else [])),
        details={heading: tuple(parts) for heading, parts in folded.items() if parts},
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
    fields = describe(RunConfig)
    usual = TASK_DEFAULTS[str(settings.get("task", "mnist"))]
    ours = settings.get("method") in METHODS
    words = ["python", "-m", "paper.run"] if ours else ["diffsketch", "run"]
    for name, value in settings.items():
        default = fields[name].default
        if value != (usual.get(name) if default is None else default):
            words += [fields[name].flag, str(value)]
    return shlex.join([*words, "--seed", str(seed)])


def details_of(experiment: Experiment) -> list[Exhibit]:
    """Tables of the paper's values, of deviations, and of runs and measurements; none empty."""
    values = [
        {"name": name, "value": value}
        for name, value in experiment.paper.items()
        if value != "not given"
    ]
    if missing := [name for name, value in experiment.paper.items() if value == "not given"]:
        values.append({"name": ", ".join(missing), "value": "not given"})
    runs = [
        {"name": run.name, "panels": ", ".join(run.panels), "kind": run.group,
         "seeds": len(experiment.jobs_of(run)), "settings": run_command(run.settings, seed=0)}
        for run in experiment.variants
    ]  # fmt: skip
    measurements = [
        {"name": each.name, "kind": each.kind, "seeds": len(experiment.jobs_of(each)),
         "settings": ", ".join(f"{key} = {value}" for key, value in each.settings.items())}
        for each in experiment.measurements
    ]  # fmt: skip
    records = {
        "values": values,
        "deviations": [asdict(each) for each in experiment.deviations],
        "parts": [*runs, *measurements],
    }
    command = command_of([experiment.name], reduced=experiment.reduced)
    return exhibits_of(experiment.name, texts()["details"]["exhibit"], records, command=command)


# --- files -----------------------------------------------------------------------------------


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
            {"name": claim.name, "claim": claim.quote, "where": claim.where,
             "verdict": str(verdict), "measured": verdict.measured, "rule": verdict.rule}
            for claim, verdict in verdicts.items()
        ],
        "experiments": experiments,
    }  # fmt: skip
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _run_record(result: Mapping[str, Any]) -> dict[str, Any]:
    """A run; its curve has a list for each quantity, a third of the bytes of a record a round."""
    curve = result["curve"]
    columns = {name: [point.get(name) for point in curve] for name in _CURVE}
    columns["epsilon"] = [point["epsilon"]["value"] for point in curve]
    if any("drift" in point for point in curve):
        columns["drift"] = [point.get("drift") for point in curve]
    # The versions are those of all; every other run would repeat them.
    summary = {name: value for name, value in result["summary"].items() if name != "versions"}
    return {"summary": summary, "curve": columns}

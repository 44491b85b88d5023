"""Comparisons: several methods on the same batches and devices, over seeds, in one table."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.markup import escape
from rich.table import Table

from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.files import (
    RunDirectory,
    check_directory,
    free_name,
    locked,
    read_metrics,
    read_sealed,
    recovered,
    sealed,
)
from diffsketch.app.pool import Stop, Tell, run_all
from diffsketch.app.session import (
    TrainingSession,
    bytes_in_words,
    epsilon_from_data,
    threads,
    warnings_in_lines,
)
from diffsketch.app.settings import (
    METHOD_NAMES,
    METHOD_SETTINGS,
    RunConfig,
    Value,
    checked_table,
    parse_setting,
    read_toml,
    with_task_defaults,
)
from diffsketch.app.terminal import Interrupts, LastingConsole, print_line
from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError, nearest
from diffsketch.files import csv_cell, leftovers, prepare_output, replace_file, replace_files
from diffsketch.methods.gate import NonFiniteUpdate

_HELP = "diffsketch compare --help"
_PLAN, _FORMAT = "comparison.plan.json", "diffsketch comparison 1"
_LONGEST, _KEPT = 80, 60  # letters of a directory's name
_SEED_END = 2**63
_COLUMNS = (
    "name", "seed", "outcome", "diverging", "rounds", "loss", "accuracy", "best_accuracy",
    "message_bytes", "bytes_up", "bytes_down", "compression", "epsilon", "delta", "basis", "unit",
    "relation", "trust", "noised_share", "milliseconds_per_round",
)  # fmt: skip
_ENDED = {"diverged": "diverged", "diverging": "diverging", "budget": "out of\nbudget"}


Contenders: TypeAlias = Mapping[str, Mapping[str, Value]]
"""Rows of the table by name, in their order: settings for any seed."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    name: str
    seed: int
    path: Path
    config: RunConfig


@dataclass(frozen=True)
class Result:
    """The result of one run, for the row of that name."""

    name: str
    seed: int
    summary: dict[str, Any] | None  # None if it was interrupted
    times: dict[str, float]  # empty if they are not known
    curve: list[dict[str, Any]]  # its measurements


def parse_method(text: str) -> tuple[str, dict[str, Value]]:
    """A name and settings from `METHOD` or `METHOD:key=value,key=value`.

    >>> parse_method("sketch:rows=7,cols=22")
    ('sketch:rows=7,cols=22', {'method': 'sketch', 'rows': 7, 'cols': 22})
    """
    known = [name for name in RunConfig.model_fields if name not in ("method", "seed")]
    method, _, rest = text.partition(":")
    if method not in METHOD_NAMES:
        hint = nearest(method, METHOD_NAMES, see=_HELP)
        raise ArgumentError(f"method must be the name of one, got method={text!r}; {hint}")
    settings: dict[str, Value] = {"method": method}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in known:
            raise ArgumentError(
                f"method must be NAME:key=value,..., got method={text!r}: {part!r} is no setting; "
                f"{nearest(key, known, see=_HELP)}"
            )
        if key in settings:
            raise ArgumentError(f"method must have {key} once, got method={text!r}")
        settings[key] = parse_setting(key, value.strip())
    return text, settings


def read_comparison(path: Path) -> tuple[dict[str, Value], list[tuple[str, dict[str, Value]]]]:
    """Shared settings in a TOML file, and those of each `[[run]]` table with its name."""
    content = read_toml(path)
    tables = content.pop("run", [])
    shared = checked_table(content, f"{path}:")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{path}: run must be tables, written as [[run]]")
    found = []
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[run]] {number}:"
        name = table.pop("name", None)
        settings = checked_table(table, where)
        if "seed" in settings:
            raise DataError(f"{where} seed must be the same for all runs; give it at the top")
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise DataError(f"{where} name must be text, got name={name!r}")
        text = ",".join(f"{key}={value}" for key, value in settings.items() if key != "method")
        default = f"{settings.get('method', shared.get('method', 'diffsketch'))}:{text}".strip(":")
        found.append((name or default, settings))
    return shared, found


def contenders_of(
    shared: Mapping[str, Value],
    each: Sequence[tuple[str, Mapping[str, Value]]],
    *,
    fields_of: Mapping[str, frozenset[str]],
) -> Contenders:
    """The rows of the comparison, each with a name of its own.

    A shared setting of methods (such as `rows`) goes to the methods that have it, by `fields_of`;
    one that nobody uses is an error.
    """
    if not each:
        raise ArgumentError("method must be given, once for each run to compare, got method=None")
    contenders: dict[str, Mapping[str, Value]] = {}
    unused = set(shared)
    for name, settings in each:
        method = str(settings.get("method", shared.get("method", "diffsketch")))
        others = METHOD_SETTINGS - fields_of[method]
        common = {key: value for key, value in shared.items() if key not in others}
        unused -= set(common)
        own = {**common, "method": method, **settings}
        if isinstance(own.get("data_dir"), str):
            # It may be continued from elsewhere.
            own["data_dir"] = str(Path(str(own["data_dir"])).resolve())
        if folder_of(name) in map(folder_of, contenders):
            raise ArgumentError(f"method must differ from run to run, got method={name!r} twice")
        contenders[name] = own
    for key in (key for key in shared if key in unused):
        raise ArgumentError(
            f"{key} must be a setting of one of the methods at least, got {key}={shared[key]!r}"
        )
    return contenders


def folder_of(name: str) -> str:
    """A name for the directory of a row: short enough for any file system."""
    text = re.sub(r"[^A-Za-z0-9.=_-]+", "-", name).strip("-.") or "run"
    if len(text) <= _LONGEST and not text.startswith("comparison."):
        return text
    return f"{text[:_KEPT].rstrip('-.')}-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def has_plan(directory: Path) -> bool:
    """Whether a comparison was begun in a directory."""
    return (directory / _PLAN).is_file()


def write_plan(contenders: Contenders, seeds: Sequence[int], directory: Path) -> None:
    """Write the file from which a comparison is continued."""
    runs = [{"name": name, "settings": dict(own)} for name, own in contenders.items()]
    for half in leftovers(directory, [_PLAN]):
        half.unlink()
    data = {"format": _FORMAT, "seeds": list(seeds), "runs": runs}
    replace_file(directory / _PLAN, sealed(data))


def read_plan(directory: Path) -> tuple[Contenders, list[int]]:
    """The rows and the seeds that `write_plan` wrote, all of whose settings are allowed."""
    check_directory(directory, "a comparison")
    path = directory / _PLAN
    try:
        data = read_sealed(path)
    except FileNotFoundError as error:
        raise DataError(f"{directory}: not the directory of a comparison: no {_PLAN}") from error
    if data.get("format") != _FORMAT:
        raise MismatchError(f"{path}: must have the format {_FORMAT!r}, got {data.get('format')!r}")
    try:
        runs = {item["name"]: dict(item["settings"]) for item in data["runs"]}
        seeds = [int(seed) for seed in data["seeds"]]
        members_of(runs, seeds, directory)  # which checks all settings
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error
    return runs, seeds


def members_of(contenders: Contenders, seeds: Sequence[int], directory: Path) -> list[Member]:
    """All runs of a comparison, those with the same seed together."""
    return [
        Member(name, seed, directory / folder_of(name) / f"seed-{seed}", config_of(own, seed))
        for seed in seeds
        for name, own in contenders.items()
    ]


def config_of(settings: Mapping[str, Value], seed: int) -> RunConfig:
    """The settings of a row's run with a seed."""
    return RunConfig(**{**settings, "seed": seed})  # type: ignore[arg-type]


def run_one(member: Member, *, command: list[str], tell: Tell, stop: Stop) -> Result:
    """Run it to its end, from its checkpoint if it has one, or until `stop`."""
    with threads(member.config.threads):
        built = None
        if recovered(member.path):
            opened = RunDirectory.open(member.path)
        elif stop():
            return Result(member.name, member.seed, None, {}, [])
        else:
            built = build(member.config)
            opened = RunDirectory.create(member.path, built.config, command=command)
        with opened as directory:
            _check_member(member, directory)
            if not directory.finished:
                TrainingSession(built or build(directory.config), directory).run(
                    show=lambda training: tell(training.round_index / max(training.rounds, 1)),
                    stop=stop,
                )
            curve = read_metrics(directory.metrics)
            return Result(member.name, member.seed, directory.summary(), directory.times(), curve)


def _check_member(member: Member, directory: RunDirectory) -> None:
    """Raise unless the run that is there has the settings that the plan has for it."""
    planned = with_task_defaults(member.config, fields=settings_of_methods()[member.config.method])
    for name, wanted in planned:
        found = getattr(directory.config, name)
        # Settings that the data and the method decide follow from the rest.
        decided = name == "workers" or name in METHOD_SETTINGS
        if found != wanted and not (wanted is None and decided):
            raise MismatchError(
                f"{directory.path}: is no run of this comparison, whose plan has {name}={wanted!r} "
                f"for it: it has {name}={found!r}"
            )


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each name: means over its seeds, their standard deviation, largest epsilon."""
    rows = []
    for name in dict.fromkeys(result.name for result in results):
        ended = [(one.summary, one.times) for one in results if one.name == name and one.summary]
        summaries = [summary for summary, _ in ended]
        accuracies = [one["accuracy"] for one in summaries]
        sent = [one["bytes_up"] + one["bytes_down"] for one in summaries]
        ways = ("uncompressed_bytes_up", "uncompressed_bytes_down")
        raw = sum(one[way] for one in summaries for way in ways)
        seconds = sum(times["training"] for _, times in ended if times)
        steps = sum(summary["rounds"] for summary, times in ended if times)
        endings = Counter(
            "diverging" if one["diverging"] and one["outcome"] == "finished" else one["outcome"]
            for one in summaries
        )
        row = {
            "name": name,
            "seeds": len(summaries),
            "accuracy": statistics.fmean(accuracies),
            "accuracy_spread": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
            "rounds": max(one["rounds"] for one in summaries),
            "message_bytes": summaries[0]["message_bytes"],
            "bytes": statistics.fmean(sent),
            "compression": raw / max(sum(sent), 1),
            "milliseconds_per_round": 1000 * seconds / steps if steps else None,
            "epsilon": max(
                (one["epsilon"] for one in summaries),
                key=lambda one: math.inf if one["value"] is None else float(one["value"]),
            ),
            "assumes": list(dict.fromkeys(text for one in summaries for text in one["assumes"])),
            "ended": dict(endings),
        }
        rows.append(row)
    return rows


def report(rows: Sequence[Mapping[str, Any]], *, seeds: Sequence[int]) -> tuple[Table | str, ...]:
    """The table, and how to read it."""
    many = len(seeds) > 1
    title = f"Means over {len(seeds)} seeds" if many else f"Seed {seeds[0]}"
    table = Table(title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for heading in ("accuracy", "rounds,\nms each", "message,\nall bytes", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("epsilon", no_wrap=True)
    assumed: dict[str, dict[str, None]] = {}
    for row in rows:
        milliseconds = row["milliseconds_per_round"]
        epsilon = epsilon_from_data(row["epsilon"]).text("short")
        table.add_row(
            _name(row["name"]),
            _accuracy(row),
            f"{row['rounds']:,}\n" + ("-" if milliseconds is None else f"{milliseconds:.3g}"),
            f"{row['message_bytes']:,} B\n{bytes_in_words(row['bytes'])}",
            f"{row['compression']:.3g}x" if row["bytes"] else "-",
            # One part a line: epsilon 8 / delta 1e-05; / proven; / client, / replace, / central.
            re.sub(r"(?<=[,;]) | (?=per |over )| \(", "\n", epsilon).rstrip(")"),
            end_section=True,
        )
        for text in row["assumes"]:
            assumed.setdefault(text, {})[row["name"].partition(":")[0]] = None
    reading = (
        "Runs with one seed have the same batches, devices and first weights. Accuracy is that of "
        "the last round"
        + (", ± the standard deviation over the seeds" if many else "")
        + ". All bytes are those of the messages up and down with their headers; the ratio is that "
        "of vectors in float32 to them."
    )
    notes = (escape(f"{', '.join(names)}: {text}") for text, names in assumed.items())
    return table, reading, *notes


def _name(name: str) -> str:
    """The name, with its settings below each other if it is made of them."""
    made = name.partition(":")[0] in METHOD_NAMES
    first, *rest = re.split("[:,]", name) if made else [name]
    return "\n".join([f"[bold]{escape(first)}[/bold]", *(escape(part) for part in rest)])


def _accuracy(row: Mapping[str, Any]) -> str:
    text = f"{100 * row['accuracy']:.2f}%"
    if row["accuracy_spread"] is not None:
        text += f"\n± {100 * row['accuracy_spread']:.2f}"
    for kind, count in row["ended"].items():
        if kind != "finished":
            text += f"\n{count} of {row['seeds']}" if row["seeds"] > 1 else ""
            text += f"\n[red]{_ENDED[kind]}[/red]"
    return text


def write_results(
    results: Sequence[Result], rows: Sequence[Mapping[str, Any]], directory: Path
) -> list[Path]:
    """Write `comparison.json` and `comparison.csv`; both or none."""
    data = {"rows": list(rows), "runs": [asdict(one) for one in results]}
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for one in results:
        summary = one.summary or {}
        epsilon, rounds = summary.get("epsilon", {}), summary.get("rounds", 0)
        row = {column: summary.get(column, epsilon.get(column)) for column in _COLUMNS}
        row |= {"name": one.name, "seed": one.seed, "epsilon": epsilon.get("value")}
        if rounds and one.times:
            row["milliseconds_per_round"] = 1000 * one.times["training"] / rounds
        writer.writerow({column: csv_cell(value) for column, value in row.items()})
    contents = {
        directory / "comparison.json": json.dumps(data, indent=1, allow_nan=False).encode() + b"\n",
        directory / "comparison.csv": stream.getvalue().encode(),
    }
    replace_files(contents)
    return list(contents)


def start(
    shared: Mapping[str, Value],
    each: Sequence[tuple[str, Mapping[str, Value]]],
    output: Path | None,
    console: LastingConsole,
    *,
    seeds: int,
    jobs: int,
    command: list[str],
) -> int:
    """Compare runs with shared settings and their own, with so many seeds; the exit status."""
    common = dict(shared)
    first = int(common.pop("seed", 0) or 0)
    if first + seeds > _SEED_END:
        raise ArgumentError(
            f"seeds must be at most {_SEED_END - first}, so that all are below {_SEED_END}, got "
            f"seeds={seeds} and seed={first}"
        )
    contenders = contenders_of(common, each, fields_of=settings_of_methods())
    for name, own in contenders.items():  # so that a mistake is found before anything is run
        try:
            build(config_of(own, first))
        except DiffSketchError as error:
            error.args = (f"{error} (in {name})",)
            raise
    if output is not None and output.is_dir():
        halves = leftovers(output, [_PLAN])  # of a process that was killed while it began
        if any(path not in halves for path in output.iterdir()):
            raise ArgumentError(
                f"output must be a new or empty directory, got output={str(output)!r}; a "
                "comparison in it is continued with --resume"
            )
    path = output or free_name(Path("runs") / "compare")
    prepare_output(path)
    numbers = list(range(first, first + seeds))
    return _run(contenders, numbers, path, console, jobs=jobs, command=command)


def resume(path: Path, console: LastingConsole, *, jobs: int, command: list[str]) -> int:
    """Continue a comparison; the exit status."""
    contenders, seeds = read_plan(path)
    return _run(contenders, seeds, path, console, jobs=jobs, command=command)


def _run(
    contenders: Contenders,
    seeds: Sequence[int],
    path: Path,
    console: LastingConsole,
    *,
    jobs: int,
    command: list[str],
) -> int:
    members = members_of(contenders, seeds, path)
    with locked(path):
        if not has_plan(path):
            write_plan(contenders, seeds, path)
        with (
            Interrupts() as interrupts,
            console.progress("Comparing") as show,
            warnings_in_lines(console),
        ):

            def watch(shares: Sequence[float | None]) -> None:
                begun = zip(members, shares, strict=True)
                now = [f"{one.name}, seed {one.seed}" for one, x in begun if x not in (None, 1.0)]
                show(sum(share or 0.0 for share in shares) / len(members), "; ".join(now))

            results = run_all(
                partial(run_one, command=command),
                members,
                processes=jobs,
                watch=watch,
                stop=lambda: interrupts.signal is not None,
                quiet=(NonFiniteUpdate,),  # counted in the summary
            )
        if any(result.summary is None for result in results):
            print_line(console, f"Interrupted. Continue with: diffsketch compare --resume {path}")
            return interrupts.exit_status
        rows = rows_of(results)
        paths = write_results(results, rows, path)
    console.show(*report(rows, seeds=seeds), wrote=paths)
    outcomes = [one.summary["outcome"] for one in results if one.summary is not None]
    if diverged := outcomes.count("diverged"):
        console.print(f"Diverged: {diverged} of {len(results)} runs.", highlight=False)
    return 0

"""Comparisons: several methods on the same batches and devices, over seeds."""

from __future__ import annotations

import csv
import hashlib
import io
import itertools
import json
import math
import os
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.files import (
    RunDirectory,
    free_name,
    locked,
    read_metrics,
    read_sealed,
    recovered,
    sealed,
)
from diffsketch.app.pool import PoolBroken, Stop, Tell, run_all
from diffsketch.app.session import (
    Interrupts,
    Status,
    bytes_in_words,
    epsilon_from_data,
    session,
    threads,
    warnings_in_lines,
)
from diffsketch.app.settings import (
    METHOD_NAMES,
    METHOD_SETTINGS,
    RunConfig,
    Value,
    checked_table,
    describe,
    nearest,
    read_toml,
    with_task_defaults,
)
from diffsketch.errors import ArgumentError, DataError, DiffSketchError, MismatchError
from diffsketch.files import leftovers, prepare_output, replace_file, replace_files
from diffsketch.privacy.claim import Basis
from diffsketch.training.simulation import NonFiniteUpdate

_PLAN = "comparison.plan.json"
_TABLES, _NAME = "run", "name"
_FORMAT = "diffsketch comparison 1"
_LONGEST, _KEPT = 80, 60  # letters of a directory's name


@dataclass(frozen=True)
class Contender:
    """One row of the table: a name, and settings for any seed.

    Args:
        name: For the table; different from the others'.
        settings: By name, without the seed.
    """

    name: str
    settings: Mapping[str, Value]

    def config(self, seed: int) -> RunConfig:
        """The settings of its run with a seed."""
        return RunConfig(**{**self.settings, "seed": seed})  # type: ignore[arg-type]

    @property
    def folder(self) -> str:
        """A name for its directory: short enough for any file system."""
        text = re.sub(r"[^A-Za-z0-9.=_-]+", "-", self.name).strip("-.") or "run"
        if len(text) <= _LONGEST and not text.startswith("comparison."):
            return text
        return f"{text[:_KEPT].rstrip('-.')}-{hashlib.sha256(self.name.encode()).hexdigest()[:12]}"


def parse_method(text: str) -> tuple[str, dict[str, Value]]:
    """A name and settings from `METHOD` or `METHOD:key=value,key=value`.

    >>> parse_method("sketch:rows=7,cols=22")
    ('sketch:rows=7,cols=22', {'method': 'sketch', 'rows': 7, 'cols': 22})

    Raises:
        ArgumentError: The method, a key or a value is none.
    """
    known = describe(RunConfig)
    method, _, rest = text.partition(":")
    if method not in METHOD_NAMES:
        hint = nearest(method, METHOD_NAMES)
        raise ArgumentError(f"method must be the name of one, got method={text!r}; {hint}")
    settings: dict[str, Value] = {"method": method}
    for part in rest.split(",") if rest else ():
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in known or key in ("method", "seed"):
            hint = nearest(key, (name for name in known if name not in ("method", "seed")))
            raise ArgumentError(
                f"method must be NAME:key=value,..., got method={text!r}: {part!r} is no setting; "
                f"{hint}"
            )
        if key in settings:
            raise ArgumentError(f"method must have {key} once, got method={text!r}")
        settings[key] = known[key].parsed(value.strip())
    return text, settings


def read_comparison(path: Path) -> tuple[dict[str, Value], list[tuple[str, dict[str, Value]]]]:
    """Shared settings, and those of each `[[run]]` table with its name.

    Raises:
        DataError: The file cannot be read, or something in it is no setting.
    """
    content = read_toml(path)
    tables = content.pop(_TABLES, [])
    shared = checked_table(content, f"{path}:")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{path}: {_TABLES} must be tables, written as [[{_TABLES}]]")
    found = []
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[{_TABLES}]] {number}:"
        name = table.pop(_NAME, None)
        settings = checked_table(table, where)
        if "seed" in settings:
            raise DataError(f"{where} seed must be the same for all runs; give it at the top")
        text = ",".join(f"{key}={value}" for key, value in settings.items() if key != "method")
        default = f"{settings.get('method', shared.get('method', 'diffsketch'))}:{text}".strip(":")
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise DataError(f"{where} name must be text, got name={name!r}")
        found.append((name or default, settings))
    return shared, found


def check_flags(
    flags: Mapping[str, Value], tables: Iterable[tuple[str, Mapping[str, Value]]]
) -> None:
    """Raise where a flag and a `[[run]]` table say different things: neither may lose silently.

    Args:
        flags: Given on the command line, for all runs.
        tables: Name and settings of each.

    Raises:
        ArgumentError: A table has another value.
    """
    for name, settings in tables:
        for key, value in flags.items():
            if key in settings and settings[key] != value:
                raise ArgumentError(
                    f"{key} must not be given on the command line and differently in the file's "
                    f"[[{_TABLES}]] {name!r}, got {key}={value!r} and {settings[key]!r} there"
                )


def contenders_of(
    shared: Mapping[str, Value],
    each: Sequence[tuple[str, Mapping[str, Value]]],
    *,
    fields_of: Mapping[str, frozenset[str]],
) -> list[Contender]:
    """The rows of the comparison.

    A shared setting of methods (such as `rows`) goes to the methods that have it.

    Args:
        shared: For all of them.
        each: Name and settings of each.
        fields_of: The settings of each method.

    Raises:
        ArgumentError: There are none, two have one name, or nobody uses a shared setting.
    """
    if not each:
        raise ArgumentError("method must be given, once for each run to compare, got method=None")
    of_methods = frozenset[str]().union(*fields_of.values())
    contenders, used = [], set[str]()
    for name, settings in each:
        method = str(settings.get("method", shared.get("method", RunConfig().method)))
        common = {
            key: value
            for key, value in shared.items()
            if key not in of_methods or key in fields_of[method]
        }
        used |= set(common)
        own = {**common, "method": method, **settings}
        if isinstance(own.get("data_dir"), str):
            # It may be continued from elsewhere.
            own["data_dir"] = str(Path(str(own["data_dir"])).resolve())
        contenders.append(Contender(name, own))
    _check_names(contenders)
    for key in shared:
        if key not in used:
            raise ArgumentError(
                f"{key} must be a setting of one of the methods at least, got {key}={shared[key]!r}"
            )
    return contenders


def _check_names(contenders: Iterable[Contender]) -> None:
    folders: dict[str, str] = {}
    for contender in contenders:
        if contender.folder in folders:
            raise ArgumentError(
                f"method must differ from run to run, got method={contender.name!r} twice"
            )
        folders[contender.folder] = contender.name


def has_plan(directory: Path) -> bool:
    """Whether a comparison was begun in a directory."""
    return (directory / _PLAN).is_file()


def has_others(directory: Path) -> bool:
    """Whether there is more in a directory than a killed process leaves of a plan it wrote."""
    halves = leftovers(directory, [_PLAN])
    return directory.is_dir() and any(path not in halves for path in directory.iterdir())


def write_plan(contenders: Sequence[Contender], seeds: Sequence[int], directory: Path) -> None:
    """Write the file from which a comparison is continued."""
    runs = [{"name": item.name, "settings": dict(item.settings)} for item in contenders]
    data = {"format": _FORMAT, "seeds": list(seeds), "runs": runs}
    for half in leftovers(directory, [_PLAN]):
        half.unlink()
    replace_file(directory / _PLAN, sealed(data))


def read_plan(directory: Path) -> tuple[list[Contender], list[int]]:
    """The rows and the seeds that `write_plan` wrote, all of whose settings are allowed.

    Raises:
        DataError: There is no plan, or it is damaged or was changed.
        MismatchError: It is of another version's format.
    """
    path = directory / _PLAN
    try:
        data = read_sealed(path)
    except FileNotFoundError as error:
        raise DataError(f"{directory}: not the directory of a comparison: no {_PLAN}") from error
    if data.get("format") != _FORMAT:
        raise MismatchError(f"{path}: must have the format {_FORMAT!r}, got {data.get('format')!r}")
    try:
        runs = [Contender(item["name"], dict(item["settings"])) for item in data["runs"]]
        seeds = [int(seed) for seed in data["seeds"]]
        for run, seed in itertools.product(runs, seeds):
            run.config(seed)
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: damaged: {error!r}") from error
    return runs, seeds


class ComparisonBroken(DiffSketchError):  # noqa: N818 - it says what happened
    """A process that ran a part of a comparison is gone. What it had checkpointed is kept."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    name: str
    seed: int
    path: Path
    config: RunConfig


@dataclass(frozen=True)
class Result:
    """What one run came to.

    Attributes:
        name: Of the row in the table.
        seed: Of the run.
        summary: What its `summary.json` says; None if it was interrupted.
        times: Its seconds; empty if they are not known.
        curve: Its measurements.
    """

    name: str
    seed: int
    summary: dict[str, Any] | None
    times: dict[str, float]
    curve: list[dict[str, Any]]


def members_of(
    contenders: Iterable[Contender], seeds: Sequence[int], directory: Path
) -> list[Member]:
    """All runs of a comparison, those with the same seed together."""
    found = list(contenders)
    return [
        Member(one.name, seed, directory / one.folder / f"seed-{seed}", one.config(seed))
        for seed in seeds
        for one in found
    ]


def run_members(
    members: Sequence[Member],
    *,
    jobs: int,
    command: list[str],
    on_progress: Callable[[float, str], None],
    stop: Callable[[], bool],
) -> list[Result]:
    """Run those that are not finished, and read the results of all.

    Args:
        members: What to run.
        jobs: Processes at a time.
        command: For the record.
        on_progress: Told the share of all rounds that is done, and what is being run.
        stop: Asked now and then whether to interrupt.

    Raises:
        DiffSketchError: A run failed, for another reason than that it diverged.
        MismatchError: What is there is not the run of a member.
    """
    results = {member: found for member in members if (found := finished(member)) is not None}
    rest = [member for member in members if member not in results]

    def watch(shares: Sequence[float | None]) -> None:
        part = sum(share or 0.0 for share in shares)
        begun = zip(rest, shares, strict=True)
        now = [f"{one.name}, seed {one.seed}" for one, share in begun if share not in (None, 1.0)]
        on_progress((len(results) + part) / len(members), "; ".join(now))

    watch([None] * len(rest))
    work = partial(run_one, command=command)
    try:
        # Counted in the summary.
        quiet = (NonFiniteUpdate,)
        made = run_all(work, rest, processes=jobs, watch=watch, stop=stop, quiet=quiet)
    except PoolBroken as error:
        raise ComparisonBroken("a process of the comparison was ended") from error
    results |= dict(zip(rest, made, strict=True))
    return [results[member] for member in members]


def run_one(member: Member, *, command: list[str], tell: Tell, stop: Stop) -> Result:
    """Run it to its end, from its checkpoint if it has one; its summary is None if interrupted.

    Args:
        member: What to run.
        command: For the record.
        tell: Told the share of its rounds that is done.
        stop: Asked before every round whether to interrupt.

    Raises:
        DiffSketchError: It failed, for another reason than that it diverged.
        MismatchError: What is there is not this run.
    """

    def show(status: Status) -> None:
        tell(status.round_index / max(status.rounds, 1))

    with threads(member.config.threads):
        if recovered(member.path):
            with RunDirectory.open(member.path) as directory:
                _check_member(member, directory)
                session(build(directory.config), directory, show=show, stop=stop)
                return _result(member, directory)
        if stop():
            return Result(member.name, member.seed, None, {}, [])
        built = build(member.config)
        with RunDirectory.create(member.path, built.config, command=command) as directory:
            session(built, directory, show=show, stop=stop)
            return _result(member, directory)


def finished(member: Member) -> Result | None:
    """The result of a run, if it is finished.

    Raises:
        DataError: A file of it is damaged.
        MismatchError: What is there is not this run, or was begun by another version.
    """
    if not recovered(member.path):
        return None
    with RunDirectory.open(member.path) as directory:
        _check_member(member, directory)
        return _result(member, directory) if directory.finished else None


def _check_member(member: Member, directory: RunDirectory) -> None:
    """Raise unless the run that is there has the settings that the plan has for it.

    What the data and the method decide is left out: it follows from the rest.
    """
    planned = with_task_defaults(member.config, fields=settings_of_methods()[member.config.method])
    for name, wanted in asdict(planned).items():
        found = getattr(directory.config, name)
        decided = name == "workers" or name in METHOD_SETTINGS
        if found != wanted and not (wanted is None and decided):
            raise MismatchError(
                f"{directory.path}: is no run of this comparison, whose plan has {name}={wanted!r} "
                f"for it: it has {name}={found!r}"
            )


def _result(member: Member, directory: RunDirectory) -> Result:
    curve = read_metrics(directory.metrics)
    return Result(member.name, member.seed, directory.summary(), directory.times(), curve)


_COLUMNS = (
    "name", "seed", "outcome", "diverging", "rounds", "loss", "accuracy", "best_accuracy",
    "message_bytes", "bytes_up", "bytes_down", "compression", "epsilon", "delta", "basis", "unit",
    "relation", "trust", "noised_share", "milliseconds_per_round",
)  # fmt: skip

_ENDED = {"diverged": "diverged", "diverging": "diverging", "budget": "out of\nbudget"}


def rows_of(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each name: means over its seeds, and how far they spread.

    The spread is the standard deviation over the seeds; None for a single one. Epsilon is the
    largest of them.
    """
    names = list(dict.fromkeys(result.name for result in results))
    return [_row(name, [one for one in results if one.name == name]) for name in names]


def report(rows: Sequence[Mapping[str, Any]], *, seeds: Sequence[int]) -> tuple[Table | str, ...]:
    """The table, and how to read it."""
    many = len(seeds) > 1
    title = f"Means over {len(seeds)} seeds" if many else f"Seed {seeds[0]}"
    table = Table(title=title, title_justify="left", pad_edge=False, collapse_padding=True)
    table.add_column("method", overflow="fold")
    for heading in ("accuracy", "rounds,\nms each", "message,\nall bytes", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("epsilon", no_wrap=True)
    for row in rows:
        table.add_row(
            _name(row["name"]),
            _accuracy(row),
            f"{row['rounds']:,}\n{_milliseconds(row)}",
            f"{row['message_bytes']:,} B\n{bytes_in_words(row['bytes'])}",
            f"{row['compression']:.3g}x" if row["bytes"] else "-",
            _epsilon(row),
            end_section=True,
        )
    reading = (
        "Runs with one seed have the same batches, devices and first weights. Accuracy is that of "
        "the last round"
        + (", ± the standard deviation over the seeds" if many else "")
        + ". All bytes are those of the messages up and down with their headers; the ratio is that "
        "of vectors in float32 to them."
    )
    return table, reading, *_assumed(rows)


def write_results(
    results: Sequence[Result], rows: Sequence[Mapping[str, Any]], directory: Path
) -> list[Path]:
    """Write `comparison.json` and `comparison.csv`; both or none."""
    runs = [
        {
            "name": one.name,
            "seed": one.seed,
            "summary": one.summary,
            "times": one.times,
            "curve": one.curve,
        }
        for one in results
    ]
    text = json.dumps({"rows": list(rows), "runs": runs}, indent=1, allow_nan=False)
    stream = io.StringIO()
    writer = csv.DictWriter(stream, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_csv_row(one) for one in results)
    contents = {
        directory / "comparison.json": text.encode() + b"\n",
        directory / "comparison.csv": stream.getvalue().encode(),
    }
    replace_files(contents)
    return list(contents)


def _row(name: str, results: Sequence[Result]) -> dict[str, Any]:
    summaries = [one.summary for one in results if one.summary is not None]
    accuracies = [one["accuracy"] for one in summaries]
    largest = max((one["epsilon"] for one in summaries), key=_size)
    bytes_of = [one["bytes_up"] + one["bytes_down"] for one in summaries]
    raw = sum(one["uncompressed_bytes_up"] + one["uncompressed_bytes_down"] for one in summaries)
    timed = [one for one in results if one.summary is not None and one.times]
    seconds = sum(one.times["training"] for one in timed)
    steps = sum(one.summary["rounds"] for one in timed if one.summary is not None)
    ended: dict[str, int] = {}
    for one in summaries:
        kind = "diverging" if one["diverging"] and one["outcome"] == "finished" else one["outcome"]
        ended[kind] = ended.get(kind, 0) + 1
    return {
        "name": name,
        "seeds": len(summaries),
        "accuracy": statistics.fmean(accuracies),
        "accuracy_spread": statistics.stdev(accuracies) if len(accuracies) > 1 else None,
        "rounds": max(one["rounds"] for one in summaries),
        "message_bytes": summaries[0]["message_bytes"],
        "bytes": statistics.fmean(bytes_of),
        "compression": raw / max(sum(bytes_of), 1),
        "milliseconds_per_round": 1000 * seconds / steps if steps else None,
        "epsilon": largest,
        "assumes": list(dict.fromkeys(text for one in summaries for text in one["assumes"])),
        "ended": ended,
    }


def _size(epsilon: Mapping[str, Any]) -> float:
    return math.inf if epsilon["value"] is None else float(epsilon["value"])


def _name(name: str) -> str:
    """With its settings below each other, if it is made of them and not a name that was given."""
    made = name.partition(":")[0] in METHOD_NAMES
    first, *rest = re.split("[:,]", name) if made else [name]
    return "\n".join([f"[bold]{escape(first)}[/bold]", *(escape(part) for part in rest)])


def _milliseconds(row: Mapping[str, Any]) -> str:
    value = row["milliseconds_per_round"]
    return "-" if value is None else f"{value:.3g}"


def _accuracy(row: Mapping[str, Any]) -> str:
    text = f"{100 * row['accuracy']:.2f}%"
    if row["accuracy_spread"] is not None:
        text += f"\n± {100 * row['accuracy_spread']:.2f}"
    for kind, count in row["ended"].items():
        if kind != "finished":
            text += f"\n{count} of {row['seeds']}" if row["seeds"] > 1 else ""
            text += f"\n[red]{_ENDED[kind]}[/red]"
    return text


def _epsilon(row: Mapping[str, Any]) -> str:
    """As `epsilon_in_words`, in a narrow column."""
    epsilon = epsilon_from_data(row["epsilon"])
    if epsilon.basis is Basis.NONE:
        return "no claim"
    scope, at = epsilon.scope, f"at {epsilon.delta:g}"
    about = f"{scope.unit},\n{scope.relation},\n{scope.trust}"
    if math.isinf(float(epsilon)):
        rounds = f"over {epsilon.rounds:,} rounds"
        return f"{epsilon.basis_text} per round,\nnothing {at}\n{rounds}\n{about}"
    times = " a round" if epsilon.basis is Basis.CLAIMED else ""
    return f"{epsilon.shown()}{times}\n{at}\n{epsilon.basis_text};\n{about}"


def _assumed(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What privacy rests on, and for which methods."""
    methods: dict[str, dict[str, None]] = {}
    for row in rows:
        for text in row["assumes"]:
            methods.setdefault(text, {})[row["name"].partition(":")[0]] = None
    return [escape(f"{', '.join(names)}: {text}") for text, names in methods.items()]


def _csv_row(result: Result) -> dict[str, Any]:
    summary = result.summary or {}
    epsilon = summary.get("epsilon", {})
    row: dict[str, Any] = {"name": result.name, "seed": result.seed}
    for column in _COLUMNS[2:]:
        row[column] = summary.get(column, epsilon.get(column))
    row["epsilon"] = epsilon.get("value")
    rounds = summary.get("rounds", 0)
    if rounds and result.times:
        row["milliseconds_per_round"] = 1000 * result.times["training"] / rounds
    return row


def start(
    shared: Mapping[str, Value],
    each: Sequence[tuple[str, Mapping[str, Value]]],
    output: Path | None,
    console: Console,
    *,
    seeds: int,
    jobs: int,
    command: list[str],
) -> int:
    """Compare; the exit status.

    Args:
        shared: Settings of all runs; the seed is the first one.
        each: Name and settings of each.
        output: A new or empty directory; by default a new one below `runs`.
        console: Where to show it.
        seeds: How many there are.
        jobs: Processes at a time.
        command: For the record.

    Raises:
        DiffSketchError: Something that is given is wrong; nothing was written then.
    """
    _check_count("seeds", seeds)
    _check_count("jobs", jobs)
    common = dict(shared)
    first = int(common.pop("seed", 0) or 0)
    end = describe(RunConfig)["seed"].metadata["below"]
    if first + seeds > end:
        raise ArgumentError(
            f"seeds must be at most {end - first}, so that all are below {end}, got seeds={seeds} "
            f"and seed={first}"
        )
    contenders = contenders_of(common, each, fields_of=settings_of_methods())
    numbers = list(range(first, first + seeds))
    for contender in contenders:
        _check(contender, first)
    if output is not None and has_others(output):
        raise ArgumentError(
            f"output must be a new or empty directory, got output={str(output)!r}; a comparison "
            "in it is continued with --resume"
        )
    path = output or free_name(Path("runs") / "compare")
    prepare_output(path)
    with _alone(path):
        write_plan(contenders, numbers, path)
        return _run(contenders, numbers, path, console, jobs=jobs, command=command)


def resume(path: Path, console: Console, *, jobs: int, command: list[str]) -> int:
    """Continue a comparison; the exit status.

    Raises:
        DataError: There is none, or its plan is damaged or was changed.
        MismatchError: A run that is there is not one of the plan.
        RunBusy: Another process is at it.
    """
    _check_count("jobs", jobs)
    contenders, seeds = read_plan(path)
    with _alone(path):
        return _run(contenders, seeds, path, console, jobs=jobs, command=command)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes from this comparison."""
    lock = locked(path)
    try:
        yield
    finally:
        os.close(lock)


def _run(
    contenders: Sequence[Contender],
    seeds: Sequence[int],
    path: Path,
    console: Console,
    *,
    jobs: int,
    command: list[str],
) -> int:
    members = members_of(contenders, seeds, path)
    with (
        Interrupts() as interrupts,
        Progress(console=console, transient=True) as progress,
        warnings_in_lines(progress.console),
    ):
        task = progress.add_task("Comparing", total=1.0)
        results = run_members(
            members,
            jobs=jobs,
            command=command,
            on_progress=lambda done, what: progress.update(
                task, completed=done, description=f"Comparing {what}"
            ),
            stop=lambda: interrupts.signal is not None,
        )
    if any(result.summary is None for result in results):
        text = f"Interrupted. Continue with: diffsketch compare --resume {path}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)
        return interrupts.exit_status
    rows = rows_of(results)
    paths = write_results(results, rows, path)
    for part in report(rows, seeds=seeds):
        console.print(part, highlight=False)
    for file in paths:
        console.print(f"Wrote {file}", highlight=False, markup=False, soft_wrap=True)
    if diverged := sum(_diverged(result) for result in results):
        console.print(f"Diverged: {diverged} of {len(results)} runs.", highlight=False)
    return 0


def _diverged(result: Result) -> bool:
    return result.summary is not None and result.summary["outcome"] == "diverged"


def _check(contender: Contender, seed: int) -> None:
    """Build its simulation once, so that a mistake is found before anything is run."""
    try:
        build(contender.config(seed))
    except DiffSketchError as error:
        error.args = (f"{error} (in {contender.name})",)
        raise


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise ArgumentError(f"{name} must be a whole number >= 1, got {name}={value}")

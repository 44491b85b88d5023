"""Comparisons: several methods on the same batches and devices, over seeds, in one table."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from diffsketch.app import files
from diffsketch.app import settings as run_settings
from diffsketch.app.build import build, settings_of_methods
from diffsketch.app.files import RunDirectory
from diffsketch.app.pool import Stop, Tell, run_all
from diffsketch.app.run_records import RunLine, RunRecord, read_run
from diffsketch.app.session import TrainingSession, bytes_in_words, warnings_in_lines
from diffsketch.app.settings import METHOD_NAMES, METHOD_SETTINGS, RunConfig, Value
from diffsketch.app.terminal import Interrupts, LastingConsole, command_line, print_line
from diffsketch.compiled import torch_threads
from diffsketch.errors import (
    ArgumentError,
    DataError,
    DiffSketchError,
    MismatchError,
    check,
    nearest,
)
from diffsketch.files import leftovers, prepare_output, replace_file
from diffsketch.privacy.claim import Basis, Epsilon

_HELP = "diffsketch compare --help"
_PLAN, _FORMAT = "comparison.plan.json", "diffsketch comparison 1"
_LONGEST, _KEPT = 80, 60  # letters of a directory's name
_SEED_END = 2**63

Contenders: TypeAlias = Mapping[str, Mapping[str, Value]]
"""Rows of the table by name, in their order: settings for any seed."""


@dataclass(frozen=True)
class Member:
    """One run of a comparison."""

    name: str
    seed: int
    path: Path
    config: RunConfig


def parse_method(text: str) -> tuple[str, dict[str, Value]]:
    """A name and settings from `METHOD` or `METHOD:key=value,key=value`.

    >>> parse_method("sketch:rows=7,cols=22")
    ('sketch:rows=7,cols=22', {'method': 'sketch', 'rows': 7, 'cols': 22})
    """
    settings_names = [name for name in RunConfig.model_fields if name not in ("method", "seed")]
    method, _, listed = text.partition(":")
    if method not in METHOD_NAMES:
        hint = nearest(method, METHOD_NAMES, see=_HELP)
        raise ArgumentError(f"method must be the name of one, got method={text!r}; {hint}")
    settings: dict[str, Value] = {"method": method}
    for part in listed.split(",") if listed else ():
        key, equals, value = part.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or key not in settings_names:
            raise ArgumentError(
                f"method must be NAME:key=value,..., got method={text!r}: {part!r} is no setting; "
                f"{nearest(key, settings_names, see=_HELP)}"
            )
        if key in settings:
            raise ArgumentError(f"method must have {key} once, got method={text!r}")
        settings[key] = run_settings.parse_setting(key, value.strip())
    return text, settings


def read_comparison(path: Path) -> tuple[dict[str, Value], list[tuple[str, dict[str, Value]]]]:
    """Shared settings in a TOML file, and those of each `[[run]]` table with its name."""
    content = run_settings.read_toml(path)
    tables = content.pop("run", [])
    shared = run_settings.checked_table(content, f"{path}:")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise DataError(f"{path}: run must be tables, written as [[run]]")
    runs = []
    for number, table in enumerate(tables, start=1):
        where = f"{path}: [[run]] {number}:"
        name = table.pop("name", None)
        settings = run_settings.checked_table(table, where)
        if "seed" in settings:
            raise DataError(f"{where} seed must be the same for all runs; give it at the top")
        if name is not None and not (isinstance(name, str) and name.strip()):
            raise DataError(f"{where} name must be text, got name={name!r}")
        text = ",".join(f"{key}={value}" for key, value in settings.items() if key != "method")
        default = f"{settings.get('method', shared.get('method', 'diffsketch'))}:{text}".strip(":")
        runs.append((name or default, settings))
    return shared, runs


def contenders_of(
    shared: Mapping[str, Value], tables: Sequence[tuple[str, Mapping[str, Value]]]
) -> Contenders:
    """The rows of the comparison, each with a name of its own.

    A shared setting of methods (such as `rows`) goes to the methods that have it; one that nobody
    uses is an error.
    """
    check(bool(tables), "method", "be given, once for each run to compare", None)
    fields_of = settings_of_methods()
    contenders: dict[str, Mapping[str, Value]] = {}
    unused = dict(shared)
    for name, settings in tables:
        method = str(settings.get("method", shared.get("method", "diffsketch")))
        others = METHOD_SETTINGS - fields_of[method]
        common = {key: value for key, value in shared.items() if key not in others}
        unused = {key: value for key, value in unused.items() if key not in common}
        merged = {**common, "method": method, **settings}
        if merged.get("data_dir") is not None:
            # It may be continued from elsewhere.
            merged["data_dir"] = str(Path(str(merged["data_dir"])).resolve())
        if folder_of(name) in map(folder_of, contenders):
            raise ArgumentError(f"method must differ from run to run, got method={name!r} twice")
        contenders[name] = merged
    for key, value in unused.items():
        check(False, key, "be a setting of one of the methods at least", value)
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
    runs = [{"name": name, "settings": dict(settings)} for name, settings in contenders.items()]
    for half in leftovers(directory, [_PLAN]):
        half.unlink()
    data = {"format": _FORMAT, "seeds": list(seeds), "runs": runs}
    replace_file(directory / _PLAN, files.sealed(data))


def read_plan(directory: Path) -> tuple[Contenders, list[int]]:
    """The rows and the seeds that `write_plan` wrote, all of whose settings are allowed."""
    files.check_directory(directory, "a comparison")
    path = directory / _PLAN
    try:
        data = files.read_sealed(path)
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
        Member(name, seed, directory / folder_of(name) / f"seed-{seed}", config_of(settings, seed))
        # Seed by seed, so that an interrupted comparison has all methods of the first seeds.
        for seed in seeds
        for name, settings in contenders.items()
    ]


def config_of(settings: Mapping[str, Value], seed: int) -> RunConfig:
    """The settings of a row's run with a seed."""
    return RunConfig(**{**settings, "seed": seed})  # type: ignore[arg-type]


def run_one(member: Member, *, command: list[str], tell: Tell, stop: Stop) -> RunRecord | None:
    """Run a member to its end, from its checkpoint if it has one; None if `stop` came before."""
    with torch_threads(member.config.threads):
        built = None
        if files.has_run(member.path):
            opened = RunDirectory.open(member.path)
        elif stop():
            return None
        else:
            built = build(member.config)
            opened = RunDirectory.create(member.path, built.config, command=command)
        with opened as directory:
            _check_member(member, directory)
            if not directory.finished:
                simulation = (built or build(directory.config)).simulation
                TrainingSession(simulation, directory).run(
                    lambda summary: tell(summary.round / simulation.rounds), stop=stop
                )
        run = read_run(member.path, member.name)
        return run if run.summary is not None else None


def _check_member(member: Member, directory: RunDirectory) -> None:
    """Raise unless the run that is there has the settings that the plan has for it."""
    fields = settings_of_methods()[member.config.method]
    for name, wanted in run_settings.with_task_defaults(member.config, fields=fields):
        present = getattr(directory.config, name)
        # Settings that the data and the method decide follow from the rest.
        decided = name == "workers" or name in METHOD_SETTINGS
        if present != wanted and not (wanted is None and decided):
            # A directory that was copied or renamed would else be averaged in.
            raise MismatchError(
                f"{directory.path}: is no run of this comparison, whose plan has {name}={wanted!r} "
                f"for it: it has {name}={present!r}"
            )


def row_of(line: RunLine) -> dict[str, Any]:
    """Compute a row: means over the seeds, their standard deviation, the largest epsilon."""
    epsilon, seconds = line.epsilon, line.seconds
    return {
        "name": line.name,
        "seeds": len(line.runs),
        "accuracy": line.mean("accuracy"),
        "accuracy_spread": line.spread,
        "rounds": line.rounds,
        "message_bytes": line.values("message_bytes")[0],
        "bytes_up": line.mean("bytes_up"),
        "bytes_down": line.mean("bytes_down"),
        "compression": line.compression("up", "down"),
        "milliseconds_per_round": None if seconds is None else 1000 * seconds,
        "epsilon": None if epsilon is None else epsilon.to_json(),
        "assumes": list(dict.fromkeys(text for run in line.runs for text in run.value("assumes"))),
        "ended": dict(line.outcomes),
    }


def report(rows: Sequence[Mapping[str, Any]], *, seeds: Sequence[int]) -> tuple[Table | str, ...]:
    """The table, and how to read it."""
    many = len(seeds) > 1
    table = Table(
        title=f"Means over {len(seeds)} seeds" if many else f"Seed {seeds[0]}", box=SIMPLE_HEAD,
        title_justify="left", padding=(0, 1, 0, 0), pad_edge=False, show_edge=False,
    )  # fmt: skip
    table.add_column("method", overflow="fold")
    for heading in ("accuracy", "rounds", "up", "down", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("epsilon")
    assumed: dict[str, dict[str, None]] = {}
    for row in rows:
        table.add_row(
            _name(row["name"]),
            _accuracy(row),
            f"{row['rounds']:,}",
            bytes_in_words(row["bytes_up"]),
            bytes_in_words(row["bytes_down"]),
            f"{row['compression']:.3g}x" if row["compression"] else "-",
            Epsilon.from_json(row["epsilon"]).text("short"),
        )
        for text in row["assumes"]:
            assumed.setdefault(text, {})[row["name"].partition(":")[0]] = None
    reading = (
        "Runs with one seed have the same batches, devices and first weights. Accuracy is that of "
        "the last round"
        + (", ± the standard deviation over the seeds" if many else "")
        + ". Up and down are the bytes of all messages, with their headers; the ratio is that of "
        "vectors in float32 to them."
    )
    if any(row["epsilon"]["basis"] == Basis.CLAIMED for row in rows):
        reading += " What is claimed is not proven: it guarantees nothing."
    notes = (escape(f"{', '.join(names)}: {text}") for text, names in assumed.items())
    return table, reading, *notes


def _name(name: str) -> str:
    """The name, with its settings below each other if it is made of them."""
    is_method = name.partition(":")[0] in METHOD_NAMES
    first, *settings = re.split("[:,]", name) if is_method else [name]
    return "\n".join([f"[bold]{escape(first)}[/bold]", *(escape(part) for part in settings)])


def _accuracy(row: Mapping[str, Any]) -> str:
    text = f"{100 * row['accuracy']:.2f}%"
    if row["accuracy_spread"] is not None:
        text += f"\n± {100 * row['accuracy_spread']:.2f}"
    for outcome, count in row["ended"].items():
        if outcome != "finished":
            text += f"\n{count} of {row['seeds']}" if row["seeds"] > 1 else ""
            text += f"\n[red]{outcome}[/red]".replace("of b", "of\nb")  # the column is narrow
    return text


def write_results(
    runs: Sequence[RunRecord], rows: Sequence[Mapping[str, Any]], directory: Path
) -> Path:
    """Write `comparison.json`: the rows, and summary, times and measurements of every run."""
    results = [
        {"name": run.name, "seed": run.config.seed, "summary": run.summary, "times": run.times,
         "curve": run.curve}
        for run in runs
    ]  # fmt: skip
    path = directory / "comparison.json"
    replace_file(path, files.json_bytes({"rows": list(rows), "runs": results}))
    return path


def start(
    shared: Mapping[str, Value],
    tables: Sequence[tuple[str, Mapping[str, Value]]],
    output: Path | None,
    *,
    seeds: int,
    jobs: int,
    page: bool,
) -> int:
    """Compare runs with shared settings and their own, over `seeds` seeds; the exit status."""
    common = dict(shared)
    first = int(common.pop("seed", 0) or 0)
    most = _SEED_END - first
    check(seeds <= most, "seeds", f"be at most {most}, so that all are below {_SEED_END}", seeds)
    contenders = contenders_of(common, tables)
    # Built with the first seed only: a mistake in settings shows with any.
    for name, settings in contenders.items():  # so that a mistake is found before anything is run
        try:
            build(config_of(settings, first))
        except DiffSketchError as error:
            error.args = (f"{error} (in {name})",)
            raise
    path = output or files.free_name(Path("runs") / "compare")
    halves = leftovers(path, [_PLAN])  # of a process that was killed while it began
    files.check_empty(path, but=halves, advice="a comparison in it is continued with --resume")
    prepare_output(path)
    numbers = list(range(first, first + seeds))
    return _run(contenders, numbers, path, jobs=jobs, page=page)


def resume(path: Path, *, jobs: int, page: bool) -> int:
    """Continue a comparison; the exit status."""
    contenders, seeds = read_plan(path)
    return _run(contenders, seeds, path, jobs=jobs, page=page)


def _run(contenders: Contenders, seeds: Sequence[int], path: Path, *, jobs: int, page: bool) -> int:
    members, command = members_of(contenders, seeds, path), command_line()
    console = LastingConsole()
    with files.locked(path):
        if not has_plan(path):
            write_plan(contenders, seeds, path)
        with (
            Interrupts() as interrupts,
            console.progress("Comparing") as show,
            warnings_in_lines(console),
        ):

            def watch(shares: Sequence[float]) -> None:
                under_way = [
                    f"{member.name}, seed {member.seed}"
                    for member, share in zip(members, shares, strict=True)
                    if 0 < share < 1
                ]
                show(sum(shares) / len(members), "; ".join(under_way))

            results = run_all(
                partial(run_one, command=command),
                members,
                processes=jobs,
                watch=watch,
                stop=lambda: interrupts.signal is not None,
            )
        runs = [run for run in results if run is not None]
        if len(runs) < len(members):
            print_line(console, f"Interrupted. Continue with: diffsketch compare --resume {path}")
            return interrupts.exit_status
        lines = [RunLine(n, tuple(run for run in runs if run.name == n)) for n in contenders]
        rows = [row_of(line) for line in lines]
        written = [write_results(runs, rows, path)]
    if page and not (path / "page").exists():
        # Pages of runs read plans, from this module.
        from diffsketch.app.run_pages import page_of_runs
        from diffsketch.pages.page import write_page

        shown = page_of_runs([path], command=shlex.join(command))
        written += write_page(shown, path / "page")[:1]
    console.show(*report(rows, seeds=seeds), wrote=written)
    if diverged := sum(run.outcome == "diverged" for run in runs):
        console.print(f"Diverged: {diverged} of {len(runs)} runs.", highlight=False)
    return 0

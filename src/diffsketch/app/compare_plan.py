"""What a comparison runs: several sets of settings, each with several seeds."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from diffsketch.errors import ArgumentError, DataError, MismatchError
from diffsketch.files import leftovers, replace_file
from diffsketch.app.config import METHOD_NAMES, RunConfig
from diffsketch.app.config_files import checked_table, read_toml
from diffsketch.app.sealed import read_sealed, sealed
from diffsketch.app.settings import Value, describe, nearest

__all__ = [
    "Contender", "check_flags", "contenders_of", "has_others", "has_plan", "parse_method",
    "read_comparison", "read_plan", "write_plan",
]  # fmt: skip

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

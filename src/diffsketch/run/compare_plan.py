"""What a comparison runs: several sets of settings, each with several seeds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diffsketch.errors import ArgumentError, DataError
from diffsketch.run.config import METHOD_NAMES, RunConfig
from diffsketch.run.config_files import checked_table, read_toml
from diffsketch.run.settings import Value, describe, nearest

__all__ = ["Contender", "contenders_of", "parse_method", "read_comparison"]

_TABLES, _NAME = "run", "name"


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
        """A name for its directory."""
        return re.sub(r"[^A-Za-z0-9.=_-]+", "-", self.name).strip("-.") or "run"


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
        contenders.append(Contender(name, {**common, "method": method, **settings}))
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


def to_data(contenders: Sequence[Contender], seeds: Sequence[int]) -> dict[str, Any]:
    """For the file from which a comparison is continued."""
    runs = [{"name": item.name, "settings": dict(item.settings)} for item in contenders]
    return {"seeds": list(seeds), "runs": runs}


def from_data(data: Mapping[str, Any]) -> tuple[list[Contender], list[int]]:
    """What `to_data` wrote."""
    runs = [Contender(item["name"], dict(item["settings"])) for item in data["runs"]]
    return runs, [int(seed) for seed in data["seeds"]]

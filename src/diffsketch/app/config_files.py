"""Settings from a TOML file, and to one. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from diffsketch.errors import ArgumentError, DataError
from diffsketch.app.config import RunConfig
from diffsketch.app.settings import Value, describe, nearest

__all__ = ["checked_table", "read_settings", "read_toml", "to_toml"]


def read_settings(path: Path) -> dict[str, Value]:
    """The settings in a file of a run: any of the fields of `RunConfig`, by name.

    Raises:
        DataError: It cannot be read, is no TOML, or has a key or value that is none of a run.
    """
    return checked_table(read_toml(path), f"{path}:")


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file.

    Raises:
        DataError: It cannot be read, or is no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or error}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: not a TOML file: {error}") from error


def checked_table(table: Mapping[str, object], where: str) -> dict[str, Value]:
    """The table with values in the types of their settings.

    Args:
        table: Names and values, as they were read.
        where: What errors begin with: the file, or the place in it.

    Raises:
        DataError: A key is unknown, or a value is not what its setting expects.
    """
    known = describe(RunConfig)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise DataError(f"{where} unknown key {name!r}; {nearest(name, known)}")
        try:
            values[name] = known[name].checked(value)
        except ArgumentError as error:
            raise DataError(f"{where} {error}") from error
    return values


def to_toml(config: RunConfig) -> str:
    """All settings that have a value, by section, so that the file says what was run.

    >>> print(to_toml(RunConfig(rounds=10)).split("seed")[0])
    # Task
    task = "mnist"
    <BLANKLINE>
    # Training
    rounds = 10
    <BLANKLINE>
    """
    parts: dict[str, list[str]] = {}
    for name, value in dataclasses.asdict(config).items():
        if value is not None:
            section = describe(RunConfig)[name].metadata["section"]
            parts.setdefault(section, []).append(f"{name} = {_toml_value(value)}")
    return "\n\n".join("\n".join([f"# {title}", *lines]) for title, lines in parts.items()) + "\n"


def _toml_value(value: Value) -> str:
    if isinstance(value, str):
        # As in JSON, apart from one letter that TOML wants to be escaped.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)

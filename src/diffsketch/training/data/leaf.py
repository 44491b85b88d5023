"""Reading LEAF's Shakespeare JSON from a user's directory.

LEAF's edition of the text is not free to redistribute, so whoever has it points here. A file is an
object with `users`, `num_samples` and `user_data`, the last one mapping a user to `x` (strings of
80 characters) and `y` (the character after each). LEAF's windows already overlap, each one shifted
by one character, so they are taken as they are. Imports nothing of ours but `errors` and `roles`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, TypeVar

from diffsketch.errors import DataError
from diffsketch.training.data.roles import WINDOW, RoleSamples, encode_text

__all__ = ["find_leaf", "read_leaf"]

_Kind = TypeVar("_Kind")


def find_leaf(directory: Path, split: Literal["all", "train", "test"]) -> list[Path]:
    """The JSON files of one split, sorted by name.

    All samples are in `all_data/*.json`, or in `*.json` of the directory itself; LEAF's own
    division is in `train/*.json` and `test/*.json`.

    Returns:
        The files; empty only if a division is asked for and the directory has none, neither a
        `train` nor a `test` folder.

    Raises:
        DataError: The directory cannot be read, or the files asked for are not there. A missing
            half of LEAF's division is an error too: dividing the whole anew would test on samples
            of the other half.
    """
    try:
        if not directory.is_dir():
            raise DataError(f"{directory}: expected a directory with LEAF's JSON, found none")
        divided = any((directory / half).is_dir() for half in ("train", "test"))
        if split != "all" and not divided:
            return []
        places = [directory / "all_data", directory] if split == "all" else [directory / split]
        for place in places:
            files = sorted(path for path in place.glob("*.json") if path.is_file())
            if files:
                return files
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{directory}: cannot be read: {error}") from error
    raise DataError(f"no *.json in {' or '.join(map(str, places))}: expected LEAF's Shakespeare")


def read_leaf(files: Sequence[Path]) -> tuple[RoleSamples, ...]:
    """Read LEAF's files into one `RoleSamples` per user, in the order of `users`.

    Entries of `user_data` that `users` does not name are passed over: LEAF's own division leaves
    such empty entries for users it dropped. Other keys (`hierarchies`, `raw`) are not looked at.

    Guarantees: malformed content is a `DataError` that names the file and the user
    (`test_malformed_leaf_is_named`, `test_arbitrary_json_never_crashes`).

    Raises:
        DataError: A file is not JSON or lacks a key, counts disagree, a window is not of 80
            characters, a label not of one, a character is not in `LETTERS`, or a user comes twice.
    """
    roles: dict[str, RoleSamples] = {}
    for path in files:
        content = _read_object(path)
        users = _field(content, "users", kind=list, where=str(path))
        counts = _field(content, "num_samples", kind=list, where=str(path))
        data = _field(content, "user_data", kind=dict, where=str(path))
        if len(users) != len(counts):
            raise DataError(
                f"{path}: expected num_samples for each of {len(users)} users, found {len(counts)}"
            )
        for user, count in zip(users, counts, strict=True):
            if not isinstance(user, str):
                raise DataError(f"{path}: expected users to be names, found {type(user).__name__}")
            where = f"{path}: user {user!a}"
            if user in roles:
                raise DataError(f"{where}: expected each user once, found it again")
            record = _field(data, user, kind=dict, where=f"{path}: user_data")
            roles[user] = _read_user(record, user, count=count, where=where)
    if not roles:
        raise DataError(f"{', '.join(map(str, files))}: expected at least one user, found none")
    return tuple(roles.values())


def _read_object(path: Path) -> dict[str, object]:
    """The JSON object in a file."""
    try:
        content: object = json.loads(path.read_bytes())
    # Deep nesting exhausts the parser's stack; a wrong encoding is a ValueError, like bad syntax.
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON: {error}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def _field(record: dict[str, object], key: str, *, kind: type[_Kind], where: str) -> _Kind:
    """The value of a key that must be there and be of one kind."""
    if key not in record:
        raise DataError(f"{where}: expected the key {key!a}, found no such key")
    value = record[key]
    if not isinstance(value, kind):
        raise DataError(
            f"{where}: expected {key!a} to be a {kind.__name__}, found {type(value).__name__}"
        )
    return value


def _read_user(record: dict[str, object], name: str, *, count: object, where: str) -> RoleSamples:
    """One user's samples, checked."""
    windows = _strings(record, "x", length=WINDOW, where=where)
    following = _strings(record, "y", length=1, where=where)
    if len(windows) != len(following):
        raise DataError(
            f"{where}: expected as many y as x, found {len(windows)} x and {len(following)} y"
        )
    if count != len(windows):
        # Anything but a number is named by its type, as it may be too deep or too long to print.
        said = count if isinstance(count, int | float) else type(count).__name__
        raise DataError(f"{where}: num_samples says {said}, found {len(windows)} samples")
    inputs = encode_text("".join(windows), f"{where}: x").reshape(-1, WINDOW)
    return RoleSamples(name, inputs, encode_text("".join(following), f"{where}: y").long())


def _strings(record: dict[str, object], key: str, *, length: int, where: str) -> list[str]:
    """The list of strings under a key, each of the length asked for."""
    strings: list[str] = []
    for index, value in enumerate(_field(record, key, kind=list, where=where)):
        if not isinstance(value, str) or len(value) != length:
            found = f"{len(value)}" if isinstance(value, str) else type(value).__name__
            raise DataError(
                f"{where}: expected {key}[{index}] to be a string of length {length}, found {found}"
            )
        strings.append(value)
    return strings

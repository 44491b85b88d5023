"""Tables of a TOML file, read strictly: every key of its type, none missing and none left over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast

from diffsketch.app.settings import nearest
from diffsketch.errors import DataError

__all__ = ["Reader"]

_Value = TypeVar("_Value")

_WORDS = {str: "text", int: "a whole number", dict: "a table", list: "a list"}
_MISSING: Any = object()


class Reader:
    """Takes the keys of a table one by one; what is not asked for is an error.

    Guarantees (`tests/reproduction/test_loading.py`): every error names file, key and value.

    Args:
        table: As it was read.
        where: What errors begin with: the file, and the place in it.
    """

    def __init__(self, table: Mapping[str, Any], where: str) -> None:
        self._rest, self.where = dict(table), where
        self._known: list[str] = []

    def take(self, key: str, kind: type[_Value], default: _Value = _MISSING) -> _Value:
        """The value of a key.

        Args:
            key: Its name.
            kind: `str`, `int`, `dict` or `list`.
            default: If it is not there; without, it has to be.

        Raises:
            DataError: It is missing, of another kind, or an empty text.
        """
        self._known.append(key)
        value = self._rest.pop(key, default)
        if value is _MISSING:
            raise DataError(f"{self.where} {key} must be given as {_WORDS[kind]}, and is missing")
        good = isinstance(value, kind) and not isinstance(value, bool) and value != ""
        if not good:
            raise DataError(f"{self.where} {key} must be {_WORDS[kind]}, got {key}={value!r}")
        return cast(_Value, value)

    def count(self, key: str, default: int | None) -> int | None:
        """A whole number of 1 or more, or the default.

        Raises:
            DataError: It is something else.
        """
        if key not in self._rest:
            self._known.append(key)
            return default
        value = self.take(key, int)
        if value < 1:
            raise DataError(f"{self.where} {key} must be a whole number >= 1, got {key}={value}")
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of different texts, one at least.

        Raises:
            DataError: It is something else.
        """
        found = self.take(key, list)
        good = bool(found) and all(isinstance(one, str) and one for one in found)
        if not good or len(set(found)) < len(found):
            raise DataError(
                f"{self.where} {key} must be a list of different texts, got {key}={found!r}"
            )
        return tuple(found)

    def readers(self, key: str) -> list[Reader]:
        """A reader of each `[[key]]` table; none if there are none.

        Raises:
            DataError: It is something else.
        """
        found = self.take(key, list, [])
        if not all(isinstance(one, dict) for one in found):
            raise DataError(f"{self.where} {key} must be tables, written as [[{key}]]")
        return [
            Reader(one, f"{self.where} [[{key}]] {number}:")
            for number, one in enumerate(found, start=1)
        ]

    def reader(self, key: str) -> Reader:
        """A reader of the `[key]` table; an empty one if there is none.

        Raises:
            DataError: It is something else.
        """
        return Reader(self.take(key, dict, {}), f"{self.where} [{key}]:")

    def rest(self) -> dict[str, Any]:
        """All that has not been asked for."""
        rest, self._rest = self._rest, {}
        return rest

    def end(self) -> None:
        """Raise if there is anything that has not been asked for.

        Raises:
            DataError: There is.
        """
        for key, value in self._rest.items():
            hint = nearest(key, self._known)
            raise DataError(f"{self.where} unknown key {key!r}, got {key}={value!r}; {hint}")

"""What a setting is: its type, its limits, its help, and how it is checked and read from text.

A setting is a field of a dataclass, made with `setting`. Flags, files and checks all come from the
fields, so that they cannot disagree. Imports nothing heavy, so that `--help` is quick.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias, get_args, get_type_hints

from diffsketch.errors import ArgumentError

__all__ = ["Setting", "Value", "describe", "nearest", "setting"]

Value: TypeAlias = bool | int | float | str | None

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
_BOOLEANS = {"true": True, "false": False}
_LISTED = 12  # names in an error


def setting(
    default: Any,
    text: str,
    section: str,
    *,
    choices: tuple[str, ...] = (),
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
    cap: float | None = None,
    means: str | None = None,
) -> Any:
    """A field of a dataclass that is a setting.

    Args:
        default: Its value if none is given.
        text: What it is, for `--help`.
        section: Where `--help` shows it.
        choices: The only texts allowed.
        least: The smallest number allowed.
        above: A number that it has to exceed.
        most: The largest number allowed.
        below: A number that it has to stay below.
        cap: The largest number that can be computed with; said only where it is exceeded.
        means: What a default of None stands for, if not: what the task or the method has.
    """
    limits = {"least": least, "above": above, "most": most, "below": below, "cap": cap}
    rest = {"help": text, "section": section, "choices": choices, "means": means}
    return field(default=default, metadata={**rest, **limits})


@dataclass(frozen=True)
class Setting:
    """One setting, as its field describes it.

    Args:
        name: Of the field.
        kind: `bool`, `int`, `float` or `str`.
        optional: Whether None is allowed.
        default: Its value if none is given.
        metadata: What `setting` was given.
    """

    name: str
    kind: type
    optional: bool
    default: Value
    metadata: types.MappingProxyType[str, Any]

    @property
    def flag(self) -> str:
        """As the command line spells it."""
        return "--" + self.name.replace("_", "-")

    @property
    def choices(self) -> tuple[str, ...]:
        """The only texts allowed; empty if any is."""
        return tuple(self.metadata["choices"])

    @property
    def shown_default(self) -> str:
        """For `--help`; empty if it is the task's or the method's."""
        if self.default is None:
            return str(self.metadata["means"] or "")
        return f"{self.default:g}" if self.kind is float else str(self.default)

    @property
    def expected(self) -> str:
        """What its values have to be, in words.

        >>> from diffsketch.app.config import RunConfig
        >>> describe(RunConfig)["rounds"].expected
        'a whole number >= 1'
        """
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        signs = (("least", ">="), ("above", ">"), ("most", "<="), ("below", "<"))
        limits = [
            f"{sign} {self.metadata[name]:g}"
            for name, sign in signs
            if self.metadata[name] is not None
        ]
        return " ".join([_WORDS[self.kind], " and ".join(limits)]).strip()

    def checked(self, value: object) -> Value:
        """The value, in the type that it should have: a whole number may stand for a float.

        Raises:
            ArgumentError: It is of another type, or outside the limits.
        """
        if value is None and self.optional:
            return None
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value) if abs(value) < 10**308 else math.inf  # refused below
        good = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        name, cap = self.name, self.metadata["cap"]
        if good and cap is not None and cap < value < math.inf:  # type: ignore[operator]
            most = f"{cap:,}" if isinstance(cap, int) else f"{cap:g}"
            raise ArgumentError(f"{name} must be at most {most}, got {name}={value!r}")
        if not good or not self._within(value):
            raise ArgumentError(f"{name} must be {self.expected}, got {name}={value!r}")
        return value  # type: ignore[return-value]

    def parsed(self, text: str) -> Value:
        """The value that a text stands for, such as `7` or `true`.

        >>> from diffsketch.app.config import RunConfig
        >>> describe(RunConfig)["learning_rate"].parsed("1e-2")
        0.01

        Raises:
            ArgumentError: It stands for none.
        """
        value: object = text
        try:
            if self.kind is bool:
                value = _BOOLEANS.get(text.lower(), text)
            elif self.kind is not str:
                value = self.kind(text)
        except ValueError:
            pass  # refused below, as a text
        return self.checked(value)

    def _within(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind is str:
            # What cannot be written to a file as UTF-8 could not be resumed.
            return bool(value) and not any("\ud800" <= letter <= "\udfff" for letter in value)
        limits = self.metadata
        return bool(
            self.kind is bool
            or (
                (self.kind is int or math.isfinite(value))
                and (limits["least"] is None or value >= limits["least"])
                and (limits["above"] is None or value > limits["above"])
                and (limits["most"] is None or value <= limits["most"])
                and (limits["below"] is None or value < limits["below"])
            )
        )


@lru_cache
def describe(config: type) -> dict[str, Setting]:
    """The settings of a dataclass, by name."""
    hints = get_type_hints(config)
    found = {}
    for item in dataclasses.fields(config):
        kinds = get_args(hints[item.name]) or (hints[item.name],)
        optional = type(None) in kinds
        (kind,) = (kind for kind in kinds if kind is not type(None))
        default: Any = item.default
        found[item.name] = Setting(item.name, kind, optional, default, item.metadata)
    return found


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint at what an unknown name may have meant.

    >>> nearest("round", ["rounds", "rows", "seed"])
    'did you mean rounds?'
    """
    names = list(names)
    close = difflib.get_close_matches(name.replace("-", "_"), names, n=2, cutoff=0.6)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return (
        f"there are {', '.join(names)}" if len(names) <= _LISTED else "see --help for all of them"
    )

"""The errors this package raises on purpose, and one-line argument checks.

Every error derives from `DiffSketchError`, so a caller (the command line, for one) can tell a
mistake that has a clear message from a bug. A check raises an `ArgumentError` that names the
argument, the requirement and the value.
"""

from __future__ import annotations

import difflib
import math
import numbers
from collections.abc import Iterable
from enum import Enum, StrEnum
from typing import TypeVar

_LISTED = 12  # most names in an error


class DiffSketchError(Exception):
    """Base of every error that this package raises on purpose."""


class ArgumentError(DiffSketchError, ValueError):
    """An argument is outside what the function accepts."""


class MismatchError(DiffSketchError, ValueError):
    """Two values that were combined do not belong together (another seed, shape or device)."""


class DataError(DiffSketchError, OSError):
    """A data file is missing, damaged or not in the expected format."""


def check(condition: bool, name: str, requirement: str, value: object) -> None:
    """Raise an `ArgumentError` that names the argument, the requirement and the value.

    Write the condition so that NaN fails it: `check(x > 0, ...)`, never `check(not x <= 0, ...)`.

    >>> check(-1 > 0, "rows", "be > 0", -1)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: rows must be > 0, got rows=-1
    """
    if not condition:
        shown = value.value if isinstance(value, Enum) else value
        raise ArgumentError(f"{name} must {requirement}, got {name}={shown!r}")


def check_positive(name: str, value: float) -> None:
    """Raise an `ArgumentError` unless the value is a plain number, > 0 and finite.

    >>> check_positive("limit", "1")
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: limit must be a number > 0 and finite, got limit='1'
    """
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    check(plain and 0 < value < math.inf, name, "be a number > 0 and finite", value)


def check_delta(value: float) -> None:
    """Raise an `ArgumentError` unless the value is a number in [0, 1).

    >>> check_delta("x")
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: delta must be in [0, 1), got delta='x'
    """
    check(isinstance(value, numbers.Real) and 0 <= value < 1, "delta", "be in [0, 1)", value)


def check_whole(name: str, value: int, *, least: int, most: int | None = None) -> None:
    """Raise an `ArgumentError` unless the value is a plain int from `least` to `most`.

    >>> check_whole("rows", 0, least=1)
    Traceback (most recent call last):
        ...
    diffsketch.errors.ArgumentError: rows must be >= 1, got rows=0
    """
    plain = isinstance(value, int) and not isinstance(value, bool)
    check(plain, name, "be an int", value)
    if most is None:
        check(value >= least, name, f"be >= {least}", value)
        return
    # 2**63 says more than its nineteen digits.
    limits = f"{least}..{most}"
    if most > 2**53 and most.bit_count() == most.bit_length():  # a power of two, less one
        limits = f"[{least}, 2**{most.bit_length()})"
    check(least <= value <= most, name, f"be in {limits}", value)


def check_between(name: str, value: float, least: float, most: float) -> None:
    """Raise an `ArgumentError` unless the value is a plain number > 0 in `[least, most]`."""
    check_positive(name, value)
    check(least <= value <= most, name, f"be in [{least:g}, {most:g}]", value)


def check_type(name: str, value: object, kind: type) -> None:
    """Raise an `ArgumentError` unless the value is an instance of `kind`."""
    check(isinstance(value, kind), name, f"be of type {kind.__name__}", value)


_Choice = TypeVar("_Choice", bound=StrEnum)


def check_choice(name: str, value: str, kind: type[_Choice]) -> _Choice:
    """Return the option of an enumeration that the value names.

    Raises:
        ArgumentError: It names none.
    """
    check(value in list(kind), name, f"be one of {', '.join(kind)}", value)
    return kind(value)


def nearest(name: str, names: Iterable[str], *, see: str = "--help") -> str:
    """Hint at what an unknown name may have meant.

    >>> nearest("round", ["rounds", "rows", "seed"])
    'did you mean rounds?'
    """
    names = list(names)
    few = len(names) <= _LISTED
    listed = f"there are {', '.join(names)}" if few else f"see {see} for all of them"
    return did_you_mean(name, names) or listed


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Ask whether an unknown name meant one or two of these; empty if none is like it."""
    # --batch-size and batch_size are one name to a user.
    spellings = {option.replace("-", "_"): option for option in names}
    close = difflib.get_close_matches(name.replace("-", "_"), spellings, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(spellings[match] for match in close)}?" if close else ""


# Parts of an identity that are digests, and the start of a sentence: nobody can read a digest.
_DIGESTS = {
    "data": "the data has",
    "test": "the test data has",
    "model": "the model has",
    "importance": "what devices count for has",
    "loss": "the loss has",
    "noise_key": "the key of the noise has",
}


def difference(identity: str, other: str) -> str:
    """Describe the first difference between the identity of a run and that of a state.

    >>> difference("data=a1, method=A(rows=3, cols=4)", "data=a1, method=A(rows=3, cols=5)")
    'method is A(rows=3, cols=4) here and was A(rows=3, cols=5)'
    """
    here, there = _parts(identity), _parts(other)
    for name in here | there:
        if here.get(name) != there.get(name):
            if name in _DIGESTS:
                return f"{_DIGESTS[name]} changed since the run began"
            return (
                f"{name} is {here.get(name, 'missing')} here and was {there.get(name, 'missing')}"
            )
    return "its settings are others"


def _parts(text: str) -> dict[str, str]:
    """Parse `name=value, ...`, where values may have commas inside brackets."""
    parts, depth, begin = dict[str, str](), 0, 0
    for place, letter in enumerate(f"{text},"):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            name, _, value = text[begin:place].strip().partition("=")
            parts[name] = value
            begin = place + 1
    return parts

"""Reading a measurement's settings: each a number or a text, lists as texts such as "0, 5, 20"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from diffsketch.app.settings import RunConfig
from diffsketch.errors import ArgumentError, check

__all__ = ["check_known", "finite", "number", "numbers", "run_settings", "text", "whole", "wholes"]

_RUN = frozenset(RunConfig.model_fields)


def check_known(settings: Mapping[str, Any], names: Iterable[str]) -> None:
    """Raise an `ArgumentError` that names a setting which the measurement does not have."""
    known = set(names)
    for name in settings:
        check(name in known, "settings", f"be among {', '.join(sorted(known))}", name)


def run_settings(settings: Mapping[str, Any], own: Iterable[str]) -> dict[str, Any]:
    """Those of `diffsketch run`, after checking that the others are the measurement's `own`."""
    names = set(own)
    check_known(settings, names | _RUN)
    return {name: value for name, value in settings.items() if name not in names}


def whole(settings: Mapping[str, Any], name: str, *, default: int | None = None) -> int:
    """A whole number >= 0."""
    value = _given(settings, name, default)
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    check(good, name, "be a whole number >= 0", value)
    return int(value)


def number(settings: Mapping[str, Any], name: str, *, default: float | None = None) -> float:
    """A finite number."""
    value = _given(settings, name, default)
    good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    check(good, name, "be a finite number", value)
    return float(value)


def text(settings: Mapping[str, Any], name: str, *, default: str | None = None) -> str:
    """A text."""
    value = _given(settings, name, default)
    check(isinstance(value, str), name, "be a text", value)
    return str(value)


def numbers(settings: Mapping[str, Any], name: str, *, default: str | None = None) -> list[float]:
    """Finite numbers, from a text that lists them; a single one may be given as it is.

    >>> numbers({"paddings": "0, 5, 20"}, "paddings")
    [0.0, 5.0, 20.0]
    """
    value = _given(settings, name, default)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return [number(settings, name)]
    check(isinstance(value, str), name, "be a number, or a text that lists numbers", value)
    try:
        found = [float(part) for part in str(value).split(",")]
    except ValueError as error:
        raise ArgumentError(f"{name} must list numbers, got {name}={value!r}") from error
    check(all(map(math.isfinite, found)), name, "list finite numbers", value)
    return found


def wholes(settings: Mapping[str, Any], name: str, *, default: str | None = None) -> list[int]:
    """Whole numbers >= 0, from a text that lists them."""
    found = numbers(settings, name, default=default)
    good = all(value >= 0 and value == int(value) for value in found)
    check(good, name, "list whole numbers >= 0", settings.get(name, default))
    return [int(value) for value in found]


def finite(value: float) -> float | None:
    """The number, or None for infinity and NaN, which JSON has no words for."""
    return value if math.isfinite(value) else None


def _given(settings: Mapping[str, Any], name: str, default: Any) -> Any:
    value = settings.get(name, default)
    check(value is not None, name, "be given", value)
    return value

"""Calls that must raise, one in a line."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def refused(
    error: type[Exception], match: str, call: Callable[..., object], /, *args: Any, **settings: Any
) -> None:
    """Check that a call raises this error, with a text that matches."""
    with pytest.raises(error, match=match):
        call(*args, **settings)


def each_refused(
    error: type[Exception], match: str, call: Callable[..., object], values: Iterable[Any], /
) -> None:
    """Check that a call raises this error for each of these arguments."""
    for value in values:
        refused(error, match, call, value)

"""Calls that must raise, one in a line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def refused(
    error: type[Exception], match: str, call: Callable[..., object], /, *args: Any, **settings: Any
) -> None:
    """Check that a call raises this error, with a text that matches."""
    with pytest.raises(error, match=match):
        call(*args, **settings)

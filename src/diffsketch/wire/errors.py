"""What is wrong with bytes that arrived."""

from __future__ import annotations

from diffsketch.errors import DiffSketchError

__all__ = ["DuplicateError", "WireError"]


class WireError(DiffSketchError, ValueError):
    """A message that arrived is refused. Its one line says why; nothing was changed."""


class DuplicateError(WireError):
    """The sender's message is already there: a repeated delivery, which may be ignored."""
